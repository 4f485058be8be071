//! Random operations of several processes on a few keys: the parts that their models share. A
//! failing run prints its seed; `PROPTEST_RNG_SEED=<seed>` repeats the same runs.

use std::cell::RefCell;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use lock_core::store::LockStore;
use lock_runtime::testing::{manager_on, named_memory_store};
use lock_runtime::{Lock, LockManager};
use proptest::prelude::*;
use proptest::test_runner::{RngSeed, TestRunner};

use super::{Bug, GatedStore, Plan};

/// Lease of renewed holds: leftovers outlive the search for them.
pub(crate) const LEASE: Duration = Duration::from_secs(60);
const CALL_TIMEOUT: Duration = Duration::from_secs(2);
/// Maximum time for which the gate holds a call back, in milliseconds.
pub(crate) const LONGEST_DELAY: u64 = 3000;
pub(crate) const KEYS: [&str; 2] = ["a", "b"];
pub(crate) const PROCESSES: usize = 3;

/// How long a caller waits, in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Waits {
    Try,
    For(u64),
    Forever,
}

impl Waits {
    pub(crate) fn any() -> impl Strategy<Value = Self> {
        prop_oneof![
            2 => Just(Self::Try),
            2 => (1..3000u64).prop_map(Self::For),
            3 => Just(Self::Forever),
        ]
    }

    /// Returns `lock` with this wait, and with a fixed lease in milliseconds, if there is one.
    pub(crate) fn of(self, lock: Lock, lease: Option<u64>) -> Lock {
        let lock = match self {
            Self::Try => lock.no_wait(),
            Self::For(ms) => lock.wait(Duration::from_millis(ms)),
            Self::Forever => lock.wait_forever(),
        };
        match lease {
            Some(ms) => lock.lease(Duration::from_millis(ms)),
            None => lock,
        }
    }
}

/// Plans the next request of a process, and the answer to it.
pub(crate) fn plans() -> impl Strategy<Value = (usize, [Plan; 2])> {
    let plan = || {
        prop_oneof![
            1 => Just(Plan::Fail),
            2 => (1..LONGEST_DELAY).prop_map(Plan::Delay),
            2 => Just(Plan::Pass),
        ]
    };
    (0..PROCESSES, [plan(), plan()])
}

pub(crate) struct Process {
    pub(crate) locks: LockManager,
    pub(crate) store: Arc<GatedStore>,
}

/// Returns processes that share a new store, and a handle on the store that none of them uses.
pub(crate) async fn processes(bug: Option<Bug>) -> (Vec<Process>, Arc<dyn LockStore>) {
    static WORLDS: AtomicU64 = AtomicU64::new(0);
    let name = format!("model-{}", WORLDS.fetch_add(1, Ordering::Relaxed));
    let mut processes = Vec::new();
    for _ in 0..PROCESSES {
        let store = GatedStore::new(named_memory_store(&name)).await;
        bug.into_iter().for_each(|bug| store.put_in(bug));
        let settings = LockManager::builder().lease(LEASE).call_timeout(CALL_TIMEOUT);
        let locks = manager_on(settings, Arc::clone(&store) as Arc<dyn LockStore>);
        processes.push(Process { locks, store });
    }
    (processes, named_memory_store(&name))
}

/// Runs `cases` random lists of operations. Returns the result of each, or the failure with its
/// seed. `PROPTEST_CASES` multiplies `cases`: its default, 256, means once. No file records
/// failures: turn a failure into its own test.
pub(crate) fn random_runs<Op: Clone + fmt::Debug, T>(
    cases: u32,
    op: impl Strategy<Value = Op>,
    play: impl Fn(Vec<Op>) -> T,
) -> Result<Vec<T>, String> {
    let cases = cases.saturating_mul(ProptestConfig::default().cases.div_ceil(256));
    let mut config = ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() };
    let seed = match config.rng_seed {
        RngSeed::Fixed(seed) => seed,
        RngSeed::Random => rand::random(),
    };
    config.rng_seed = RngSeed::Fixed(seed);
    let results = RefCell::new(Vec::new());
    let run = |ops: Vec<Op>| {
        let result = play(ops);
        results.borrow_mut().push(result);
        Ok(())
    };
    match TestRunner::new(config).run(&prop::collection::vec(op, 1..60), run) {
        Ok(()) => Ok(results.into_inner()),
        Err(failure) => Err(format!("PROPTEST_RNG_SEED={seed}: {failure}")),
    }
}
