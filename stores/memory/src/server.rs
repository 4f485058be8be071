//! [`MemoryServer`]: the memory store as a server value, for simulations, which define what lies
//! between it and its clients.

use std::fmt;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use lock_core::internal::clock::Clock;
use lock_core::internal::clock::SimClock;
use lock_core::internal::sync::lock;
use lock_core::store::{
    AcquireRequest, Acquired, LockStatus, LockStore, Mark, Marked, ReleaseRequest, Released, RenewRequest,
    Renewed, ServerTime, StoreError, Watch, Withdrawn,
};
use lock_core::{LockKey, OwnerId};
use lock_store_records::{Class, Look, Name, Records};

use super::memory::Memory;
use super::table::Table;

/// The data of a server, and its clock.
#[derive(Clone)]
pub struct MemoryServer(Arc<Memory>);

/// A client's connections to a server, which recognizes the client's own watches. Each call is
/// executed at once.
#[derive(Clone)]
pub struct ServerHandle(Records<Memory>);

/// Executes a call that never waits.
fn at_once<T>(call: impl Future<Output = Result<T, StoreError>>) -> Result<T, StoreError> {
    match pin!(call).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(answer) => answer,
        Poll::Pending => unreachable!("the memory store never waits"),
    }
}

/// Executes a call that never fails.
fn certain<T>(call: impl Future<Output = Result<T, StoreError>>) -> T {
    match at_once(call) {
        Ok(answer) => answer,
        Err(error) => unreachable!("the memory store answers: {error}"),
    }
}

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
        Self(Arc::new(Memory::with(Clock::Simulated(clock), epoch.as_micros(), Table::default())))
    }

    /// Returns another server with the same clock and data, and no watches.
    #[must_use]
    pub fn copy(&self) -> Self {
        let copy = Memory::with(self.0.clock, self.0.epoch, self.0.table().copy());
        lock(&copy.markers).clone_from(&lock(&self.0.markers));
        Self(Arc::new(copy))
    }

    /// Returns the time of its clock.
    #[must_use]
    pub fn time(&self) -> ServerTime {
        self.0.now()
    }

    /// Throws away all expired data. Before its clock is set back, a real server has done so with
    /// all keys that were looked at.
    pub fn purge(&self) {
        self.0.table().drop_expired(self.0.now());
    }

    /// Connects a client.
    #[must_use]
    pub fn connect(&self) -> ServerHandle {
        ServerHandle(Records::new(Arc::clone(&self.0), "", Duration::MAX))
    }

    /// Looks at `key` without a client.
    #[must_use]
    pub fn look(&self, key: &LockKey) -> Looked {
        let name = Name { class: Class::Lock, text: key.as_str().into() };
        let mut table = self.0.table();
        let record = table.take(&name);
        let Look { holders, remaining, queue } = lock_store_records::look(&name, &record, self.0.now());
        table.put(&name, record);
        Looked { holders, remaining, queue }
    }
}

impl ServerHandle {
    /// Acquires, as [`LockStore::acquire`] does, unless the
    /// server's time is past `latest`.
    ///
    /// # Errors
    ///
    /// As for that method.
    pub fn acquire(&self, request: &Arc<AcquireRequest>, latest: ServerTime) -> Result<Acquired, StoreError> {
        at_once(self.0.acquire_by(Arc::clone(request), latest))
    }

    /// Releases, as [`LockStore::release`] does. `latest` is the latest time of the takeover.
    #[must_use]
    pub fn release(&self, request: &Arc<ReleaseRequest>, latest: Option<ServerTime>) -> Released {
        certain(self.0.release_by(Arc::clone(request), latest))
    }

    /// Renews and keeps, as [`LockStore::renew`] does.
    #[must_use]
    pub fn renew(&self, request: &Arc<RenewRequest>) -> Vec<Renewed> {
        certain(self.0.renew(Arc::clone(request)))
    }

    /// Downgrades, as [`LockStore::downgrade`] does.
    #[must_use]
    pub fn downgrade(&self, request: &Arc<RenewRequest>) -> Vec<Renewed> {
        certain(self.0.downgrade(Arc::clone(request)))
    }

    /// Withdraws, as [`LockStore::withdraw`] does.
    #[must_use]
    pub fn withdraw(&self, request: &Arc<AcquireRequest>) -> Withdrawn {
        certain(self.0.withdraw(Arc::clone(request)))
    }

    /// Watches, as [`LockStore::watch`] does.
    #[must_use]
    pub fn watch(&self, request: &Arc<AcquireRequest>) -> Watch {
        certain(self.0.watch(Arc::clone(request)))
    }

    /// Returns the status, as [`LockStore::status`] does.
    #[must_use]
    pub fn status(&self, key: &LockKey) -> LockStatus {
        certain(self.0.status(key.clone()))
    }

    /// Frees the key, as [`LockStore::force_release`] does.
    pub fn force_release(&self, key: &LockKey) -> bool {
        certain(self.0.force_release(key.clone()))
    }

    /// Looks at the marker or makes it, as
    /// [`QuorumMember::mark`](lock_core::store::QuorumMember::mark) does.
    pub fn mark(&self, mark: Mark) -> Marked {
        self.0.store().mark(self.0.prefix(), mark)
    }

    /// Returns the time of the server's clock.
    #[must_use]
    pub fn time(&self) -> ServerTime {
        self.0.store().now()
    }
}

impl fmt::Debug for MemoryServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryServer").field("time", &self.time()).finish_non_exhaustive()
    }
}

impl fmt::Debug for ServerHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerHandle").field("records", &self.0).finish()
    }
}
