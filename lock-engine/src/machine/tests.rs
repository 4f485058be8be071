//! The machine against a model of the store, with random callers, rivals, faults and time.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Wake;

use lock_core::OwnerId;
use lock_core::store::{Busy, Item, Kind, ServerTime, StoreError, StoreErrorKind};
use proptest::prelude::*;

use super::*;
use crate::failure::Loss;
use crate::pending::PendingReleases;

const LEASE: Duration = Duration::from_secs(1);
const WINDOW: Duration = Duration::from_millis(50);
const MIN_HOLD: Duration = Duration::from_millis(500);
const CAP: Cap = Cap { most: 10_000, name: "max_waiters_per_key" };

fn replication(replicas: u32) -> Replication {
    Replication::at_least(replicas, Duration::from_millis(100))
}

#[derive(Clone, Copy, Debug)]
enum Op {
    Enqueue {
        wait: Wait,
        fixed: bool,
        replicas: u32,
        kept: bool,
        inside: Option<usize>,
    },
    Poll(usize),
    Leave(usize),
    /// A guard goes; whether no more releases may be sent.
    Release {
        n: usize,
        full: bool,
    },
    Reenter(usize),
    Drive,
    Fail(StoreErrorKind),
    /// Time passes; whether the timekeeper gets to run.
    Advance {
        ms: u64,
        keeper: bool,
    },
    RivalTakes,
    RivalReleases,
    Forget,
}

fn failure() -> impl Strategy<Value = StoreErrorKind> {
    use StoreErrorKind::{NotReplicated, Unanswered, Unreachable};
    prop_oneof![1 => Just(Unanswered), 1 => Just(Unreachable), 2 => Just(NotReplicated)]
}

fn op() -> impl Strategy<Value = Op> {
    let wait = prop_oneof![1 => Just(Wait::No), 4 => Just(Wait::Forever)];
    prop_oneof![
        6 => (wait, prop::bool::weighted(0.1), 0..3u32, prop::bool::weighted(0.1), prop::option::weighted(0.2, 0..4usize))
            .prop_map(|(wait, fixed, replicas, kept, inside)| Op::Enqueue {
                wait, fixed, replicas, kept, inside
            }),
        8 => (0..8usize).prop_map(Op::Poll),
        2 => (0..8usize).prop_map(Op::Leave),
        5 => (0..4usize, prop::bool::weighted(0.1)).prop_map(|(n, full)| Op::Release { n, full }),
        1 => (0..4usize).prop_map(Op::Reenter),
        12 => Just(Op::Drive),
        2 => failure().prop_map(Op::Fail),
        4 => (0..60u64, any::<bool>()).prop_map(|(ms, keeper)| Op::Advance { ms, keeper }),
        1 => any::<bool>().prop_map(|keeper| Op::Advance { ms: 1200, keeper }),
        2 => Just(Op::RivalTakes),
        3 => Just(Op::RivalReleases),
        1 => Just(Op::Forget),
    ]
}

#[derive(Default)]
struct Flag(AtomicBool);

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
    }
}

struct Waiting {
    flag: Arc<Flag>,
    polled: bool,
    min_hold: Duration,
    replication: Replication,
}

/// The store as it really is.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Owner {
    Nobody,
    Us(usize, Tick),
    Rival,
}

/// All holds of a run are kept, so that their addresses tell them apart.
fn id_of(hold: &Arc<Hold>) -> usize {
    Arc::as_ptr(hold) as usize
}

struct World {
    machine: Machine,
    clock: Clock,
    store: Owner,
    top: u64,
    next_hold: u64,
    driver: bool,
    notified: bool,
    /// The call that the driver is making.
    call: Option<Step>,
    waiting: BTreeMap<u64, Waiting>,
    guards: Vec<Entry>,
    holds: Vec<Arc<Hold>>,
    last_token: u64,
    releases: PendingReleases,
    /// Holds that were left to their leases.
    left: BTreeSet<usize>,
    /// Ends of `min_hold`.
    kept: BTreeMap<usize, Tick>,
    grants: usize,
}

impl World {
    fn new() -> Self {
        let clock = Clock::tokio();
        Self {
            machine: Machine::new(
                LockKey::new("k").unwrap(),
                LaneKind::Mutex,
                clock,
                Ticks::default(),
                false,
            ),
            clock,
            store: Owner::Nobody,
            top: 1000,
            next_hold: 1,
            driver: false,
            notified: false,
            call: None,
            waiting: BTreeMap::new(),
            guards: Vec::new(),
            holds: Vec::new(),
            last_token: 0,
            releases: PendingReleases::new(1),
            left: BTreeSet::new(),
            kept: BTreeMap::new(),
            grants: 0,
        }
    }

    fn act<R>(&mut self, f: impl FnOnce(&mut Machine, Tick, &mut Effects) -> R) -> R {
        let mut effects = Effects::default();
        let result = f(&mut self.machine, self.clock.now(), &mut effects);
        assert!(!(effects.spawn && self.driver), "a second driver");
        self.driver |= effects.spawn;
        self.notified |= effects.notify;
        for grant in effects.lost.into_iter().flat_map(|lost| lost.grants) {
            grant.signal_lost();
        }
        if let Some(hold) = effects.abandon
            && matches!(self.store, Owner::Us(id, _) if id == id_of(&hold.0))
        {
            self.store = Owner::Nobody;
        }
        effects.wake.into_iter().chain(effects.wake_more).for_each(Waker::wake);
        result
    }

    fn nth<T>(items: impl ExactSizeIterator<Item = T>, n: usize) -> Option<T> {
        let len = items.len();
        items.into_iter().nth(n % len.max(1))
    }

    fn scope_of(&self, n: Option<usize>) -> Scope {
        let guard = n.and_then(|n| Self::nth(self.guards.iter(), n));
        guard.map_or_else(Scope::default, |guard| Scope::default().with(Arc::clone(&guard.grant)))
    }

    fn granted(&mut self, entry: Entry, min_hold: Duration, wanted: Replication) {
        let hold = &entry.grant.hold;
        assert!(entry.reentrant || hold.replication.satisfies(wanted), "granted with too few replicas");
        let kept_until = self.clock.now() + min_hold;
        assert!(!entry.handed_off || min_hold.is_zero(), "an aged hold for a min_hold");
        let kept = self.kept.entry(id_of(hold)).or_default();
        *kept = kept_until.max(*kept);

        assert!(entry.grant.is_live(), "granted without validity");
        if !entry.reentrant {
            assert!(entry.grant.token.get() > self.last_token, "tokens grow in order of grants");
            self.last_token = entry.grant.token.get();
        }
        self.grants += 1;
        self.guards.push(entry);
    }

    fn poll(&mut self, id: u64) {
        let Some(waiting) = self.waiting.get_mut(&id) else { return };
        waiting.flag.0.store(false, Ordering::SeqCst);
        waiting.polled = true;
        let (min_hold, wanted) = (waiting.min_hold, waiting.replication);
        let waker = Waker::from(Arc::clone(&waiting.flag));
        match self.act(|machine, now, effects| machine.poll_waiter(id, now, &waker, effects)) {
            Polled::Pending => {}
            Polled::Granted(entry) => {
                self.waiting.remove(&id);
                self.granted(entry, min_hold, wanted);
            }
            Polled::Failed(_) => {
                self.waiting.remove(&id);
            }
            Polled::Elsewhere => panic!("a mutex has one lane"),
        }
    }

    fn apply(&mut self, op: Op) {
        match op {
            Op::Enqueue { wait, fixed, replicas, kept, inside } => {
                let lease = if fixed { Lease::fixed(LEASE) } else { Lease::renewed(LEASE) };
                let scope = self.scope_of(inside);
                let min_hold = if kept { MIN_HOLD } else { Duration::ZERO };
                let wish = Wish {
                    kind: Kind::Mutex,
                    lease,
                    max_hold: None,
                    min_hold,
                    replication: replication(replicas),
                    wait,
                    guest: false,
                    gated: None,
                    part: None,
                    scope,
                    task: None,
                };
                match self.act(|machine, now, effects| machine.enqueue(wish, now, CAP, effects)) {
                    Ok(Enqueued::Elsewhere) => panic!("a mutex has one lane"),
                    Ok(Enqueued::Entered(entry)) => self.granted(entry, min_hold, replication(replicas)),
                    Ok(Enqueued::Waiting(id)) => {
                        let replication = replication(replicas);
                        let waiting = Waiting { flag: Arc::default(), polled: false, min_hold, replication };
                        self.waiting.insert(id, waiting);
                        self.poll(id);
                    }
                    // Or what the store has told those who wait.
                    Err(Failure::Busy { .. }) if wait == Wait::No => {}
                    Err(Failure::Store(error)) if wait == Wait::No => {
                        assert!(!error.kind().is_misconfiguration(), "{error}");
                        assert!(error.kind() != StoreErrorKind::NotReplicated || replicas > 0);
                    }
                    Err(failure) => panic!("{failure:?}"),
                }
            }
            Op::Poll(n) => {
                if let Some(&id) = Self::nth(self.waiting.keys(), n) {
                    self.poll(id);
                }
            }
            Op::Leave(n) => {
                if let Some(&id) = Self::nth(self.waiting.keys(), n) {
                    self.waiting.remove(&id);
                    self.act(|machine, now, effects| machine.leave(id, now, effects));
                }
            }
            Op::Release { n, full } => {
                if !self.guards.is_empty() {
                    let entry = self.guards.remove(n % self.guards.len());
                    let pending = (!full).then(|| self.releases.count());
                    let ended = self.act(|machine, now, effects| {
                        machine.release(&entry, Leaving::Released, || pending, now, effects)
                    });
                    assert!(!matches!(ended, Ended::NotHeld), "a guard is released once");
                    if let Ended::LeftToLease = ended {
                        assert!(full);
                        self.left.insert(id_of(&entry.grant.hold));
                    }
                }
            }
            Op::Reenter(n) => {
                if let Some(guard) = Self::nth(self.guards.iter().cloned(), n) {
                    let entry = self.act(|machine, now, _| machine.reenter_guard(&guard.grant, None, now));
                    assert_eq!(entry.is_some(), guard.grant.is_live());
                    self.guards.extend(entry);
                }
            }
            Op::Drive => self.drive(None),
            Op::Fail(kind) => {
                // Only who asks for replicas can be told of them.
                let asks = |ask: &Ask| !ask.replication.is_none();
                let of_policy = matches!(&self.call, Some(Step::Acquire(ask)) if asks(ask));
                let kind = match kind {
                    StoreErrorKind::NotReplicated if !of_policy => StoreErrorKind::Unreachable,
                    kind => kind,
                };
                self.drive(Some(kind));
            }
            Op::Advance { .. } => unreachable!("needs the runtime"),
            Op::RivalTakes => {
                if self.store == Owner::Nobody {
                    self.store = Owner::Rival;
                }
            }
            Op::RivalReleases => {
                if self.store == Owner::Rival {
                    self.store = Owner::Nobody;
                    self.message();
                }
            }
            Op::Forget => {
                if let Some(hold) = self.machine.hold().filter(|_| self.machine.is_held()).cloned() {
                    self.store = Owner::Nobody;
                    self.kept.remove(&id_of(&hold));
                    self.act(|machine, now, effects| machine.lose(&hold, Loss::TakenAway, now, effects));
                }
            }
        }
    }

    fn message(&mut self) {
        if self.driver && self.call.is_none() {
            let now = self.clock.now();
            self.notified |= self.machine.on_message(now);
        }
    }

    /// Either begins the driver's next call or lets the one under way be answered.
    fn drive(&mut self, failure: Option<StoreErrorKind>) {
        let now = self.clock.now();
        if !self.driver {
            return;
        }
        let Some(call) = self.call.take() else {
            match self.act(|machine, now, _| machine.next_step(now)) {
                Step::Exit => self.driver = false,
                Step::Park { .. } => self.notified = false,
                Step::Linger { hold, rest, .. } => {
                    if matches!(self.store, Owner::Us(id, _) if id == id_of(&hold)) {
                        self.store = Owner::Us(id_of(&hold), now + rest);
                    }
                }
                step => self.call = Some(step),
            }
            return;
        };
        let error = failure.map(|kind| StoreError::new(kind, "injected"));
        match (call, error) {
            (Step::Acquire(ask), Some(error)) => {
                self.act(|machine, now, effects| {
                    machine.on_error(&error, ask.replication, now, 0.5, effects);
                });
            }
            (Step::Acquire(ask), None) => {
                if self.store == Owner::Nobody {
                    self.grant(ask.lease, ask.tokens, ask.replication);
                } else {
                    let left = match self.store {
                        Owner::Us(_, until) => until.since(now),
                        _ => LEASE,
                    };
                    let busy = Busy {
                        item: 0,
                        remaining: left,
                        server_time: ServerTime::from_micros(1),
                        listeners: 0,
                    };
                    self.act(|machine, now, effects| {
                        machine.on_busy(now, &busy, true, Duration::from_secs(1), 0.5, effects);
                    });
                }
            }
            (Step::Release { hold, order, then }, None) => {
                let held = matches!(self.store, Owner::Us(id, _) if id == id_of(&hold));
                if held {
                    self.store = Owner::Nobody;
                }
                drop(order);
                match then {
                    Some(again) if held && again.listeners == ListenerPolicy::Respect => {
                        self.machine.on_taken_over();
                        self.grant(again.lease, again.tokens, Replication::NONE);
                    }
                    _ => {
                        let rivals = Rivals { listeners: 1, echo: false, round_trip: Duration::ZERO };
                        self.machine.on_released(now, Some(rivals));
                    }
                }
            }
            // Re-sent until it is answered.
            (release @ Step::Release { .. }, Some(error)) => {
                self.act(|machine, now, effects| machine.note_error(&error, now, 0.5, effects));
                self.call = Some(release);
            }
            (step, _) => panic!("{step:?}"),
        }
    }

    fn grant(&mut self, lease: Lease, tokens: u32, replication: Replication) {
        let now = self.clock.now();
        let item = Item {
            key: LockKey::new("k").unwrap(),
            kind: Kind::Mutex,
            owner: OwnerId::new(format!("us:{}", self.next_hold)),
        };
        let hold = Hold::new(item, lease, now, tokio::runtime::Handle::current());
        let hold = Arc::new(hold.replicated(replication));
        self.next_hold += 1;
        self.store = Owner::Us(id_of(&hold), now + LEASE);
        self.top += u64::from(tokens);
        let range = TokenRange::ending_at(self.top, tokens);
        self.holds.push(Arc::clone(&hold));
        let server_time = ServerTime::from_micros(self.top);
        self.act(|machine, now, effects| machine.on_granted(hold, range, server_time, WINDOW, now, effects));
    }

    /// The store ends holds by itself.
    fn expire(&mut self) {
        if matches!(self.store, Owner::Us(_, until) if self.clock.now() >= until) {
            self.store = Owner::Nobody;
        }
    }

    /// What the timekeeper does.
    fn keep_time(&mut self) {
        let timer = self.machine.due();
        if timer <= self.clock.now() {
            drop(self.act(|machine, now, effects| machine.on_time(timer, now, effects)));
        }
    }

    fn check(&self) {
        let now = self.clock.now();
        let mut live: Vec<_> = self.guards.iter().filter(|guard| guard.grant.is_live()).collect();
        // Calls that enter again have grants of their own, with one token.
        live.dedup_by(|a, b| Arc::ptr_eq(&a.grant.hold, &b.grant.hold) && a.grant.token == b.grant.token);
        assert!(live.len() <= 1, "two live grants");
        if let Some(guard) = live.first() {
            assert!(
                matches!(self.store, Owner::Us(id, until) if id == id_of(&guard.grant.hold) && now < until),
                "a live grant that the store does not know: {:?}",
                self.store
            );
        }
        for hold in &self.holds {
            let kept = self.kept.get(&id_of(hold)).is_some_and(|&until| now < until) && hold.is_valid(now);
            let there = matches!(self.store, Owner::Us(id, _) if id == id_of(hold));
            assert!(there || !kept, "a key was freed before the end of its min_hold");
        }
        // Whoever is not being served has somebody who asks for it.
        let served = self.machine.is_held() || self.driver;
        let active = self.machine.first_active().is_some();
        assert!(!active || served, "a lost wake-up: {:?}", self.machine);
        let is_offered = |waiter: &Waiter| matches!(waiter.state, WaiterState::Offered);
        let offered: Vec<_> =
            self.machine.waiters.iter().filter(|(_, waiter)| is_offered(waiter)).map(|(id, _)| *id).collect();
        for id in &offered {
            let waiting = &self.waiting[id];
            let woken = waiting.flag.0.load(Ordering::SeqCst) || !waiting.polled;
            assert!(woken, "an offer that nobody was told about");
        }
        let open = match &self.machine.phase {
            Phase::Held(Held { offer: Some(offer), .. }) => {
                assert!(self.machine.due() < Tick::MAX, "an offer that nobody takes back");
                assert!(offer.open > 0, "an offer for nobody");
                offer.open
            }
            _ => 0,
        };
        assert_eq!(open, offered.len(), "offers without a hold");
        let tries = || self.machine.waiters.values().filter(|waiter| waiter.wish.wait == Wait::No);
        assert_eq!(tries().count(), self.machine.tries);
        if let Phase::Held(Held { live: Some(_), .. }) = &self.machine.phase {
            let told = tries().all(|waiter| matches!(waiter.state, WaiterState::Failed(_)));
            assert!(told, "a try waits behind a guard");
        }
        if let Phase::Held(held) = &self.machine.phase {
            assert!(held.offer.is_some() || held.live.is_some(), "a hold for nobody");
        }
    }

    /// Everybody goes on until nothing is left.
    async fn settle(&mut self) {
        if self.store == Owner::Rival {
            self.apply(Op::RivalReleases);
        }
        for _ in 0..2000 {
            while !self.guards.is_empty() {
                self.apply(Op::Release { n: 0, full: false });
            }
            let woken: Vec<u64> = self
                .waiting
                .iter()
                .filter(|(_, waiting)| waiting.flag.0.load(Ordering::SeqCst))
                .map(|(&id, _)| id)
                .collect();
            for id in woken {
                self.poll(id);
            }
            self.drive(None);
            self.check();
            if self.waiting.is_empty() && self.guards.is_empty() && self.machine.is_idle() {
                assert!(
                    !matches!(self.store, Owner::Us(id, _) if !self.left.contains(&id)),
                    "the store still has a hold of ours"
                );
                return;
            }
            if self.call.is_none() {
                tokio::time::advance(Duration::from_millis(5)).await;
                self.expire();
                self.keep_time();
            }
        }
        panic!("nobody makes progress: {:?}", self.machine);
    }
}

fn run(ops: Vec<Op>) -> usize {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    runtime.unwrap().block_on(async {
        let mut world = World::new();
        for op in ops {
            match op {
                Op::Advance { ms, keeper } => {
                    tokio::time::advance(Duration::from_millis(ms)).await;
                    world.expire();
                    if keeper {
                        world.keep_time();
                    }
                }
                op => world.apply(op),
            }
            world.check();
        }
        world.settle().await;
        world.grants
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: ProptestConfig::default().cases.saturating_mul(8), failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn one_holder_at_a_time_and_nobody_is_forgotten(ops in prop::collection::vec(op(), 1..80)) {
        run(ops);
    }
}

#[test]
fn random_runs_do_grant_locks() {
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let strategy = prop::collection::vec(op(), 80);
    let grants: usize = (0..50)
        .map(|_| {
            let ops = proptest::strategy::Strategy::new_tree(&strategy, &mut runner).unwrap();
            run(proptest::strategy::ValueTree::current(&ops))
        })
        .sum();
    assert!(grants > 200, "{grants}");
}

/// How many waiters are looked at for a few grants, refusals and errors, with `waiters` in the
/// queue.
async fn looks(waiters: usize) -> usize {
    const ROUNDS: usize = 10;
    let mut world = World::new();
    // With fixed leases, each has a grant of its own from the store.
    let waiter = || Op::Enqueue { wait: Wait::Forever, fixed: true, replicas: 0, kept: false, inside: None };
    (0..waiters).for_each(|_| world.apply(waiter()));
    world.machine.seen.set(0);
    for round in 1..=ROUNDS {
        while world.grants < round {
            world.apply(Op::Drive);
            world.apply(Op::Poll(0));
        }
        world.apply(Op::Release { n: 0, full: false });
        world.apply(Op::Drive);
        world.apply(Op::Drive);
        world.apply(Op::RivalTakes);
        world.apply(Op::Drive);
        world.apply(Op::Drive);
        tokio::time::advance(LEASE).await;
        world.apply(Op::Drive);
        world.apply(Op::Fail(StoreErrorKind::Unreachable));
        world.apply(Op::RivalReleases);
        tokio::time::advance(LEASE).await;
    }
    world.machine.seen.get()
}

#[tokio::test(start_paused = true)]
async fn what_the_store_says_costs_the_same_however_many_wait() {
    assert_eq!(looks(4000).await, looks(40).await);
}
