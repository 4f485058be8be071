//! [`SegmentedLock`]: one of n locks, or all of them.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use lock_core::internal::chance::jitter;
use lock_core::internal::clock::Tick;
use lock_core::{LockKey, Replication};
use lock_engine::scope::Scope;
use lock_engine::terms::Wait;

use super::order::order;
use crate::error::LockError;
use crate::guard::LockGuard;
use crate::kinds::Lock;

/// More would be slower than fewer: a merge looks at all of them.
pub const MAX_SEGMENTS: u32 = 1024;

/// A hot item in n parts, with a lock for each; made by
/// [`LockManager::segmented`](crate::LockManager::segmented).
///
/// A critical section of one millisecond under one lock runs a thousand times a second, in all
/// processes together. Where n of them may run side by side because each works on a part of its
/// own, n locks do n times that. Segment `i` of `stock:1001` is the
/// [mutex](crate::LockManager::mutex) `stock:1001:i`, counted from 0.
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
/// Settings are those of a [`Lock`], for each segment that is taken. A stock sells under these
/// locks with [`take_locked`](super::SegmentedStock::take_locked).
#[must_use = "nothing is locked before `acquire_any`, `acquire` or `acquire_all`"]
#[derive(Clone)]
pub struct SegmentedLock {
    /// The settings. Its key is not used.
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
                "{name}: {count} segments were asked for; ask for 1 to {MAX_SEGMENTS}"
            )));
        }
        let keys: Result<_, _> = (0..count).map(|index| LockKey::new(format!("{name}:{index}"))).collect();
        Ok(Self { keys: keys? })
    }
}

/// How long the locks of one call may take together.
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

    /// A call waits at most this long, for all the segments together that it tries or takes.
    /// Without it, the manager's `default_wait` (10 s) holds. Zero is the same as
    /// [`no_wait`](Self::no_wait).
    pub fn wait(mut self, limit: Duration) -> Self {
        self.wait = Some(Wait::at_most(limit));
        self
    }

    /// Waits for as long as it takes, also while the store is down.
    pub fn wait_forever(mut self) -> Self {
        self.wait = Some(Wait::Forever);
        self
    }

    /// Does not wait: [`LockError::Busy`] if somebody else has the segment, or every one that is
    /// tried.
    pub fn no_wait(mut self) -> Self {
        self.wait = Some(Wait::No);
        self
    }

    /// As [`Lock::lease`].
    pub fn lease(self, lease: Duration) -> Self {
        self.with(|lock| lock.lease(lease))
    }

    /// As [`Lock::max_hold`].
    pub fn max_hold(self, limit: Duration) -> Self {
        self.with(|lock| lock.max_hold(limit))
    }

    /// As [`Lock::min_hold`].
    pub fn min_hold(self, time: Duration) -> Self {
        self.with(|lock| lock.min_hold(time))
    }

    /// As [`Lock::replication`].
    pub fn replication(self, replication: Replication) -> Self {
        self.with(|lock| lock.replication(replication))
    }

    /// As [`Lock::max_waiters`], of each segment.
    pub fn max_waiters(self, cap: usize) -> Self {
        self.with(|lock| lock.max_waiters(cap))
    }

    /// As [`Lock::name`].
    pub fn name(self, name: impl Into<std::borrow::Cow<'static, str>>) -> Self {
        self.with(|lock| lock.name(name))
    }

    fn with(mut self, set: impl FnOnce(Lock) -> Lock) -> Self {
        self.lock = set(self.lock);
        self
    }

    /// How many segments there are.
    ///
    /// # Errors
    ///
    /// That of the name, or of a number that is not 1 to [`MAX_SEGMENTS`].
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

    /// One segment, with what is left of the budget.
    async fn take(&self, segments: &Segments, index: u32, budget: Budget) -> Result<SegmentGuard, LockError> {
        let Some(key) = segments.keys.get(index as usize) else {
            return Err(LockError::misconfigured(format!(
                "there is no segment {index}: they are numbered from 0 to {}",
                segments.keys.len() - 1
            )));
        };
        let clock = &self.lock.engine()?.clock;
        let left = budget.left(clock.now());
        let guard = self.lock.clone().at(key.clone()).acquire_within(left).await;
        let guard = guard.map_err(|error| match (error, budget.wait) {
            // Nothing was left of the wait: for the caller it is over.
            (LockError::Busy { key, remaining }, Wait::For(_)) => {
                LockError::TimedOut { key, waited: clock.now().since(budget.asked), remaining }
            }
            (error, _) => error,
        })?;
        Ok(SegmentGuard { guard, index })
    }

    /// Takes one of the segments.
    ///
    /// The better of two random ones is tried first, then the others, and what is left of the wait
    /// goes to the last one. A store that fails for one segment, as a server of a cluster does, is
    /// no hindrance while another can be had. A server that does not answer is waited for once, for
    /// as long as a call may take, whatever the wait.
    ///
    /// # Errors
    ///
    /// As [`Lock::acquire`]; they name the segment that was tried last.
    ///
    /// # Cancel safety
    ///
    /// As [`Lock::acquire`].
    pub async fn acquire_any(&self) -> Result<SegmentGuard, LockError> {
        match self.acquire_of((0..self.segments()?).collect()).await? {
            Some(guard) => Ok(guard),
            // There is one at least.
            None => self.acquire(0).await,
        }
    }

    /// Takes one of these segments, as [`acquire_any`](Self::acquire_any) does; `None` when there
    /// are none.
    pub(crate) async fn acquire_of(&self, among: Vec<u32>) -> Result<Option<SegmentGuard>, LockError> {
        let segments = Arc::clone(self.all()?);
        let budget = self.budget()?;
        let engine = self.lock.engine()?;
        let load = |index: u32| segments.keys.get(index as usize).map_or(0, |key| engine.load_of(key));
        let tried = order(among, load, jitter);
        let Some((&last, others)) = tried.split_last() else { return Ok(None) };
        let place = |index: u32| segments.keys.get(index as usize).map_or(0, |key| engine.store.place(key));
        // The servers that have failed, and of these the ones that are silent.
        let (mut failing, mut silent, mut unanswered) = (Vec::new(), Vec::new(), None);
        // Who is inside of a hold enters it again.
        let outside = Scope::current().is_empty();
        for &index in others {
            // One that this manager has is not free, and asking for it costs much more than a look.
            if outside && segments.keys.get(index as usize).is_some_and(|key| engine.is_claimed(key)) {
                continue;
            }
            // Whose it is now: while it is asked for, its server may be replaced.
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
                    // It has not refused, it is silent: so it will be when it is asked for the
                    // others that it has.
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
    /// As [`Lock::acquire`], and [`LockError::Misconfigured`] for a number that no segment has.
    ///
    /// # Cancel safety
    ///
    /// As [`Lock::acquire`].
    pub async fn acquire(&self, index: u32) -> Result<SegmentGuard, LockError> {
        let segments = Arc::clone(self.all()?);
        self.take(&segments, index, self.budget()?).await
    }

    /// Takes all segments, from 0 upwards: two calls never wait for each other in a ring, and who
    /// has one segment keeps this call waiting and not the others. Who holds a segment must not
    /// call this.
    ///
    /// # Errors
    ///
    /// As [`Lock::acquire`]; they name the segment that could not be had. Those before it are
    /// released.
    ///
    /// # Cancel safety
    ///
    /// As [`Lock::acquire`]; what was taken until then is released in the background.
    pub async fn acquire_all(&self) -> Result<AllSegments, LockError> {
        let segments = Arc::clone(self.all()?);
        let budget = self.budget()?;
        let mut guards = Vec::with_capacity(segments.keys.len());
        loop {
            for index in guards.len() as u32..segments.keys.len() as u32 {
                guards.push(self.take(&segments, index, budget).await?);
            }
            // Those that were taken first may be lost by now: a fixed lease is over, or the store
            // was away.
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

/// One segment of a [`SegmentedLock`], held; a [`LockGuard`] that knows which one.
#[derive(Debug)]
#[must_use = "dropping it releases the segment"]
pub struct SegmentGuard {
    guard: LockGuard,
    index: u32,
}

impl SegmentGuard {
    /// Which segment, counted from 0.
    #[must_use]
    pub fn index(&self) -> u32 {
        self.index
    }

    /// Without its number.
    pub fn into_inner(self) -> LockGuard {
        self.guard
    }

    /// As [`LockGuard::release`].
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

/// All segments of a [`SegmentedLock`], held.
#[derive(Debug)]
#[must_use = "dropping it releases the segments"]
pub struct AllSegments {
    guards: Vec<SegmentGuard>,
}

impl AllSegments {
    /// The segments, in their order.
    pub fn segments(&self) -> &[SegmentGuard] {
        &self.guards
    }

    /// Whether any of them is lost.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.guards.iter().any(|guard| guard.is_lost())
    }

    /// Ends when the first of them is lost.
    ///
    /// # Cancel safety
    ///
    /// It may be dropped at any time, and called again.
    pub async fn lost(&self) {
        let mut each: Vec<_> = self.guards.iter().map(|guard| Box::pin(guard.lost())).collect();
        std::future::poll_fn(|cx| {
            let lost = each.iter_mut().any(|lost| lost.as_mut().poll(cx).is_ready());
            if lost { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
        })
        .await;
    }

    /// Releases all of them, whatever becomes of each.
    ///
    /// # Errors
    ///
    /// The first one's, as [`LockGuard::release`].
    ///
    /// # Cancel safety
    ///
    /// Those that are not released yet are released in the background.
    pub async fn release(self) -> Result<(), LockError> {
        let mut result = Ok(());
        for guard in self.guards {
            let released = guard.release().await;
            result = result.and(released);
        }
        result
    }
}
