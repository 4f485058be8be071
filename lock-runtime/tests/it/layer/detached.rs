//! Detached handlers run to their end even if the client has left.

use std::convert::Infallible;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http::{Response, StatusCode};
use http_body_util::{BodyExt, Full};
use lock_runtime::layer::{DetachedLockLayer, HeldUntil, LockLayer, PartKey};
use lock_runtime::testing::lose;
use tokio::time::{sleep, timeout};
use tower::{Layer, Service, service_fn};
use tracing::Instrument;

use super::rig::{Event, INSIDE, LOST, MS, SECOND, Scene, Sent, by_path, fed, held_in, ok, post, send};

fn layer(scene: &Scene) -> DetachedLockLayer<PartKey> {
    LockLayer::new(scene.locks.clone(), by_path()).detached()
}

/// Returns a handler that runs for ten seconds.
fn handler(
    scene: &Scene,
) -> impl Service<Sent, Response = Response<Full<Bytes>>, Error = Infallible, Future: Send + 'static>
+ Clone
+ Send
+ 'static
+ use<> {
    let scene = scene.clone();
    service_fn(move |request: Sent| {
        let probe = scene.probe(&held_in(request.extensions()));
        probe.scene().store.note("begun");
        async move {
            sleep(10 * SECOND).await;
            probe.scene().store.note("ended");
            Ok(ok())
        }
    })
}

#[tokio::test(start_paused = true)]
async fn a_handler_runs_to_its_end_when_the_client_leaves() {
    for hold in [HeldUntil::Response, HeldUntil::BodyEnd] {
        let scene = Scene::new();
        let service = layer(&scene).hold(hold).layer(handler(&scene));
        assert!(timeout(SECOND, send(&service, post("/k"))).await.is_err());
        sleep(8 * SECOND).await;
        assert!(scene.is_locked("k").await, "for as long as the handler runs");
        scene.noted("ended").await;
        scene.is_settled(None).await;
        assert!(scene.came_before_the_release("ended") && scene.came_before_the_release(INSIDE));
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_that_waits_is_given_up_when_the_client_leaves() {
    let scene = Scene::new();
    let guard = scene.locks.mutex("k").acquire().await.unwrap();
    let service = layer(&scene).layer(handler(&scene));
    assert!(timeout(SECOND, send(&service, post("/k"))).await.is_err());
    guard.release().await.unwrap();
    scene.is_settled(None).await;
    assert!(!scene.store.events().contains(&Event::Note("begun")));
}

#[tokio::test(start_paused = true)]
async fn a_client_that_stays_gets_the_response_and_the_next_one_its_turn() {
    let scene = Scene::new();
    let service = layer(&scene).layer(handler(&scene));
    let (one, other) = tokio::join!(send(&service, post("/k")), async {
        sleep(MS).await;
        send(&service, post("/k")).await
    });
    assert!(one.status() == StatusCode::OK && other.status() == StatusCode::OK);
    let (first, second) = (held_in(one.extensions()), held_in(other.extensions()));
    assert!(first.fencing_token() < second.fencing_token());
    scene.is_settled(Some(("k", second.fencing_token()))).await;
}

/// A handler whose client has left loses its lock like any other.
#[tokio::test(start_paused = true)]
async fn a_handler_that_was_left_alone_is_dropped_when_its_lock_is_lost() {
    let scene = Scene::new();
    let service = layer(&scene).layer(handler(&scene));
    assert!(timeout(SECOND, send(&service, post("/k"))).await.is_err());
    assert!(lose(&scene.locks, "k"));
    scene.is_settled(None).await;
    let events = scene.store.events();
    assert!(events.contains(&Event::Note(LOST)) && !events.contains(&Event::Note("ended")), "{events:?}");
}

#[tokio::test(start_paused = true)]
async fn a_panic_comes_out_as_if_the_handler_had_run_in_place() {
    let scene = Scene::new();
    let inner = service_fn(|request: Sent| async move {
        sleep(SECOND).await;
        if request.method() == "POST" {
            std::panic::panic_any("the handler's own words");
        }
        Ok::<_, Infallible>(ok())
    });
    let service = layer(&scene).layer(inner);
    let panic = tokio::spawn(send(&service, post("/k"))).await.unwrap_err().into_panic();
    assert_eq!(panic.downcast_ref(), Some(&"the handler's own words"));
    scene.is_settled(None).await;
    // No client is left to receive the response.
    assert!(timeout(SECOND / 2, send(&service, post("/k"))).await.is_err());
    sleep(SECOND).await;
    scene.is_settled(None).await;
}

#[tokio::test(start_paused = true)]
async fn span_and_scope_go_with_the_handler() {
    let subscriber = tracing_subscriber::fmt().with_writer(std::io::sink).finish();
    let _subscriber = tracing::subscriber::set_default(subscriber);
    let scene = Scene::new();
    let outer = scene.locks.mutex("outer").acquire().await.unwrap();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let (locks, spans) = (scene.locks.clone(), Arc::clone(&seen));
    let inner = service_fn(move |_: Sent| {
        let (locks, spans) = (locks.clone(), Arc::clone(&spans));
        async move {
            for _ in 0..2 {
                spans.lock().unwrap().push(tracing::Span::current().metadata().map(tracing::Metadata::name));
                for key in ["k", "outer"] {
                    let entered = locks.mutex(key).no_wait().acquire().await;
                    assert!(entered.is_ok(), "{key} is entered again: {entered:?}");
                }
                sleep(MS).await;
            }
            Ok::<_, Infallible>(ok())
        }
    });
    let service = layer(&scene).layer(inner);
    let sent = outer.scope(send(&service, post("/k"))).instrument(tracing::info_span!("of the request"));
    assert_eq!(sent.await.status(), StatusCode::OK);
    assert_eq!(*seen.lock().unwrap(), [Some("of the request"); 2]);
    outer.release().await.unwrap();
    scene.is_settled(None).await;
}

/// The handler does not need its response future to be polled.
#[tokio::test(start_paused = true)]
async fn a_handler_goes_on_while_nobody_polls_its_response() {
    let scene = Scene::new();
    let service = layer(&scene).hold(HeldUntil::BodyEnd).layer(handler(&scene));
    let mut sent = Box::pin(send(&service, post("/k")));
    assert!(timeout(SECOND, sent.as_mut()).await.is_err());
    scene.noted("ended").await;
    assert!(scene.is_locked("k").await, "its body is not sent yet");
    let response = sent.await;
    assert_eq!(response.into_body().collect().await.unwrap().to_bytes(), "done");
    scene.is_settled(None).await;
}

/// The client has left, so no one takes the response. A body that has the lock is still dropped
/// inside its scope.
#[tokio::test(start_paused = true)]
async fn a_response_that_nobody_takes_leaves_nothing() {
    for hold in [HeldUntil::Response, HeldUntil::BodyEnd] {
        let scene = Scene::new();
        let with = scene.clone();
        let service = layer(&scene).hold(hold).layer(service_fn(move |request: Sent| {
            let (_, body) = fed(with.probe(&held_in(request.extensions())));
            async {
                sleep(10 * SECOND).await;
                Ok::<_, Infallible>(Response::new(body))
            }
        }));
        assert!(timeout(SECOND, send(&service, post("/k"))).await.is_err());
        sleep(20 * SECOND).await;
        scene.is_settled(None).await;
        if hold == HeldUntil::BodyEnd {
            assert!(scene.came_before_the_release(INSIDE), "{:?}", scene.store.events());
        }
    }
}
