//! Which lock a request takes, and whether it may wait for it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use http::Method;

use super::key::{Keys, Rejection, RequestKeys};
use super::layer::{MissingKey, Settings, Wait};
use crate::engine::acquire::Acquire;
use crate::kinds::{Lock, MultiKey};
use crate::manager::LockManager;

/// What the layer does with a request, once its keys are known.
pub(super) enum Admitted {
    /// It goes on without a lock.
    Pass,
    /// It has to wait for its lock.
    Lock(Entry),
}

/// Why a request does not even ask for its lock.
#[derive(Debug)]
pub(super) enum Refused {
    /// As many wait already as may.
    Full,
    NoKey,
    BadKey(Rejection),
}

/// A request that asks for its lock.
pub(super) struct Entry {
    pub(super) acquire: Acquire,
    /// Given back when the request has its lock, or goes.
    pub(super) seat: Option<Seat>,
}

impl Settings {
    pub(super) fn skips(&self, method: &Method) -> bool {
        self.skipped.contains(method)
    }

    /// Decides on a request by what was extracted from it.
    pub(super) fn admit(
        &self,
        locks: &LockManager,
        extracted: Result<Option<RequestKeys>, Rejection>,
    ) -> Result<Admitted, Refused> {
        let keys = match extracted {
            Ok(keys) => keys.map(RequestKeys::into_inner),
            Err(rejection) => return Err(Refused::BadKey(rejection)),
        };
        let keys = match (keys, &self.missing_key) {
            (Some(keys), _) => keys,
            (None, MissingKey::Fixed(key)) => Keys::One(key.clone()),
            (None, MissingKey::Skip) => return Ok(Admitted::Pass),
            (None, MissingKey::Reject) => return Err(Refused::NoKey),
        };
        let seat = Seat::take(&self.waiting, self.max_waiters)?;
        Ok(Admitted::Lock(Entry { acquire: self.lock(locks, keys).acquire(), seat }))
    }

    fn lock(&self, locks: &LockManager, keys: Keys) -> Lock {
        let mut lock = match keys {
            Keys::One(key) => locks.lock(self.kind, key),
            Keys::Several(keys) => locks.multi(keys.into_iter().map(|key| MultiKey::new(key, self.kind))),
        };
        lock = match self.wait {
            Wait::Default => lock,
            Wait::No => lock.no_wait(),
            Wait::AtMost(limit) => lock.wait(limit),
            Wait::Forever => lock.wait_forever(),
        };
        if let Some(lease) = self.lease {
            lock = lock.lease(lease);
        }
        if let Some(limit) = self.max_hold() {
            lock = lock.max_hold(limit);
        }
        if let Some(cap) = self.max_waiters_per_key {
            lock = lock.max_waiters(cap);
        }
        if let Some(retention) = self.token_retention {
            lock = lock.token_retention(retention);
        }
        if let Some(replication) = self.replication {
            lock = lock.replication(replication);
        }
        lock.min_hold(self.min_hold).name(self.label.clone())
    }
}

/// One of the places for requests that wait.
#[derive(Debug)]
pub(super) struct Seat(Arc<AtomicUsize>);

impl Seat {
    /// No seat is needed when there is no cap.
    fn take(waiting: &Arc<AtomicUsize>, cap: usize) -> Result<Option<Self>, Refused> {
        if cap == usize::MAX {
            return Ok(None);
        }
        let seat = Self(Arc::clone(waiting));
        if waiting.fetch_add(1, Ordering::Relaxed) < cap { Ok(Some(seat)) } else { Err(Refused::Full) }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seat_that_is_given_back_can_be_taken_again() {
        let waiting = Arc::default();
        let first = Seat::take(&waiting, 1).ok().unwrap();
        assert!(Seat::take(&waiting, 1).is_err());
        drop(first);
        assert!(Seat::take(&waiting, 1).is_ok());
        assert_eq!(waiting.load(Ordering::Relaxed), 0);
    }
}
