//! [`MultiKey`]: one key of a lock of several keys.

use lock_core::store::Kind;
use lock_core::{IntoLockKey, InvalidKey, LockKey};
use lock_engine::spec::Spec;

use crate::error::LockError;

/// Maximum number of keys of one lock: a server handles them all in one uninterrupted step.
pub(crate) const MOST_KEYS: usize = 1000;

/// One key of a lock of several keys, see [`LockManager::multi`](crate::LockManager::multi). A bare
/// key is a mutex.
#[derive(Clone, Debug)]
pub struct MultiKey {
    key: Result<LockKey, InvalidKey>,
    kind: Kind,
}

impl MultiKey {
    pub(crate) fn new(key: impl IntoLockKey, kind: Kind) -> Self {
        Self { key: key.into_lock_key(), kind }
    }

    /// Replaces the key by the one that `rename` makes of it.
    pub(crate) fn rename(self, rename: impl FnOnce(LockKey) -> Result<LockKey, InvalidKey>) -> Self {
        Self { key: self.key.and_then(rename), kind: self.kind }
    }

    /// Returns a key to be locked as by [`LockManager::mutex`](crate::LockManager::mutex).
    #[must_use]
    pub fn mutex(key: impl IntoLockKey) -> Self {
        Self::new(key, Kind::Mutex)
    }

    /// Returns a key to be locked as by [`LockManager::fair`](crate::LockManager::fair).
    #[must_use]
    pub fn fair(key: impl IntoLockKey) -> Self {
        Self::new(key, Kind::Fair)
    }

    /// Returns a key to be locked as by [`LockManager::read`](crate::LockManager::read).
    #[must_use]
    pub fn read(key: impl IntoLockKey) -> Self {
        Self::new(key, Kind::Read)
    }

    /// Returns a key to be locked as by [`LockManager::write`](crate::LockManager::write).
    #[must_use]
    pub fn write(key: impl IntoLockKey) -> Self {
        Self::new(key, Kind::Write)
    }
}

impl<K: IntoLockKey> From<K> for MultiKey {
    fn from(key: K) -> Self {
        Self::mutex(key)
    }
}

impl From<&Self> for MultiKey {
    fn from(key: &Self) -> Self {
        key.clone()
    }
}

/// Sorts the keys, and drops duplicates. One key in two kinds is an error.
pub(crate) fn sorted(keys: impl IntoIterator<Item = MultiKey>) -> Result<(LockKey, Spec), LockError> {
    let mut sorted = Vec::new();
    for MultiKey { key, kind } in keys {
        sorted.push((key?, kind));
    }
    sorted.sort_by(|(a, _), (b, _)| a.as_str().cmp(b.as_str()));
    sorted.dedup();
    if sorted.len() > MOST_KEYS {
        let reason = format!("{} keys were given for one lock; give at most {MOST_KEYS}", sorted.len());
        return Err(LockError::misconfigured(reason));
    }
    let twice = sorted.windows(2).find_map(|pair| match pair {
        [(a, _), (b, _)] if a == b => Some(a),
        _ => None,
    });
    match twice {
        Some(key) => Err(LockError::misconfigured(format!(
            "lock {key} is given twice, in two kinds; give it once, in the stronger kind"
        ))),
        None => {
            let mut keys = sorted.into_iter();
            let first = keys.next();
            let (key, kind) = first
                .ok_or_else(|| LockError::misconfigured("no key was given for a lock; give at least one"))?;
            Ok((key, Spec { kind, more: keys.collect(), permits: 0 }))
        }
    }
}
