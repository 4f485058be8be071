//! [`Semaphore`] and [`SemaphorePermit`].

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use lock_core::internal::ids_of;
use lock_core::store::{MAX_PERMITS, PermitCounts, PermitId, Permits, PermitsChange, StoreErrorKind};
use lock_core::{LockKey, Replication};
use lock_engine::acquire::acquire;
use lock_engine::failure::Failure;
use lock_engine::metrics::Label;
use lock_engine::request::Request;
use lock_engine::spec::Spec;
use lock_engine::terms::{Lease, Terms, Wait};
use tokio_util::sync::CancellationToken;

use super::{Counting, dispatched};
use crate::error::LockError;
use crate::guard::LockGuard;

/// A number of permits, shared by all processes; made by
/// [`LockManager::semaphore`](crate::LockManager::semaphore).
///
/// A semaphore has no permits until [`try_set_permits`](Self::try_set_permits) gives it some; the
/// first call wins. Until then, every caller waits and times out. A semaphore stays, with its
/// permits, until it is deleted at the store.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lock_runtime::LockError> {
/// # let locks = lock_runtime::LockManager::connect("memory:").await?;
/// let printers = locks.semaphore("printers");
/// printers.try_set_permits(3).await?; // `false`: it has some already
/// let permit = printers.acquire().await?;
/// // At most three callers are here at a time, in all processes.
/// permit.release().await?;
/// # Ok(()) }
/// ```
///
/// | method | sets | default | bounds |
/// |---|---|---|---|
/// | [`permits`](Self::permits) | how many permits one call takes, all or none | 1 | 1 to 1000 |
/// | [`wait`](Self::wait) | how long to wait for them | the manager's `default_wait`, 10 s | zero is `no_wait` |
/// | [`wait_forever`](Self::wait_forever) | a wait without limit | | |
/// | [`no_wait`](Self::no_wait) | a single attempt | | |
/// | [`lease`](Self::lease) | a fixed lease, which is not renewed | the manager's `lease`, 30 s, renewed | 100 ms to 366 days, at least four round trips |
/// | [`name`](Self::name) | the label `lock` in metrics | the empty text | |
///
/// Call [`acquire`](Self::acquire) or [`try_acquire`](Self::try_acquire) as often as you like.
/// There is no re-entry: each call takes further permits. With values out of bounds, the call fails
/// with [`Misconfigured`](LockError::Misconfigured).
///
/// The size of a semaphore is at the store, for all processes:
///
/// | method | |
/// |---|---|
/// | [`try_set_permits`](Self::try_set_permits) | sets the size, unless it was set before |
/// | [`set_permits`](Self::set_permits) | sets the size |
/// | [`add_permits`](Self::add_permits) | changes the size by a difference |
/// | [`available_permits`](Self::available_permits), [`acquired_permits`](Self::acquired_permits), [`total_permits`](Self::total_permits) | return how many permits are left, held, and both together |
///
/// # Fairness
///
/// Waiting callers of one process are served in the order in which they were first polled. A caller
/// that wants many permits is not overtaken by others that want few, except by tries. Between
/// processes, the next holder is decided by a race.
///
/// # Java
///
/// Names, types and messages are those of Redisson's `RPermitExpirableSemaphore`, not of its
/// `RSemaphore`, whose permits have no holders. Java's clients compare leases with their own
/// clocks. A client whose clock is ahead by two thirds of a lease takes permits away that are
/// renewed in time. In ZooKeeper, they are those of Curator's `InterProcessSemaphoreV2`.
#[must_use = "nothing is taken before `acquire` or `try_acquire`"]
#[derive(Clone)]
pub struct Semaphore {
    counting: Arc<Counting>,
    name: Result<LockKey, LockError>,
    permits: u32,
    wait: Option<Wait>,
    lease: Option<Duration>,
    label: Label,
}

impl Semaphore {
    pub(crate) fn new(counting: Arc<Counting>, name: Result<LockKey, LockError>) -> Self {
        Self { counting, name, permits: 1, wait: None, lease: None, label: Label::Borrowed("") }
    }

    /// Sets how many permits one call takes, all or none. Default 1, at most 1000. The size of the
    /// semaphore is set by [`try_set_permits`](Self::try_set_permits).
    pub fn permits(mut self, permits: u32) -> Self {
        self.permits = permits;
        self
    }

    /// Waits at most this long. Without it, the manager's `default_wait` (10 s) applies. Zero is
    /// the same as [`no_wait`](Self::no_wait).
    pub fn wait(mut self, limit: Duration) -> Self {
        self.wait = Some(Wait::at_most(limit));
        self
    }

    /// Waits for as long as it takes, even while the store is down.
    pub fn wait_forever(mut self) -> Self {
        self.wait = Some(Wait::Forever);
        self
    }

    /// Does not wait: makes one attempt, and fails with [`LockError::Busy`] if too few permits are
    /// left.
    pub fn no_wait(mut self) -> Self {
        self.wait = Some(Wait::No);
        self
    }

    /// Sets a fixed lease: the permits are not renewed, and come back by themselves this long after
    /// the grant. The lease is at least 100 ms and four round trips.
    ///
    /// Without it, permits have the manager's lease (30 s) and are renewed every third of that for
    /// as long as the guard lives.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = Some(lease);
        self
    }

    /// Sets the name under which metrics count the semaphore (label `lock`). Use few different
    /// names, never the semaphore's own.
    pub fn name(mut self, name: impl Into<std::borrow::Cow<'static, str>>) -> Self {
        self.label = name.into();
        self
    }

    /// Waits for the permits.
    ///
    /// # Errors
    ///
    /// - [`LockError::TimedOut`]: too few permits were left until the wait ended.
    /// - [`LockError::Busy`]: too few permits are left, and [`no_wait`](Self::no_wait) was given.
    /// - [`LockError::TooManyWaiters`]: a waiter cap of the manager is reached.
    /// - [`LockError::Unavailable`]: the store failed until the wait ended; contains its last
    ///   error.
    /// - [`LockError::ShutDown`], [`LockError::InvalidKey`].
    /// - [`LockError::Misconfigured`]: no permits, or more than 1000, were asked for; a lease out
    ///   of range; foreign data under that name; a store without semaphores.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future at any point leaves nothing behind. The caller leaves the queue, and
    /// permits that were just granted are released in the background.
    #[doc(alias = "permit")]
    pub fn acquire(&self) -> impl Future<Output = Result<SemaphorePermit, LockError>> + Send + use<> {
        let this = self.clone();
        let wait = this.wait;
        this.acquire_within(wait)
    }

    /// Takes the permits if enough are left, with one attempt and without waiting.
    ///
    /// Permits that were just dropped may still be on their way back;
    /// [released](SemaphorePermit::release) ones are found.
    ///
    /// # Errors
    ///
    /// As [`acquire`](Self::acquire), but `Ok(None)` when too few are left. Store errors are not
    /// retried.
    ///
    /// # Cancel safety
    ///
    /// As [`acquire`](Self::acquire).
    pub fn try_acquire(
        &self,
    ) -> impl Future<Output = Result<Option<SemaphorePermit>, LockError>> + Send + use<> {
        let this = self.clone();
        async move {
            match this.acquire_within(Some(Wait::No)).await {
                Ok(permit) => Ok(Some(permit)),
                Err(LockError::Busy { .. }) => Ok(None),
                Err(error) => Err(error),
            }
        }
    }

    async fn acquire_within(self, wait: Option<Wait>) -> Result<SemaphorePermit, LockError> {
        let name = self.name?;
        if !(1..=MAX_PERMITS).contains(&self.permits) {
            return Err(LockError::misconfigured(format!(
                "semaphore {name}: one call can't take {} permits; take 1 to {MAX_PERMITS}",
                self.permits
            )));
        }
        self.counting.semaphores(&name)?;
        let engine = Arc::clone(&self.counting.engine);
        let settings = &engine.settings;
        let request = Request {
            key: name,
            spec: Spec::permits(self.permits),
            terms: Terms {
                wait: wait.unwrap_or_else(|| Wait::at_most(settings.default_wait)),
                lease: self.lease.map_or(Lease::renewed(settings.lease), Lease::fixed),
                max_hold: None,
                min_hold: Duration::ZERO,
                replication: Replication::NONE,
            },
            label: self.label,
            max_waiters: usize::MAX,
            asked: None,
            engine: Arc::clone(&engine),
        };
        let admission = acquire(request).await.map_err(|(key, failure)| LockError::of(key, failure))?;
        Ok(SemaphorePermit::new(LockGuard::new(admission)))
    }

    /// Gives the semaphore this many permits. Returns `false` if it was given some before.
    ///
    /// # Errors
    ///
    /// - [`LockError::Unavailable`]: it is unknown whether the change was made; the call may be
    ///   repeated.
    /// - [`LockError::Misconfigured`]: more permits than Java can count (2^31 - 1); foreign data
    ///   under that name; a store without semaphores.
    /// - [`LockError::InvalidKey`], [`LockError::ShutDown`].
    ///
    /// # Cancel safety
    ///
    /// The call is dispatched by the first poll and goes on when the future is dropped.
    pub async fn try_set_permits(&self, permits: u32) -> Result<bool, LockError> {
        self.change(Permits::TrySet(permits)).await
    }

    /// Sets the total number of permits, including those that are held. If more are held,
    /// [`available_permits`](Self::available_permits) is below zero until enough of them have come
    /// back.
    ///
    /// # Errors
    ///
    /// As [`try_set_permits`](Self::try_set_permits).
    ///
    /// # Cancel safety
    ///
    /// As [`try_set_permits`](Self::try_set_permits).
    pub async fn set_permits(&self, permits: u32) -> Result<(), LockError> {
        self.change(Permits::Set(permits)).await.map(drop)
    }

    /// Adds this many permits, or removes as many if `more` is negative. Held permits are not taken
    /// away, so [`available_permits`](Self::available_permits) may be below zero afterwards.
    ///
    /// # Errors
    ///
    /// As [`try_set_permits`](Self::try_set_permits), but a repeated call counts twice.
    ///
    /// # Cancel safety
    ///
    /// As [`try_set_permits`](Self::try_set_permits).
    pub async fn add_permits(&self, more: i32) -> Result<(), LockError> {
        self.change(Permits::Add(more)).await.map(drop)
    }

    async fn change(&self, permits: Permits) -> Result<bool, LockError> {
        let name = self.name.clone()?;
        let store = self.counting.semaphores(&name)?;
        let engine = Arc::clone(&self.counting.engine);
        let request = PermitsChange { key: name.clone(), permits, timeout: engine.settings.call_timeout };
        let call = {
            let engine = Arc::clone(&engine);
            async move { engine.bounded(|_| store.change(request)).await }
        };
        dispatched(&engine, 2, call).await.map_err(|failure| match failure {
            // More than Java can count.
            Failure::Store(error) if error.kind() == StoreErrorKind::Refused => {
                LockError::misconfigured(format!("semaphore {name}: {error}"))
            }
            failure => LockError::of(name, failure),
        })
    }

    async fn counts(&self) -> Result<PermitCounts, LockError> {
        let name = self.name.clone()?;
        let (engine, store) = (Arc::clone(&self.counting.engine), self.counting.semaphores(&name)?);
        let (key, timeout) = (name.clone(), engine.settings.call_timeout);
        // It may take back permits whose lease is over, and then has to tell waiters.
        let call = {
            let engine = Arc::clone(&engine);
            async move { engine.bounded(|_| store.counts(key, timeout)).await }
        };
        engine.dispatched(timeout * 2, call).await.map_err(|failure| LockError::of(name, failure))
    }

    /// Returns how many permits are left. This is below zero when the number was set to less than
    /// are held, and zero for a semaphore that was never given any.
    ///
    /// # Errors
    ///
    /// [`LockError::Unavailable`], [`LockError::Misconfigured`], [`LockError::InvalidKey`], and
    /// [`LockError::ShutDown`] when the manager's runtime is gone. Cancel safe.
    pub async fn available_permits(&self) -> Result<i64, LockError> {
        Ok(self.counts().await?.available)
    }

    /// Returns how many permits are held, by all processes together.
    ///
    /// # Errors
    ///
    /// As [`available_permits`](Self::available_permits). Cancel safe.
    pub async fn acquired_permits(&self) -> Result<u64, LockError> {
        Ok(self.counts().await?.acquired)
    }

    /// Returns how many permits there are, left and held.
    ///
    /// # Errors
    ///
    /// As [`available_permits`](Self::available_permits). Cancel safe.
    pub async fn total_permits(&self) -> Result<i64, LockError> {
        Ok(self.counts().await?.total())
    }
}

impl fmt::Debug for Semaphore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Semaphore")
            .field("name", &self.name)
            .field("permits", &self.permits)
            .field("wait", &self.wait)
            .field("lease", &self.lease)
            .finish_non_exhaustive()
    }
}

/// Held permits of a [`Semaphore`]. Dropping it gives them back in the background;
/// [`release`](Self::release) awaits the outcome.
///
/// It is owned and `'static`: it can be stored, sent to another task, and dropped anywhere. Unless
/// the permits were taken with a fixed lease, they are renewed for as long as it lives. Several
/// permits are held, lost and released together.
#[must_use = "the permits are given back as soon as this is dropped; bind it to a name, as in `let _permit`, not to `_`"]
pub struct SemaphorePermit {
    guard: LockGuard,
    ids: Vec<PermitId>,
}

impl SemaphorePermit {
    fn new(guard: LockGuard) -> Self {
        Self { ids: ids_of(guard.owner()), guard }
    }

    /// Returns the semaphore's name.
    #[must_use]
    pub fn name(&self) -> &LockKey {
        self.guard.key()
    }

    /// Returns the permits' ids at the store, as Redisson shows them.
    #[must_use]
    pub fn ids(&self) -> &[PermitId] {
        &self.ids
    }

    /// Returns for how long the permits are certain if they are not renewed; zero when they are
    /// lost.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.guard.remaining()
    }

    /// Whether the permits are lost: their lease is over by the local clock, or the store said that
    /// one of them is gone.
    ///
    /// This is computed from the local clock, and needs neither a task nor a message. Once `true`,
    /// it stays `true`.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.guard.is_lost()
    }

    /// Waits until the permits are lost: at the local deadline at the latest, and without help from
    /// the store.
    ///
    /// Cancel safe.
    pub async fn lost(&self) {
        self.guard.lost().await;
    }

    /// Returns a token that is cancelled when the permits are lost, but not when they are released.
    #[must_use]
    pub fn cancellation_token(&self) -> CancellationToken {
        self.guard.cancellation_token()
    }

    /// Extends a fixed lease so that at least `lease` remains, counted from the call. Never
    /// shortens it.
    ///
    /// # Errors
    ///
    /// As [`LockGuard::extend`].
    ///
    /// # Cancel safety
    ///
    /// As [`LockGuard::extend`].
    pub async fn extend(&self, lease: Duration) -> Result<(), LockError> {
        self.guard.extend(lease).await
    }

    /// Gives the permits back and awaits the store's answer, for at most two call time-outs
    /// (default 4 s).
    ///
    /// # Errors
    ///
    /// - [`LockError::Lost`]: one of the permits had been lost before, so another caller may have
    ///   had it meanwhile. The other permits were given back.
    /// - [`LockError::Unconfirmed`]: the store did not confirm. The release is sent again in the
    ///   background until the store answers.
    ///
    /// # Cancel safety
    ///
    /// The first poll dispatches the release, which goes on when this future is dropped. A future
    /// that is dropped before its first poll dispatches the release in its drop.
    pub async fn release(self) -> Result<(), LockError> {
        self.guard.release().await
    }
}

impl fmt::Debug for SemaphorePermit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SemaphorePermit")
            .field("name", self.name())
            .field("ids", &self.ids)
            .field("remaining", &self.remaining())
            .field("lost", &self.is_lost())
            .finish_non_exhaustive()
    }
}
