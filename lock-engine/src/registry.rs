//! [`Registry`]: the keys that this process holds or wants.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use lock_core::internal::clock::Tick;
use lock_core::internal::sync::atomic::{AtomicU64, Ordering};
use lock_core::internal::sync::{Mutex, lock};
use lock_core::store::{AcquireRequest, Few, Item, Kind, ServerTime, StoreError, Watch};
use lock_core::{LockKey, OwnerId};
use tokio::sync::Notify;

use super::machine::Machine;

/// Who shares one machine: its queue, its contender, its hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum LaneKind {
    /// All callers of a key's mutex.
    Mutex,
    /// All writers of a key.
    Write,
    /// The readers of a key that share one hold.
    Read,
    /// One caller.
    Own,
}

impl LaneKind {
    /// Whether its hold goes from one caller to the next without the store.
    pub(crate) fn hands_on(self) -> bool {
        matches!(self, Self::Mutex | Self::Write)
    }
}

/// What is locked in a lane, besides its key.
#[derive(Clone, Debug)]
pub struct Spec {
    pub kind: Kind,
    /// The other keys of a lock of several.
    pub more: Box<[(LockKey, Kind)]>,
    /// Number of permits of a semaphore; 0 for a lock. The text of the owner tells the store, see
    /// [`owner_of`](lock_core::internal::owner_of).
    pub permits: u32,
}

impl Spec {
    pub fn one(kind: Kind) -> Self {
        Self { kind, more: Box::default(), permits: 0 }
    }

    /// Permits of a semaphore. Each caller has a lane of its own.
    pub fn permits(permits: u32) -> Self {
        Self { permits, ..Self::one(Kind::Mutex) }
    }

    /// All keys and kinds, in their order.
    pub fn keys<'a>(&'a self, first: &'a LockKey) -> impl Iterator<Item = (&'a LockKey, Kind)> {
        std::iter::once((first, self.kind)).chain(self.more.iter().map(|(key, kind)| (key, *kind)))
    }

    /// Whether the store has a queue in which somebody who waits for it has a place.
    pub(crate) fn is_fair(&self) -> bool {
        self.any(|kind| kind == Kind::Fair)
    }

    fn any(&self, test: impl Fn(Kind) -> bool) -> bool {
        test(self.kind) || self.more.iter().any(|(_, kind)| test(*kind))
    }
}

/// One lane of one key: its state machine, and what its driver needs.
pub(crate) struct Lane {
    pub(crate) key: LockKey,
    pub(crate) kind: LaneKind,
    pub(crate) spec: Spec,
    /// Whose it is.
    pub(crate) engine: u64,
    /// Larger than those of older lanes.
    pub(crate) id: u64,
    /// Its place in a line for permits.
    place: AtomicU64,
    pub(crate) machine: Mutex<Machine>,
    /// Wakes the parked driver.
    pub(crate) changed: Notify,
    /// Kept between drivers while somebody waits.
    pub(crate) watch: Mutex<Option<Watch>>,
}

/// A request that the store has taken note of as waiting.
#[derive(Clone, Debug)]
pub(crate) struct Queued {
    pub(crate) request: Arc<AcquireRequest>,
    /// When the last answered call was sent that found it waiting.
    pub(crate) since: Tick,
    /// When the store last said so to an acquire. A grant from before that is over: it had no place any more, and joined
    /// again.
    pub(crate) found: ServerTime,
    /// It is being sent again, or that was not answered: it may have a new place by now, so what `keep` says of that must
    /// not make an older grant look newer.
    pub(crate) asking: bool,
    /// When its place is to be kept next.
    pub(crate) keep_at: Tick,
}

impl Lane {
    pub(crate) fn new(engine: u64, id: u64, kind: LaneKind, spec: Spec, machine: Machine) -> Arc<Self> {
        Arc::new(Self {
            key: machine.key().clone(),
            kind,
            spec,
            engine,
            id,
            place: AtomicU64::new(0),
            machine: Mutex::new(machine),
            changed: Notify::new(),
            watch: Mutex::new(None),
        })
    }

    /// What its driver asks the store for.
    pub(crate) fn items(&self, owner: OwnerId) -> Few<Item> {
        let owner = match self.spec.permits {
            0 => owner,
            permits => lock_core::internal::owner_of(&owner, permits),
        };
        let item = |(key, kind): (&LockKey, Kind)| Item { key: key.clone(), kind, owner: owner.clone() };
        self.spec.keys(&self.key).map(item).collect()
    }

    /// Whether the store has a queue, or an intent, for somebody who waits here.
    pub(crate) fn waits_at_the_store(&self) -> bool {
        self.spec.any(|kind| matches!(kind, Kind::Fair | Kind::Write))
    }

    /// Whether the store has a queue in which somebody who waits here has a place, and grants it the key by a notice.
    pub(crate) fn has_a_queue(&self) -> bool {
        self.spec.is_fair()
    }

    /// Whether an intent has to be kept, which is short-lived.
    pub(crate) fn has_an_intent(&self) -> bool {
        self.spec.any(|kind| kind == Kind::Write)
    }

    /// By what it is found, if callers share it.
    fn shared_id(&self, lanes: &HashMap<LaneId, Arc<Self>>) -> Option<LaneId> {
        let id = LaneId::Shared(self.kind, self.key.clone());
        lanes.get(&id).filter(|lane| lane.id == self.id).map(|_| id)
    }

    /// By what the registry counts those who wait in lanes like this.
    pub(crate) fn own_key(&self) -> (LockKey, bool) {
        (self.key.clone(), self.spec.permits > 0)
    }

    fn is_of(&self, key: &LockKey) -> bool {
        self.key == *key || self.spec.more.iter().any(|(other, _)| other == key)
    }
}

impl fmt::Debug for Lane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lane").field("key", &self.key).field("kind", &self.kind).finish_non_exhaustive()
    }
}

/// By what a lane is found: one that callers share by its key, one of one caller, or that takes nobody any more, by its
/// number.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum LaneId {
    Shared(LaneKind, LockKey),
    Own(u64),
}

/// All lanes. Lock order: a map, then a machine.
#[derive(Debug, Default)]
pub(crate) struct Registry {
    lanes: Mutex<HashMap<LaneId, Arc<Lane>>>,
    /// Who waits in lanes of their own.
    waiting: Mutex<AllInOwn>,
}

/// The callers that wait for a key in lanes of their own.
#[derive(Debug)]
struct InOwn {
    callers: usize,
    /// Until when the key is taken, as the store last told one of them; its error if it has failed.
    told: Result<Tick, StoreError>,
    /// Those who want permits, in the order in which they came, with their waiters. The first asks the store.
    line: BTreeMap<u64, (Arc<Lane>, u64)>,
}

/// All of them, by the (first) key's name, and whether it is one of permits.
#[derive(Debug, Default)]
struct AllInOwn {
    by_key: HashMap<(LockKey, bool), InOwn>,
    /// The last place in a line. No two lines have the same one.
    last_place: u64,
}

impl Default for InOwn {
    fn default() -> Self {
        Self { callers: 0, told: Ok(Tick::default()), line: BTreeMap::new() }
    }
}

impl Registry {
    /// The lane's entry, made when it is not there. One of its own is always made.
    pub(crate) fn get(&self, key: &LockKey, kind: LaneKind, make: impl FnOnce() -> Arc<Lane>) -> Arc<Lane> {
        let mut lanes = lock(&self.lanes);
        if kind == LaneKind::Own {
            let lane = make();
            lanes.insert(LaneId::Own(lane.id), Arc::clone(&lane));
            return lane;
        }
        Arc::clone(lanes.entry(LaneId::Shared(kind, key.clone())).or_insert_with(make))
    }

    /// The lane's entry, if it is one that callers share.
    pub(crate) fn find(&self, key: &LockKey, kind: LaneKind) -> Option<Arc<Lane>> {
        lock(&self.lanes).get(&LaneId::Shared(kind, key.clone())).cloned()
    }

    /// Every lane that has to do with the locks of `key`. Looks at all lanes.
    pub(crate) fn find_all(&self, key: &LockKey) -> Vec<Arc<Lane>> {
        let lanes = lock(&self.lanes);
        lanes.values().filter(|lane| lane.spec.permits == 0 && lane.is_of(key)).cloned().collect()
    }

    /// Whoever asks for the lane from now on gets a fresh one.
    pub(crate) fn detach(&self, lane: &Arc<Lane>) {
        let mut lanes = lock(&self.lanes);
        if let Some(shared) = lane.shared_id(&lanes) {
            lanes.remove(&shared);
            // Never in neither: a shutdown looks at all lanes.
            lanes.insert(LaneId::Own(lane.id), Arc::clone(lane));
        }
    }

    /// Forgets the key if nothing of it is left.
    pub(crate) fn remove_idle(&self, lane: &Arc<Lane>) {
        let mut lanes = lock(&self.lanes);
        let id = lane.shared_id(&lanes).unwrap_or(LaneId::Own(lane.id));
        let mut machine = lock(&lane.machine);
        if machine.is_idle() && lanes.remove(&id).is_some() {
            machine.removed = true;
        }
    }

    pub(crate) fn all(&self) -> Vec<Arc<Lane>> {
        lock(&self.lanes).values().cloned().collect()
    }

    /// Whether the machine of any key is such. Copies nothing: it may be asked often, and of many lanes.
    pub(crate) fn any(&self, test: impl Fn(&Machine) -> bool) -> bool {
        lock(&self.lanes).values().any(|lane| test(&lock(&lane.machine)))
    }

    /// One more caller waits for `key` in a lane of its own, unless `cap` do so already: how many then.
    pub(crate) fn wait_in_own(&self, key: &(LockKey, bool), cap: usize) -> Result<(), usize> {
        let mut waiting = lock(&self.waiting);
        let callers = waiting.by_key.get(key).map_or(0, |in_own| in_own.callers);
        if callers >= cap {
            return Err(callers);
        }
        waiting.by_key.entry(key.clone()).or_default().callers += 1;
        Ok(())
    }

    /// One of them was told until when the key is taken, or why that is not known.
    pub(crate) fn told_in_own(&self, key: &(LockKey, bool), told: Result<Tick, StoreError>) {
        if let Some(in_own) = lock(&self.waiting).by_key.get_mut(key) {
            in_own.told = told;
        }
    }

    /// What the store last told one of them: for how long the key is still taken, or its error.
    pub(crate) fn taken_in_own(
        &self,
        key: &(LockKey, bool),
        now: Tick,
    ) -> Result<Option<Duration>, StoreError> {
        let waiting = lock(&self.waiting);
        let Some(in_own) = waiting.by_key.get(key) else { return Ok(None) };
        in_own.told.clone().map(|until| (now < until).then(|| until.since(now)))
    }

    /// One caller less waits so.
    pub(crate) fn stop_waiting_in_own(&self, key: &(LockKey, bool)) {
        let mut waiting = lock(&self.waiting);
        if let Some(in_own) = waiting.by_key.get_mut(key) {
            in_own.callers -= 1;
            if in_own.callers == 0 {
                waiting.by_key.remove(key);
            }
        }
    }

    /// The lane's waiter wants permits, and asks when all before it have asked; whether it is the first.
    pub(crate) fn stand_in_line(&self, lane: &Arc<Lane>, waiter: u64) -> bool {
        let mut waiting = lock(&self.waiting);
        let AllInOwn { by_key, last_place } = &mut *waiting;
        let Some(in_own) = by_key.get_mut(&lane.own_key()) else { return true };
        *last_place += 1;
        lane.place.store(*last_place, Ordering::Relaxed);
        in_own.line.insert(*last_place, (Arc::clone(lane), waiter));
        in_own.line.len() == 1
    }

    /// The lane's waiter has permits, or has gone. Returns whose turn it is now, if it was the first.
    pub(crate) fn leave_line(&self, lane: &Lane) -> Option<(Arc<Lane>, u64)> {
        let mut waiting = lock(&self.waiting);
        let place = lane.place.load(Ordering::Relaxed);
        let line = &mut waiting.by_key.get_mut(&lane.own_key())?.line;
        let was_first = line.first_key_value().is_some_and(|(first, _)| *first == place);
        line.remove(&place);
        line.first_key_value().filter(|_| was_first).map(|(_, next)| next.clone())
    }

    /// Lanes in use, for tests that look for leaks.
    #[cfg(feature = "testing")]
    pub(crate) fn len(&self) -> usize {
        lock(&self.lanes).len() + lock(&self.waiting).by_key.len()
    }
}
