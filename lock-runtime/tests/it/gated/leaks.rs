//! Finds everything that managers should not have left behind.

use std::sync::Arc;
use std::time::Duration;

use lock_core::store::{AcquireRequest, Acquired, Item, Kind, LockStore, ReleaseRequest};
use lock_runtime::testing::{leftovers, manager_on};
use lock_runtime::{LockKey, LockManager, OwnerId};
use tokio::runtime::Handle;
use tokio::time::Instant;

/// A kind of leftover.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Leak {
    /// The store has the key.
    Held,
    /// A manager knows a call that waits.
    Waiter,
    /// A manager's engine has an entry for a key.
    Entry,
    /// A manager has a timer job.
    Timer,
    /// A manager tracks a background task.
    Background,
    /// The runtime has a task besides the timekeepers.
    Task,
    /// A subscriber still listens for releases of the key.
    Subscription,
    /// Another process can't get the key at once.
    Refused,
}

/// Returns what `managers` have left of `key`. `store` is a separate handle that none of them uses.
pub(crate) async fn look_for_leaks(
    managers: &[LockManager],
    store: &Arc<dyn LockStore>,
    key: &str,
) -> Vec<Leak> {
    let mut leaks = Vec::new();
    let mut note = |leak: Leak, is_there: bool| leaks.extend(is_there.then_some(leak));
    let left: Vec<_> = managers.iter().map(leftovers).collect();
    note(Leak::Waiter, left.iter().any(|left| left.waiters > 0));
    note(Leak::Entry, left.iter().any(|left| left.keys > 0));
    note(Leak::Timer, left.iter().any(|left| left.timers > 0));
    note(Leak::Background, left.iter().any(|left| left.tasks > 0));
    let timekeepers = left.iter().map(|left| left.timekeepers).sum();
    note(Leak::Task, Handle::current().metrics().num_alive_tasks() > timekeepers);
    let name = LockKey::new(key).unwrap();
    note(Leak::Held, store.status(name.clone()).await.unwrap().is_locked());
    note(Leak::Subscription, is_listened_to(store, name).await);
    let start = Instant::now();
    let fresh = manager_on(LockManager::builder(), Arc::clone(store));
    // A place in the queue keeps out a fair attempt; an intent keeps out a reader.
    for lock in [fresh.mutex(key), fresh.fair(key), fresh.read(key), fresh.write(key)] {
        match lock.try_acquire().await.unwrap() {
            Some(guard) => guard.release().await.unwrap(),
            None => note(Leak::Refused, true),
        }
    }
    note(Leak::Refused, start.elapsed() > Duration::from_millis(1));
    leaks.sort_unstable();
    leaks.dedup();
    leaks
}

/// Whether there is a subscriber: a release returns how many others hear it.
async fn is_listened_to(store: &Arc<dyn LockStore>, key: LockKey) -> bool {
    let second = Duration::from_secs(1);
    let item = Item { key, kind: Kind::Mutex, owner: OwnerId::new("probe") };
    let request = Arc::new(AcquireRequest::new(vec![item.clone()], second, second));
    if let Acquired::Busy(_) = store.acquire(request).await.unwrap() {
        return false; // that is a leak of another kind
    }
    let request = ReleaseRequest {
        items: [item].into(),
        linger: Duration::ZERO,
        then: None,
        own_watch: None,
        timeout: second,
    };
    store.release(Arc::new(request)).await.unwrap().rivals != lock_core::store::Rivals::None
}
