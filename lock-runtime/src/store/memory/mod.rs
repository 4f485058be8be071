//! [`MemoryStore`]: locks inside one process, with the semantics of the Redis store.
//!
//! It is for programs that run as one process, for tests, and for trying the library out. Leases expire, tokens
//! grow, late requests are refused and waiters are woken exactly as on a server; what differs is that the data is
//! gone with the process, and that no call is ever slow or lost.
//!
//! Time is tokio's ([`Clock::Tokio`]), so that `tokio::time::pause` and `advance` work. The server time is the wall
//! clock, read once when the store is made, plus the time since then.

mod bell;
mod entry;
mod latch;
mod listeners;
#[cfg(test)]
mod model;
mod queue;
mod read_write;
mod semaphore;
#[cfg(feature = "testing")]
pub(crate) mod server;
mod step;
mod stock;
mod table;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, Weak};
use std::time::{SystemTime, UNIX_EPOCH};

use self::bell::{Bell, Echo};
use self::entry::HandleId;
use self::latch::{Latches, MemoryLatches};
use self::semaphore::{MemorySemaphores, Semaphores};
use self::step::{Moment, Step};
use self::table::{Table, Watched};
use super::{
    AcquireRequest, Acquired, AtOnce, BoxFuture, KeepRequest, Kept, LatchStore, LockStatus, LockStore, Mark,
    MarkRequest, Marked, ReleaseRequest, Released, ScanRequest, Scanned, SemaphoreStore, ServerTime,
    StoreError, StoreErrorKind, Watch, Withdrawn,
};
use crate::clock::{Clock, Tick};
use crate::key::LockKey;
use crate::sync::{Mutex, MutexGuard, lock};

/// The stores that have a name. Held weakly: a store goes away with the last manager that uses it.
static NAMED: std::sync::Mutex<BTreeMap<String, Weak<Shared>>> = std::sync::Mutex::new(BTreeMap::new());

/// One manager's handle on a store in memory.
pub(crate) struct MemoryStore {
    handle: Handle,
}

/// What a handle is made of. Calls take a copy, since they may outlive whoever made them.
#[derive(Clone)]
struct Handle {
    shared: Arc<Shared>,
    id: HandleId,
    prefix: Arc<str>,
}

/// What all handles on one store share.
struct Shared {
    clock: Clock,
    /// The wall clock at the clock's origin, in microseconds since the Unix epoch.
    epoch: u64,
    handles: AtomicU64,
    table: Mutex<Table>,
    semaphores: Semaphores,
    latches: Latches,
    stocks: stock::Stocks,
    /// Since when the store remembers everything, if that was asked; by prefix, as the locks are.
    markers: Mutex<BTreeMap<Arc<str>, ServerTime>>,
}

impl Shared {
    fn new() -> Arc<Self> {
        Arc::new(Self::empty())
    }

    fn empty() -> Self {
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self::with(Clock::tokio(), u64::try_from(since_epoch.as_micros()).unwrap_or(0))
    }

    fn with(clock: Clock, epoch: u64) -> Self {
        Self {
            clock,
            epoch,
            handles: AtomicU64::new(0),
            table: Mutex::default(),
            semaphores: Semaphores::default(),
            latches: Latches::default(),
            stocks: stock::Stocks::default(),
            markers: Mutex::default(),
        }
    }

    fn server_time(&self, tick: Tick) -> ServerTime {
        ServerTime::from_micros(self.epoch.saturating_add(tick.as_nanos() / 1000))
    }

    /// No step runs foreign code while the table is locked, so a poisoned table is as good as any.
    fn table(&self) -> MutexGuard<'_, Table> {
        lock(&self.table)
    }
}

impl MemoryStore {
    /// A fresh store that nobody else can reach. `prefix` is put in front of every key.
    pub(crate) fn new(prefix: &str) -> Arc<Self> {
        Self::on(Shared::new(), prefix)
    }

    /// The store of this name, shared by everybody in the process who asks for it. The prefix
    /// belongs to the handle that is returned, not to the store.
    pub(crate) fn named(name: &str, prefix: &str) -> Arc<Self> {
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

    /// Another handle on the same store.
    #[cfg(test)]
    pub(crate) fn another(&self) -> Arc<Self> {
        let Handle { shared, prefix, .. } = &self.handle;
        Self::on(Arc::clone(shared), prefix)
    }

    /// A server that was started again without its data, and whose clock has been set by `ahead`.
    #[cfg(test)]
    pub(crate) fn started_again(&self, ahead: std::time::Duration) -> Arc<Self> {
        let Handle { shared, prefix, .. } = &self.handle;
        let ahead = u64::try_from(ahead.as_micros()).unwrap();
        let empty = Shared { clock: shared.clock, epoch: shared.epoch + ahead, ..Shared::empty() };
        Self::on(Arc::new(empty), prefix)
    }

    /// As if the clock had been ahead by so much when the marker was made.
    #[cfg(test)]
    pub(crate) fn mark_ahead(&self, ahead: std::time::Duration) {
        let ahead = u64::try_from(ahead.as_micros()).unwrap();
        let since = ServerTime::from_micros(self.handle.server_time().as_micros() + ahead);
        lock(&self.handle.shared.markers).insert(Arc::clone(&self.handle.prefix), since);
    }

    fn on(shared: Arc<Shared>, prefix: &str) -> Arc<Self> {
        let id = HandleId(shared.handles.fetch_add(1, Ordering::Relaxed));
        Arc::new(Self { handle: Handle { shared, id, prefix: Arc::from(prefix) } })
    }
}

impl Handle {
    /// A call that does `work` when it is first polled, and is done then.
    fn call<T, F>(&self, work: F) -> BoxFuture<Result<T, StoreError>>
    where
        T: Send + 'static,
        F: FnOnce(&Self) -> Result<T, StoreError> + Send + 'static,
    {
        let handle = self.clone();
        Box::pin(async move { work(&handle) })
    }

    /// One atomic step that deals with so many keys. The time is read under the mutex, so that of two steps the
    /// later one also has the later time. Who is to be told is told when the mutex is free again.
    fn step<T>(&self, keys: usize, step: impl FnOnce(&mut Step<'_>) -> T) -> (T, Echo) {
        let mut table = self.shared.table();
        let now = self.shared.clock.now();
        table.purge(now, 2 * keys + 2);
        let mut step_now = Step {
            table: &mut table,
            prefix: &self.prefix,
            moment: Moment { now, server_time: self.shared.server_time(now), handle: self.id },
            bell: Bell::default(),
        };
        let result = step(&mut step_now);
        let bell = step_now.bell;
        drop(table);
        (result, bell.ring(self.id))
    }

    /// Notes on the request how long it may be executed. Nothing lies between sending and executing here; the rule
    /// is kept all the same, so that an engine tested on this store meets it.
    fn stamp(&self, request: &AcquireRequest) -> ServerTime {
        request.stamp(self.server_time())
    }

    fn server_time(&self) -> ServerTime {
        self.shared.server_time(self.shared.clock.now())
    }

    fn acquire_in_time(&self, request: &AcquireRequest) -> Result<Acquired, StoreError> {
        request.refuse_replication()?;
        self.step(request.items.len(), |step| step.acquire(request, request.stamp(step.moment.server_time))).0
    }

    #[cfg(any(test, feature = "testing"))]
    fn acquire(&self, request: &AcquireRequest, latest: ServerTime) -> Result<Acquired, StoreError> {
        self.step(request.items.len(), |step| step.acquire(request, latest)).0
    }

    fn release(&self, request: &ReleaseRequest) -> Released {
        self.release_by(request, request.then.as_ref().map(|takeover| self.stamp(&takeover.request)))
    }

    /// `latest` is that of the takeover, if there is one.
    fn release_by(&self, request: &ReleaseRequest, latest: Option<ServerTime>) -> Released {
        let (released, Echo(echo)) = self.step(request.items.len(), |step| step.release(request, latest));
        Released { echo, ..released }
    }

    fn mark(&self, mark: Mark) -> Marked {
        let server_time = self.server_time();
        let mut markers = lock(&self.shared.markers);
        match mark {
            Mark::Look => {}
            Mark::Make => {
                let since = markers.entry(Arc::clone(&self.prefix)).or_insert(server_time);
                *since = server_time.min(*since);
            }
            Mark::First { latest } if server_time > latest => {}
            Mark::First { .. } => drop(markers.insert(Arc::clone(&self.prefix), ServerTime::from_micros(0))),
        }
        Marked { since: markers.get(&self.prefix).copied(), server_time }
    }

    fn watch(&self, request: &AcquireRequest) -> Watch {
        let ((notices, watched), _) = self.step(request.items.len(), |step| step.watch(request));
        Watch::new(notices, true, Box::new(Registration { shared: Arc::downgrade(&self.shared), watched }))
    }
}

/// Refuses, at `now`, a request that may be executed until `latest`.
fn in_time(now: ServerTime, latest: ServerTime) -> Result<(), StoreError> {
    if now <= latest {
        return Ok(());
    }
    let what = format!("the memory store got a request at {now:?} that expired at {latest:?}");
    Err(StoreError::new(StoreErrorKind::TooLate, what))
}

/// Takes a watch out of the table when it is dropped. Weak: a forgotten watch does not keep a store alive.
struct Registration {
    shared: Weak<Shared>,
    watched: Watched,
}

impl Drop for Registration {
    fn drop(&mut self) {
        let Some(shared) = self.shared.upgrade() else { return };
        shared.table().unwatch(&self.watched);
    }
}

impl LockStore for MemoryStore {
    fn acquire(&self, request: Arc<AcquireRequest>) -> BoxFuture<Result<Acquired, StoreError>> {
        self.handle.call(move |handle| handle.acquire_in_time(&request))
    }

    fn release(&self, request: Arc<ReleaseRequest>) -> BoxFuture<Result<Released, StoreError>> {
        self.handle.call(move |handle| Ok(handle.release(&request)))
    }

    fn keep(&self, request: Arc<KeepRequest>) -> BoxFuture<Result<Vec<Kept>, StoreError>> {
        self.handle.call(move |handle| {
            let items = &request.items;
            Ok(handle.step(items.len(), |step| items.iter().map(|item| step.keep(item)).collect()).0)
        })
    }

    fn downgrade(&self, request: Arc<KeepRequest>) -> BoxFuture<Result<Vec<Kept>, StoreError>> {
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
        self.handle.call(move |handle| Ok(handle.step(1, |step| step.scan(&request)).0))
    }

    fn mark(&self, request: MarkRequest) -> BoxFuture<Result<Marked, StoreError>> {
        self.handle.call(move |handle| Ok(handle.mark(request.mark)))
    }

    fn check(&self) -> BoxFuture<Result<(), StoreError>> {
        self.handle.call(|_| Ok(()))
    }

    fn at_once(&self) -> Option<&dyn AtOnce> {
        Some(self)
    }

    fn semaphores(&self) -> Option<Arc<dyn SemaphoreStore>> {
        Some(Arc::new(MemorySemaphores::new(self.handle.clone())))
    }

    fn stocks(&self) -> Option<Arc<dyn super::stock::StockStore>> {
        Some(Arc::new(stock::MemoryStocks::new(self.handle.clone())))
    }

    fn latches(&self) -> Option<Arc<dyn LatchStore>> {
        Some(Arc::new(MemoryLatches::new(self.handle.clone())))
    }
}

impl AtOnce for MemoryStore {
    fn acquire_now(&self, request: &AcquireRequest) -> Result<Acquired, StoreError> {
        self.handle.acquire_in_time(request)
    }

    fn release_now(&self, request: &ReleaseRequest) -> Result<Released, StoreError> {
        Ok(self.handle.release(request))
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
