//! Functions with `#[distributed_lock]` inside handlers and bodies.
#![cfg(feature = "macros")]

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::Response;
use http_body::{Body, Frame};
use http_body_util::BodyExt;
use lock_runtime::layer::{HeldUntil, LockLayer};
use lock_runtime::{FencingToken, LockError, LockManager};
use tower::{Layer, ServiceExt, service_fn};

use super::rig::{INSIDE, MS, Probe, Scene, Sent, by_path, held_in, ok, post, send};

#[lock_runtime::distributed_lock(key = "<key>", manager = locks, wait = "none", guard = lock)]
async fn annotated(locks: &LockManager, key: &str) -> Result<FencingToken, LockError> {
    tokio::time::sleep(MS).await;
    Ok(lock.fencing_token())
}

#[tokio::test(start_paused = true)]
async fn an_annotated_function_in_the_handler_enters_again() {
    let scene = Scene::new();
    let locks = scene.locks.clone();
    let inner = service_fn(move |request: Sent| {
        let locks = locks.clone();
        async move {
            let token = annotated(&locks, "k").await?;
            assert_eq!(token, held_in(request.extensions()).fencing_token());
            Ok::<_, LockError>(ok())
        }
    });
    for hold in [HeldUntil::Response, HeldUntil::BodyEnd] {
        let layer = LockLayer::new(scene.locks.clone(), by_path()).hold(hold);
        layer.layer(inner.clone()).oneshot(post("/k")).await.unwrap();
        layer.detached().layer(inner.clone()).oneshot(post("/k")).await.unwrap();
    }
    let error = tokio::join!(annotated(&scene.locks, "k"), annotated(&scene.locks, "k")).1.unwrap_err();
    assert!(error.is_busy(), "outside of a handler they exclude each other: {error:?}");
    scene.is_settled(None).await;
}

type Call = dyn Future<Output = Result<FencingToken, LockError>> + Send;

/// A body that calls a locked function for each of its frames.
struct Calling {
    locks: LockManager,
    left: usize,
    call: Option<Pin<Box<Call>>>,
    _probe: Probe,
}

impl Body for Calling {
    type Data = Bytes;
    type Error = LockError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, LockError>>> {
        if self.left == 0 {
            return Poll::Ready(None);
        }
        let locks = self.locks.clone();
        let call =
            self.call.get_or_insert_with(|| Box::pin(async move { annotated(&locks, "k").await }) as _);
        let token = std::task::ready!(call.as_mut().poll(cx));
        self.call = None;
        self.left -= 1;
        Poll::Ready(Some(token.map(|token| Frame::data(Bytes::from(format!("{token} "))))))
    }
}

#[tokio::test(start_paused = true)]
async fn an_annotated_function_in_a_streamed_body_enters_again() {
    let scene = Scene::new();
    let inner = {
        let scene = scene.clone();
        service_fn(move |request: Sent| {
            let held = held_in(request.extensions());
            let body =
                Calling { locks: scene.locks.clone(), left: 3, call: None, _probe: scene.probe(&held) };
            async move { Ok::<_, Infallible>(Response::new(body)) }
        })
    };
    let layer = || LockLayer::new(scene.locks.clone(), by_path()).hold(HeldUntil::BodyEnd);
    let response = send(&layer().layer(inner.clone()), post("/k")).await;
    let token = held_in(response.extensions()).fencing_token();
    let seen = response.into_body().collect().await.unwrap().to_bytes();
    assert_eq!(seen, format!("{token} {token} {token} "));

    // The body is dropped midway: this also happens inside the lock.
    let mut response = send(&layer().detached().layer(inner), post("/k")).await;
    response.frame().await.unwrap().unwrap();
    assert!(scene.is_locked("k").await);
    drop(response);
    scene.noted(INSIDE).await;
    scene.is_settled(None).await;
}
