//! The layer behind real sockets: axum and plain hyper, HTTP/1.1 and HTTP/2, its locks on a real Redis server.
//!
//! A second manager on the same server stands for another process, which is what it is to the store.

mod axum_keys;
mod bodies;
mod client;
mod disconnects;
mod handlers;
mod plain_hyper;
mod recorded;
mod refusals;

mod server;
mod store_faults;
mod traffic;

use std::time::Duration;

use lock_runtime::{LockManager, LockManagerBuilder, testing};
use lock_tests::{RedisServer, eventually};

/// What takes a moment may take so long on a busy machine.
const SLACK: Duration = Duration::from_secs(40);
/// For those who wait for something that is about to happen.
const LONG: Duration = Duration::from_secs(120);

const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// Makes each function a test over HTTP/1.1 and one over HTTP/2.
macro_rules! over_both {
    ($($(#[$attribute:meta])* async fn $name:ident($version:ident: Version) $body:block)*) => {
        $($(#[$attribute])* async fn $name($version: $crate::layer_http::client::Version) $body)*

        mod http1 {
            $(
                #[::tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $name() {
                    super::$name($crate::layer_http::client::Version::Http1).await;
                }
            )*
        }

        mod http2 {
            $(
                #[::tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $name() {
                    super::$name($crate::layer_http::client::Version::Http2).await;
                }
            )*
        }
    };
}
use over_both;

async fn manager(redis: &RedisServer) -> LockManager {
    manager_with(redis, |builder| builder).await
}

async fn manager_with(
    redis: &RedisServer,
    settings: impl FnOnce(LockManagerBuilder) -> LockManagerBuilder,
) -> LockManager {
    settings(LockManager::builder()).connect(&redis.url()).await.expect("the server is up")
}

/// What must come before long.
async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    match tokio::time::timeout(SLACK, future).await {
        Ok(it) => it,
        Err(_) => panic!("{what}: not within {SLACK:?}"),
    }
}

/// Returns once `count` requests wait for locks of `locks`.
async fn waiting(locks: &LockManager, count: usize) {
    eventually(async || testing::leftovers(locks).waiters == count, SLACK).await;
}

/// Returns once a request is in the queue for a lock that another process has. One that is about to join it counts as a
/// waiter already; the task that asks for it tells that it has joined.
async fn queued(locks: &LockManager) {
    let asks = || {
        let left = testing::leftovers(locks);
        left.waiters == 1 && left.tasks > 0
    };
    eventually(async || asks(), SLACK).await;
}

/// Returns once nobody has the lock, as the store sees it, and `locks` has nothing left of it.
async fn at_rest(locks: &LockManager, key: &str) {
    eventually(async || !locks.status(key).await.is_ok_and(|status| status.is_locked()), SLACK).await;
    let quiet = || {
        let left = testing::leftovers(locks);
        (left.keys, left.timers, left.tasks, left.waiters) == (0, 0, 0, 0)
    };
    eventually(async || quiet(), SLACK).await;
    assert!(!locks.status(key).await.unwrap().is_locked());
}
