//! Nested layers, locks inside handlers, and the view that each of them has of the lock.

use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::task::Poll;

use bytes::Bytes;
use http::request::Parts;
use http::{Method, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use lock_core::store::StoreErrorKind;
use lock_runtime::layer::{HeldUntil, LockLayer, MissingKey, StoreDown, Unlocked};
use lock_runtime::{HeldLock, Kind};
use tower::{Layer, ServiceBuilder, ServiceExt, service_fn};

use super::rig::{Scene, Sent, by_path, held_in, ok, poll_once, post, send};

/// Answers with the fencing token.
async fn show_token(request: Sent) -> Result<Response<Full<Bytes>>, Infallible> {
    let held = held_in(request.extensions());
    assert!(held.is_held() && !held.is_lost());
    Ok(Response::new(Full::from(held.fencing_token().to_string())))
}

#[tokio::test(start_paused = true)]
async fn the_log_of_responses_has_the_token_that_the_handler_has_seen() {
    let scene = Scene::new();
    for hold in [HeldUntil::Response, HeldUntil::BodyEnd] {
        let logged = Arc::new(Mutex::new(None));
        let log = Arc::clone(&logged);
        let service = ServiceBuilder::new()
            .map_response(move |response: Response<_>| {
                *log.lock().unwrap() = Some(held_in(response.extensions()));
                response
            })
            .layer(LockLayer::new(scene.locks.clone(), by_path()).hold(hold))
            .service(service_fn(show_token));
        let response = send(&service, post("/k")).await;
        let logged = logged.lock().unwrap().take().unwrap();
        assert_eq!(logged.is_held(), hold == HeldUntil::BodyEnd, "{hold:?}");
        let seen = response.into_body().collect().await.unwrap().to_bytes();
        assert_eq!(seen, logged.fencing_token().to_string(), "{hold:?}");
        assert_eq!(logged.key().as_str(), "k");
        assert!(!logged.is_held() && !logged.is_lost(), "{hold:?}");
        scene.is_settled(Some(("k", logged.fencing_token()))).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_layer_inside_a_layer_with_the_same_key_enters_again() {
    for holds in [
        [HeldUntil::Response, HeldUntil::Response],
        [HeldUntil::Response, HeldUntil::BodyEnd],
        [HeldUntil::BodyEnd, HeldUntil::Response],
        [HeldUntil::BodyEnd, HeldUntil::BodyEnd],
    ] {
        let scene = Scene::new();
        let layer = |hold| LockLayer::new(scene.locks.clone(), by_path()).no_wait().hold(hold);
        let service = layer(holds[0]).layer(layer(holds[1]).layer(service_fn(show_token)));
        let response = send(&service, post("/k")).await;
        assert_eq!(response.status(), StatusCode::OK, "{holds:?}");
        let held = held_in(response.extensions());
        // This is the inner layer's lock.
        assert_eq!(held.is_held(), holds[1] == HeldUntil::BodyEnd, "{holds:?}");
        let seen = response.into_body().collect().await.unwrap().to_bytes();
        assert_eq!(seen, held.fencing_token().to_string(), "{holds:?}");
        scene.is_settled(Some(("k", held.fencing_token()))).await;
    }
}

/// A reader that wants to become a writer would wait for itself, or for another reader that wants
/// the same. It gets an error at once.
#[tokio::test(start_paused = true)]
async fn a_layer_that_writes_inside_one_that_reads_is_a_mistake() {
    let scene = Scene::new();
    let layer = |kind| LockLayer::new(scene.locks.clone(), by_path()).kind(kind).wait_forever();
    let nested = |outer, inner| layer(outer).layer(layer(inner).layer(service_fn(show_token)));
    let mistake = send(&nested(Kind::Read, Kind::Write), post("/k")).await;
    assert_eq!(mistake.status(), StatusCode::INTERNAL_SERVER_ERROR);
    drop(mistake);
    let reads = send(&nested(Kind::Write, Kind::Read), post("/k")).await;
    assert_eq!(reads.status(), StatusCode::OK);
    scene.is_settled(None).await;
}

#[tokio::test(start_paused = true)]
async fn layers_with_two_keys_hold_both() {
    let scene = Scene::new();
    let layer = |key: &'static str| LockLayer::new(scene.locks.clone(), move |_: &Parts| key);
    let locks = scene.locks.clone();
    let inner = service_fn(move |request: Sent| {
        let locks = locks.clone();
        async move {
            // The lock of the innermost layer.
            assert_eq!(held_in(request.extensions()).key().as_str(), "inner");
            for key in ["inner", "outer"] {
                assert!(locks.status(key).await.unwrap().is_locked());
                let entered = locks.mutex(key).no_wait().acquire().await;
                assert!(entered.is_ok(), "{key} is entered again: {entered:?}");
            }
            Ok::<_, Infallible>(ok())
        }
    });
    let service = layer("outer").layer(layer("inner").layer(inner));
    let response = send(&service, post("/")).await;
    assert_eq!(response.status(), StatusCode::OK);
    assert_eq!(held_in(response.extensions()).key().as_str(), "inner", "what the handler saw");
    scene.is_settled(None).await;
}

/// A lock that is requested inside a request is the request's lock, but not in a task that it
/// spawns.
#[tokio::test(start_paused = true)]
async fn a_task_of_the_handler_is_a_stranger_unless_the_scope_goes_with_it() {
    let scene = Scene::new();
    let locks = scene.locks.clone();
    let service = LockLayer::new(scene.locks.clone(), by_path()).layer(service_fn(move |_: Sent| {
        let stranger = locks.mutex("k").no_wait().acquire();
        let own = locks.mutex("k").no_wait().acquire();
        async move {
            let stranger = tokio::spawn(stranger).await.unwrap();
            assert!(stranger.is_err(), "{stranger:?}");
            let own = tokio::spawn(lock_runtime::in_current_scope(own)).await.unwrap();
            assert!(own.is_ok(), "{own:?}");
            Ok::<_, Infallible>(ok())
        }
    }));
    assert_eq!(send(&service, post("/k")).await.status(), StatusCode::OK);
    scene.is_settled(None).await;
}

/// The service's `call` runs inside the lock, and not only the polls of its future.
#[tokio::test(start_paused = true)]
async fn the_service_is_called_inside_the_lock() {
    let scene = Scene::new();
    let locks = scene.locks.clone();
    let service = LockLayer::new(scene.locks.clone(), by_path()).layer(service_fn(move |_: Sent| {
        let entered = matches!(poll_once(locks.mutex("k").no_wait().acquire()), Poll::Ready(Ok(_)));
        async move { if entered { Ok(ok()) } else { Err("outside") } }
    }));
    service.oneshot(post("/k")).await.unwrap();
    scene.is_settled(None).await;
}

/// Answers with the key of the lock in the request's extensions.
async fn show_key(request: Sent) -> Result<Response<Full<Bytes>>, Infallible> {
    let held = request.extensions().get::<HeldLock>();
    Ok(Response::new(Full::from(held.map_or("none".to_owned(), |held| held.key().to_string()))))
}

/// If a layer lets a request pass without a lock, the handler does not see the lock of an outer
/// layer instead.
#[tokio::test(start_paused = true)]
async fn a_layer_that_lets_a_request_pass_hides_the_lock_of_the_one_outside() {
    let scene = Scene::new();
    let outer = || LockLayer::new(scene.locks.clone(), |_: &Parts| "outer");
    let inner = || LockLayer::new(scene.locks.clone(), |_: &Parts| "inner");
    let text = async |service: LockLayer<_>, inner: LockLayer<_>| {
        let response = send(&service.layer(inner.layer(service_fn(show_key))), post("/k")).await;
        response.into_body().collect().await.unwrap().to_bytes()
    };
    assert_eq!(text(outer(), inner()).await, "inner");
    assert_eq!(text(outer(), inner().skip_methods([Method::POST])).await, "none");
    assert_eq!(text(outer(), inner().enabled(false)).await, "outer", "as if there were none");
    let no_key = LockLayer::new(scene.locks.clone(), |_: &Parts| None::<String>);
    let no_key = no_key.on_missing_key(MissingKey::Skip);
    let response = send(&outer().layer(no_key.layer(service_fn(show_key))), post("/k")).await;
    assert_eq!(response.into_body().collect().await.unwrap().to_bytes(), "none");

    // The store goes down between the two layers.
    let passes = inner().on_store_down(StoreDown::PassThrough).no_wait();
    let inside = passes.layer(service_fn(|request: Sent| {
        let seen = (request.extensions().get::<HeldLock>().is_some(), request.extensions().get::<Unlocked>());
        let unlocked = seen == (false, Some(seen.1.unwrap()));
        async move {
            if unlocked { show_key(request).await } else { panic!("with a lock, and marked as unlocked") }
        }
    }));
    let store = Arc::clone(&scene.store);
    let failing = service_fn(move |request: Sent| {
        store.fail(StoreErrorKind::Unreachable);
        inside.clone().oneshot(request)
    });
    let response = send(&outer().layer(failing), post("/k")).await;
    assert!(response.extensions().get::<Unlocked>().is_some());
    assert!(response.extensions().get::<HeldLock>().is_none(), "the client's side is told the same");
    assert_eq!(response.into_body().collect().await.unwrap().to_bytes(), "none");
}
