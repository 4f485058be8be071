//! [`Crew`]: tasks that lock and release in a loop until the time is over, for `throughput` and `hot`.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::{AFTER_ERROR, Errors, GAVE_UP, WARM_UP};
use crate::args::Options;
use crate::backend::{Limit, Lock};
use crate::meter::{Cost, Meter};
use crate::stats::{Samples, nanos};

/// How long tasks may take to stop. The open waits were measured before.
const STOP: Duration = Duration::from_secs(3);

const WARMING: u8 = 0;
const COUNTING: u8 = 1;
const OVER: u8 = 2;

/// What the tasks of a run share.
#[derive(Debug)]
struct Shared {
    phase: AtomicU8,
    started: Instant,
    hold: Duration,
    /// Whether one key is used by all, so that nobody may be inside with somebody else.
    one_key: bool,
    inside: AtomicBool,
    overlaps: AtomicU64,
}

/// What one task did in the counted time. The mutex is never contended: it is there so that the numbers of a task
/// that does not stop are not lost.
#[derive(Debug)]
struct Member {
    /// When the open request was made, in nanoseconds since the start; 0 without one.
    asked: AtomicU64,
    tally: Mutex<Tally>,
}

#[derive(Debug)]
struct Tally {
    grants: u64,
    errors: Errors,
    waits: Samples,
    holds: Samples,
}

/// What all tasks did in the counted time.
#[derive(Debug)]
pub(super) struct Crew {
    pub(super) per_task: Vec<u64>,
    pub(super) errors: u64,
    pub(super) waits: Samples,
    pub(super) holds: Samples,
    /// The longest wait that was open at the end; zero without one.
    pub(super) pending: Duration,
    /// How often a task was inside together with another one, the warm-up included.
    pub(super) overlaps: u64,
    pub(super) cost: Cost,
}

/// Which keys the tasks use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Keys {
    OneForAll,
    OwnOnes,
}

impl Crew {
    /// One task for each element of `locks`; each goes through its locks in turn.
    pub(super) async fn run(
        options: &Options,
        meter: &mut Meter,
        locks: Vec<Vec<Lock>>,
        limit: Limit,
        keys: Keys,
    ) -> Result<Self, String> {
        let shared = Arc::new(Shared {
            phase: AtomicU8::new(WARMING),
            started: Instant::now(),
            hold: options.hold,
            one_key: keys == Keys::OneForAll,
            inside: AtomicBool::new(false),
            overlaps: AtomicU64::new(0),
        });
        let mut members = Vec::with_capacity(locks.len());
        let mut tasks = Vec::with_capacity(locks.len());
        for locks in locks {
            let member = Arc::new(Member { asked: AtomicU64::new(0), tally: Mutex::new(Tally::new()) });
            tasks.push(tokio::spawn(work(Arc::clone(&shared), Arc::clone(&member), locks, limit)));
            members.push(member);
        }

        tokio::time::sleep(WARM_UP).await;
        let start = meter.start().await?;
        shared.phase.store(COUNTING, Ordering::Release);
        tokio::time::sleep(options.secs).await;
        // Before the end is known to the tasks: from then on they leave, and the rest is served quickly.
        let pending = shared.longest_open_wait(&members);
        shared.phase.store(OVER, Ordering::Release);
        let cost = meter.end(&start).await?;

        let stop = Instant::now() + STOP;
        let mut stuck = 0;
        for mut task in tasks {
            let left = stop.saturating_duration_since(Instant::now());
            match tokio::time::timeout(left, &mut task).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => return Err(format!("a task failed: {error}")),
                Err(_) => {
                    task.abort();
                    stuck += 1;
                }
            }
        }
        if stuck > 0 {
            eprintln!("{stuck} tasks still waited {STOP:?} after the end; see pending_max_us");
        }
        Ok(Self::sum(&members, pending, shared.overlaps.load(Ordering::Acquire), cost))
    }

    fn sum(members: &[Arc<Member>], pending: Duration, overlaps: u64, cost: Cost) -> Self {
        let mut all = Tally::new();
        let mut per_task = Vec::with_capacity(members.len());
        for member in members {
            let tally = member.tally();
            per_task.push(tally.grants);
            all.errors.0 += tally.errors.0;
            all.waits.merge(&tally.waits);
            all.holds.merge(&tally.holds);
        }
        let errors = all.errors.0;
        Self { per_task, errors, waits: all.waits, holds: all.holds, pending, overlaps, cost }
    }

    pub(super) fn grants(&self) -> u64 {
        self.per_task.iter().sum()
    }
}

impl Shared {
    fn longest_open_wait(&self, members: &[Arc<Member>]) -> Duration {
        let now = nanos(self.started.elapsed());
        let asked = members.iter().map(|member| member.asked.load(Ordering::Acquire));
        let first = asked.filter(|&asked| asked > 0).min();
        Duration::from_nanos(first.map_or(0, |first| now.saturating_sub(first)))
    }

    fn enter(&self) {
        if self.one_key && self.inside.swap(true, Ordering::AcqRel) {
            self.overlaps.fetch_add(1, Ordering::AcqRel);
        }
    }

    fn leave(&self) {
        if self.one_key {
            self.inside.store(false, Ordering::Release);
        }
    }
}

impl Member {
    fn tally(&self) -> std::sync::MutexGuard<'_, Tally> {
        self.tally.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Tally {
    fn new() -> Self {
        Self { grants: 0, errors: Errors::default(), waits: Samples::new(), holds: Samples::new() }
    }
}

async fn work(shared: Arc<Shared>, member: Arc<Member>, mut locks: Vec<Lock>, limit: Limit) {
    loop {
        for lock in &mut locks {
            if shared.phase.load(Ordering::Acquire) == OVER {
                return;
            }
            let asked = Instant::now();
            member.asked.store(nanos(asked - shared.started).max(1), Ordering::Release);
            let outcome = lock.acquire(limit).await;
            let granted = Instant::now();
            member.asked.store(0, Ordering::Release);
            let counting = shared.phase.load(Ordering::Acquire) == COUNTING;
            let error = match outcome {
                Ok(Some(held)) => {
                    shared.enter();
                    if !shared.hold.is_zero() {
                        tokio::time::sleep(shared.hold).await;
                    }
                    shared.leave();
                    let left = Instant::now();
                    let released = lock.release(held).await;
                    if counting {
                        let mut tally = member.tally();
                        tally.grants += 1;
                        tally.waits.record(granted - asked);
                        tally.holds.record(left - granted);
                    }
                    released.err()
                }
                Ok(None) => Some(GAVE_UP.to_owned()),
                Err(error) => Some(error),
            };
            if let Some(error) = error {
                if counting {
                    member.tally().errors.add(&error);
                }
                tokio::time::sleep(AFTER_ERROR).await;
            }
        }
    }
}
