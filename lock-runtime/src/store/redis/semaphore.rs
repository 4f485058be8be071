//! [`RedisSemaphores`]: semaphores as Redisson's `RPermitExpirableSemaphore` has them; see `scripts/semaphore.lua`.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use redis::Value;

use super::connection::Ready;
use super::names::Names;
use super::reply;
use super::script::{self, Invocation};
use super::steps::{about_key, millis};
use super::{Inner, RedisStore};
use crate::key::LockKey;
use crate::store::{
    BoxFuture, MAX_PERMITS, PermitCounts, PermitId, Permits, PermitsAcquired, PermitsBusy, PermitsChange,
    PermitsHold, PermitsKeep, PermitsRelease, PermitsRequest, SemaphoreStore, ServerTime, StoreError,
    StoreErrorKind, Watch, Withdrawn,
};

/// What a semaphore is called at the server.
struct SemaphoreNames {
    permits: String,
    timeouts: String,
    channel: String,
}

impl SemaphoreNames {
    fn new(prefix: &str, key: &LockKey) -> Result<Self, StoreError> {
        let permits = Names::new(prefix, key)?.lock().to_string();
        let tag = if permits.contains('{') { permits.clone() } else { format!("{{{permits}}}") };
        Ok(Self { timeouts: format!("{tag}:timeout"), channel: format!("redisson_sc:{tag}"), permits })
    }
}

/// What a script of one semaphore answers.
#[derive(Debug, PartialEq, Eq)]
enum Answer {
    /// Its own numbers, and the server's time.
    Done(i64, ServerTime, Vec<i64>),
    /// It is no semaphore.
    Foreign(&'static str),
}

fn read(value: &Value) -> Option<Answer> {
    let values = reply::array(value)?;
    let (code, now) = (reply::int(values.first()?)?, reply::now(values.get(1)?)?);
    let rest = values.get(2..)?;
    if code == 3 {
        return match reply::text(rest.first()?)? {
            "number" => Some(Answer::Foreign("its value is no number of permits")),
            "permit" => Some(Answer::Foreign("its list of held permits has something else in it")),
            _ => None,
        };
    }
    Some(Answer::Done(code, now, rest.iter().map(reply::int).collect::<Option<_>>()?))
}

impl Inner {
    fn semaphore(&self, key: &LockKey) -> Result<SemaphoreNames, StoreError> {
        SemaphoreNames::new(&self.options.prefix, key)
    }

    /// Somebody's data, which is no semaphore or latch.
    pub(super) fn foreign_to(&self, kind: &str, key: &str, reason: &str) -> StoreError {
        let what = format!(
            "the key {key:?} is not a {kind}: {reason}. It is somebody's data and is left alone; use another name or \
             prefix"
        );
        self.address.error(StoreErrorKind::ForeignData, what)
    }

    /// What a script of one semaphore answered; `mean` says what its code, the server's time and its own numbers mean, if
    /// anything.
    fn read_semaphore<T>(
        &self,
        answer: Result<Value, StoreError>,
        names: &SemaphoreNames,
        mean: impl FnOnce(i64, ServerTime, &[i64]) -> Option<T>,
    ) -> Result<T, StoreError> {
        let value = answer.map_err(|error| about_key(error, &names.permits))?;
        let meant = match read(&value) {
            Some(Answer::Done(code, now, numbers)) => mean(code, now, &numbers),
            Some(Answer::Foreign(reason)) => {
                return Err(self.foreign_to("semaphore", &names.permits, reason));
            }
            None => None,
        };
        meant.ok_or_else(|| self.senseless(&value))
    }

    async fn acquire_permits(&self, request: &PermitsRequest) -> Result<PermitsAcquired, StoreError> {
        let names = self.semaphore(&request.key)?;
        let ask = |now| {
            let latest = request.stamp(now);
            let mut invocation = Invocation::new(&script::SEMAPHORE_ACQUIRE, 2, 3 + request.ids.len());
            invocation.arg(&names.permits).arg(&names.timeouts);
            invocation.arg(latest.as_micros()).arg(millis(request.lease)).arg(&names.channel);
            ids(&mut invocation, &request.ids);
            invocation
        };
        let read = |ready: &Ready, answer: Result<Value, StoreError>| {
            self.read_semaphore(answer, &names, |code, now, numbers| {
                self.server_clock.observe(now, ready.now);
                match (code, numbers) {
                    (1, []) => Some(Ok(PermitsAcquired::Granted(now))),
                    (0, &[available, wait]) => {
                        let remaining =
                            u64::try_from(wait).ok().map(|wait| Duration::from_millis(wait.max(1)));
                        let busy = PermitsBusy { available, remaining, server_time: now };
                        Some(Ok(PermitsAcquired::Busy(busy)))
                    }
                    (2, []) => Some(Err(now)),
                    _ => None,
                }
            })
        };
        self.in_time(request.timeout, ask, read).await
    }

    async fn release_permits(
        &self,
        key: &LockKey,
        permits: &[PermitId],
        timeout: Duration,
    ) -> Result<(ServerTime, Vec<bool>), StoreError> {
        let names = self.semaphore(key)?;
        let ready = self.connector.ready(timeout).await?;
        let mut invocation = Invocation::new(&script::SEMAPHORE_RELEASE, 2, 1 + permits.len());
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

    /// In as many calls as it takes, each of about as many permits as one request may have: the server does nothing else
    /// meanwhile.
    async fn keep_permits(&self, request: &PermitsKeep) -> Result<Vec<Option<Vec<bool>>>, StoreError> {
        let mut ready = self.connector.ready(request.timeout).await?;
        let mut kept = Vec::with_capacity(request.holds.len());
        let mut rest = &*request.holds;
        while !rest.is_empty() {
            let mut permits = 0;
            let fits = rest.iter().take_while(|hold| {
                permits += hold.ids.len();
                permits <= MAX_PERMITS as usize
            });
            let (now, later) = rest.split_at(fits.count().max(1));
            kept.extend(self.keep_some_permits(&ready, now).await?.into_iter().map(Some));
            rest = later;
            ready = self.connector.later(&ready);
        }
        Ok(kept)
    }

    async fn keep_some_permits(
        &self,
        ready: &Ready,
        holds: &[PermitsHold],
    ) -> Result<Vec<Vec<bool>>, StoreError> {
        let arguments = holds.iter().map(|hold| 3 + hold.ids.len()).sum();
        let mut invocation = Invocation::new(&script::SEMAPHORE_KEEP, 2 * holds.len(), arguments);
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
        let kept = reply::array(&value).filter(|answers| answers.len() == holds.len()).and_then(|answers| {
            let each = answers.iter().zip(holds).map(|(answer, hold)| reply::flags(answer, hold.ids.len()));
            each.collect::<Option<_>>()
        });
        kept.ok_or_else(|| self.senseless(&value))
    }

    async fn withdraw_permits(&self, request: &PermitsRequest) -> Result<Withdrawn, StoreError> {
        // Never stamped: never sent.
        let Some(latest) = request.seal() else { return Ok(Withdrawn::Settled) };
        let (now, _) = self.release_permits(&request.key, &request.ids, request.timeout).await?;
        Ok(Withdrawn::by(latest, now))
    }

    async fn change_permits(
        &self,
        key: &LockKey,
        how: &str,
        number: i64,
        timeout: Duration,
    ) -> Result<(bool, PermitCounts), StoreError> {
        let names = self.semaphore(key)?;
        let ready = self.connector.ready(timeout).await?;
        let mut invocation = Invocation::new(&script::SEMAPHORE_CHANGE, 2, 3);
        invocation.arg(&names.permits).arg(&names.timeouts).arg(&names.channel).arg(how).arg(number);
        let answer = self.connector.run(&ready, &invocation).await;
        self.read_semaphore(answer, &names, |code, _, numbers| match (code, numbers) {
            (0 | 1, &[available, held]) => {
                Some(Ok((code == 1, PermitCounts { available, acquired: held.try_into().ok()? })))
            }
            (4, _) => {
                let left = numbers.first().copied().unwrap_or_default();
                let what = format!(
                    "the semaphore {:?} would have {left} permits left; Java counts them in an `int`",
                    names.permits
                );
                Some(Err(self.address.error(StoreErrorKind::Refused, what)))
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

/// The semaphores of a [`RedisStore`].
pub(super) struct RedisSemaphores(RedisStore);

impl RedisSemaphores {
    pub(super) fn new(store: &RedisStore) -> Self {
        Self(store.clone())
    }
}

impl fmt::Debug for RedisSemaphores {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("RedisSemaphores").field(&self.0).finish()
    }
}

impl SemaphoreStore for RedisSemaphores {
    fn acquire(&self, request: Arc<PermitsRequest>) -> BoxFuture<Result<PermitsAcquired, StoreError>> {
        self.0.call(|inner| async move { inner.acquire_permits(&request).await })
    }

    fn release(&self, request: PermitsRelease) -> BoxFuture<Result<Vec<bool>, StoreError>> {
        self.0.call(|inner| async move {
            Ok(inner.release_permits(&request.key, &request.ids, request.timeout).await?.1)
        })
    }

    fn keep(&self, request: PermitsKeep) -> BoxFuture<Result<Vec<Option<Vec<bool>>>, StoreError>> {
        self.0.call(|inner| async move { inner.keep_permits(&request).await })
    }

    fn withdraw(&self, request: Arc<PermitsRequest>) -> BoxFuture<Result<Withdrawn, StoreError>> {
        self.0.call(|inner| async move { inner.withdraw_permits(&request).await })
    }

    fn watch(&self, key: LockKey, timeout: Duration) -> BoxFuture<Result<Watch, StoreError>> {
        self.0.call(move |inner| async move {
            let channel = inner.semaphore(&key)?.channel;
            Ok(inner.watch_channel(channel, timeout).await)
        })
    }

    fn change(&self, request: PermitsChange) -> BoxFuture<Result<bool, StoreError>> {
        self.0.call(|inner| async move {
            let (how, number) = match request.permits {
                Permits::TrySet(number) => ("try", number.into()),
                Permits::Set(number) => ("set", number.into()),
                Permits::Add(number) => ("add", number.into()),
            };
            Ok(inner.change_permits(&request.key, how, number, request.timeout).await?.0)
        })
    }

    fn counts(&self, key: LockKey, timeout: Duration) -> BoxFuture<Result<PermitCounts, StoreError>> {
        self.0.call(move |inner| async move { Ok(inner.change_permits(&key, "add", 0, timeout).await?.1) })
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
