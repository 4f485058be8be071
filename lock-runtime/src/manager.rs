//! [`LockManager`], its builder, and the default that the macro uses.

use std::fmt;
use std::future::Future;
use std::sync::{Arc, RwLock};
use std::time::Duration;

use tokio::runtime::Handle;

use crate::clock::Clock;
use crate::config::{Config, TokenRetention};
use crate::engine::{Engine, SHORTEST_LEASE};
use crate::error::{AcquireError, ConnectError, LockError};
use crate::key::IntoLockKey;
use crate::kinds::Mutex;
use crate::store::memory::MemoryStore;
use crate::store::{LockStatus, LockStore, StoreError, StoreErrorKind};

/// The URLs that [`LockManager::connect`] understands, for error texts.
const ACCEPTED: &str = "`memory:`, `memory:NAME`, `redis://[user:password@]host[:port][/db]` or `rediss://…`";

/// A connection to a lock store, and everything this process holds there. Cheap to clone; one per store and process
/// is enough.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use std::time::Duration;
/// use lock_runtime::LockManager;
///
/// let locks = LockManager::connect("memory:").await?;
/// let guard = locks.mutex("order:42").wait(Duration::from_secs(5)).acquire().await?;
/// println!("held with token {}", guard.fencing_token());
/// guard.release().await?;
/// # Ok(()) }
/// ```
///
/// # Runtime
///
/// The manager's background tasks (renewal, waiting, releases) live on the tokio runtime on which it was built, see
/// [`LockManagerBuilder::runtime`]. When that runtime is gone, acquires fail with
/// [`AcquireError::ShutDown`] and held locks are lost.
#[derive(Clone)]
pub struct LockManager {
    engine: Arc<Engine>,
}

impl LockManager {
    /// Connects to the store at `url` with the default settings; fails when it can't be reached.
    ///
    /// | URL | store |
    /// |---|---|
    /// | `memory:` | a fresh store in this process |
    /// | `memory:NAME` | one store per name and process, shared by the managers that connect to it |
    /// | `redis://[user:password@]host[:port][/db]` | one Redis server, 6.2 or newer |
    /// | `rediss://…` | the same through TLS; needs feature `tls-rustls` or `tls-native` |
    ///
    /// # Errors
    ///
    /// [`ConnectError::Unavailable`] after at most the connect time-out (5 s), naming host and port;
    /// [`ConnectError::Misconfigured`] for a bad URL, wrong credentials, or a server that is too old.
    ///
    /// Cancel safe.
    pub async fn connect(url: impl AsRef<str>) -> Result<Self, ConnectError> {
        Self::builder().connect(url).await
    }

    /// As [`connect`](Self::connect), without asking the store: a service can start while its store is down.
    ///
    /// # Errors
    ///
    /// [`ConnectError::Misconfigured`] for a bad URL.
    pub fn connect_lazy(url: impl AsRef<str>) -> Result<Self, ConnectError> {
        Self::builder().connect_lazy(url)
    }

    /// Connects to the store named by the environment variable `LOCK_URL`.
    ///
    /// # Errors
    ///
    /// As [`connect`](Self::connect), and [`ConnectError::Misconfigured`] when the variable is not set: there is no
    /// silent default.
    pub async fn from_env() -> Result<Self, ConnectError> {
        Self::builder().from_env().await
    }

    /// Settings for a manager.
    pub fn builder() -> LockManagerBuilder {
        LockManagerBuilder::default()
    }

    /// A lock with one holder at a time, on the same keys as Redisson's `RLock`.
    pub fn mutex(&self, key: impl IntoLockKey) -> Mutex {
        let key = key.into_lock_key().map_err(AcquireError::from);
        Mutex::new(Ok(Arc::clone(&self.engine)), key)
    }

    /// What the store knows about `key`: holders, remaining time, highest token.
    ///
    /// # Errors
    ///
    /// [`LockError::Unavailable`], [`LockError::Misconfigured`] when the key holds something else than a lock, or
    /// [`LockError::InvalidKey`]. Cancel safe.
    pub async fn status(&self, key: impl IntoLockKey) -> Result<LockStatus, LockError> {
        let key = key.into_lock_key()?;
        self.engine.admin(&key, self.engine.store.status(key.clone())).await
    }

    /// Frees `key`, whoever holds it, and wakes who waits for it; `false` when it was free. A holder in this process
    /// learns of its loss at once, others at their next renewal. Fencing tokens go on growing.
    ///
    /// This breaks mutual exclusion on purpose: the old holder may still be running.
    ///
    /// # Errors
    ///
    /// As [`status`](Self::status). Dropping the future leaves it open whether the key was freed.
    pub async fn force_release(&self, key: impl IntoLockKey) -> Result<bool, LockError> {
        let key = key.into_lock_key()?;
        self.engine.force_release(&key).await
    }

    /// Ends the manager. Waiters fail with [`AcquireError::ShutDown`] at once and nothing new is granted. Bodies that
    /// hold a lock have until `grace` is over to finish; then their locks are lost, which cancels them, and released.
    /// Finally the releases that are under way are awaited, for at most two call time-outs.
    ///
    /// # Errors
    ///
    /// [`ShutdownError`] says how many locks were cut off, and whether releases are left to their leases.
    ///
    /// # Cancel safety
    ///
    /// Dropped, it leaves the manager shut down for new callers; locks that are held stay held.
    pub async fn shutdown(&self, grace: Duration) -> Result<(), ShutdownError> {
        match self.engine.shutdown(grace).await {
            (0, true) => Ok(()),
            (cut_off, drained) => Err(ShutdownError { cut_off, drained }),
        }
    }

    /// The first part of this manager's owners at the store, `<uuid>:<counter>`, as
    /// [`status`](Self::status) shows them.
    #[must_use]
    pub fn id(&self) -> &str {
        self.engine.owners.uuid()
    }

    #[cfg(feature = "testing")]
    pub(crate) fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }
}

impl AsRef<Self> for LockManager {
    fn as_ref(&self) -> &Self {
        self
    }
}

impl fmt::Debug for LockManager {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockManager")
            .field("id", &self.id())
            .field("store", &self.engine.store)
            .finish_non_exhaustive()
    }
}

/// What a [`LockManager::shutdown`] could not finish in good order.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{cut_off} locks were still held at the end of the grace time; all releases confirmed: {drained}")]
pub struct ShutdownError {
    cut_off: usize,
    drained: bool,
}

impl ShutdownError {
    /// How many locks were held when the grace time was over.
    #[must_use]
    pub fn cut_off(&self) -> usize {
        self.cut_off
    }

    /// Whether every release was answered by the store. If not, those keys are freed by the end of their leases.
    #[must_use]
    pub fn drained(&self) -> bool {
        self.drained
    }
}

#[derive(Clone, Debug, Default)]
enum Runtime {
    /// The one that is current when the manager is built.
    #[default]
    Current,
    Given(Handle),
    Dedicated,
}

/// Settings of a [`LockManager`]; made by [`LockManager::builder`].
#[derive(Clone, Debug, Default)]
#[must_use = "settings do nothing before `connect`"]
pub struct LockManagerBuilder {
    config: Config,
    runtime: Runtime,
}

impl LockManagerBuilder {
    /// Put in front of every key at the store. Default `lock:`; the empty text to share locks with Java.
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.config.prefix = prefix.into();
        self
    }

    /// Lease of locks that name none; the watchdog renews it every third of it. Default 30 s, at least 100 ms.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.config.lease = lease;
        self
    }

    /// Wait of requests that name none. Default 10 s.
    pub fn default_wait(mut self, wait: Duration) -> Self {
        self.config.default_wait = wait;
        self
    }

    /// Time-out of one call to the store. Default 2 s.
    pub fn call_timeout(mut self, timeout: Duration) -> Self {
        self.config.call_timeout = timeout;
        self
    }

    /// Time-out of connecting. Default 5 s.
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.config.connect_timeout = timeout;
        self
    }

    /// Most callers that wait for one key in this process; more get
    /// [`TooManyWaiters`](AcquireError::TooManyWaiters) at once. Default 10 000.
    pub fn max_waiters_per_key(mut self, cap: usize) -> Self {
        self.config.max_waiters_per_key = cap;
        self
    }

    /// Most callers that wait in this process. Default 100 000.
    pub fn max_waiters(mut self, cap: usize) -> Self {
        self.config.max_waiters = cap;
        self
    }

    /// Most releases under way at once; a guard that is dropped beyond that is left to its lease. Default 100 000.
    pub fn max_pending_releases(mut self, cap: usize) -> Self {
        self.config.max_pending_releases = cap;
        self
    }

    /// Longest time for which a lock is handed on inside this process before other processes get a chance. Default
    /// and maximum 250 ms; the window is also bounded by a tenth of the lease and follows the round-trip time. Zero
    /// switches hand-off off.
    pub fn cohort_window(mut self, window: Duration) -> Self {
        self.config.cohort_window = window;
        self
    }

    /// How long a release channel stays subscribed after its last waiter left. Default 5 s.
    pub fn subscription_linger(mut self, linger: Duration) -> Self {
        self.config.subscription_linger = linger;
        self
    }

    /// Longest time for which a waiter does not ask the store when no message comes. Default 5 s.
    pub fn fallback_poll(mut self, interval: Duration) -> Self {
        self.config.fallback_poll = interval;
        self
    }

    /// How long the fencing counter of a key outlives its last grant. Default 24 h.
    pub fn token_retention(mut self, retention: TokenRetention) -> Self {
        self.config.token_retention = retention;
        self
    }

    /// Connecting fails, instead of warning, when the server is configured in a way that can lose locks (a
    /// `maxmemory-policy` other than `noeviction`).
    pub fn strict(mut self) -> Self {
        self.config.strict = true;
        self
    }

    /// The runtime on which the manager's background tasks live. Default: the one in which it is built.
    pub fn runtime(mut self, handle: Handle) -> Self {
        self.runtime = Runtime::Given(handle);
        self
    }

    /// The manager's background tasks get a thread of their own, so that renewals go on while the program's executor
    /// is blocked by code that does not yield.
    pub fn dedicated_thread(mut self) -> Self {
        self.runtime = Runtime::Dedicated;
        self
    }

    /// As [`LockManager::connect`], with these settings.
    ///
    /// # Errors
    ///
    /// As [`LockManager::connect`], and [`ConnectError::Misconfigured`] for settings that contradict each other.
    pub async fn connect(self, url: impl AsRef<str>) -> Result<LockManager, ConnectError> {
        self.connect_lazy(url)?.checked().await
    }

    /// As [`LockManager::connect_lazy`], with these settings.
    ///
    /// # Errors
    ///
    /// [`ConnectError::Misconfigured`] for a bad URL or settings that contradict each other.
    pub fn connect_lazy(self, url: impl AsRef<str>) -> Result<LockManager, ConnectError> {
        self.check_settings()?;
        let url = url.as_ref();
        if let Some(name) = url.strip_prefix("memory:") {
            let (prefix, retention) = (self.config.prefix.as_str(), self.config.token_retention);
            let store = match name {
                "" => MemoryStore::new(prefix, retention),
                name => MemoryStore::named(name, prefix, retention),
            };
            return self.start(store, Clock::tokio());
        }
        if url.starts_with("redis://") || url.starts_with("rediss://") {
            return self.redis(url);
        }
        // Only the scheme is repeated: the rest may have a password.
        let scheme = url.split(':').next().unwrap_or_default();
        Err(ConnectError::misconfigured(format!("a lock URL can't begin with {scheme:?}; use {ACCEPTED}")))
    }

    /// As [`LockManager::from_env`], with these settings.
    ///
    /// # Errors
    ///
    /// As [`LockManager::from_env`].
    // The name is that of the constructor on `LockManager`.
    #[allow(clippy::wrong_self_convention)]
    pub async fn from_env(self) -> Result<LockManager, ConnectError> {
        match std::env::var("LOCK_URL") {
            Ok(url) if !url.is_empty() => self.connect(url).await,
            _ => Err(ConnectError::misconfigured(format!("LOCK_URL is not set; set it to {ACCEPTED}"))),
        }
    }

    /// A manager on a store of the caller's own making.
    ///
    /// # Errors
    ///
    /// As [`connect`](Self::connect).
    pub async fn connect_store(self, store: Arc<dyn LockStore>) -> Result<LockManager, ConnectError> {
        self.check_settings()?;
        self.start(store, Clock::Boot)?.checked().await
    }

    /// A manager on a store wrapped around the memory store, on tokio's clock.
    #[cfg(feature = "testing")]
    pub(crate) fn start_paused(self, store: Arc<dyn LockStore>) -> Result<LockManager, ConnectError> {
        self.check_settings()?;
        self.start(store, Clock::tokio())
    }

    fn start(self, store: Arc<dyn LockStore>, clock: Clock) -> Result<LockManager, ConnectError> {
        let (runtime, thread) = self.choose_runtime()?;
        let engine = Engine::start(self.config, clock, store, runtime);
        if let Some(thread) = thread {
            thread.live_as_long_as(&engine)?;
        }
        Ok(LockManager { engine })
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
                let thread = DedicatedThread::new()?;
                Ok((thread.0.handle().clone(), Some(thread)))
            }
        }
    }

    fn check_settings(&self) -> Result<(), ConnectError> {
        let config = &self.config;
        let refuse = |reason: String| Err(ConnectError::misconfigured(reason));
        if config.lease < SHORTEST_LEASE {
            return refuse(format!(
                "a lease of {:?} is too short; use {SHORTEST_LEASE:?} or more",
                config.lease
            ));
        }
        if config.call_timeout.is_zero() || config.connect_timeout.is_zero() {
            return refuse("a time-out of zero can't be met; use a second or more".to_owned());
        }
        if config.fallback_poll.is_zero() {
            return refuse("a fallback_poll of zero would ask without pause; use 100 ms or more".to_owned());
        }
        if config.max_waiters == 0 || config.max_waiters_per_key == 0 {
            return refuse("a waiter cap of zero lets nobody in; use 1 or more".to_owned());
        }
        if let TokenRetention::For(retention) = config.token_retention
            && retention < config.lease * 2
        {
            return refuse(format!(
                "a token retention of {retention:?} is shorter than two leases of {:?}; fencing tokens would \
                     not survive a hold. Use a longer one, or `TokenRetention::Keep`",
                config.lease
            ));
        }
        Ok(())
    }
}

impl LockManager {
    /// Asks the store whether it can be used, within the connect time-out.
    async fn checked(self) -> Result<Self, ConnectError> {
        let limit = self.engine.config.connect_timeout;
        let check = self.engine.store.check();
        match tokio::time::timeout(limit + limit / 10, check).await {
            Ok(Ok(())) => Ok(self),
            Ok(Err(error)) => Err(error.into()),
            Err(_) => {
                let message = format!("{:?} did not answer within {limit:?}", self.engine.store);
                Err(StoreError::new(StoreErrorKind::Unreachable, message).into())
            }
        }
    }
}

/// A thread with a runtime for the manager's tasks alone.
struct DedicatedThread(tokio::runtime::Runtime);

impl DedicatedThread {
    fn new() -> Result<Self, ConnectError> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.map(Self).map_err(|error| {
            ConnectError::misconfigured(format!("the dedicated thread's runtime could not be made: {error}"))
        })
    }

    fn live_as_long_as(self, engine: &Arc<Engine>) -> Result<(), ConnectError> {
        let ended = engine.ended();
        let thread = std::thread::Builder::new().name("lock-manager".to_owned());
        let spawned = thread.spawn(move || self.0.block_on(ended.cancelled()));
        spawned.map(drop).map_err(|error| {
            ConnectError::misconfigured(format!("the dedicated thread could not be started: {error}"))
        })
    }
}

// ---- the default -----------------------------------------------------------------------------------------------

static DEFAULT: RwLock<Option<LockManager>> = RwLock::new(None);

tokio::task_local! {
    static OVERRIDE: LockManager;
}

/// Sets the manager that `#[distributed_lock]` uses when it is given no other, for the whole process. Returns the
/// one that was set before.
pub fn set_default(locks: LockManager) -> Option<LockManager> {
    DEFAULT.write().unwrap_or_else(std::sync::PoisonError::into_inner).replace(locks)
}

/// The manager that `#[distributed_lock]` would use here: the innermost [`with_default`] around this code, else the
/// one given to [`set_default`].
#[must_use]
pub fn default_manager() -> Option<LockManager> {
    let here = OVERRIDE.try_with(Clone::clone).ok();
    here.or_else(|| DEFAULT.read().unwrap_or_else(std::sync::PoisonError::into_inner).clone())
}

/// Runs `future` with `locks` as its default manager: for tests that run side by side, and for services with
/// several stores. Tasks that `future` spawns do not inherit it.
///
/// Cancel safe if `future` is.
pub fn with_default<F: Future>(locks: LockManager, future: F) -> impl Future<Output = F::Output> {
    OVERRIDE.scope(locks, future)
}

/// The default manager's mutex; without a default, acquiring it says what to do.
pub(crate) fn default_mutex(key: impl IntoLockKey) -> Mutex {
    match default_manager() {
        Some(locks) => locks.mutex(key),
        None => {
            let reason = "no lock manager is set; call `lock_runtime::set_default(locks)` at start-up, or name one \
                          with `manager = …`";
            Mutex::new(
                Err(AcquireError::misconfigured(reason)),
                key.into_lock_key().map_err(AcquireError::from),
            )
        }
    }
}

#[cfg(not(feature = "redis"))]
impl LockManagerBuilder {
    // The twin of the function that is there with the feature.
    #[allow(clippy::needless_pass_by_value, clippy::unused_self)]
    fn redis(self, _: &str) -> Result<LockManager, ConnectError> {
        Err(ConnectError::misconfigured("this build has no Redis store; switch on the feature `redis`"))
    }
}
