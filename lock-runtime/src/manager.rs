//! [`LockManager`]: one store, and everything this process holds there.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use lock_core::store::{Kind, Lacked, LockStatus, StoreError};
use lock_core::{IntoLockKey, LockKey};
use lock_engine::Engine;
use lock_engine::spec::Spec;

use crate::counting::{CountDownLatch, Counting, Semaphore};
use crate::error::{LockError, ShutdownError};
use crate::kinds::{Lock, MultiKey, sorted};
use crate::list::LockList;
use crate::segmented::{SegmentedLock, SegmentedStock, StockError};

/// The key that [`LockManager::health`] reads. It is never locked.
const HEALTH_KEY: &str = "lock-runtime-health";

/// A connection to a lock store, and everything this process holds there. Cheap to clone; one per
/// store and process is enough.
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
/// | methods | |
/// |---|---|
/// | [`connect`](Self::connect), [`connect_lazy`](Self::connect_lazy), [`from_env`](Self::from_env), [`builder`](Self::builder) | make a manager, or its [builder](crate::LockManagerBuilder) |
/// | [`mutex`](Self::mutex), [`fair`](Self::fair), [`read`](Self::read), [`write`](Self::write), [`multi`](Self::multi) | return a [`Lock`] of that kind |
/// | [`semaphore`](Self::semaphore), [`latch`](Self::latch) | return a [`Semaphore`], a [`CountDownLatch`] |
/// | [`segmented`](Self::segmented), [`stock`](Self::stock) | return a [`SegmentedLock`], a [`SegmentedStock`] |
/// | [`blocking`](Self::blocking) | returns this manager for threads without a runtime |
/// | [`health`](Self::health) | asks the store for its state, for readiness probes |
/// | [`status`](Self::status), [`list`](Self::list) | return the state of a key, of all keys with a prefix |
/// | [`force_release`](Self::force_release) | frees a key, whatever its holder |
/// | [`shutdown`](Self::shutdown) | ends the manager |
///
/// # Runtime
///
/// The manager's background tasks (renewal, waiting, releases) run on the tokio runtime on which it
/// was built. That runtime needs `enable_all`, which `#[tokio::main]` switches on. Programs that
/// block their runtime, or have none, use
/// [`dedicated_thread`](crate::LockManagerBuilder::dedicated_thread). When the runtime is gone,
/// acquires fail with [`LockError::ShutDown`] and held locks are lost.
///
/// Any executor may poll the futures of this crate, and guards may be dropped anywhere. A future's
/// time-outs are counted by the tokio runtime in whose context it is first polled, which has to
/// run, with timers. Under another executor, the manager's runtime counts them.
///
/// A process that forks has to build its managers afterwards. A child that used a manager of its
/// parent would have the same owners at the store, which could not tell the two processes apart.
#[derive(Clone)]
#[doc(alias = "RedissonClient")]
#[doc(alias = "LockProvider")]
#[doc(alias = "redlock")]
pub struct LockManager {
    engine: Arc<Engine>,
    counting: Arc<Counting>,
}

impl LockManager {
    /// Returns a lock with one holder at a time. It uses the same keys as Redisson's `RLock`.
    ///
    /// # Fairness
    ///
    /// Callers of one process get the lock in the order in which they were first polled. A caller
    /// that is not polled when its turn comes lets others pass. Between processes, the next holder
    /// is decided by a race; see [`fair`](Self::fair). A process hands the lock on among its own
    /// callers for a short window (at most 250 ms), and then lets other processes have it.
    #[doc(alias = "lock")]
    #[doc(alias = "RLock")]
    #[doc(alias = "getLock")]
    #[doc(alias = "named_lock")]
    pub fn mutex(&self, key: impl IntoLockKey) -> Lock {
        self.of_kind(Kind::Mutex, key)
    }

    /// Returns a lock with one holder at a time, which serves the waiters of all processes in the
    /// order in which the store heard of them. It uses the same keys as Redisson's fair lock.
    ///
    /// Every wait takes a place in the store's queue, which has to be kept alive, and every
    /// hand-off takes a message. A fair lock is therefore slower than a [`mutex`](Self::mutex)
    /// wherever many callers of one process want one key. A waiter loses its place when its process
    /// is gone or stands still for 3 s. A try does not overtake waiters.
    #[doc(alias = "getFairLock")]
    pub fn fair(&self, key: impl IntoLockKey) -> Lock {
        self.of_kind(Kind::Fair, key)
    }

    /// Returns the reading side of a readers-writer lock: many readers at a time, none beside a
    /// writer. It uses the same keys as Redisson's `RReadWriteLock`.
    ///
    /// Readers of one process that have the default lease share one hold, and one fencing token,
    /// while the hold is young (its window is at most 250 ms). While a [writer](Self::write) waits,
    /// no new reader enters, in any Rust process; Java's readers do not know of it. Two keys that
    /// are read one inside the other therefore need one order everywhere, also in a writer of both.
    /// Take them together, with [`multi`](Self::multi), or give the inner one a limited wait.
    #[doc(alias = "RwLock")]
    #[doc(alias = "rwlock")]
    #[doc(alias = "RReadWriteLock")]
    pub fn read(&self, key: impl IntoLockKey) -> Lock {
        self.of_kind(Kind::Read, key)
    }

    /// Returns the writing side of a readers-writer lock: one holder at a time. It uses the same
    /// keys as Redisson's `RReadWriteLock`.
    ///
    /// A writer may read inside, and [become a reader](crate::LockGuard::downgrade). A reader can't
    /// become a writer: the attempt fails with [`LockError::KindConflict`].
    #[doc(alias = "RwLock")]
    #[doc(alias = "rwlock")]
    #[doc(alias = "RReadWriteLock")]
    pub fn write(&self, key: impl IntoLockKey) -> Lock {
        self.of_kind(Kind::Write, key)
    }

    /// Returns a lock of several keys, taken all or none: one wait, one guard, one lost signal, and
    /// a [token for each key](crate::LockGuard::tokens). Keys are mutexes unless a [`MultiKey`]
    /// says otherwise.
    ///
    /// The keys, at most 1000, are sorted and taken in one step, so two calls can't deadlock. Keys
    /// that enclosing calls hold are entered again, and the others are taken.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use lock_runtime::{LockManager, MultiKey};
    ///
    /// let locks = LockManager::connect("memory:").await?;
    /// let transfer = locks.multi(["account:1", "account:2"]).acquire().await?;
    /// assert_eq!(transfer.tokens().len(), 2);
    /// let mixed = locks.multi([MultiKey::read("rates"), MultiKey::write("account:3")]).acquire().await?;
    /// # drop((transfer, mixed)); Ok(()) }
    /// ```
    #[doc(alias = "RedissonMultiLock")]
    #[doc(alias = "getMultiLock")]
    pub fn multi<K: Into<MultiKey>>(&self, keys: impl IntoIterator<Item = K>) -> Lock {
        Lock::new(Ok(Arc::clone(&self.engine)), sorted(keys.into_iter().map(Into::into)))
    }

    /// Returns the locks of a hot item that is split into `segments` parts, see [`SegmentedLock`].
    pub fn segmented(&self, name: impl IntoLockKey, segments: u32) -> SegmentedLock {
        let name = name.into_lock_key().map_err(LockError::from);
        SegmentedLock::new(self.template(), name, segments)
    }

    /// Returns the stock of this name, in segments, at the manager's store; see [`SegmentedStock`].
    pub fn stock(&self, name: impl IntoLockKey) -> SegmentedStock {
        let name = name.into_lock_key().map_err(|error| StockError::Lock(error.into()));
        let store = |name: &LockKey| {
            self.engine.store.stocks().ok_or_else(|| StockError::Misconfigured {
                reason: format!("stock {name}: {}", self.engine.store.abilities().lack(Lacked::Stocks))
                    .into(),
            })
        };
        SegmentedStock::at(name.and_then(|name| Ok((store(&name)?, name))))
    }

    pub(crate) fn runtime(&self) -> &tokio::runtime::Handle {
        &self.engine.runtime
    }

    /// Returns a lock without a key, for [`Lock::of`].
    pub(crate) fn template(&self) -> Lock {
        Lock::new(Ok(Arc::clone(&self.engine)), Err(LockError::misconfigured("a lock without a key")))
    }

    pub(crate) fn of_kind(&self, kind: Kind, key: impl IntoLockKey) -> Lock {
        let key = key.into_lock_key().map_err(LockError::from);
        Lock::new(Ok(Arc::clone(&self.engine)), key.map(|key| (key, Spec::one(kind))))
    }

    /// Returns a semaphore: a number of permits, each held by one holder at a time, see
    /// [`Semaphore`]. It uses the same keys as Redisson's `RPermitExpirableSemaphore`.
    ///
    /// Permits are leased and renewed like locks, so those of a crashed process come back after at
    /// most one lease.
    #[doc(alias = "RPermitExpirableSemaphore")]
    pub fn semaphore(&self, name: impl IntoLockKey) -> Semaphore {
        let name = name.into_lock_key().map_err(LockError::from);
        Semaphore::new(Arc::clone(&self.counting), name)
    }

    /// Returns a count-down latch: callers wait until others have counted it down to zero, see
    /// [`CountDownLatch`]. It uses the same keys as Redisson's `RCountDownLatch`.
    #[doc(alias = "RCountDownLatch")]
    pub fn latch(&self, name: impl IntoLockKey) -> CountDownLatch {
        let name = name.into_lock_key().map_err(LockError::from);
        CountDownLatch::new(Arc::clone(&self.counting), name)
    }

    /// Returns what the store knows about `key`: its kind, its holders and how often each has
    /// entered, the remaining time, the number of waiters, and the highest token.
    ///
    /// # Errors
    ///
    /// [`LockError::Unavailable`], [`LockError::Misconfigured`] when the key holds something other
    /// than a lock, or [`LockError::InvalidKey`]. Cancel safe.
    #[doc(alias = "isLocked")]
    #[doc(alias = "owner")]
    #[doc(alias = "holder")]
    pub async fn status(&self, key: impl IntoLockKey) -> Result<LockStatus, LockError> {
        let key = key.into_lock_key()?;
        let status = self.engine.bounded(|store| store.status(key.clone())).await;
        status.map_err(|error| LockError::from_store(key, error))
    }

    /// Reads one key at the store. Returns how long that took, and the store's last error; for
    /// readiness probes. Changes nothing. In a cluster, the answer always comes from the primary
    /// that has this key; in a quorum, it takes a majority.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let locks = lock_runtime::LockManager::connect("memory:").await?;
    /// let health = locks.health().await?;
    /// println!("{} answers within {:?}", health.store(), health.latency());
    /// # Ok(()) }
    /// ```
    ///
    /// A server that answers but refuses writes, because it is a replica or full, shows in the last
    /// error only: look at [`Health::last_error`] too, or take a lock. On Redis, the key is
    /// `lock-runtime-health` behind the prefix. Reading it needs the rights of a mutex, see
    /// `docs/book/src/stores/redis.md`.
    ///
    /// A pod whose store is down should answer "not ready" rather than "not alive": restarting it
    /// does not help.
    ///
    /// # Errors
    ///
    /// - [`LockError::Store`]: the store can't be reached, or has not answered within the call
    ///   time-out.
    /// - [`LockError::Misconfigured`]: the store answered with an error that no retry can cure.
    /// - [`LockError::ShutDown`]: the manager was shut down.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe.
    #[doc(alias = "ping")]
    pub async fn health(&self) -> Result<Health, LockError> {
        let key = LockKey::new(HEALTH_KEY)?;
        if self.engine.shut_down.load(Ordering::Acquire) {
            return Err(LockError::ShutDown { key });
        }
        let asked = self.engine.clock.now();
        self.engine.bounded(|store| store.status(key)).await?;
        let now = self.engine.clock.now();
        Ok(Health {
            store: format!("{:?}", self.engine.store),
            latency: now.since(asked),
            last_error: self.engine.last_error().map(|(at, error)| (error, now.since(at))),
        })
    }

    /// Lists the held locks whose keys begin with `prefix` (all, if it is empty), page by page.
    /// Scans the store's keys in small steps that block no other client. On a Redis server with
    /// many other keys, it takes long.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let locks = lock_runtime::LockManager::connect("memory:").await?;
    /// let _held = locks.mutex("order:42").acquire().await?;
    /// let mut list = locks.list("order:");
    /// while let Some(page) = list.next_page().await? {
    ///     for (key, status) in page {
    ///         println!("{key}: {:?} for {:?}", status.holders, status.remaining);
    ///     }
    /// }
    /// # Ok(()) }
    /// ```
    pub fn list(&self, prefix: impl Into<String>) -> LockList {
        LockList::new(Arc::clone(&self.engine), prefix.into())
    }

    /// Frees `key`, whatever its holder and kind, and wakes its waiters. Returns `false` when it
    /// was free. A holder in this process learns of its loss at once, others at their next renewal.
    /// Fencing tokens go on growing.
    ///
    /// This breaks mutual exclusion on purpose: the old holder may still be running.
    ///
    /// # Errors
    ///
    /// As [`status`](Self::status), and [`LockError::ShutDown`] when the manager's runtime is gone.
    ///
    /// # Cancel safety
    ///
    /// The call is dispatched by the first poll and goes on when the future is dropped.
    #[doc(alias = "forceUnlock")]
    #[doc(alias = "unlock")]
    pub async fn force_release(&self, key: impl IntoLockKey) -> Result<bool, LockError> {
        let key = key.into_lock_key()?;
        let freed = self.engine.force_release(&key).await;
        freed.map_err(|failure| LockError::of(key, failure))
    }

    /// Ends the manager. Waiters fail with [`LockError::ShutDown`] at once, and nothing new is
    /// granted. Bodies that hold a lock have until `grace` is over to finish. Then their locks are
    /// lost and released, and the bodies are cancelled. Finally, the releases under way are
    /// awaited, for at most two call time-outs. Releases that the store has not answered by the end
    /// of their lease are not awaited. They are sent again for as long as the manager exists.
    /// Stocks hold nothing in this process, so their handles go on working.
    ///
    /// # Errors
    ///
    /// [`ShutdownError`] says how many locks were cut off, and whether releases are left to their
    /// leases.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves the manager shut down for new callers; held locks stay held.
    pub async fn shutdown(&self, grace: Duration) -> Result<(), ShutdownError> {
        self.counting.shut_down();
        match self.engine.shutdown(grace).await {
            (0, true) => Ok(()),
            (cut_off, drained) => Err(ShutdownError::new(cut_off, drained)),
        }
    }

    /// Returns the first part of this manager's owners, which are `<uuid>:<counter>` at the store,
    /// as [`status`](Self::status) shows them.
    #[must_use]
    pub fn id(&self) -> &str {
        self.engine.settings.owners.uuid()
    }

    /// Makes the handle of a started engine.
    pub(crate) fn on(engine: Arc<Engine>) -> Self {
        Self { counting: Arc::new(Counting::new(Arc::clone(&engine))), engine }
    }

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

/// The state of the store; made by [`LockManager::health`].
#[derive(Clone, Debug)]
pub struct Health {
    store: String,
    latency: Duration,
    last_error: Option<(StoreError, Duration)>,
}

impl Health {
    /// Returns the store as its `Debug` shows it: without a password.
    #[must_use]
    pub fn store(&self) -> &str {
        &self.store
    }

    /// Returns how long the store took to answer.
    #[must_use]
    pub fn latency(&self) -> Duration {
        self.latency
    }

    /// Returns the last error of a store call for this manager's locks, and how long ago it was.
    /// `None` when there was none.
    #[must_use]
    pub fn last_error(&self) -> Option<(&StoreError, Duration)> {
        self.last_error.as_ref().map(|(error, ago)| (error, *ago))
    }
}
