//! [`SegmentedLock`]: n locks, of which a call takes one or all.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use lock_core::internal::chance::jitter;
use lock_core::internal::clock::Tick;
use lock_core::store::Kind;
use lock_core::{LockKey, Replication};
use lock_engine::scope::Scope;
use lock_engine::spec::Spec;
use lock_engine::terms::Wait;

use super::order::order;
use crate::error::LockError;
use crate::guard::LockGuard;
use crate::kinds::Lock;

/// Maximum number of segments of a stock or lock. More would be slower than fewer, since a merge
/// looks at all of them.
pub const MAX_SEGMENTS: u32 = 1024;

/// A hot item in n parts, with a lock for each; made by
/// [`LockManager::segmented`](crate::LockManager::segmented).
///
/// A critical section of one millisecond under one lock runs a thousand times a second, in all
/// processes together. If n critical sections may run side by side because each has its own part, n
/// locks allow n times that. Segment `i` of `stock:1001` is the [mutex](crate::LockManager::mutex)
/// `stock:1001:i`, counted from 0.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lock_runtime::LockError> {
/// # let locks = lock_runtime::LockManager::connect("memory:").await.unwrap();
/// let shelves = locks.segmented("stock:1001", 10);
/// let shelf = shelves.acquire_any().await?;
/// println!("shelf {}, token {}", shelf.index(), shelf.fencing_token());
/// # Ok(()) }
/// ```
///
/// A stock sells under these locks with [`take_locked`](super::SegmentedStock::take_locked).
///
/// | method | sets | default |
/// |---|---|---|
/// | [`wait`](Self::wait) | how long a call waits, for all its segments together | the manager's `default_wait`, 10 s |
/// | [`wait_forever`](Self::wait_forever) | a wait without limit | |
/// | [`no_wait`](Self::no_wait) | a single attempt for each segment | |
/// | [`lease`](Self::lease), [`max_hold`](Self::max_hold), [`min_hold`](Self::min_hold), [`max_waiters`](Self::max_waiters), [`replication`](Self::replication), [`name`](Self::name) | as for a [`Lock`], for each segment | as for a [`Lock`] |
///
/// The number of segments is 1 to [`MAX_SEGMENTS`]. Bounds of the settings are those of a [`Lock`].
#[must_use = "nothing is locked before `acquire_any`, `acquire` or `acquire_all`"]
#[derive(Clone)]
pub struct SegmentedLock {
    /// The settings; its key is not used.
    lock: Lock,
    wait: Option<Wait>,
    segments: Result<Arc<Segments>, LockError>,
}

struct Segments {
    keys: Box<[LockKey]>,
}

impl Segments {
    fn new(name: &LockKey, count: u32) -> Result<Self, LockError> {
        if !(1..=MAX_SEGMENTS).contains(&count) {
            return Err(LockError::misconfigured(format!(
                "lock {name}: {count} segments are out of range; use 1 to {MAX_SEGMENTS}"
            )));
        }
        let keys: Result<_, _> = (0..count).map(|index| LockKey::new(format!("{name}:{index}"))).collect();
        Ok(Self { keys: keys? })
    }
}

/// The time limit for all the locks of one call together.
#[derive(Clone, Copy)]
struct Budget {
    wait: Wait,
    asked: Tick,
}

impl Budget {
    fn left(self, now: Tick) -> Wait {
        match self.wait {
            Wait::For(limit) => Wait::at_most((self.asked + limit).since(now)),
            wait => wait,
        }
    }
}

impl SegmentedLock {
    pub(crate) fn new(lock: Lock, name: Result<LockKey, LockError>, count: u32) -> Self {
        let segments = name.and_then(|name| Segments::new(&name, count)).map(Arc::new);
        Self { lock, wait: None, segments }
    }

    /// Sets how long a call waits, for all the segments together that it tries or takes. By
    /// default, the manager's `default_wait` (10 s) applies. Zero is the same as
    /// [`no_wait`](Self::no_wait).
    pub fn wait(mut self, limit: Duration) -> Self {
        self.wait = Some(Wait::at_most(limit));
        self
    }

    /// Waits without a limit, even while the store is down.
    pub fn wait_forever(mut self) -> Self {
        self.wait = Some(Wait::Forever);
        self
    }

    /// Does not wait: returns [`LockError::Busy`] if the segment, or every segment that is tried,
    /// is taken.
    pub fn no_wait(mut self) -> Self {
        self.wait = Some(Wait::No);
        self
    }

    /// Like [`Lock::lease`].
    pub fn lease(self, lease: Duration) -> Self {
        self.with(|lock| lock.lease(lease))
    }

    /// Like [`Lock::max_hold`].
    pub fn max_hold(self, limit: Duration) -> Self {
        self.with(|lock| lock.max_hold(limit))
    }

    /// Like [`Lock::min_hold`].
    pub fn min_hold(self, time: Duration) -> Self {
        self.with(|lock| lock.min_hold(time))
    }

    /// Like [`Lock::replication`].
    pub fn replication(self, replication: Replication) -> Self {
        self.with(|lock| lock.replication(replication))
    }

    /// Like [`Lock::max_waiters`], for each segment.
    pub fn max_waiters(self, cap: usize) -> Self {
        self.with(|lock| lock.max_waiters(cap))
    }

    /// Like [`Lock::name`].
    pub fn name(self, name: impl Into<std::borrow::Cow<'static, str>>) -> Self {
        self.with(|lock| lock.name(name))
    }

    fn with(mut self, set: impl FnOnce(Lock) -> Lock) -> Self {
        self.lock = set(self.lock);
        self
    }

    /// Returns the number of segments.
    ///
    /// # Errors
    ///
    /// Returns an error if the name is invalid, or the number is not 1 to [`MAX_SEGMENTS`].
    pub fn segments(&self) -> Result<u32, LockError> {
        Ok(self.all()?.keys.len() as u32)
    }

    fn all(&self) -> Result<&Arc<Segments>, LockError> {
        self.segments.as_ref().map_err(Clone::clone)
    }

    fn budget(&self) -> Result<Budget, LockError> {
        let engine = self.lock.engine()?;
        let wait = self.wait.unwrap_or_else(|| Wait::at_most(engine.settings.default_wait));
        Ok(Budget { wait, asked: engine.clock.now() })
    }

    /// Takes one segment, within the rest of the budget.
    async fn take(&self, segments: &Segments, index: u32, budget: Budget) -> Result<SegmentGuard, LockError> {
        let Some(key) = segments.keys.get(index as usize) else {
            return Err(LockError::misconfigured(format!(
                "there is no segment {index}; the segments are 0 to {}",
                segments.keys.len() - 1
            )));
        };
        let clock = &self.lock.engine()?.clock;
        let left = budget.left(clock.now());
        let guard =
            self.lock.clone().of(Ok((key.clone(), Spec::one(Kind::Mutex)))).acquire_within(left).await;
        let guard = guard.map_err(|error| match (error, budget.wait) {
            // Nothing was left of the wait, so for the caller it has timed out.
            (LockError::Busy { key, remaining }, Wait::For(_)) => {
                LockError::TimedOut { key, waited: clock.now().since(budget.asked), remaining }
            }
            (error, _) => error,
        })?;
        Ok(SegmentGuard { guard, index })
    }

    /// Takes one of the segments.
    ///
    /// The better of two random segments is tried first, then the others. The last one gets the
    /// rest of the wait. A store that fails for one segment, as a server of a cluster may, does not
    /// matter while another segment can be taken. A server that does not answer is waited for once,
    /// for as long as a call may take, whatever the wait.
    ///
    /// # Errors
    ///
    /// As [`Lock::acquire`]; the error names the segment that was tried last.
    ///
    /// # Cancel safety
    ///
    /// As [`Lock::acquire`].
    pub async fn acquire_any(&self) -> Result<SegmentGuard, LockError> {
        match self.acquire_of((0..self.segments()?).collect()).await? {
            Some(guard) => Ok(guard),
            // There is at least one segment.
            None => self.acquire(0).await,
        }
    }

    /// Takes one of these segments, as [`acquire_any`](Self::acquire_any) does. Returns `None` if
    /// the list is empty.
    pub(crate) async fn acquire_of(&self, among: Vec<u32>) -> Result<Option<SegmentGuard>, LockError> {
        let segments = Arc::clone(self.all()?);
        let budget = self.budget()?;
        let engine = self.lock.engine()?;
        let load = |index: u32| segments.keys.get(index as usize).map_or(0, |key| engine.load_of(key));
        let tried = order(among, load, jitter);
        let Some((&last, others)) = tried.split_last() else { return Ok(None) };
        let place = |index: u32| segments.keys.get(index as usize).map_or(0, |key| engine.store.place(key));
        // The servers that have failed, and those of them that do not answer at all.
        let (mut failing, mut silent, mut unanswered) = (Vec::new(), Vec::new(), None);
        // A caller inside a hold re-enters it.
        let outside = Scope::current().is_empty();
        for &index in others {
            // A segment that this manager holds is not free, and this check is much cheaper than a
            // request.
            if outside && segments.keys.get(index as usize).is_some_and(|key| engine.is_claimed(key)) {
                continue;
            }
            // Look up the server before the request: it may be replaced meanwhile.
            let at = place(index);
            if silent.contains(&at) {
                continue;
            }
            if budget.left(engine.clock.now()) == Wait::No && budget.wait != Wait::No {
                break;
            }
            let (attempt, begun) = (Budget { wait: Wait::No, ..budget }, engine.clock.now());
            match self.take(&segments, index, attempt).await {
                Ok(guard) => return Ok(Some(guard)),
                Err(LockError::Busy { .. }) => {}
                Err(LockError::NotReplicated { .. }) => failing.push(at),
                Err(error @ LockError::Unavailable { .. }) => {
                    failing.push(at);
                    // The server did not refuse but stayed silent. It would be as silent for its
                    // other segments.
                    if engine.clock.now().since(begun) >= engine.settings.call_timeout / 2 {
                        silent.push(at);
                        unanswered = Some(error);
                    }
                }
                Err(error) => return Err(error),
            }
        }
        let works = |index: &&u32| !failing.contains(&place(**index));
        let last = if failing.is_empty() { last } else { *tried.iter().rev().find(works).unwrap_or(&last) };
        if let Some(error) = unanswered
            && silent.contains(&place(last))
            && budget.left(engine.clock.now()) == Wait::No
        {
            return Err(error);
        }
        self.take(&segments, last, budget).await.map(Some)
    }

    /// Takes this segment.
    ///
    /// # Errors
    ///
    /// As [`Lock::acquire`], and [`LockError::Misconfigured`] if there is no segment with this
    /// number.
    ///
    /// # Cancel safety
    ///
    /// As [`Lock::acquire`].
    pub async fn acquire(&self, index: u32) -> Result<SegmentGuard, LockError> {
        let segments = Arc::clone(self.all()?);
        self.take(&segments, index, self.budget()?).await
    }

    /// Takes all segments in ascending order, so two calls never wait for each other in a cycle.
    /// The holder of a segment delays this call, but not the other holders. A caller that holds a
    /// segment must not call this.
    ///
    /// # Errors
    ///
    /// As [`Lock::acquire`]; the error names the segment that could not be taken. Those before it
    /// are released.
    ///
    /// # Cancel safety
    ///
    /// As [`Lock::acquire`]; segments that were already taken are released in the background.
    pub async fn acquire_all(&self) -> Result<AllSegments, LockError> {
        let segments = Arc::clone(self.all()?);
        let budget = self.budget()?;
        let mut guards = Vec::with_capacity(segments.keys.len());
        loop {
            for index in guards.len() as u32..segments.keys.len() as u32 {
                guards.push(self.take(&segments, index, budget).await?);
            }
            // The first ones may be lost by now: their fixed lease has expired, or the store was
            // down.
            match guards.iter().position(|guard: &SegmentGuard| guard.is_lost()) {
                Some(lost) => guards.truncate(lost),
                None => return Ok(AllSegments { guards }),
            }
        }
    }
}

impl fmt::Debug for SegmentedLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let keys = self.segments.as_ref().map(|segments| (segments.keys.first(), segments.keys.len()));
        f.debug_struct("SegmentedLock")
            .field("segments", &keys)
            .field("lock", &self.lock)
            .finish_non_exhaustive()
    }
}

/// A held segment of a [`SegmentedLock`]: a [`LockGuard`] with the number of its segment.
#[derive(Debug)]
#[must_use = "dropping it releases the segment"]
pub struct SegmentGuard {
    guard: LockGuard,
    index: u32,
}

impl SegmentGuard {
    /// Returns the number of the segment, counted from 0.
    #[must_use]
    pub fn index(&self) -> u32 {
        self.index
    }

    /// Returns the guard without the number of its segment.
    pub fn into_inner(self) -> LockGuard {
        self.guard
    }

    /// Releases the segment; see [`LockGuard::release`].
    ///
    /// # Errors
    ///
    /// As [`LockGuard::release`].
    ///
    /// # Cancel safety
    ///
    /// As [`LockGuard::release`].
    pub async fn release(self) -> Result<(), LockError> {
        self.guard.release().await
    }
}

impl Deref for SegmentGuard {
    type Target = LockGuard;

    fn deref(&self) -> &LockGuard {
        &self.guard
    }
}

/// All segments of a [`SegmentedLock`], held together.
#[derive(Debug)]
#[must_use = "dropping it releases the segments"]
pub struct AllSegments {
    guards: Vec<SegmentGuard>,
}

impl AllSegments {
    /// Returns the segments in ascending order.
    pub fn segments(&self) -> &[SegmentGuard] {
        &self.guards
    }

    /// Whether any of them is lost.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.guards.iter().any(|guard| guard.is_lost())
    }

    /// Waits until the first of them is lost.
    ///
    /// # Cancel safety
    ///
    /// The future may be dropped at any time, and the method called again.
    pub async fn lost(&self) {
        let mut each: Vec<_> = self.guards.iter().map(|guard| Box::pin(guard.lost())).collect();
        std::future::poll_fn(|cx| {
            let lost = each.iter_mut().any(|lost| lost.as_mut().poll(cx).is_ready());
            if lost { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
        })
        .await;
    }

    /// Releases all segments, even if the release of one fails.
    ///
    /// # Errors
    ///
    /// The first error, as for [`LockGuard::release`].
    ///
    /// # Cancel safety
    ///
    /// Segments that are not released yet are released in the background.
    pub async fn release(self) -> Result<(), LockError> {
        let mut result = Ok(());
        for guard in self.guards {
            let released = guard.release().await;
            result = result.and(released);
        }
        result
    }
}
