//! Random operations of several processes with locks of every kind. A model says who may hold a key
//! beside whom, and who is next. Paused time.
//!
//! A failing run prints its seed; `PROPTEST_RNG_SEED=<seed>` repeats the same runs.

use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use crate::gated::leaks::look_for_leaks;
use crate::gated::polled::{Polled, runtime, settle};
use crate::gated::random::{KEYS, PROCESSES, Process, Waits, plans, processes, random_runs};
use crate::gated::{Bug, Plan};
use lock_core::store::LockStore;
use lock_runtime::testing::manager_on;
use lock_runtime::{FencingToken, Kind, Lock, LockError, LockGuard, LockKey, LockManager, MultiKey};
use proptest::prelude::*;
use tokio::time::{Instant, sleep};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

// ---- operations ---------------------------------------------------------------------------------

/// The kinds of a lock, by key; at least one.
type Parts = Vec<(Kind, usize)>;

#[derive(Clone, Debug)]
enum Op {
    Acquire {
        process: usize,
        parts: Parts,
        waits: Waits,
        lease: Option<u64>,
        inside: Option<usize>,
    },
    /// Polls any call, whether or not it was woken.
    Poll(usize),
    /// Polls all woken calls, until there are none.
    Run,
    /// Drops the future of any call.
    Leave(usize),
    DropGuard(usize),
    Release(usize),
    Downgrade(usize),
    Advance(u64),
    /// Decides about the next request of a process, and the answer to it.
    Plan {
        process: usize,
        plans: [Plan; 2],
    },
}

fn op(rough: bool) -> BoxedStrategy<Op> {
    let kind = prop_oneof![
        1 => Just(Kind::Mutex),
        4 => Just(Kind::Fair),
        4 => Just(Kind::Read),
        2 => Just(Kind::Write),
    ];
    let parts = prop_oneof![
        8 => (kind.clone(), 0..KEYS.len()).prop_map(|part| vec![part]),
        2 => [kind.clone(), kind].prop_map(|[a, b]| vec![(a, 0), (b, 1)]),
    ];
    let lease = prop::option::weighted(0.2, prop::sample::select(vec![100, 1000, 9000]));
    let inside = prop::option::weighted(0.2, 0..4usize);
    let acquire = (0..PROCESSES, parts, Waits::any(), lease, inside).prop_map(
        |(process, parts, waits, lease, inside)| Op::Acquire { process, parts, waits, lease, inside },
    );
    let calm = prop_oneof![
        9 => acquire,
        2 => (0..8usize).prop_map(Op::Poll),
        9 => Just(Op::Run),
        2 => (0..8usize).prop_map(Op::Leave),
        4 => (0..4usize).prop_map(Op::DropGuard),
        4 => (0..4usize).prop_map(Op::Release),
        1 => (0..4usize).prop_map(Op::Downgrade),
        3 => (1..60u64).prop_map(Op::Advance),
        2 => (60..25_000u64).prop_map(Op::Advance),
    ];
    if !rough {
        return calm.boxed();
    }
    prop_oneof![
        32 => calm,
        5 => plans().prop_map(|(process, plans)| Op::Plan { process, plans }),
    ]
    .boxed()
}

// ---- the model ----------------------------------------------------------------------------------

enum Outcome {
    Acquired(Result<LockGuard, LockError>),
    Released(Result<(), LockError>),
    Downgraded(Result<LockGuard, LockError>),
}

struct Call {
    future: Polled<Outcome>,
    what: What,
    process: usize,
    parts: Parts,
    since: Instant,
    /// Whether it was woken but not polled for a while, and so may have missed its turn.
    late: bool,
}

#[derive(Clone, Copy, Debug)]
enum What {
    Acquire { waits: Waits, renewed: bool, inside: bool },
    Release,
    Downgrade,
}

struct Held {
    guard: LockGuard,
    process: usize,
    parts: Vec<(Kind, usize, FencingToken)>,
    /// Whether only a release may end the hold.
    safe: bool,
}

struct World {
    processes: Vec<Process>,
    probe: Arc<dyn LockStore>,
    /// In the order of arrival.
    calls: Vec<Call>,
    guards: Vec<Held>,
    /// The highest token seen for each key: of readers, and of the others.
    last: [[u64; 2]; KEYS.len()],
    rough: bool,
    /// The deliberate bug of the store.
    bug: Option<Bug>,
    stats: Stats,
}

#[derive(Clone, Copy, Debug, Default)]
struct Stats {
    granted: [usize; 4],
    several: usize,
    shared: usize,
    reentered: usize,
    refused: usize,
    conflicts: usize,
    downgraded: usize,
}

impl Stats {
    fn and(self, other: Self) -> Self {
        Self {
            granted: std::array::from_fn(|kind| self.granted[kind] + other.granted[kind]),
            several: self.several + other.several,
            shared: self.shared + other.shared,
            reentered: self.reentered + other.reentered,
            refused: self.refused + other.refused,
            conflicts: self.conflicts + other.conflicts,
            downgraded: self.downgraded + other.downgraded,
        }
    }
}

fn number(kind: Kind) -> usize {
    match kind {
        Kind::Mutex => 0,
        Kind::Fair => 1,
        Kind::Read => 2,
        _ => 3,
    }
}

impl World {
    async fn new(rough: bool, bug: Option<Bug>) -> Self {
        let (processes, probe) = processes(bug).await;
        let (calls, guards) = (Vec::new(), Vec::new());
        Self {
            processes,
            probe,
            calls,
            guards,
            last: [[0; 2]; KEYS.len()],
            rough,
            bug,
            stats: Stats::default(),
        }
    }

    fn call(
        &mut self,
        process: usize,
        parts: Parts,
        what: What,
        future: impl Future<Output = Outcome> + 'static,
    ) {
        let (future, since) = (Polled::new(Box::pin(future)), Instant::now());
        self.calls.push(Call { future, what, process, parts, since, late: false });
        self.poll(self.calls.len() - 1);
    }

    fn take_guard(&mut self, n: usize) -> Option<Held> {
        (!self.guards.is_empty()).then(|| self.guards.remove(n % self.guards.len()))
    }

    async fn apply(&mut self, op: Op) {
        match op {
            Op::Acquire { process, parts, waits, lease, inside } => {
                // A caller that waits inside a lock may wait for another caller that waits for that
                // lock.
                let waits = match waits {
                    Waits::Forever if inside.is_some() => Waits::For(5000),
                    waits => waits,
                };
                self.acquire(process, parts, waits, lease, inside);
            }
            Op::Poll(n) if !self.calls.is_empty() => self.poll(n % self.calls.len()),
            Op::Leave(n) if !self.calls.is_empty() => drop(self.calls.remove(n % self.calls.len())),
            Op::Poll(_) | Op::Leave(_) => {}
            Op::Run => self.run().await,
            Op::DropGuard(n) => drop(self.take_guard(n)),
            Op::Release(n) => {
                if let Some(held) = self.take_guard(n) {
                    let release = async { Outcome::Released(held.guard.release().await) };
                    self.call(held.process, Vec::new(), What::Release, release);
                }
            }
            Op::Downgrade(n) => {
                if let Some(held) = self.take_guard(n) {
                    let key = held.parts[0].1;
                    let downgrade = async { Outcome::Downgraded(held.guard.downgrade().await) };
                    self.call(held.process, vec![(Kind::Read, key)], What::Downgrade, downgrade);
                }
            }
            Op::Advance(ms) => {
                self.note_late();
                sleep(Duration::from_millis(ms)).await;
                self.note_late();
            }
            Op::Plan { process, plans } => {
                plans.into_iter().for_each(|plan| self.processes[process].store.gate.plan(plan));
            }
        }
    }

    /// Marks calls that were woken but not polled for a while: they may miss their turn.
    fn note_late(&mut self) {
        for call in self.calls.iter_mut().filter(|call| call.future.is_woken()) {
            call.late = true;
        }
    }

    fn acquire(
        &mut self,
        process: usize,
        parts: Parts,
        waits: Waits,
        lease: Option<u64>,
        inside: Option<usize>,
    ) {
        let outer =
            inside.and_then(|n| (!self.guards.is_empty()).then(|| &self.guards[n % self.guards.len()]));
        let process = outer.map_or(process, |outer| outer.process);
        // At the head of a fair queue, it blocks that key while it waits for the other one. The
        // holder of the other key may be waiting behind it.
        let blocks = parts.len() > 1 && parts.iter().any(|part| part.0 == Kind::Fair);
        let waits = if blocks && waits == Waits::Forever { Waits::For(3000) } else { waits };
        let lock = waits.of(self.lock(process, &parts), lease);
        let acquire = async { Outcome::Acquired(lock.acquire().await) };
        let what = What::Acquire { waits, renewed: lease.is_none(), inside: outer.is_some() };
        let acquire: Pin<Box<dyn Future<Output = Outcome>>> = match outer {
            Some(outer) => Box::pin(outer.guard.scope(acquire)),
            None => Box::pin(acquire),
        };
        self.call(process, parts, what, acquire);
    }

    fn lock(&self, process: usize, parts: &Parts) -> Lock {
        let locks = &self.processes[process].locks;
        match parts[..] {
            [(Kind::Mutex, key)] => locks.mutex(KEYS[key]),
            [(Kind::Fair, key)] => locks.fair(KEYS[key]),
            [(Kind::Read, key)] => locks.read(KEYS[key]),
            [(_, key)] => locks.write(KEYS[key]),
            _ => locks.multi(parts.iter().map(|&(kind, key)| match kind {
                Kind::Mutex => MultiKey::mutex(KEYS[key]),
                Kind::Fair => MultiKey::fair(KEYS[key]),
                Kind::Read => MultiKey::read(KEYS[key]),
                _ => MultiKey::write(KEYS[key]),
            })),
        }
    }

    fn poll(&mut self, n: usize) {
        if let Poll::Ready(outcome) = self.calls[n].future.poll() {
            let call = self.calls.remove(n);
            self.done(n, &call, outcome);
        }
    }

    /// `place` is the number of remaining calls that arrived before this one.
    fn done(&mut self, place: usize, call: &Call, outcome: Outcome) {
        match (outcome, call.what) {
            (Outcome::Acquired(Ok(guard)), What::Acquire { renewed, inside, .. }) => {
                self.granted(place, call, renewed && !inside, inside, guard);
            }
            (Outcome::Acquired(Err(error)), What::Acquire { waits, inside, .. }) => {
                let fits = match (&error, waits) {
                    (LockError::Busy { .. }, Waits::Try) | (LockError::TimedOut { .. }, Waits::For(_)) => {
                        true
                    }
                    (LockError::KindConflict { .. }, _) => {
                        self.stats.conflicts += 1;
                        inside
                    }
                    (LockError::Unavailable { .. }, _) => self.rough,
                    _ => false,
                };
                assert!(fits, "{waits:?}: {error:?}");
                self.stats.refused += 1;
                if let (Waits::For(ms), LockError::TimedOut { .. }) = (waits, &error) {
                    let waited = call.since.elapsed();
                    assert!(waited >= Duration::from_millis(ms), "after {waited:?}: {error:?}");
                }
            }
            (Outcome::Released(result), _) => {
                assert!(!matches!(result, Err(LockError::NotHeld { .. })), "{result:?}");
                let confirmed = !matches!(result, Err(LockError::Unconfirmed { .. }));
                assert!(confirmed || self.rough, "{result:?}");
            }
            (Outcome::Downgraded(Ok(guard)), _) => {
                self.stats.downgraded += 1;
                self.renew(call, false, guard);
            }
            (Outcome::Downgraded(Err(error)), _) => {
                let expected = matches!(error, LockError::Misconfigured { .. } | LockError::Lost { .. });
                assert!(expected || self.rough, "{error:?}");
            }
            (Outcome::Acquired(_), what) => unreachable!("{what:?}"),
        }
    }

    fn renew(&mut self, call: &Call, safe: bool, guard: LockGuard) {
        let token = |key: usize| {
            let tokens = guard.tokens();
            tokens.iter().find(|(name, _)| name.as_str() == KEYS[key]).expect("of each key").1
        };
        let parts = call.parts.iter().map(|&(kind, key)| (kind, key, token(key))).collect();
        self.guards.push(Held { guard, process: call.process, parts, safe });
    }

    fn granted(&mut self, place: usize, call: &Call, safe: bool, inside: bool, guard: LockGuard) {
        assert!(!guard.is_lost(), "granted without validity");
        self.stats.several += usize::from(call.parts.len() > 1);
        let before = self.guards.len();
        self.renew(call, safe, guard);
        for &(kind, key, token) in &self.guards[before].parts.clone() {
            self.stats.granted[number(kind)] += 1;
            let same = |held: &&Held| held.parts.iter().any(|&(_, k, t)| k == key && t == token);
            let beside: Vec<_> = self.guards[..before].iter().filter(same).collect();
            if let Some(held) = beside.first() {
                assert_eq!(held.process, call.process, "a token of somebody else");
                assert!(inside || kind == Kind::Read, "entered what is not open");
                let counter = if inside { &mut self.stats.reentered } else { &mut self.stats.shared };
                *counter += 1;
                continue;
            }
            if inside && token.get() <= self.last[key][0].max(self.last[key][1]) {
                // Re-entered a grant whose other guards are gone.
                continue;
            }
            let [readers, others] = self.last[key];
            let floor = if kind == Kind::Read { others } else { others.max(readers) };
            let name = KEYS[key];
            // If there are two holders, the token of one may be older than that of the other.
            let grows = token.get() > floor || matches!(self.bug, Some(Bug::StealsKeys));
            assert!(grows, "tokens do not grow: {token:?} after {floor}, {kind:?} of {name}");
            let last = &mut self.last[key][usize::from(kind != Kind::Read)];
            *last = token.get().max(*last);
            if kind == Kind::Fair && !self.rough && !inside {
                let overtaken = self.calls[..place].iter().find(|earlier| {
                    matches!(
                        earlier.what,
                        What::Acquire { waits: Waits::For(_) | Waits::Forever, inside: false, .. }
                    ) && earlier.parts.contains(&(Kind::Fair, key))
                        && !earlier.late
                });
                assert!(overtaken.is_none(), "{} went past an earlier waiter", KEYS[key]);
            }
        }
    }

    /// Lets background tasks and woken calls run as far as they get without time passing.
    async fn run(&mut self) {
        for _ in 0..80 {
            settle().await;
            let Some(n) = self.calls.iter().position(|call| call.future.is_woken()) else {
                return;
            };
            self.poll(n);
        }
    }

    /// Asserts that holders of the same key are readers, and that no renewed hold is lost.
    fn check(&self) {
        for (key, name) in KEYS.iter().enumerate() {
            let live: Vec<_> = (self.guards.iter().filter(|held| !held.guard.is_lost()))
                .flat_map(|held| held.parts.iter().filter(|part| part.1 == key))
                .collect();
            let several = live.iter().any(|part| part.2 != live[0].2);
            let readers = live.iter().all(|part| part.0 == Kind::Read);
            assert!(!several || readers, "{name} is held by {live:?}");
        }
        for held in self.guards.iter().filter(|held| held.safe && !self.rough) {
            assert!(!held.guard.is_lost(), "lost without a reason: {:?}", held.guard);
        }
    }

    /// Ends the run: there are no more faults, and guards are dropped at once. Every waiter must
    /// soon have had its lock, and nothing may be left.
    async fn finish(mut self) -> Stats {
        for process in &self.processes {
            process.store.gate.forget_plans();
        }
        let start = Instant::now();
        while !self.calls.is_empty() {
            self.run().await;
            self.check();
            self.guards.clear();
            self.run().await;
            self.note_late();
            assert!(start.elapsed() < 60 * SECOND, "{} calls make no progress", self.calls.len());
            sleep(20 * MS).await;
            self.note_late();
        }
        self.guards.clear();
        sleep(12 * SECOND).await;
        let managers: Vec<_> = self.processes.iter().map(|process| process.locks.clone()).collect();
        for key in KEYS {
            let status = self.probe.status(LockKey::new(key).unwrap()).await.unwrap();
            assert_eq!(status.waiters, 0, "left in the queue of {key}");
            let leaks = look_for_leaks(&managers, &self.probe, key).await;
            assert!(leaks.is_empty(), "left behind for {key}: {leaks:?}");
            settle().await;
            let fresh = manager_on(LockManager::builder(), Arc::clone(&self.probe));
            for lock in [fresh.fair(key), fresh.read(key), fresh.write(key)] {
                let got = lock.try_acquire().await.unwrap();
                assert!(got.is_some(), "{key} is not free");
                got.unwrap().release().await.unwrap();
            }
            drop(fresh);
            settle().await;
        }
        self.stats
    }
}

fn play(ops: Vec<Op>, rough: bool, bug: Option<Bug>) -> Stats {
    runtime().block_on(async {
        let mut world = World::new(rough, bug).await;
        for op in ops {
            world.apply(op).await;
            settle().await;
            world.check();
        }
        world.finish().await
    })
}

// ---- the tests ----------------------------------------------------------------------------------

fn runs(cases: u32, rough: bool, bug: Option<Bug>) -> Result<Vec<Stats>, String> {
    random_runs(cases, op(rough), |ops| play(ops, rough, bug))
}

fn model(cases: u32, rough: bool) {
    let runs = runs(cases, rough, None).unwrap_or_else(|failure| panic!("{failure}"));
    let stats = runs.into_iter().fold(Stats::default(), Stats::and);
    let Stats {
        granted: [mutex, fair, read, write],
        several,
        shared,
        reentered,
        refused,
        conflicts,
        downgraded,
    } = stats;
    let counts = [mutex, fair, read, write, several, shared, reentered, refused, conflicts, downgraded];
    let idle = counts.iter().any(|&count| count < cases as usize / 100);
    assert!(!idle, "idle runs: {stats:?}");
}

/// No caller is overtaken in a fair queue, refused, or loses a lock, without a reason.
#[test]
fn kinds_get_along_on_a_store_that_answers() {
    model(500, false);
}

/// Requests are refused, answers are late or lost.
#[test]
fn kinds_get_along_on_a_store_that_fails() {
    model(500, true);
}

#[test]
fn a_store_that_gives_a_key_to_everybody_is_found() {
    let failure = runs(200, false, Some(Bug::StealsKeys)).map(drop).unwrap_err();
    assert!(failure.contains("is held by"), "{failure}");
}

#[test]
fn a_store_that_keeps_what_was_released_is_found() {
    let failure = runs(200, false, Some(Bug::LosesReleases)).map(drop).unwrap_err();
    assert!(failure.contains("left behind") || failure.contains("no progress"), "{failure}");
}
