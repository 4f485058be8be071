//! [`Lane`]: the callers that share one machine, and the state beside it: wakers, grants, and the
//! order of a release.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::task::Waker;

use lock_core::LockKey;
use lock_core::internal::clock::{Clock, Tick};
use lock_core::internal::sync::Mutex;
use lock_core::internal::sync::atomic::AtomicU64;
use lock_core::store::Few;
use tokio::runtime::Handle;
use tokio::sync::{Notify, oneshot};

use super::caller::Caller;
use super::failure::Failure;
use super::grant::Grant;
use super::machine::{Machine, Pass};
use super::pending::Pending;
use super::spec::{LaneKind, Spec};

/// One lane of one key: its state machine, and what its driver needs.
pub(crate) struct Lane {
    pub(crate) key: LockKey,
    pub(crate) kind: LaneKind,
    pub(crate) spec: Spec,
    /// The id of the engine.
    pub(crate) engine: u64,
    pub(crate) clock: Clock,
    pub(crate) runtime: Handle,
    /// The id of the lane, larger than those of older lanes.
    pub(crate) id: u64,
    /// Its place in a line for permits.
    pub(crate) place: AtomicU64,
    pub(crate) state: Mutex<State>,
    /// Wakes the parked driver.
    pub(crate) changed: Notify,
}

/// A machine, and the objects that it knows only by their numbers.
pub(crate) struct State {
    pub(crate) machine: Machine,
    /// The wakers, by number of the waiter.
    pub(crate) wakers: BTreeMap<u64, Waker>,
    /// The grants to inform of a loss, in the order of their numbers.
    grants: Few<Arc<Grant>>,
    /// The caller's order for the release that is about to be sent.
    pub(crate) order: Order,
    /// When the lane's timer in the engine is due; [`Tick::MAX`] if not set.
    pub(crate) timer: Tick,
    /// Whether it was taken out of the registry; a caller that finds this set looks the key up
    /// again.
    pub(crate) removed: bool,
}

/// The two ends of a channel for the outcome of a release.
pub(crate) type Report = oneshot::Sender<Result<(), Failure>>;
pub(crate) type Told = oneshot::Receiver<Result<(), Failure>>;

/// A caller's order to release; empty when no guard gave it.
#[derive(Default)]
pub(crate) struct Order {
    pub(crate) report: Option<Report>,
    /// Its place among the pending releases.
    pub(crate) pending: Option<Pending>,
}

impl State {
    pub(crate) fn new(machine: Machine) -> Self {
        let (wakers, grants, order) = (BTreeMap::new(), Few::new(), Order::default());
        Self { machine, wakers, grants, order, timer: Tick::MAX, removed: false }
    }

    /// Sets the waker of the waiter; returns the previous one.
    pub(crate) fn listen(&mut self, waiter: u64, waker: &Waker) -> Option<Waker> {
        match self.wakers.get(&waiter) {
            Some(old) if old.will_wake(waker) => None,
            _ => self.wakers.insert(waiter, waker.clone()),
        }
    }

    /// Makes the grant for an entry.
    pub(crate) fn admit(
        &mut self,
        lane: &Arc<Lane>,
        pass: Pass,
        task: Option<Caller>,
        now: Tick,
    ) -> Arc<Grant> {
        let grant = Arc::new(Grant::new(pass, Arc::clone(lane), task, now));
        self.grants.push(Arc::clone(&grant));
        grant
    }

    /// Removes the grant of an entry.
    pub(crate) fn forget(&mut self, number: u64) -> Option<Arc<Grant>> {
        let at = self.grants.binary_search_by_key(&number, |grant| grant.pass.number).ok()?;
        self.grants.take(at)
    }

    /// Whether the task has one of these grants already.
    pub(crate) fn is_held_by(&self, task: Option<Caller>) -> bool {
        task.is_some() && self.grants.iter().any(|grant| grant.task == task)
    }
}

impl Lane {
    /// Makes a lane; `ids` are the engine's id and its own.
    pub(crate) fn new(
        machine: Machine,
        (engine, id): (u64, u64),
        clock: Clock,
        runtime: Handle,
    ) -> Arc<Self> {
        Arc::new(Self {
            key: machine.key.clone(),
            kind: machine.lane,
            spec: machine.spec.clone(),
            engine,
            clock,
            runtime,
            id,
            place: AtomicU64::new(0),
            state: Mutex::new(State::new(machine)),
            changed: Notify::new(),
        })
    }

    /// Returns the key under which the registry counts callers in own lanes like this one.
    pub(crate) fn own_key(&self) -> (LockKey, bool) {
        (self.key.clone(), self.spec.permits > 0)
    }

    pub(crate) fn is_of(&self, key: &LockKey) -> bool {
        self.spec.keys(&self.key).any(|(other, _)| other == key)
    }
}

impl fmt::Debug for Lane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lane").field("key", &self.key).field("kind", &self.kind).finish_non_exhaustive()
    }
}
