//! [`Latches`]: the contract of latches on any [`RecordStore`].

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use lock_core::LockKey;
use lock_core::store::{
    BoxFuture, CountDownRequest, Few, LatchStore, ServerTime, StoreError, StoreErrorKind, Watch,
};

use crate::latch::Latch;
use crate::listeners::{Channel, Event, What};
use crate::locks::Records;
use crate::record::{Class, Name};
use crate::step::in_time;
use crate::store::{Access, Change, RecordStore, Work};

/// The latches of a database.
pub(crate) struct Latches<R>(pub(crate) Records<R>);

impl<R> fmt::Debug for Latches<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Latches").field(&self.0).finish()
    }
}

impl<R: RecordStore> Latches<R> {
    /// Returns the name of a latch. It has no hash tag, so that a program can move to Redis.
    fn name(records: &Records<R>, key: &LockKey) -> Result<Name, StoreError> {
        let name = records.name(Class::Latch, key);
        if !name.text.contains('{') {
            return Ok(name);
        }
        let what = format!(
            "the latch {:?} can't have a hash tag: on a Redis Cluster, its Redisson channel would be in another \
             slot. Use a name and a prefix without braces",
            name.text
        );
        Err(StoreError::new(StoreErrorKind::Unsupported, what))
    }

    /// Makes one atomic step; `step` says whether waiters are to be notified.
    fn step<T: Send + 'static>(
        &self,
        key: &LockKey,
        access: Access,
        timeout: Duration,
        latest: Option<ServerTime>,
        mut step: impl FnMut(&mut Latch, ServerTime) -> (T, bool) + Send + 'static,
    ) -> BoxFuture<Result<T, StoreError>> {
        let records = self.0.clone();
        let key = key.clone();
        Box::pin(async move {
            let change = records.change(Few::one(Self::name(&records, &key)?), access, timeout);
            let change = Change { latest, ..change };
            let step = move |work: &mut Work<'_>| {
                let now = work.now;
                let [record] = &mut *work.records else { unreachable!("one name, one record") };
                let (answer, tell) = step(record.latch(), now);
                if tell {
                    work.events.push(Event { index: 0, what: What::Changed, to: None });
                }
                answer
            };
            Ok(records.store.change(change, step).await?.answer)
        })
    }
}

impl<R: RecordStore> LatchStore for Latches<R> {
    fn try_set_count(
        &self,
        key: LockKey,
        count: u32,
        timeout: Duration,
    ) -> BoxFuture<Result<bool, StoreError>> {
        self.step(&key, Access::Change, timeout, None, move |latch, _| {
            let was_set = latch.try_set(count);
            (was_set, was_set)
        })
    }

    fn count_down(&self, request: Arc<CountDownRequest>) -> BoxFuture<Result<u64, StoreError>> {
        let records = self.0.clone();
        Box::pin(async move {
            let latest = request.stamp(records.store.time(request.timeout).await?);
            let (key, timeout) = (request.key.clone(), request.timeout);
            let step = move |latch: &mut Latch, now| match in_time(now, latest) {
                Ok(()) => {
                    let opened = latch.count_down(&request, now);
                    (Ok(latch.count), opened)
                }
                Err(late) => (Err(late), false),
            };
            Self(records).step(&key, Access::Change, timeout, Some(latest), step).await?
        })
    }

    fn count(&self, key: LockKey, timeout: Duration) -> BoxFuture<Result<u64, StoreError>> {
        self.step(&key, Access::Look, timeout, None, |latch, _| (latch.count, false))
    }

    fn delete(&self, key: LockKey, timeout: Duration) -> BoxFuture<Result<bool, StoreError>> {
        self.step(&key, Access::Change, timeout, None, |latch, _| {
            let was_there = latch.delete();
            (was_there, was_there)
        })
    }

    fn watch(&self, key: LockKey, timeout: Duration) -> BoxFuture<Result<Watch, StoreError>> {
        let records = self.0.clone();
        Box::pin(async move {
            let name = Self::name(&records, &key)?;
            records.listen(vec![(name, Channel::Changes)], timeout).await
        })
    }
}
