//! [`Wish`]: the requests of workers, with their keys, kinds and patience.

use std::time::Duration;

use lock_runtime::{Lock, LockManager, MultiKey};

use super::Broken;
use crate::Layout;
use crate::dice::Dice;
use crate::history::{Kind, Want};

/// Keys that are only used as mutexes.
pub(super) const MUTEXES: [&str; 2] = ["chaos:m0", "chaos:m1"];
/// Key of a fair lock.
const FAIR: &str = "chaos:f0";
/// Key of a read-write lock.
const SHARED: &str = "chaos:rw0";
/// Keys that are locked together; in a cluster they have the same slot.
pub(super) const TOGETHER: [&str; 2] = ["chaos:{t}:a", "chaos:{t}:b"];

/// Keys that always have a patient waiter.
pub(super) const WANTED: [&str; 4] = [MUTEXES[0], MUTEXES[1], FAIR, SHARED];

/// Returns all keys with their names in the store.
pub(super) fn stored_keys() -> impl Iterator<Item = (&'static str, String)> {
    WANTED.into_iter().chain(TOGETHER).map(|key| (key, stored(key)))
}

/// Returns the name of a key in the store.
pub(super) fn stored(key: &str) -> String {
    format!("lock:{key}")
}

/// One request.
#[derive(Clone, Debug)]
pub(super) struct Wish {
    pub(super) parts: Vec<(&'static str, Kind)>,
    pub(super) want: Want,
    pub(super) wait: Duration,
    pub(super) lease: Option<Duration>,
}

impl Wish {
    /// Returns a random request for a kind of lock that the layout has.
    pub(super) fn any(dice: &mut Dice, patience: Duration, layout: Layout) -> Self {
        let ms = Duration::from_millis;
        let (mut parts, patient) = match dice.below(20) {
            n @ 0..=7 => (vec![(MUTEXES[usize::from(n > 3)], Kind::Mutex)], true),
            8..=11 => (vec![(FAIR, Kind::Fair)], true),
            12..=14 => (vec![(SHARED, Kind::Read)], true),
            15..=16 => (vec![(SHARED, Kind::Write)], true),
            // A request for several keys has no right to get them all.
            _ => (vec![(TOGETHER[0], Kind::Mutex), (TOGETHER[1], Kind::Fair)], false),
        };
        if layout == Layout::Plain {
            parts.iter_mut().for_each(|(_, kind)| *kind = Kind::Mutex);
        }
        let (want, wait) = match dice.below(10) {
            0 => (Want::Try, Duration::ZERO),
            1 => (Want::Short, dice.between(ms(1), ms(300))),
            2 => (Want::Fickle, patience),
            _ if patient => (Want::Patient, patience),
            _ => (Want::Short, dice.between(ms(50), ms(500))),
        };
        let lease = dice.once_in(10).then_some(ms(500));
        Self { parts, want, wait, lease }
    }

    /// Returns a patient request for one key.
    pub(super) fn patient(key: &'static str, kind: Kind, patience: Duration) -> Self {
        Self { parts: vec![(key, kind)], want: Want::Patient, wait: patience, lease: None }
    }

    /// Whether the request is for the key whose waiters do not hear that it is free.
    pub(super) fn is_deaf(&self, broken: Broken) -> bool {
        broken == Broken::DeafWaiter && self.parts[0].0 == MUTEXES[1]
    }

    /// Returns the key, if it is the only one and its holder excludes all others.
    pub(super) fn sole(&self) -> Option<&'static str> {
        match self.parts[..] {
            [(key, kind)] if !kind.is_shared() => Some(key),
            _ => None,
        }
    }

    pub(super) fn request(&self, locks: &LockManager, shadow: &str) -> Lock {
        let named = |key: &str| format!("{key}{shadow}");
        let request = match self.parts[..] {
            [(key, Kind::Mutex)] => locks.mutex(named(key)),
            [(key, Kind::Fair)] => locks.fair(named(key)),
            [(key, Kind::Read)] => locks.read(named(key)),
            [(key, Kind::Write)] => locks.write(named(key)),
            _ => locks.multi(self.parts.iter().map(|(key, kind)| match kind {
                Kind::Mutex => MultiKey::mutex(named(key)),
                Kind::Fair => MultiKey::fair(named(key)),
                Kind::Read => MultiKey::read(named(key)),
                Kind::Write => MultiKey::write(named(key)),
            })),
        };
        let request = request.wait(self.wait);
        match self.lease {
            Some(lease) => request.lease(lease),
            None => request,
        }
    }
}
