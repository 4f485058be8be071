//! [`Forward`]: a store that changes some steps of another one.

use std::sync::Arc;

use super::latch::LatchStore;
use super::semaphore::SemaphoreStore;
use super::stock::StockStore;
use super::{
    Abilities, AcquireRequest, Acquired, BoxFuture, LockStatus, LockStore, QuorumMember, ReleaseRequest,
    Released, RenewRequest, Renewed, ScanRequest, Scanned, StoreError, Watch, Withdrawn,
};
use crate::key::LockKey;

/// The answer of a step.
type Answer<T> = BoxFuture<Result<T, StoreError>>;

/// A store that passes every step on to an inner store, except those that it implements: for tests
/// with faults, for journals, for measurements.
///
/// ```
/// use std::sync::Arc;
/// use lock_core::store::{AcquireRequest, Acquired, BoxFuture, Forward, LockStore, StoreError};
///
/// #[derive(Debug)]
/// struct Counting(Arc<dyn LockStore>, std::sync::atomic::AtomicU64);
///
/// impl Forward for Counting {
///     fn inner(&self) -> &dyn LockStore {
///         &*self.0
///     }
///
///     fn acquire(&self, request: Arc<AcquireRequest>) -> BoxFuture<Result<Acquired, StoreError>> {
///         self.1.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
///         self.0.acquire(request)
///     }
/// }
/// ```
pub trait Forward: Send + Sync + std::fmt::Debug + 'static {
    /// Returns the store that makes the steps.
    fn inner(&self) -> &dyn LockStore;

    /// Changes every call that is passed on: delays it, counts it, or lets it fail. `step` is the
    /// name of the method. The call has not begun yet.
    fn around<T: Send + 'static>(&self, step: &'static str, call: Answer<T>) -> Answer<T> {
        let _ = step;
        call
    }

    /// As [`LockStore::abilities`].
    fn abilities(&self) -> &Abilities {
        self.inner().abilities()
    }

    /// As [`LockStore::acquire`].
    fn acquire(&self, request: Arc<AcquireRequest>) -> Answer<Acquired> {
        self.around("acquire", self.inner().acquire(request))
    }

    /// As [`LockStore::release`].
    fn release(&self, request: Arc<ReleaseRequest>) -> Answer<Released> {
        self.around("release", self.inner().release(request))
    }

    /// As [`LockStore::renew`].
    fn renew(&self, request: Arc<RenewRequest>) -> Answer<Vec<Renewed>> {
        self.around("renew", self.inner().renew(request))
    }

    /// As [`LockStore::downgrade`].
    fn downgrade(&self, request: Arc<RenewRequest>) -> Answer<Vec<Renewed>> {
        self.around("downgrade", self.inner().downgrade(request))
    }

    /// As [`LockStore::withdraw`].
    fn withdraw(&self, request: Arc<AcquireRequest>) -> Answer<Withdrawn> {
        self.around("withdraw", self.inner().withdraw(request))
    }

    /// As [`LockStore::watch`].
    fn watch(&self, request: Arc<AcquireRequest>) -> Answer<Watch> {
        self.around("watch", self.inner().watch(request))
    }

    /// As [`LockStore::status`].
    fn status(&self, key: LockKey) -> Answer<LockStatus> {
        self.around("status", self.inner().status(key))
    }

    /// As [`LockStore::force_release`].
    fn force_release(&self, key: LockKey) -> Answer<bool> {
        self.around("force_release", self.inner().force_release(key))
    }

    /// As [`LockStore::scan`].
    fn scan(&self, request: ScanRequest) -> Answer<Scanned> {
        self.around("scan", self.inner().scan(request))
    }

    /// As [`LockStore::place`].
    fn place(&self, key: &LockKey) -> u64 {
        self.inner().place(key)
    }

    /// As [`LockStore::check`].
    fn check(&self) -> Answer<()> {
        self.around("check", self.inner().check())
    }

    /// As [`LockStore::member`].
    fn member(&self) -> Option<&dyn QuorumMember> {
        self.inner().member()
    }

    /// As [`LockStore::semaphores`].
    fn semaphores(&self) -> Option<Arc<dyn SemaphoreStore>> {
        self.inner().semaphores()
    }

    /// As [`LockStore::stocks`].
    fn stocks(&self) -> Option<Arc<dyn StockStore>> {
        self.inner().stocks()
    }

    /// As [`LockStore::latches`].
    fn latches(&self) -> Option<Arc<dyn LatchStore>> {
        self.inner().latches()
    }
}

impl<S: Forward> LockStore for S {
    fn abilities(&self) -> &Abilities {
        Forward::abilities(self)
    }

    fn acquire(&self, request: Arc<AcquireRequest>) -> Answer<Acquired> {
        Forward::acquire(self, request)
    }

    fn release(&self, request: Arc<ReleaseRequest>) -> Answer<Released> {
        Forward::release(self, request)
    }

    fn renew(&self, request: Arc<RenewRequest>) -> Answer<Vec<Renewed>> {
        Forward::renew(self, request)
    }

    fn downgrade(&self, request: Arc<RenewRequest>) -> Answer<Vec<Renewed>> {
        Forward::downgrade(self, request)
    }

    fn withdraw(&self, request: Arc<AcquireRequest>) -> Answer<Withdrawn> {
        Forward::withdraw(self, request)
    }

    fn watch(&self, request: Arc<AcquireRequest>) -> Answer<Watch> {
        Forward::watch(self, request)
    }

    fn status(&self, key: LockKey) -> Answer<LockStatus> {
        Forward::status(self, key)
    }

    fn force_release(&self, key: LockKey) -> Answer<bool> {
        Forward::force_release(self, key)
    }

    fn scan(&self, request: ScanRequest) -> Answer<Scanned> {
        Forward::scan(self, request)
    }

    fn place(&self, key: &LockKey) -> u64 {
        Forward::place(self, key)
    }

    fn check(&self) -> Answer<()> {
        Forward::check(self)
    }

    fn member(&self) -> Option<&dyn QuorumMember> {
        Forward::member(self)
    }

    fn semaphores(&self) -> Option<Arc<dyn SemaphoreStore>> {
        Forward::semaphores(self)
    }

    fn stocks(&self) -> Option<Arc<dyn StockStore>> {
        Forward::stocks(self)
    }

    fn latches(&self) -> Option<Arc<dyn LatchStore>> {
        Forward::latches(self)
    }
}
