//! [`Crew`]: tasks that lock and release in a loop until the time is over, for `throughput`, `hot` and `multi`.
//!
//! A grant inside a process takes less than a microsecond, so that what happens for each one here is counted in
//! nanoseconds: two readings of the clock (a third one for a hold that lasts), nothing that tasks write in common but
//! the overlap check, and numbers that each task keeps for itself.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::sync::{Mutex, OwnedMutexGuard};
use tokio::task::JoinHandle;

use super::{AFTER_ERROR, Errors, GAVE_UP, WARM_UP};
use crate::args::Options;
use crate::backend::{Limit, Lock};
use crate::inside::Inside;
use crate::meter::{Cost, Meter};
use crate::stats::{Samples, nanos};

/// How long tasks may take to stop. The open waits were measured before.
pub(super) const STOP: Duration = Duration::from_secs(3);

/// Of holds that end at once, every so many-th is measured.
const HOLDS: u64 = 64;

const WARMING: u8 = 0;
const COUNTING: u8 = 1;
const OVER: u8 = 2;

/// What the tasks do.
#[derive(Clone, Copy, Debug)]
pub(super) struct Job {
    pub(super) limit: Limit,
    pub(super) hold: Duration,
    /// If one key is used by all, so that nobody may be inside with somebody else.
    pub(super) inside: Option<&'static Inside>,
}

/// Tasks at work.
#[derive(Debug)]
pub(super) struct Crew {
    shared: Arc<Shared>,
    members: Vec<Member>,
}

/// What the tasks read and nobody writes while they work, except for the phase, twice.
#[derive(Debug)]
struct Shared {
    phase: AtomicU8,
    started: Instant,
    job: Job,
}

/// One task, seen from outside.
#[derive(Debug)]
struct Member {
    task: JoinHandle<()>,
    asked: Arc<AtomicU64>,
    tally: Arc<Mutex<Tally>>,
}

/// What one task did in the counted time.
#[derive(Debug)]
struct Tally {
    grants: u64,
    errors: Errors,
    waits: Samples,
    holds: Samples,
}

/// What all tasks did in the counted time.
#[derive(Debug)]
pub(super) struct Work {
    pub(super) per_task: Vec<u64>,
    pub(super) errors: u64,
    pub(super) waits: Samples,
    pub(super) holds: Samples,
    /// The longest wait that was open at the end; zero without one.
    pub(super) pending: Duration,
    pub(super) cost: Cost,
}

impl Crew {
    /// Starts one task for each element of `locks`, which goes through its locks in turn. Nothing is counted yet.
    pub(super) fn start(job: Job, locks: Vec<Vec<Lock>>) -> Self {
        let shared = Arc::new(Shared { phase: AtomicU8::new(WARMING), started: Instant::now(), job });
        let member = |locks| {
            let asked = Arc::new(AtomicU64::new(0));
            let tally = Arc::new(Mutex::new(Tally::new()));
            let desk = Arc::clone(&tally).try_lock_owned().expect("nobody else has seen the mutex");
            let task = tokio::spawn(work(Arc::clone(&shared), Arc::clone(&asked), desk, locks));
            Member { task, asked, tally }
        };
        let members = locks.into_iter().map(member).collect();
        Self { shared, members }
    }

    /// From warm-up to end, by the clock.
    pub(super) async fn run(self, options: &Options, meter: &mut Meter) -> Result<Work, String> {
        tokio::time::sleep(WARM_UP).await;
        let start = meter.start().await?;
        self.count();
        tokio::time::sleep(options.secs).await;
        let pending = self.end();
        let cost = meter.end(&start).await?;
        self.finish(pending, cost).await
    }

    /// From now on it counts.
    pub(super) fn count(&self) {
        self.shared.phase.store(COUNTING, Ordering::Release);
    }

    /// From now on it does not count any more, and the tasks stop. Returns the longest wait that is open.
    pub(super) fn end(&self) -> Duration {
        // Before the end is known to the tasks: from then on they leave, and the rest is served quickly.
        let asked = self.members.iter().map(|member| member.asked.load(Ordering::Acquire));
        let first = asked.filter(|&asked| asked > 0).min();
        let now = nanos(self.shared.started.elapsed());
        self.shared.phase.store(OVER, Ordering::Release);
        Duration::from_nanos(first.map_or(0, |first| now.saturating_sub(first)))
    }

    /// Waits for the tasks.
    pub(super) async fn finish(self, pending: Duration, cost: Cost) -> Result<Work, String> {
        let stop = tokio::time::Instant::now() + STOP;
        let mut stuck = 0;
        let mut all = Tally::new();
        let mut per_task = Vec::with_capacity(self.members.len());
        for mut member in self.members {
            let ended = match tokio::time::timeout_at(stop, &mut member.task).await {
                Ok(ended) => ended,
                Err(_) => {
                    stuck += 1;
                    member.task.abort();
                    member.task.await
                }
            };
            match ended {
                Err(error) if !error.is_cancelled() => return Err(format!("a task failed: {error}")),
                _ => {}
            }
            // The task held it to its end.
            let tally = member.tally.lock().await;
            per_task.push(tally.grants);
            all.errors.0 += tally.errors.0;
            all.waits.merge(&tally.waits);
            all.holds.merge(&tally.holds);
        }
        if stuck > 0 {
            eprintln!("{stuck} tasks still waited {STOP:?} after the end; see pending_max_us");
        }
        Ok(Work { per_task, errors: all.errors.0, waits: all.waits, holds: all.holds, pending, cost })
    }
}

impl Work {
    pub(super) fn grants(&self) -> u64 {
        self.per_task.iter().sum()
    }
}

impl Tally {
    fn new() -> Self {
        Self { grants: 0, errors: Errors::default(), waits: Samples::new(), holds: Samples::new() }
    }
}

/// A task. `open` says when its open request was made, in nanoseconds since the start; 0 without one.
async fn work(
    shared: Arc<Shared>,
    open: Arc<AtomicU64>,
    mut tally: OwnedMutexGuard<Tally>,
    mut locks: Vec<Lock>,
) {
    let Job { limit, hold, inside } = shared.job;
    let mut asked = Instant::now();
    loop {
        for lock in &mut locks {
            if shared.phase.load(Ordering::Acquire) == OVER {
                return;
            }
            open.store(nanos(asked - shared.started).max(1), Ordering::Release);
            let outcome = lock.acquire(limit).await;
            let granted = Instant::now();
            open.store(0, Ordering::Release);
            let counting = shared.phase.load(Ordering::Acquire) == COUNTING;
            let error = match outcome {
                Ok(Some(held)) => {
                    let visit = inside.map(Inside::enter);
                    if !hold.is_zero() {
                        tokio::time::sleep(hold).await;
                    }
                    drop(visit);
                    if counting {
                        tally.grants += 1;
                        tally.waits.record(granted - asked);
                        if !hold.is_zero() || tally.grants.is_multiple_of(HOLDS) {
                            tally.holds.record(granted.elapsed());
                        }
                    }
                    lock.release(held).await.err()
                }
                Ok(None) => Some(GAVE_UP.to_owned()),
                Err(error) => Some(error),
            };
            if let Some(error) = error {
                if counting {
                    tally.errors.add(&error);
                }
                tokio::time::sleep(AFTER_ERROR).await;
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

    /// Eight tasks on one key that hold for a millisecond.
    async fn crew(backend: &Backend) -> (Work, u64) {
        let inside = Inside::local();
        let job = Job { limit: Limit::Forever, hold: Duration::from_millis(1), inside: Some(inside) };
        let crew = Crew::start(job, vec![vec![backend.lock("key").unwrap()]; 8]);
        crew.count();
        tokio::time::sleep(Duration::from_millis(50)).await;
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
    async fn a_wait_that_never_ends_shows_as_pending_and_keeps_nothing() {
        let (work, _) = crew(&Backend::Broken(Duration::from_secs(3600))).await;
        assert_eq!(work.grants(), 0);
        assert!(work.pending > Duration::ZERO);
    }
}
