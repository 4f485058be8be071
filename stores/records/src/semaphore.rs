//! [`Semaphore`]: the permits that are left and held, and the steps on them.

use std::collections::BTreeMap;

use lock_core::store::{
    PermitCounts, PermitId, Permits, PermitsBusy, PermitsRequest, ServerTime, StoreError, StoreErrorKind,
};

/// The data of a semaphore. It stays once it was given permits.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Semaphore {
    /// How many permits are left; `None` if it was never given any.
    pub(crate) left: Option<i64>,
    /// The held permits, and when their leases end.
    pub(crate) held: BTreeMap<PermitId, ServerTime>,
}

impl Semaphore {
    /// Gives expired permits back; returns whether there were any.
    pub(crate) fn reclaim(&mut self, now: ServerTime) -> bool {
        let before = self.held.len();
        self.held.retain(|_, expires| *expires > now);
        self.give_back(before - self.held.len())
    }

    fn give_back(&mut self, permits: usize) -> bool {
        self.left = self.left.map(|left| left.saturating_add_unsigned(permits as u64));
        permits > 0
    }

    /// Whether a permit is left.
    pub(crate) fn has_some(&self) -> bool {
        self.left.is_some_and(|left| left > 0)
    }

    pub(crate) fn counts(&self) -> PermitCounts {
        PermitCounts { available: self.left.unwrap_or(0), acquired: self.held.len() as u64 }
    }

    /// Takes every permit of the request or none.
    pub(crate) fn acquire(&mut self, request: &PermitsRequest, now: ServerTime) -> Result<(), PermitsBusy> {
        let left = self.left.unwrap_or(0);
        let fresh = request.ids.iter().filter(|id| !self.held.contains_key(id)).count();
        let after = left.saturating_sub_unsigned(fresh as u64);
        if self.left.is_none() || (fresh > 0 && after < 0) {
            let remaining = self.held.values().min().map(|expires| expires.since(now));
            return Err(PermitsBusy { available: left, remaining, moment: now.into() });
        }
        self.left = Some(after);
        let expires = now + request.lease;
        for id in &request.ids {
            let old = self.held.entry(*id).or_insert(expires);
            *old = expires.max(*old);
        }
        Ok(())
    }

    /// Releases the permits; returns for each whether it was held.
    pub(crate) fn release(&mut self, ids: &[PermitId]) -> Vec<bool> {
        let held: Vec<bool> = ids.iter().map(|id| self.held.remove(id).is_some()).collect();
        self.give_back(held.iter().filter(|held| **held).count());
        held
    }

    /// Lengthens the leases of the permits; returns for each whether it is held.
    pub(crate) fn renew(&mut self, ids: &[PermitId], expires: ServerTime) -> Vec<bool> {
        let renewed = ids.iter().map(|id| match self.held.get_mut(id) {
            Some(old) => {
                *old = expires.max(*old);
                true
            }
            None => false,
        });
        renewed.collect()
    }

    /// Changes the number of permits; returns by how many, or `None` if it has some already.
    pub(crate) fn change(&mut self, permits: Permits, name: &str) -> Result<Option<i64>, StoreError> {
        let more = match permits {
            Permits::TrySet(_) if self.left.is_some() => return Ok(None),
            Permits::TrySet(number) => i64::from(number),
            Permits::Set(number) => i64::from(number) - self.counts().total(),
            Permits::Add(0) => return Ok(Some(0)),
            Permits::Add(number) => i64::from(number),
        };
        let left = self.left.unwrap_or(0).saturating_add(more);
        // The same limit as on a Redis server, where Java counts with an `int`.
        if i32::try_from(left).is_err() {
            let what =
                format!("the semaphore {name:?} would have {left} permits left; use {} at most", i32::MAX);
            return Err(StoreError::new(StoreErrorKind::Refused, what));
        }
        self.left = Some(left);
        Ok(Some(more))
    }

    /// Returns how many permits are held.
    pub(crate) fn owners(&self) -> usize {
        self.held.len()
    }

    pub(crate) fn ends_of_all(&self, visit: &mut dyn FnMut(ServerTime)) {
        self.held.values().for_each(|expires| visit(*expires));
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.left.is_none()
    }

    /// Expired permits come back at the next step, which tells their waiters.
    pub(crate) fn due(&self) -> Option<ServerTime> {
        None
    }

    pub(crate) fn drop_expired(&mut self, _: ServerTime) {}
}
