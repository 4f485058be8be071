//! Random operations of several processes on a few keys. A model says who may hold which key, and
//! when. Paused time.
//!
//! A failing run prints its seed; `PROPTEST_RNG_SEED=<seed>` repeats the same runs.

use std::collections::HashMap;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use crate::gated::leaks::look_for_leaks;
use crate::gated::polled::{Polled, runtime, settle};
use crate::gated::random::{
    KEYS, LEASE, LONGEST_DELAY, PROCESSES, Process, Waits, plans, processes, random_runs,
};
use crate::gated::{Bug, Plan};
use lock_core::store::LockStore;
use lock_runtime::{HeldLock, LockError, LockGuard, LockKey};
use proptest::prelude::*;
use tokio::time::{Instant, sleep};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

// ---- operations ---------------------------------------------------------------------------------

#[derive(Clone, Copy, Debug)]
enum Op {
    Acquire {
        process: usize,
        key: usize,
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
    Extend {
        guard: usize,
        lease: u64,
    },
    Reenter(usize),
    Advance(u64),
    ForceRelease {
        process: usize,
        key: usize,
    },
    /// Decides about the next request of a process, and the answer to it.
    Plan {
        process: usize,
        plans: [Plan; 2],
    },
}

fn op(rough: bool) -> BoxedStrategy<Op> {
    // Few different leases: only a waiter with the same request can get a hand-off.
    let lease = prop::option::weighted(0.4, prop::sample::select(vec![100, 300, 1000, 5000]));
    let inside = prop::option::weighted(0.2, 0..4usize);
    let acquire = (0..PROCESSES, 0..KEYS.len(), Waits::any(), lease, inside);
    let calm = prop_oneof![
        8 => acquire.prop_map(|(process, key, waits, lease, inside)| {
            Op::Acquire { process, key, waits, lease, inside }
        }),
        3 => (0..8usize).prop_map(Op::Poll),
        8 => Just(Op::Run),
        2 => (0..8usize).prop_map(Op::Leave),
        4 => (0..4usize).prop_map(Op::DropGuard),
        3 => (0..4usize).prop_map(Op::Release),
        2 => (0..4usize, 100..9000u64).prop_map(|(guard, lease)| Op::Extend { guard, lease }),
        1 => (0..4usize).prop_map(Op::Reenter),
        3 => (1..60u64).prop_map(Op::Advance),
        2 => (60..25_000u64).prop_map(Op::Advance),
    ];
    if !rough {
        return calm.boxed();
    }
    prop_oneof![
        32 => calm,
        1 => (0..PROCESSES, 0..KEYS.len()).prop_map(|(process, key)| Op::ForceRelease { process, key }),
        5 => plans().prop_map(|(process, plans)| Op::Plan { process, plans }),
    ]
    .boxed()
}

// ---- the model ----------------------------------------------------------------------------------

/// The result of a call.
enum Outcome {
    Acquired(Result<LockGuard, LockError>),
    Extended(LockGuard, u64, Result<(), LockError>),
    Released(Result<(), LockError>),
    Forced(Result<bool, LockError>),
}

struct Call {
    future: Polled<Outcome>,
    what: What,
    process: usize,
    key: usize,
    since: Instant,
    /// Whether another call had or wanted the key while it waited.
    contended: bool,
}

#[derive(Clone, Copy, Debug)]
enum What {
    Acquire { waits: Waits, lease: Option<u64>, inside: Option<u64> },
    Extend { grant: u64 },
    Release,
    Force,
}

/// A grant as the caller sees it; re-entrant guards count as one grant.
struct Granted {
    process: usize,
    key: usize,
    /// The views of all its guards, including those that are gone.
    views: Vec<HeldLock>,
    /// When it must have ended; `None` if it is renewed.
    until: Option<Instant>,
    /// Whether no part of it has a fixed lease.
    renewed: bool,
    /// Whether a call inside it may extend it at any time.
    stretched: bool,
    /// Whether the key was freed by force, so that nothing is guaranteed any more.
    void: bool,
    guards: usize,
}

impl Granted {
    fn is_held(&self) -> bool {
        self.views.iter().any(HeldLock::is_held)
    }

    /// Its guards agree on the remaining time, until they are gone.
    fn remaining(&self) -> Duration {
        self.views.iter().map(HeldLock::remaining).max().unwrap_or_default()
    }

    fn id(&self) -> u64 {
        grant_id(self.key, self.views[0].fencing_token().get())
    }
}

struct World {
    processes: Vec<Process>,
    probe: Arc<dyn LockStore>,
    calls: Vec<Call>,
    guards: Vec<(u64, LockGuard)>,
    /// By token and key, since tokens of two keys may be equal.
    grants: HashMap<u64, Granted>,
    last_token: [u64; KEYS.len()],
    /// Until when a forced release may still arrive.
    forced_until: [Option<Instant>; KEYS.len()],
    /// Whether the key was held when the store was last asked.
    held: [bool; KEYS.len()],
    rough: bool,
    /// The deliberate bug of the store.
    bug: Option<Bug>,
    stats: Stats,
}

#[derive(Clone, Copy, Debug, Default)]
struct Stats {
    granted: usize,
    reentered: usize,
    refused: usize,
    released: usize,
}

fn grant_id(key: usize, token: u64) -> u64 {
    token * KEYS.len() as u64 + key as u64
}

impl World {
    async fn new(rough: bool, bug: Option<Bug>) -> Self {
        let (processes, probe) = processes(bug).await;
        Self {
            processes,
            probe,
            calls: Vec::new(),
            guards: Vec::new(),
            grants: HashMap::new(),
            last_token: [0; KEYS.len()],
            forced_until: [None; KEYS.len()],
            held: [false; KEYS.len()],
            rough,
            bug,
            stats: Stats::default(),
        }
    }

    fn call(
        &mut self,
        process: usize,
        key: usize,
        what: What,
        future: impl Future<Output = Outcome> + 'static,
    ) {
        let (future, since) = (Polled::new(Box::pin(future)), Instant::now());
        let contended = self.held[key] || self.calls.iter().any(|call| call.key == key);
        self.calls.push(Call { future, what, process, key, since, contended });
        self.poll(self.calls.len() - 1);
    }

    /// Removes the nth guard, if there is one.
    fn take_guard(&mut self, n: usize) -> Option<(u64, LockGuard)> {
        (!self.guards.is_empty()).then(|| self.guards.remove(n % self.guards.len()))
    }

    fn guard_gone(&mut self, grant: u64) {
        self.grants.get_mut(&grant).expect("it was granted").guards -= 1;
    }

    async fn apply(&mut self, op: Op) {
        match op {
            Op::Acquire { process, key, waits, lease, inside } => {
                self.acquire(process, key, waits, lease, inside);
            }
            Op::Poll(n) if !self.calls.is_empty() => self.poll(n % self.calls.len()),
            Op::Leave(n) if !self.calls.is_empty() => {
                let call = self.calls.remove(n % self.calls.len());
                if let What::Extend { grant } = call.what {
                    self.guard_gone(grant);
                }
            }
            Op::Poll(_) | Op::Leave(_) => {}
            Op::Run => self.run().await,
            Op::DropGuard(n) => {
                if let Some((grant, guard)) = self.take_guard(n) {
                    drop(guard);
                    self.guard_gone(grant);
                }
            }
            Op::Release(n) => {
                if let Some((grant, guard)) = self.take_guard(n) {
                    let Granted { process, key, .. } = self.grants[&grant];
                    self.guard_gone(grant);
                    let release = async { Outcome::Released(guard.release().await) };
                    self.call(process, key, What::Release, release);
                }
            }
            Op::Extend { guard, lease } => {
                if let Some((grant, guard)) = self.take_guard(guard) {
                    let granted = self.grants.get_mut(&grant).expect("it was granted");
                    // The call may extend the grant even if its answer is lost.
                    let longer = Instant::now() + Duration::from_millis(lease);
                    granted.until = granted.until.map(|until| until.max(longer));
                    let (process, key) = (granted.process, granted.key);
                    let extend = async move {
                        let result = guard.extend(Duration::from_millis(lease)).await;
                        Outcome::Extended(guard, grant, result)
                    };
                    self.call(process, key, What::Extend { grant }, extend);
                }
            }
            Op::Reenter(n) => {
                if let Some((grant, guard)) =
                    (!self.guards.is_empty()).then(|| &self.guards[n % self.guards.len()])
                {
                    let (lost, entered, grant) = (guard.is_lost(), guard.reenter(), *grant);
                    assert_eq!(entered.is_err(), lost, "{entered:?}");
                    if let Ok(guard) = entered {
                        let granted = self.grants.get_mut(&grant).expect("it was granted");
                        granted.guards += 1;
                        granted.views.push(guard.view());
                        self.guards.push((grant, guard));
                    }
                }
            }
            // A sleep advances the clock timer by timer, so that timers expire in their order.
            Op::Advance(ms) => {
                // A call that was woken and is not polled may miss the lock.
                for call in self.calls.iter_mut().filter(|call| call.future.is_woken()) {
                    call.contended = true;
                }
                sleep(Duration::from_millis(ms)).await;
            }
            Op::ForceRelease { process, key } => {
                self.void(key);
                let locks = self.processes[process].locks.clone();
                let force = async move { Outcome::Forced(locks.force_release(KEYS[key]).await) };
                self.call(process, key, What::Force, force);
            }
            Op::Plan { process, plans } => {
                plans.into_iter().for_each(|plan| self.processes[process].store.gate.plan(plan));
            }
        }
    }

    fn acquire(
        &mut self,
        process: usize,
        key: usize,
        waits: Waits,
        lease: Option<u64>,
        inside: Option<usize>,
    ) {
        let outer =
            inside.and_then(|n| (!self.guards.is_empty()).then(|| &self.guards[n % self.guards.len()]));
        let (mut process, mut key) = (process, key);
        if let Some((grant, _)) = outer {
            let outer = self.grants.get_mut(grant).expect("it was granted");
            outer.stretched = true;
            if process > 0 {
                (process, key) = (outer.process, outer.key);
            }
        }
        let (inside, outer) = outer.map(|(grant, guard)| (*grant, guard)).unzip();
        let mutex = self.processes[process].locks.mutex(KEYS[key]);
        let mutex = waits.of(mutex, lease);
        let acquire = async { Outcome::Acquired(mutex.acquire().await) };
        let what = What::Acquire { waits, lease, inside };
        let acquire: Pin<Box<dyn Future<Output = Outcome>>> = match outer {
            Some(outer) => Box::pin(outer.scope(acquire)),
            None => Box::pin(acquire),
        };
        self.call(process, key, what, acquire);
    }

    /// From now on, the key may be taken away from its holder.
    fn void(&mut self, key: usize) {
        self.forced_until[key] = Some(Instant::now() + Duration::from_millis(LONGEST_DELAY) + SECOND);
        for granted in self.grants.values_mut().filter(|granted| granted.key == key) {
            granted.void = true;
        }
    }

    fn poll(&mut self, n: usize) {
        if let Poll::Ready(outcome) = self.calls[n].future.poll() {
            let call = self.calls.remove(n);
            self.done(&call, outcome);
        }
    }

    fn done(&mut self, call: &Call, outcome: Outcome) {
        match (outcome, call.what) {
            (Outcome::Acquired(Ok(guard)), What::Acquire { lease, .. }) => {
                self.granted(call, lease, guard);
            }
            (Outcome::Acquired(Err(error)), What::Acquire { waits, .. }) => {
                self.stats.refused += 1;
                let fits = match (&error, waits) {
                    (LockError::Busy { .. }, Waits::Try) | (LockError::TimedOut { .. }, Waits::For(_)) => {
                        true
                    }
                    (LockError::Unavailable { .. }, _) => self.rough,
                    _ => false,
                };
                assert!(fits, "{waits:?}: {error:?}");
                assert!(self.rough || call.contended, "refused, and nobody else wants it: {error:?}");
                if let Waits::For(ms) = waits {
                    let waited = call.since.elapsed();
                    assert!(waited >= Duration::from_millis(ms) || self.rough, "after {waited:?}: {error:?}");
                }
            }
            (Outcome::Extended(guard, grant, result), _) => {
                let granted = &self.grants[&grant];
                let fits = match &result {
                    Ok(()) => true,
                    Err(LockError::Misconfigured { .. }) => granted.until.is_none() || self.rough,
                    Err(LockError::Lost { .. }) => guard.is_lost(),
                    Err(_) => self.rough,
                };
                assert!(fits, "{result:?}");
                self.guards.push((grant, guard));
            }
            (Outcome::Released(result), _) => {
                self.stats.released += 1;
                assert!(!matches!(result, Err(LockError::NotHeld { .. })), "{result:?}");
                let confirmed = !matches!(result, Err(LockError::Unconfirmed { .. }));
                assert!(confirmed || self.rough, "{result:?}");
            }
            (Outcome::Forced(result), _) => {
                assert!(result.is_ok() || self.rough, "{result:?}");
            }
            (Outcome::Acquired(_), what) => unreachable!("{what:?}"),
        }
    }

    fn granted(&mut self, call: &Call, lease: Option<u64>, guard: LockGuard) {
        let (process, key) = (call.process, call.key);
        let token = guard.fencing_token().get();
        let grant = grant_id(key, token);
        let until = lease.map(|ms| Instant::now() + Duration::from_millis(ms));
        assert!(!guard.is_lost(), "granted without validity");
        // The key may have been granted long before the caller was polled, and freed in between.
        let void = self.forced_until[key].is_some_and(|until| call.since < until);
        if let Some(outer) = self.grants.get_mut(&grant) {
            // Re-entered a grant of its own process.
            assert!(outer.process == process, "a token of somebody else");
            self.stats.reentered += 1;
            outer.guards += 1;
            outer.views.push(guard.view());
            outer.renewed &= lease.is_none();
            outer.until = outer.until.zip(until).map(|(outer, inner)| outer.max(inner));
        } else {
            self.stats.granted += 1;
            let last = self.last_token[key];
            // If there are two holders, the token of one may be older than that of the other.
            let two_holders = matches!(self.bug, Some(Bug::StealsKeys));
            assert!(void || two_holders || token > last, "tokens do not grow: {token} after {last}");
            self.last_token[key] = self.last_token[key].max(token);
            // An offer lasts 20 ms at most. A renewed hold is handed on until half its lease is
            // over.
            let asked = lease.map_or(LEASE / 2, Duration::from_millis);
            let least = (asked - asked / 50).saturating_sub(25 * MS);
            assert!(
                void || self.rough || guard.remaining() >= least,
                "shorter than was asked for: {guard:?}"
            );
            let renewed = lease.is_none();
            let granted = Granted {
                process,
                key,
                views: vec![guard.view()],
                until,
                renewed,
                stretched: false,
                void,
                guards: 1,
            };
            self.grants.insert(grant, granted);
        }
        self.guards.push((grant, guard));
    }

    /// Lets background tasks and woken calls run as far as they get without time passing.
    async fn run(&mut self) {
        for _ in 0..50 {
            settle().await;
            let Some(n) = self.calls.iter().position(|call| call.future.is_woken()) else {
                return;
            };
            self.poll(n);
        }
    }

    /// Compares the holders in the model, the guards and the store.
    async fn check(&mut self) {
        for (key, name) in KEYS.iter().enumerate() {
            let status = self.probe.status(LockKey::new(name).unwrap()).await.unwrap();
            let now = Instant::now();
            let of_key = |granted: &&Granted| granted.key == key && !granted.void;
            let live: Vec<_> = self.grants.values().filter(of_key).filter(|it| it.is_held()).collect();
            assert!(live.len() <= 1, "two holders of {name}: {live:?}");
            for granted in self.grants.values().filter(of_key) {
                if !self.is_used(granted) {
                    assert!(!granted.is_held(), "held without a guard: {granted:?}");
                } else if !self.rough && granted.renewed && granted.guards > 0 {
                    assert!(granted.is_held(), "lost without a reason: {granted:?}");
                }
                if granted.is_held() {
                    let left = status.remaining.unwrap_or_default();
                    assert!(left >= granted.remaining(), "longer than at the store ({left:?}): {granted:?}");
                    let over = granted.until.is_some_and(|until| now >= until);
                    assert!(!over || granted.stretched, "longer than was asked for: {granted:?}");
                }
            }
            self.held[key] = status.is_locked() || !live.is_empty();
            let callers = self.calls.iter().filter(|call| call.key == key).count();
            for call in self.calls.iter_mut().filter(|call| call.key == key) {
                call.contended |= self.held[key] || callers > 1;
            }
        }
        let ended: Vec<_> = self.grants.iter().filter(|(_, granted)| !self.is_used(granted)).collect();
        for grant in ended.into_iter().map(|(&grant, _)| grant).collect::<Vec<_>>() {
            self.grants.remove(&grant);
        }
    }

    /// Whether there is a guard of it, or will be one when a call inside has extended it.
    fn is_used(&self, granted: &Granted) -> bool {
        let id = granted.id();
        let is_inside =
            |call: &Call| matches!(call.what, What::Acquire { inside: Some(grant), .. } if grant == id);
        granted.guards > 0 || self.calls.iter().any(is_inside)
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
            self.check().await;
            while !self.guards.is_empty() {
                self.apply(Op::DropGuard(0)).await;
            }
            assert!(start.elapsed() < 30 * SECOND, "{} calls make no progress", self.calls.len());
            sleep(20 * MS).await;
        }
        while !self.guards.is_empty() {
            self.apply(Op::DropGuard(0)).await;
        }
        self.check().await;
        sleep(12 * SECOND).await;
        let managers: Vec<_> = self.processes.iter().map(|process| process.locks.clone()).collect();
        for key in KEYS {
            let leaks = look_for_leaks(&managers, &self.probe, key).await;
            assert!(leaks.is_empty(), "left behind for {key}: {leaks:?}");
            settle().await;
        }
        self.stats
    }
}

impl fmt::Debug for Granted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { process, views, until, guards, .. } = self;
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        write!(f, "process {process}, {guards} guards, {left:?} left, {views:?}")
    }
}

fn play(ops: &[Op], rough: bool, bug: Option<Bug>) -> Stats {
    runtime().block_on(async {
        let mut world = World::new(rough, bug).await;
        for op in ops {
            world.apply(*op).await;
            settle().await;
            world.check().await;
        }
        world.finish().await
    })
}

// ---- the tests ----------------------------------------------------------------------------------

fn model(cases: u32, rough: bool) {
    let runs = runs(cases, rough, None).unwrap_or_else(|failure| panic!("{failure}"));
    let all = |count: fn(&Stats) -> usize| runs.iter().map(count).sum::<usize>();
    let most = [
        all(|run| run.granted) / 2,
        all(|run| run.reentered) * 10,
        all(|run| run.refused) * 4,
        all(|run| run.released) * 4,
    ];
    assert!(most.iter().all(|&count| count > cases as usize), "idle runs: {most:?}");
}

fn runs(cases: u32, rough: bool, bug: Option<Bug>) -> Result<Vec<Stats>, String> {
    random_runs(cases, op(rough), |ops| play(&ops, rough, bug))
}

/// No caller is refused, or loses a lock, without a reason.
#[test]
fn processes_share_keys_on_a_store_that_answers() {
    model(500, false);
}

/// Requests are refused, answers are late or lost, keys are freed by force.
#[test]
fn processes_share_keys_on_a_store_that_fails() {
    model(500, true);
}

#[test]
fn a_store_that_gives_a_key_to_everybody_is_found() {
    let failure = runs(200, false, Some(Bug::StealsKeys)).map(drop).unwrap_err();
    assert!(failure.contains("two holders") || failure.contains("longer than at the store"), "{failure}");
}

#[test]
fn a_store_that_keeps_what_was_released_is_found() {
    let failure = runs(200, false, Some(Bug::LosesReleases)).map(drop).unwrap_err();
    assert!(failure.contains("left behind") || failure.contains("no progress"), "{failure}");
}
