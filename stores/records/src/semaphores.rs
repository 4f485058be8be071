//! [`Semaphores`]: the contract of semaphores on any [`RecordStore`].

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use lock_core::LockKey;
use lock_core::store::{
    BoxFuture, Few, PermitCounts, PermitId, PermitsAcquired, PermitsBusy, PermitsChange, PermitsRelease,
    PermitsRenew, PermitsRequest, SemaphoreStore, ServerTime, StoreError, Watch, Withdrawn,
};

use crate::listeners::{Channel, Event, What};
use crate::locks::Records;
use crate::record::Class;
use crate::semaphore::Semaphore;
use crate::step::in_time;
use crate::store::{Access, Change, Changed, RecordStore, Work};

/// The semaphores of a database.
pub(crate) struct Semaphores<R>(pub(crate) Records<R>);

impl<R> Clone for Semaphores<R> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<R> fmt::Debug for Semaphores<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Semaphores").field(&self.0).finish()
    }
}

impl<R: RecordStore> Semaphores<R> {
    /// Makes one atomic step on semaphores after giving expired
    /// permits back. `step` says whether permits have come back; if so and some are left, waiters
    /// are notified.
    async fn step<T: Send + 'static>(
        &self,
        change: Change,
        mut step: impl FnMut(&mut Work<'_>) -> (T, Vec<bool>) + Send + 'static,
    ) -> Result<Changed<T>, StoreError> {
        let step = move |work: &mut Work<'_>| {
            let now = work.now;
            let expired: Vec<bool> =
                work.records.iter_mut().map(|record| record.semaphore().reclaim(now)).collect();
            let (answer, freed) = step(work);
            for (index, record) in work.records.iter_mut().enumerate() {
                let was_freed = expired.get(index) == Some(&true) || freed.get(index) == Some(&true);
                if was_freed && record.semaphore().has_some() {
                    work.events.push(Event { index, what: What::Changed, to: None });
                }
            }
            answer
        };
        self.0.store.change(change, step).await
    }

    /// Begins a step on one semaphore.
    fn on(&self, key: &LockKey, access: Access, timeout: Duration) -> Change {
        self.0.change(Few::one(self.0.name(Class::Semaphore, key)), access, timeout)
    }

    /// Makes one atomic step on one semaphore.
    async fn one<T: Send + 'static>(
        &self,
        change: Change,
        mut step: impl FnMut(&mut Semaphore, ServerTime) -> (T, bool) + Send + 'static,
    ) -> Result<Changed<T>, StoreError> {
        let step = move |work: &mut Work<'_>| {
            let now = work.now;
            let [record] = work.records else { unreachable!("one name, one record") };
            let (answer, freed) = step(record.semaphore(), now);
            (answer, vec![freed])
        };
        self.step(change, step).await
    }
}

impl<R: RecordStore> SemaphoreStore for Semaphores<R> {
    fn acquire(&self, request: Arc<PermitsRequest>) -> BoxFuture<Result<PermitsAcquired, StoreError>> {
        let all = self.clone();
        Box::pin(async move {
            let latest = request.stamp(all.0.store.time(request.timeout).await?);
            let change = all.on(&request.key, Access::Change, request.timeout);
            let change = Change { latest: Some(latest), ..change };
            let step = move |semaphore: &mut Semaphore, now| {
                (in_time(now, latest).map(|()| semaphore.acquire(&request, now)), false)
            };
            let Changed { answer, now, .. } = all.one(change, step).await?;
            Ok(match answer? {
                Ok(()) => PermitsAcquired::Granted(now.into()),
                Err(busy) => PermitsAcquired::Busy(PermitsBusy { moment: now.into(), ..busy }),
            })
        })
    }

    fn release(&self, request: PermitsRelease) -> BoxFuture<Result<Vec<bool>, StoreError>> {
        let all = self.clone();
        Box::pin(async move {
            let PermitsRelease { key, ids, timeout } = request;
            Ok(all.give_back(all.on(&key, Access::Change, timeout), ids).await?.answer)
        })
    }

    fn renew(&self, request: PermitsRenew) -> BoxFuture<Result<Vec<Option<Vec<bool>>>, StoreError>> {
        let all = self.clone();
        Box::pin(async move {
            let PermitsRenew { holds, timeout } = request;
            let (names, indexes) = all.0.distinct(Class::Semaphore, holds.iter().map(|hold| &hold.key));
            let step = move |work: &mut Work<'_>| {
                let renewed = indexes.iter().zip(&holds).map(|(index, hold)| {
                    let record = work.records.get_mut(*index).filter(|_| !work.skipped.contains(index))?;
                    Some(record.semaphore().renew(&hold.ids, work.now + hold.lease))
                });
                (renewed.collect(), Vec::new())
            };
            Ok(all.step(all.0.change(names, Access::Each, timeout), step).await?.answer)
        })
    }

    fn withdraw(&self, request: Arc<PermitsRequest>) -> BoxFuture<Result<Withdrawn, StoreError>> {
        let all = self.clone();
        Box::pin(async move {
            let Some(latest) = request.seal() else { return Ok(Withdrawn::Settled) };
            let change = all.on(&request.key, Access::Settle, request.timeout);
            let given = all.give_back(change, request.ids.clone()).await?;
            Ok(Withdrawn::by(latest, given.now))
        })
    }

    fn watch(&self, key: LockKey, timeout: Duration) -> BoxFuture<Result<Watch, StoreError>> {
        let records = self.0.clone();
        Box::pin(async move {
            let name = records.name(Class::Semaphore, &key);
            records.listen(vec![(name, Channel::Changes)], timeout).await
        })
    }

    fn change(&self, request: PermitsChange) -> BoxFuture<Result<bool, StoreError>> {
        let all = self.clone();
        Box::pin(async move {
            let PermitsChange { key, permits, timeout } = request;
            let name = all.0.name(Class::Semaphore, &key).text;
            let step = move |semaphore: &mut Semaphore, _| {
                let more = semaphore.change(permits, &name);
                let freed = matches!(more, Ok(Some(more)) if more > 0);
                (more, freed)
            };
            Ok(all.one(all.on(&key, Access::Change, timeout), step).await?.answer?.is_some())
        })
    }

    fn counts(&self, key: LockKey, timeout: Duration) -> BoxFuture<Result<PermitCounts, StoreError>> {
        let all = self.clone();
        Box::pin(async move {
            let step = |semaphore: &mut Semaphore, _| (semaphore.counts(), false);
            Ok(all.one(all.on(&key, Access::Change, timeout), step).await?.answer)
        })
    }
}

impl<R: RecordStore> Semaphores<R> {
    async fn give_back(&self, change: Change, ids: Vec<PermitId>) -> Result<Changed<Vec<bool>>, StoreError> {
        let step = move |semaphore: &mut Semaphore, _| {
            let held = semaphore.release(&ids);
            let freed = held.contains(&true);
            (held, freed)
        };
        self.one(change, step).await
    }
}
