//! The machine against a model of the store: all kinds of lanes, with random callers, rivals,
//! faults and times.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::task::Poll;

use lock_core::store::{
    Busy, DIRECT_LEASE, Granted, Item, ListenerPolicy, Notice, ReleaseRequest, Rivals, Standing,
    StoreErrorKind,
};
use lock_core::{OwnerId, Replication};
use proptest::prelude::*;

use super::*;
use crate::terms::Wait;

const MS: Duration = Duration::from_millis(1);
const LEASE: Duration = Duration::from_secs(1);
const MIN_HOLD: Duration = Duration::from_millis(500);
const MAX_HOLD: Duration = Duration::from_millis(300);
pub(super) const CAP: Cap = Cap { most: 10_000, name: "max_waiters_per_key", all: None };
const ABILITIES: Abilities = Abilities {
    fair: true,
    read_write: true,
    downgrade: true,
    several: true,
    takeovers: true,
    ..Abilities::MUTEX
};
/// A store with a queue for mutexes.
pub(super) const QUEUES: Abilities = Abilities { queues_mutexes: true, ..Abilities::MUTEX };

pub(super) fn rules(abilities: Abilities) -> Arc<Rules> {
    let ticks = Ticks { phase: 0.0 };
    let window = Duration::from_millis(50);
    Arc::new(Rules { call_timeout: LEASE, window, fallback: LEASE, ticks, abilities })
}

fn replication(replicas: u32) -> Replication {
    Replication::at_least(replicas, Duration::from_millis(100))
}

/// The kinds of lanes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sort {
    Mutex,
    /// All callers of a mutex, at a store that queues them.
    Queued,
    Write,
    /// Readers that share a hold.
    Readers,
    /// A reader, or a caller of a mutex, with its own lease or limits.
    Reader,
    Fair,
    Several,
    Permits,
}

impl Sort {
    const ALL: [Self; 8] = [
        Self::Mutex,
        Self::Queued,
        Self::Write,
        Self::Readers,
        Self::Reader,
        Self::Fair,
        Self::Several,
        Self::Permits,
    ];

    fn kind(self) -> Kind {
        match self {
            Self::Mutex | Self::Queued | Self::Several | Self::Permits => Kind::Mutex,
            Self::Write => Kind::Write,
            Self::Readers | Self::Reader => Kind::Read,
            Self::Fair => Kind::Fair,
        }
    }

    fn lane(self) -> LaneKind {
        match self {
            Self::Mutex | Self::Queued => LaneKind::Mutex,
            Self::Write => LaneKind::Write,
            Self::Readers => LaneKind::Read,
            _ => LaneKind::Own,
        }
    }

    fn machine(self) -> Machine {
        let mut spec = Spec::one(self.kind());
        match self {
            Self::Several => spec.more = [(LockKey::new("l").unwrap(), Kind::Fair)].into(),
            Self::Permits => spec.permits = 2,
            _ => {}
        }
        let abilities = if self == Self::Queued { QUEUES } else { ABILITIES };
        Machine::new(LockKey::new("k").unwrap(), self.lane(), spec, rules(abilities), false)
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct NewCaller {
    pub(super) wait: Wait,
    pub(super) fixed: bool,
    pub(super) replicas: u32,
    pub(super) kept: bool,
    pub(super) limited: bool,
    pub(super) inside: Option<usize>,
    pub(super) reads: bool,
}

/// A caller that waits for a usual lock.
pub(super) const USUAL: NewCaller = NewCaller {
    wait: Wait::Forever,
    fixed: false,
    replicas: 0,
    kept: false,
    limited: false,
    inside: None,
    reads: false,
};

#[derive(Clone, Copy, Debug)]
pub(super) enum Op {
    Enqueue(NewCaller),
    Poll(usize),
    Leave(usize),
    /// A guard is dropped; `full` says whether no more releases may be sent.
    Release {
        n: usize,
        full: bool,
    },
    Reenter(usize),
    Downgrade(usize),
    Drive,
    /// A call fails; `executed` and `late` say whether it is carried out nevertheless, now or
    /// later.
    Fail {
        kind: StoreErrorKind,
        executed: bool,
        late: bool,
    },
    /// A failed call is carried out late.
    Late,
    /// Time passes; `keeper` and `works` say whether the timekeeper runs, and whether its calls
    /// succeed.
    Advance {
        ms: u64,
        keeper: bool,
        works: bool,
    },
    RivalTakes,
    /// `heard` says whether a message about it arrives.
    RivalReleases {
        heard: bool,
    },
    Subscribed(bool),
    Forget,
    FreeByForce,
    DriverGone,
}

fn failure() -> impl Strategy<Value = StoreErrorKind> {
    use StoreErrorKind::{NotReplicated, Unanswered, Unreachable, Unsettled};
    prop_oneof![2 => Just(Unanswered), 2 => Just(Unreachable), 2 => Just(NotReplicated), 1 => Just(Unsettled)]
}

fn caller() -> impl Strategy<Value = NewCaller> {
    let wait = prop_oneof![1 => Just(Wait::No), 4 => Just(Wait::Forever)];
    let rare = || prop::bool::weighted(0.1);
    let inside = prop::option::weighted(0.2, 0..4usize);
    (wait, rare(), 0..3u32, rare(), rare(), inside, any::<bool>()).prop_map(
        |(wait, fixed, replicas, kept, limited, inside, reads)| NewCaller {
            wait,
            fixed,
            replicas,
            kept,
            limited,
            inside,
            reads,
        },
    )
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        12 => caller().prop_map(Op::Enqueue),
        16 => (0..8usize).prop_map(Op::Poll),
        4 => (0..8usize).prop_map(Op::Leave),
        10 => (0..4usize, prop::bool::weighted(0.1)).prop_map(|(n, full)| Op::Release { n, full }),
        2 => (0..4usize).prop_map(Op::Reenter),
        2 => (0..4usize).prop_map(Op::Downgrade),
        24 => Just(Op::Drive),
        4 => (failure(), any::<bool>(), any::<bool>())
            .prop_map(|(kind, executed, late)| Op::Fail { kind, executed, late }),
        4 => Just(Op::Late),
        8 => (0..60u64, any::<bool>(), prop::bool::weighted(0.8))
            .prop_map(|(ms, keeper, works)| Op::Advance { ms, keeper, works }),
        2 => any::<bool>().prop_map(|keeper| Op::Advance { ms: 1200, keeper, works: true }),
        4 => Just(Op::RivalTakes),
        6 => prop::bool::weighted(0.8).prop_map(|heard| Op::RivalReleases { heard }),
        1 => any::<bool>().prop_map(Op::Subscribed),
        2 => Just(Op::Forget),
        1 => Just(Op::FreeByForce),
        1 => Just(Op::DriverGone),
    ]
}

pub(super) struct Waiting {
    caller: NewCaller,
    pub(super) woken: bool,
    polled: bool,
}

pub(super) struct Guard {
    pub(super) pass: Pass,
    pub(super) told: bool,
}

/// A call that the driver has made.
enum Call {
    Acquire(Arc<AcquireRequest>, Tick),
    Undo(Arc<AcquireRequest>),
    Release(Arc<Hold>, Option<Takeover>, Tick),
}

/// The true state of the store.
#[derive(Default)]
pub(super) struct Store {
    /// Until when each of our owners has the key.
    pub(super) ours: BTreeMap<OwnerId, Tick>,
    pub(super) rival: bool,
    /// How many waiters come before ours.
    pub(super) ahead: u32,
    top: u64,
    /// Owners whose requests were withdrawn, or whose holds were released.
    pub(super) gone: BTreeSet<OwnerId>,
    /// Unanswered requests that may still be carried out.
    late: Vec<Arc<AcquireRequest>>,
}

fn owner_of(items: &[Item]) -> OwnerId {
    items[0].owner.clone()
}

impl Store {
    fn is_free_for(&self, owner: &OwnerId, shared: bool) -> bool {
        !self.rival && (shared || self.ours.keys().all(|other| other == owner))
    }

    /// Carries out a request; returns the tokens if it is granted.
    fn acquire(&mut self, request: &AcquireRequest, now: Tick) -> Option<TokenRange> {
        let owner = owner_of(&request.items);
        assert!(!self.gone.contains(&owner), "asked under an owner that has been withdrawn");
        if !self.is_free_for(&owner, request.items[0].kind == Kind::Read) {
            return None;
        }
        self.ours.insert(owner, now + request.lease);
        self.top += u64::from(request.tokens);
        Some(TokenRange::ending_at(self.top, request.tokens))
    }

    fn withdraw(&mut self, owner: &OwnerId) {
        self.ours.remove(owner);
        self.gone.insert(owner.clone());
        self.late.retain(|request| owner_of(&request.items) != *owner);
    }
}

pub(super) struct World {
    sort: Sort,
    pub(super) machine: Machine,
    pub(super) now: Tick,
    pub(super) store: Store,
    owners: u64,
    pub(super) driver: bool,
    notified: bool,
    until: Tick,
    call: Option<Call>,
    pub(super) waiting: BTreeMap<u64, Waiting>,
    pub(super) guards: Vec<Guard>,
    last_token: u64,
    /// Owners whose holds were left to their leases.
    pub(super) left: BTreeSet<OwnerId>,
    /// Ends of `min_hold`, by owner.
    kept: BTreeMap<OwnerId, Tick>,
    in_queue: bool,
    pub(super) listening: bool,
    pub(super) grants: usize,
    /// Names of the actions that were carried out.
    done: BTreeSet<&'static str>,
}

impl World {
    pub(super) fn new(sort: Sort) -> Self {
        Self {
            sort,
            machine: sort.machine(),
            now: Tick::default() + LEASE,
            store: Store { top: 1000, ..Store::default() },
            owners: 0,
            driver: false,
            notified: false,
            until: Tick::MAX,
            call: None,
            waiting: BTreeMap::new(),
            guards: Vec::new(),
            last_token: 0,
            left: BTreeSet::new(),
            kept: BTreeMap::new(),
            in_queue: false,
            listening: true,
            grants: 0,
            done: BTreeSet::new(),
        }
    }

    pub(super) fn seen(&self) -> Seen {
        Seen { listening: self.listening, fallback: LEASE, round_trip: MS * 5, random: 0.5 }
    }

    pub(super) fn moment(&self) -> Moment {
        Moment::new(self.now.as_nanos() / 1000)
    }

    pub(super) fn handle(&mut self, input: Input<'_>) {
        self.machine.handle(input, self.now);
        self.carry_out();
    }

    /// Carries out the pending actions, and those that follow from them.
    fn carry_out(&mut self) {
        let mut actions: VecDeque<_> = self.machine.poll_actions().into_iter().collect();
        while let Some(action) = actions.pop_front() {
            let name = format!("{action:?}");
            let name = name.split(|c: char| !c.is_alphanumeric()).next().unwrap_or_default();
            self.done.extend(ACTIONS.iter().find(|known| **known == name));
            match action {
                Action::Wake(id) => {
                    if let Some(waiting) = self.waiting.get_mut(&id) {
                        waiting.woken = true;
                    }
                }
                Action::Drive => {
                    assert!(!std::mem::replace(&mut self.driver, true), "a second driver");
                }
                Action::Notify => self.notified = true,
                Action::Extend(hold, until) => self.keep(&hold, until.since(self.now)),
                Action::Withdraw(request) => self.store.withdraw(&owner_of(&request.items)),
                Action::JoinQueue(request) => {
                    self.in_queue = true;
                    assert!(request.wait.is_some(), "a place for a request that does not wait");
                }
                Action::LeaveQueue => {
                    assert!(std::mem::take(&mut self.in_queue), "it had no place");
                }
                Action::TellLoss { grants, .. } => {
                    for guard in self.guards.iter_mut().filter(|guard| grants.contains(&guard.pass.number)) {
                        guard.told = true;
                    }
                }
                Action::Abandon(hold, rest) => {
                    let now = self.now;
                    self.store.ours.entry(hold.item.owner.clone()).and_modify(|until| *until = now + rest);
                    self.expire();
                    // Copies of its request are withdrawn after its release.
                    self.store.late.retain(|request| owner_of(&request.items) != hold.item.owner);
                }
                Action::CountLeft => {
                    // A driver that has ended has left its hold, too.
                    self.left.extend(self.store.ours.keys().cloned());
                    // A late copy of its request is not withdrawn either: too many releases are
                    // pending.
                    let left = &self.left;
                    self.store.late.retain(|request| !left.contains(&owner_of(&request.items)));
                }
            }
            actions.extend(self.machine.poll_actions());
        }
        let is_noted = self.machine.queued.as_ref().is_some_and(|queued| queued.is_noted);
        assert_eq!(is_noted, self.in_queue, "whether it has a place");
    }

    /// Makes a renewal that succeeds.
    fn keep(&mut self, hold: &Arc<Hold>, lease: Duration) {
        let kept = match self.store.ours.get_mut(&hold.item.owner) {
            Some(until) => {
                *until = (*until).max(self.now + lease);
                Renewed::Held
            }
            None => Renewed::Gone,
        };
        self.machine.handle(Input::Renewed { hold, kept, sent: self.now, lease }, self.now);
    }

    fn nth<T>(items: impl ExactSizeIterator<Item = T>, n: usize) -> Option<T> {
        let len = items.len();
        items.into_iter().nth(n % len.max(1))
    }

    fn is_live(&self, guard: &Guard) -> bool {
        !guard.told && guard.pass.hold.is_valid(self.now) && self.now < guard.pass.max_hold_end
    }

    fn granted(&mut self, pass: Pass, caller: NewCaller) {
        let hold = &pass.hold;
        let NewCaller { kept, replicas, limited, .. } = caller;
        assert!(pass.reentrant || hold.replication.satisfies(replication(replicas)), "too few replicas");
        if kept {
            assert!(!pass.handed_off, "an aged hold for a min_hold");
            let end = self.kept.entry(hold.item.owner.clone()).or_default();
            *end = (self.now + MIN_HOLD).max(*end);
        }
        assert!(hold.is_valid(self.now), "granted without validity");
        let shares = self.sort == Sort::Readers && pass.handed_off;
        if !pass.reentrant && !shares {
            assert!(pass.token.get() > self.last_token, "tokens grow in order of grants");
            self.last_token = pass.token.get();
        }
        let ends = limited && !pass.reentrant && self.sort != Sort::Readers;
        assert_eq!(ends, pass.max_hold_end < Tick::MAX && !pass.reentrant, "the end of max_hold");
        self.grants += 1;
        self.guards.push(Guard { pass, told: false });
    }

    fn poll(&mut self, id: u64) {
        let Some(waiting) = self.waiting.get_mut(&id) else { return };
        (waiting.woken, waiting.polled) = (false, true);
        let caller = waiting.caller;
        let polled = self.machine.poll_waiter(id, self.now);
        if polled.is_ready() {
            self.waiting.remove(&id);
        }
        if let Poll::Ready(Ok(Some(pass))) = polled {
            self.granted(pass, caller);
        }
        self.carry_out();
    }

    fn enqueue(&mut self, caller: NewCaller) -> Result<(), Failure> {
        let NewCaller { wait, fixed, replicas, kept, limited, inside, reads } = caller;
        let usual = self.sort == Sort::Readers;
        // The callers of a lane whose request waits at the store want different leases.
        let longer = if self.sort == Sort::Queued { LEASE * 8 } else { LEASE };
        let lease = if fixed && !usual { Lease::fixed(LEASE) } else { Lease::renewed(longer) };
        let inside =
            inside.and_then(|n| Self::nth(self.guards.iter(), n)).filter(|guard| self.is_live(guard));
        let guest = reads && self.sort == Sort::Write && inside.is_some();
        let caller = NewCaller { kept: kept && !usual, limited: limited && !usual, ..caller };
        let ask = Ask {
            kind: if guest { Kind::Read } else { self.sort.kind() },
            terms: Terms {
                wait,
                lease,
                max_hold: caller.limited.then_some(MAX_HOLD),
                min_hold: if caller.kept { MIN_HOLD } else { Duration::ZERO },
                replication: replication(replicas),
            },
            inside: inside.into_iter().map(|guard| guard.pass.number).collect(),
            guest,
            gated: None,
            part: None,
        };
        let cap = if self.sort.lane() == LaneKind::Own { Cap { most: 1, ..CAP } } else { CAP };
        let enqueued = self.machine.enqueue(ask, cap, self.now)?;
        match enqueued {
            Enqueued::Elsewhere => assert!(guest || usual, "one lane"),
            Enqueued::Entered(pass) => self.granted(pass, caller),
            Enqueued::Waiting(id) => {
                self.waiting.insert(id, Waiting { caller, woken: false, polled: false });
            }
        }
        self.carry_out();
        if let Some((&id, _)) = self.waiting.last_key_value() {
            self.poll(id);
        }
        Ok(())
    }

    pub(super) fn apply(&mut self, op: Op) {
        match op {
            Op::Enqueue(caller) => match self.enqueue(caller) {
                Ok(()) | Err(Failure::TooManyWaiters { .. }) => {}
                Err(Failure::Busy { .. }) if caller.wait == Wait::No => {}
                // An error that the store has told the waiters.
                Err(Failure::Store(error)) if caller.wait == Wait::No => {
                    assert!(error.kind() != StoreErrorKind::NotReplicated || caller.replicas > 0);
                }
                Err(failure) => panic!("{failure:?}"),
            },
            Op::Poll(n) => {
                if let Some(&id) = Self::nth(self.waiting.keys(), n) {
                    self.poll(id);
                }
            }
            Op::Leave(n) => {
                if let Some(&id) = Self::nth(self.waiting.keys(), n) {
                    self.waiting.remove(&id);
                    self.handle(Input::Leave(id));
                }
            }
            Op::Release { n, full } => {
                if !self.guards.is_empty() {
                    let guard = self.guards.remove(n % self.guards.len());
                    let was_lost = !self.is_live(&guard);
                    let ended = self.machine.release(guard.pass.number, was_lost, || !full, self.now);
                    match &ended {
                        ReleaseOutcome::Downgrading(hold) => assert_eq!(hold.kind(), Kind::Read),
                        ReleaseOutcome::LeftToLease => assert!(full),
                        ended => {
                            assert!(!matches!(ended, ReleaseOutcome::NotHeld), "a guard is released once");
                        }
                    }
                    assert_eq!(was_lost, matches!(ended, ReleaseOutcome::Lost), "{ended:?}");
                    self.carry_out();
                }
            }
            Op::Reenter(n) => {
                let guard = Self::nth(self.guards.iter(), n).filter(|guard| self.is_live(guard));
                if let Some(number) = guard.map(|guard| guard.pass.number) {
                    let pass = self.machine.reenter_guard(number, None, self.now);
                    self.guards.push(Guard { pass: pass.expect("a live guard"), told: false });
                }
            }
            Op::Downgrade(n) => {
                let guard = Self::nth(self.guards.iter(), n).filter(|guard| self.is_live(guard));
                if let Some(number) = guard.map(|guard| guard.pass.number)
                    && self.sort == Sort::Write
                {
                    let ended = self.machine.downgrade(number);
                    assert!(
                        matches!(ended, ReleaseOutcome::Nested | ReleaseOutcome::Downgrading(_)),
                        "{ended:?}"
                    );
                    self.carry_out();
                }
            }
            Op::Drive => self.drive(None),
            Op::Fail { kind, executed, late } => self.drive(Some((kind, executed, late))),
            Op::Late => {
                if let Some(request) = self.store.late.pop() {
                    self.store.acquire(&request, self.now);
                }
            }
            Op::Advance { ms, keeper, works } => {
                self.now = self.now + MS * u32::try_from(ms).unwrap();
                self.expire();
                if keeper {
                    self.keep_time(works);
                }
            }
            Op::RivalTakes => self.store.rival |= self.store.ours.is_empty(),
            Op::RivalReleases { heard } => {
                if std::mem::take(&mut self.store.rival) {
                    self.released_by_rival(heard);
                }
            }
            Op::Subscribed(confirmed) => {
                self.listening = confirmed;
                self.hear(if confirmed { Heard::Confirmed } else { Heard::Unconfirmed });
            }
            Op::Forget => {
                if let Some(hold) = self.machine.held().cloned() {
                    self.store.ours.remove(&hold.item.owner);
                    self.kept.remove(&hold.item.owner);
                    self.handle(Input::Lost { hold: &hold, why: Loss::TakenAway });
                }
            }
            Op::FreeByForce => {
                self.store.ours.clear();
                self.kept.clear();
                self.handle(Input::Freed);
            }
            Op::DriverGone => {
                if std::mem::take(&mut self.driver) {
                    // Its unfinished work is left to the leases, or was never sent.
                    self.call = None;
                    self.store.late.clear();
                    self.left.extend(self.store.ours.keys().cloned());
                    self.handle(Input::DriverGone);
                    // As the engine does; otherwise the waiters would have no driver.
                    let gone = StoreError::new(StoreErrorKind::Unanswered, "the driver panicked");
                    self.handle(Input::Fail(Failure::Store(gone)));
                }
            }
        }
    }

    /// Frees the key; the store may grant it directly to the request that waits in its queue.
    fn released_by_rival(&mut self, heard: bool) {
        let queues = matches!(self.sort, Sort::Fair | Sort::Queued);
        let queued = self.machine.queued.clone().filter(|_| queues && self.in_queue);
        let notice = match queued.filter(|queued| queued.request.direct) {
            Some(queued) => {
                let owner = owner_of(&queued.request.items);
                self.store.ours.insert(owner, self.now + DIRECT_LEASE.min(queued.request.lease));
                self.store.top += 1;
                let token = FencingToken::new(self.store.top);
                Notice::Granted { token, moment: self.moment() }
            }
            None => Notice::Retry,
        };
        if heard {
            self.hear(Heard::Notice(notice));
        }
    }

    fn hear(&mut self, heard: Heard) {
        if self.driver && self.call.is_none() {
            self.notified = true;
            self.handle(Input::Heard { heard, seen: self.seen() });
        }
    }

    /// Begins the driver's next call, or lets the current one be answered.
    fn drive(&mut self, failure: Option<(StoreErrorKind, bool, bool)>) {
        if !self.driver {
            return;
        }
        let Some(call) = self.call.take() else { return self.next_call() };
        let now = self.now;
        let seen = self.seen();
        match (call, failure) {
            (Call::Acquire(request, sent), failure) => {
                let answer = self.answer(&request, failure);
                self.handle(Input::Acquired { answer, sent, seen });
            }
            (Call::Undo(request), _) => {
                self.store.withdraw(&owner_of(&request.items));
                self.handle(Input::Undone { seen });
            }
            (Call::Release(hold, then, sent), None) => {
                let owner = &hold.item.owner;
                let held = self.store.ours.remove(owner).is_some();
                self.store.gone.insert(owner.clone());
                if hold.unanswered.is_some() {
                    self.store.withdraw(owner);
                }
                let respects = |then: &Takeover| then.listeners == ListenerPolicy::Respect;
                let then = then.filter(|then| held && respects(then)).and_then(|then| {
                    let tokens = Few::one(self.store.acquire(&then.request, now)?);
                    Some(Granted { tokens, moment: self.moment() })
                });
                let released = Released { held: Few::one(held), rivals: Rivals::Some, then };
                self.handle(Input::Released { answer: Some((sent, released)), seen });
            }
            // Re-sent until it is answered.
            (release @ Call::Release(..), Some((kind, ..))) => {
                // Only an acquire can fail because of replicas.
                let replicas = kind == StoreErrorKind::NotReplicated;
                let kind = if replicas { StoreErrorKind::Unreachable } else { kind };
                let error = StoreError::new(kind, "injected");
                self.handle(Input::ReleaseFailed { error: &error, seen });
                self.call = Some(release);
            }
        }
    }

    fn answer(
        &mut self,
        request: &Arc<AcquireRequest>,
        failure: Option<(StoreErrorKind, bool, bool)>,
    ) -> Result<Acquired, StoreError> {
        let Some((kind, executed, late)) = failure else {
            return Ok(match self.store.acquire(request, self.now) {
                Some(range) => {
                    let tokens = request.items.iter().map(|_| range).collect();
                    Acquired::Granted(Granted { tokens, moment: self.moment() })
                }
                None => Acquired::Busy(Busy {
                    item: 0,
                    remaining: Some(LEASE),
                    moment: self.moment(),
                    listeners: 0,
                    ahead: self.store.ahead,
                }),
            });
        };
        // Only a request for replicas can fail because of them.
        let kind = match kind {
            StoreErrorKind::NotReplicated if request.replication.is_none() => StoreErrorKind::Unreachable,
            kind => kind,
        };
        let error = StoreError::new(kind, "injected");
        if error.outcome_unknown() || kind == StoreErrorKind::NotReplicated {
            if executed {
                self.store.acquire(request, self.now);
            }
            if late {
                self.store.late.push(Arc::clone(request));
            }
        }
        Err(error)
    }

    fn next_call(&mut self) {
        let (now, owners) = (self.now, &mut self.owners);
        let owner = || {
            *owners += 1;
            OwnerId::new(format!("us:{owners}"))
        };
        match self.machine.next_step(now, owner) {
            Step::Exit => self.driver = false,
            Step::Park { until } => (self.notified, self.until) = (false, until),
            Step::Linger { hold, rest } => {
                let until = self.store.ours.get_mut(&hold.item.owner);
                until.into_iter().for_each(|until| *until = now + rest);
            }
            Step::Acquire(request) => self.call = Some(Call::Acquire(request, now)),
            Step::Undo(request) => self.call = Some(Call::Undo(request)),
            Step::Release { hold, then } => {
                assert!(then.is_none() || self.sort == Sort::Mutex, "no takeover where others queue");
                let listening = ReleaseRequest {
                    items: hold.items(),
                    linger: Duration::ZERO,
                    then: then.clone(),
                    own_watch: None,
                    timeout: LEASE,
                };
                assert!(listening.items.iter().all(|item| item.owner == hold.item.owner));
                self.call = Some(Call::Release(hold, then, now));
            }
        }
        self.carry_out();
    }

    /// Ends the store's overdue holds.
    fn expire(&mut self) {
        let now = self.now;
        self.store.ours.retain(|_, until| now < *until);
    }

    /// Does the timekeeper's work.
    fn keep_time(&mut self, works: bool) {
        if self.machine.poll_timeout() > self.now {
            return;
        }
        let due = self.machine.on_time(self.now);
        self.carry_out();
        if let Some(hold) = due.renew {
            if works {
                let lease = self.machine.renews(&hold).unwrap();
                self.keep(&hold, lease);
            } else {
                self.machine.handle(Input::NotKept { hold: &hold }, self.now);
            }
            self.carry_out();
        }
        if due.keep_place {
            let Some(queued) = self.machine.queued.clone() else { return };
            let owner = owner_of(&queued.request.items);
            let is_free = self.store.is_free_for(&owner, false);
            let each = queued.request.items.iter().map(|_| match self.sort {
                _ if !works => Renewed::Unknown,
                // The waiter has missed the notice.
                _ if self.store.ours.contains_key(&owner) => Renewed::Held,
                _ => Renewed::Waiting(if is_free { MS } else { LEASE }),
            });
            let about = PlaceKept {
                request: &queued.request,
                each: &each.collect::<Vec<_>>(),
                sent: self.now,
                standing: Standing::Waiter,
                next: Standing::Waiter,
                is_seen: true,
            };
            self.machine.place_kept(&about, 0.5, self.now);
            self.carry_out();
        }
    }

    pub(super) fn check(&self) {
        let live: Vec<_> = self.guards.iter().filter(|guard| self.is_live(guard)).collect();
        if let [first, more @ ..] = &live[..] {
            let same = |guard: &&&Guard| {
                Arc::ptr_eq(&guard.pass.hold, &first.pass.hold) && guard.pass.token == first.pass.token
            };
            assert!(more.iter().all(|guard| same(&guard)), "two live grants");
            assert!(self.machine.has(&first.pass.hold), "a live grant of another hold");
            let until = self.store.ours.get(&first.pass.hold.item.owner);
            assert!(
                until.is_some_and(|until| self.now < *until),
                "a live grant that the store does not know"
            );
        }
        // Each waiter is either served, or has a driver that asks for it and knows when.
        let served = self.machine.held().is_some() || self.driver;
        let active = self.machine.first_active().is_some();
        assert!(!active || served, "a lost wake-up: {:?}", self.machine);
        let parked = self.machine.driver == Driver::Parked && !self.notified;
        if active && parked && matches!(self.machine.phase, Phase::Free) {
            assert!(self.until < Tick::MAX, "asleep forever");
        }
        let offered = self.machine.waiters.iter().filter(|(_, w)| matches!(w.state, WaiterState::Offered));
        let mut open = 0;
        for (id, _) in offered {
            open += 1;
            let waiting = &self.waiting[id];
            assert!(waiting.woken || !waiting.polled, "an offer without a wake-up");
        }
        match &self.machine.phase {
            Phase::Held(held) => {
                assert!(self.machine.poll_timeout() < Tick::MAX, "a hold without a timer");
                assert!(held.offer.is_some() || held.live.is_some(), "a hold without a guard or an offer");
                assert_eq!(
                    held.offer.as_ref().map_or(0, |offer| offer.open),
                    open,
                    "the count of open offers"
                );
            }
            _ => assert_eq!(open, 0, "offers without a hold"),
        }
        let tries = || self.machine.waiters.values().filter(|waiter| waiter.ask.terms.is_try());
        assert_eq!(tries().count(), self.machine.tries);
        if self.machine.is_claimed() && self.sort != Sort::Readers {
            let told = tries().all(|w| w.ask.guest || matches!(w.state, WaiterState::Over(Some(_))));
            assert!(told, "a try waits behind a guard");
        }
    }

    /// Lets everybody go on until nothing is left.
    fn settle(&mut self) {
        self.listening = true;
        if self.store.rival {
            self.apply(Op::RivalReleases { heard: true });
        }
        for _ in 0..4000 {
            while !self.guards.is_empty() {
                self.apply(Op::Release { n: 0, full: false });
            }
            let woken: Vec<_> = self.waiting.iter().filter(|(_, w)| w.woken).map(|(&id, _)| id).collect();
            for id in woken {
                self.poll(id);
            }
            self.drive(None);
            self.check();
            if self.waiting.is_empty() && self.guards.is_empty() && self.machine.is_idle() {
                let ours: Vec<_> =
                    self.store.ours.keys().filter(|owner| !self.left.contains(*owner)).collect();
                assert!(ours.is_empty(), "the store still has holds of ours: {ours:?}");
                assert!(
                    self.store.late.is_empty(),
                    "requests that were not withdrawn: {:?}",
                    self.store.late
                );
                assert!(self.machine.queued.is_none() && self.machine.poll_timeout() == Tick::MAX);
                return;
            }
            if self.call.is_none() {
                self.now = self.now + MS * 5;
                self.expire();
                self.keep_time(true);
            }
        }
        panic!("no progress: {:?}", self.machine);
    }
}

/// All actions, by name.
const ACTIONS: [&str; 10] = [
    "Wake",
    "Drive",
    "Notify",
    "Extend",
    "Withdraw",
    "JoinQueue",
    "LeaveQueue",
    "TellLoss",
    "Abandon",
    "CountLeft",
];

fn run(sort: Sort, ops: Vec<Op>) -> World {
    let mut world = World::new(sort);
    for op in ops {
        world.apply(op);
        world.check();
        if world.machine.sealed && world.machine.is_idle() {
            // New callers find a fresh lane.
            world.machine = Machine { last_number: world.machine.last_number, ..sort.machine() };
        }
    }
    world.settle();
    world
}

fn sort() -> impl Strategy<Value = Sort> {
    prop::sample::select(Sort::ALL.to_vec())
}

#[test]
fn one_holder_at_a_time_and_nobody_is_forgotten() {
    // The macro of proptest would take `PROPTEST_CASES` as it is.
    let config = ProptestConfig::default();
    let config =
        ProptestConfig { cases: config.cases.saturating_mul(16), failure_persistence: None, ..config };
    let mut runner = proptest::test_runner::TestRunner::new(config);
    let runs = (sort(), prop::collection::vec(op(), 1..80));
    let result = runner.run(&runs, |(sort, ops)| {
        run(sort, ops);
        Ok(())
    });
    result.unwrap_or_else(|error| panic!("{error}"));
}

#[test]
fn random_runs_grant_locks_of_all_sorts_and_take_all_actions() {
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let strategy = prop::collection::vec(op(), 100);
    let mut done = BTreeSet::new();
    for sort in Sort::ALL {
        let mut grants = 0;
        for _ in 0..150 {
            let ops = proptest::strategy::Strategy::new_tree(&strategy, &mut runner).unwrap();
            let world = run(sort, proptest::strategy::ValueTree::current(&ops));
            grants += world.grants;
            done.extend(world.done);
        }
        assert!(grants > 200, "{sort:?}: {grants}");
    }
    assert_eq!(done, BTreeSet::from(ACTIONS));
}

/// Returns how many waiters are looked at for a few grants, refusals and errors, with `waiters` in
/// the queue.
fn looks(waiters: usize) -> usize {
    const ROUNDS: usize = 10;
    let mut world = World::new(Sort::Mutex);
    // With fixed leases, each waiter gets its own grant from the store.
    let waiter = NewCaller { fixed: true, ..USUAL };
    (0..waiters).for_each(|_| world.apply(Op::Enqueue(waiter)));
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
        world.now = world.now + LEASE;
        world.apply(Op::Drive);
        world.apply(Op::Fail { kind: StoreErrorKind::Unreachable, executed: false, late: false });
        world.apply(Op::RivalReleases { heard: true });
        world.now = world.now + LEASE;
    }
    world.machine.seen.get()
}

#[test]
fn what_the_store_says_costs_the_same_however_many_wait() {
    assert_eq!(looks(4000), looks(40));
}
