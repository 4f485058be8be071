//! A client that repeats its request as soon as it has the answer is never refused because of its
//! own previous request.

use std::convert::Infallible;

use http::request::Parts;
use http::{Response, StatusCode};
use http_body_util::BodyExt;
use lock_runtime::layer::{HeldUntil, LockLayer};
use lock_runtime::testing::memory_manager;
use lock_runtime::{Kind, LockManager};
use tower::{Layer, service_fn};

use super::rig::{MS, SECOND, Scene, Sent, by_path, done, fed, ok, post, send};

const HOLDS: [HeldUntil; 2] = [HeldUntil::Response, HeldUntil::BodyEnd];

fn layer(locks: &LockManager, hold: HeldUntil) -> LockLayer<lock_runtime::layer::PartKey> {
    LockLayer::new(locks.clone(), by_path()).no_wait().hold(hold)
}

#[tokio::test(start_paused = true)]
async fn a_client_that_repeats_at_once_is_served() {
    let scene = Scene::new();
    for hold in HOLDS {
        let service = layer(&scene.locks, hold).layer(service_fn(done));
        for n in 0..1000 {
            let response = send(&service, post("/k")).await;
            assert_eq!(response.status(), StatusCode::OK, "{n} {hold:?}");
            response.into_body().collect().await.unwrap();
        }
    }
    scene.is_settled(None).await;
}

/// Only the end of the stream shows that the body has ended.
#[tokio::test(start_paused = true)]
async fn a_client_that_has_read_a_stream_to_its_end_is_served() {
    let scene = Scene::new();
    for hold in HOLDS {
        let service = layer(&scene.locks, hold).layer(service_fn(|_: Sent| async move {
            let (feed, body) = fed(());
            feed.send(Ok(http_body::Frame::data("x".into()))).unwrap();
            Ok::<_, Infallible>(Response::new(body))
        }));
        for n in 0..1000 {
            let response = send(&service, post("/k")).await;
            assert_eq!(response.status(), StatusCode::OK, "{n} {hold:?}");
            response.into_body().collect().await.unwrap();
        }
    }
    scene.is_settled(None).await;
}

/// The store is slow: the release is still under way when the next request arrives.
#[tokio::test(start_paused = true)]
async fn a_client_is_served_while_the_release_before_it_is_on_its_way() {
    for kind in [Kind::Mutex, Kind::Write, Kind::Read] {
        for hold in HOLDS {
            let scene = Scene::new();
            scene.store.release_takes(20 * MS);
            let inner = service_fn(done);
            let service = layer(&scene.locks, hold).kind(kind).layer(inner);
            for n in 0..100 {
                let response = send(&service, post("/k")).await;
                assert_eq!(response.status(), StatusCode::OK, "{n} {hold:?} {kind:?}");
                response.into_body().collect().await.unwrap();
            }
            scene.is_settled(None).await;
        }
    }
}

/// Fair locks and locks of several keys do not queue behind their own release: a short wait covers
/// that.
#[tokio::test(start_paused = true)]
async fn with_a_short_wait_that_is_so_for_fair_locks_and_several_keys() {
    let keys: [&[&str]; 2] = [&["a"], &["a", "b"]];
    for (kind, keys) in [(Kind::Fair, keys[0]), (Kind::Fair, keys[1]), (Kind::Mutex, keys[1])] {
        for hold in HOLDS {
            let scene = Scene::new();
            scene.store.release_takes(20 * MS);
            let layer = LockLayer::new(scene.locks.clone(), move |_: &Parts| keys.to_vec());
            let layer = layer.wait(SECOND).kind(kind).hold(hold);
            let service = layer.layer(service_fn(done));
            for n in 0..100 {
                let response = send(&service, post("/k")).await;
                assert_eq!(response.status(), StatusCode::OK, "{n} {hold:?} {kind:?} {keys:?}");
                response.into_body().collect().await.unwrap();
            }
            scene.is_settled(None).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn clients_of_several_threads_that_repeat_at_once_are_served() {
    let locks = memory_manager();
    let mut clients = tokio::task::JoinSet::new();
    for client in 0..4 {
        for hold in HOLDS {
            let inner = service_fn(|_: Sent| async move {
                tokio::task::yield_now().await;
                Ok::<_, Infallible>(ok())
            });
            let service = layer(&locks, hold).layer(inner);
            clients.spawn(async move {
                for n in 0..1000 {
                    let response = send(&service, post(&format!("/{client}-{hold:?}"))).await;
                    assert_eq!(response.status(), StatusCode::OK, "{n} {hold:?}");
                    let body = response.into_body();
                    // The body is sent on another thread, as servers may do.
                    tokio::spawn(async move { drop(body.collect().await.unwrap()) }).await.unwrap();
                }
            });
        }
    }
    while let Some(client) = clients.join_next().await {
        client.unwrap();
    }
}
