//! The Redis store: one server, keys as Redisson's `RLock` and `RFencedLock` have them.
//!
//! - [`names`]: what a lock is called. [`script`]: the steps, in Lua, each atomic; what goes over the wire is in
//!   `scripts/*.lua`. [`reply`]: what they answer.
//! - [`connection`]: one connection for commands. [`subscriber`] and [`registry`]: one for release messages.
//! - [`server_clock`]: the estimate of the server's time behind [`AcquireRequest::stamp`].
//! - [`classify`]: errors. [`check`]: whether a server can keep locks. [`url`]: addresses.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use redis::Value;
use tokio::runtime::Handle;

use crate::clock::{Clock, Tick};
use crate::config::{Config, TokenRetention};
use crate::key::LockKey;
use crate::store::{
    AcquireRequest, Acquired, BoxFuture, Granted, Item, KeepRequest, Kept, ListenerPolicy, LockStatus,
    LockStore, ReleaseRequest, Released, ServerTime, StoreError, StoreErrorKind, Takeover, Watch, Withdrawn,
};

mod check;
mod classify;
mod connection;
mod names;
mod registry;
mod reply;
mod runtime;
mod script;
mod server_clock;
mod subscriber;
pub(crate) mod url;

#[cfg(test)]
mod tests;

use classify::Address;
use connection::{Connector, Dialer, Link};
use names::Names;
use reply::{Freed, Grant, Reason};
use script::Invocation;
use server_clock::ServerClock;
use subscriber::{Subscriber, Timing};

/// Longest time that is passed to the server, about 100 years: it refuses times that overflow, and it would do so
/// after a lock was written.
const LONGEST_MILLIS: u64 = 3_155_760_000_000;
/// Tokens above a larger floor would not fit the server's integers.
const HIGHEST_FLOOR: u64 = i64::MAX as u64 - crate::store::MAX_TOKENS as u64;

/// Settings of a [`RedisStore`].
#[derive(Clone, Debug)]
pub(crate) struct RedisOptions {
    /// In front of every key.
    pub(crate) prefix: String,
    /// Time-out of calls that carry none.
    pub(crate) call_timeout: Duration,
    /// Time-out of making a connection, and of [`check`](LockStore::check).
    pub(crate) connect_timeout: Duration,
    /// Life of the fencing counter.
    pub(crate) token_retention: TokenRetention,
    /// How long a channel stays subscribed after its last watcher has left.
    pub(crate) subscription_linger: Duration,
    /// How often a subscriber connection is asked whether it lives.
    pub(crate) ping_every: Duration,
    /// Doubtful server settings are errors.
    pub(crate) strict: bool,
    /// Our time; one that counts suspend.
    pub(crate) clock: Clock,
    /// Where connections live.
    pub(crate) runtime: Handle,
}

impl RedisOptions {
    /// The store's part of `config`, for connections in `runtime`.
    pub(crate) fn new(config: &Config, clock: Clock, runtime: Handle) -> Self {
        Self {
            prefix: config.prefix.clone(),
            call_timeout: config.call_timeout,
            connect_timeout: config.connect_timeout,
            token_retention: config.token_retention,
            subscription_linger: config.subscription_linger,
            ping_every: Duration::from_secs(5),
            strict: config.strict,
            clock,
            runtime,
        }
    }
}

/// Locks on one Redis server. Connects on first use.
pub(crate) struct RedisStore {
    inner: Arc<Inner>,
}

struct Inner {
    options: RedisOptions,
    address: Address,
    connector: Arc<Connector>,
    server_clock: Arc<ServerClock>,
    subscriber: Subscriber,
    warned_untold: AtomicBool,
}

impl fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisStore")
            .field("address", &self.inner.address)
            .field("prefix", &self.inner.options.prefix)
            .finish_non_exhaustive()
    }
}

impl RedisStore {
    /// A store on the server of `client`; the client's address, credentials, database and TLS settings are used.
    ///
    /// # Errors
    ///
    /// `Unsupported` when the client library does not accept the client's settings.
    pub(crate) fn new(client: &redis::Client, options: RedisOptions) -> Result<Self, StoreError> {
        let dialer = Dialer::new(client, options.connect_timeout, options.clock)?;
        let server_clock = Arc::new(ServerClock::default());
        let timing = Timing {
            linger: options.subscription_linger,
            ping_every: options.ping_every,
            timeout: options.call_timeout,
        };
        let runtime = options.runtime.clone();
        let connector = Connector::new(dialer.clone(), runtime.clone(), Arc::clone(&server_clock));
        let inner = Inner {
            address: dialer.address.clone(),
            subscriber: Subscriber::new(dialer, timing, runtime),
            options,
            connector,
            server_clock,
            warned_untold: AtomicBool::new(false),
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    fn call<T, F>(&self, call: impl FnOnce(Arc<Inner>) -> F) -> BoxFuture<T>
    where
        F: Future<Output = T> + Send + 'static,
    {
        let runtime = self.inner.options.runtime.clone();
        Box::pin(runtime::InRuntime::new(runtime, call(Arc::clone(&self.inner))))
    }
}

impl LockStore for RedisStore {
    fn acquire(&self, request: Arc<AcquireRequest>) -> BoxFuture<Result<Acquired, StoreError>> {
        self.call(|inner| async move { inner.acquire(&request).await })
    }

    fn release(&self, request: Arc<ReleaseRequest>) -> BoxFuture<Result<Released, StoreError>> {
        self.call(|inner| async move { inner.release(&request).await })
    }

    fn keep(&self, request: Arc<KeepRequest>) -> BoxFuture<Result<Vec<Kept>, StoreError>> {
        self.call(|inner| async move { inner.keep(&request).await })
    }

    fn withdraw(&self, request: Arc<AcquireRequest>) -> BoxFuture<Result<Withdrawn, StoreError>> {
        self.call(|inner| async move { inner.withdraw(&request).await })
    }

    fn watch(&self, request: Arc<AcquireRequest>) -> BoxFuture<Result<Watch, StoreError>> {
        self.call(|inner| async move {
            let names = inner.names(&request.items)?;
            let channels = names.into_iter().map(|names| Arc::from(names.channel)).collect();
            Ok(inner.subscriber.watch(channels, inner.deadline(request.timeout)).await)
        })
    }

    fn status(&self, key: LockKey) -> BoxFuture<Result<LockStatus, StoreError>> {
        self.call(|inner| async move { inner.status(&key).await })
    }

    fn force_release(&self, key: LockKey) -> BoxFuture<Result<bool, StoreError>> {
        self.call(|inner| async move { inner.force_release(&key).await })
    }

    fn check(&self) -> BoxFuture<Result<(), StoreError>> {
        self.call(|inner| async move {
            let deadline = inner.deadline(inner.options.connect_timeout);
            check::check(&inner.connector, inner.options.strict, deadline).await
        })
    }
}

impl Inner {
    fn deadline(&self, timeout: Duration) -> Tick {
        self.options.clock.now() + timeout
    }

    fn names(&self, items: &[Item]) -> Result<Vec<Names>, StoreError> {
        items.iter().map(|item| Names::new(&self.options.prefix, &item.key)).collect()
    }

    /// An answer that this version of the store does not know: nobody can tell what was done.
    fn senseless(&self, value: &Value) -> StoreError {
        self.address.error(StoreErrorKind::Unanswered, format!("an answer that makes no sense: {value:?}"))
    }

    fn foreign(&self, lock: &str, reason: Reason) -> StoreError {
        let what = format!(
            "the key {lock:?} is not a lock: {}. It is somebody's data and is left alone; use another key or prefix",
            reason.explain()
        );
        self.address.error(StoreErrorKind::ForeignData, what)
    }

    fn bad_counter(&self, counter: &str) -> StoreError {
        let what = format!("LOCKTOKEN the key {counter:?} is not a fencing counter: its value is no integer");
        self.address.error(StoreErrorKind::ForeignData, what)
    }

    /// Stamps `request` for being sent now.
    fn stamp(&self, request: &AcquireRequest) -> Result<(Tick, ServerTime), StoreError> {
        let sent = self.options.clock.now();
        let estimate = self.server_clock.estimate(sent).ok_or_else(|| {
            self.address.error(StoreErrorKind::Unreachable, "the server's time is not known")
        })?;
        Ok((sent, request.stamp(estimate)))
    }

    /// The arguments of `grant` in grant.lua.
    fn grant_arguments<'a>(
        &self,
        invocation: &mut Invocation,
        request: &AcquireRequest,
        latest: ServerTime,
        owners: impl Iterator<Item = &'a Item>,
    ) {
        let retention = match self.options.token_retention {
            TokenRetention::Keep => 0,
            TokenRetention::For(time) => millis(time.max(request.lease.saturating_mul(2))),
        };
        invocation
            .arg(millis(request.lease))
            .arg(request.tokens)
            .arg(retention)
            .arg(latest.as_micros())
            .arg(request.token_floor);
        for item in owners {
            invocation.arg(item.owner.as_str());
        }
    }

    async fn acquire(&self, request: &AcquireRequest) -> Result<Acquired, StoreError> {
        if request.token_floor > HIGHEST_FLOOR {
            return Err(self.address.error(StoreErrorKind::Unsupported, "the token floor is too high"));
        }
        let names = self.names(&request.items)?;
        let deadline = self.deadline(request.timeout);
        let mut refused = None;
        // The second try is for a server whose clock has jumped: the refusal brought its new time.
        for _ in 0..2 {
            let link = self.connector.link(deadline).await?;
            let (sent, latest) = self.stamp(request)?;
            let keys = names.iter().flat_map(|names| [names.lock.as_str(), names.counter.as_str()]);
            let mut invocation = Invocation::new(&script::ACQUIRE, keys);
            self.grant_arguments(&mut invocation, request, latest, request.items.iter());
            let answer = self.connector.run(&link, &invocation, deadline).await;
            let value = answer.map_err(|error| about(error, &names))?;
            match self.read_grant(&value, &names, request.tokens, sent)? {
                Ok(acquired) => return Ok(acquired),
                Err(now) => refused = Some(now),
            }
        }
        let what = format!("the request arrived too late, twice; the server's time is {refused:?}");
        Err(self.address.error(StoreErrorKind::TooLate, what))
    }

    /// What `grant` said; the inner error is a refusal because it came too late.
    fn read_grant(
        &self,
        value: &Value,
        names: &[Names],
        tokens: u32,
        sent: Tick,
    ) -> Result<Result<Acquired, ServerTime>, StoreError> {
        let grant = reply::grant(value, names.len(), tokens).ok_or_else(|| self.senseless(value))?;
        let named = |index: usize| names.get(index).ok_or_else(|| self.senseless(value));
        let (now, result) = match grant {
            Grant::Done(Acquired::Granted(granted)) => (granted.server_time, Ok(Acquired::Granted(granted))),
            Grant::Done(Acquired::Busy(busy)) => {
                named(busy.item)?;
                (busy.server_time, Ok(Acquired::Busy(busy)))
            }
            Grant::TooLate(now) => (now, Err(now)),
            Grant::Foreign(item, reason) => return Err(self.foreign(&named(item)?.lock, reason)),
            Grant::BadCounter(item) => return Err(self.bad_counter(&named(item)?.counter)),
        };
        self.server_clock.observe(now, sent);
        Ok(result)
    }

    async fn release(&self, request: &ReleaseRequest) -> Result<Released, StoreError> {
        let names = self.names(&request.items)?;
        let deadline = self.deadline(request.timeout);
        let link = self.connector.link(deadline).await?;
        if !request.linger.is_zero() {
            return self.linger(request, &names, &link, deadline).await;
        }
        let successors = request.then.as_ref().and_then(|then| successors(&request.items, then));
        match (&request.then, successors) {
            (Some(then), Some(order)) => self.take_over(request, then, &order, &names, &link, deadline).await,
            _ => {
                let mut invocation = Invocation::new(&script::RELEASE, locks(&names));
                for (item, names) in request.items.iter().zip(&names) {
                    invocation.arg(item.owner.as_str()).arg(&names.channel);
                }
                let value = self.connector.run(&link, &invocation, deadline).await?;
                let freed = reply::freed(&value, names.len()).ok_or_else(|| self.senseless(&value))?;
                Ok(self.released(&freed, &names))
            }
        }
    }

    async fn linger(
        &self,
        request: &ReleaseRequest,
        names: &[Names],
        link: &Arc<Link>,
        deadline: Tick,
    ) -> Result<Released, StoreError> {
        let mut invocation = Invocation::new(&script::LINGER, locks(names));
        invocation.arg(millis(request.linger));
        for item in &request.items {
            invocation.arg(item.owner.as_str());
        }
        let value = self.connector.run(link, &invocation, deadline).await?;
        let held = reply::flags(&value, names.len()).ok_or_else(|| self.senseless(&value))?;
        Ok(Released { held, other_listeners: 0, echo: false, then: None })
    }

    async fn take_over(
        &self,
        request: &ReleaseRequest,
        then: &Takeover,
        order: &[usize],
        names: &[Names],
        link: &Arc<Link>,
        deadline: Tick,
    ) -> Result<Released, StoreError> {
        let (sent, latest) = self.stamp(&then.request)?;
        let keys = names.iter().flat_map(|names| [names.lock.as_str(), names.counter.as_str()]);
        let mut invocation = Invocation::new(&script::TAKEOVER, keys);
        invocation.arg(2 + 3 * names.len()).arg(u8::from(then.listeners == ListenerPolicy::Respect));
        for (item, names) in request.items.iter().zip(names) {
            let (subscribed, _) = self.subscriber.own(&names.channel);
            invocation.arg(item.owner.as_str()).arg(&names.channel).arg(u8::from(subscribed));
        }
        let owners = order.iter().filter_map(|&index| then.request.items.get(index));
        self.grant_arguments(&mut invocation, &then.request, latest, owners);
        let value = self.connector.run(link, &invocation, deadline).await?;

        let (freed, grant) = reply::takeover(&value, names.len()).ok_or_else(|| self.senseless(&value))?;
        let mut released = self.released(&freed, names);
        if let Some(why) = reply::text(grant) {
            tracing::debug!(store = ?self.address, answer = why, "released, but could not acquire in the same step");
        } else if *grant != Value::Int(0) {
            // The release stands whatever the grant says.
            match self.read_grant(grant, names, then.request.tokens, sent) {
                Ok(Ok(Acquired::Granted(granted))) => released.then = Some(reorder(granted, order)),
                Ok(_) => {}
                Err(error) => tracing::debug!(%error, "released, but could not acquire in the same step"),
            }
        }
        Ok(released)
    }

    fn released(&self, freed: &[Freed], names: &[Names]) -> Released {
        let mut released = Released { held: Vec::new(), other_listeners: 0, echo: false, then: None };
        for (freed, names) in freed.iter().zip(names) {
            released.held.push(*freed != Freed::NotHeld);
            match freed {
                Freed::NotHeld => {}
                Freed::Untold => {
                    if !self.warned_untold.swap(true, Ordering::Relaxed) {
                        tracing::warn!(
                            store = ?self.address,
                            channel = names.channel,
                            "locks are released, but the user may not PUBLISH: waiters elsewhere find out by polling"
                        );
                    }
                }
                Freed::Told(listeners) => {
                    let (subscribed, watched) = self.subscriber.own(&names.channel);
                    let others = listeners.saturating_sub(u64::from(subscribed));
                    released.other_listeners = released.other_listeners.saturating_add(others);
                    released.echo |= subscribed && watched && *listeners > 0;
                }
            }
        }
        released
    }

    async fn keep(&self, request: &KeepRequest) -> Result<Vec<Kept>, StoreError> {
        let names: Vec<Names> = request
            .items
            .iter()
            .map(|keep| Names::new(&self.options.prefix, &keep.item.key))
            .collect::<Result<_, _>>()?;
        let deadline = self.deadline(request.timeout);
        let link = self.connector.link(deadline).await?;
        let mut invocation = Invocation::new(&script::KEEP, locks(&names));
        for keep in &request.items {
            invocation.arg(millis(keep.lease)).arg(keep.item.owner.as_str());
        }
        let value = self.connector.run(&link, &invocation, deadline).await?;
        reply::kept(&value, names.len()).ok_or_else(|| self.senseless(&value))
    }

    async fn withdraw(&self, request: &AcquireRequest) -> Result<Withdrawn, StoreError> {
        // Never stamped: never sent.
        let Some(latest) = request.latest() else { return Ok(Withdrawn::Settled) };
        let names = self.names(&request.items)?;
        let deadline = self.deadline(request.timeout);
        let link = self.connector.link(deadline).await?;
        let mut invocation = Invocation::new(&script::WITHDRAW, locks(&names));
        for (item, names) in request.items.iter().zip(&names) {
            invocation.arg(item.owner.as_str()).arg(&names.channel);
        }
        let sent = self.options.clock.now();
        let value = self.connector.run(&link, &invocation, deadline).await?;
        let now = reply::now(&value).ok_or_else(|| self.senseless(&value))?;
        self.server_clock.observe(now, sent);
        if now > latest {
            return Ok(Withdrawn::Settled);
        }
        let left =
            Duration::from_micros(latest.as_micros().saturating_sub(now.as_micros()).saturating_add(1));
        Ok(Withdrawn::Pending(left))
    }

    async fn status(&self, key: &LockKey) -> Result<LockStatus, StoreError> {
        let names = Names::new(&self.options.prefix, key)?;
        let deadline = self.deadline(self.options.call_timeout);
        let link = self.connector.link(deadline).await?;
        let invocation = Invocation::new(&script::STATUS, [names.lock.as_str(), names.counter.as_str()]);
        let answer = self.connector.run(&link, &invocation, deadline).await;
        let value = answer.map_err(|error| about(error, std::slice::from_ref(&names)))?;
        let status = reply::status(&value).ok_or_else(|| self.senseless(&value))?;
        status.map_err(|reason| self.foreign(&names.lock, reason))
    }

    async fn force_release(&self, key: &LockKey) -> Result<bool, StoreError> {
        let names = Names::new(&self.options.prefix, key)?;
        let deadline = self.deadline(self.options.call_timeout);
        let link = self.connector.link(deadline).await?;
        let mut invocation = Invocation::new(&script::FORCE_RELEASE, [names.lock.as_str()]);
        invocation.arg(&names.channel);
        let answer = self.connector.run(&link, &invocation, deadline).await;
        let value = answer.map_err(|error| about(error, std::slice::from_ref(&names)))?;
        let freed = reply::force_released(&value).ok_or_else(|| self.senseless(&value))?;
        freed.map_err(|reason| self.foreign(&names.lock, reason))
    }
}

fn locks(names: &[Names]) -> impl Iterator<Item = &str> {
    names.iter().map(|names| names.lock.as_str())
}

/// Whole milliseconds, rounded up, at least one.
fn millis(time: Duration) -> u64 {
    let millis = u64::try_from(time.as_micros().div_ceil(1000)).unwrap_or(LONGEST_MILLIS);
    millis.clamp(1, LONGEST_MILLIS)
}

/// Says which keys an error about somebody's data is about.
fn about(error: StoreError, names: &[Names]) -> StoreError {
    if error.kind() != StoreErrorKind::ForeignData {
        return error;
    }
    let keys: Vec<String> = names
        .iter()
        .take(8)
        .map(|names| format!("{:?} with counter {:?}", names.lock, names.counter))
        .collect();
    StoreError::new(error.kind(), format!("{error} (asked for: {})", keys.join(", ")))
}

/// For each released item the index of the takeover's item with the same key; `None` when they don't match.
fn successors(items: &[Item], then: &Takeover) -> Option<Vec<usize>> {
    if items.len() != then.request.items.len() || then.request.token_floor > HIGHEST_FLOOR {
        return None;
    }
    items.iter().map(|item| then.request.items.iter().position(|next| next.key == item.key)).collect()
}

/// Puts tokens that are in the order of the released items into the order of the takeover's.
fn reorder(granted: Granted, order: &[usize]) -> Granted {
    let mut tokens: Vec<_> = order.iter().zip(granted.tokens).collect();
    tokens.sort_by_key(|(index, _)| **index);
    Granted { tokens: tokens.into_iter().map(|(_, range)| range).collect(), server_time: granted.server_time }
}
