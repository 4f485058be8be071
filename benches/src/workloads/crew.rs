//! [`Crew`]: tasks that lock and release in a loop until the time is over, for `throughput`, `hot`,
//! `multi`, `fair-hot`, `rw-hot` and `rw-mix`.
//!
//! A grant inside a process takes less than a microsecond, so the bookkeeping for each one has to
//! cost only nanoseconds:
//!
//! - It reads the clock twice, or three times for a hold that lasts.
//! - Tasks write nothing in common but the overlap check.
//! - Each worker thread has one histogram, which stays in its core's cache; those of 64 tasks would
//!   not.

use std::cell::Cell;
use std::sync::atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::runtime::Handle;
use tokio::task::JoinHandle;

use super::common::{AFTER_ERROR, GAVE_UP, warm_up};
use crate::args::Options;
use crate::backend::{Limit, Lock};
use crate::inside::Inside;
use crate::meter::{Cost, Meter};
use crate::stats::{Samples, nanos};

/// Maximum time for tasks to stop. The open waits were measured before.
pub(super) const STOP: Duration = Duration::from_secs(3);

/// One in this many holds is measured, if holds end at once.
const HOLDS: u64 = 64;

const WARMING: u8 = 0;
const COUNTING: u8 = 1;
const OVER: u8 = 2;

/// The work of each task.
#[derive(Clone, Copy, Debug)]
pub(super) struct Job {
    pub(super) limit: Limit,
    pub(super) hold: Duration,
    /// The overlap check, if all tasks use one key.
    pub(super) inside: Option<&'static Inside>,
    /// Set if some locks are shared: how long a task rests after a lock that is not. The waits for
    /// those are also recorded separately.
    pub(super) writes: Option<Duration>,
}

/// A set of running tasks.
#[derive(Debug)]
pub(super) struct Crew {
    shared: Arc<Shared>,
    members: Vec<(JoinHandle<()>, Arc<Member>)>,
}

/// The state that all tasks read. While they work, only the phase is written, twice, and `errors`
/// and the books.
#[derive(Debug)]
struct Shared {
    phase: AtomicU8,
    started: Instant,
    job: Job,
    books: Vec<Book>,
    errors: AtomicU64,
}

/// The samples of one worker thread. The mutex only satisfies the compiler: no other thread takes
/// it during the run. It has its own cache lines, as [`Member`] does.
#[derive(Debug)]
#[repr(align(128))]
struct Book(Mutex<Pages>);

#[derive(Debug)]
struct Pages {
    waits: Samples,
    holds: Samples,
    /// Those of `waits` for exclusive locks, in workloads that also have shared ones.
    writes: Samples,
}

/// The state of one task that others read. Only the task writes it.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Member {
    /// Time of the open request, in nanoseconds since the start; 0 without one.
    asked: AtomicU64,
    /// Grants in the counted time.
    grants: AtomicU64,
}

/// The work of all tasks in the counted time.
#[derive(Debug)]
pub(super) struct Work {
    pub(super) per_task: Vec<u64>,
    pub(super) errors: u64,
    pub(super) waits: Samples,
    pub(super) holds: Samples,
    /// Those of `waits` for exclusive locks, in workloads that also have shared ones.
    pub(super) writes: Samples,
    /// The longest wait that was open at the end; zero without one.
    pub(super) pending: Duration,
    pub(super) cost: Cost,
}

impl Crew {
    /// Starts one task for each element of `locks`, which cycles through the locks in it. Nothing
    /// is counted yet.
    pub(super) fn start(job: Job, locks: Vec<Vec<Lock>>) -> Self {
        let workers = Handle::current().metrics().num_workers();
        let shared = Arc::new(Shared {
            phase: AtomicU8::new(WARMING),
            started: Instant::now(),
            job,
            books: (0..workers.max(1)).map(|_| Book(Mutex::new(Pages::new()))).collect(),
            errors: AtomicU64::new(0),
        });
        let start = |locks| {
            let member = Arc::<Member>::default();
            (tokio::spawn(work(Arc::clone(&shared), Arc::clone(&member), locks)), member)
        };
        let members = locks.into_iter().map(start).collect();
        Self { shared, members }
    }

    /// Runs from warm-up to end.
    pub(super) async fn run(self, options: &Options, meter: &mut Meter) -> Result<Work, String> {
        tokio::time::sleep(warm_up(options)).await;
        let start = meter.start().await?;
        self.count();
        tokio::time::sleep(options.secs).await;
        let pending = self.end();
        let cost = meter.end(&start).await?;
        self.finish(pending, cost).await
    }

    /// Starts counting.
    pub(super) fn count(&self) {
        self.shared.phase.store(COUNTING, Ordering::Release);
    }

    /// Stops counting, and tells the tasks to stop. Returns the longest open wait.
    pub(super) fn end(&self) -> Duration {
        // Read before the tasks learn of the end: from then on they leave, and the others are
        // served quickly.
        let asked = self.members.iter().map(|(_, member)| member.asked.load(Ordering::Acquire));
        let first = asked.filter(|&asked| asked > 0).min();
        let now = nanos(self.shared.started.elapsed());
        self.shared.phase.store(OVER, Ordering::Release);
        Duration::from_nanos(first.map_or(0, |first| now.saturating_sub(first)))
    }

    /// Waits for the tasks to stop, and sums up their work.
    pub(super) async fn finish(self, pending: Duration, cost: Cost) -> Result<Work, String> {
        let stop = tokio::time::Instant::now() + STOP;
        let mut stuck = 0;
        let mut per_task = Vec::with_capacity(self.members.len());
        for (mut task, member) in self.members {
            match tokio::time::timeout_at(stop, &mut task).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => return Err(format!("a task failed: {error}")),
                Err(_) => {
                    stuck += 1;
                    task.abort();
                }
            }
            per_task.push(member.grants.load(Ordering::Acquire));
        }
        if stuck > 0 {
            eprintln!("{stuck} tasks still waited {STOP:?} after the end; see pending_max_us");
        }
        let mut all = Pages::new();
        for book in &self.shared.books {
            let pages = book.open();
            all.waits.merge(&pages.waits);
            all.holds.merge(&pages.holds);
            all.writes.merge(&pages.writes);
        }
        let errors = self.shared.errors.load(Ordering::Acquire);
        let Pages { waits, holds, writes } = all;
        Ok(Work { per_task, errors, waits, holds, writes, pending, cost })
    }
}

impl Work {
    pub(super) fn grants(&self) -> u64 {
        self.per_task.iter().sum()
    }
}

impl Pages {
    fn new() -> Self {
        Self { waits: Samples::new(), holds: Samples::new(), writes: Samples::new() }
    }
}

impl Book {
    fn open(&self) -> MutexGuard<'_, Pages> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Shared {
    /// Returns the book of this thread.
    fn book(&self) -> &Book {
        static THREADS: AtomicUsize = AtomicUsize::new(0);
        thread_local! {
            static THREAD: Cell<usize> = Cell::new(THREADS.fetch_add(1, Ordering::Relaxed));
        }
        // Each worker has its own book.
        let thread = THREAD.get() % self.books.len();
        self.books.get(thread).expect("the rest of the division is smaller")
    }

    fn error(&self, error: &str) {
        if self.errors.fetch_add(1, Ordering::AcqRel) == 0 {
            eprintln!("first error: {error}");
        }
    }
}

async fn work(shared: Arc<Shared>, member: Arc<Member>, mut locks: Vec<Lock>) {
    let Job { limit, hold, inside, writes } = shared.job;
    let mut grants = 0u64;
    let mut asked = Instant::now();
    loop {
        for lock in &mut locks {
            if shared.phase.load(Ordering::Acquire) == OVER {
                return;
            }
            member.asked.store(nanos(asked - shared.started).max(1), Ordering::Release);
            let alone = !lock.is_shared();
            let outcome = lock.acquire(limit).await;
            let granted = Instant::now();
            member.asked.store(0, Ordering::Release);
            let counting = shared.phase.load(Ordering::Acquire) == COUNTING;
            let error = match outcome {
                Ok(Some(held)) => {
                    let visit = inside.map(if alone { Inside::enter } else { Inside::enter_shared });
                    if !hold.is_zero() {
                        tokio::time::sleep(hold).await;
                    }
                    drop(visit);
                    if counting {
                        grants += 1;
                        member.grants.store(grants, Ordering::Release);
                        let mut pages = shared.book().open();
                        pages.waits.record(granted - asked);
                        if alone && writes.is_some() {
                            pages.writes.record(granted - asked);
                        }
                        if !hold.is_zero() || grants.is_multiple_of(HOLDS) {
                            pages.holds.record(granted.elapsed());
                        }
                    }
                    lock.release(held).await.err()
                }
                Ok(None) => Some(GAVE_UP.to_owned()),
                Err(error) => Some(error),
            };
            if let Some(error) = error {
                if counting {
                    shared.error(&error);
                }
                tokio::time::sleep(AFTER_ERROR).await;
            }
            if let Some(rest) = writes.filter(|rest| alone && !rest.is_zero()) {
                tokio::time::sleep(rest).await;
            }
            // The next request is made at once.
            asked = Instant::now();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::Backend;

    /// Runs eight tasks on one key, each holding it for a millisecond.
    async fn crew(backend: &Backend) -> (Work, u64) {
        let inside = Inside::local();
        let job =
            Job { limit: Limit::Forever, hold: Duration::from_millis(1), inside: Some(inside), writes: None };
        let crew = Crew::start(job, vec![vec![backend.lock("key").unwrap()]; 8]);
        crew.count();
        // Runs until there are enough grants to judge, or for 30 s.
        let grants =
            || crew.members.iter().map(|(_, member)| member.grants.load(Ordering::Acquire)).sum::<u64>();
        let enough = async {
            while grants() < 32 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        let _ = tokio::time::timeout(Duration::from_secs(30), enough).await;
        let pending = crew.end();
        let work = crew.finish(pending, Cost::default()).await.unwrap();
        (work, inside.overlaps())
    }

    #[tokio::test]
    async fn a_lock_that_excludes_has_no_overlaps() {
        let (work, overlaps) = crew(&Backend::Tokio(Arc::default())).await;
        assert!(work.grants() > 0 && work.errors == 0);
        assert_eq!(overlaps, 0);
        assert!(work.holds.percentile(50.0).unwrap() >= 1000.0);
        assert!(work.pending > Duration::ZERO, "seven tasks wait at any time");
    }

    #[tokio::test]
    async fn a_lock_that_excludes_nobody_is_found_out() {
        let (work, overlaps) = crew(&Backend::Broken(Duration::ZERO)).await;
        assert!(work.grants() > 8);
        assert!(overlaps > 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_wait_that_never_ends_shows_as_pending() {
        let (work, _) = crew(&Backend::Broken(Duration::from_secs(3600))).await;
        assert_eq!(work.grants(), 0);
        assert!(work.pending > Duration::ZERO);
    }
}
