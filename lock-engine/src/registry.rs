//! [`Registry`]: the keys that this process holds or wants.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use lock_core::LockKey;
use lock_core::internal::clock::Tick;
use lock_core::internal::sync::atomic::Ordering;
use lock_core::internal::sync::{Mutex, lock};
use lock_core::store::StoreError;

use super::lane::Lane;
use super::machine::Machine;
use super::spec::LaneKind;

/// The identifier of a lane. A lane that callers share is found by its kind and key. The lane of a
/// single caller, and a sealed lane, are found by their number.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum LaneId {
    Shared(LaneKind, LockKey),
    Own(u64),
}

/// All lanes. Lock order: a map, then a machine.
#[derive(Debug, Default)]
pub(crate) struct Registry {
    lanes: Mutex<HashMap<LaneId, Arc<Lane>>>,
    /// The callers that wait in their own lanes.
    waiting: Mutex<AllInOwn>,
}

/// The callers that wait for one key in their own lanes.
#[derive(Debug, Default)]
struct InOwn {
    callers: usize,
    /// Until when the key is taken, as the store last told one of them, or the store's error.
    told: Option<Result<Tick, StoreError>>,
    /// The callers that want permits, in order of arrival, with their waiters. The first asks the
    /// store.
    line: BTreeMap<u64, (Arc<Lane>, u64)>,
}

/// All such callers, by the (first) key, and whether it is a semaphore.
#[derive(Debug, Default)]
struct AllInOwn {
    by_key: HashMap<(LockKey, bool), InOwn>,
    /// The last place given out in a line. No two lines share a place.
    last_place: u64,
}

impl Registry {
    /// Returns the lane, made if necessary. [`LaneKind::Own`] always makes a new one.
    pub(crate) fn get(&self, key: &LockKey, kind: LaneKind, make: impl FnOnce() -> Arc<Lane>) -> Arc<Lane> {
        let mut lanes = lock(&self.lanes);
        if kind == LaneKind::Own {
            let lane = make();
            lanes.insert(LaneId::Own(lane.id), Arc::clone(&lane));
            return lane;
        }
        Arc::clone(lanes.entry(LaneId::Shared(kind, key.clone())).or_insert_with(make))
    }

    /// Returns the shared lane of this kind and key, if there is one.
    pub(crate) fn find(&self, key: &LockKey, kind: LaneKind) -> Option<Arc<Lane>> {
        lock(&self.lanes).get(&LaneId::Shared(kind, key.clone())).cloned()
    }

    /// Returns the identifier under which the lane is registered.
    fn id_of(lanes: &HashMap<LaneId, Arc<Lane>>, lane: &Lane) -> LaneId {
        let shared = LaneId::Shared(lane.kind, lane.key.clone());
        if lanes.get(&shared).is_some_and(|other| other.id == lane.id) {
            shared
        } else {
            LaneId::Own(lane.id)
        }
    }

    /// Returns every lane with locks of `key`. Looks at all lanes.
    pub(crate) fn find_all(&self, key: &LockKey) -> Vec<Arc<Lane>> {
        let lanes = lock(&self.lanes);
        lanes.values().filter(|lane| lane.spec.permits == 0 && lane.is_of(key)).cloned().collect()
    }

    /// Detaches the lane: later lookups get a fresh one.
    pub(crate) fn detach(&self, lane: &Arc<Lane>) {
        let mut lanes = lock(&self.lanes);
        // It is never absent: a shutdown looks at all lanes.
        let id = Self::id_of(&lanes, lane);
        if let Some(detached) = lanes.remove(&id) {
            lanes.insert(LaneId::Own(lane.id), detached);
        }
    }

    /// Removes the lane if it is idle.
    pub(crate) fn remove_idle(&self, lane: &Arc<Lane>) {
        let mut lanes = lock(&self.lanes);
        let mut state = lock(&lane.state);
        let id = Self::id_of(&lanes, lane);
        if state.machine.is_idle() && lanes.remove(&id).is_some() {
            state.removed = true;
        }
    }

    pub(crate) fn all(&self) -> Vec<Arc<Lane>> {
        lock(&self.lanes).values().cloned().collect()
    }

    /// Whether `test` holds for any machine. Copies nothing, because it may be called often and
    /// with many lanes.
    pub(crate) fn any(&self, test: impl Fn(&Machine) -> bool) -> bool {
        lock(&self.lanes).values().any(|lane| test(&lock(&lane.state).machine))
    }

    /// Counts one more caller that waits for `key` in its own lane. If `cap` callers do so already,
    /// returns their number as the error.
    pub(crate) fn wait_in_own(&self, key: &(LockKey, bool), cap: usize) -> Result<(), usize> {
        let mut waiting = lock(&self.waiting);
        let callers = waiting.by_key.get(key).map_or(0, |in_own| in_own.callers);
        if callers >= cap {
            return Err(callers);
        }
        waiting.by_key.entry(key.clone()).or_default().callers += 1;
        Ok(())
    }

    /// Records until when the key is taken, as one of the callers was told, or why that is not
    /// known.
    pub(crate) fn told_in_own(&self, key: &(LockKey, bool), told: Result<Tick, StoreError>) {
        if let Some(in_own) = lock(&self.waiting).by_key.get_mut(key) {
            in_own.told = Some(told);
        }
    }

    /// Returns for how long the key is still taken, or the store's error, as one of the callers was
    /// last told.
    pub(crate) fn taken_in_own(
        &self,
        key: &(LockKey, bool),
        now: Tick,
    ) -> Result<Option<Duration>, StoreError> {
        let waiting = lock(&self.waiting);
        let told = waiting.by_key.get(key).and_then(|in_own| in_own.told.clone()).transpose()?;
        Ok(told.filter(|&until| now < until).map(|until| until.since(now)))
    }

    /// Counts one caller less.
    pub(crate) fn stop_waiting_in_own(&self, key: &(LockKey, bool)) {
        let mut waiting = lock(&self.waiting);
        if let Some(in_own) = waiting.by_key.get_mut(key) {
            in_own.callers -= 1;
            if in_own.callers == 0 {
                waiting.by_key.remove(key);
            }
        }
    }

    /// Puts the lane's waiter, which wants permits, at the end of the line. Returns whether it is
    /// the first.
    pub(crate) fn stand_in_line(&self, lane: &Arc<Lane>, waiter: u64) -> bool {
        let mut waiting = lock(&self.waiting);
        let AllInOwn { by_key, last_place } = &mut *waiting;
        let Some(in_own) = by_key.get_mut(&lane.own_key()) else { return true };
        *last_place += 1;
        lane.place.store(*last_place, Ordering::Relaxed);
        in_own.line.insert(*last_place, (Arc::clone(lane), waiter));
        in_own.line.len() == 1
    }

    /// Removes the lane's waiter from the line, because it has permits or has left. If it was the
    /// first, returns the next.
    pub(crate) fn leave_line(&self, lane: &Lane) -> Option<(Arc<Lane>, u64)> {
        let mut waiting = lock(&self.waiting);
        let place = lane.place.load(Ordering::Relaxed);
        let line = &mut waiting.by_key.get_mut(&lane.own_key())?.line;
        let was_first = line.first_key_value().is_some_and(|(first, _)| *first == place);
        line.remove(&place);
        line.first_key_value().filter(|_| was_first).map(|(_, next)| next.clone())
    }

    /// Returns the number of lanes in use, for tests that look for leaks.
    #[cfg(feature = "testing")]
    pub(crate) fn len(&self) -> usize {
        lock(&self.lanes).len() + lock(&self.waiting).by_key.len()
    }
}
