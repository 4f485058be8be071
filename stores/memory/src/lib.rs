//! [`MemoryStore`]: locks inside one process, with the semantics of the Redis store.
//!
//! It is for single-process programs, for tests, and for trying the library out. Leases expire,
//! tokens grow, late requests are refused and waiters are woken exactly as on a server. But the
//! data disappears with the process, and no call is ever slow or lost.
//!
//! It is a database of [records](lock_store_records) behind a mutex, and never encodes them. Stocks
//! have a table of their own.
//!
//! Time is tokio's (`Clock::Tokio`), so that `tokio::time::pause` and `advance` work. The server
//! time is the wall clock at the creation of the store, plus the time since then.
#![forbid(unsafe_code)]
#![cfg_attr(docsrs, feature(doc_cfg))]
#![cfg_attr(
    not(test),
    warn(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

mod books;
mod memory;
#[cfg(test)]
mod model;
#[cfg(feature = "testing")]
pub mod server;
mod stock;
mod table;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, PoisonError, Weak};
use std::time::Duration;

use lock_core::LockKey;
use lock_core::store::stock::StockStore;
use lock_core::store::{
    Abilities, AcquireRequest, Acquired, BoxFuture, LatchStore, LockStatus, LockStore, MarkRequest, Marked,
    QuorumMember, ReleaseRequest, Released, RenewRequest, Renewed, ScanRequest, Scanned, SemaphoreStore,
    StoreError, Watch, Withdrawn,
};
use lock_store_records::Records;

use self::memory::Memory;
use self::stock::MemoryStocks;

/// The named stores. Held weakly: a store disappears with the last manager that uses it.
static NAMED: std::sync::Mutex<BTreeMap<String, Weak<Memory>>> = std::sync::Mutex::new(BTreeMap::new());

/// One manager's handle on a memory store.
pub struct MemoryStore {
    records: Records<Memory>,
}

impl MemoryStore {
    /// Creates a fresh store that is shared with nobody. `prefix` is put in front of every key.
    #[must_use]
    pub fn new(prefix: &str) -> Arc<Self> {
        Self::on(Memory::new(), prefix)
    }

    /// Returns the store of this name, shared by everyone in the process who asks for it. The
    /// prefix belongs to the returned handle, not to the store.
    #[must_use]
    pub fn named(name: &str, prefix: &str) -> Arc<Self> {
        let mut named = NAMED.lock().unwrap_or_else(PoisonError::into_inner);
        named.retain(|_, memory| memory.strong_count() > 0);
        let memory = match named.get(name).and_then(Weak::upgrade) {
            Some(memory) => memory,
            None => {
                let memory = Memory::new();
                named.insert(name.to_owned(), Arc::downgrade(&memory));
                memory
            }
        };
        drop(named);
        Self::on(memory, prefix)
    }

    /// Returns another handle on the same store.
    #[cfg(any(test, feature = "testing"))]
    #[doc(hidden)]
    #[must_use]
    pub fn another(&self) -> Arc<Self> {
        Self::on(Arc::clone(self.records.store()), self.records.prefix())
    }

    /// Returns the store as a server that was restarted without its data, with its clock moved by
    /// `ahead`.
    #[cfg(any(test, feature = "testing"))]
    #[doc(hidden)]
    #[must_use]
    pub fn started_again(&self, ahead: Duration) -> Arc<Self> {
        let memory = self.records.store();
        let ahead = u64::try_from(ahead.as_micros()).unwrap_or(u64::MAX);
        let empty = Memory::with(memory.clock, memory.epoch + ahead, table::Table::default());
        Self::on(Arc::new(empty), self.records.prefix())
    }

    /// Makes a marker as if the clock had been `ahead` at that time.
    #[cfg(any(test, feature = "testing"))]
    #[doc(hidden)]
    pub fn mark_ahead(&self, ahead: Duration) {
        let memory = self.records.store();
        let since = memory.now() + ahead;
        lock_core::internal::sync::lock(&memory.markers).insert(Arc::clone(self.records.prefix()), since);
    }

    fn on(memory: Arc<Memory>, prefix: &str) -> Arc<Self> {
        let records = Records::new(memory, prefix, Duration::MAX);
        let stocks = MemoryStocks::new(records.store(), records.prefix());
        Arc::new(Self { records: records.with_stocks(Arc::new(stocks)) })
    }
}

impl QuorumMember for MemoryStore {
    fn mark(&self, request: MarkRequest) -> BoxFuture<Result<Marked, StoreError>> {
        let records = self.records.clone();
        Box::pin(async move { Ok(records.store().mark(records.prefix(), request.mark)) })
    }
}

impl LockStore for MemoryStore {
    fn abilities(&self) -> &Abilities {
        self.records.abilities()
    }

    fn acquire(&self, request: Arc<AcquireRequest>) -> BoxFuture<Result<Acquired, StoreError>> {
        self.records.acquire(request)
    }

    fn release(&self, request: Arc<ReleaseRequest>) -> BoxFuture<Result<Released, StoreError>> {
        self.records.release(request)
    }

    fn renew(&self, request: Arc<RenewRequest>) -> BoxFuture<Result<Vec<Renewed>, StoreError>> {
        self.records.renew(request)
    }

    fn downgrade(&self, request: Arc<RenewRequest>) -> BoxFuture<Result<Vec<Renewed>, StoreError>> {
        self.records.downgrade(request)
    }

    fn withdraw(&self, request: Arc<AcquireRequest>) -> BoxFuture<Result<Withdrawn, StoreError>> {
        self.records.withdraw(request)
    }

    fn watch(&self, request: Arc<AcquireRequest>) -> BoxFuture<Result<Watch, StoreError>> {
        self.records.watch(request)
    }

    fn status(&self, key: LockKey) -> BoxFuture<Result<LockStatus, StoreError>> {
        self.records.status(key)
    }

    fn force_release(&self, key: LockKey) -> BoxFuture<Result<bool, StoreError>> {
        self.records.force_release(key)
    }

    fn scan(&self, request: ScanRequest) -> BoxFuture<Result<Scanned, StoreError>> {
        self.records.scan(request)
    }

    fn check(&self) -> BoxFuture<Result<(), StoreError>> {
        self.records.check()
    }

    fn member(&self) -> Option<&dyn QuorumMember> {
        Some(self)
    }

    fn semaphores(&self) -> Option<Arc<dyn SemaphoreStore>> {
        self.records.semaphores()
    }

    fn stocks(&self) -> Option<Arc<dyn StockStore>> {
        self.records.stocks()
    }

    fn latches(&self) -> Option<Arc<dyn LatchStore>> {
        self.records.latches()
    }
}

impl fmt::Debug for MemoryStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("MemoryStore").field(&self.records).finish()
    }
}
