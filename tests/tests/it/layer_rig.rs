//! Helpers for the tests of the layer over HTTP and over gRPC.

use std::time::Duration;

use lock_runtime::{LockManager, LockManagerBuilder, testing};
use lock_tests::{RedisServer, eventually};

/// Time-out for something quick, on a busy machine.
pub(crate) const SLACK: Duration = Duration::from_secs(40);
/// Wait of a request whose lock is about to be free.
pub(crate) const LONG: Duration = Duration::from_secs(120);

pub(crate) const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

pub(crate) async fn manager(redis: &RedisServer) -> LockManager {
    manager_with(redis, |builder| builder).await
}

pub(crate) async fn manager_with(
    redis: &RedisServer,
    settings: impl FnOnce(LockManagerBuilder) -> LockManagerBuilder,
) -> LockManager {
    settings(LockManager::builder()).connect(&redis.url()).await.expect("the server is up")
}

/// Awaits something that must happen soon.
pub(crate) async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    match tokio::time::timeout(SLACK, future).await {
        Ok(it) => it,
        Err(_) => panic!("{what}: not within {SLACK:?}"),
    }
}

/// Waits until `count` requests or calls wait for locks of `locks`.
pub(crate) async fn waiting(locks: &LockManager, count: usize) {
    eventually(async || testing::leftovers(locks).waiters == count, SLACK).await;
}

/// Waits until the store sees no holder of the lock, and `locks` has nothing left of it.
pub(crate) async fn at_rest(locks: &LockManager, key: &str) {
    eventually(async || !locks.status(key).await.is_ok_and(|status| status.is_locked()), SLACK).await;
    let quiet = || {
        let left = testing::leftovers(locks);
        (left.keys, left.timers, left.tasks, left.waiters) == (0, 0, 0, 0)
    };
    eventually(async || quiet(), SLACK).await;
    assert!(!locks.status(key).await.unwrap().is_locked());
}
