//! What tests of all kinds of locks have in common: how to take a lock of a given kind, who is its
//! rival, and that nothing is left in the end.

use std::time::Duration;

use lock_runtime::testing::leftovers;
use lock_runtime::{Kind, Lock, LockManager, LockStatus};

use crate::{Site, eventually};

/// Every kind that has one key.
pub const KINDS: [Kind; 4] = [Kind::Mutex, Kind::Fair, Kind::Read, Kind::Write];

/// The kinds with one holder at a time.
pub const EXCLUSIVE: [Kind; 3] = [Kind::Mutex, Kind::Fair, Kind::Write];

/// Longer than anything here takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// The lock of this kind.
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
        other => panic!("no such lock: {other:?}"),
    }
}

/// The kind that has to wait for a holder of this one, and whom that one waits for.
#[must_use]
pub fn rival_of(kind: Kind) -> Kind {
    match kind {
        Kind::Read => Kind::Write,
        other => other,
    }
}

/// Whether the lock is to be had now. It is given back before this returns.
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

/// What the store knows about the key.
///
/// # Panics
///
/// When the store does not say.
pub async fn status(locks: &LockManager, key: &str) -> LockStatus {
    locks.status(key).await.unwrap_or_else(|error| panic!("{key}: {error}"))
}

/// Whether somebody has the key.
pub async fn is_locked(locks: &LockManager, key: &str) -> bool {
    status(locks, key).await.is_locked()
}

/// Which of the keys somebody has.
pub async fn locked(locks: &LockManager, keys: &[&str]) -> Vec<bool> {
    let mut locked = Vec::new();
    for key in keys {
        locked.push(is_locked(locks, key).await);
    }
    locked
}

/// Returns when the store knows of so many waiters of the key. For a fair lock these are the
/// entries of its queue.
#[track_caller]
pub fn waiters_are(locks: &LockManager, key: &str, number: u64) -> impl Future<Output = ()> {
    let (locks, key) = (locks.clone(), key.to_owned());
    eventually(async move || status(&locks, &key).await.waiters == number, PATIENCE)
}

/// Returns when nothing is left: the managers have no key, no timer, no task and no waiter, the
/// store has none of `keys`, and a server has nothing but counters of tokens.
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

/// Whether a server has no key but counters of tokens; a memory store has none to look at.
fn has_only_counters(site: &Site) -> bool {
    site.keys().iter().all(|key| key.starts_with("redisson_lock_token:") || key.contains("quorum"))
}
