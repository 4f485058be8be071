//! [`Machine`]: everything this process knows about one lane, a state machine without I/O, clock,
//! waker, channel, task and runtime.
//!
//! It is a queue of waiters and at most one hold. Callers ask it by methods, what else happens is
//! an [`Input`] to [`handle`](Machine::handle), and both bring the time. It answers with
//! [`Action`]s, which are carried out after unlocking, with the [`Step`]s of the lane's driver, and
//! with the time at which it has something to do. Waiters and entries are known by numbers; a lane
//! keeps their wakers and grants. docs/architecture.md has the table of its states.

mod asking;
mod callers;
mod events;
mod inside;
mod shared;
#[cfg(test)]
mod table;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use lock_core::internal::clock::Tick;
use lock_core::store::{
    AcquireRequest, Acquired, Few, Kept, Kind, Notice, Released, ServerTime, Standing, StoreError, Takeover,
    TokenRange,
};
use lock_core::{FencingToken, LockKey};

use super::failure::{Failure, Loss};
use super::hold::{Hold, Ticks};
use super::retry::RetrySchedule;
use super::spec::{LaneKind, Spec};
use super::terms::{Lease, Terms};

/// An offer that is not claimed for so long goes to the next waiter.
pub(crate) const OFFER_TIME: Duration = Duration::from_millis(20);
/// The same where nobody else waits, and the place in the store's queue is gone: a second, or a
/// quarter of the lease.
const OWN_OFFER_TIME: Duration = Duration::from_secs(1);
/// Each offer that nobody claims doubles the number of waiters who get the next one, up to this
/// power of two: so many waiters that are not polled cannot keep one waiting that is.
const MOST_DOUBLINGS: u32 = 10;
/// After so many windows without a real release, one is made for pollers whom nobody hears.
const WINDOWS_WITHOUT_RELEASE: u32 = 16;
/// A counter that is further ahead of the server's clock gets no ranges.
const COUNTER_AHEAD: u64 = 1_000_000;

/// What a caller asks of a lane.
#[derive(Clone, Debug)]
pub(crate) struct Ask {
    /// Differs from the lane's for a reader inside a hold for writing.
    pub(crate) kind: Kind,
    pub(crate) terms: Terms,
    /// Numbers of the grants of this lane that enclosing calls have.
    pub(crate) inside: Few<u64>,
    /// It may only enter the grant of an enclosing call.
    pub(crate) guest: bool,
    /// It is granted nothing before it is admitted, and asks for nothing after this time, even if
    /// it is not polled.
    pub(crate) gated: Option<Tick>,
    /// Which of the keys of that grant it wants, if they are several.
    pub(crate) part: Option<u16>,
}

impl Ask {
    /// Whether the hold has the lease that is wanted, and is as well replicated.
    fn fits(&self, hold: &Hold) -> bool {
        self.terms.lease == hold.lease && hold.replication.satisfies(self.terms.replication)
    }
}

/// What a caller got: one entry of a hold.
#[derive(Clone, Debug)]
pub(crate) struct Pass {
    /// Number of the entry.
    pub(crate) number: u64,
    pub(crate) hold: Arc<Hold>,
    pub(crate) token: FencingToken,
    pub(crate) max_hold_end: Tick,
    /// It was made inside another one: no store call was needed.
    pub(crate) reentrant: bool,
    /// The grant came from a local hand-off.
    pub(crate) handed_off: bool,
    /// The one that is meant of the hold's several keys.
    pub(crate) part: Option<u16>,
}

/// How many callers may wait for a key, and by what setting.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cap {
    pub(crate) most: usize,
    pub(crate) name: &'static str,
    /// How many callers wait for any key, if that is what is limited.
    pub(crate) all: Option<usize>,
}

impl Cap {
    /// Makes the failure of a caller that exceeds the limit.
    pub(crate) fn refuse(self, waiting: usize, remaining: Option<Duration>) -> Failure {
        Failure::TooManyWaiters { waiting: self.all.unwrap_or(waiting), cap: self.name, remaining }
    }
}

/// The answer to a new ask.
#[derive(Debug)]
pub(crate) enum Enqueued<T = Pass> {
    /// Entered at once, inside a grant of an enclosing call or beside other readers.
    Entered(T),
    /// Waits under this number.
    Waiting(u64),
    /// Not here: the lane takes nobody any more, or was never for this caller.
    Elsewhere,
}

/// What happens to a lane, besides what its callers ask.
#[derive(Debug)]
pub(crate) enum Input<'a> {
    /// It is the turn of a waiter that stood in line.
    Admit(u64),
    /// A waiter gives up, or is dropped.
    Leave(u64),
    /// The request was answered that was sent at `sent`.
    Acquired { answer: Result<Acquired, StoreError>, sent: Tick, seen: Seen },
    /// The request that replicas had not confirmed is undone, or being undone.
    Undone { seen: Seen },
    /// The release that was sent at `sent` was answered; `None` if it was given up.
    Released { answer: Option<(Tick, Released)>, seen: Seen },
    /// An attempt to release failed; there will be others.
    ReleaseFailed { error: &'a StoreError, seen: Seen },
    /// The driver heard something about the key.
    Heard { heard: Heard, seen: Seen },
    /// The place of the request in the store's queues is to be kept at this time.
    KeepPlace(Tick),
    /// A renewal to `lease` that was sent at `sent` was answered.
    Kept { hold: &'a Arc<Hold>, kept: Kept, sent: Tick, lease: Duration },
    /// A renewal failed.
    NotKept { hold: &'a Arc<Hold> },
    /// The hold is lost.
    Lost { hold: &'a Arc<Hold>, why: Loss },
    /// The key was freed by force. Whether what is held now was granted after that is not known.
    Freed,
    /// The driver is gone without having said so. What it was doing is left to the lease.
    DriverGone,
    /// All waiters are told this failure.
    Fail(Failure),
    /// Nothing is granted from now on; all waiters are told.
    ShutDown,
}

/// What the store said of a request that waits in its queues.
#[derive(Debug)]
pub(crate) struct PlaceKept<'a> {
    pub(crate) request: &'a Arc<AcquireRequest>,
    /// Of each item; empty without an answer.
    pub(crate) each: &'a [Kept],
    /// When the call was sent.
    pub(crate) sent: Tick,
    /// How the request stood then, and how it stands now.
    pub(crate) standing: Standing,
    pub(crate) next: Standing,
    /// Whether the answer for a fair lock takes the place of an attempt.
    pub(crate) is_seen: bool,
    pub(crate) fallback: Duration,
}

/// What a contender hears.
#[derive(Debug)]
pub enum Heard {
    /// Messages arrive from now on. What happened before has to be looked for.
    Confirmed,
    /// No message is certain to come.
    Unconfirmed,
    Notice(Notice),
}

/// What is known besides an answer of the store.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seen {
    /// Whether messages arrive.
    pub(crate) listening: bool,
    /// Longest pause between two attempts.
    pub(crate) fallback: Duration,
    /// The lowest recent round trip.
    pub(crate) round_trip: Duration,
    /// Uniform in 0..1.
    pub(crate) random: f64,
}

/// What has to be done after an input, in this order.
#[derive(Debug)]
pub(crate) enum Action {
    /// Wake the waiter.
    Wake(u64),
    /// Start the lane's driver.
    Drive,
    /// Wake the parked driver.
    Notify,
    /// Extend the hold to this time.
    Extend(Arc<Hold>, Tick),
    /// Withdraw the request until no copy of it can be granted any more.
    Withdraw(Arc<AcquireRequest>),
    /// The request has a place in a queue of the store from now on,
    JoinQueue(Arc<AcquireRequest>),
    /// or not any more.
    LeaveQueue,
    /// Fire the lost signals of these grants. `news`: nobody has been told before.
    TellLoss { grants: Few<u64>, news: bool },
    /// The hold is lost: release it, if the store still knows it, or let it expire after this time.
    Abandon(Arc<Hold>, Duration),
    /// Count a hold that was left to its lease.
    CountLeft,
}

/// Work of the timekeeper for a lane.
#[derive(Debug, Default)]
pub(crate) struct Due {
    pub(crate) renew: Option<Arc<Hold>>,
    /// Keep the place of its request in the store's queues.
    pub(crate) keep_place: bool,
}

/// What became of a released or downgraded entry.
#[derive(Debug)]
pub(crate) enum ReleaseOutcome {
    /// Other entries of the hold are left.
    Nested,
    /// The next local waiter has it.
    HandedOff,
    /// The driver will tell the store.
    Releasing,
    /// The same, at the end of its `min_hold`.
    Lingering,
    /// The hold is to become one for reading.
    Downgrading(Arc<Hold>),
    /// No release can be sent, and nobody here may have it: the lease ends the hold.
    LeftToLease,
    /// The lock was lost before.
    Lost,
    /// The entry had ended before.
    NotHeld,
}

/// What the driver does next. It reports a call by an [`Input`].
#[derive(Debug)]
pub(crate) enum Step {
    /// Nothing: the driver ends.
    Exit,
    /// Ask the store for the key: [`Input::Acquired`].
    Acquire(Arc<AcquireRequest>),
    /// Withdraw this request, which replicas have not confirmed: [`Input::Undone`].
    Undo(Arc<AcquireRequest>),
    /// Give the hold back, and take the key again in the same step if allowed: [`Input::Released`].
    Release { hold: Arc<Hold>, then: Option<Takeover> },
    /// Keep the key taken for this long, then let it expire.
    Linger { hold: Arc<Hold>, rest: Duration },
    /// Wait for a message, a change, or this time.
    Park { until: Tick },
}

/// What the driver has sent.
#[derive(Debug)]
struct Asked {
    request: Arc<AcquireRequest>,
    lease: Lease,
}

/// A request that may have a place in a queue of the store, or an intent: it is sent again, under
/// the same owner, until it is granted or withdrawn.
#[derive(Clone, Debug)]
pub(crate) struct Queued {
    pub(crate) request: Arc<AcquireRequest>,
    /// The store has taken note of it.
    pub(crate) is_noted: bool,
    /// When the last answered call was sent that found it waiting.
    pub(crate) since: Tick,
    /// When the store last said so to an acquire. A grant from before that is over: it had no place
    /// any more, and joined again.
    found: ServerTime,
    /// It is being sent again, or that was not answered: it may have a new place by now, so what
    /// `keep` says of that must not make an older grant look newer.
    pub(crate) asking: bool,
    /// A copy of it was not answered.
    unanswered: bool,
    /// When its place is to be kept next.
    pub(crate) keep_at: Tick,
}

#[derive(Debug)]
enum Phase {
    /// Nothing of ours at the store.
    Free,
    /// The driver asks the store for the key.
    Asking(Asked),
    /// Replicas have not confirmed a grant, which is undone.
    Undoing(Arc<AcquireRequest>, StoreError),
    Held(Held),
    /// To be released by the driver, at the end of its `min_hold`.
    Ending {
        hold: Arc<Hold>,
        min_hold_end: Tick,
        /// The store knows for how long the key stays taken.
        told: bool,
    },
    /// The driver releases it, and may take the key again in the same step.
    Releasing(Option<Asked>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Driver {
    None,
    Running,
    Parked,
}

#[derive(Debug)]
struct Held {
    hold: Arc<Hold>,
    /// What renewals ask for, if it is renewed.
    renews: Option<Duration>,
    /// Failed renewals since the last success. Such a hold is not handed on.
    failures: u32,
    /// When it is renewed next, or found to be over.
    renewal: Tick,
    tokens: TokenRange,
    used: u32,
    window_end: Tick,
    /// When readers have had their time to leave, if somebody waits for that.
    drain_end: Tick,
    offer: Option<Offer>,
    live: Option<Live>,
}

impl Held {
    /// Whether one more caller may have it without the store: it is what was asked for, renewed and
    /// not in doubt, young, and at least half of its lease is left.
    fn is_good_for(&self, ask: &Ask, now: Tick) -> bool {
        ask.terms.lease.is_renewed
            && ask.fits(&self.hold)
            && self.renews.is_some()
            && self.failures == 0
            && now < self.window_end
            && self.hold.deadline().since(now) >= ask.terms.lease.duration / 2
    }

    /// It is renewed to this from now on, or not any more.
    ///
    /// The next renewal is a third of the lease from now. A hold with less than half of what
    /// renewals ask for is renewed at once: it had a shorter fixed lease before.
    fn renew_to(&mut self, renews: Option<Duration>, ticks: Ticks, now: Tick) {
        let deadline = self.hold.deadline();
        self.renews = renews;
        self.renewal = match renews {
            Some(lease) if deadline < now + lease / 2 => now,
            // Holds of about the same age share a call.
            Some(lease) => ticks.before(now + lease / 3, lease / 60).min(deadline),
            None => deadline,
        };
    }

    /// A renewal failed: it is tried again quickly, then slower, always before the deadline.
    fn renewal_failed(&mut self, now: Tick) {
        self.failures = self.failures.saturating_add(1);
        let longest = (self.renews.unwrap_or_default() / 15).min(Duration::from_secs(1));
        let pause = Duration::from_millis(20) * 2u32.saturating_pow(self.failures.min(10));
        self.renewal = (now + pause.min(longest)).min(self.hold.deadline());
    }
}

/// The next grant is there for whoever of the offered waiters is polled first.
#[derive(Debug)]
struct Offer {
    until: Tick,
    /// How many are offered it.
    open: usize,
    /// The last of them in the queue.
    last: u64,
}

/// What callers have of a hold.
#[derive(Debug)]
struct Live {
    /// Innermost last.
    entries: Few<LiveEntry>,
    /// They have one token, and one end of `max_hold`.
    token: FencingToken,
    max_hold_end: Tick,
    min_hold_end: Tick,
    /// All were told that it is lost.
    all_told: bool,
}

impl Live {
    fn new(token: FencingToken, max_hold_end: Tick, min_hold_end: Tick) -> Self {
        Self { entries: Few::new(), token, max_hold_end, min_hold_end, all_told: false }
    }

    fn position(&self, number: u64) -> Option<usize> {
        self.entries.iter().rposition(|entry| entry.number == number)
    }

    fn tell_loss(&mut self) -> Action {
        let grants = self.entries.iter().map(|entry| entry.number).collect();
        Action::TellLoss { grants, news: !std::mem::replace(&mut self.all_told, true) }
    }
}

/// One entry of a hold: re-entrant calls add one, and so do readers that share it.
#[derive(Clone, Copy, Debug)]
struct LiveEntry {
    number: u64,
    kind: Kind,
    /// The end of its fixed lease; `None` if it is renewed.
    until: Option<Tick>,
}

impl LiveEntry {
    fn new(ask: &Ask, now: Tick) -> Self {
        let Lease { is_renewed, duration, .. } = ask.terms.lease;
        Self { number: 0, kind: ask.kind, until: (!is_renewed).then(|| now + duration) }
    }
}

#[derive(Debug)]
struct Waiter {
    ask: Ask,
    gated: bool,
    state: WaiterState,
}

impl Waiter {
    fn is_waiting(&self) -> bool {
        matches!(self.state, WaiterState::Active)
    }

    /// Waits for its turn, and would take it.
    fn is_active(&self) -> bool {
        self.is_waiting() && !self.ask.guest && !self.gated
    }
}

#[derive(Clone, Debug)]
enum WaiterState {
    Active,
    Offered,
    /// Let an offer pass; keeps its place, is not counted on until it is polled again.
    Unresponsive,
    /// Is told this failure; without one it has to ask again, in another lane.
    Over(Option<Failure>),
}

/// Waiters of this process by number, in the order in which they came.
type Waiters = BTreeMap<u64, Box<Waiter>>;

/// The settings of an engine that its machines follow.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rules {
    pub(crate) call_timeout: Duration,
    /// Longest time for which a hold is handed off inside the process.
    pub(crate) window: Duration,
    pub(crate) ticks: Ticks,
}

/// All that is known about one lane in this process.
#[derive(Debug)]
pub(crate) struct Machine {
    pub(crate) key: LockKey,
    pub(crate) lane: LaneKind,
    pub(crate) spec: Spec,
    rules: Rules,
    /// Takes nobody any more.
    sealed: bool,
    phase: Phase,
    waiters: Waiters,
    last_number: u64,
    driver: Driver,
    /// What waits at the store, and has to be kept there.
    pub(crate) queued: Option<Queued>,
    /// Until when somebody else has the key, as the store last said.
    busy_until: Option<Tick>,
    /// Offers in a row that nobody claimed.
    unclaimed: u32,
    /// How many waiters make one attempt only, and how many are guests.
    tries: usize,
    guests: usize,
    /// Tokens used by the last hold.
    used_tokens: u32,
    counter_ahead: bool,
    /// The key was freed by force while a call was under way.
    freed_by_force: bool,
    /// The last attempt was not confirmed by replicas; a waiter without a policy has the next one.
    unconfirmed: bool,
    windows_without_release: u32,
    /// The youngest waiter at the time when the last acquire was sent. A takeover does not count.
    asked_for: u64,
    /// The youngest waiter at the time when the last acquire that was answered was sent.
    answered: u64,
    /// Those whose wait is over but for the first answer.
    late: BTreeSet<u64>,
    /// When the turn of the waiter that was admitted is over.
    turn_end: Tick,
    pub(crate) retry: RetrySchedule,
    shut_down: bool,
    actions: Few<Action>,
    /// How many waiters were looked at one after the other.
    #[cfg(test)]
    seen: std::cell::Cell<usize>,
}

impl Machine {
    pub(crate) fn new(key: LockKey, lane: LaneKind, spec: Spec, rules: Rules, shut_down: bool) -> Self {
        Self {
            key,
            lane,
            spec,
            rules,
            sealed: false,
            phase: Phase::Free,
            waiters: Waiters::default(),
            last_number: 0,
            driver: Driver::None,
            queued: None,
            busy_until: None,
            unclaimed: 0,
            tries: 0,
            guests: 0,
            used_tokens: 1,
            counter_ahead: false,
            freed_by_force: false,
            unconfirmed: false,
            windows_without_release: 0,
            asked_for: 0,
            answered: 0,
            late: BTreeSet::new(),
            turn_end: Tick::MAX,
            retry: RetrySchedule::default(),
            shut_down,
            actions: Few::new(),
            #[cfg(test)]
            seen: std::cell::Cell::default(),
        }
    }

    /// Takes what has to be done, in order.
    pub(crate) fn poll_actions(&mut self) -> Few<Action> {
        std::mem::take(&mut self.actions)
    }

    /// For how long the key is still taken, as far as is known here.
    pub(crate) fn taken_for(&self, now: Tick) -> Option<Duration> {
        let until = match &self.phase {
            Phase::Held(held) => Some(held.hold.deadline()),
            Phase::Ending { min_hold_end, .. } => Some(*min_hold_end),
            _ => self.busy_until,
        };
        until.filter(|&until| now < until).map(|until| until.since(now))
    }

    /// Makes the failure of a caller that does not wait.
    fn busy(&self, now: Tick) -> Failure {
        Failure::Busy { remaining: self.taken_for(now) }
    }

    /// Makes the failure of a try behind waiters. If nobody is known to have the key, they wait for
    /// the store.
    fn refuse_a_try(&self, ask: &Ask, now: Tick) -> Failure {
        let error = self.retry.last_error_for(ask.terms.replication);
        error.filter(|_| self.taken_for(now).is_none()).map_or_else(|| self.busy(now), Failure::Store)
    }

    /// Whether nothing is held, wanted or under way: the lane can be forgotten.
    pub(crate) fn is_idle(&self) -> bool {
        matches!(self.phase, Phase::Free) && self.waiters.is_empty() && self.driver == Driver::None
    }

    pub(crate) fn waiting(&self) -> usize {
        self.waiters.len()
    }

    /// The hold that the store may know, unless a call about it is under way.
    pub(crate) fn hold(&self) -> Option<&Arc<Hold>> {
        match &self.phase {
            Phase::Held(Held { hold, .. }) | Phase::Ending { hold, .. } => Some(hold),
            _ => None,
        }
    }

    /// The hold of which guards may be in somebody's hands, or an offer out.
    pub(crate) fn held(&self) -> Option<&Arc<Hold>> {
        self.hold().filter(|_| matches!(self.phase, Phase::Held(_)))
    }

    /// What renewals of the hold ask for, if it is renewed.
    pub(crate) fn renews(&self, hold: &Arc<Hold>) -> Option<Duration> {
        match &self.phase {
            Phase::Held(held) if Arc::ptr_eq(&held.hold, hold) => held.renews,
            _ => None,
        }
    }

    /// Whether a guard of the hold may be in somebody's hands.
    pub(crate) fn has(&self, hold: &Arc<Hold>) -> bool {
        self.held().is_some_and(|held| Arc::ptr_eq(held, hold))
    }

    /// Whether the store still has to hear something from this lane.
    pub(crate) fn is_busy(&self) -> bool {
        self.driver != Driver::None || !matches!(self.phase, Phase::Free)
    }

    /// Whether a guard of the hold is in somebody's hands; an offer alone is not enough.
    pub(crate) fn is_claimed(&self) -> bool {
        matches!(&self.phase, Phase::Held(Held { live: Some(_), .. }))
    }

    fn new_number(&mut self) -> u64 {
        self.last_number += 1;
        self.last_number
    }

    fn act(&mut self, action: Action) {
        self.actions.push(action);
    }

    /// Wakes the driver if it is parked.
    fn notify(&mut self) {
        if self.driver == Driver::Parked {
            self.act(Action::Notify);
        }
    }
}
