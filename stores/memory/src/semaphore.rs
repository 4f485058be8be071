//! [`MemorySemaphores`]: semaphores inside one process, with the semantics of the Redis ones.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use lock_core::LockKey;
use lock_core::internal::clock::Tick;
use lock_core::internal::sync::{Mutex, lock};
use lock_core::store::kit::Watches;
use lock_core::store::{
    BoxFuture, PermitCounts, PermitId, Permits, PermitsAcquired, PermitsBusy, PermitsChange, PermitsHold,
    PermitsRelease, PermitsRenew, PermitsRequest, SemaphoreStore, ServerTime, StoreError, StoreErrorKind,
    Watch, Withdrawn,
};

use super::handle::Handle;
use super::step::in_time;

/// All semaphores of a store, by prefix and key.
#[derive(Default)]
pub(super) struct Semaphores {
    table: Mutex<HashMap<String, Semaphore>>,
    watches: Watches,
}

/// A semaphore that has been given permits. It stays, as on a server.
#[derive(Default)]
struct Semaphore {
    left: i64,
    /// The held permits, and when their leases end.
    held: BTreeMap<PermitId, Tick>,
}

impl Semaphore {
    /// Gives expired permits back; returns whether there were any.
    fn reclaim(&mut self, now: Tick) -> bool {
        let before = self.held.len();
        self.held.retain(|_, expires| *expires > now);
        self.give_back(before - self.held.len())
    }

    fn give_back(&mut self, permits: usize) -> bool {
        self.left = self.left.saturating_add_unsigned(permits as u64);
        permits > 0
    }

    /// Releases the permits; returns for each whether it was held.
    fn release(&mut self, ids: &[PermitId]) -> Vec<bool> {
        let held: Vec<bool> = ids.iter().map(|id| self.held.remove(id).is_some()).collect();
        self.give_back(held.iter().filter(|held| **held).count());
        held
    }

    fn counts(&self) -> PermitCounts {
        PermitCounts { available: self.left, acquired: self.held.len() as u64 }
    }
}

/// The semaphores of a memory store.
pub(super) struct MemorySemaphores(Handle);

impl MemorySemaphores {
    pub(super) fn new(handle: Handle) -> Self {
        Self(handle)
    }
}

impl fmt::Debug for MemorySemaphores {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemorySemaphores").field("prefix", &self.0.prefix).finish_non_exhaustive()
    }
}

impl Handle {
    pub(super) fn full_name(&self, key: &LockKey) -> String {
        format!("{}{key}", self.prefix)
    }

    /// Makes one atomic step on the semaphore `name`, after giving expired permits back. The flag
    /// says whether permits have come back, by expiry or by `work`; if so and some are left,
    /// waiters are notified.
    fn semaphore_step<T>(
        &self,
        name: &str,
        work: impl FnOnce(&mut HashMap<String, Semaphore>, Tick, &mut bool) -> T,
    ) -> T {
        let semaphores = &self.shared.semaphores;
        let mut table = lock(&semaphores.table);
        let now = self.shared.clock.now();
        let mut freed = table.get_mut(name).is_some_and(|semaphore| semaphore.reclaim(now));
        let result = work(&mut table, now, &mut freed);
        let tell = freed && table.get(name).is_some_and(|semaphore| semaphore.left > 0);
        drop(table);
        if tell {
            semaphores.watches.ring(name);
        }
        result
    }

    fn acquire_permits(&self, request: &PermitsRequest) -> Result<PermitsAcquired, StoreError> {
        let latest = request.stamp(self.server_time());
        let name = self.full_name(&request.key);
        self.semaphore_step(&name, |table, now, _| {
            let server_time = self.shared.server_time(now);
            in_time(server_time, latest)?;
            let busy = |available, remaining| {
                Ok(PermitsAcquired::Busy(PermitsBusy { available, remaining, moment: server_time.into() }))
            };
            let Some(semaphore) = table.get_mut(&name) else { return busy(0, None) };
            let fresh = request.ids.iter().filter(|id| !semaphore.held.contains_key(id)).count();
            let left = semaphore.left.saturating_sub_unsigned(fresh as u64);
            if fresh > 0 && left < 0 {
                let next = semaphore.held.values().min().map(|expires| expires.since(now));
                return busy(semaphore.left, next);
            }
            semaphore.left = left;
            let expires = now + request.lease;
            for id in &request.ids {
                let old = semaphore.held.entry(*id).or_insert(expires);
                *old = expires.max(*old);
            }
            Ok(PermitsAcquired::Granted(server_time.into()))
        })
    }

    fn release_permits(&self, key: &LockKey, ids: &[PermitId]) -> (Vec<bool>, ServerTime) {
        let name = self.full_name(key);
        self.semaphore_step(&name, |table, now, freed| {
            let held = table.get_mut(&name).map_or_else(|| vec![false; ids.len()], |it| it.release(ids));
            *freed |= held.contains(&true);
            (held, self.shared.server_time(now))
        })
    }

    fn renew_permits(&self, hold: &PermitsHold) -> Vec<bool> {
        let name = self.full_name(&hold.key);
        self.semaphore_step(&name, |table, now, _| {
            let Some(semaphore) = table.get_mut(&name) else { return vec![false; hold.ids.len()] };
            let expires = now + hold.lease;
            let mut kept = Vec::with_capacity(hold.ids.len());
            for id in &hold.ids {
                let old = semaphore.held.get_mut(id);
                kept.push(old.is_some());
                if let Some(old) = old {
                    *old = expires.max(*old);
                }
            }
            kept
        })
    }

    fn change_permits(&self, request: &PermitsChange) -> Result<bool, StoreError> {
        let name = self.full_name(&request.key);
        self.semaphore_step(&name, |table, _, freed| {
            let old = table.get_mut(&name);
            let exists = old.is_some();
            let mut fresh = Semaphore::default();
            let semaphore = old.unwrap_or(&mut fresh);
            let more = match request.permits {
                Permits::TrySet(_) if exists => None,
                Permits::TrySet(number) => Some(i64::from(number)),
                Permits::Set(number) => Some(i64::from(number) - semaphore.counts().total()),
                Permits::Add(number) => Some(i64::from(number)),
            };
            if let Some(more) = more {
                let left = semaphore.left.saturating_add(more);
                // The same limit as on a server, where Java counts with an `int`.
                if i32::try_from(left).is_err() {
                    // Nobody is notified: waiters know when a lease ends.
                    *freed = false;
                    let what = format!(
                        "the semaphore {name:?} would have {left} permits left; use {} at most",
                        i32::MAX
                    );
                    return Err(StoreError::new(StoreErrorKind::Refused, what));
                }
                semaphore.left = left;
                *freed |= more > 0;
            }
            let counts_only = request.permits == Permits::Add(0);
            if !exists && !counts_only {
                table.insert(name.clone(), fresh);
            }
            Ok(more.is_some())
        })
    }

    fn count_permits(&self, key: &LockKey) -> PermitCounts {
        let name = self.full_name(key);
        self.semaphore_step(&name, |table, _, _| {
            table.get(&name).map_or_else(PermitCounts::default, Semaphore::counts)
        })
    }
}

impl SemaphoreStore for MemorySemaphores {
    fn acquire(&self, request: Arc<PermitsRequest>) -> BoxFuture<Result<PermitsAcquired, StoreError>> {
        self.0.call(move |handle| handle.acquire_permits(&request))
    }

    fn release(&self, request: PermitsRelease) -> BoxFuture<Result<Vec<bool>, StoreError>> {
        self.0.call(move |handle| Ok(handle.release_permits(&request.key, &request.ids).0))
    }

    fn renew(&self, request: PermitsRenew) -> BoxFuture<Result<Vec<Option<Vec<bool>>>, StoreError>> {
        self.0.call(move |handle| {
            Ok(request.holds.iter().map(|hold| Some(handle.renew_permits(hold))).collect())
        })
    }

    fn withdraw(&self, request: Arc<PermitsRequest>) -> BoxFuture<Result<Withdrawn, StoreError>> {
        self.0.call(move |handle| {
            let Some(latest) = request.seal() else { return Ok(Withdrawn::Settled) };
            let (_, now) = handle.release_permits(&request.key, &request.ids);
            Ok(Withdrawn::by(latest, now))
        })
    }

    fn watch(&self, key: LockKey, _: Duration) -> BoxFuture<Result<Watch, StoreError>> {
        self.0.call(move |handle| Ok(handle.shared.semaphores.watches.watch(&handle.full_name(&key))))
    }

    fn change(&self, request: PermitsChange) -> BoxFuture<Result<bool, StoreError>> {
        self.0.call(move |handle| handle.change_permits(&request))
    }

    fn counts(&self, key: LockKey, _: Duration) -> BoxFuture<Result<PermitCounts, StoreError>> {
        self.0.call(move |handle| Ok(handle.count_permits(&key)))
    }
}

#[cfg(test)]
mod tests {
    use crate::MemoryStore;

    use super::*;

    /// Watching or reading a semaphore that was never given permits leaves nothing behind.
    #[tokio::test(start_paused = true)]
    async fn what_only_looks_leaves_nothing() {
        let store = MemoryStore::new("");
        let semaphores = MemorySemaphores::new(store.handle.clone());
        let key = LockKey::new("s").unwrap();
        let watch = semaphores.watch(key.clone(), Duration::ZERO).await.unwrap();
        semaphores.counts(key.clone(), Duration::ZERO).await.unwrap();
        let request =
            PermitsRequest::new(key, vec![PermitId::from_bytes([7; 16])], Duration::MAX, Duration::MAX);
        semaphores.acquire(Arc::new(request)).await.unwrap();
        let inside = &store.handle.shared.semaphores;
        assert_eq!((lock(&inside.table).len(), inside.watches.len()), (0, 1));
        drop(watch);
        assert_eq!(inside.watches.len(), 0);
    }
}
