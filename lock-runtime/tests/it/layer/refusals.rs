//! The responses to refused clients: the table of the module's documentation, row by row.

use std::convert::Infallible;
use std::panic::AssertUnwindSafe;
use std::time::Duration;

use bytes::Bytes;
use http::request::Parts;
use http::{HeaderMap, Response, StatusCode};
use http_body::Body;
use http_body_util::{BodyExt, Full};
use lock_core::internal::chance::set_jitter;
use lock_core::store::StoreErrorKind;
use lock_runtime::layer::{
    AsyncKeyExtractor, LockLayer, PartKey, ProblemDetails, Protocol, Reason, Refusal, Refuse, Rejection,
    header, path_segment,
};
use lock_runtime::testing::lose;
use lock_runtime::{LockManager, TokenRetention};
use tokio::time::{Instant, sleep};
use tower::{Layer, service_fn};

use super::rig::{MS, SECOND, Scene, Sent, done, grpc, ok, post, send};

/// A text in the keys of all refused requests.
const SECRET: &str = "secret-order";
const PATH: &str = "/orders/secret-order";

fn layer(scene: &Scene) -> LockLayer<PartKey> {
    LockLayer::new(scene.locks.clone(), path_segment(1))
}

/// The responses in the two protocols.
#[derive(Debug)]
struct Told {
    http: (StatusCode, HeaderMap, serde_json::Value),
    grpc: HeaderMap,
}

impl Told {
    fn detail(&self) -> &str {
        self.http.2["detail"].as_str().unwrap()
    }

    /// Returns the delay in seconds, from HTTP, and in milliseconds, from gRPC.
    fn retry_after(&self) -> Option<(u64, u64)> {
        let http = self.http.1.get("retry-after").map(|value| value.to_str().unwrap().parse().unwrap());
        let grpc =
            self.grpc.get("grpc-retry-pushback-ms").map(|value| value.to_str().unwrap().parse().unwrap());
        assert_eq!(http.is_some(), grpc.is_some(), "{self:?}");
        http.zip(grpc)
    }
}

/// Sends the request in both protocols, and checks everything that all refusals have in common.
/// Neither request reaches the handler.
async fn refused<K, R>(scene: &Scene, layer: &LockLayer<K, R>) -> Told
where
    K: AsyncKeyExtractor<Full<Bytes>>,
    R: Refuse,
{
    // Otherwise the delay is random, between half of the time and all of it.
    set_jitter(1.0);
    let service = layer.layer(service_fn(|_: Sent| async move {
        if true {
            panic!("the handler of a refused request was called");
        }
        Ok::<_, Infallible>(ok())
    }));
    let (http, body) = send(&service, post(PATH)).await.into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    let grpc = send(&service, grpc(PATH)).await;
    assert!(grpc.body().is_end_stream(), "trailers only");
    let told = format!("{:?} {:?} {body:?} {:?}", http.headers, http.extensions, grpc.headers());
    for secret in [SECRET, scene.locks.id(), "secret-host", "6379", "said NO", "redis"] {
        assert!(!told.contains(secret), "{secret} in {told}");
    }
    assert_eq!(http.headers["content-type"], "application/problem+json");
    assert_eq!(http.headers["cache-control"], "no-store");
    let problem: serde_json::Value = serde_json::from_slice(&body).unwrap();
    assert_eq!(problem.as_object().unwrap().len(), 4, "{problem}");
    assert_eq!(problem["status"], http.status.as_u16());
    assert!(!problem["title"].as_str().unwrap().is_empty());
    assert_eq!(
        (grpc.status(), &grpc.headers()["content-type"]),
        (StatusCode::OK, &"application/grpc".parse().unwrap())
    );
    assert!(!grpc.headers()["grpc-message"].is_empty());
    Told { http: (http.status, http.headers, problem), grpc: grpc.headers().clone() }
}

/// Checks a row of the table.
fn assert_row(told: &Told, reason: &str, status: u16, code: &str) {
    assert_eq!(told.http.2["type"], format!("urn:problem-type:lock:{reason}"), "{told:?}");
    assert_eq!(told.http.0.as_u16(), status, "{told:?}");
    assert_eq!(told.grpc["grpc-status"], code, "{told:?}");
}

/// Takes the key in another process, for the whole lease.
async fn taken_for(scene: &Scene, lease: Duration) -> lock_runtime::LockGuard {
    scene.rival().mutex(SECRET).lease(lease).acquire().await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn busy() {
    let scene = Scene::new();
    let layer = layer(&scene).no_wait();
    let _taken = taken_for(&scene, 3 * SECOND).await;
    let told = refused(&scene, &layer).await;
    assert_row(&told, "busy", 409, "10");
    let (seconds, millis) = told.retry_after().unwrap();
    assert_eq!(seconds, 3);
    assert!((2_900..=3_000).contains(&millis), "{millis}");
    sleep(2 * SECOND).await;
    assert_eq!(refused(&scene, &layer).await.retry_after().unwrap().0, 1, "what is left of it");
}

#[tokio::test(start_paused = true)]
async fn the_time_to_stay_away_has_a_cap() {
    let scene = Scene::new();
    let _taken = taken_for(&scene, 600 * SECOND).await;
    let layer = layer(&scene).no_wait();
    let told = refused(&scene, &layer).await;
    assert_eq!(told.retry_after(), Some((5, 5_000)));
    let told = refused(&scene, &layer.clone().longest_retry_after(90 * SECOND)).await;
    assert_eq!(told.retry_after(), Some((90, 90_000)));
    let told = refused(&scene, &layer.longest_retry_after(250 * MS)).await;
    assert_eq!(told.retry_after(), Some((1, 250)));
}

#[tokio::test(start_paused = true)]
async fn timed_out() {
    let scene = Scene::new();
    let _taken = taken_for(&scene, 7 * SECOND).await;
    let told = refused(&scene, &layer(&scene).wait(2 * SECOND)).await;
    assert_row(&told, "timed_out", 429, "8");
    let (seconds, millis) = told.retry_after().unwrap();
    assert_eq!(seconds, 5, "two of seven are over");
    assert!((2_000..=3_000).contains(&millis), "four of seven are over: {millis}");
}

#[tokio::test(start_paused = true)]
async fn too_many_waiters() {
    for cap in ["of the layer", "of the layer per key", "of the manager", "of the manager per key"] {
        let scene = match cap {
            "of the manager" => Scene::with(LockManager::builder().max_waiters(1)),
            "of the manager per key" => Scene::with(LockManager::builder().max_waiters_per_key(1)),
            _ => Scene::new(),
        };
        let layer = match cap {
            "of the layer" => layer(&scene).max_waiters(1),
            "of the layer per key" => layer(&scene).max_waiters_per_key(1),
            _ => layer(&scene),
        };
        let taken = taken_for(&scene, 3 * SECOND).await;
        let service = layer.layer(service_fn(done));
        let waits = tokio::spawn(send(&service, post(PATH)));
        sleep(SECOND).await;
        let asked = Instant::now();
        let told = refused(&scene, &layer).await;
        assert_row(&told, "too_many_waiters", 429, "8");
        assert!(asked.elapsed() < 10 * MS, "{cap}: at once");
        assert!((1..=5).contains(&told.retry_after().unwrap().0), "{cap}: {told:?}");
        assert!(!waits.is_finished());
        drop(taken);
        assert_eq!(waits.await.unwrap().status(), StatusCode::OK, "{cap}");
        assert_eq!(send(&service, post(PATH)).await.status(), StatusCode::OK, "{cap}");
        scene.is_settled(None).await;
    }
}

/// The maximum delay applies to every delay that clients are told.
#[tokio::test(start_paused = true)]
async fn a_client_of_a_full_layer_does_not_stay_away_longer_than_the_cap() {
    let scene = Scene::new();
    let layer = layer(&scene).max_waiters(1).longest_retry_after(250 * MS);
    let _taken = taken_for(&scene, 3 * SECOND).await;
    let service = layer.layer(service_fn(done));
    let waits = tokio::spawn(send(&service, post(PATH)));
    sleep(SECOND).await;
    assert_eq!(refused(&scene, &layer).await.retry_after(), Some((1, 250)));
    waits.abort();
}

#[tokio::test(start_paused = true)]
async fn store_down() {
    let scene = Scene::new();
    for kind in [
        StoreErrorKind::Unreachable,
        StoreErrorKind::NotReady,
        StoreErrorKind::Full,
        StoreErrorKind::NotReplicated,
    ] {
        scene.store.fail(kind);
        for layer in [layer(&scene).no_wait(), layer(&scene).wait(SECOND)] {
            let told = refused(&scene, &layer).await;
            assert_row(&told, "store_down", 503, "14");
            assert_eq!(told.retry_after(), Some((3, 3_000)), "{kind:?}");
        }
        scene.store.recover();
        let service = layer(&scene).layer(service_fn(done));
        assert_eq!(send(&service, post(PATH)).await.status(), StatusCode::OK, "{kind:?}");
        scene.is_settled(None).await;
    }
}

#[tokio::test(start_paused = true)]
async fn shut_down() {
    let scene = Scene::new();
    let _taken = taken_for(&scene, 60 * SECOND).await;
    let layer = layer(&scene).wait_forever();
    let service = layer.layer(service_fn(done));
    let (waiting, ()) = tokio::join!(send(&service, post(PATH)), async {
        sleep(SECOND).await;
        scene.locks.shutdown(SECOND).await.unwrap();
    });
    assert_eq!(waiting.status(), StatusCode::SERVICE_UNAVAILABLE, "it waited when the end came");
    let told = refused(&scene, &layer).await;
    assert_row(&told, "shut_down", 503, "14");
    assert_eq!(told.retry_after(), Some((3, 3_000)));
}

#[tokio::test(start_paused = true)]
async fn lost() {
    let scene = Scene::new();
    let locks = scene.locks.clone();
    let service = layer(&scene).layer(service_fn(move |_: Sent| {
        let locks = locks.clone();
        async move {
            sleep(SECOND).await;
            assert!(lose(&locks, SECRET));
            sleep(SECOND).await;
            Ok::<_, Infallible>(ok())
        }
    }));
    let (http, body) = send(&service, post(PATH)).await.into_parts();
    let problem: serde_json::Value =
        serde_json::from_slice(&body.collect().await.unwrap().to_bytes()).unwrap();
    let grpc = send(&service, grpc(PATH)).await.into_parts().0.headers;
    let told = Told { http: (http.status, http.headers, problem), grpc };
    assert_row(&told, "lost", 500, "10");
    // A retry may do half of the work twice, and gRPC clients retry `ABORTED` by themselves.
    assert!(!told.http.1.contains_key("retry-after"));
    assert_eq!(told.grpc["grpc-retry-pushback-ms"], "-1");
    assert!(!format!("{told:?}").contains(SECRET));
}

#[tokio::test(start_paused = true)]
async fn bad_keys() {
    let scene = Scene::new();
    let locks = || scene.locks.clone();
    let long = LockLayer::new(locks(), path_segment(1).longest(5));
    let number = LockLayer::new(locks(), path_segment(1).parsed::<u64>());
    let by_text = LockLayer::new(locks(), |_: &Parts| format!("{{{SECRET}"));
    let by_closure =
        LockLayer::new(locks(), |_: &Parts| Err::<String, _>(Rejection::new("orders have digits")));
    let told = [
        refused(&scene, &long).await,
        refused(&scene, &number).await,
        refused(&scene, &by_text).await,
        refused(&scene, &by_closure).await,
    ];
    for told in &told {
        assert_row(told, "bad_key", 400, "3");
        assert_eq!(told.retry_after(), None);
    }
    assert_eq!(told[3].detail(), "orders have digits");
    // The extractor may know better, for example that the resource belongs to another user.
    let others = LockLayer::new(locks(), |_: &Parts| {
        Err::<String, _>(Rejection::with_status(StatusCode::FORBIDDEN, "not your order"))
    });
    assert_row(&refused(&scene, &others).await, "bad_key", 403, "7");
    scene.is_settled(None).await;
    assert_eq!(scene.store.events(), [], "nothing was asked for");
}

#[tokio::test(start_paused = true)]
async fn missing_key() {
    let scene = Scene::new();
    let told = refused(&scene, &LockLayer::new(scene.locks.clone(), header("x-order"))).await;
    assert_row(&told, "missing_key", 400, "3");
    assert_eq!(told.retry_after(), None);
    assert!(told.detail().contains("the header `x-order`"), "{told:?}");
    let closure = LockLayer::new(scene.locks.clone(), |_: &Parts| None::<String>);
    assert_row(&refused(&scene, &closure).await, "missing_key", 400, "3");
    assert_eq!(scene.store.events(), [], "nothing was asked for");
}

#[tokio::test(start_paused = true)]
async fn misconfigured() {
    let scene = Scene::new();
    scene.store.fail(StoreErrorKind::Denied);
    let told = refused(&scene, &layer(&scene)).await;
    assert_row(&told, "misconfigured", 500, "13");
    assert_eq!(told.retry_after(), None, "to repeat it won't help");
}

/// A wrong setting is reported when the layer is built, not with the first request.
#[tokio::test]
async fn wrong_settings_are_told_at_once() {
    let scene = Scene::new();
    let panics = |build: &dyn Fn()| {
        let panic = std::panic::catch_unwind(AssertUnwindSafe(build)).unwrap_err();
        *panic.downcast::<String>().unwrap()
    };
    let layer = || layer(&scene);
    for (told, part) in [
        (panics(&|| drop(layer().lease(MS))), "a lease of 1ms is too short"),
        (panics(&|| drop(layer().max_hold(Duration::ZERO))), "a max_hold of 0ns"),
        (panics(&|| drop(layer().max_hold(SECOND).min_hold(2 * SECOND))), "shorter than min_hold"),
        (panics(&|| drop(layer().min_hold(2 * SECOND).lease(SECOND))), "shorter than min_hold"),
        (panics(&|| drop(layer().token_retention(TokenRetention::For(MS)))), "too short"),
    ] {
        assert!(told.contains(part), "{told}");
    }
    // The default maximum of a hold gives way.
    drop(layer().min_hold(90 * SECOND));
}

#[tokio::test(start_paused = true)]
async fn refusals_can_be_made_otherwise() {
    let scene = Scene::new();
    let _taken = taken_for(&scene, 3 * SECOND).await;
    let layer = layer(&scene).no_wait().refuse_with(|refusal: &Refusal<'_>| {
        assert_eq!(refusal.reason(), Reason::Busy);
        // The error has everything that a log needs.
        assert!(refusal.error().unwrap().to_string().contains(SECRET));
        assert!(refusal.retry_after().unwrap() <= 3 * SECOND);
        match refusal.protocol() {
            Protocol::Grpc => ProblemDetails.refuse(refusal),
            _ => Response::builder().status(423).header("x-mine", "yes").body(Bytes::from("mine")).unwrap(),
        }
    });
    let service = layer.layer(service_fn(done));
    let response = send(&service, post(PATH)).await;
    assert_eq!((response.status().as_u16(), &response.headers()["x-mine"]), (423, &"yes".parse().unwrap()));
    assert_eq!(response.body().size_hint().exact(), Some(4));
    assert_eq!(response.into_body().collect().await.unwrap().to_bytes(), "mine");
    assert_eq!(send(&service, grpc(PATH)).await.headers()["grpc-status"], "10");
}
