//! What the tests of the layer over HTTP and gRPC share.

use std::time::Duration;

use lock_runtime::{LockManager, LockManagerBuilder, testing};
use lock_tests::{RedisServer, eventually};

/// What takes a moment may take so long on a busy machine.
pub(crate) const SLACK: Duration = Duration::from_secs(40);
/// For those who wait for something that is about to happen.
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

/// What must come before long.
pub(crate) async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    match tokio::time::timeout(SLACK, future).await {
        Ok(it) => it,
        Err(_) => panic!("{what}: not within {SLACK:?}"),
    }
}

/// Returns once `count` requests or calls wait for locks of `locks`.
pub(crate) async fn waiting(locks: &LockManager, count: usize) {
    eventually(async || testing::leftovers(locks).waiters == count, SLACK).await;
}

/// Returns once nobody has the lock, as the store sees it, and `locks` has nothing left of it.
pub(crate) async fn at_rest(locks: &LockManager, key: &str) {
    eventually(async || !locks.status(key).await.is_ok_and(|status| status.is_locked()), SLACK).await;
    let quiet = || {
        let left = testing::leftovers(locks);
        (left.keys, left.timers, left.tasks, left.waiters) == (0, 0, 0, 0)
    };
    eventually(async || quiet(), SLACK).await;
    assert!(!locks.status(key).await.unwrap().is_locked());
}
