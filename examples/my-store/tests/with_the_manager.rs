//! Two managers on the store, as two processes have them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use example_my_store::MyStore;
use lock_runtime::{LockError, LockGuard, LockManager};
use lock_test_servers::RedisServer;

const LEASE: Duration = Duration::from_secs(3);

/// Returns two managers on one server.
async fn managers(server: &RedisServer) -> [LockManager; 2] {
    let connect = async || {
        let client = redis::Client::open(server.url()).unwrap();
        let store = MyStore::new(client, "locks:").unwrap();
        LockManager::builder().lease(LEASE).connect_store(Arc::new(store)).await.unwrap()
    };
    [connect().await, connect().await]
}

#[tokio::test]
async fn managers_exclude_each_other_and_tokens_grow() {
    let server = RedisServer::start();
    let [one, other] = managers(&server).await;
    let mut last = None;
    for round in 0..4 {
        let (holder, rival) = if round % 2 == 0 { (&one, &other) } else { (&other, &one) };
        let guard = holder.mutex("order:42").acquire().await.unwrap();
        assert!(rival.mutex("order:42").try_acquire().await.unwrap().is_none());
        assert!(rival.mutex("order:43").try_acquire().await.unwrap().is_some(), "another key is free");
        assert!(Some(guard.fencing_token()) > last, "{:?} after {last:?}", guard.fencing_token());
        last = Some(guard.fencing_token());
        guard.release().await.unwrap();
    }
}

#[tokio::test]
async fn a_waiter_gets_the_key_soon_after_its_release() {
    let server = RedisServer::start();
    let [one, other] = managers(&server).await;
    let guard = one.mutex("order:42").acquire().await.unwrap();
    let waiter = tokio::spawn(async move { other.mutex("order:42").acquire().await });
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(!waiter.is_finished());
    guard.release().await.unwrap();
    let released = Instant::now();
    // It asks every 250 ms.
    let taken = waiter.await.unwrap().unwrap();
    assert!(released.elapsed() < LEASE, "{:?}", released.elapsed());
    taken.release().await.unwrap();
}

#[tokio::test]
async fn a_hold_is_renewed_beyond_its_lease() {
    let server = RedisServer::start();
    let [one, other] = managers(&server).await;
    let guard = one.mutex("order:42").acquire().await.unwrap();
    tokio::time::sleep(LEASE + Duration::from_secs(1)).await;
    assert!(!guard.is_lost());
    assert!(other.mutex("order:42").try_acquire().await.unwrap().is_none());
}

/// Checks that a lock is refused, and that the text names stores that have it.
fn assert_refused(what: &str, result: Result<LockGuard, LockError>, lacks: &str) {
    let error = result.expect_err(what);
    assert!(matches!(error, LockError::Misconfigured { .. }), "{what}: {error:?}");
    let text = error.to_string();
    for part in ["the example store", lacks, "`redis://`"] {
        assert!(text.contains(part), "{what}: {text}");
    }
}

#[tokio::test]
async fn locks_that_the_store_does_not_have_are_refused() {
    let server = RedisServer::start();
    let [locks, _] = managers(&server).await;
    assert_refused("fair", locks.fair("a").acquire().await, "no fair locks");
    assert_refused("write", locks.write("a").acquire().await, "readers and writers");
    assert_refused("multi", locks.multi(["a", "b"]).acquire().await, "several keys");
    let held = locks.mutex("a").min_hold(Duration::from_secs(1)).acquire().await;
    assert_refused("min_hold", held, "`min_hold`");
    assert_eq!(server.cli(&["DBSIZE"]).trim(), "0", "nothing was sent");
}
