//! [`Probe`]: a wrapper of a store that counts the calls, and makes them slow, silent or refused
//! when told to.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lock_core::store::{
    AcquireRequest, Acquired, BoxFuture, Forward, LockStore, ReleaseRequest, Released, RenewRequest, Renewed,
    StoreError, StoreErrorKind,
};
use lock_runtime::LockKey;

/// The fate of renewals.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Renewals {
    /// They are carried out.
    #[default]
    Work,
    /// They are neither carried out nor answered.
    Hang,
    /// They are refused, as by a server that is not ready.
    Fail,
}

/// A store that passes calls on to another store. Every call takes [`way`](Self::set_way) to get
/// there, and as long again for its answer.
#[derive(Debug)]
pub struct Probe {
    inner: Arc<dyn LockStore>,
    way_nanos: AtomicU64,
    renewals: Mutex<Renewals>,
    /// If set, only calls that renew this key are in trouble; they may renew other keys as well.
    troubled: Mutex<Option<LockKey>>,
    acquires: AtomicUsize,
    releases: AtomicUsize,
    keeps: AtomicUsize,
}

impl Probe {
    /// Wraps `inner`.
    #[must_use]
    pub fn new(inner: Arc<dyn LockStore>) -> Arc<Self> {
        Arc::new(Self {
            inner,
            way_nanos: AtomicU64::new(0),
            renewals: Mutex::default(),
            troubled: Mutex::default(),
            acquires: AtomicUsize::new(0),
            releases: AtomicUsize::new(0),
            keeps: AtomicUsize::new(0),
        })
    }

    /// Sets how long a request takes to the store, and an answer back: half of the round trip.
    ///
    /// # Panics
    ///
    /// When `way` is longer than some hundred years.
    pub fn set_way(&self, way: Duration) {
        self.way_nanos.store(u64::try_from(way.as_nanos()).expect("a time to wait"), Ordering::SeqCst);
    }

    /// Sets the fate of renewals from now on.
    ///
    /// # Panics
    ///
    /// When another call of this method has panicked.
    pub fn set_renewals(&self, renewals: Renewals) {
        *self.renewals.lock().expect("not poisoned") = renewals;
        *self.troubled.lock().expect("not poisoned") = None;
    }

    /// Sets the fate of calls that renew `key` from now on, including all other keys of such a
    /// call. Other renewals work.
    ///
    /// # Panics
    ///
    /// When another call of this method has panicked.
    pub fn set_renewals_with(&self, key: LockKey, renewals: Renewals) {
        *self.renewals.lock().expect("not poisoned") = renewals;
        *self.troubled.lock().expect("not poisoned") = Some(key);
    }

    fn renewals_of(&self, request: &RenewRequest) -> Renewals {
        let troubled = self.troubled.lock().expect("not poisoned");
        let spared =
            troubled.as_ref().is_some_and(|key| request.items.iter().all(|item| item.item.key != *key));
        if spared { Renewals::Work } else { *self.renewals.lock().expect("not poisoned") }
    }

    /// Returns the number of acquires sent so far, granted or not.
    #[must_use]
    pub fn acquires(&self) -> usize {
        self.acquires.load(Ordering::SeqCst)
    }

    /// Returns the number of releases sent so far.
    #[must_use]
    pub fn releases(&self) -> usize {
        self.releases.load(Ordering::SeqCst)
    }

    /// Returns the number of renewals and extensions sent so far. A batch counts as one.
    #[must_use]
    pub fn keeps(&self) -> usize {
        self.keeps.load(Ordering::SeqCst)
    }
}

impl Forward for Probe {
    fn inner(&self) -> &dyn LockStore {
        &*self.inner
    }

    fn around<T: Send + 'static>(
        &self,
        _: &'static str,
        call: BoxFuture<Result<T, StoreError>>,
    ) -> BoxFuture<Result<T, StoreError>> {
        let way = Duration::from_nanos(self.way_nanos.load(Ordering::SeqCst));
        if way.is_zero() {
            return call;
        }
        Box::pin(async move {
            tokio::time::sleep(way).await;
            let answer = call.await;
            tokio::time::sleep(way).await;
            answer
        })
    }

    fn acquire(&self, request: Arc<AcquireRequest>) -> BoxFuture<Result<Acquired, StoreError>> {
        self.acquires.fetch_add(1, Ordering::SeqCst);
        self.around("", self.inner.acquire(request))
    }

    fn release(&self, request: Arc<ReleaseRequest>) -> BoxFuture<Result<Released, StoreError>> {
        self.releases.fetch_add(1, Ordering::SeqCst);
        self.around("", self.inner.release(request))
    }

    fn renew(&self, request: Arc<RenewRequest>) -> BoxFuture<Result<Vec<Renewed>, StoreError>> {
        self.keeps.fetch_add(1, Ordering::SeqCst);
        match self.renewals_of(&request) {
            Renewals::Work => self.around("", self.inner.renew(request)),
            Renewals::Hang => Box::pin(std::future::pending()),
            Renewals::Fail => {
                Box::pin(async { Err(StoreError::new(StoreErrorKind::NotReady, "refused by the probe")) })
            }
        }
    }
}
