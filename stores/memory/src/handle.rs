//! [`Handle`]: one manager's access to the data of a memory store.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Weak};
use std::time::{SystemTime, UNIX_EPOCH};

use lock_core::internal::clock::{Clock, Tick};
use lock_core::internal::sync::{Mutex, MutexGuard, lock};
use lock_core::store::{
    Abilities, AcquireRequest, Acquired, BoxFuture, Mark, Marked, Notices, ReleaseRequest, Released,
    ServerTime, StoreError, Watch,
};

use super::bell::{Bell, Heard};
use super::entry::HandleId;
use super::latch::Latches;
use super::semaphore::Semaphores;
use super::step::{At, Step};
use super::stock::Stocks;
use super::table::{Table, Watched};

/// The features of the store: everything but replication.
pub(super) const ABILITIES: Abilities = Abilities {
    name: "the memory store",
    fair: true,
    read_write: true,
    downgrade: true,
    several: true,
    shortens: true,
    takeovers: true,
    direct_grants: true,
    notices: Notices::Pushed,
    counts_listeners: true,
    scan: true,
    ..Abilities::MUTEX
};

/// The parts of a handle. Calls get a copy, because they may outlive their caller.
#[derive(Clone)]
pub(super) struct Handle {
    pub(super) shared: Arc<Shared>,
    pub(super) id: HandleId,
    pub(super) prefix: Arc<str>,
}

/// The data shared by all handles of one store.
pub(super) struct Shared {
    pub(super) clock: Clock,
    /// The wall clock at the clock's origin, in microseconds since the Unix epoch.
    pub(super) epoch: u64,
    pub(super) handles: AtomicU64,
    pub(super) table: Mutex<Table>,
    pub(super) semaphores: Semaphores,
    pub(super) latches: Latches,
    pub(super) stocks: Stocks,
    /// Since when the store remembers everything, by prefix as for the locks; absent until first
    /// marked.
    pub(super) markers: Mutex<BTreeMap<Arc<str>, ServerTime>>,
}

impl Shared {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self::empty())
    }

    pub(super) fn empty() -> Self {
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self::with(Clock::tokio(), u64::try_from(since_epoch.as_micros()).unwrap_or(0))
    }

    pub(super) fn with(clock: Clock, epoch: u64) -> Self {
        Self {
            clock,
            epoch,
            handles: AtomicU64::new(0),
            table: Mutex::default(),
            semaphores: Semaphores::default(),
            latches: Latches::default(),
            stocks: Stocks::default(),
            markers: Mutex::default(),
        }
    }

    pub(super) fn server_time(&self, tick: Tick) -> ServerTime {
        ServerTime::from_micros(self.epoch.saturating_add(tick.as_nanos() / 1000))
    }

    /// Locks the table. No step runs foreign code while the table is locked, so poison can be
    /// ignored.
    pub(super) fn table(&self) -> MutexGuard<'_, Table> {
        lock(&self.table)
    }
}

impl Handle {
    /// Returns a call that does `work` in its first poll, and is then done.
    pub(super) fn call<T, F>(&self, work: F) -> BoxFuture<Result<T, StoreError>>
    where
        T: Send + 'static,
        F: FnOnce(&Self) -> Result<T, StoreError> + Send + 'static,
    {
        let handle = self.clone();
        Box::pin(async move { work(&handle) })
    }

    /// Makes one atomic step that touches `keys` keys. The time is read under the mutex, so a later
    /// step also has a later time. Watches are notified after the mutex is released.
    pub(super) fn step<T>(&self, keys: usize, step: impl FnOnce(&mut Step<'_>) -> T) -> (T, Heard) {
        let mut table = self.shared.table();
        let now = self.shared.clock.now();
        table.purge(now, 2 * keys + 2);
        let mut step_now = Step {
            table: &mut table,
            prefix: &self.prefix,
            at: At { now, server_time: self.shared.server_time(now), handle: self.id },
            bell: Bell::default(),
        };
        let result = step(&mut step_now);
        let bell = step_now.bell;
        drop(table);
        (result, bell.ring(self.id))
    }

    /// Stamps the request. Nothing lies between sending and executing here, but the rule is kept,
    /// so that an engine tested on this store meets it.
    pub(super) fn stamp(&self, request: &AcquireRequest) -> ServerTime {
        request.stamp(self.server_time())
    }

    pub(super) fn server_time(&self) -> ServerTime {
        self.shared.server_time(self.shared.clock.now())
    }

    pub(super) fn acquire_in_time(&self, request: &AcquireRequest) -> Result<Acquired, StoreError> {
        ABILITIES.allow(request)?;
        self.step(request.items.len(), |step| step.acquire(request, request.stamp(step.at.server_time))).0
    }

    #[cfg(any(test, feature = "testing"))]
    pub(super) fn acquire(
        &self,
        request: &AcquireRequest,
        latest: ServerTime,
    ) -> Result<Acquired, StoreError> {
        self.step(request.items.len(), |step| step.acquire(request, latest)).0
    }

    pub(super) fn release(&self, request: &ReleaseRequest) -> Released {
        self.release_by(request, request.then.as_ref().map(|takeover| self.stamp(&takeover.request)))
    }

    /// Releases; `latest` is the latest time of the takeover, if there is one.
    pub(super) fn release_by(&self, request: &ReleaseRequest, latest: Option<ServerTime>) -> Released {
        let (released, Heard(echo)) = self.step(request.items.len(), |step| step.release(request, latest));
        if let Some(own) = request.own_watch.as_ref().filter(|_| echo) {
            own.expect();
        }
        released
    }

    /// Makes a marker as if the clock had been `ahead` at that time.
    #[cfg(any(test, feature = "testing"))]
    pub(super) fn mark_ahead(&self, ahead: std::time::Duration) {
        let ahead = u64::try_from(ahead.as_micros()).unwrap_or(u64::MAX);
        let since = ServerTime::from_micros(self.server_time().as_micros() + ahead);
        lock(&self.shared.markers).insert(Arc::clone(&self.prefix), since);
    }

    pub(super) fn mark(&self, mark: Mark) -> Marked {
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

    pub(super) fn watch(&self, request: &AcquireRequest) -> Watch {
        let ((notices, watched), _) = self.step(request.items.len(), |step| step.watch(request));
        Watch::new(notices, true, Box::new(Registration { shared: Arc::downgrade(&self.shared), watched }))
    }
}

/// Removes a watch from the table on drop. Weak, so that a leaked watch does not keep a store
/// alive.
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
