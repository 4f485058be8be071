//! The Redis store: one server, keys as Redisson's locks of all kinds have them.
//!
//! - [`names`]: what a lock is called. [`script`]: the steps, in Lua, each atomic; what goes over the wire is in
//!   `scripts/*.lua`. [`reply`]: what they answer.
//! - [`steps`], [`release`], [`admin`]: the methods of the trait. [`singles`]: the steps for single mutexes, which travel in
//!   groups, see [`group`]. [`kinds`]: requests that are not for mutexes alone; [`fair`]: what a fair lock's waiter hears.
//! - [`semaphore`], [`latch`]: the steps of those.
//! - [`connection`]: one connection for commands. [`subscriber`] and [`registry`]: one for release messages.
//! - [`server_clock`]: the estimate of the server's time behind [`AcquireRequest::stamp`].
//! - [`classify`]: errors. [`check`]: whether a server can keep locks. [`url`]: addresses.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use tokio::runtime::Handle;

use crate::clock::Clock;
use crate::config::{Config, TokenRetention};
use crate::key::LockKey;
use crate::store::{
    AcquireRequest, Acquired, BoxFuture, KeepRequest, Kept, LatchStore, LockStatus, LockStore,
    ReleaseRequest, Released, ScanRequest, Scanned, SemaphoreStore, StoreError, Watch, Withdrawn,
};
use crate::sync::Apart;

mod admin;
mod check;
mod classify;
mod connection;
mod fair;
mod group;
mod kinds;
mod latch;
mod names;
mod registry;
mod release;
mod reply;
mod runtime;
mod script;
mod semaphore;
mod sentinel;
mod server_clock;
mod singles;
mod steps;
mod subscriber;
pub(crate) mod url;

#[cfg(test)]
mod tests;

use classify::Address;
use connection::{Connector, Dialer};
use group::Group;
use server_clock::ServerClock;
use singles::{AcquireOne, ReleaseOne};
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

impl Clone for RedisStore {
    /// The same store.
    fn clone(&self) -> Self {
        Self { inner: Arc::clone(&self.inner) }
    }
}

/// Aligned, so that its count is not beside what all threads read.
#[repr(align(128))]
struct Inner {
    options: RedisOptions,
    address: Address,
    connector: Arc<Connector>,
    server_clock: Arc<ServerClock>,
    subscriber: Subscriber,
    acquires: Apart<Group<AcquireOne>>,
    releases: Apart<Group<ReleaseOne>>,
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
        Ok(Self::at(dialer, options))
    }

    /// A store on the primary that `sentinels` name.
    pub(crate) fn with_sentinels(sentinels: &url::Sentinels, options: RedisOptions) -> Self {
        let RedisOptions { connect_timeout, clock, runtime, .. } = options.clone();
        Self::at(Dialer::through(sentinels, connect_timeout, clock, runtime), options)
    }

    fn at(dialer: Dialer, options: RedisOptions) -> Self {
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
            acquires: Apart::default(),
            releases: Apart::default(),
            warned_untold: AtomicBool::new(false),
        };
        Self { inner: Arc::new(inner) }
    }

    fn call<T, F>(&self, call: impl FnOnce(Arc<Inner>) -> F) -> BoxFuture<T>
    where
        F: Future<Output = T> + Send + 'static,
    {
        let runtime = self.inner.options.runtime.clone();
        Box::pin(runtime::InRuntime::new(runtime, call(Arc::clone(&self.inner))))
    }

    /// A call that the engine makes in tasks of the store's runtime, where it need not be entered first.
    fn call_in_task<T, F>(&self, call: impl FnOnce(Arc<Inner>) -> F) -> BoxFuture<T>
    where
        F: Future<Output = T> + Send + 'static,
    {
        if tokio::task::try_id().is_some() {
            Box::pin(call(Arc::clone(&self.inner)))
        } else {
            self.call(call)
        }
    }
}

impl LockStore for RedisStore {
    fn acquire(&self, request: Arc<AcquireRequest>) -> BoxFuture<Result<Acquired, StoreError>> {
        self.call_in_task(|inner| async move { inner.acquire(request).await })
    }

    fn release(&self, request: Arc<ReleaseRequest>) -> BoxFuture<Result<Released, StoreError>> {
        self.call_in_task(|inner| async move { inner.release(request).await })
    }

    fn keep(&self, request: Arc<KeepRequest>) -> BoxFuture<Result<Vec<Kept>, StoreError>> {
        self.call_in_task(|inner| async move { inner.keep(&request).await })
    }

    fn downgrade(&self, request: Arc<KeepRequest>) -> BoxFuture<Result<Vec<Kept>, StoreError>> {
        self.call_in_task(|inner| async move { inner.downgrade(&request).await })
    }

    fn scan(&self, request: ScanRequest) -> BoxFuture<Result<Scanned, StoreError>> {
        self.call(|inner| async move { inner.scan(&request).await })
    }

    fn withdraw(&self, request: Arc<AcquireRequest>) -> BoxFuture<Result<Withdrawn, StoreError>> {
        self.call_in_task(|inner| async move { inner.withdraw(&request).await })
    }

    fn watch(&self, request: Arc<AcquireRequest>) -> BoxFuture<Result<Watch, StoreError>> {
        self.call_in_task(|inner| async move { inner.watch(&request).await })
    }

    fn status(&self, key: LockKey) -> BoxFuture<Result<LockStatus, StoreError>> {
        self.call(|inner| async move { inner.status(&key).await })
    }

    fn force_release(&self, key: LockKey) -> BoxFuture<Result<bool, StoreError>> {
        self.call(|inner| async move { inner.force_release(&key).await })
    }

    fn check(&self) -> BoxFuture<Result<(), StoreError>> {
        self.call(|inner| async move {
            check::check(&inner.connector, inner.options.strict, inner.options.connect_timeout).await
        })
    }

    fn semaphores(&self) -> Option<Arc<dyn SemaphoreStore>> {
        Some(Arc::new(semaphore::RedisSemaphores::new(self)))
    }

    fn latches(&self) -> Option<Arc<dyn LatchStore>> {
        Some(Arc::new(latch::RedisLatches::new(self)))
    }
}
