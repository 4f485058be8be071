//! A lock that is lost while its handler runs, or while its body is sent.

use std::convert::Infallible;
use std::time::Duration;

use bytes::Bytes;
use http::{Response, StatusCode, Version};
use http_body::{Body, Frame};
use http_body_util::{BodyExt, Full};
use lock_runtime::layer::{HeldUntil, LockLayer, LostLock, OnLost, PartKey};
use lock_runtime::testing::lose;
use lock_runtime::{LockError, Loss};
use tokio::time::{Instant, sleep, timeout};
use tower::{Layer, Service, ServiceExt, service_fn};

use super::rig::{
    Event, FedBody, Feed, INSIDE, LATE, LOST, MS, Probe, SECOND, Scene, Sent, by_path, fed, grpc, held_in,
    ok, post, send,
};

/// A way to lose a lock after about a second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Lose,
    ForceRelease,
    MaxHold,
    Lease,
    ShutDown,
}

const WAYS: [Way; 5] = [Way::Lose, Way::ForceRelease, Way::MaxHold, Way::Lease, Way::ShutDown];

impl Way {
    fn loss(self) -> Loss {
        match self {
            Self::Lose | Self::ForceRelease => Loss::TakenAway,
            Self::MaxHold => Loss::MaxHold,
            Self::Lease => Loss::LeaseOver,
            Self::ShutDown => Loss::ShutDown,
        }
    }

    fn layer(self, scene: &Scene) -> LockLayer<PartKey> {
        let layer = LockLayer::new(scene.locks.clone(), by_path());
        match self {
            Self::MaxHold => layer.max_hold(SECOND),
            Self::Lease => layer.lease(SECOND),
            Self::Lose | Self::ForceRelease | Self::ShutDown => layer,
        }
    }

    async fn happens(self, scene: &Scene) {
        sleep(SECOND).await;
        match self {
            Self::Lose => assert!(lose(&scene.locks, "k")),
            Self::ForceRelease => assert!(scene.locks.force_release("k").await.unwrap()),
            Self::ShutDown => _ = scene.locks.shutdown(Duration::ZERO).await,
            Self::MaxHold | Self::Lease => {}
        }
    }

    /// Asserts that the handler or body was dropped before the release, for `max_hold`. In the
    /// other ways, the lock is gone by itself.
    fn was_dropped_first(self, scene: &Scene) {
        let late = scene.store.events().contains(&Event::Note(LATE));
        assert!(!(late && self == Self::MaxHold), "{:?}", scene.store.events());
    }

    /// Asserts that everything is given back, and that the handler or body was dropped after the
    /// loss.
    async fn is_over(self, scene: &Scene) {
        sleep(SECOND).await;
        scene.is_settled_but(usize::from(self == Self::ForceRelease), None).await;
        assert!(scene.store.events().contains(&Event::Note(LOST)), "{self:?}");
        if self == Self::MaxHold {
            // In the other ways, the lock is already gone, or about to be.
            assert!(scene.came_before_the_release(LOST), "{:?}", scene.store.events());
        }
    }
}

/// Returns a handler that runs for the number of seconds in the query.
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
        let seconds: u32 = request.uri().query().unwrap().parse().unwrap();
        async move {
            sleep(seconds * SECOND).await;
            probe.scene().store.note("ran to its end");
            Ok(ok())
        }
    })
}

#[tokio::test(start_paused = true)]
async fn a_handler_whose_lock_is_lost_is_dropped_and_its_client_told() {
    for way in WAYS {
        for detached in [false, true] {
            let scene = Scene::new();
            let started = Instant::now();
            let sent = async {
                let layer = way.layer(&scene);
                match detached {
                    false => send(&layer.layer(handler(&scene)), post("/k?100")).await,
                    true => send(&layer.detached().layer(handler(&scene)), post("/k?100")).await,
                }
            };
            let (response, ()) = tokio::join!(sent, way.happens(&scene));
            assert_eq!(response.status(), StatusCode::INTERNAL_SERVER_ERROR, "{way:?}");
            assert!(started.elapsed() < 3 * SECOND, "{way:?}: {:?}", started.elapsed());
            // The work may be half done, so the client is not invited to repeat it.
            assert!(!response.headers().contains_key("retry-after"), "{way:?}");
            let body = response.into_body().collect().await.unwrap().to_bytes();
            assert!(body.starts_with(br#"{"type":"urn:problem-type:lock:lost""#), "{way:?}: {body:?}");
            way.is_over(&scene).await;
            way.was_dropped_first(&scene);
            assert!(!scene.store.events().contains(&Event::Note("ran to its end")));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_handler_that_finishes_marks_its_response() {
    for way in WAYS {
        for hold in [HeldUntil::Response, HeldUntil::BodyEnd] {
            let scene = Scene::new();
            let layer = way.layer(&scene).on_lost(OnLost::Finish).hold(hold);
            let service = layer.layer(handler(&scene));
            let (response, ()) = tokio::join!(send(&service, post("/k?5")), way.happens(&scene));
            assert_eq!(response.status(), StatusCode::OK, "{way:?}");
            assert_eq!(response.extensions().get::<LostLock>().unwrap().loss(), way.loss());
            assert!(held_in(response.extensions()).is_lost());
            assert_eq!(response.into_body().collect().await.unwrap().to_bytes(), "done");
            way.is_over(&scene).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_response_in_time_has_no_mark() {
    let scene = Scene::new();
    for policy in [OnLost::Cancel, OnLost::Finish] {
        let layer = Way::MaxHold.layer(&scene).on_lost(policy);
        let response = send(&layer.layer(handler(&scene)), post("/k?0")).await;
        assert_eq!(response.status(), StatusCode::OK);
        assert!(response.extensions().get::<LostLock>().is_none());
    }
    scene.is_settled(None).await;
}

/// If a handler answers at the moment its lock is lost, the answer counts.
#[tokio::test(start_paused = true)]
async fn a_response_that_is_there_wins_over_the_loss() {
    let scene = Scene::new();
    let locks = scene.locks.clone();
    let service = LockLayer::new(scene.locks.clone(), by_path()).layer(service_fn(move |_: Sent| {
        let locks = locks.clone();
        async move {
            assert!(lose(&locks, "k"));
            Ok::<_, Infallible>(ok())
        }
    }));
    let response = send(&service, post("/k")).await;
    assert_eq!(response.status(), StatusCode::OK);
    assert_eq!(response.extensions().get::<LostLock>().unwrap().loss(), Loss::TakenAway);
    scene.is_settled(None).await;
}

/// A body that stalls after its first frame, and the feed of its frames.
type Stalling = (Feed, Response<lock_runtime::layer::LockBody<FedBody<Probe>>>);

async fn stalling(scene: &Scene, layer: LockLayer<PartKey>, request: Sent) -> Stalling {
    let (give, mut take) = tokio::sync::mpsc::unbounded_channel();
    let with = scene.clone();
    let inner = service_fn(move |request: Sent| {
        let (feed, body) = fed(with.probe(&held_in(request.extensions())));
        feed.send(Ok(Frame::data(Bytes::from_static(b"half")))).unwrap();
        give.send(feed).unwrap();
        let mut response = Response::new(body);
        if let Some(kind) = request.headers().get("content-type").filter(|_| request.uri().path() != "/plain")
        {
            response.headers_mut().insert("content-type", kind.clone());
        }
        async { Ok::<_, Infallible>(response) }
    });
    let service = layer.hold(HeldUntil::BodyEnd).layer(inner);
    let mut response = send(&service, request).await;
    let first = response.frame().await.unwrap().unwrap();
    assert_eq!(first.into_data().unwrap(), "half");
    (take.recv().await.unwrap(), response)
}

#[tokio::test(start_paused = true)]
async fn a_body_whose_lock_is_lost_ends_with_an_error() {
    for way in WAYS {
        let scene = Scene::new();
        let (feed, mut response) = stalling(&scene, way.layer(&scene), post("/k")).await;
        let (ended, ()) = tokio::join!(timeout(60 * SECOND, response.frame()), way.happens(&scene));
        let error = ended
            .expect("it goes on without its lock")
            .expect("half a response must not look whole")
            .unwrap_err();
        let error = error.downcast::<LockError>().unwrap();
        assert!(matches!(*error, LockError::Lost { why, .. } if why == way.loss()), "{way:?}: {error:?}");
        assert!(feed.is_closed(), "what feeds it is told");
        assert!(response.frame().await.is_none() && response.body().is_end_stream());
        assert_eq!(response.body().size_hint().exact(), Some(0));
        way.is_over(&scene).await;
        way.was_dropped_first(&scene);
    }
}

#[tokio::test(start_paused = true)]
async fn a_grpc_body_whose_lock_is_lost_ends_with_trailers_that_say_aborted() {
    for way in WAYS {
        let scene = Scene::new();
        let (feed, mut response) = stalling(&scene, way.layer(&scene), grpc("/k")).await;
        let (ended, ()) = tokio::join!(timeout(60 * SECOND, response.frame()), way.happens(&scene));
        let trailers = ended.expect("it goes on without its lock").unwrap().unwrap().into_trailers().unwrap();
        assert_eq!(trailers["grpc-status"], "10", "{way:?}");
        assert!(!trailers["grpc-message"].is_empty());
        assert!(!trailers.contains_key("content-type"), "a header, not a trailer: {trailers:?}");
        assert!(!format!("{trailers:?}").contains("lock k"), "{trailers:?}");
        assert!(feed.is_closed() && response.frame().await.is_none());
        way.is_over(&scene).await;
    }
}

/// No client would see trailers over HTTP/1, or read them in a response that is not gRPC.
#[tokio::test(start_paused = true)]
async fn where_trailers_would_be_lost_a_grpc_body_ends_with_an_error() {
    for (path, version) in [("/k", Version::HTTP_11), ("/plain", Version::HTTP_2)] {
        let scene = Scene::new();
        let mut request = grpc(path);
        *request.version_mut() = version;
        let layer = LockLayer::new(scene.locks.clone(), by_path()).max_hold(SECOND);
        let (_feed, mut response) = stalling(&scene, layer, request).await;
        let error = response.frame().await.expect("half a response must not look whole").unwrap_err();
        assert!(matches!(*error.downcast().unwrap(), LockError::Lost { .. }), "{path}");
        scene.is_settled(None).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_body_that_may_finish_does() {
    for way in WAYS {
        let scene = Scene::new();
        let layer = way.layer(&scene).on_lost(OnLost::Finish);
        let (feed, mut response) = stalling(&scene, layer, post("/k")).await;
        let fed = async {
            way.happens(&scene).await;
            sleep(SECOND).await;
            feed.send(Ok(Frame::data(Bytes::from_static(b"whole")))).unwrap();
            drop(feed);
        };
        let (rest, ()) = tokio::join!(response.body_mut().collect(), fed);
        assert_eq!(rest.unwrap().to_bytes(), "whole", "{way:?}");
        drop(response);
        way.is_over(&scene).await;
    }
}

/// A ready frame may have been made when another request already had the lock.
#[tokio::test(start_paused = true)]
async fn no_frame_goes_out_after_the_loss() {
    let scene = Scene::new();
    let (feed, mut response) = stalling(&scene, Way::Lose.layer(&scene), post("/k")).await;
    feed.send(Ok(Frame::data(Bytes::from_static(b"too late")))).unwrap();
    Way::Lose.happens(&scene).await;
    assert!(response.frame().await.unwrap().is_err());
    drop(response);
    scene.is_settled(None).await;
}

/// A client that does not read keeps the lock for a minute at most.
#[tokio::test(start_paused = true)]
async fn a_slow_body_loses_its_lock_after_a_minute_unless_told_otherwise() {
    let scene = Scene::new();
    let layer = || LockLayer::new(scene.locks.clone(), by_path());
    for (layer, seconds) in
        [(layer(), 60), (layer().max_hold(20 * SECOND), 20), (layer().max_hold(300 * SECOND), 300)]
    {
        let granted = Instant::now();
        let (_feed, mut response) = stalling(&scene, layer, post("/k")).await;
        let ended = timeout(400 * SECOND, response.frame()).await.expect("it has its lock for ever");
        let error = ended.unwrap().unwrap_err().downcast::<LockError>().unwrap();
        assert!(matches!(*error, LockError::Lost { why: Loss::MaxHold, .. }), "{error:?}");
        let held = granted.elapsed();
        assert!((seconds * SECOND..(seconds + 1) * SECOND).contains(&held), "{seconds}: {held:?}");
        scene.is_settled(None).await;
    }

    // The client does not even ask for a frame. The lock is lost all the same, and free once the
    // body is dropped.
    let (_feed, response) = stalling(&scene, layer(), post("/k")).await;
    let held = held_in(response.extensions());
    sleep(59 * SECOND).await;
    assert!(held.is_held());
    sleep(2 * SECOND).await;
    assert!(held.is_lost());
    drop(response);
    scene.is_settled(None).await;
}

/// A client can keep its request going for a minute, unless the program says that handlers take
/// longer.
#[tokio::test(start_paused = true)]
async fn a_request_holds_its_lock_for_a_minute_unless_told_otherwise() {
    let scene = Scene::new();
    let layer = LockLayer::new(scene.locks.clone(), by_path());
    let by_default = layer.clone().layer(handler(&scene));
    assert_eq!(send(&by_default, post("/k?59")).await.status(), StatusCode::OK);
    assert_eq!(send(&by_default, post("/k?61")).await.status(), StatusCode::INTERNAL_SERVER_ERROR);
    // A fixed lease is already a limit.
    let fixed = layer.clone().lease(90 * SECOND).layer(handler(&scene));
    assert_eq!(send(&fixed, post("/k?89")).await.status(), StatusCode::OK);
    let service = layer.max_hold(None).layer(handler(&scene));
    assert_eq!(send(&service, post("/k?3600")).await.status(), StatusCode::OK);
    scene.is_settled(None).await;
    assert!(scene.came_before_the_release(INSIDE));
}

/// When a handler is cut off, the next waiter for the key follows it, and does not overlap with it.
#[tokio::test(start_paused = true)]
async fn the_next_request_is_served_after_the_one_that_was_cut_off() {
    let scene = Scene::new();
    let service = LockLayer::new(scene.locks.clone(), by_path()).max_hold(2 * SECOND).layer(handler(&scene));
    let next = async {
        sleep(MS).await;
        send(&service, post("/k?1")).await
    };
    let (cut, served) = tokio::join!(service.clone().oneshot(post("/k?10")), next);
    let cut = cut.unwrap();
    assert_eq!((cut.status(), served.status()), (StatusCode::INTERNAL_SERVER_ERROR, StatusCode::OK));
    scene.is_settled(Some(("k", held_in(served.extensions()).fencing_token()))).await;
}
