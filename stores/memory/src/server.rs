//! [`MemoryServer`]: the memory store as a server value, for simulations, which define what lies
//! between it and its clients.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use lock_core::internal::clock::Clock;
use lock_core::internal::clock::SimClock;
use lock_core::internal::sync::lock;
use lock_core::store::{
    AcquireRequest, Acquired, LockStatus, Mark, Marked, ReleaseRequest, Released, RenewRequest, Renewed,
    ServerTime, StoreError, Watch, Withdrawn,
};
use lock_core::{LockKey, OwnerId};

use super::MemoryStore;
use super::handle::{Handle, Shared};
use super::step::Look;

/// The data of a server, and its clock.
#[derive(Clone)]
pub struct MemoryServer(Arc<Shared>);

/// A client's connections to a server, which recognizes the client's own watches. Each call is
/// executed at once.
#[derive(Clone)]
pub struct ServerHandle(Handle);

/// A server's data about one key, from one atomic look.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Looked {
    /// The holders.
    pub holders: Vec<OwnerId>,
    /// When the hold ends if nobody renews it.
    pub remaining: Option<Duration>,
    /// The waiters in order, and for how long each counts as alive.
    pub queue: Vec<(OwnerId, Duration)>,
}

impl MemoryServer {
    /// Creates an empty server. `epoch` is added to the time of its clock.
    #[must_use]
    pub fn new(clock: SimClock, epoch: ServerTime) -> Self {
        let shared = Shared::with(Clock::Simulated(clock), epoch.as_micros());
        Self(Arc::new(shared))
    }

    /// Returns another server with the same clock and data, and no watches.
    #[must_use]
    pub fn copy(&self) -> Self {
        let shared = Shared::with(self.0.clock, self.0.epoch);
        let copy = self.0.table().copy();
        *lock(&shared.table) = copy;
        lock(&shared.markers).clone_from(&lock(&self.0.markers));
        Self(Arc::new(shared))
    }

    /// Returns the time of its clock.
    #[must_use]
    pub fn time(&self) -> ServerTime {
        self.0.server_time(self.0.clock.now())
    }

    /// Throws away all expired data. Before its clock is set back, a real server has done so with
    /// all keys that were looked at.
    pub fn purge(&self) {
        self.0.table().drop_expired(self.0.clock.now());
    }

    /// Connects a client.
    #[must_use]
    pub fn connect(&self) -> ServerHandle {
        ServerHandle(MemoryStore::on(Arc::clone(&self.0), "").handle.clone())
    }

    /// Looks at `key` without a client.
    #[must_use]
    pub fn look(&self, key: &LockKey) -> Looked {
        let Look { holders, remaining, queue } = self.connect().0.step(1, |step| step.look(key)).0;
        Looked { holders, remaining, queue }
    }
}

impl ServerHandle {
    /// Acquires, as [`LockStore::acquire`](lock_core::store::LockStore::acquire) does, unless the
    /// server's time is past `latest`.
    ///
    /// # Errors
    ///
    /// As for that method.
    pub fn acquire(&self, request: &AcquireRequest, latest: ServerTime) -> Result<Acquired, StoreError> {
        self.0.acquire(request, latest)
    }

    /// Releases, as [`LockStore::release`](lock_core::store::LockStore::release) does. `latest` is
    /// the latest time of the takeover.
    #[must_use]
    pub fn release(&self, request: &ReleaseRequest, latest: Option<ServerTime>) -> Released {
        self.0.release_by(request, latest)
    }

    /// Renews and keeps, as [`LockStore::renew`](lock_core::store::LockStore::renew) does.
    #[must_use]
    pub fn renew(&self, request: &RenewRequest) -> Vec<Renewed> {
        let items = &request.items;
        self.0.step(items.len(), |step| items.iter().map(|item| step.renew(item)).collect()).0
    }

    /// Downgrades, as [`LockStore::downgrade`](lock_core::store::LockStore::downgrade) does.
    #[must_use]
    pub fn downgrade(&self, request: &RenewRequest) -> Vec<Renewed> {
        let items = &request.items;
        self.0.step(items.len(), |step| items.iter().map(|item| step.downgrade(item)).collect()).0
    }

    /// Withdraws, as [`LockStore::withdraw`](lock_core::store::LockStore::withdraw) does.
    #[must_use]
    pub fn withdraw(&self, request: &AcquireRequest) -> Withdrawn {
        self.0.step(request.items.len(), |step| step.withdraw(request)).0
    }

    /// Watches, as [`LockStore::watch`](lock_core::store::LockStore::watch) does.
    #[must_use]
    pub fn watch(&self, request: &AcquireRequest) -> Watch {
        self.0.watch(request)
    }

    /// Returns the status, as [`LockStore::status`](lock_core::store::LockStore::status) does.
    #[must_use]
    pub fn status(&self, key: &LockKey) -> LockStatus {
        self.0.step(1, |step| step.status(key)).0
    }

    /// Frees the key, as [`LockStore::force_release`](lock_core::store::LockStore::force_release)
    /// does.
    pub fn force_release(&self, key: &LockKey) -> bool {
        self.0.step(1, |step| step.force_release(key)).0
    }

    /// Looks at the marker or makes it, as
    /// [`QuorumMember::mark`](lock_core::store::QuorumMember::mark) does.
    pub fn mark(&self, mark: Mark) -> Marked {
        self.0.mark(mark)
    }

    /// Returns the time of the server's clock.
    #[must_use]
    pub fn time(&self) -> ServerTime {
        self.0.server_time()
    }
}

impl fmt::Debug for MemoryServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryServer").field("time", &self.time()).finish_non_exhaustive()
    }
}

impl fmt::Debug for ServerHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerHandle").field("handle", &self.0.id.0).finish_non_exhaustive()
    }
}
