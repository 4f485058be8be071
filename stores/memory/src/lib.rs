//! [`MemoryStore`]: locks inside one process, with the semantics of the Redis store.
//!
//! It is for single-process programs, for tests, and for trying the library out. Leases expire,
//! tokens grow, late requests are refused and waiters are woken exactly as on a server. But the
//! data disappears with the process, and no call is ever slow or lost.
//!
//! Every call is one step on a table under a mutex: `step` decides, `table` and `entry` keep the
//! data, `bell` notifies watches afterwards. Semaphores, latches and stocks have tables of their
//! own.
//!
//! Time is tokio's (`Clock::Tokio`), so that `tokio::time::pause` and `advance` work. The server
//! time is the wall clock at the creation of the store, plus the time since then.
#![forbid(unsafe_code)]
#![cfg_attr(docsrs, feature(doc_cfg))]
#![cfg_attr(
    not(test),
    warn(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

mod bell;
mod books;
mod entry;
mod handle;
mod latch;
#[cfg(test)]
mod model;
mod queue;
mod read_write;
mod semaphore;
#[cfg(feature = "testing")]
pub mod server;
mod step;
mod stock;
mod table;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError, Weak};

use lock_core::LockKey;
use lock_core::store::{
    Abilities, AcquireRequest, Acquired, BoxFuture, LatchStore, LockStatus, LockStore, MarkRequest, Marked,
    QuorumMember, ReleaseRequest, Released, RenewRequest, Renewed, ScanRequest, Scanned, SemaphoreStore,
    StoreError, Watch, Withdrawn,
};

use self::entry::HandleId;
use self::handle::{ABILITIES, Handle, Shared};
use self::latch::MemoryLatches;
use self::semaphore::MemorySemaphores;

/// The named stores. Held weakly: a store disappears with the last manager that uses it.
static NAMED: std::sync::Mutex<BTreeMap<String, Weak<Shared>>> = std::sync::Mutex::new(BTreeMap::new());

/// One manager's handle on a memory store.
pub struct MemoryStore {
    handle: Handle,
}

impl MemoryStore {
    /// Creates a fresh store that is shared with nobody. `prefix` is put in front of every key.
    #[must_use]
    pub fn new(prefix: &str) -> Arc<Self> {
        Self::on(Shared::new(), prefix)
    }

    /// Returns the store of this name, shared by everyone in the process who asks for it. The
    /// prefix belongs to the returned handle, not to the store.
    #[must_use]
    pub fn named(name: &str, prefix: &str) -> Arc<Self> {
        let mut named = NAMED.lock().unwrap_or_else(PoisonError::into_inner);
        named.retain(|_, shared| shared.strong_count() > 0);
        let shared = match named.get(name).and_then(Weak::upgrade) {
            Some(shared) => shared,
            None => {
                let shared = Shared::new();
                named.insert(name.to_owned(), Arc::downgrade(&shared));
                shared
            }
        };
        drop(named);
        Self::on(shared, prefix)
    }

    /// Returns another handle on the same store.
    #[cfg(any(test, feature = "testing"))]
    #[doc(hidden)]
    #[must_use]
    pub fn another(&self) -> Arc<Self> {
        let Handle { shared, prefix, .. } = &self.handle;
        Self::on(Arc::clone(shared), prefix)
    }

    /// Returns the store as a server that was restarted without its data, with its clock moved by
    /// `ahead`.
    #[cfg(any(test, feature = "testing"))]
    #[doc(hidden)]
    #[must_use]
    pub fn started_again(&self, ahead: std::time::Duration) -> Arc<Self> {
        let Handle { shared, prefix, .. } = &self.handle;
        let ahead = u64::try_from(ahead.as_micros()).unwrap_or(u64::MAX);
        let empty = Shared { clock: shared.clock, epoch: shared.epoch + ahead, ..Shared::empty() };
        Self::on(Arc::new(empty), prefix)
    }

    /// Makes a marker as if the clock had been `ahead` at that time.
    #[cfg(any(test, feature = "testing"))]
    #[doc(hidden)]
    pub fn mark_ahead(&self, ahead: std::time::Duration) {
        self.handle.mark_ahead(ahead);
    }

    fn on(shared: Arc<Shared>, prefix: &str) -> Arc<Self> {
        let id = HandleId(shared.handles.fetch_add(1, Ordering::Relaxed));
        Arc::new(Self { handle: Handle { shared, id, prefix: Arc::from(prefix) } })
    }
}

impl QuorumMember for MemoryStore {
    fn mark(&self, request: MarkRequest) -> BoxFuture<Result<Marked, StoreError>> {
        self.handle.call(move |handle| Ok(handle.mark(request.mark)))
    }
}

impl LockStore for MemoryStore {
    fn abilities(&self) -> &Abilities {
        &ABILITIES
    }

    fn member(&self) -> Option<&dyn QuorumMember> {
        Some(self)
    }

    fn acquire(&self, request: Arc<AcquireRequest>) -> BoxFuture<Result<Acquired, StoreError>> {
        self.handle.call(move |handle| handle.acquire_in_time(&request))
    }

    fn release(&self, request: Arc<ReleaseRequest>) -> BoxFuture<Result<Released, StoreError>> {
        self.handle.call(move |handle| Ok(handle.release(&request)))
    }

    fn renew(&self, request: Arc<RenewRequest>) -> BoxFuture<Result<Vec<Renewed>, StoreError>> {
        self.handle.call(move |handle| {
            let items = &request.items;
            Ok(handle.step(items.len(), |step| items.iter().map(|item| step.renew(item)).collect()).0)
        })
    }

    fn downgrade(&self, request: Arc<RenewRequest>) -> BoxFuture<Result<Vec<Renewed>, StoreError>> {
        self.handle.call(move |handle| {
            let items = &request.items;
            Ok(handle.step(items.len(), |step| items.iter().map(|item| step.downgrade(item)).collect()).0)
        })
    }

    fn withdraw(&self, request: Arc<AcquireRequest>) -> BoxFuture<Result<Withdrawn, StoreError>> {
        self.handle.call(move |handle| Ok(handle.step(request.items.len(), |step| step.withdraw(&request)).0))
    }

    fn watch(&self, request: Arc<AcquireRequest>) -> BoxFuture<Result<Watch, StoreError>> {
        self.handle.call(move |handle| Ok(handle.watch(&request)))
    }

    fn status(&self, key: LockKey) -> BoxFuture<Result<LockStatus, StoreError>> {
        self.handle.call(move |handle| Ok(handle.step(1, |step| step.status(&key)).0))
    }

    fn force_release(&self, key: LockKey) -> BoxFuture<Result<bool, StoreError>> {
        self.handle.call(move |handle| Ok(handle.step(1, |step| step.force_release(&key)).0))
    }

    fn scan(&self, request: ScanRequest) -> BoxFuture<Result<Scanned, StoreError>> {
        self.handle.call(move |handle| handle.step(1, |step| step.scan(&request)).0)
    }

    fn check(&self) -> BoxFuture<Result<(), StoreError>> {
        self.handle.call(|_| Ok(()))
    }

    fn semaphores(&self) -> Option<Arc<dyn SemaphoreStore>> {
        Some(Arc::new(MemorySemaphores::new(self.handle.clone())))
    }

    fn stocks(&self) -> Option<Arc<dyn lock_core::store::stock::StockStore>> {
        Some(Arc::new(stock::MemoryStocks::new(self.handle.clone())))
    }

    fn latches(&self) -> Option<Arc<dyn LatchStore>> {
        Some(Arc::new(MemoryLatches::new(self.handle.clone())))
    }
}

impl fmt::Debug for MemoryStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryStore")
            .field("prefix", &self.handle.prefix)
            .field("handle", &self.handle.id.0)
            .finish_non_exhaustive()
    }
}
