//! [`Registry`]: the keys that this process holds or wants.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use tokio::sync::Notify;

use super::machine::Machine;
use crate::key::LockKey;
use crate::store::Watch;
use crate::sync::{Mutex, MutexGuard, lock};

/// One key: its state machine, and what its driver needs.
pub(crate) struct Key {
    pub(crate) name: LockKey,
    /// Number of its sweep job.
    pub(crate) id: u64,
    pub(crate) machine: Mutex<Machine>,
    /// Wakes the parked driver.
    pub(crate) changed: Notify,
    /// Kept between drivers while somebody waits.
    pub(crate) watch: Mutex<Option<Watch>>,
}

impl Key {
    pub(crate) fn new(id: u64, machine: Machine) -> Self {
        Self {
            name: machine.key().clone(),
            id,
            machine: Mutex::new(machine),
            changed: Notify::new(),
            watch: Mutex::new(None),
        }
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Key").field("name", &self.name).finish_non_exhaustive()
    }
}

/// Keys by name. Lock order: the map, then a machine.
#[derive(Debug, Default)]
pub(crate) struct Registry(Mutex<HashMap<LockKey, Arc<Key>>>);

impl Registry {
    /// The key's entry, made when it is not there.
    pub(crate) fn get(&self, name: &LockKey, make: impl FnOnce() -> Key) -> Arc<Key> {
        let mut keys = lock(&self.0);
        if let Some(key) = keys.get(name) {
            return Arc::clone(key);
        }
        let key = Arc::new(make());
        keys.insert(name.clone(), Arc::clone(&key));
        key
    }

    pub(crate) fn find(&self, name: &LockKey) -> Option<Arc<Key>> {
        lock(&self.0).get(name).cloned()
    }

    /// Forgets the key if nothing of it is left.
    pub(crate) fn remove_idle(&self, key: &Arc<Key>) -> bool {
        let mut keys = lock(&self.0);
        let mut machine: MutexGuard<'_, Machine> = lock(&key.machine);
        let gone = machine.is_idle() && !machine.removed;
        if gone {
            machine.removed = true;
            keys.remove(&key.name);
        }
        gone
    }

    pub(crate) fn all(&self) -> Vec<Arc<Key>> {
        lock(&self.0).values().cloned().collect()
    }

    /// Whether the machine of any key is such. Copies nothing: it may be asked often, and of many keys.
    pub(crate) fn any(&self, test: impl Fn(&Machine) -> bool) -> bool {
        lock(&self.0).values().any(|key| test(&lock(&key.machine)))
    }

    /// Keys in use, for tests that look for leaks.
    #[cfg(feature = "testing")]
    pub(crate) fn len(&self) -> usize {
        lock(&self.0).len()
    }
}
