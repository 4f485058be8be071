//! [`CountDownLatch`], and the wait for it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use lock_core::internal::chance::jitter;
use lock_core::internal::clock::Tick;
use lock_core::internal::sync::atomic::Ordering;
use lock_core::internal::time;
use lock_core::store::kit::Backoff;
use lock_core::store::{CountDownRequest, LatchStore, StoreError};
use lock_core::{InvalidKey, LockKey, Replication};
use lock_engine::LONGEST_SLEEP;
use lock_engine::failure::Failure;
use lock_engine::places::{Counted, OwnPlace};
use lock_engine::retry::RetrySchedule;
use lock_engine::subscription::{Heard, Subscription};
use lock_engine::terms::Wait;

use super::{Counting, dispatched};
use crate::error::LockError;

/// Number of call time-outs for which a count-down is sent again.
const ATTEMPTS: u32 = 3;
/// Number of call time-outs for which the store remembers a count-down: its last copy may still be
/// executed one time-out after it was sent.
const REMEMBERED: u32 = 8;

/// A count that goes down to zero once, while callers wait for that; made by
/// [`LockManager::latch`](crate::LockManager::latch).
///
/// A latch that does not exist counts as zero, so a wait for it ends at once. A latch is gone once
/// it has reached zero, and can then be made again.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lock_runtime::LockError> {
/// # use std::time::Duration;
/// # let locks = lock_runtime::LockManager::connect("memory:").await?;
/// let imported = locks.latch("files-imported");
/// imported.try_set_count(2).await?; // returns `false` if it exists already
/// // In each process that imports a file:
/// imported.count_down().await?;
/// # imported.count_down().await?;
/// // In each process that waits for all of them:
/// imported.wait(Duration::from_secs(60)).await?;
/// # Ok(()) }
/// ```
///
/// | method | | bounds |
/// |---|---|---|
/// | [`try_set_count`](Self::try_set_count) | makes the latch, unless it exists | at least 1 |
/// | [`count_down`](Self::count_down) | lowers the count by one | |
/// | [`wait`](Self::wait) | waits for zero, up to a limit | a limit of zero looks once |
/// | [`wait_forever`](Self::wait_forever) | waits for zero without limit | |
/// | [`count`](Self::count) | returns the count | |
/// | [`delete`](Self::delete) | removes the latch, so that all waiters go on | |
///
/// The name must not have a hash tag, that is, no braces. Redisson puts its own braces around the
/// name, and in a Redis Cluster the two would be in different slots.
#[derive(Clone)]
pub struct CountDownLatch {
    counting: Arc<Counting>,
    name: Result<LockKey, LockError>,
}

impl CountDownLatch {
    pub(crate) fn new(counting: Arc<Counting>, name: Result<LockKey, LockError>) -> Self {
        Self { counting, name: name.and_then(without_hash_tag) }
    }

    fn parts(&self) -> Result<(LockKey, Arc<dyn LatchStore>, Duration), LockError> {
        let name = self.name.clone()?;
        let latches = self.counting.latches(&name)?;
        Ok((name, latches, self.counting.engine.settings.call_timeout))
    }

    /// Makes the latch with this count. Returns `false` if it exists already.
    ///
    /// # Errors
    ///
    /// - [`LockError::Misconfigured`]: a count of zero, which is a latch that does not exist;
    ///   foreign data under that name; a store without latches.
    /// - [`LockError::Unavailable`]: it is unknown whether the count was set; the call may be
    ///   repeated.
    /// - [`LockError::InvalidKey`], [`LockError::ShutDown`].
    ///
    /// # Cancel safety
    ///
    /// The call is dispatched by the first poll and goes on when the future is dropped.
    pub async fn try_set_count(&self, count: u32) -> Result<bool, LockError> {
        let (name, latches, timeout) = self.parts()?;
        if count == 0 {
            let reason = format!("latch {name}: a latch can't have a count of zero; use 1 or more");
            return Err(LockError::Misconfigured { reason: reason.into() });
        }
        let (engine, key) = (Arc::clone(&self.counting.engine), name.clone());
        let call = async move { engine.bounded(|_| latches.try_set_count(key, count, timeout)).await };
        self.dispatched(name, 2, call).await
    }

    /// Lowers the count by one, and returns what is left. At zero, all waiters go on. A latch that
    /// does not exist is left alone.
    ///
    /// Without an answer the call is sent again, for about three call time-outs (default 6 s);
    /// however often it arrives, it counts once.
    ///
    /// # Errors
    ///
    /// [`LockError::Unavailable`]: there was no answer, so it is unknown whether the call counted.
    /// [`LockError::Misconfigured`], [`LockError::InvalidKey`], [`LockError::ShutDown`].
    ///
    /// # Cancel safety
    ///
    /// The call is dispatched by the first poll and goes on when the future is dropped.
    pub async fn count_down(&self) -> Result<u64, LockError> {
        let (name, latches, timeout) = self.parts()?;
        let engine = Arc::clone(&self.counting.engine);
        let id = engine.settings.owners.next().to_string();
        let request = Arc::new(CountDownRequest::new(name.clone(), id, timeout, timeout * REMEMBERED));
        let call = async move {
            let give_up = engine.clock.now() + timeout * ATTEMPTS;
            let mut backoff = Backoff::default();
            loop {
                let error = match engine.bounded(|_| latches.count_down(Arc::clone(&request))).await {
                    Ok(left) => return Ok(left),
                    Err(error) => error,
                };
                let now = engine.clock.now();
                let next = now + backoff.next_pause();
                if !error.is_transient() || next >= give_up {
                    return Err(error);
                }
                tokio::time::sleep(next.since(now)).await;
            }
        };
        self.dispatched(name, ATTEMPTS + 2, call).await
    }

    /// Returns the count; zero when the latch does not exist.
    ///
    /// # Errors
    ///
    /// [`LockError::Unavailable`], [`LockError::Misconfigured`], [`LockError::InvalidKey`]. Cancel
    /// safe.
    pub async fn count(&self) -> Result<u64, LockError> {
        let (name, latches, timeout) = self.parts()?;
        let count = self.counting.engine.bounded(|_| latches.count(name.clone(), timeout)).await;
        count.map_err(|error| LockError::from_store(name, error))
    }

    /// Removes the latch, whatever its count, so that all waiters go on. Returns `false` when it
    /// did not exist.
    ///
    /// # Errors
    ///
    /// As [`try_set_count`](Self::try_set_count).
    ///
    /// # Cancel safety
    ///
    /// As [`try_set_count`](Self::try_set_count).
    pub async fn delete(&self) -> Result<bool, LockError> {
        let (name, latches, timeout) = self.parts()?;
        let (engine, key) = (Arc::clone(&self.counting.engine), name.clone());
        let call = async move { engine.bounded(|_| latches.delete(key, timeout)).await };
        self.dispatched(name, 2, call).await
    }

    /// Waits until the latch is at zero or deleted, for at most `limit`. A limit of zero looks
    /// once.
    ///
    /// # Errors
    ///
    /// - [`LockError::TimedOut`]: the count was not zero when the wait ended.
    /// - [`LockError::Busy`]: the count is not zero, and `limit` is zero.
    /// - [`LockError::Unavailable`]: the store failed until the wait ended; contains its last
    ///   error.
    /// - [`LockError::TooManyWaiters`]: the cap `max_waiters` or `max_waiters_per_key` is
    ///   reached.
    /// - [`LockError::ShutDown`], [`LockError::InvalidKey`].
    /// - [`LockError::Misconfigured`]: foreign data under that name, or a store without latches.
    ///
    /// Cancel safe.
    pub async fn wait(&self, limit: Duration) -> Result<(), LockError> {
        self.wait_within(Wait::at_most(limit)).await
    }

    /// Waits until the latch is at zero or deleted, for as long as it takes, even while the store
    /// is down.
    ///
    /// # Errors
    ///
    /// As [`wait`](Self::wait), without [`TimedOut`](LockError::TimedOut),
    /// [`Busy`](LockError::Busy) and [`Unavailable`](LockError::Unavailable).
    ///
    /// Cancel safe.
    pub async fn wait_forever(&self) -> Result<(), LockError> {
        self.wait_within(Wait::Forever).await
    }

    async fn dispatched<T: Send + 'static>(
        &self,
        name: LockKey,
        timeouts: u32,
        call: impl Future<Output = Result<T, StoreError>> + Send + 'static,
    ) -> Result<T, LockError> {
        let outcome = dispatched(&self.counting.engine, timeouts, call).await;
        outcome.map_err(|failure| LockError::of(name, failure))
    }

    async fn wait_within(&self, wait: Wait) -> Result<(), LockError> {
        let (name, latches, timeout) = self.parts()?;
        // A call that looks once does not wait, so it may pass a cap.
        let _places = if wait == Wait::No { None } else { Some(self.places(&name)?) };
        Waiter { counting: &self.counting, latches, name, timeout }.run(wait).await
    }

    fn places(&self, name: &LockKey) -> Result<(Counted, OwnPlace), LockError> {
        let engine = &self.counting.engine;
        let full = |cap, waiting| {
            let failure = Failure::TooManyWaiters { waiting, cap, remaining: None };
            LockError::of(name.clone(), failure)
        };
        let (most, per_key) = (engine.settings.max_waiters, engine.settings.max_waiters_per_key);
        let (counted, waiting) = Counted::new(engine);
        if waiting >= most {
            return Err(full("max_waiters", waiting));
        }
        let own = OwnPlace::new(engine, (name.clone(), false), per_key);
        Ok((counted, own.map_err(|waiting| full("max_waiters_per_key", waiting))?))
    }
}

/// Refuses a name with a hash tag: Redisson puts the whole name between braces, whatever is in it.
fn without_hash_tag(name: LockKey) -> Result<LockKey, LockError> {
    if name.as_str().contains('{') {
        let reason = "a latch can't have a hash tag, because Redisson would use a channel in another slot of a cluster; use a name \
                      without braces";
        return Err(InvalidKey::new(name.as_str(), reason).into());
    }
    Ok(name)
}

impl fmt::Debug for CountDownLatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CountDownLatch").field("name", &self.name).finish_non_exhaustive()
    }
}

/// One wait: looks at the count, subscribes to learn when to look again, and looks now and then in
/// any case.
struct Waiter<'a> {
    counting: &'a Counting,
    latches: Arc<dyn LatchStore>,
    name: LockKey,
    timeout: Duration,
}

impl Waiter<'_> {
    async fn run(self, wait: Wait) -> Result<(), LockError> {
        let engine = &self.counting.engine;
        let started = engine.clock.now();
        let end = match wait {
            Wait::For(limit) => started + limit,
            Wait::No | Wait::Forever => Tick::MAX,
        };
        let (mut retry, mut subscription) = (RetrySchedule::default(), Subscription::default());
        let mut grace = engine.grace();
        loop {
            if engine.shut_down.load(Ordering::Acquire) {
                return Err(LockError::ShutDown { key: self.name });
            }
            // Notices that came before the count is asked for say nothing new.
            subscription.skip();
            let left = (end + std::mem::take(&mut grace)).since(engine.clock.now());
            let look = engine.bounded(|_| self.latches.count(self.name.clone(), self.timeout));
            match time::timeout(&engine.runtime, left, look).await {
                Some(Ok(0)) => return Ok(()),
                Some(Ok(_)) if wait == Wait::No => {
                    return Err(LockError::Busy { key: self.name, remaining: None });
                }
                Some(Ok(_)) => {
                    let now = engine.clock.now();
                    subscription.want(now, || {
                        let (engine, latches) = (Arc::clone(engine), Arc::clone(&self.latches));
                        let (name, timeout) = (self.name.clone(), self.timeout);
                        Box::pin(async move {
                            let watch = engine.bounded(|_| latches.watch(name.clone(), timeout)).await;
                            watch.inspect_err(
                                |error| tracing::debug!(latch = %name, %error, "the store did not subscribe the latch; its count is polled"),
                            )
                        })
                    });
                    let longest = subscription.longest(engine.settings.fallback_poll);
                    retry.on_busy(now, None, subscription.listens(), longest, jitter());
                }
                Some(Err(error)) => {
                    let (fatal, error) = (!error.is_transient(), error);
                    if fatal || wait == Wait::No {
                        return Err(LockError::from_store(self.name, error));
                    }
                    retry.on_failure(engine.clock.now(), error, jitter());
                }
                // The wait is over, which `pause` finds below.
                None => {}
            }
            if let Some(over) = self.pause(end, &mut retry, &mut subscription).await {
                let (cause, waited) = (retry.last_error_for(Replication::NONE), over.since(started));
                return Err(LockError::of(self.name, Failure::wait_over(cause, waited, None)));
            }
        }
    }

    /// Waits until it is time to look again. Returns the present time when the wait is over.
    async fn pause(
        &self,
        end: Tick,
        retry: &mut RetrySchedule,
        subscription: &mut Subscription,
    ) -> Option<Tick> {
        let engine = &self.counting.engine;
        loop {
            let now = engine.clock.now();
            if now >= end {
                return Some(now);
            }
            if now >= retry.not_before() || engine.runtime_is_gone() {
                return None;
            }
            let left = retry.not_before().min(end).since(now).min(LONGEST_SLEEP);
            tokio::select! {
                biased; // so that a run can be made again
                () = self.counting.shut_down.cancelled() => return None,
                heard = subscription.hear() => {
                    let now = engine.clock.now();
                    match heard {
                        Heard::Confirmed => retry.listening(now),
                        Heard::Unconfirmed => retry.deaf(now),
                        Heard::Notice(_) => retry.on_notification(now),
                    }
                }
                () = time::sleep(&engine.runtime, left) => {}
            }
        }
    }
}
