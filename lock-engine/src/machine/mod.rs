//! [`Machine`]: everything this process knows about one lane. It is a state machine without I/O,
//! clock, waker, channel, task or runtime.
//!
//! It consists of a queue of waiters and at most one hold. Callers use its methods; everything else
//! that happens is an [`Input`] to [`handle`](Machine::handle). Both pass in the time.
//!
//! It answers with [`Action`]s, which are carried out after unlocking, and with the [`Step`]s of
//! the lane's driver. It also says when it is due next. Waiters and entries are known by numbers; a
//! lane keeps their wakers and grants. docs/architecture.md has the table of its states.

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
    Abilities, AcquireRequest, Acquired, Few, Kind, Moment, Notice, Released, Renewed, Standing, StoreError,
    Takeover, TokenRange,
};
use lock_core::{FencingToken, LockKey};

use super::failure::{Failure, Loss};
use super::hold::{Hold, Ticks};
use super::retry::RetrySchedule;
use super::spec::{LaneKind, Spec};
use super::terms::{Lease, Terms};

/// Time after which an unclaimed offer goes to the next waiter.
pub(crate) const OFFER_TIME: Duration = Duration::from_millis(20);
/// Maximum offer time in a lane of one caller, whose place in the store's queue is gone. It is cut
/// to a quarter of the lease.
const OWN_OFFER_TIME: Duration = Duration::from_secs(1);
/// Maximum number of doublings of an offer. Each unclaimed offer doubles the number of waiters that
/// get the next one. Thus many waiters that are not polled cannot hold up one that is.
const MOST_DOUBLINGS: u32 = 10;
/// Number of windows without a real release after which one is made, for contenders that poll
/// without listening.
const WINDOWS_WITHOUT_RELEASE: u32 = 16;
/// Lead of a counter over the server's clock, in microseconds, beyond which it grows no faster than
/// the clock.
const COUNTER_AHEAD: u64 = 1_000_000;

/// A caller's request to a lane.
#[derive(Clone, Debug)]
pub(crate) struct Ask {
    /// Differs from the lane's kind for a reader inside a hold for writing.
    pub(crate) kind: Kind,
    pub(crate) terms: Terms,
    /// Numbers of the grants of this lane that enclosing calls hold.
    pub(crate) inside: Few<u64>,
    /// Whether it may only enter the grant of an enclosing call.
    pub(crate) guest: bool,
    /// If set, the caller is granted nothing before it is admitted. After this time it asks for
    /// nothing, even if it is not polled.
    pub(crate) gated: Option<Tick>,
    /// Which key of that grant it wants, if there are several.
    pub(crate) part: Option<u16>,
}

impl Ask {
    /// Whether the hold has the requested lease, and is sufficiently replicated.
    fn fits(&self, hold: &Hold) -> bool {
        self.terms.lease == hold.lease && hold.replication.satisfies(self.terms.replication)
    }
}

/// A caller's admission: one entry of a hold.
#[derive(Clone, Debug)]
pub(crate) struct Pass {
    /// Number of the entry.
    pub(crate) number: u64,
    pub(crate) hold: Arc<Hold>,
    pub(crate) token: FencingToken,
    pub(crate) max_hold_end: Tick,
    /// Whether it was made inside another entry, without a store call.
    pub(crate) reentrant: bool,
    /// Whether the grant came from a local hand-off.
    pub(crate) handed_off: bool,
    /// Which of the hold's several keys is meant.
    pub(crate) part: Option<u16>,
}

/// A cap on waiting callers, and the setting that it comes from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cap {
    pub(crate) most: usize,
    pub(crate) name: &'static str,
    /// How many callers wait for any key, if that number is capped.
    pub(crate) all: Option<usize>,
}

impl Cap {
    /// Makes the failure of a caller that exceeds the limit.
    pub(crate) fn refuse(self, waiting: usize, remaining: Option<Duration>) -> Failure {
        Failure::TooManyWaiters { waiting: self.all.unwrap_or(waiting), cap: self.name, remaining }
    }
}

/// The result of a new request.
#[derive(Debug)]
pub(crate) enum Enqueued<T = Pass> {
    /// Admitted at once, inside a grant of an enclosing call or beside other readers.
    Entered(T),
    /// Waits under this number.
    Waiting(u64),
    /// Not here: the lane takes no more callers, or was never for this one.
    Elsewhere,
}

/// An event of a lane, besides its callers' requests.
#[derive(Debug)]
pub(crate) enum Input<'a> {
    /// The turn of a waiter in line has come.
    Admit(u64),
    /// A waiter gives up, or is dropped.
    Leave(u64),
    /// The request that was sent at `sent` was answered.
    Acquired { answer: Result<Acquired, StoreError>, sent: Tick, seen: Seen },
    /// The request that replicas did not confirm has been undone, or is being undone.
    Undone { seen: Seen },
    /// The release that was sent at `sent` was answered; `None` if it was given up.
    Released { answer: Option<(Tick, Released)>, seen: Seen },
    /// An attempt to release failed; others follow.
    ReleaseFailed { error: &'a StoreError, seen: Seen },
    /// The driver heard something about the key.
    Heard { heard: Heard, seen: Seen },
    /// The place of the request in the store's queues has to be kept at this time.
    KeepPlace(Tick),
    /// A renewal to `lease`, sent at `sent`, was answered.
    Renewed { hold: &'a Arc<Hold>, kept: Renewed, sent: Tick, lease: Duration },
    /// A renewal failed.
    NotKept { hold: &'a Arc<Hold> },
    /// The hold is lost.
    Lost { hold: &'a Arc<Hold>, why: Loss },
    /// The key was freed by force. It is unknown whether the current hold was granted after that.
    Freed,
    /// The driver has ended unexpectedly. Its unfinished work is left to the lease.
    DriverGone,
    /// All waiters fail with this failure.
    Fail(Failure),
    /// Nothing is granted from now on; all waiters fail.
    ShutDown,
}

/// The store's answer about a request that waits in its queues.
#[derive(Debug)]
pub(crate) struct PlaceKept<'a> {
    pub(crate) request: &'a Arc<AcquireRequest>,
    /// The answer for each item; empty without an answer.
    pub(crate) each: &'a [Renewed],
    /// When the call was sent.
    pub(crate) sent: Tick,
    /// The standing of the request then, and now.
    pub(crate) standing: Standing,
    pub(crate) next: Standing,
    /// Whether the answer for a fair lock replaces an attempt.
    pub(crate) is_seen: bool,
}

/// A message to a contender.
#[derive(Debug)]
pub enum Heard {
    /// Messages arrive from now on. Earlier events have to be looked for.
    Confirmed,
    /// Messages are not certain to arrive.
    Unconfirmed,
    Notice(Notice),
}

/// Circumstances of an answer of the store.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seen {
    /// Whether messages arrive.
    pub(crate) listening: bool,
    /// Maximum pause between two attempts.
    pub(crate) fallback: Duration,
    /// The lowest recent round trip.
    pub(crate) round_trip: Duration,
    /// Uniform in 0..1.
    pub(crate) random: f64,
}

/// Work to carry out after an input, in this order.
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
    /// or no longer.
    LeaveQueue,
    /// Fire the lost signals of these grants. `news`: nobody has been told before.
    TellLoss { grants: Few<u64>, news: bool },
    /// The hold is lost: release it if the store still knows it, or let it expire after this time.
    Abandon(Arc<Hold>, Duration),
    /// Count a hold that was left to its lease.
    CountLeft,
}

/// The timekeeper's work for a lane.
#[derive(Debug, Default)]
pub(crate) struct Due {
    pub(crate) renew: Option<Arc<Hold>>,
    /// Whether to keep the place of its request in the store's queues.
    pub(crate) keep_place: bool,
}

/// The outcome of a released or downgraded entry.
#[derive(Debug)]
pub(crate) enum ReleaseOutcome {
    /// Other entries of the hold remain.
    Nested,
    /// The next local waiter gets the hold.
    HandedOff,
    /// The driver will release it at the store.
    Releasing,
    /// The driver will release it, at the end of its `min_hold`.
    Lingering,
    /// The hold will become one for reading.
    Downgrading(Arc<Hold>),
    /// No release can be sent, and no local caller may have the hold: the lease ends it.
    LeftToLease,
    /// The lock was lost before.
    Lost,
    /// The entry had ended before.
    NotHeld,
}

/// The driver's next step. It reports a call by an [`Input`].
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

/// A request that the driver has sent.
#[derive(Debug)]
struct Asked {
    request: Arc<AcquireRequest>,
    lease: Lease,
}

/// A request that may have a place in a queue of the store, or an intent. It is sent again, under
/// the same owner, until it is granted or withdrawn.
#[derive(Clone, Debug)]
pub(crate) struct Queued {
    pub(crate) request: Arc<AcquireRequest>,
    /// Whether the store has queued it.
    pub(crate) is_noted: bool,
    /// When the last answered call that found it waiting was sent.
    pub(crate) since: Tick,
    /// When the store last answered an acquire with "waiting". A grant from before that is over:
    /// the request had lost its place, and queued again.
    found: Moment,
    /// Whether it is being re-sent, or its re-send was not answered. It may then have a new place,
    /// so an answer to `renew` must not make an older grant look newer.
    pub(crate) asking: bool,
    /// Whether a copy of it was not answered.
    unanswered: bool,
    /// When its place has to be kept next.
    pub(crate) keep_at: Tick,
}

#[derive(Debug)]
enum Phase {
    /// We have nothing at the store.
    Free,
    /// The driver asks the store for the key.
    Asking(Asked),
    /// A grant that replicas have not confirmed is being undone.
    Undoing(Arc<AcquireRequest>, StoreError),
    Held(Held),
    /// The driver will release it, at the end of its `min_hold`.
    Ending {
        hold: Arc<Hold>,
        min_hold_end: Tick,
        /// Whether the store knows for how long the key stays taken.
        told: bool,
    },
    /// The driver is releasing it, and may take the key again in the same step.
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
    /// The lease of renewals, if it is renewed.
    renews: Option<Duration>,
    /// Failed renewals since the last success. A hold with failures is not handed off.
    failures: u32,
    /// When it is renewed next, or found to be over.
    renewal: Tick,
    tokens: TokenRange,
    used: u32,
    window_end: Tick,
    /// When readers have had their time to leave, if a caller waits for that.
    drain_end: Tick,
    offer: Option<Offer>,
    live: Option<Live>,
}

impl Held {
    /// Whether one more caller may have it without the store. It must fit the request, be renewed
    /// without failures and be young, and at least half of its lease must be left.
    fn is_good_for(&self, ask: &Ask, now: Tick) -> bool {
        ask.terms.lease.is_renewed
            && ask.fits(&self.hold)
            && self.renews.is_some()
            && self.failures == 0
            && now < self.window_end
            && self.hold.deadline().since(now) >= ask.terms.lease.duration / 2
    }

    /// Sets the lease of renewals, or stops them.
    ///
    /// The next renewal is due after a third of the lease. A hold with less than half of that lease
    /// left is renewed at once: it had a shorter fixed lease before.
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

    /// Puts off the first renewal of a hold that the store has granted for less than requested,
    /// unless that is less than half, or half of it has passed already.
    fn renew_later(&mut self, granted: Duration, ticks: Ticks, now: Tick) {
        let left = self.hold.deadline().since(now);
        if left >= granted / 2 && self.renews.is_some_and(|lease| granted >= lease / 2) {
            self.renewal = ticks.before(now + left / 3, left / 60);
        }
    }

    /// Schedules a retry of a failed renewal: quickly at first, then more slowly, always before the
    /// deadline.
    fn renewal_failed(&mut self, now: Tick) {
        self.failures = self.failures.saturating_add(1);
        let longest = (self.renews.unwrap_or_default() / 15).min(Duration::from_secs(1));
        let pause = Duration::from_millis(20) * 2u32.saturating_pow(self.failures.min(10));
        self.renewal = (now + pause.min(longest)).min(self.hold.deadline());
    }
}

/// An offer: the first of the offered waiters to be polled gets the next grant.
#[derive(Debug)]
struct Offer {
    until: Tick,
    /// How many waiters still have it.
    open: usize,
    /// The last of them in the queue.
    last: u64,
}

/// The callers' part of a hold.
#[derive(Debug)]
struct Live {
    /// The entries, innermost last.
    entries: Few<LiveEntry>,
    /// The token of all entries; they also share the end of `max_hold`.
    token: FencingToken,
    max_hold_end: Tick,
    min_hold_end: Tick,
    /// Whether all callers have been told that it is lost.
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

/// One entry of a hold: each re-entrant call adds one, and so does each reader that shares it.
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

    /// Whether it waits for its turn, and would take it.
    fn is_active(&self) -> bool {
        self.is_waiting() && !self.ask.guest && !self.gated
    }
}

#[derive(Clone, Debug)]
enum WaiterState {
    Active,
    Offered,
    /// It let an offer pass. It keeps its place, but is not counted on until it is polled again.
    Unresponsive,
    /// It fails with this failure; without one, it has to ask again in another lane.
    Over(Option<Failure>),
}

/// The waiters of this process by number, in order of arrival.
type Waiters = BTreeMap<u64, Box<Waiter>>;

/// The engine's settings for its machines, and what its store can do.
#[derive(Debug)]
pub(crate) struct Rules {
    pub(crate) call_timeout: Duration,
    /// Maximum time for which a hold is handed off inside the process.
    pub(crate) window: Duration,
    /// Maximum pause between two attempts.
    pub(crate) fallback: Duration,
    pub(crate) ticks: Ticks,
    pub(crate) abilities: Abilities,
}

/// Everything known about one lane in this process.
#[derive(Debug)]
pub(crate) struct Machine {
    pub(crate) key: LockKey,
    pub(crate) lane: LaneKind,
    pub(crate) spec: Spec,
    rules: Arc<Rules>,
    /// Whether it takes no more callers.
    sealed: bool,
    phase: Phase,
    waiters: Waiters,
    last_number: u64,
    driver: Driver,
    /// The request that waits at the store, and has to be kept there.
    pub(crate) queued: Option<Queued>,
    /// Until when another owner has the key, as the store last said.
    busy_until: Option<Tick>,
    /// Unclaimed offers in a row.
    unclaimed: u32,
    /// How many waiters make only one attempt, and how many are guests.
    tries: usize,
    guests: usize,
    /// Tokens used by the last hold.
    used_tokens: u32,
    /// When tokens were last granted, if the counter is far ahead of the server's clock.
    ahead_since: Option<Tick>,
    /// Whether the key was freed by force while a call was under way.
    freed_by_force: bool,
    /// Whether replicas did not confirm the last attempt; a waiter without a policy gets the next
    /// one.
    unconfirmed: bool,
    windows_without_release: u32,
    /// The youngest waiter when the last acquire was sent. A takeover does not count.
    asked_for: u64,
    /// The youngest waiter when the last answered acquire was sent.
    answered: u64,
    /// Waiters whose wait is over, except for the first answer.
    late: BTreeSet<u64>,
    /// When the turn of the admitted waiter is over.
    turn_end: Tick,
    pub(crate) retry: RetrySchedule,
    shut_down: bool,
    actions: Few<Action>,
    /// How many waiters were looked at one by one.
    #[cfg(test)]
    seen: std::cell::Cell<usize>,
}

impl Machine {
    pub(crate) fn new(key: LockKey, lane: LaneKind, spec: Spec, rules: Arc<Rules>, shut_down: bool) -> Self {
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
            ahead_since: None,
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

    /// Takes the pending actions, in order.
    pub(crate) fn poll_actions(&mut self) -> Few<Action> {
        std::mem::take(&mut self.actions)
    }

    /// Returns for how long the key is still taken, as far as is known here.
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

    /// Makes the failure of a try behind waiters. If no holder is known, they wait for the store.
    fn refuse_a_try(&self, ask: &Ask, now: Tick) -> Failure {
        let error = self.retry.last_error_for(ask.terms.replication);
        error.filter(|_| self.taken_for(now).is_none()).map_or_else(|| self.busy(now), Failure::Store)
    }

    /// Whether nothing is held, wanted or under way, so that the lane can be forgotten.
    pub(crate) fn is_idle(&self) -> bool {
        matches!(self.phase, Phase::Free) && self.waiters.is_empty() && self.driver == Driver::None
    }

    pub(crate) fn waiting(&self) -> usize {
        self.waiters.len()
    }

    /// Returns the hold that the store may know, unless a call about it is under way.
    pub(crate) fn hold(&self) -> Option<&Arc<Hold>> {
        match &self.phase {
            Phase::Held(Held { hold, .. }) | Phase::Ending { hold, .. } => Some(hold),
            _ => None,
        }
    }

    /// Returns the hold if callers may have guards of it, or it is on offer.
    pub(crate) fn held(&self) -> Option<&Arc<Hold>> {
        self.hold().filter(|_| matches!(self.phase, Phase::Held(_)))
    }

    /// Returns the lease of the hold's renewals, if it is renewed.
    pub(crate) fn renews(&self, hold: &Arc<Hold>) -> Option<Duration> {
        match &self.phase {
            Phase::Held(held) if Arc::ptr_eq(&held.hold, hold) => held.renews,
            _ => None,
        }
    }

    /// Whether callers may have guards of the hold, or it is on offer.
    pub(crate) fn has(&self, hold: &Arc<Hold>) -> bool {
        self.held().is_some_and(|held| Arc::ptr_eq(held, hold))
    }

    /// Whether this lane still has something to tell the store.
    pub(crate) fn is_busy(&self) -> bool {
        self.driver != Driver::None || !matches!(self.phase, Phase::Free)
    }

    /// Whether a caller has a guard of the hold; an offer is not enough.
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
