//! [`Journal`]: when each waiter of a process entered the queue, and in what order they got the
//! lock.
//!
//! A store around the real one writes the journal: it sees every waiter under its own owner id. All
//! times are on the safe side, so every violation found is a real one:
//!
//! - A waiter asks when its first call is made, before it is sent.
//! - It is queued when the answer to a call says so.
//! - It was granted the lock before another waiter if it releases before that one: a fair lock has
//!   one holder at a time.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use lock_core::store::{
    AcquireRequest, Acquired, BoxFuture, Forward, LockStore, ReleaseRequest, Released, RenewRequest, Renewed,
    Standing, StoreError, Withdrawn,
};
use lock_runtime::{LockManager, OwnerId};
use serde_json::{Value, json};

use crate::stamp::Stamp;

/// The calls of all waiters of a process.
#[derive(Clone, Debug, Default)]
pub(crate) struct Journal(Arc<Mutex<Pages>>);

#[derive(Debug, Default)]
struct Pages {
    waiting: HashMap<OwnerId, Waiting>,
    done: Vec<Place>,
}

#[derive(Clone, Copy, Debug)]
struct Waiting {
    sent: u64,
    queued: Option<u64>,
}

/// One waiter that had the lock, in nanoseconds of a clock that all processes share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// Time of its first call.
    pub(crate) sent: u64,
    /// Time of the first answer that says it is queued; `None` if it never was.
    pub(crate) queued: Option<u64>,
    /// Time of its release.
    pub(crate) released: u64,
}

impl Place {
    pub(crate) fn to_json(self) -> Value {
        json!([self.sent, self.queued, self.released])
    }

    pub(crate) fn from_json(value: &Value) -> Option<Self> {
        let queued = value.get(1)?;
        Some(Self {
            sent: value.get(0)?.as_u64()?,
            queued: if queued.is_null() { None } else { Some(queued.as_u64()?) },
            released: value.get(2)?.as_u64()?,
        })
    }
}

/// Counts the pairs of waiters granted out of order: the one granted first asked when the other was
/// already known to be queued.
pub(crate) fn violations(mut places: Vec<Place>) -> usize {
    places.sort_by_key(|place| place.released);
    // The first calls of waiters that were granted the lock earlier, sorted. They arrive mostly in
    // order, so few elements move.
    let mut earlier: Vec<u64> = Vec::with_capacity(places.len());
    let mut pairs = 0;
    for place in places {
        if let Some(queued) = place.queued {
            pairs += earlier.len() - earlier.partition_point(|&sent| sent <= queued);
        }
        let at = earlier.partition_point(|&sent| sent <= place.sent);
        earlier.insert(at, place.sent);
    }
    pairs
}

impl Journal {
    /// Returns the waiters that have released the lock, but not those that gave up, lost their
    /// place or still wait.
    pub(crate) fn places(&self) -> Vec<Place> {
        self.open().done.clone()
    }

    fn open(&self) -> MutexGuard<'_, Pages> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn asks(&self, owner: &OwnerId) {
        let sent = Stamp::now().0;
        self.open().waiting.entry(owner.clone()).or_insert(Waiting { sent, queued: None });
    }

    fn is_in_the_queue(&self, owner: &OwnerId) {
        let now = Stamp::now().0;
        if let Some(waiting) = self.open().waiting.get_mut(owner) {
            waiting.queued.get_or_insert(now);
        }
    }

    fn is_not_waiting(&self, owner: &OwnerId) {
        self.open().waiting.remove(owner);
    }

    fn releases(&self, owner: &OwnerId) {
        let released = Stamp::now().0;
        let mut pages = self.open();
        if let Some(Waiting { sent, queued }) = pages.waiting.remove(owner) {
            pages.done.push(Place { sent, queued, released });
        }
    }
}

/// A store that records the calls to another one in a journal.
#[derive(Debug)]
pub(crate) struct Watched {
    store: Arc<dyn LockStore>,
    journal: Journal,
    /// The manager that owns the store, which ends with it.
    _manager: LockManager,
}

impl Watched {
    pub(crate) fn new(store: Arc<dyn LockStore>, journal: &Journal, manager: LockManager) -> Self {
        Self { store, journal: journal.clone(), _manager: manager }
    }
}

impl Forward for Watched {
    fn inner(&self) -> &dyn LockStore {
        &*self.store
    }

    fn acquire(&self, request: Arc<AcquireRequest>) -> BoxFuture<Result<Acquired, StoreError>> {
        let (call, journal) = (self.store.acquire(Arc::clone(&request)), self.journal.clone());
        Box::pin(async move {
            request.items.iter().for_each(|item| journal.asks(&item.owner));
            let answer = call.await;
            if let Ok(Acquired::Busy(_)) = answer {
                for item in &request.items {
                    match request.wait {
                        Some(_) => journal.is_in_the_queue(&item.owner),
                        None => journal.is_not_waiting(&item.owner),
                    }
                }
            }
            answer
        })
    }

    fn release(&self, request: Arc<ReleaseRequest>) -> BoxFuture<Result<Released, StoreError>> {
        let (call, journal) = (self.store.release(Arc::clone(&request)), self.journal.clone());
        Box::pin(async move {
            request.items.iter().for_each(|item| journal.releases(&item.owner));
            call.await
        })
    }

    fn renew(&self, request: Arc<RenewRequest>) -> BoxFuture<Result<Vec<Renewed>, StoreError>> {
        let (call, journal) = (self.store.renew(Arc::clone(&request)), self.journal.clone());
        Box::pin(async move {
            let answer = call.await;
            for (kept, of) in answer.iter().flatten().zip(&request.items) {
                if *kept == Renewed::Gone && of.standing == Standing::Waiter {
                    journal.is_not_waiting(&of.item.owner);
                }
            }
            answer
        })
    }

    fn withdraw(&self, request: Arc<AcquireRequest>) -> BoxFuture<Result<Withdrawn, StoreError>> {
        request.items.iter().for_each(|item| self.journal.is_not_waiting(&item.owner));
        self.store.withdraw(request)
    }
}

#[cfg(test)]
mod tests {
    use lock_runtime::testing;

    use super::*;

    fn place(sent: u64, queued: impl Into<Option<u64>>, released: u64) -> Place {
        Place { sent, queued: queued.into(), released }
    }

    #[test]
    fn who_asked_after_another_was_in_the_queue_comes_after_it() {
        let first = place(10, 20, 100);
        assert_eq!(violations(vec![place(21, 30, 200), first]), 0);
        assert_eq!(violations(vec![place(21, 30, 90), first]), 1);
        // Two waiters passed the first one.
        assert_eq!(violations(vec![place(21, 30, 90), place(40, None, 95), first]), 2);
    }

    #[test]
    fn calls_that_cross_have_no_order() {
        let first = place(10, 20, 100);
        assert_eq!(violations(vec![place(20, 25, 90), first]), 0);
        assert_eq!(violations(vec![place(5, 50, 90), first]), 0);
        // A waiter that got the lock at once was never in the queue.
        assert_eq!(violations(vec![place(21, 30, 90), place(10, None, 100)]), 0);
    }

    #[test]
    fn a_place_says_the_same_as_text() {
        for place in [place(1, 2, 3), place(u64::MAX, None, 3)] {
            assert_eq!(Place::from_json(&place.to_json()), Some(place));
        }
        assert_eq!(Place::from_json(&json!([1, 2])), None);
    }

    #[tokio::test]
    async fn the_journal_has_everybody_who_had_the_lock_and_nobody_else() {
        let inner = testing::memory_manager();
        let journal = Journal::default();
        let store = Watched::new(testing::store_of(&inner), &journal, inner);
        let locks = LockManager::builder().connect_store(Arc::new(store)).await.unwrap();
        let held = locks.fair("k").acquire().await.unwrap();
        assert!(locks.fair("k").try_acquire().await.unwrap().is_none());
        let (one, other) = (locks.clone(), locks.clone());
        let waiters = [one, other]
            .map(|locks| tokio::spawn(async move { locks.fair("k").acquire().await?.release().await }));
        while locks.status("k").await.unwrap().waiters < 2 {
            tokio::task::yield_now().await;
        }
        held.release().await.unwrap();
        for waiter in waiters {
            let done: Result<(), lock_runtime::LockError> = waiter.await.unwrap();
            done.unwrap();
        }
        let places = journal.places();
        let queued: Vec<bool> = places.iter().map(|place| place.queued.is_some()).collect();
        assert_eq!(queued, [false, true, true]);
        assert_eq!(violations(places), 0);
    }
}
