//! Locks of all kinds when others change the server's data, when the server forgets, refuses or
//! restarts, when messages are lost, and when callers go away.

mod callers;
mod data;
mod network;

use std::fmt::Display;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use lock_runtime::{Lock, LockError, LockManager, MultiKey, testing};
use lock_tests::{RedisServer, eventually};
use tokio::task::JoinSet;
use tokio::time::Instant;

/// Lease of locks that must be released, since it does not end within [`SLACK`].
const LONG: Duration = Duration::from_secs(120);
/// Time-out for something quick, on a busy machine.
const SLACK: Duration = Duration::from_secs(40);

const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

const KINDS: [&str; 5] = ["mutex", "fair", "read", "write", "multi"];

fn lock_of(locks: &LockManager, kind: &str, key: &str) -> Lock {
    match kind {
        "mutex" => locks.mutex(key),
        "fair" => locks.fair(key),
        "read" => locks.read(key),
        "write" => locks.write(key),
        _ => locks.multi([
            MultiKey::fair(format!("{key}:f")),
            MultiKey::mutex(key),
            MultiKey::write(format!("{key}:w")),
        ]),
    }
}

async fn manager(url: &str) -> LockManager {
    LockManager::builder().fallback_poll(ms(300)).subscription_linger(ms(100)).connect(url).await.unwrap()
}

async fn managers<const N: usize>(server: &RedisServer) -> [LockManager; N] {
    let mut managers = Vec::with_capacity(N);
    for _ in 0..N {
        managers.push(manager(&server.url()).await);
    }
    managers.try_into().expect("so many were made")
}

/// Awaits something that must happen soon.
async fn soon<T>(what: impl Display, future: impl Future<Output = T>) -> T {
    match tokio::time::timeout(SLACK, future).await {
        Ok(it) => it,
        Err(_) => panic!("{what}: not within {SLACK:?}"),
    }
}

/// Passes the result of each task to `take`; each must come soon after the one before.
async fn each<T: 'static>(what: impl Display, mut tasks: JoinSet<T>, mut take: impl AsyncFnMut(T)) {
    while let Some(done) = soon(&what, tasks.join_next()).await {
        take(done.unwrap()).await;
    }
}

async fn all_is_quiet(server: &RedisServer, managers: &[LockManager]) {
    for locks in managers {
        assert_idle(locks).await;
    }
    assert_nothing_is_left(server).await;
}

/// Asserts that only counters are left on the server.
async fn assert_nothing_is_left(server: &RedisServer) {
    let left = || {
        let keys = server.cli(&["KEYS", "*"]);
        let keys = keys.lines().filter(|key| !key.is_empty() && !key.starts_with("redisson_lock_token:"));
        keys.map(str::to_owned).collect::<Vec<_>>()
    };
    let start = Instant::now();
    while !left().is_empty() {
        assert!(start.elapsed() < ms(15_000), "{:?}", left());
        tokio::time::sleep(ms(20)).await;
    }
}

async fn assert_idle(locks: &LockManager) {
    let quiet = || {
        let left = testing::leftovers(locks);
        (left.keys, left.timers, left.tasks) == (0, 0, 0)
    };
    let start = Instant::now();
    while !quiet() {
        assert!(start.elapsed() < SLACK, "{:?}", testing::leftovers(locks));
        tokio::time::sleep(ms(10)).await;
    }
}

async fn waiters(server: &RedisServer, key: &str, count: usize) {
    let queue = format!("redisson_lock_queue:{{lock:{key}}}");
    eventually(async || server.cli(&["LLEN", &queue]) == count.to_string(), SLACK).await;
}

/// Acquires, holds for a moment, and notices any other holder.
async fn section(lock: Lock, inside: Arc<AtomicBool>) -> Result<u64, LockError> {
    let guard = lock.wait(LONG).acquire().await?;
    assert!(!inside.swap(true, Ordering::SeqCst), "two at once");
    tokio::time::sleep(ms(2)).await;
    inside.store(false, Ordering::SeqCst);
    let token = guard.fencing_token().get();
    let _ = guard.release().await;
    Ok(token)
}
