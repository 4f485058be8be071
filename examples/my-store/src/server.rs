//! The steps on the Redis server, each atomic. Nothing here knows of the contract of a store but
//! its errors.
//!
//! `{prefix}lock:{key}` is the owner, and expires with the lease. `{prefix}token:{key}` is the last
//! fencing token. Times are in milliseconds, those of the clock in microseconds.

use std::time::Duration;

use lock_core::LockKey;
use lock_core::store::{Item, ServerTime, StoreError, StoreErrorKind};
use redis::aio::{ConnectionManager, ConnectionManagerConfig};
use redis::{Client, Cmd, ErrorKind, FromRedisValue, RedisError, RedisResult};

/// Takes the key, unless the request is late or another owner holds it. An owner that holds it
/// already keeps the longer lease and gets new tokens. The first write is the one that fails when
/// memory is full. Arguments: owner, latest time, lease, tokens, life of the counter.
const ACQUIRE: &str = "
    local time, left = redis.call('TIME'), redis.call('PTTL', KEYS[1])
    local now = time[1] * 1000000 + time[2]
    if now > tonumber(ARGV[2]) then return {'late', now, 0} end
    if left ~= -2 and redis.call('GET', KEYS[1]) ~= ARGV[1] then return {'busy', now, left} end
    local lease, last = math.max(left, ARGV[3]), redis.call('GET', KEYS[2]) or 0
    local token = string.format('%.0f', math.max(now, last) + ARGV[4])
    redis.call('SET', KEYS[2], token, 'PX', lease + ARGV[5])
    redis.call('SET', KEYS[1], ARGV[1], 'PX', lease)
    return {'granted', now, token}";

/// Lengthens a hold, and the life of its counter. Arguments: owner, lease, life of the counter.
const RENEW: &str = "
    if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
    if redis.call('PTTL', KEYS[1]) >= tonumber(ARGV[2]) then return 1 end
    redis.call('PEXPIRE', KEYS[2], ARGV[2] + ARGV[3])
    return redis.call('PEXPIRE', KEYS[1], ARGV[2])";

/// Frees the key if the owner, the only argument, holds it.
const RELEASE: &str = "
    local time, held = redis.call('TIME'), redis.call('GET', KEYS[1]) == ARGV[1]
    return {held and redis.call('DEL', KEYS[1]) or 0, time[1] * 1000000 + time[2]}";

const LOOK: &str =
    "return {redis.call('GET', KEYS[1]), redis.call('PTTL', KEYS[1]), redis.call('GET', KEYS[2])}";

const FREE: &str = "return redis.call('DEL', KEYS[1])";

/// The answer to an acquire.
pub(crate) enum Answer {
    /// The last token of the grant.
    Granted(u64),
    /// The rest of the other owner's lease, if it has an end.
    Busy(Option<Duration>),
    Late,
}

/// A Redis server. Connects on first use, and again after a connection is lost.
#[derive(Debug)]
pub(crate) struct Server {
    connection: ConnectionManager,
    prefix: String,
}

impl Server {
    pub(crate) fn new(client: Client, prefix: String) -> RedisResult<Self> {
        // The engine has its own time limits and its own retries.
        let config = ConnectionManagerConfig::new().set_number_of_retries(0).set_response_timeout(None);
        Ok(Self { connection: ConnectionManager::new_lazy_with_config(client, config)?, prefix })
    }

    pub(crate) async fn time(&self) -> Result<ServerTime, StoreError> {
        let (seconds, micros): (u64, u64) = self.run(&redis::cmd("TIME")).await?;
        Ok(ServerTime::from_micros(seconds * 1_000_000 + micros))
    }

    /// Returns the server's time, too.
    pub(crate) async fn acquire(
        &self,
        item: &Item,
        latest: ServerTime,
        lease: Duration,
        tokens: u32,
        life: Duration,
    ) -> Result<(Answer, ServerTime), StoreError> {
        let args = (item.owner.as_str(), latest.as_micros(), millis(lease), tokens, millis(life));
        let (answer, now, number): (String, u64, i64) =
            self.run(self.script(ACQUIRE, &item.key).arg(args)).await?;
        let answer = match &*answer {
            "granted" => Answer::Granted(number.unsigned_abs()),
            "busy" => Answer::Busy(rest(number)),
            _ => Answer::Late,
        };
        Ok((answer, ServerTime::from_micros(now)))
    }

    /// Returns whether the owner held the key, and the server's time.
    pub(crate) async fn release(&self, item: &Item) -> Result<(bool, ServerTime), StoreError> {
        let (held, now) = self.run(self.script(RELEASE, &item.key).arg(item.owner.as_str())).await?;
        Ok((held, ServerTime::from_micros(now)))
    }

    /// Makes one round trip, and returns for each hold whether it is renewed.
    pub(crate) async fn renew(
        &self,
        holds: impl Iterator<Item = (&Item, Duration, Duration)>,
    ) -> Result<Vec<RedisResult<bool>>, StoreError> {
        let mut scripts = redis::pipe();
        for (item, lease, life) in holds {
            let args = (item.owner.as_str(), millis(lease), millis(life));
            scripts.add_command(self.script(RENEW, &item.key).arg(args).take());
        }
        scripts.ignore_errors().query_async(&mut self.connection.clone()).await.map_err(failed)
    }

    /// Returns the owner, the rest of the lease, and the last token.
    pub(crate) async fn look(
        &self,
        key: &LockKey,
    ) -> Result<(Option<String>, Option<Duration>, Option<u64>), StoreError> {
        let (owner, left, token) = self.run(&self.script(LOOK, key)).await?;
        Ok((owner, rest(left), token))
    }

    pub(crate) async fn free(&self, key: &LockKey) -> Result<bool, StoreError> {
        self.run(&self.script(FREE, key)).await
    }

    /// Makes the command that runs a script on the two keys of a lock.
    fn script(&self, text: &str, key: &LockKey) -> Cmd {
        let keys = ["lock", "token"].map(|what| format!("{}{what}:{key}", self.prefix));
        redis::cmd("EVAL").arg(text).arg(2).arg(&keys).take()
    }

    async fn run<T: FromRedisValue>(&self, command: &Cmd) -> Result<T, StoreError> {
        command.query_async(&mut self.connection.clone()).await.map_err(failed)
    }
}

/// Says whether the step may have been executed, and what can be done about it.
#[allow(clippy::needless_pass_by_value, reason = "for `map_err`")]
fn failed(error: RedisError) -> StoreError {
    let kind = match error.code() {
        // The server has answered, and has not executed it.
        Some("LOADING" | "BUSY" | "MASTERDOWN") => StoreErrorKind::NotReady,
        Some("READONLY") => StoreErrorKind::ReadOnly,
        Some("OOM" | "MISCONF") => StoreErrorKind::Full,
        Some("NOAUTH" | "NOPERM" | "WRONGPASS") => StoreErrorKind::Denied,
        Some("WRONGTYPE") => StoreErrorKind::ForeignData,
        Some(_) => StoreErrorKind::Refused,
        None if error.kind() == ErrorKind::AuthenticationFailed => StoreErrorKind::Denied,
        // There was no connection to send it on.
        None if error.is_connection_refusal() => StoreErrorKind::Unreachable,
        // It may have been executed, or may be executed later.
        None => StoreErrorKind::Unanswered,
    };
    StoreError::new(kind, error.to_string())
}

/// Rounds up, because a hold must not end before its lease.
fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_micros().div_ceil(1000)).unwrap_or(u64::MAX)
}

/// Reads a time to live, which is negative for a key without one. It is never zero: the key would
/// be free.
fn rest(millis: i64) -> Option<Duration> {
    u64::try_from(millis).ok().map(|millis| Duration::from_millis(millis.max(1)))
}
