//! [`Machine`]: everything this process knows about one lane of a key. A state machine without I/O and tasks; events
//! bring the time.
//!
//! Callers hold its mutex, pass the time in, and carry out the [`Effects`] after unlocking.

mod callers;
mod events;
mod inside;
mod shared;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use lock_core::internal::clock::{Clock, Tick};
use lock_core::store::{Few, Kind, ListenerPolicy, TokenRange};
use lock_core::{FencingToken, LockKey, Replication};
use tokio::sync::oneshot;

use super::caller::Caller;
use super::hold::{Grant, Hold, Lease, Ticks};
use super::pace::Pace;
use super::pending::Pending;
use super::registry::{LaneKind, Queued};
use super::wait::Wait;
use crate::failure::Failure;
use crate::scope::Scope;

/// An offer that is not claimed for so long goes to the next waiter.
pub(crate) const OFFER_TIME: Duration = Duration::from_millis(20);
/// The same where nobody else waits, and the place in the store's queue is gone: a second, or a quarter of the lease.
const OWN_OFFER_TIME: Duration = Duration::from_secs(1);
/// Each offer that nobody claims doubles the number of waiters who get the next one, up to this power of two: so many
/// waiters that are not polled cannot keep one waiting that is.
const MOST_DOUBLINGS: u32 = 10;
/// After so many windows without a real release, one is made for pollers whom nobody hears.
const WINDOWS_WITHOUT_RELEASE: u32 = 16;
/// A counter that is further ahead of the server's clock gets no ranges.
const COUNTER_AHEAD: u64 = 1_000_000;

/// What a caller wants of a key.
#[derive(Clone, Debug)]
pub(crate) struct Wish {
    /// Differs from the machine's for a reader inside an own write.
    pub(crate) kind: Kind,
    pub(crate) lease: Lease,
    pub(crate) max_hold: Option<Duration>,
    pub(crate) min_hold: Duration,
    pub(crate) replication: Replication,
    pub(crate) wait: Wait,
    /// It may enter a grant of an enclosing call here, and is not to be granted anything else.
    pub(crate) guest: bool,
    /// It is granted nothing before it is admitted, and asks for nothing after this time, even if it is not polled.
    pub(crate) gated: Option<Tick>,
    /// Which of the keys of that grant it wants, if they are several.
    pub(crate) part: Option<u16>,
    /// The enclosing locked calls.
    pub(crate) scope: Scope,
    pub(crate) task: Option<Caller>,
}

impl Wish {
    /// Whether the hold is of the lease that is wanted, and as well replicated.
    fn fits(&self, hold: &Hold) -> bool {
        self.lease == hold.lease && hold.replication.satisfies(self.replication)
    }
}

/// A guard's part in a hold.
#[derive(Clone, Debug)]
pub struct Entry {
    pub grant: Arc<Grant>,
    /// It was made inside another one: no store call was needed.
    pub(crate) reentrant: bool,
    /// The grant came from a local hand-off.
    pub(crate) handed_off: bool,
    /// It is only of this one of the grant's several keys. Small: an entry is in every guard, and so in every locked body.
    pub(crate) part: Option<u16>,
}

impl Entry {
    /// Its (first) key and token.
    pub fn first(&self) -> (&LockKey, FencingToken) {
        let hold = &self.grant.hold;
        let part = self.part.and_then(|part| hold.more().nth(usize::from(part).checked_sub(1)?));
        part.unwrap_or((&hold.item.key, self.grant.token))
    }

    /// All its keys and tokens.
    pub fn tokens(&self) -> impl Iterator<Item = (&LockKey, FencingToken)> {
        let more = self.part.is_none().then(|| self.grant.hold.more());
        std::iter::once(self.first()).chain(more.into_iter().flatten())
    }
}

/// How many callers may wait for a key, and by what setting.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cap {
    pub(crate) most: usize,
    pub(crate) name: &'static str,
}

impl Cap {
    /// Makes the failure of a caller that exceeds the limit.
    pub(crate) fn refuse(self, waiting: usize, remaining: Option<Duration>) -> Failure {
        Failure::TooManyWaiters { waiting, cap: self.name, remaining }
    }
}

/// The answer to a new wish.
#[derive(Debug)]
pub(crate) enum Enqueued {
    /// Entered at once, inside a grant of an enclosing call.
    Entered(Entry),
    /// Waits under this number.
    Waiting(u64),
    /// Not here: the lane takes nobody any more, or was never for this caller.
    Elsewhere,
}

/// The answer to a poll of a waiter.
#[derive(Debug)]
pub(crate) enum Polled {
    Pending,
    Granted(Entry),
    Failed(Failure),
    /// It has to ask again, in another lane.
    Elsewhere,
}

/// What has to be done after unlocking.
#[derive(Debug, Default)]
#[must_use]
pub(crate) struct Effects {
    /// Woken first: the waiter that has an offer.
    pub(crate) wake: Option<Waker>,
    pub(crate) wake_more: Vec<Waker>,
    /// Dropped after unlocking: a waker may own a task, and so a guard of this key.
    pub(crate) discarded: Option<Waker>,
    /// The same: its caller is told by that.
    pub(crate) dropped: Option<Order>,
    /// Nobody waits any more: a subscription that no driver uses is dropped.
    pub(crate) deserted: bool,
    /// Start the key's driver.
    pub(crate) spawn: bool,
    /// Wake the key's parked driver.
    pub(crate) notify: bool,
    /// A hold was left to its lease; to be counted.
    pub(crate) left_to_lease: bool,
    /// The watchdog stops, and an inner call has a fixed lease that lasts longer than what is left.
    pub(crate) lengthen: Option<(Arc<Hold>, Duration)>,
    /// The store is asked whether the hold is still there.
    pub(crate) verify: Option<Arc<Hold>>,
    /// The last writer has gone, and readers are left: the hold becomes one for reading.
    pub(crate) downgrade: Option<(Arc<Hold>, Report)>,
    /// Callers find a fresh lane from now on.
    pub(crate) detach: bool,
    /// The lost signals fire.
    pub(crate) lost: Option<LostGrants>,
    /// The hold is lost; its owner-checked release is still sent, if releases may be.
    pub(crate) abandon: Option<(Arc<Hold>, Duration)>,
}

/// Work of the timekeeper for a lane.
#[derive(Debug, Default)]
pub(crate) struct Due {
    pub(crate) renew: Option<Arc<Hold>>,
    /// Keep the place of its request in the store's queues.
    pub(crate) keep_place: bool,
}

/// All grants of a hold that is lost to them.
#[derive(Debug)]
pub(crate) struct LostGrants {
    pub(crate) grants: Few<Arc<Grant>>,
    /// Nobody has been told before.
    pub(crate) news: bool,
}

/// How the owner of an entry gives it up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Leaving {
    /// The outcome is awaited.
    Released,
    /// Nobody is there any more.
    Dropped,
}

/// What became of a released entry.
#[derive(Debug)]
pub(crate) enum Ended {
    /// Other entries of the hold are left.
    Nested,
    /// The next local waiter has it.
    HandedOn,
    /// The store will be told; the receiver hears the outcome.
    Releasing(oneshot::Receiver<Result<(), Failure>>),
    /// The same, and nobody is there to hear of it.
    ReleasingUnheard,
    /// No release can be sent, and nobody here may have it: the lease ends the hold.
    LeftToLease,
    /// The lock was lost before.
    Lost,
    /// The entry had ended before.
    NotHeld,
}

/// What the driver does next.
#[derive(Debug)]
pub(crate) enum Step {
    /// Nothing: the driver ends.
    Exit,
    /// Ask the store for the key.
    Acquire(Ask),
    /// Give the hold back, and take the key again in the same step if allowed.
    Release { hold: Arc<Hold>, order: Order, then: Option<Again> },
    /// Keep the key taken for this long, then let it expire.
    Linger { hold: Arc<Hold>, rest: Duration, pending: Option<Pending> },
    /// Wait for a message, a change, or this time.
    Park { until: Tick },
}

/// What the driver asks the store for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ask {
    pub(crate) lease: Lease,
    pub(crate) tokens: u32,
    pub(crate) wait: Wait,
    pub(crate) min_hold: Duration,
    pub(crate) replication: Replication,
}

/// Where the outcome of a release is wanted.
pub(crate) type Report = oneshot::Sender<Result<(), Failure>>;

/// How a release was asked for; empty when no guard asked.
#[derive(Debug, Default)]
pub(crate) struct Order {
    pub(crate) report: Option<Report>,
    /// Its place among the pending releases.
    pub(crate) pending: Option<Pending>,
}

/// What to acquire together with a release.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Again {
    pub(crate) lease: Lease,
    pub(crate) tokens: u32,
    pub(crate) listeners: ListenerPolicy,
}

#[derive(Debug)]
enum Phase {
    /// Nothing of ours at the store.
    Free,
    /// A call of the driver is under way.
    Calling,
    Held(Held),
    /// To be released by the driver, at the end of its `min_hold`.
    Ending {
        hold: Arc<Hold>,
        order: Order,
        min_hold_end: Tick,
        /// The store knows for how long the key stays taken.
        told: bool,
    },
}

#[derive(Debug)]
struct Held {
    hold: Arc<Hold>,
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
    /// Whether one more caller may have it without the store: it is what was asked for, renewed and not in doubt, young,
    /// and at least half of its lease is left.
    fn is_good_for(&self, wish: &Wish, now: Tick) -> bool {
        wish.lease.is_renewed
            && wish.fits(&self.hold)
            && self.hold.is_renewing()
            && !self.hold.is_doubtful()
            && now < self.window_end
            && self.hold.deadline().since(now) >= wish.lease.duration / 2
    }
}

/// The next grant is there for whoever of the offered waiters is polled first.
#[derive(Debug)]
struct Offer {
    since: Tick,
    /// How many are offered it.
    open: usize,
    /// The last of them in the queue.
    last: u64,
}

#[derive(Debug)]
struct Live {
    /// Innermost last.
    entries: Few<LiveEntry>,
    min_hold_end: Tick,
    /// All were told that it is lost.
    all_told: bool,
}

impl Live {
    fn position(&self, grant: &Arc<Grant>) -> Option<usize> {
        self.entries.iter().rposition(|entry| Arc::ptr_eq(&entry.grant, grant))
    }

    /// Whether it is lost. Its entries have one hold and one `max_hold`, so the first speaks for
    /// all. It may say so too soon: who asks it just before a renewal comes makes its loss final.
    fn is_lost_at(&self, now: Tick) -> bool {
        self.entries.first().is_some_and(|entry| entry.grant.is_lost_at(now))
    }

    /// They have one.
    fn max_hold_end(&self) -> Tick {
        self.entries.first().map_or(Tick::MAX, |entry| entry.grant.max_hold_end)
    }

    fn tell_loss(&mut self) -> LostGrants {
        let grants = self.entries.iter().map(|entry| Arc::clone(&entry.grant)).collect();
        LostGrants { grants, news: !std::mem::replace(&mut self.all_told, true) }
    }
}

/// One entry of a hold: re-entrant calls add one, and so do readers that share it.
#[derive(Debug)]
struct LiveEntry {
    grant: Arc<Grant>,
    kind: Kind,
    renewed: bool,
    /// The end of its fixed lease, if it asked for one.
    until: Tick,
    task: Option<Caller>,
}

impl LiveEntry {
    fn new(grant: &Arc<Grant>, wish: &Wish, now: Tick) -> Self {
        let until = if wish.lease.is_renewed { Tick::default() } else { now + wish.lease.duration };
        let (grant, renewed) = (Arc::clone(grant), wish.lease.is_renewed);
        Self { grant, kind: wish.kind, renewed, until, task: wish.task }
    }
}

#[derive(Debug)]
struct Waiter {
    wish: Wish,
    gated: bool,
    state: WaiterState,
    waker: Option<Waker>,
}

impl Waiter {
    /// Waits for its turn, and would take it.
    fn is_active(&self) -> bool {
        matches!(self.state, WaiterState::Active) && !self.wish.guest && !self.gated
    }
}

#[derive(Clone, Debug)]
enum WaiterState {
    Active,
    Offered,
    /// Let an offer pass; keeps its place, is not counted on until it is polled again.
    Stale,
    Failed(Failure),
    /// Has to ask again, in another lane.
    Moved,
}

/// Waiters of this process by number, in the order in which they came.
type Waiters = BTreeMap<u64, Box<Waiter>>;

/// All that is known about one key in this process.
#[derive(Debug)]
pub(crate) struct Machine {
    key: LockKey,
    lane: LaneKind,
    /// Takes nobody any more.
    closed: bool,
    clock: Clock,
    ticks: Ticks,
    phase: Phase,
    waiters: Waiters,
    next_id: u64,
    driver: bool,
    parked: bool,
    /// What waits at the store, and has to be kept there.
    pub(crate) queued: Option<Queued>,
    /// For when the engine has set the lane's timer; [`Tick::MAX`] when it has not.
    pub(crate) timer: Tick,
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
    /// The last attempt was not confirmed by replicas; who waits without a policy has the next one.
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
    pub(crate) pace: Pace,
    shut_down: bool,
    /// Taken out of the registry; whoever finds this looks the key up again.
    pub(crate) removed: bool,
    /// How many waiters were looked at one after the other.
    #[cfg(test)]
    seen: std::cell::Cell<usize>,
}

impl Machine {
    pub(crate) fn new(key: LockKey, lane: LaneKind, clock: Clock, ticks: Ticks, shut_down: bool) -> Self {
        Self {
            key,
            lane,
            closed: false,
            clock,
            ticks,
            phase: Phase::Free,
            waiters: Waiters::default(),
            next_id: 1,
            driver: false,
            parked: false,
            queued: None,
            timer: Tick::MAX,
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
            pace: Pace::default(),
            shut_down,
            removed: false,
            #[cfg(test)]
            seen: std::cell::Cell::default(),
        }
    }

    pub(crate) fn key(&self) -> &LockKey {
        &self.key
    }

    /// For how long the key is still taken, as far as is known here.
    pub(crate) fn taken_for(&self, now: Tick) -> Option<Duration> {
        let until = match &self.phase {
            Phase::Held(held) => Some(held.hold.deadline()),
            Phase::Ending { min_hold_end, .. } => Some(*min_hold_end),
            Phase::Free | Phase::Calling => self.busy_until,
        };
        until.filter(|&until| now < until).map(|until| until.since(now))
    }

    /// Makes the failure of a caller that does not wait.
    fn busy(&self, now: Tick) -> Failure {
        Failure::Busy { remaining: self.taken_for(now) }
    }

    /// The same for a try behind waiters. If nobody is known to have the key, they wait for the
    /// store.
    fn refuse_a_try(&self, wish: &Wish, now: Tick) -> Failure {
        let error = self.pace.last_error_for(wish.replication).filter(|_| self.taken_for(now).is_none());
        error.map_or_else(|| self.busy(now), Failure::Store)
    }

    /// Nothing is held, wanted or under way: the key can be forgotten.
    pub(crate) fn is_idle(&self) -> bool {
        matches!(self.phase, Phase::Free) && self.waiters.is_empty() && !self.driver
    }

    pub(crate) fn waiting(&self) -> usize {
        self.waiters.len()
    }

    /// The hold that the store may know, unless a call about it is under way.
    pub(crate) fn hold(&self) -> Option<&Arc<Hold>> {
        match &self.phase {
            Phase::Held(held) => Some(&held.hold),
            Phase::Ending { hold, .. } => Some(hold),
            Phase::Free | Phase::Calling => None,
        }
    }

    /// The hold of which guards may be in somebody's hands.
    pub(crate) fn held(&self) -> Option<&Arc<Hold>> {
        self.hold().filter(|_| self.is_held())
    }

    /// Whether a guard of the hold may be in somebody's hands.
    pub(crate) fn has(&self, hold: &Arc<Hold>) -> bool {
        matches!(&self.phase, Phase::Held(held) if Arc::ptr_eq(&held.hold, hold))
    }

    pub(crate) fn has_driver(&self) -> bool {
        self.driver
    }

    /// Whether the store still has to hear something from this key.
    pub(crate) fn is_busy(&self) -> bool {
        self.driver || !matches!(self.phase, Phase::Free)
    }

    /// Whether a guard may be in somebody's hands or an offer out.
    pub(crate) fn is_held(&self) -> bool {
        matches!(self.phase, Phase::Held(_))
    }

    /// Whether a guard of the hold is in somebody's hands; an offer alone is not enough.
    pub(crate) fn is_claimed(&self) -> bool {
        matches!(&self.phase, Phase::Held(Held { live: Some(_), .. }))
    }

    fn new_id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }
}

/// What a release told about rivals.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rivals {
    pub(crate) listeners: u64,
    pub(crate) echo: bool,
    pub(crate) round_trip: Duration,
}
