//! What simulations of several processes in one thread need: chance that follows from a seed, clocks that differ from each
//! other, processes that stop, and a server that is a value.
//!
//! All is to be used on a current-thread runtime under paused time. The network between the processes and the server is
//! the simulation's own.

use std::cell::Cell;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use crate::builder::LockManagerBuilder;
use crate::clock::Tick;
use crate::manager::LockManager;
use crate::store::LockStore;
use crate::sync::{Mutex, lock};

pub use crate::store::memory::server::{Looked, MemoryServer, ServerHandle};

thread_local! {
    static CHANCE: Cell<Option<u64>> = const { Cell::new(None) };
}

/// From now on, on this thread, what managers leave to chance follows from `seed`: the spread of their attempts, and
/// their own identities.
pub fn seed(seed: u64) {
    CHANCE.set(Some(seed));
}

/// The next number (SplitMix64), if there is a seed.
pub(crate) fn chance() -> Option<u64> {
    let state = CHANCE.get()?.wrapping_add(0x9e37_79b9_7f4a_7c15);
    CHANCE.set(Some(state));
    let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    Some(mixed ^ (mixed >> 31))
}

/// A clock that runs at a rate of its own over tokio's, and can be stepped. Never freed: one for each simulated process
/// or server.
#[derive(Clone, Copy)]
pub struct SimClock(&'static State);

struct State {
    origin: tokio::time::Instant,
    parts_per_million: i64,
    stepped: AtomicI64,
}

/// What such a clock shows first: it can be stepped back by as much.
const FIRST: Duration = Duration::from_secs(24 * 60 * 60);

impl SimClock {
    /// A clock that is so many parts per million faster than tokio's.
    #[must_use]
    pub fn new(parts_per_million: i64) -> Self {
        let (origin, stepped) = (tokio::time::Instant::now(), AtomicI64::new(0));
        Self(Box::leak(Box::new(State { origin, parts_per_million, stepped })))
    }

    /// Moves the clock by so many nanoseconds, back if they are negative.
    pub fn step(self, nanos: i64) {
        self.0.stepped.fetch_add(nanos, Ordering::Relaxed);
    }

    /// What it shows, in nanoseconds.
    #[must_use]
    pub fn nanos(self) -> u64 {
        self.now().as_nanos()
    }

    pub(crate) fn now(self) -> Tick {
        let passed = i128::try_from(self.0.origin.elapsed().as_nanos()).unwrap_or(i128::MAX);
        let rate = 1_000_000 + i128::from(self.0.parts_per_million);
        let first = i128::try_from(FIRST.as_nanos()).unwrap_or(0);
        let now = first + passed * rate / 1_000_000 + i128::from(self.0.stepped.load(Ordering::Relaxed));
        Tick::from_nanos(u64::try_from(now.max(0)).unwrap_or(u64::MAX))
    }
}

impl fmt::Debug for SimClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SimClock").field(&self.now()).finish()
    }
}

/// A process, whose tasks are polled only while it runs. One that is stopped for ever is what a killed one is to all others:
/// nothing of it runs any more, no destructor either.
#[derive(Clone, Debug, Default)]
pub struct Process(Arc<Mutex<Running>>);

#[derive(Debug, Default)]
struct Running {
    stopped: bool,
    /// Of tasks that were woken meanwhile.
    woken: Vec<Waker>,
}

impl Process {
    /// One that runs.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// As by SIGSTOP: no task is polled from now on. A task that calls this goes on to its next await.
    pub fn stop(&self) {
        lock(&self.0).stopped = true;
    }

    /// As by SIGCONT.
    pub fn resume(&self) {
        let mut running = lock(&self.0);
        running.stopped = false;
        let woken = std::mem::take(&mut running.woken);
        drop(running);
        for waker in woken {
            waker.wake();
        }
    }

    /// Whether it is stopped.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        lock(&self.0).stopped
    }

    /// `task` as a part of this process.
    pub fn run<F: Future>(&self, task: F) -> impl Future<Output = F::Output> + use<F> {
        Part { process: self.clone(), task }
    }
}

#[pin_project::pin_project]
struct Part<F> {
    process: Process,
    #[pin]
    task: F,
}

impl<F: Future> Future for Part<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let part = self.project();
        let mut running = lock(&part.process.0);
        if running.stopped {
            running.woken.push(cx.waker().clone());
            return Poll::Pending;
        }
        drop(running);
        part.task.poll(cx)
    }
}

/// A manager of `process`, which goes by `clock`, on a store, or on a quorum of several.
///
/// # Panics
///
/// Outside of a tokio runtime, or when the settings contradict each other.
#[must_use]
pub fn manager(
    settings: LockManagerBuilder,
    stores: Vec<Arc<dyn LockStore>>,
    clock: SimClock,
    process: &Process,
) -> LockManager {
    match settings.start_simulated(stores, clock, process.clone()) {
        Ok(locks) => locks,
        Err(error) => super::fail(&error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn clocks_run_at_their_rates_and_are_stepped() {
        let (exact, fast) = (SimClock::new(0), SimClock::new(5_000));
        let (exact_before, fast_before) = (exact.now(), fast.now());
        tokio::time::sleep(Duration::from_secs(100)).await;
        assert_eq!(exact.now().since(exact_before), Duration::from_secs(100));
        assert_eq!(fast.now().since(fast_before), Duration::from_millis(100_500));
        exact.step(-5_000_000_000);
        assert_eq!(exact.now().since(exact_before), Duration::from_secs(95));
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_of_a_stopped_process_runs() {
        let process = Process::new();
        let mut task = tokio::spawn(process.run(tokio::time::sleep(Duration::from_secs(1))));
        process.stop();
        assert!(tokio::time::timeout(Duration::from_secs(9), &mut task).await.is_err());
        process.resume();
        task.await.unwrap();
    }

    #[test]
    fn the_same_seed_makes_the_same_numbers() {
        let numbers = |from| {
            seed(from);
            [(); 3].map(|()| chance())
        };
        assert_eq!(numbers(7), numbers(7));
        assert_ne!(numbers(7), numbers(8));
        CHANCE.set(None);
    }
}
