//! [`LockManagerBuilder`]: the settings of a manager, their checks, and the choice of its runtime.

#[cfg(feature = "redis")]
use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use lock_core::internal::Owners;
use lock_core::internal::clock::Clock;
use lock_core::internal::sync::CachePadded;
use lock_core::internal::time;
use lock_core::store::LockStore;
use lock_core::{InvalidKey, LockKey, Replication, TokenRetention};
use lock_engine::settings::EngineSettings;
use lock_engine::{Engine, LONGEST, SHORTEST_POLL, out_of_range};
#[cfg(feature = "redis")]
use lock_store_redis::{Credentials, Endpoint, Provider};
use tokio::runtime::Handle;

use crate::error::ConnectError;

/// Minimum time-out: a shorter one is a mistake, such as the wrong unit.
const SHORTEST_TIMEOUT: Duration = Duration::from_millis(1);

#[derive(Clone, Debug, Default)]
enum Runtime {
    /// The runtime that is current when the manager is built.
    #[default]
    Current,
    Given(Handle),
    Dedicated,
}

/// Settings of a [`LockManager`](crate::LockManager); made by
/// [`LockManager::builder`](crate::LockManager::builder).
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lock_runtime::ConnectError> {
/// use std::time::Duration;
/// use lock_runtime::LockManager;
///
/// let locks = LockManager::builder()
///     .prefix("shop:")
///     .lease(Duration::from_secs(10))
///     .default_wait(Duration::from_secs(2))
///     .connect("memory:") // or redis://…
///     .await?;
/// # Ok(()) }
/// ```
///
/// | method | sets | default | bounds |
/// |---|---|---|---|
/// | [`prefix`](Self::prefix) | the prefix of every key at the store | `lock:` | valid at the start of a [key](LockKey) |
/// | [`lease`](Self::lease) | the lease of locks that name none | 30 s | 100 ms to 366 days |
/// | [`default_wait`](Self::default_wait) | the wait of requests that name none | 10 s | |
/// | [`call_timeout`](Self::call_timeout) | the time-out of one call to the store | 2 s | at least 1 ms |
/// | [`connect_timeout`](Self::connect_timeout) | the time-out of making a connection | 5 s | at least 1 ms |
/// | [`max_waiters`](Self::max_waiters) | the cap on waiting callers, for all keys together | 100 000 | at least 1 |
/// | [`max_waiters_per_key`](Self::max_waiters_per_key) | the same for one key | 10 000 | at least 1 |
/// | [`max_fair_waiters_per_key`](Self::max_fair_waiters_per_key) | the same for one fair lock | 10 000 | at least 1 |
/// | [`max_pending_releases`](Self::max_pending_releases) | the cap on releases under way | 100 000 | |
/// | [`cohort_window`](Self::cohort_window) | the longest time of hand-offs inside this process | 250 ms | at most 250 ms |
/// | [`fallback_poll`](Self::fallback_poll) | the interval at which waiters ask without a message | 5 s | at least 10 ms |
/// | [`subscription_linger`](Self::subscription_linger) | how long an unused subscription stays | 5 s | |
/// | [`token_retention`](Self::token_retention) | how long fencing counters are kept | 15 min | at least 1 s |
/// | [`replication`](Self::replication) | the replicas that confirm a grant | none | |
/// | [`replicas`](Self::replicas) | the number of replicas of a `redis://` server | unknown | |
/// | [`max_lease`](Self::max_lease) | the longest lease on a quorum | 60 s | at least `lease` |
/// | [`strict`](Self::strict) | whether a dangerous server setting is an error | a warning | |
#[cfg_attr(
    feature = "redis",
    doc = "| [`credentials`](Self::credentials) | a source of user and password | those of the URL | |"
)]
/// | [`runtime`](Self::runtime), [`dedicated_thread`](Self::dedicated_thread) | the runtime of the background tasks | the current one | |
///
/// Values out of bounds make the connecting call fail with [`ConnectError::Misconfigured`]. A
/// `cohort_window` above its bound counts as 250 ms.
#[derive(Clone, Debug, Default)]
#[must_use = "settings do nothing before `connect`"]
pub struct LockManagerBuilder {
    pub(crate) engine: EngineSettings,
    pub(crate) store: StoreSettings,
    runtime: Runtime,
}

/// Settings of the stores; the defaults are the documented ones.
#[derive(Clone, Debug)]
pub(crate) struct StoreSettings {
    /// Prefix of every key at the store.
    pub(crate) prefix: String,
    /// Time-out of making a connection.
    pub(crate) connect_timeout: Duration,
    /// How long a release channel stays subscribed after its last waiter left.
    pub(crate) subscription_linger: Duration,
    /// Maximum lease on a quorum of servers.
    pub(crate) max_lease: Duration,
    /// Number of replicas of a single primary.
    pub(crate) replicas: Option<u32>,
    /// Whether warnings about the server's configuration are errors.
    pub(crate) strict: bool,
    /// Returns user and password for each connection.
    #[cfg(feature = "redis")]
    pub(crate) credentials: Option<Provider>,
}

impl Default for StoreSettings {
    fn default() -> Self {
        Self {
            prefix: "lock:".to_owned(),
            connect_timeout: Duration::from_secs(5),
            subscription_linger: Duration::from_secs(5),
            max_lease: Duration::from_secs(60),
            replicas: None,
            strict: false,
            #[cfg(feature = "redis")]
            credentials: None,
        }
    }
}

impl LockManagerBuilder {
    /// Sets the prefix of every key at the store. Default `lock:`. Set the empty text to share
    /// locks with Java.
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.store.prefix = prefix.into();
        self
    }

    /// Sets the lease of locks that name none. Default 30 s, at least 100 ms. The watchdog renews
    /// such a lock every third of its lease.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.engine.lease = lease;
        self
    }

    /// Sets the wait of requests that name none. Default 10 s; zero is one attempt.
    pub fn default_wait(mut self, wait: Duration) -> Self {
        self.engine.default_wait = wait;
        self
    }

    /// Sets the time-out of one call to the store. Default 2 s, at least 1 ms.
    pub fn call_timeout(mut self, timeout: Duration) -> Self {
        self.engine.call_timeout = timeout.min(LONGEST);
        self
    }

    /// Sets the time-out of making a connection. Default 5 s, at least 1 ms.
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.store.connect_timeout = timeout.min(LONGEST);
        self
    }

    /// Sets the maximum number of the manager's callers that wait for one key. Default 10 000.
    /// Any more fail with [`TooManyWaiters`](crate::LockError::TooManyWaiters) at once.
    pub fn max_waiters_per_key(mut self, cap: usize) -> Self {
        self.engine.max_waiters_per_key = cap;
        self
    }

    /// Sets the same maximum for a fair lock, where it is less than
    /// [`max_waiters_per_key`](Self::max_waiters_per_key). Default 10 000. Each waiter of a fair
    /// lock has a place and a channel at the store.
    pub fn max_fair_waiters_per_key(mut self, cap: usize) -> Self {
        self.engine.max_fair_waiters_per_key = cap;
        self
    }

    /// Sets the maximum number of the manager's callers that wait, for locks, permits and latches
    /// together. Default 100 000.
    pub fn max_waiters(mut self, cap: usize) -> Self {
        self.engine.max_waiters = cap;
        self
    }

    /// Sets the maximum number of releases under way at once. Default 100 000. A guard that is
    /// dropped beyond it is left to its lease.
    pub fn max_pending_releases(mut self, cap: usize) -> Self {
        self.engine.max_pending_releases = cap;
        self
    }

    /// Sets the longest time for which a lock is handed on inside this process before other
    /// processes get a chance. Default and maximum 250 ms. The window is also bounded by a tenth of
    /// the lease, and follows the round-trip time. Zero switches hand-off off.
    pub fn cohort_window(mut self, window: Duration) -> Self {
        self.engine.cohort_window = window;
        self
    }

    /// Sets how long a release channel stays subscribed after its last waiter left. Default 5 s.
    pub fn subscription_linger(mut self, linger: Duration) -> Self {
        self.store.subscription_linger = linger.min(LONGEST);
        self
    }

    /// Sets the longest time for which a waiter does not ask the store while no message comes.
    /// Default 5 s, at least 10 ms.
    pub fn fallback_poll(mut self, interval: Duration) -> Self {
        self.engine.fallback_poll = interval.min(LONGEST);
        self
    }

    /// Sets how long a key's fencing counter outlives its last hold, for locks that [name no
    /// retention](crate::Lock::token_retention). Default 15 minutes, at least a second. On Redis, a
    /// counter takes about 180 bytes.
    pub fn token_retention(mut self, retention: TokenRetention) -> Self {
        self.engine.token_retention = retention;
        self
    }

    /// Sets how many replicas have to confirm a grant before it counts, for locks that [name no
    /// replication](crate::Lock::replication). Default [`Replication::NONE`].
    ///
    /// This is for locks only: permits of semaphores never wait for replicas.
    pub fn replication(mut self, replication: Replication) -> Self {
        self.engine.replication = replication;
        self
    }

    /// Sets how many replicas the primary has, including those that are down, for
    /// [`Replication::majority`]. Needed with a `redis://` address only: Sentinel and Cluster know
    /// the number.
    pub fn replicas(mut self, replicas: u32) -> Self {
        self.store.replicas = Some(replicas);
        self
    }

    /// Sets the longest lease on a `quorum:` of servers, and the longest `min_hold`; longer ones
    /// are refused. Default 60 s. Other stores ignore it.
    ///
    /// A server that restarts without its data has no vote for this long: by then, the locks that
    /// it has forgotten are over. *All programs that use the servers have to set the same value.*
    pub fn max_lease(mut self, max_lease: Duration) -> Self {
        self.store.max_lease = max_lease.min(LONGEST);
        self
    }

    /// Makes connecting fail with [`ConnectError::Misconfigured`], instead of warning, when the
    /// server is configured in a way that can lose locks (a `maxmemory-policy` other than
    /// `noeviction`).
    pub fn strict(mut self) -> Self {
        self.store.strict = true;
        self
    }

    /// Asks `provider` for user and password whenever a connection to a Redis server is made,
    /// instead of using those of the URL. This is for passwords that are rotated, and for tokens
    /// that expire. The provider is asked for the nodes of a cluster, for the primary that
    /// sentinels name, and for the sentinels themselves, see [`Endpoint::is_sentinel`]. Sentinels
    /// are connected to whenever the primary is, and about every 10 s. If a token takes long to
    /// get, the provider should keep it until it expires.
    ///
    /// The `connect_timeout` covers the provider and the connection together. An error of the
    /// provider is part of the error of the call that needs the connection. If a server refuses the
    /// credentials, the provider is asked for new ones for as long as callers wait, since they may
    /// have changed. A live connection is not interrupted: when a token expires, the server closes
    /// the connection or forgets its owner, and a new one is made.
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), lock_runtime::ConnectError> {
    /// use lock_runtime::{Credentials, LockManager};
    ///
    /// let locks = LockManager::builder()
    ///     .credentials(|_| async {
    ///         let token = tokio::fs::read_to_string("/run/secrets/redis").await?;
    ///         Ok::<_, std::io::Error>(Credentials::user("locks", token.trim_end()))
    ///     })
    ///     .connect("rediss://cache.example.com:6379")
    ///     .await?;
    /// # Ok(())
    /// # }
    /// ```
    #[cfg(feature = "redis")]
    pub fn credentials<F, Fut, E>(mut self, provider: F) -> Self
    where
        F: Fn(Endpoint) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<Credentials, E>> + Send + 'static,
        E: Into<Box<dyn Error + Send + Sync>>,
    {
        self.store.credentials = Some(Provider::new(provider));
        self
    }

    /// Sets the runtime on which the manager's background tasks run. Default: the runtime in which
    /// the manager is built.
    pub fn runtime(mut self, handle: Handle) -> Self {
        self.runtime = Runtime::Given(handle);
        self
    }

    /// Runs the manager's background tasks on their own thread. Renewals then go on while code that
    /// does not yield blocks the program's executor.
    pub fn dedicated_thread(mut self) -> Self {
        self.runtime = Runtime::Dedicated;
        self
    }

    /// Starts an engine on the store that `open` makes from these settings.
    pub(crate) fn start(
        mut self,
        clock: Clock,
        open: impl FnOnce(&Self, &Handle) -> Result<Arc<dyn LockStore>, ConnectError>,
    ) -> Result<Arc<Engine>, ConnectError> {
        self.check_settings()?;
        let (runtime, thread) = self.choose_runtime()?;
        if !time::has_timers(&runtime) {
            return Err(ConnectError::misconfigured(
                "the tokio runtime has no timers; build it with `enable_all()`",
            ));
        }
        // A builder may be used again, and each manager needs its own owners.
        self.engine.owners = Arc::new(CachePadded(Owners::default()));
        let store = open(&self, &runtime)?;
        let engine = Engine::start(self.engine, clock, store, runtime);
        if let Some(thread) = thread {
            thread.live_as_long_as(&engine)?;
        }
        Ok(engine)
    }

    fn choose_runtime(&self) -> Result<(Handle, Option<DedicatedThread>), ConnectError> {
        match &self.runtime {
            Runtime::Given(handle) => Ok((handle.clone(), None)),
            Runtime::Current => match Handle::try_current() {
                Ok(handle) => Ok((handle, None)),
                Err(_) => Err(ConnectError::misconfigured(
                    "there is no tokio runtime here; build the manager inside one, or give the builder \
                     `.runtime(handle)` or `.dedicated_thread()`",
                )),
            },
            Runtime::Dedicated => {
                let (handle, thread) = DedicatedThread::new()?;
                Ok((handle, Some(thread)))
            }
        }
    }

    fn check_settings(&self) -> Result<(), ConnectError> {
        let (engine, store) = (&self.engine, &self.store);
        let refuse = |reason: String| Err(ConnectError::misconfigured(reason));
        if let Some(reason) = out_of_range(engine.lease) {
            return refuse(reason);
        }
        if let Err(invalid) = LockKey::new(format!("{}k", store.prefix)) {
            let invalid = InvalidKey::new(&*store.prefix, invalid.reason());
            let (prefix, reason) = (invalid.text(), invalid.reason());
            return refuse(format!("no lock key can begin with the prefix {prefix:?}: {reason}"));
        }
        for (name, limit) in
            [("call_timeout", engine.call_timeout), ("connect_timeout", store.connect_timeout)]
        {
            if limit < SHORTEST_TIMEOUT {
                return refuse(format!(
                    "a {name} of {limit:?} is too short for any store; use at least {SHORTEST_TIMEOUT:?}, better a second"
                ));
            }
        }
        if engine.fallback_poll < SHORTEST_POLL {
            let poll = engine.fallback_poll;
            return refuse(format!(
                "a fallback_poll of {poll:?} would ask the store without pause; use {SHORTEST_POLL:?} or more"
            ));
        }
        let caps = [engine.max_waiters, engine.max_waiters_per_key, engine.max_fair_waiters_per_key];
        if caps.contains(&0) {
            return refuse("a cap of zero waiters refuses every caller; use 1 or more".to_owned());
        }
        engine.token_retention.refusal().map_or(Ok(()), refuse)
    }
}

/// A runtime for the manager's tasks alone, and for the thread that runs it.
struct DedicatedThread(Option<tokio::runtime::Runtime>);

impl Drop for DedicatedThread {
    fn drop(&mut self) {
        // A manager that could not be built is dropped inside the caller's runtime, where a drop
        // that blocks panics.
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

impl DedicatedThread {
    fn new() -> Result<(Handle, Self), ConnectError> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.map(|runtime| (runtime.handle().clone(), Self(Some(runtime)))).map_err(|error| {
            ConnectError::misconfigured(format!(
                "the runtime of the dedicated thread could not be built: {error}"
            ))
        })
    }

    fn live_as_long_as(self, engine: &Arc<Engine>) -> Result<(), ConnectError> {
        let ended = engine.ended();
        let thread = std::thread::Builder::new().name("lock-manager".to_owned());
        let run = move || self.0.as_ref().map(|runtime| runtime.block_on(ended.cancelled()));
        let spawned = thread.spawn(run);
        spawned.map(drop).map_err(|error| {
            ConnectError::misconfigured(format!("the dedicated thread could not be started: {error}"))
        })
    }
}
