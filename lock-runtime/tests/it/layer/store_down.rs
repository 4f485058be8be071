//! Requests that go on without their lock while the store is down, and the metrics for them.

use std::convert::Infallible;

use http::{Response, StatusCode};
use lock_core::store::StoreErrorKind;
use lock_runtime::HeldLock;
use lock_runtime::layer::{LockLayer, PartKey, StoreDown, Unlocked};
use tokio::time::Instant;
use tower::{Layer, service_fn};

use super::rig::{SECOND, Scene, Sent, by_path, ok, post, send};

fn layer(scene: &Scene) -> LockLayer<PartKey> {
    LockLayer::new(scene.locks.clone(), by_path()).wait(2 * SECOND).on_store_down(StoreDown::PassThrough)
}

/// The lock and the mark that handler and client saw.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Seen {
    handler: (bool, bool),
    client: (bool, bool),
}

async fn seen(layer: &LockLayer<PartKey>) -> Result<Seen, StatusCode> {
    fn marks(extensions: &http::Extensions) -> (bool, bool) {
        (extensions.get::<HeldLock>().is_some(), extensions.get::<Unlocked>().is_some())
    }
    let service = layer.layer(service_fn(|request: Sent| async move {
        let mut response = ok();
        response.extensions_mut().insert(marks(request.extensions()));
        Ok::<_, Infallible>(response)
    }));
    let response: Response<_> = send(&service, post("/k")).await;
    let handler = response.extensions().get::<(bool, bool)>().copied();
    handler.map(|handler| Seen { handler, client: marks(response.extensions()) }).ok_or(response.status())
}

const LOCKED: Result<Seen, StatusCode> = Ok(Seen { handler: (true, false), client: (true, false) });
const MARKED: Result<Seen, StatusCode> = Ok(Seen { handler: (false, true), client: (false, true) });

#[tokio::test(start_paused = true)]
async fn a_request_goes_on_unlocked_and_marked_while_the_store_is_down() {
    let scene = Scene::new();
    assert_eq!(seen(&layer(&scene)).await, LOCKED);
    for kind in [StoreErrorKind::Unreachable, StoreErrorKind::Full, StoreErrorKind::NotReplicated] {
        scene.is_settled(None).await;
        scene.store.fail(kind);
        let asked = Instant::now();
        assert_eq!(seen(&layer(&scene)).await, MARKED, "{kind:?}");
        assert!(asked.elapsed() < 3 * SECOND, "not longer than the wait");
        assert_eq!(seen(&layer(&scene).no_wait()).await, MARKED, "{kind:?}");
        scene.store.recover();
        assert_eq!(seen(&layer(&scene)).await, LOCKED, "{kind:?}");
    }
    scene.is_settled(None).await;
}

/// A server that is stopped or cut off does not answer within the wait, which is shorter than the
/// time-out of a call. The key is free.
#[tokio::test(start_paused = true)]
async fn a_store_that_hangs_is_down_however_short_the_wait_is() {
    let scene = Scene::new();
    scene.store.answer_takes(60 * SECOND);
    for wait in [SECOND / 100, SECOND / 5] {
        let asked = Instant::now();
        assert_eq!(seen(&layer(&scene).wait(wait)).await, MARKED);
        assert!(asked.elapsed() <= wait + SECOND / 8, "{:?}", asked.elapsed());
        let refused = seen(&layer(&scene).wait(wait).on_store_down(StoreDown::Reject)).await;
        assert_eq!(refused, Err(StatusCode::SERVICE_UNAVAILABLE));
    }
}

#[tokio::test(start_paused = true)]
async fn nothing_else_lets_a_request_pass() {
    let scene = Scene::new();
    let guard = scene.rival().mutex("k").acquire().await.unwrap();
    assert_eq!(seen(&layer(&scene)).await, Err(StatusCode::TOO_MANY_REQUESTS));
    assert_eq!(seen(&layer(&scene).no_wait()).await, Err(StatusCode::CONFLICT));
    guard.release().await.unwrap();
    scene.store.fail(StoreErrorKind::Denied);
    assert_eq!(seen(&layer(&scene)).await, Err(StatusCode::INTERNAL_SERVER_ERROR));
    scene.store.recover();
    scene.locks.shutdown(SECOND).await.unwrap();
    assert_eq!(seen(&layer(&scene)).await, Err(StatusCode::SERVICE_UNAVAILABLE));
}

#[cfg(feature = "metrics")]
#[test]
fn refusals_are_counted_by_reason_and_unlocked_requests_apart() {
    use metrics_util::debugging::{DebugValue, DebuggingRecorder};

    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    metrics::with_local_recorder(&recorder, || {
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        runtime.block_on(async {
            let scene = Scene::new();
            let orders = || layer(&scene).name("orders");
            seen(&orders()).await.unwrap();
            let guard = scene.rival().mutex("k").acquire().await.unwrap();
            for _ in 0..2 {
                seen(&orders().no_wait()).await.unwrap_err();
            }
            seen(&orders()).await.unwrap_err();
            seen(&layer(&scene)).await.unwrap_err();
            guard.release().await.unwrap();
            scene.store.fail(StoreErrorKind::Unreachable);
            seen(&orders()).await.unwrap();
            seen(&orders().on_store_down(StoreDown::Reject)).await.unwrap_err();
            let no_key = LockLayer::new(scene.locks.clone(), lock_runtime::layer::header("x")).name("orders");
            seen(&no_key).await.unwrap_err();
        });
    });
    let seen = snapshotter.snapshot().into_vec();
    let count = |name: &str, lock: &str, reason: Option<&str>| -> u64 {
        let labelled = |label: &str, value: &str, key: &metrics::Key| {
            key.labels().any(|other| other.key() == label && other.value() == value)
        };
        seen.iter()
            .map(|(key, .., value)| (key.key(), value))
            .filter(|(key, _)| key.name() == name && labelled("lock", lock, key))
            .filter(|(key, _)| reason.is_none_or(|reason| labelled("reason", reason, key)))
            .map(|(_, value)| match value {
                DebugValue::Counter(n) => *n,
                DebugValue::Gauge(_) => 0,
                DebugValue::Histogram(values) => values.len() as u64,
            })
            .sum()
    };
    let refused = |reason| count("lock_layer_refused_total", "orders", reason);
    assert_eq!(refused(Some("busy")), 2);
    assert_eq!(refused(Some("timed_out")), 1);
    assert_eq!(refused(Some("store_down")), 1);
    assert_eq!(refused(Some("missing_key")), 1);
    assert_eq!(refused(None), 5, "{seen:?}");
    assert_eq!(count("lock_layer_refused_total", "layer", None), 1, "the one without a name");
    assert_eq!(count("lock_layer_unlocked_total", "orders", None), 1);
    // The metrics of the locks have the layer's name, too.
    assert_eq!(count("lock_hold_seconds", "orders", None), 1);
    assert_eq!(count("lock_hold_seconds", "layer", None), 0);
}
