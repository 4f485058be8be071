//! Clients that leave, handlers that panic, and every way a body can end: the lock is freed exactly
//! once.

use std::convert::Infallible;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::request::Parts;
use http::{HeaderMap, Response, StatusCode};
use http_body::{Body, Frame};
use http_body_util::{BodyExt, Full};
use lock_runtime::layer::{
    AsyncKeyExtractor, BoxError, Extraction, HeldUntil, LockBody, LockLayer, PartKey, Rejection, RequestKeys,
};
use tokio::time::{sleep, timeout};
use tower::{Layer, Service, service_fn};

use super::rig::{FedBody, Feed, INSIDE, MS, Probe, SECOND, Scene, Sent, by_path, fed, held_in, post, send};

/// Returns a handler whose behaviour is in the second segment of the path.
fn handler(
    scene: &Scene,
) -> impl Service<Sent, Response = Response<FedBody<Probe>>, Error = &'static str, Future: Send + 'static>
+ Clone
+ Send
+ 'static
+ use<> {
    let (scene, feeds) = (scene.clone(), Arc::new(Mutex::new(Vec::<Feed>::new())));
    service_fn(move |request: Sent| {
        let (scene, feeds) = (scene.clone(), Arc::clone(&feeds));
        async move {
            let probe = scene.probe(&held_in(request.extensions()));
            scene.store.note("in the handler");
            match request.uri().query() {
                Some("hangs") => std::future::pending().await,
                Some("panics") => {
                    sleep(MS).await;
                    panic!("in the handler")
                }
                Some("fails") => return Err("an error of the service"),
                _ => sleep(MS).await,
            }
            let (feed, body) = fed(probe);
            let data = |text: &'static str| Ok(Frame::data(Bytes::from(text)));
            feed.send(data("one ")).unwrap();
            match request.uri().query() {
                Some("stalls") => feeds.lock().unwrap().push(feed),
                Some("breaks") => feed.send(Err("broken".into())).unwrap(),
                Some("trailers") => {
                    let trailers = HeaderMap::from_iter([("x-sum".parse().unwrap(), "1".parse().unwrap())]);
                    feed.send(Ok(Frame::trailers(trailers))).unwrap();
                }
                _ => feed.send(data("two")).unwrap(),
            }
            Ok(Response::new(body))
        }
    })
}

fn layer(scene: &Scene, hold: HeldUntil) -> LockLayer<PartKey> {
    LockLayer::new(scene.locks.clone(), by_path()).hold(hold)
}

const HOLDS: [HeldUntil; 2] = [HeldUntil::Response, HeldUntil::BodyEnd];

/// Asserts the end of every scene: the lock was freed once, and the next request gets it at once.
async fn ends_well(scene: &Scene) {
    let served = send(&layer(scene, HeldUntil::BodyEnd).wait(SECOND).layer(handler(scene)), post("/k")).await;
    assert_eq!(served.status(), StatusCode::OK);
    let token = held_in(served.extensions()).fencing_token();
    served.into_body().collect().await.unwrap();
    scene.is_settled(Some(("k", token))).await;
}

#[tokio::test(start_paused = true)]
async fn a_request_that_is_never_polled_leaves_nothing() {
    let scene = Scene::new();
    let mut service = layer(&scene, HeldUntil::Response).layer(handler(&scene));
    std::future::poll_fn(|cx| service.poll_ready(cx)).await.unwrap();
    drop(service.call(post("/k")));
    assert_eq!(scene.store.events(), []);
    scene.is_settled(None).await;
    ends_well(&scene).await;
}

/// An extractor that needs a second to find the key.
#[derive(Clone, Copy, Debug)]
struct Slow;

impl AsyncKeyExtractor<Full<Bytes>> for Slow {
    type Future = Pin<Box<dyn Future<Output = (Sent, Result<Option<RequestKeys>, Rejection>)> + Send>>;

    fn extract(&self, request: Sent) -> Extraction<Full<Bytes>, Self::Future> {
        Extraction::Pending(Box::pin(async move {
            sleep(SECOND).await;
            assert_ne!(request.uri().query(), Some("mad"), "in the extractor");
            let keys = RequestKeys::several(["k"]);
            (request, keys)
        }))
    }
}

#[tokio::test(start_paused = true)]
async fn a_client_that_leaves_while_the_key_is_looked_for_leaves_nothing() {
    let scene = Scene::new();
    let service = LockLayer::new_async(scene.locks.clone(), Slow).layer(handler(&scene));
    assert!(timeout(SECOND / 2, send(&service, post("/k"))).await.is_err());
    assert_eq!(scene.store.events(), []);
    ends_well(&scene).await;
}

#[tokio::test(start_paused = true)]
async fn a_client_that_leaves_while_it_waits_gives_up_its_place() {
    let scene = Scene::new();
    let guard = scene.locks.mutex("k").acquire().await.unwrap();
    let service = layer(&scene, HeldUntil::Response).max_waiters(1).layer(handler(&scene));
    assert!(timeout(SECOND, send(&service, post("/k"))).await.is_err());
    // Its place among the waiters is free, and it is no longer served.
    let (waiting, ()) = tokio::join!(send(&service, post("/k")), async {
        sleep(SECOND).await;
        guard.release().await.unwrap();
    });
    assert_eq!(waiting.status(), StatusCode::OK);
    let handled = scene
        .store
        .events()
        .iter()
        .filter(|&event| *event == super::rig::Event::Note("in the handler"))
        .count();
    assert_eq!(handled, 1);
    ends_well(&scene).await;
}

/// The store has granted the lock, and the client leaves before the answer arrives.
#[tokio::test(start_paused = true)]
async fn a_client_that_leaves_while_the_grant_is_on_its_way_frees_it() {
    let scene = Scene::new();
    scene.store.answer_takes(SECOND);
    let service = layer(&scene, HeldUntil::Response).layer(handler(&scene));
    assert!(timeout(SECOND / 2, send(&service, post("/k"))).await.is_err());
    assert!(scene.is_locked("k").await, "granted");
    scene.store.answer_takes(Duration::ZERO);
    ends_well(&scene).await;
}

#[tokio::test(start_paused = true)]
async fn a_client_that_leaves_drops_the_handler_before_the_release() {
    for hold in HOLDS {
        let scene = Scene::new();
        let service = layer(&scene, hold).layer(handler(&scene));
        let leaves = tokio::spawn(send(&service, post("/k?hangs")));
        scene.noted("in the handler").await;
        assert!(scene.is_locked("k").await);
        leaves.abort();
        assert!(leaves.await.unwrap_err().is_cancelled());
        scene.is_settled(None).await;
        assert!(scene.came_before_the_release(INSIDE), "{:?}", scene.store.events());
        ends_well(&scene).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_client_that_leaves_in_mid_body_drops_the_body_before_the_release() {
    let scene = Scene::new();
    let service = layer(&scene, HeldUntil::BodyEnd).layer(handler(&scene));
    let mut response = send(&service, post("/k?stalls")).await;
    let first = response.frame().await.unwrap().unwrap();
    assert_eq!(first.into_data().unwrap(), "one ");
    assert!(timeout(30 * SECOND, response.frame()).await.is_err());
    assert!(scene.is_locked("k").await && held_in(response.extensions()).is_held());
    drop(response);
    scene.is_settled(None).await;
    assert!(scene.came_before_the_release(INSIDE), "{:?}", scene.store.events());
    ends_well(&scene).await;
}

/// The body was never polled.
#[tokio::test(start_paused = true)]
async fn a_body_that_is_dropped_unread_frees_the_lock() {
    let scene = Scene::new();
    let response = send(&layer(&scene, HeldUntil::BodyEnd).layer(handler(&scene)), post("/k")).await;
    let (head, body) = response.into_parts();
    assert!(held_in(&head.extensions).is_held());
    drop(body);
    assert!(!held_in(&head.extensions).is_held(), "released, though the head lives on");
    scene.is_settled(None).await;
    assert!(scene.came_before_the_release(INSIDE), "{:?}", scene.store.events());
}

/// If the lock is held until the response, the body is outside its scope.
#[tokio::test(start_paused = true)]
async fn without_the_body_the_lock_is_free_when_the_response_is_there() {
    let scene = Scene::new();
    let service = layer(&scene, HeldUntil::Response).no_wait().layer(handler(&scene));
    let first = send(&service, post("/k?stalls")).await;
    let second = send(&service, post("/k?stalls")).await;
    assert!(first.status() == StatusCode::OK && second.status() == StatusCode::OK);
    assert!(!held_in(first.extensions()).is_held());
    drop((first, second));
    ends_well(&scene).await;
}

async fn frames<B>(body: &mut B) -> (String, Option<HeaderMap>, Option<B::Error>)
where
    B: Body<Data = Bytes> + Unpin,
{
    let (mut text, mut trailers) = (String::new(), None);
    while let Some(frame) = body.frame().await {
        match frame.map(Frame::into_data) {
            Ok(Ok(data)) => text.push_str(std::str::from_utf8(&data).unwrap()),
            Ok(Err(frame)) => trailers = frame.into_trailers().ok(),
            Err(error) => return (text, trailers, Some(error)),
        }
    }
    (text, trailers, None)
}

#[tokio::test(start_paused = true)]
async fn a_body_is_what_it_was_and_frees_the_lock_at_its_end() {
    for hold in HOLDS {
        let scene = Scene::new();
        let service = layer(&scene, hold).layer(handler(&scene));
        let mut response = send(&service, post("/k")).await;
        let (text, trailers, error) = frames(response.body_mut()).await;
        assert_eq!((text.as_str(), trailers, error.is_none()), ("one two", None, true));
        assert!(!held_in(response.extensions()).is_held(), "freed by the end, and not by the drop");
        assert!(response.frame().await.is_none(), "it stays at its end");

        let mut response = send(&service, post("/k?trailers")).await;
        let (text, trailers, error) = frames(response.body_mut()).await;
        assert_eq!((text.as_str(), error.is_none()), ("one ", true));
        assert_eq!(trailers.unwrap()["x-sum"], "1");
        assert!(!held_in(response.extensions()).is_held());

        let mut response = send(&service, post("/k?breaks")).await;
        let (text, _, error) = frames(response.body_mut()).await;
        assert_eq!((text.as_str(), error.unwrap().to_string().as_str()), ("one ", "broken"));
        assert!(!held_in(response.extensions()).is_held());
        drop(response);
        ends_well(&scene).await;
    }
}

#[tokio::test(start_paused = true)]
async fn an_error_of_the_service_frees_the_lock_and_comes_out() {
    for hold in HOLDS {
        let scene = Scene::new();
        let mut service = layer(&scene, hold).layer(handler(&scene));
        std::future::poll_fn(|cx| service.poll_ready(cx)).await.unwrap();
        let error = service.call(post("/k?fails")).await.unwrap_err();
        assert_eq!(error, "an error of the service");
        scene.is_settled(None).await;
        assert!(scene.came_before_the_release(INSIDE), "{:?}", scene.store.events());
        ends_well(&scene).await;
    }
}

/// Polls like a layer that catches panics: it drops the future that panicked when it answers.
async fn catches<F: Future>(future: F) -> Result<F::Output, ()> {
    let mut future = Box::pin(future);
    std::future::poll_fn(move |cx: &mut Context<'_>| {
        match std::panic::catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(cx))) {
            Ok(polled) => polled.map(Ok),
            Err(_) => Poll::Ready(Err(())),
        }
    })
    .await
}

#[tokio::test(start_paused = true)]
async fn a_panic_in_the_handler_frees_the_lock() {
    for hold in HOLDS {
        let scene = Scene::new();
        let service = layer(&scene, hold).layer(handler(&scene));
        catches(send(&service, post("/k?panics"))).await.unwrap_err();
        scene.is_settled(None).await;
        assert!(scene.came_before_the_release(INSIDE), "{:?}", scene.store.events());
        ends_well(&scene).await;
    }
}

/// The panic happens in the call, before there is a future.
#[tokio::test(start_paused = true)]
async fn a_panic_when_the_service_is_called_frees_the_lock() {
    let scene = Scene::new();
    let store = Arc::clone(&scene.store);
    let service = layer(&scene, HeldUntil::Response).layer(service_fn(move |_: Sent| {
        store.note("called");
        if true {
            panic!("in the call");
        }
        std::future::ready(Ok::<_, Infallible>(super::rig::ok()))
    }));
    catches(send(&service, post("/k"))).await.unwrap_err();
    scene.is_settled(None).await;
    assert!(scene.came_before_the_release("called"));
    ends_well(&scene).await;
}

#[tokio::test(start_paused = true)]
async fn a_panic_in_the_extractor_leaves_nothing() {
    let scene = Scene::new();
    let service = LockLayer::new_async(scene.locks.clone(), Slow).max_waiters(1).layer(handler(&scene));
    catches(send(&service, post("/k?mad"))).await.unwrap_err();
    let at_once = LockLayer::new(scene.locks.clone(), |head: &Parts| {
        assert!(head.uri.query().is_none(), "in the extractor");
        "k"
    });
    let at_once = at_once.max_waiters(1).layer(handler(&scene));
    catches(async { send(&at_once, post("/k?mad")).await }).await.unwrap_err();
    assert_eq!(scene.store.events(), []);
    assert_eq!(send(&service, post("/k")).await.status(), StatusCode::OK);
    assert_eq!(send(&at_once, post("/k")).await.status(), StatusCode::OK);
    ends_well(&scene).await;
}

/// A body that behaves as it is told to.
#[derive(Debug)]
struct Told {
    frame: Option<Bytes>,
    ends: bool,
}

impl Body for Told {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: std::pin::Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        Poll::Ready(self.frame.take().map(|frame| Ok(Frame::data(frame))))
    }

    fn is_end_stream(&self) -> bool {
        self.ends && self.frame.is_none()
    }
}

#[tokio::test(start_paused = true)]
async fn the_lock_is_freed_as_soon_as_the_body_says_that_it_is_at_its_end() {
    let scene = Scene::new();
    for (frame, ends) in [(None, true), (None, false), (Some("x"), true), (Some("x"), false)] {
        let inner = service_fn(move |_: Sent| async move {
            Ok::<_, Infallible>(Response::new(Told { frame: frame.map(Bytes::from), ends }))
        });
        let mut response: Response<LockBody<Told>> =
            send(&layer(&scene, HeldUntil::BodyEnd).layer(inner), post("/k")).await;
        let held = held_in(response.extensions());
        let ended = frame.is_none() && ends;
        assert_eq!(response.body().is_end_stream(), ended, "{frame:?}");
        assert_eq!(held.is_held(), !ended, "{frame:?} {ends}: nobody may ask a body at its end for a frame");
        if frame.is_some() {
            response.frame().await.unwrap().unwrap();
            assert_eq!(held.is_held(), !ends, "{frame:?} {ends}");
            assert_eq!(response.body().is_end_stream(), ends);
        }
        assert!(response.frame().await.is_none());
        assert!(!held.is_held());
        drop(response);
        scene.is_settled(None).await;
    }
}
