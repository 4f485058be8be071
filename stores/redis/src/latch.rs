//! [`RedisLatches`]: latches in the format of Redisson's `RCountDownLatch`; see
//! `scripts/latch_count_down.lua`.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use lock_core::LockKey;
use lock_core::store::{BoxFuture, CountDownRequest, LatchStore, StoreError, StoreErrorKind, Watch};
use redis::Value;

use super::connection::{At, Ready};
use super::fault::Fault;
use super::names::Names;
use super::node::Node;
use super::reply;
use super::script::{self, Invocation, Script};
use super::steps::{about_key, millis};
use super::topology::{Topology, step};

const NOT_A_COUNT: &str = "its value is not a count";

/// The names of a latch's key and channel.
pub(super) struct LatchNames {
    pub(super) count: String,
    pub(super) channel: String,
}

impl LatchNames {
    pub(super) fn new(prefix: &str, key: &LockKey) -> Result<Self, StoreError> {
        let count = Names::new(prefix, key)?.lock().to_string();
        if count.contains('{') {
            // Redisson always puts braces around the whole name. If the name has braces, the
            // channel gets into another slot.
            let what = format!(
                "the latch {count:?} can't have a hash tag: on a Redis Cluster, its Redisson channel would be in \
                 another slot. Use a name and a prefix without braces"
            );
            return Err(StoreError::new(StoreErrorKind::Unsupported, what));
        }
        Ok(Self { channel: format!("redisson_countdownlatch__channel__{{{count}}}"), count })
    }

    /// Returns the key that records that the call `id` has counted.
    fn done(&self, id: &str) -> String {
        format!("lock_latch_done:{{{}}}:{id}", self.count)
    }
}

impl Node {
    fn latch(&self, key: &LockKey) -> Result<LatchNames, StoreError> {
        LatchNames::new(&self.options.prefix, key)
    }

    fn not_a_latch(&self, names: &LatchNames) -> StoreError {
        self.foreign_to("latch", &names.count, NOT_A_COUNT)
    }

    pub(super) async fn count_down(&self, request: &CountDownRequest, at: At) -> Result<u64, Fault> {
        let names = self.latch(&request.key)?;
        let ask = |now| {
            let latest = request.stamp(now);
            let mut invocation = self.invocation(&script::LATCH_COUNT_DOWN, 2, 3);
            invocation.arg(&names.count).arg(names.done(&request.id));
            invocation.arg(latest.as_micros()).arg(&names.channel).arg(millis(request.remember));
            invocation
        };
        let read = |ready: &Ready, answer: Result<Value, Fault>| {
            let value = answer.map_err(|fault| fault.map(|error| about_key(error, &names.count)))?;
            let values = reply::array(&value).unwrap_or_default();
            let (code, now) = (values.first().and_then(reply::int), values.get(1).and_then(reply::now));
            let now = now.ok_or_else(|| self.senseless(&value))?;
            self.server_clock.observe(now, ready.now);
            match (code, values.get(2)) {
                (Some(1), Some(left)) => Ok(Ok(self.read_count(left)?)),
                (Some(2), None) => Ok(Err(now)),
                (Some(3), Some(_)) => Err(self.not_a_latch(&names).into()),
                _ => Err(self.senseless(&value).into()),
            }
        };
        self.in_time(at, ask, read).await
    }

    /// Runs a script that takes the latch's key and answers with a number, or with a text if the
    /// key is not a latch.
    async fn on_latch(
        &self,
        script: &'static Script,
        key: &LockKey,
        at: At,
        arguments: impl FnOnce(&mut Invocation, &LatchNames),
    ) -> Result<Value, Fault> {
        let names = self.latch(key)?;
        let ready = self.connector.ready(at).await?;
        let mut invocation = self.invocation(script, 1, 2);
        invocation.arg(&names.count);
        arguments(&mut invocation, &names);
        let answer = self.connector.run(&ready, &invocation).await;
        let value = answer.map_err(|fault| fault.map(|error| about_key(error, &names.count)))?;
        match reply::text(&value) {
            Some(_) => Err(self.not_a_latch(&names).into()),
            None => Ok(value),
        }
    }

    pub(super) async fn set_count(&self, key: &LockKey, count: u32, at: At) -> Result<bool, Fault> {
        let arguments = |invocation: &mut Invocation, names: &LatchNames| {
            invocation.arg(count.max(1)).arg(&names.channel);
        };
        let value = self.on_latch(&script::LATCH_SET, key, at, arguments).await?;
        Ok(self.read_flag(&value)?)
    }

    pub(super) async fn count(&self, key: &LockKey, at: At) -> Result<u64, Fault> {
        let value = self.on_latch(&script::LATCH_COUNT, key, at, |_, _| {}).await?;
        Ok(self.read_count(&value)?)
    }

    pub(super) async fn delete_latch(&self, key: &LockKey, at: At) -> Result<bool, Fault> {
        let arguments = |invocation: &mut Invocation, names: &LatchNames| {
            invocation.arg(&names.channel);
        };
        let value = self.on_latch(&script::LATCH_DELETE, key, at, arguments).await?;
        Ok(self.read_flag(&value)?)
    }

    fn read_count(&self, value: &Value) -> Result<u64, StoreError> {
        let count = reply::int(value).ok_or_else(|| self.senseless(value))?;
        // Redisson's own countDown goes below zero only for a moment, within its script.
        Ok(u64::try_from(count).unwrap_or(0))
    }

    fn read_flag(&self, value: &Value) -> Result<bool, StoreError> {
        match reply::int(value) {
            Some(0) => Ok(false),
            Some(1) => Ok(true),
            _ => Err(self.senseless(value)),
        }
    }
}

/// The latches of a [`RedisStore`](super::RedisStore).
pub(super) struct RedisLatches {
    topology: Topology,
}

impl RedisLatches {
    pub(super) fn new(topology: &Topology) -> Self {
        Self { topology: topology.clone() }
    }
}

impl fmt::Debug for RedisLatches {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("RedisLatches").field(&self.topology).finish()
    }
}

impl LatchStore for RedisLatches {
    fn try_set_count(
        &self,
        key: LockKey,
        count: u32,
        timeout: Duration,
    ) -> BoxFuture<Result<bool, StoreError>> {
        step!(self, |node| Ok(node.set_count(&key, count, At::once(timeout)).await?), |cluster| {
            cluster.set_count(&key, count, timeout)
        })
    }

    fn count_down(&self, request: Arc<CountDownRequest>) -> BoxFuture<Result<u64, StoreError>> {
        step!(self, |node| Ok(node.count_down(&request, At::once(request.timeout)).await?), |cluster| {
            cluster.count_down(&request)
        })
    }

    fn count(&self, key: LockKey, timeout: Duration) -> BoxFuture<Result<u64, StoreError>> {
        step!(self, |node| Ok(node.count(&key, At::once(timeout)).await?), |cluster| cluster
            .count(&key, timeout))
    }

    fn delete(&self, key: LockKey, timeout: Duration) -> BoxFuture<Result<bool, StoreError>> {
        step!(self, |node| Ok(node.delete_latch(&key, At::once(timeout)).await?), |cluster| cluster
            .delete_latch(&key, timeout))
    }

    fn watch(&self, key: LockKey, timeout: Duration) -> BoxFuture<Result<Watch, StoreError>> {
        step!(
            self,
            |node| {
                let channel = node.latch(&key)?.channel;
                Ok(node.watch_channel(channel, timeout).await)
            },
            |cluster| cluster.watch_latch(&key, timeout)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_redissons_and_have_no_hash_tag() {
        let key = |text| LockKey::new(text).unwrap();
        let names = LatchNames::new("lock:", &key("l")).unwrap();
        assert_eq!(
            [&*names.count, &*names.channel, &*names.done("7")],
            ["lock:l", "redisson_countdownlatch__channel__{lock:l}", "lock_latch_done:{lock:l}:7"]
        );
        for (prefix, name) in [("", "{u}:1"), ("{app}:", "l")] {
            let error = LatchNames::new(prefix, &key(name)).err().unwrap();
            assert_eq!(error.kind(), StoreErrorKind::Unsupported);
            assert!(error.to_string().contains("hash tag"), "{error}");
        }
    }
}
