//! [`Lock`]: a request for a lock of any kind.

use std::fmt;
use std::ops::AsyncFnOnce;
use std::sync::Arc;
use std::time::Duration;

use lock_core::{LockKey, Replication, TokenRetention};
use lock_engine::Engine;
#[cfg(feature = "layer")]
use lock_engine::out_of_range;
use lock_engine::request::Request;
use lock_engine::settings::EngineSettings;
use lock_engine::spec::Spec;
use lock_engine::terms::{Lease, Terms, Wait};

use crate::acquire::Acquire;
use crate::body::{OnLost, Run};
use crate::error::LockError;
use crate::guard::{HeldLock, LockGuard};

/// Minimum `max_hold`: a shorter one is a mistake, such as the wrong unit.
const SHORTEST_HOLD: Duration = Duration::from_millis(1);

/// A lock of any kind; made by [`LockManager::mutex`](crate::LockManager::mutex),
/// [`fair`](crate::LockManager::fair), [`read`](crate::LockManager::read),
/// [`write`](crate::LockManager::write) and [`multi`](crate::LockManager::multi), which describe
/// the kinds.
///
/// A value of this type is a request that has not been made yet. Set the wait and the lease, then
/// call [`acquire`](Self::acquire), [`try_acquire`](Self::try_acquire) or [`with`](Self::with).
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lock_runtime::LockError> {
/// # use std::time::Duration;
/// # let locks = lock_runtime::LockManager::connect("memory:").await?;
/// let order = locks.mutex("order:42").wait(Duration::from_secs(5)).max_hold(Duration::from_secs(60));
/// let guard = order.acquire().await?;
/// println!("shipping with token {}", guard.fencing_token());
/// guard.release().await?;
/// # Ok(()) }
/// ```
///
/// | method | sets | default | bounds |
/// |---|---|---|---|
/// | [`wait`](Self::wait) | how long to wait for the lock | the manager's `default_wait`, 10 s | zero is `no_wait` |
/// | [`wait_forever`](Self::wait_forever) | a wait without limit | | |
/// | [`no_wait`](Self::no_wait) | a single attempt | | |
/// | [`lease`](Self::lease) | a fixed lease, which is not renewed | the manager's `lease`, 30 s, renewed | 100 ms to 366 days, at least four round trips and `min_hold` |
/// | [`max_hold`](Self::max_hold) | the longest time for which the lock is held | no limit | at least 1 ms and `min_hold` |
/// | [`min_hold`](Self::min_hold) | the shortest time for which the key stays taken | none | at most a fixed `lease`, and `max_hold` |
/// | [`max_waiters`](Self::max_waiters) | the cap on callers of this process that wait for the key | the manager's caps | at least 1 |
/// | [`token_retention`](Self::token_retention) | how long the fencing counter is kept | the manager's, 15 min | at least 1 s |
/// | [`replication`](Self::replication) | the replicas that confirm the grant | the manager's, none | |
/// | [`name`](Self::name) | the label `lock` in metrics | the empty text | |
///
/// With values out of bounds, the acquire fails with [`Misconfigured`](LockError::Misconfigured).
///
/// # Re-entrancy
///
/// A call inside a locked body that asks for the body's own key enters at once and shares the
/// fencing token. This goes by lexical nesting ([`with`](Self::with), [`LockGuard::scope`],
/// `#[distributed_lock]`), not by thread or task: two concurrent calls exclude each other, unless
/// both read. A read inside the caller's own write enters, too. Any other mix of kinds fails with
/// [`KindConflict`](LockError::KindConflict) at once.
#[must_use = "a lock is not taken before `acquire`, `try_acquire` or `with`"]
#[derive(Clone)]
pub struct Lock {
    engine: Result<Arc<Engine>, LockError>,
    /// The (first) key, its kind, and further keys.
    keys: Result<(LockKey, Spec), LockError>,
    wait: Option<Wait>,
    lease: Option<Duration>,
    max_hold: Option<Duration>,
    min_hold: Duration,
    token_retention: Option<TokenRetention>,
    replication: Option<Replication>,
    label: lock_engine::metrics::Label,
    max_waiters: Option<usize>,
}

impl Lock {
    pub(crate) fn new(
        engine: Result<Arc<Engine>, LockError>,
        keys: Result<(LockKey, Spec), LockError>,
    ) -> Self {
        let label = lock_engine::metrics::Label::Borrowed("");
        Self {
            engine,
            keys,
            wait: None,
            lease: None,
            max_hold: None,
            min_hold: Duration::ZERO,
            token_retention: None,
            replication: None,
            label,
            max_waiters: None,
        }
    }

    /// Waits at most this long. Without it, the manager's `default_wait` (10 s) applies.
    ///
    /// Zero is the same as [`no_wait`](Self::no_wait). A wait shorter than a round trip to the
    /// store is extended by 100 ms, or four round trips, so that its one attempt can be answered. A
    /// grant within this time counts. Without an answer by then, the error is
    /// [`Unavailable`](LockError::Unavailable).
    #[doc(alias = "timeout")]
    #[doc(alias = "waitTime")]
    #[doc(alias = "retry")]
    pub fn wait(mut self, limit: Duration) -> Self {
        self.wait = Some(Wait::at_most(limit));
        self
    }

    /// Waits for as long as it takes, even while the store is down.
    pub fn wait_forever(mut self) -> Self {
        self.wait = Some(Wait::Forever);
        self
    }

    /// Does not wait: makes one attempt, and fails with [`LockError::Busy`] if another caller has
    /// the lock.
    pub fn no_wait(mut self) -> Self {
        self.wait = Some(Wait::No);
        self
    }

    /// Sets a fixed lease: the lock is not renewed, and ends by itself this long after the grant.
    /// The lease is at least 100 ms, four round trips and [`min_hold`](Self::min_hold).
    ///
    /// Without it, the lock has the manager's lease (30 s), and the watchdog renews it every third
    /// of that for as long as its guard lives. A call inside the caller's own hold of the same key
    /// never shortens the lease. A longer lease extends a fixed hold, and a renewed hold stays
    /// renewed.
    #[doc(alias = "ttl")]
    #[doc(alias = "leaseTime")]
    #[doc(alias = "lockAtMostFor")]
    #[doc(alias = "expiry")]
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = Some(lease);
        self
    }

    /// Sets the longest time for which the lock may be held, counted from the grant. At its end,
    /// the lock counts as lost and is not renewed any more. The key stays taken until the guard is
    /// dropped or the rest of the lease is over, since the work may still be running. Re-entrant
    /// calls keep the limit of the outermost one. A limit below `min_hold` is refused.
    pub fn max_hold(mut self, limit: Duration) -> Self {
        self.max_hold = Some(limit);
        self
    }

    /// Keeps the key taken for at least this long after the grant, even when the lock is released
    /// earlier or the process ends. This is for periodic jobs on machines whose clocks differ a
    /// little. A renewed lock has a lease of at least this length.
    #[doc(alias = "lockAtLeastFor")]
    pub fn min_hold(mut self, time: Duration) -> Self {
        self.min_hold = time;
        self
    }

    /// Sets how long the key's fencing counter outlives this hold. Without it, the manager's
    /// [`token_retention`](crate::LockManagerBuilder::token_retention) (15 minutes) applies. Use
    /// the same retention for all locks of a key: if they differ, no retention is promised. A
    /// re-entrant call has that of the hold it enters.
    pub fn token_retention(mut self, retention: TokenRetention) -> Self {
        self.token_retention = Some(retention);
        self
    }

    /// Sets how many replicas have to confirm the grant before it counts. Without it, the manager's
    /// [`replication`](crate::LockManagerBuilder::replication) applies. A re-entrant call has that
    /// of the hold it enters.
    pub fn replication(mut self, replication: Replication) -> Self {
        self.replication = Some(replication);
        self
    }

    /// Sets how many callers of this process may wait for the key, this one included. Any more fail
    /// with [`LockError::TooManyWaiters`] at once. The manager's
    /// [`max_waiters_per_key`](crate::LockManagerBuilder::max_waiters_per_key) applies as well. A
    /// caller whose first attempt is under way counts, so 1 lets one caller ask at a time, and 0 is
    /// refused. A re-entrant call does not wait, and does not count.
    pub fn max_waiters(mut self, cap: usize) -> Self {
        self.max_waiters = Some(cap);
        self
    }

    /// Sets the name under which metrics count this lock (label `lock`). Use few different names,
    /// never the key.
    pub fn name(mut self, name: impl Into<std::borrow::Cow<'static, str>>) -> Self {
        self.label = name.into();
        self
    }

    /// Waits for the lock.
    ///
    /// The lock is held until the guard is dropped, so bind it to a name: `let _guard = …`. With
    /// `let _ = …`, the guard is dropped and the lock released at once.
    ///
    /// # Errors
    ///
    /// - [`LockError::TimedOut`]: another caller still had it when the wait ended.
    /// - [`LockError::Busy`]: another caller has it, and [`no_wait`](Self::no_wait) was given.
    /// - [`LockError::TooManyWaiters`]: a waiter cap of the manager, or of this lock, is reached.
    /// - [`LockError::Unavailable`]: the store failed until the wait ended; contains its last
    ///   error.
    /// - [`LockError::NotReplicated`]: too few replicas confirmed the grant before the wait ended.
    /// - [`LockError::ShutDown`], [`LockError::Misconfigured`], [`LockError::InvalidKey`].
    ///
    /// # Cancel safety
    ///
    /// Dropping the future at any point leaves nothing behind. The caller leaves the queue, and a
    /// lock that was just granted goes to the next waiter or is released in the background.
    #[doc(alias = "lock")]
    #[doc(alias = "blocking")]
    pub fn acquire(self) -> Acquire {
        let wait = self.wait;
        Acquire::new(self.request(wait))
    }

    /// Returns this lock for other keys.
    pub(crate) fn of(mut self, keys: Result<(LockKey, Spec), LockError>) -> Self {
        self.keys = keys;
        self
    }

    #[cfg(feature = "layer")]
    pub(crate) fn wait_as(mut self, wait: Wait) -> Self {
        self.wait = Some(wait);
        self
    }

    /// Limits the wait to `limit`. Returns whether it would have been longer.
    #[cfg(feature = "layer")]
    pub(crate) fn wait_within(self, limit: Duration) -> (Self, bool) {
        let wait = match (self.wait, &self.engine) {
            (Some(wait), _) => wait,
            (None, Ok(engine)) => Wait::at_most(engine.settings.default_wait),
            (None, Err(_)) => Wait::Forever,
        };
        match wait {
            Wait::Forever => (self.wait_as(Wait::at_most(limit)), true),
            Wait::For(longer) if longer > limit => (self.wait_as(Wait::at_most(limit)), true),
            Wait::No | Wait::For(_) => (self, false),
        }
    }

    /// Returns why no lock can have these settings, whatever its key and store.
    #[cfg(feature = "layer")]
    pub(crate) fn refusal(&self) -> Option<String> {
        let engine = self.engine.as_ref().ok()?;
        self.checked_lease(&engine.settings).map_or_else(Some, |lease| out_of_range(lease.duration))
    }

    pub(crate) fn engine(&self) -> Result<&Arc<Engine>, LockError> {
        self.engine.as_ref().map_err(Clone::clone)
    }

    pub(crate) fn acquire_within(self, wait: Wait) -> Acquire {
        Acquire::new(self.request(Some(wait)))
    }

    /// Takes the lock if it is free, with one attempt and without waiting.
    ///
    /// A mutex queues behind a release of this process that is under way, so a mutex that was just
    /// dropped is found free. A write lock does the same behind another write lock. For other
    /// kinds, and from one kind to another, await [`release`](LockGuard::release) first. A fair
    /// wait that was given up leaves the queue in the background.
    ///
    /// # Errors
    ///
    /// As [`acquire`](Self::acquire), but `Ok(None)` when another caller has the lock. Store errors
    /// are not retried. Without an answer, the call ends after about three call time-outs (default
    /// 6 s), or later if [replicas](crate::Replication) have to confirm the grant.
    ///
    /// # Cancel safety
    ///
    /// As [`acquire`](Self::acquire).
    #[doc(alias = "try_lock")]
    #[doc(alias = "tryLock")]
    pub async fn try_acquire(self) -> Result<Option<LockGuard>, LockError> {
        match Acquire::new(self.request(Some(Wait::No))).await {
            Ok(guard) => Ok(Some(guard)),
            Err(LockError::Busy { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Runs `body` under the lock: acquires, runs, releases. If the lock is lost, the body is
    /// dropped at the await where it is suspended, and the call returns [`LockError::Lost`].
    ///
    /// The body gets a view of the lock, for its fencing token. Code between two awaits is not
    /// interrupted, tasks that the body spawned go on, and a commit in flight has an unknown
    /// outcome: see `docs/book/src/guarantees.md`.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lock_runtime::LockError> {
    /// # let locks = lock_runtime::LockManager::connect("memory:").await.unwrap();
    /// let token = locks.mutex("order:42").with(async |held| held.fencing_token()).await?;
    /// # assert!(token.get() > 0); Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`acquire`](Self::acquire), before the body started; or [`LockError::Lost`] after it did.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops the body where it is suspended, then releases the lock in the
    /// background.
    pub async fn with<F, T>(self, body: F) -> Result<T, LockError>
    where
        F: AsyncFnOnce(HeldLock) -> T,
    {
        let guard = self.acquire().await?;
        let view = guard.view();
        Run::new(guard, OnLost::Cancel, body(view)).await
    }

    fn request(self, wait: Option<Wait>) -> Result<Request, LockError> {
        let lease = match &self.engine {
            Ok(engine) => self.checked_lease(&engine.settings),
            Err(error) => return Err(error.clone()),
        };
        let (engine, (key, spec)) = (self.engine?, self.keys?);
        let lease = lease.map_err(|reason| LockError::misconfigured(format!("lock {key}: {reason}")))?;
        Ok(Request {
            terms: Terms {
                wait: wait.unwrap_or_else(|| Wait::at_most(engine.settings.default_wait)),
                lease,
                max_hold: self.max_hold,
                min_hold: self.min_hold,
                replication: self.replication.unwrap_or(engine.settings.replication),
            },
            key,
            spec,
            label: self.label,
            max_waiters: self.max_waiters.unwrap_or(usize::MAX),
            asked: None,
            engine,
        })
    }

    /// Returns the lease, or why these settings contradict each other. The engine checks it against
    /// the store's round trips.
    fn checked_lease(&self, settings: &EngineSettings) -> Result<Lease, String> {
        let retention = self.token_retention.unwrap_or(settings.token_retention);
        if let Some(reason) = retention.refusal() {
            return Err(reason);
        }
        let lease = match self.lease {
            Some(lease) => Lease::fixed(lease),
            None => Lease::renewed(settings.lease.max(self.min_hold)),
        };
        if lease.duration < self.min_hold {
            return Err("the lease is shorter than min_hold; set a longer lease or a shorter min_hold".into());
        }
        if let Some(short) = self.max_hold.filter(|&max_hold| max_hold < SHORTEST_HOLD) {
            return Err(format!(
                "a max_hold of {short:?} would end the lock at once; use {SHORTEST_HOLD:?} or more, or leave it out"
            ));
        }
        if self.max_hold.is_some_and(|max_hold| max_hold < self.min_hold) {
            return Err(
                "max_hold is shorter than min_hold; set a longer max_hold or a shorter min_hold".into()
            );
        }
        if self.max_waiters == Some(0) {
            return Err("a max_waiters of zero refuses every caller; use 1 or more, or `no_wait`".into());
        }
        Ok(Lease { retention, ..lease })
    }
}

impl fmt::Debug for Lock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lock")
            .field("keys", &self.keys)
            .field("wait", &self.wait)
            .field("lease", &self.lease)
            .field("max_hold", &self.max_hold)
            .field("min_hold", &self.min_hold)
            .field("replication", &self.replication)
            .field("max_waiters", &self.max_waiters)
            .finish_non_exhaustive()
    }
}
