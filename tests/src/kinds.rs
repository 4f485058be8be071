//! Helpers for tests of all kinds of locks: making a lock of a given kind, finding its rival, and
//! checking that nothing is left.

use std::time::Duration;

use lock_runtime::testing::leftovers;
use lock_runtime::{Kind, Lock, LockManager, LockStatus};

use crate::{Layout, Site, eventually};

/// Every kind of lock with one key.
pub const KINDS: [Kind; 4] = [Kind::Mutex, Kind::Fair, Kind::Read, Kind::Write];

/// The kinds with one holder at a time.
pub const EXCLUSIVE: [Kind; 3] = [Kind::Mutex, Kind::Fair, Kind::Write];

/// Maximum time of any wait here on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// Returns the lock of this kind.
///
/// # Panics
///
/// For a kind that this module does not know.
pub fn lock(locks: &LockManager, kind: Kind, key: &str) -> Lock {
    match kind {
        Kind::Mutex => locks.mutex(key),
        Kind::Fair => locks.fair(key),
        Kind::Read => locks.read(key),
        Kind::Write => locks.write(key),
        other => panic!("unknown kind of lock: {other:?}"),
    }
}

/// Returns the kind that waits for a holder of this kind, and makes it wait in turn.
#[must_use]
pub fn rival_of(kind: Kind) -> Kind {
    match kind {
        Kind::Read => Kind::Write,
        other => other,
    }
}

/// Whether the lock is free. Acquires it for a moment.
///
/// # Panics
///
/// When the store does not answer, or the lock is lost.
pub async fn is_free(lock: Lock) -> bool {
    match lock.try_acquire().await.unwrap_or_else(|error| panic!("{error}")) {
        Some(guard) => {
            guard.release().await.unwrap_or_else(|error| panic!("{error}"));
            true
        }
        None => false,
    }
}

/// Returns the status of the key in the store.
///
/// # Panics
///
/// When the store does not answer.
pub async fn status(locks: &LockManager, key: &str) -> LockStatus {
    locks.status(key).await.unwrap_or_else(|error| panic!("{key}: {error}"))
}

/// Whether the key is locked.
pub async fn is_locked(locks: &LockManager, key: &str) -> bool {
    status(locks, key).await.is_locked()
}

/// Returns for each key whether it is locked.
pub async fn locked(locks: &LockManager, keys: &[&str]) -> Vec<bool> {
    let mut locked = Vec::new();
    for key in keys {
        locked.push(is_locked(locks, key).await);
    }
    locked
}

/// Waits until the store reports this number of waiters of the key. For a fair lock these are the
/// entries of its queue.
#[track_caller]
pub fn waiters_are(locks: &LockManager, key: &str, number: u64) -> impl Future<Output = ()> {
    let (locks, key) = (locks.clone(), key.to_owned());
    eventually(async move || status(&locks, &key).await.waiters == number, PATIENCE)
}

/// Waits until nothing is left. The managers have no key, timer, task or waiter, and the store has
/// none of `keys`. A server only has token counters and markers of quorums.
#[track_caller]
pub fn nothing_is_left(site: &Site, managers: &[&LockManager], keys: &[&str]) -> impl Future<Output = ()> {
    let managers: Vec<LockManager> = managers.iter().map(|&locks| locks.clone()).collect();
    let keys: Vec<String> = keys.iter().map(|&key| key.to_owned()).collect();
    let at_the_server = eventually(async || has_only_counters(site), PATIENCE);
    let here = eventually(
        async move || {
            for locks in &managers {
                let left = leftovers(locks);
                if (left.keys, left.timers, left.tasks, left.waiters) != (0, 0, 0, 0) {
                    return false;
                }
                for key in &keys {
                    if is_locked(locks, key).await {
                        return false;
                    }
                }
            }
            true
        },
        PATIENCE,
    );
    async {
        here.await;
        at_the_server.await;
    }
}

/// Whether a server only has token counters and markers of quorums. A memory store has no server to
/// ask.
fn has_only_counters(site: &Site) -> bool {
    let counts = |key: &str| Layout::ALL.iter().any(|layout| key.starts_with(layout.counters()));
    site.keys().iter().all(|key| counts(key) || key.contains("quorum"))
}
