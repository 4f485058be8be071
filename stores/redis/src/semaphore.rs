//! [`RedisSemaphores`]: semaphores in the format of Redisson's `RPermitExpirableSemaphore`; see
//! `scripts/semaphore.lua`.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use lock_core::LockKey;
use lock_core::store::{
    BoxFuture, MAX_PERMITS, PermitCounts, PermitId, Permits, PermitsAcquired, PermitsBusy, PermitsChange,
    PermitsHold, PermitsRelease, PermitsRenew, PermitsRequest, SemaphoreStore, ServerTime, StoreError,
    StoreErrorKind, Watch, Withdrawn,
};
use redis::Value;

use super::connection::{At, Ready};
use super::each::{Each, known};
use super::fault::Fault;
use super::names::Names;
use super::node::Node;
use super::reply;
use super::script::{self, Invocation};
use super::steps::{about_key, millis};
use super::topology::{Topology, step};

/// The names of a semaphore's keys and channel.
pub(super) struct SemaphoreNames {
    pub(super) permits: String,
    timeouts: String,
    pub(super) channel: String,
}

impl SemaphoreNames {
    pub(super) fn new(prefix: &str, key: &LockKey) -> Result<Self, StoreError> {
        let permits = Names::new(prefix, key)?.lock().to_string();
        let tag = if permits.contains('{') { permits.clone() } else { format!("{{{permits}}}") };
        Ok(Self { timeouts: format!("{tag}:timeout"), channel: format!("redisson_sc:{tag}"), permits })
    }
}

/// Answer of a script about one semaphore.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// The code, the server's time, and the script's own numbers.
    Done(i64, ServerTime, Vec<i64>),
    /// The key is not a semaphore.
    Foreign(&'static str),
}

pub(super) fn read(value: &Value) -> Option<Answer> {
    let values = reply::array(value)?;
    let (code, now) = (reply::int(values.first()?)?, reply::now(values.get(1)?)?);
    let rest = values.get(2..)?;
    if code == 3 {
        return match reply::text(rest.first()?)? {
            "number" => Some(Answer::Foreign("its value is not a number of permits")),
            "permit" => Some(Answer::Foreign("its list of held permits has other entries")),
            _ => None,
        };
    }
    Some(Answer::Done(code, now, rest.iter().map(reply::int).collect::<Option<_>>()?))
}

impl Node {
    fn semaphore(&self, key: &LockKey) -> Result<SemaphoreNames, StoreError> {
        SemaphoreNames::new(&self.options.prefix, key)
    }

    /// Returns the error for foreign data that is not a semaphore or a latch.
    pub(super) fn foreign_to(&self, kind: &str, key: &str, reason: &str) -> StoreError {
        let what = format!(
            "the key {key:?} is not a {kind}: {reason}. Its data is left unchanged; use another name or prefix"
        );
        self.address.error(StoreErrorKind::ForeignData, what)
    }

    /// Reads the answer of a script about one semaphore. `mean` interprets its code, the server's
    /// time and its own numbers, and returns `None` if they make no sense.
    fn read_semaphore<T>(
        &self,
        answer: Result<Value, Fault>,
        names: &SemaphoreNames,
        mean: impl FnOnce(i64, ServerTime, &[i64]) -> Option<T>,
    ) -> Result<T, Fault> {
        let value = answer.map_err(|fault| fault.map(|error| about_key(error, &names.permits)))?;
        let meant = match read(&value) {
            Some(Answer::Done(code, now, numbers)) => mean(code, now, &numbers),
            Some(Answer::Foreign(reason)) => {
                return Err(self.foreign_to("semaphore", &names.permits, reason).into());
            }
            None => None,
        };
        Ok(meant.ok_or_else(|| self.senseless(&value))?)
    }

    pub(super) async fn acquire_permits(
        &self,
        request: &PermitsRequest,
        at: At,
    ) -> Result<PermitsAcquired, Fault> {
        let names = self.semaphore(&request.key)?;
        let ask = |now| {
            let latest = request.stamp(now);
            let mut invocation = self.invocation(&script::SEMAPHORE_ACQUIRE, 2, 3 + request.ids.len());
            invocation.arg(&names.permits).arg(&names.timeouts);
            invocation.arg(latest.as_micros()).arg(millis(request.lease)).arg(&names.channel);
            ids(&mut invocation, &request.ids);
            invocation
        };
        let read = |ready: &Ready, answer: Result<Value, Fault>| {
            self.read_semaphore(answer, &names, |code, now, numbers| {
                self.server_clock.observe(now, ready.now);
                match (code, numbers) {
                    (1, []) => Some(Ok(PermitsAcquired::Granted(now.into()))),
                    (0, &[available, wait]) => {
                        let remaining =
                            u64::try_from(wait).ok().map(|wait| Duration::from_millis(wait.max(1)));
                        let busy = PermitsBusy { available, remaining, moment: now.into() };
                        Some(Ok(PermitsAcquired::Busy(busy)))
                    }
                    (2, []) => Some(Err(now)),
                    _ => None,
                }
            })
        };
        self.in_time(at, ask, read).await
    }

    pub(super) async fn release_permits(
        &self,
        key: &LockKey,
        permits: &[PermitId],
        at: At,
    ) -> Result<(ServerTime, Vec<bool>), Fault> {
        let names = self.semaphore(key)?;
        let ready = self.connector.ready(at).await?;
        let mut invocation = self.invocation(&script::SEMAPHORE_RELEASE, 2, 1 + permits.len());
        invocation.arg(&names.permits).arg(&names.timeouts).arg(&names.channel);
        ids(&mut invocation, permits);
        let answer = self.connector.run(&ready, &invocation).await;
        self.read_semaphore(answer, &names, |code, now, flags| {
            if code != 1 || flags.len() != permits.len() {
                return None;
            }
            self.server_clock.observe(now, ready.now);
            Some((now, flags.iter().map(|flag| *flag == 1).collect()))
        })
    }

    /// Renews the permits in as many calls as needed, each with about as many permits as one
    /// request may have: the server does nothing else meanwhile.
    pub(super) async fn renew_permits(
        &self,
        holds: &[PermitsHold],
        at: At,
    ) -> Result<Vec<Option<Vec<bool>>>, Fault> {
        Ok(known(self.each(holds, at, |holds, at| self.keep_together_permits(holds, at)).await?)?)
    }

    async fn keep_together_permits(&self, holds: &[PermitsHold], at: At) -> Each<Vec<bool>> {
        let mut ready = self.connector.ready(at).await?;
        let mut kept = Vec::with_capacity(holds.len());
        let mut rest = holds;
        while !rest.is_empty() {
            let mut permits = 0;
            let fits = rest.iter().take_while(|hold| {
                permits += hold.ids.len();
                permits <= MAX_PERMITS as usize
            });
            let (now, later) = rest.split_at(fits.count().max(1));
            kept.extend(self.renew_some_permits(&ready, now).await?);
            rest = later;
            ready = self.connector.later(&ready);
        }
        Ok(kept)
    }

    async fn renew_some_permits(&self, ready: &Ready, holds: &[PermitsHold]) -> Each<Vec<bool>> {
        let arguments = holds.iter().map(|hold| 3 + hold.ids.len()).sum();
        let mut invocation = self.invocation(&script::SEMAPHORE_RENEW, 2 * holds.len(), arguments);
        let names: Result<Vec<_>, _> = holds.iter().map(|hold| self.semaphore(&hold.key)).collect();
        let names = names?;
        for names in &names {
            invocation.arg(&names.permits).arg(&names.timeouts);
        }
        for (hold, names) in holds.iter().zip(&names) {
            invocation.arg(&names.channel).arg(millis(hold.lease)).arg(hold.ids.len());
            ids(&mut invocation, &hold.ids);
        }
        let value = self.connector.run(ready, &invocation).await?;
        self.read_each(ready, &value, reply::several(&value, holds.len()), |index, flags| {
            reply::flags(flags, holds.get(index)?.ids.len())
        })
    }

    pub(super) async fn change_permits(
        &self,
        key: &LockKey,
        permits: Permits,
        at: At,
    ) -> Result<(bool, PermitCounts), Fault> {
        let (how, number) = match permits {
            Permits::TrySet(number) => ("try", i64::from(number)),
            Permits::Set(number) => ("set", number.into()),
            Permits::Add(number) => ("add", number.into()),
        };
        let names = self.semaphore(key)?;
        let ready = self.connector.ready(at).await?;
        let mut invocation = self.invocation(&script::SEMAPHORE_CHANGE, 2, 3);
        invocation.arg(&names.permits).arg(&names.timeouts).arg(&names.channel).arg(how).arg(number);
        let answer = self.connector.run(&ready, &invocation).await;
        self.read_semaphore(answer, &names, |code, _, numbers| match (code, numbers) {
            (0 | 1, &[available, held]) => {
                Some(Ok((code == 1, PermitCounts { available, acquired: held.try_into().ok()? })))
            }
            (4, _) => {
                let left = numbers.first().copied().unwrap_or_default();
                let what = format!(
                    "the semaphore {:?} would have {left} permits left; Java counts them in an `int`, so the \
                     maximum is {}",
                    names.permits,
                    i32::MAX
                );
                Some(Err(self.address.error(StoreErrorKind::Refused, what).into()))
            }
            _ => None,
        })?
    }

    /// Watches one channel.
    pub(super) async fn watch_channel(&self, channel: String, timeout: Duration) -> Watch {
        self.subscriber.watch(vec![Arc::from(channel)], self.deadline(timeout)).await
    }
}

fn ids(invocation: &mut Invocation, ids: &[PermitId]) {
    for id in ids {
        invocation.arg(id.as_bytes());
    }
}

/// The semaphores of a [`RedisStore`](super::RedisStore).
pub(super) struct RedisSemaphores {
    topology: Topology,
}

impl RedisSemaphores {
    pub(super) fn new(topology: &Topology) -> Self {
        Self { topology: topology.clone() }
    }
}

impl fmt::Debug for RedisSemaphores {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("RedisSemaphores").field(&self.topology).finish()
    }
}

impl SemaphoreStore for RedisSemaphores {
    fn acquire(&self, request: Arc<PermitsRequest>) -> BoxFuture<Result<PermitsAcquired, StoreError>> {
        step!(self, |node| Ok(node.acquire_permits(&request, At::once(request.timeout)).await?), |cluster| {
            cluster.acquire_permits(&request)
        })
    }

    fn release(&self, request: PermitsRelease) -> BoxFuture<Result<Vec<bool>, StoreError>> {
        step!(
            self,
            |node| {
                let at = At::once(request.timeout);
                Ok(node.release_permits(&request.key, &request.ids, at).await?.1)
            },
            |cluster| cluster.release_permits(&request)
        )
    }

    fn renew(&self, request: PermitsRenew) -> BoxFuture<Result<Vec<Option<Vec<bool>>>, StoreError>> {
        step!(
            self,
            |node| Ok(node.renew_permits(&request.holds, At::once(request.timeout)).await?),
            |cluster| cluster.renew_permits(&request)
        )
    }

    fn withdraw(&self, request: Arc<PermitsRequest>) -> BoxFuture<Result<Withdrawn, StoreError>> {
        step!(
            self,
            |node| {
                // A request that was never stamped was never sent.
                let Some(latest) = request.seal() else { return Ok(Withdrawn::Settled) };
                let at = At::once(request.timeout);
                let (now, _) = node.release_permits(&request.key, &request.ids, at).await?;
                Ok(Withdrawn::by(latest, now))
            },
            |cluster| cluster.withdraw_permits(&request)
        )
    }

    fn watch(&self, key: LockKey, timeout: Duration) -> BoxFuture<Result<Watch, StoreError>> {
        step!(
            self,
            |node| {
                let channel = node.semaphore(&key)?.channel;
                Ok(node.watch_channel(channel, timeout).await)
            },
            |cluster| cluster.watch_semaphore(&key, timeout)
        )
    }

    fn change(&self, request: PermitsChange) -> BoxFuture<Result<bool, StoreError>> {
        step!(
            self,
            |node| {
                let at = At::once(request.timeout);
                Ok(node.change_permits(&request.key, request.permits, at).await?.0)
            },
            |cluster| cluster.change_permits(&request)
        )
    }

    fn counts(&self, key: LockKey, timeout: Duration) -> BoxFuture<Result<PermitCounts, StoreError>> {
        step!(
            self,
            // Adding 0 permits changes nothing.
            |node| Ok(node.change_permits(&key, Permits::Add(0), At::once(timeout)).await?.1),
            |cluster| cluster.count_permits(&key, timeout)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(prefix: &str, key: &str) -> [String; 3] {
        let names = SemaphoreNames::new(prefix, &LockKey::new(key).unwrap()).unwrap();
        [names.permits, names.timeouts, names.channel]
    }

    #[test]
    fn names_are_redissons() {
        assert_eq!(names("lock:", "s"), ["lock:s", "{lock:s}:timeout", "redisson_sc:{lock:s}"]);
        assert_eq!(names("", "{u}:1"), ["{u}:1", "{u}:1:timeout", "redisson_sc:{u}:1"]);
    }

    #[test]
    fn answers_that_make_no_sense_are_refused() {
        for value in [
            Value::Nil,
            Value::Array(vec![]),
            Value::Array(vec![Value::Int(1)]),
            Value::Array(vec![Value::Int(3), Value::Int(5), Value::SimpleString("whatever".to_owned())]),
            Value::Array(vec![Value::Int(1), Value::Int(5), Value::Nil]),
        ] {
            assert_eq!(read(&value), None, "{value:?}");
        }
    }
}
