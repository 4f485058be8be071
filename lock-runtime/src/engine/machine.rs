//! [`Machine`]: everything this process knows about one key. A state machine without I/O, tasks or a clock.
//!
//! Callers hold its mutex, pass the time in, and carry out the [`Effects`] after unlocking.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use tokio::sync::oneshot;

use super::hold::{Grant, Hold, Lease, MaxHold};
use super::pace::Pace;
use crate::clock::{Clock, Tick};
use crate::error::{AcquireError, ReleaseError};
use crate::key::LockKey;
use crate::scope::Scope;
use crate::store::{ListenerPolicy, MAX_TOKENS, ServerTime, StoreError, TokenRange};

/// An offer that is not claimed for so long goes to the next waiter.
pub(crate) const OFFER_TIME: Duration = Duration::from_millis(20);
/// After so many windows without a real release, one is made for pollers whom nobody hears.
const WINDOWS_WITHOUT_RELEASE: u32 = 16;
/// A counter that is further ahead of the server's clock gets no ranges.
const COUNTER_AHEAD: u64 = 1_000_000;

/// What a caller wants of a key.
#[derive(Clone, Debug)]
pub(crate) struct Wish {
    pub(crate) lease: Lease,
    pub(crate) max_hold: Option<MaxHold>,
    pub(crate) min_hold: Duration,
    pub(crate) patience: Patience,
    /// The enclosing locked calls.
    pub(crate) scope: Scope,
    pub(crate) task: Option<tokio::task::Id>,
}

/// Whether a caller waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Patience {
    /// One attempt.
    Try,
    /// Until its own future gives up.
    Wait,
}

/// One entry of a grant: what a guard owns. Re-entrant calls add entries.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) grant: Arc<Grant>,
    pub(crate) id: u64,
    /// The entry was made inside another one: no store call was needed.
    pub(crate) reentrant: bool,
    /// The grant came from a local hand-off.
    pub(crate) handed_on: bool,
}

/// The answer to a new wish.
#[derive(Debug)]
pub(crate) enum Enqueued {
    /// Entered at once, inside a grant of an enclosing call.
    Entered(Entry),
    /// Waits under this number. `own_task`: the same task holds the key already, in a way that re-entry cannot see.
    Waiting { id: u64, own_task: bool },
}

/// The answer to a poll of a waiter.
#[derive(Debug)]
pub(crate) enum Polled {
    Pending,
    Granted(Entry),
    Failed(AcquireError),
}

/// What has to be done after unlocking.
#[derive(Debug, Default)]
#[must_use]
pub(crate) struct Effects {
    /// Woken first: the waiter that has an offer.
    pub(crate) wake: Option<Waker>,
    pub(crate) wake_more: Vec<Waker>,
    /// Start the key's driver.
    pub(crate) spawn: bool,
    /// Wake the key's parked driver.
    pub(crate) notify: bool,
    /// Call [`Machine::sweep`] at this time.
    pub(crate) sweep: Option<Tick>,
    /// The hold is not to be watched any more.
    pub(crate) unwatch: Option<Arc<Hold>>,
    /// Renewal of the hold has begun or ended.
    pub(crate) rewatch: Option<Arc<Hold>>,
    /// The grant's lost signal fires.
    pub(crate) signal: Option<Arc<Grant>>,
    /// The hold is lost; its owner-checked release is still sent.
    pub(crate) abandon: Option<Arc<Hold>>,
}

/// What became of a released entry.
#[derive(Debug)]
pub(crate) enum Ended {
    /// Outer entries of the grant are left.
    Nested,
    /// The next local waiter has it.
    HandedOn,
    /// The store will be told; the receiver hears the outcome.
    Releasing(oneshot::Receiver<Result<(), ReleaseError>>),
    /// `min_hold` is not over: the key stays taken, the store is told in the background.
    Lingering,
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
    Acquire { lease: Lease, tokens: u32 },
    /// Give the hold back, and take the key again in the same step if allowed.
    Release { hold: Arc<Hold>, report: Option<Report>, then: Option<Again> },
    /// Keep the key taken for this long, then let it expire.
    Linger { hold: Arc<Hold>, rest: Duration },
    /// Wait for a message, a change, or this time.
    Park { until: Tick },
}

/// Where the outcome of a release is wanted.
pub(crate) type Report = oneshot::Sender<Result<(), ReleaseError>>;

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
    /// The body is over, `min_hold` is not.
    Lingering {
        hold: Arc<Hold>,
        until: Tick,
        told: bool,
    },
    /// To be released by the driver.
    Ending {
        hold: Arc<Hold>,
        report: Option<Report>,
    },
}

#[derive(Debug)]
struct Held {
    hold: Arc<Hold>,
    tokens: TokenRange,
    used: u32,
    window_end: Tick,
    /// Who may claim the next grant, and since when.
    offer: Option<(u64, Tick)>,
    live: Option<Live>,
}

#[derive(Debug)]
struct Live {
    grant: Arc<Grant>,
    /// Innermost last.
    entries: Vec<LiveEntry>,
    min_hold_end: Tick,
}

#[derive(Debug)]
struct LiveEntry {
    id: u64,
    renewed: bool,
    task: Option<tokio::task::Id>,
}

#[derive(Debug)]
struct Waiter {
    wish: Wish,
    state: WaiterState,
    waker: Option<Waker>,
    /// [`Machine::answers`] when it came.
    answers: u64,
    /// Its wait is over, only the answer to its first attempt is still awaited.
    late: bool,
}

#[derive(Debug)]
enum WaiterState {
    Active,
    Offered,
    /// Let an offer pass; keeps its place, is not counted on until it is polled again.
    Stale,
    Failed(AcquireError),
}

/// All that is known about one key in this process.
#[derive(Debug)]
pub(crate) struct Machine {
    key: LockKey,
    clock: Clock,
    phase: Phase,
    waiters: BTreeMap<u64, Waiter>,
    next_id: u64,
    driver: bool,
    parked: bool,
    sweeping: bool,
    /// Tokens used by the last hold.
    used_tokens: u32,
    counter_ahead: bool,
    windows_without_release: u32,
    /// Replies to acquire calls so far.
    answers: u64,
    pub(crate) pace: Pace,
    shut_down: bool,
    /// Taken out of the registry; whoever finds this looks the key up again.
    pub(crate) removed: bool,
}

impl Machine {
    pub(crate) fn new(key: LockKey, clock: Clock) -> Self {
        Self {
            key,
            clock,
            phase: Phase::Free,
            waiters: BTreeMap::new(),
            next_id: 1,
            driver: false,
            parked: false,
            sweeping: false,
            used_tokens: 1,
            counter_ahead: false,
            windows_without_release: 0,
            answers: 0,
            pace: Pace::default(),
            shut_down: false,
            removed: false,
        }
    }

    /// Nothing is held, wanted or under way: the key can be forgotten.
    pub(crate) fn is_idle(&self) -> bool {
        matches!(self.phase, Phase::Free) && self.waiters.is_empty() && !self.driver
    }

    pub(crate) fn waiting(&self) -> usize {
        self.waiters.len()
    }

    /// The hold with a live grant or an offer, if there is one.
    pub(crate) fn hold(&self) -> Option<&Arc<Hold>> {
        match &self.phase {
            Phase::Held(held) => Some(&held.hold),
            Phase::Lingering { hold, .. } | Phase::Ending { hold, .. } => Some(hold),
            Phase::Free | Phase::Calling => None,
        }
    }

    /// Whether a guard may be in somebody's hands or an offer out.
    pub(crate) fn is_held(&self) -> bool {
        matches!(self.phase, Phase::Held(_))
    }

    fn new_id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }

    // ---- callers ---------------------------------------------------------------------------------------------

    /// Somebody wants the key.
    pub(crate) fn enqueue(
        &mut self,
        wish: Wish,
        now: Tick,
        cap: usize,
        effects: &mut Effects,
    ) -> Result<Enqueued, AcquireError> {
        if self.shut_down {
            return Err(AcquireError::ShutDown { key: self.key.clone() });
        }
        if let Some(entry) = self.reenter(&wish, now, effects) {
            return Ok(Enqueued::Entered(entry));
        }
        if wish.patience == Patience::Try && self.is_busy_for_a_try() {
            return Err(AcquireError::Busy { key: self.key.clone() });
        }
        if self.waiters.len() >= cap {
            return Err(AcquireError::TooManyWaiters {
                key: self.key.clone(),
                waiting: self.waiters.len(),
                cap: "max_waiters_per_key",
            });
        }
        let own_task = wish.task.is_some() && self.live_tasks().any(|task| task == wish.task);
        let id = self.new_id();
        let waiter =
            Waiter { wish, state: WaiterState::Active, waker: None, answers: self.answers, late: false };
        self.waiters.insert(id, waiter);
        self.kick(now, effects);
        Ok(Enqueued::Waiting { id, own_task })
    }

    /// A waiter's future is polled.
    pub(crate) fn poll_waiter(&mut self, id: u64, now: Tick, waker: &Waker, effects: &mut Effects) -> Polled {
        let Some(waiter) = self.waiters.get_mut(&id) else {
            return Polled::Failed(AcquireError::ShutDown { key: self.key.clone() });
        };
        match &waiter.state {
            WaiterState::Failed(error) => {
                let error = error.clone();
                self.waiters.remove(&id);
                return Polled::Failed(error);
            }
            WaiterState::Offered => {
                if let Some(entry) = self.claim(id, now, effects) {
                    return Polled::Granted(entry);
                }
            }
            WaiterState::Active => {}
            WaiterState::Stale => {
                waiter.state = WaiterState::Active;
                self.kick(now, effects);
            }
        }
        if let Some(waiter) = self.waiters.get(&id) {
            if !waiter.wish.scope.is_empty() {
                let wish = waiter.wish.clone();
                if let Some(entry) = self.reenter(&wish, now, effects) {
                    self.waiters.remove(&id);
                    return Polled::Granted(entry);
                }
            }
        }
        if let Some(waiter) = self.waiters.get_mut(&id) {
            match &mut waiter.waker {
                Some(old) => old.clone_from(waker),
                none => *none = Some(waker.clone()),
            }
        }
        Polled::Pending
    }

    /// Whether the waiter's first attempt is still unanswered, so that a wait shorter than a round trip is not over.
    pub(crate) fn awaits_first_answer(&mut self, id: u64) -> bool {
        let asking = self.driver && matches!(self.phase, Phase::Free | Phase::Calling);
        match self.waiters.get_mut(&id) {
            Some(waiter) if asking && waiter.answers == self.answers => {
                waiter.late = true;
                true
            }
            _ => false,
        }
    }

    /// A waiter gives up or is dropped.
    pub(crate) fn leave(&mut self, id: u64, now: Tick, effects: &mut Effects) {
        let Some(waiter) = self.waiters.remove(&id) else { return };
        if matches!(waiter.state, WaiterState::Offered) {
            self.offer_next(Some(id), now, effects);
        } else if self.parked && self.first_active().is_none() {
            effects.notify = true;
        }
    }

    /// One more entry inside the grant of a guard, which proves that the caller may.
    pub(crate) fn reenter_guard(&mut self, grant: &Arc<Grant>, entry: u64, now: Tick) -> Option<Entry> {
        let id = self.new_id();
        let live = self.live_of(grant)?;
        if !grant.hold.is_valid(now) || !grant.is_live() {
            return None;
        }
        let renewed = live.entries.iter().find(|e| e.id == entry)?.renewed;
        live.entries.push(LiveEntry { id, renewed, task: tokio::task::try_id() });
        Some(Entry { grant: Arc::clone(grant), id, reentrant: true, handed_on: false })
    }

    /// A guard is released or dropped.
    pub(crate) fn release(&mut self, entry: &Entry, now: Tick, effects: &mut Effects) -> Ended {
        let was_lost = entry.grant.is_lost();
        let Some(live) = self.live_of(&entry.grant) else {
            return if was_lost { Ended::Lost } else { Ended::NotHeld };
        };
        let Some(at) = live.entries.iter().position(|e| e.id == entry.id) else { return Ended::NotHeld };
        live.entries.remove(at);
        if !live.entries.is_empty() {
            let renewed = live.entries.iter().any(|e| e.renewed);
            if entry.grant.hold.is_renewing() && !renewed {
                entry.grant.hold.set_renewing(false);
                effects.rewatch = Some(Arc::clone(&entry.grant.hold));
            }
            self.wake_reentrants(effects);
            return if was_lost { Ended::Lost } else { Ended::Nested };
        }
        let min_hold_end = live.min_hold_end;
        entry.grant.end();
        let hold = Arc::clone(&entry.grant.hold);
        if !hold.is_valid(now) {
            self.lose(&hold, now, effects);
            return Ended::Lost;
        }
        self.end_live();
        if now < min_hold_end {
            hold.set_renewing(false);
            effects.unwatch = Some(Arc::clone(&hold));
            self.end_hold(Phase::Lingering { hold, until: min_hold_end, told: false });
            self.kick(now, effects);
            return if was_lost { Ended::Lost } else { Ended::Lingering };
        }
        if self.can_hand_on(now) {
            self.offer_next(None, now, effects);
            return if was_lost { Ended::Lost } else { Ended::HandedOn };
        }
        let (report, outcome) = oneshot::channel();
        self.begin_release(Some(report), now, effects);
        if was_lost { Ended::Lost } else { Ended::Releasing(outcome) }
    }

    /// The guard goes, and its release cannot be sent: the store ends the hold by itself.
    pub(crate) fn leave_to_lease(&mut self, entry: &Entry, now: Tick, effects: &mut Effects) -> bool {
        let last = self.live_of(&entry.grant).is_some_and(|live| live.entries.len() == 1);
        if last {
            entry.grant.end();
            self.lose(&entry.grant.hold, now, effects);
            effects.abandon = None;
            effects.signal = None;
        } else {
            let _ = self.release(entry, now, effects);
        }
        last
    }

    // ---- time and store ------------------------------------------------------------------------------------------

    /// The hold's deadline is over, the store says that it is gone, or somebody freed it by force.
    pub(crate) fn lose(&mut self, hold: &Arc<Hold>, now: Tick, effects: &mut Effects) {
        if !hold.mark_lost() {
            return;
        }
        hold.set_renewing(false);
        effects.unwatch = Some(Arc::clone(hold));
        let ours = match &self.phase {
            Phase::Held(held) => Arc::ptr_eq(&held.hold, hold),
            Phase::Lingering { hold: other, .. } => Arc::ptr_eq(other, hold),
            // The driver is about to send the release anyway, and will hear that nothing was held.
            Phase::Ending { .. } | Phase::Free | Phase::Calling => false,
        };
        if !ours {
            return;
        }
        effects.abandon = Some(Arc::clone(hold));
        if let Phase::Held(held) = std::mem::replace(&mut self.phase, Phase::Free) {
            self.used_tokens = held.used.max(1);
            if let Some(live) = held.live {
                effects.signal = Some(live.grant);
            }
            if let Some(waiter) = held.offer.and_then(|(id, _)| self.waiters.get_mut(&id)) {
                waiter.state = WaiterState::Active;
            }
        }
        self.pace.now(now);
        self.kick(now, effects);
    }

    /// The end of a grant's `max_hold`: the signal fires and the hold is not renewed any more. The key stays taken
    /// until the guard goes or the lease is over.
    pub(crate) fn end_max_hold(&mut self, grant: &Arc<Grant>, now: Tick, effects: &mut Effects) {
        if self.live_of(grant).is_some() && now >= grant.max_hold_end {
            grant.hold.set_renewing(false);
            effects.rewatch = Some(Arc::clone(&grant.hold));
            effects.signal = Some(Arc::clone(grant));
        }
    }

    /// Takes back an offer that nobody claimed in time.
    pub(crate) fn sweep(&mut self, now: Tick, effects: &mut Effects) {
        self.sweeping = false;
        let Phase::Held(Held { offer: Some((id, since)), .. }) = &self.phase else { return };
        let (id, due) = (*id, *since + OFFER_TIME);
        if now < due {
            self.sweeping = true;
            effects.sweep = Some(due);
            return;
        }
        if let Some(waiter) = self.waiters.get_mut(&id) {
            waiter.state = WaiterState::Stale;
        }
        self.offer_next(Some(id), now, effects);
    }

    /// The driver asks what to do. It must carry the step out and report by one of the `on_…` methods.
    pub(crate) fn next_step(&mut self, now: Tick) -> Step {
        self.parked = false;
        match std::mem::replace(&mut self.phase, Phase::Calling) {
            Phase::Ending { hold, report } => {
                let then = self.takeover(now);
                Step::Release { hold, report, then }
            }
            Phase::Lingering { hold, until, told: false } => {
                let rest = until.since(now);
                self.phase = Phase::Lingering { hold: Arc::clone(&hold), until, told: true };
                Step::Linger { hold, rest }
            }
            Phase::Lingering { hold, until, told: true } => {
                if self.shut_down {
                    // The store ends the hold by itself; nobody here waits for it any more.
                    self.phase = Phase::Free;
                    self.driver = false;
                    Step::Exit
                } else if now < until {
                    self.parked = true;
                    self.phase = Phase::Lingering { hold, until, told: true };
                    Step::Park { until }
                } else {
                    let then = self.takeover(now);
                    Step::Release { hold, report: None, then }
                }
            }
            held @ Phase::Held(_) => {
                self.phase = held;
                self.driver = false;
                Step::Exit
            }
            Phase::Free | Phase::Calling => {
                let Some((_, waiter)) = self.first_active() else {
                    self.phase = Phase::Free;
                    self.driver = false;
                    return Step::Exit;
                };
                let until = self.pace.not_before();
                if now < until {
                    self.phase = Phase::Free;
                    self.parked = true;
                    return Step::Park { until };
                }
                Step::Acquire { lease: waiter.wish.lease, tokens: self.wanted_tokens() }
            }
        }
    }

    /// The driver heard a message about the key; `true` if it should look for the next step at once.
    pub(crate) fn on_message(&mut self, now: Tick) -> bool {
        matches!(self.phase, Phase::Free) && self.pace.message(now)
    }

    /// The store granted the key.
    pub(crate) fn on_granted(
        &mut self,
        hold: Arc<Hold>,
        tokens: TokenRange,
        server_time: ServerTime,
        window: Duration,
        now: Tick,
        effects: &mut Effects,
    ) {
        self.answers += 1;
        self.pace.granted(now);
        self.counter_ahead = tokens.last > server_time.as_micros().saturating_add(COUNTER_AHEAD);
        let lease = hold.lease;
        let window_end = now + window;
        self.phase = Phase::Held(Held { hold, tokens, used: 0, window_end, offer: None, live: None });
        let fits = self.first_active().is_some_and(|(_, waiter)| waiter.wish.lease == lease);
        if fits && !self.shut_down {
            self.offer_next(None, now, effects);
        } else {
            self.begin_release(None, now, effects);
        }
        self.wake_late(effects);
    }

    /// Somebody else has the key.
    pub(crate) fn on_busy(
        &mut self,
        now: Tick,
        remaining: Duration,
        listening: bool,
        longest: Duration,
        random: f64,
        effects: &mut Effects,
    ) {
        self.answers += 1;
        self.phase = Phase::Free;
        self.windows_without_release = 0;
        self.pace.busy(now, remaining, listening, longest, random);
        let key = self.key.clone();
        self.fail_where(|waiter| waiter.wish.patience == Patience::Try, &AcquireError::Busy { key }, effects);
        self.wake_late(effects);
    }

    /// The attempt failed.
    pub(crate) fn on_error(
        &mut self,
        error: &Arc<StoreError>,
        now: Tick,
        random: f64,
        effects: &mut Effects,
    ) {
        self.answers += 1;
        self.phase = Phase::Free;
        self.note_error(error, now, random, effects);
        self.wake_late(effects);
    }

    /// A store error that waiters should know about.
    pub(crate) fn note_error(
        &mut self,
        error: &Arc<StoreError>,
        now: Tick,
        random: f64,
        effects: &mut Effects,
    ) {
        self.pace.failed(now, Arc::clone(error), random);
        let fatal = !error.is_transient();
        let told = AcquireError::from_store(self.key.clone(), Arc::clone(error));
        self.fail_where(|waiter| fatal || waiter.wish.patience == Patience::Try, &told, effects);
    }

    /// The release was answered, or given up: the key is not ours any more.
    pub(crate) fn on_released(&mut self, now: Tick, rivals: Option<Rivals>) {
        self.phase = Phase::Free;
        self.windows_without_release = 0;
        let waits = self.first_active().is_some_and(|(_, waiter)| waiter.wish.patience == Patience::Wait);
        match rivals {
            Some(rivals) if waits && rivals.listeners > 0 && !self.pace.listeners_are_phantoms(now) => {
                self.pace.step_back(now, rivals.round_trip, rivals.echo);
            }
            _ => self.pace.now(now),
        }
    }

    /// The release took the key again in the same step.
    pub(crate) fn on_taken_over(&mut self) {
        self.windows_without_release += 1;
    }

    /// The driver is gone without having said so: its runtime ended, or the store panicked.
    pub(crate) fn on_driver_gone(&mut self, effects: &mut Effects) {
        self.driver = false;
        self.parked = false;
        if matches!(self.phase, Phase::Calling) {
            self.phase = Phase::Free;
        }
        self.shut_down(effects);
    }

    /// No grants from now on; everybody who waits is told.
    pub(crate) fn shut_down(&mut self, effects: &mut Effects) {
        self.shut_down = true;
        let error = AcquireError::ShutDown { key: self.key.clone() };
        if let Phase::Held(Held { offer: offer @ Some(_), .. }) = &mut self.phase {
            *offer = None;
            if let Phase::Held(Held { live: None, .. }) = &self.phase {
                self.begin_release(None, self.clock.now(), effects);
            }
        }
        self.fail_where(|_| true, &error, effects);
        if self.parked {
            effects.notify = true;
        }
    }

    // ---- inside ----------------------------------------------------------------------------------------------------

    fn is_busy_for_a_try(&self) -> bool {
        let others = self.waiters.values().any(|waiter| !matches!(waiter.state, WaiterState::Failed(_)));
        others || matches!(self.phase, Phase::Held(_) | Phase::Lingering { .. })
    }

    fn first_active(&self) -> Option<(u64, &Waiter)> {
        self.waiters
            .iter()
            .find(|(_, waiter)| matches!(waiter.state, WaiterState::Active))
            .map(|(&id, waiter)| (id, waiter))
    }

    fn live_of(&mut self, grant: &Arc<Grant>) -> Option<&mut Live> {
        match &mut self.phase {
            Phase::Held(held) => held.live.as_mut().filter(|live| Arc::ptr_eq(&live.grant, grant)),
            _ => None,
        }
    }

    fn live_tasks(&self) -> impl Iterator<Item = Option<tokio::task::Id>> + '_ {
        let live = match &self.phase {
            Phase::Held(held) => held.live.as_ref(),
            _ => None,
        };
        live.into_iter().flat_map(|live| live.entries.iter().map(|entry| entry.task))
    }

    fn end_live(&mut self) {
        if let Phase::Held(held) = &mut self.phase {
            held.live = None;
        }
    }

    fn end_hold(&mut self, phase: Phase) {
        if let Phase::Held(held) = std::mem::replace(&mut self.phase, phase) {
            self.used_tokens = held.used.max(1);
        }
    }

    /// The innermost live entry is an ancestor of the asker: one more entry, no store call.
    fn reenter(&mut self, wish: &Wish, now: Tick, effects: &mut Effects) -> Option<Entry> {
        if wish.scope.is_empty() || self.shut_down {
            return None;
        }
        let id = self.new_id();
        let Phase::Held(Held { live: Some(live), .. }) = &mut self.phase else { return None };
        let innermost = live.entries.last()?;
        let grant = &live.grant;
        if !wish.scope.contains(grant, innermost.id) || !grant.hold.is_valid(now) || !grant.is_live() {
            return None;
        }
        let renewed = wish.lease.is_renewed() || grant.hold.is_renewing();
        if renewed && !grant.hold.is_renewing() {
            grant.hold.renew_to(wish.lease.duration());
            grant.hold.set_renewing(true);
            effects.rewatch = Some(Arc::clone(&grant.hold));
        }
        live.entries.push(LiveEntry { id, renewed: wish.lease.is_renewed(), task: wish.task });
        live.min_hold_end = live.min_hold_end.max(now + wish.min_hold);
        Some(Entry { grant: Arc::clone(grant), id, reentrant: true, handed_on: false })
    }

    fn wake_reentrants(&self, effects: &mut Effects) {
        let Phase::Held(Held { live: Some(live), .. }) = &self.phase else { return };
        let Some(innermost) = live.entries.last() else { return };
        for waiter in self.waiters.values() {
            if waiter.wish.scope.contains(&live.grant, innermost.id) {
                effects.wake_more.extend(waiter.waker.clone());
            }
        }
    }

    /// The waiter with the offer takes it.
    fn claim(&mut self, id: u64, now: Tick, effects: &mut Effects) -> Option<Entry> {
        let entry_id = self.new_id();
        let (clock, valid) = match &self.phase {
            Phase::Held(held) if matches!(held.offer, Some((offered, _)) if offered == id) => {
                (self.clock, held.hold.is_valid(now))
            }
            _ => {
                if let Some(waiter) = self.waiters.get_mut(&id) {
                    waiter.state = WaiterState::Active;
                }
                self.kick(now, effects);
                return None;
            }
        };
        if !valid {
            if let Some(hold) = self.hold().cloned() {
                self.lose(&hold, now, effects);
            }
            return None;
        }
        let waiter = self.waiters.remove(&id)?;
        let Phase::Held(held) = &mut self.phase else { return None };
        held.offer = None;
        let token = held.tokens.take()?;
        held.used += 1;
        let grant = Arc::new(Grant::new(Arc::clone(&held.hold), token, clock, now, waiter.wish.max_hold));
        held.live = Some(Live {
            grant: Arc::clone(&grant),
            entries: vec![LiveEntry {
                id: entry_id,
                renewed: waiter.wish.lease.is_renewed(),
                task: waiter.wish.task,
            }],
            min_hold_end: now + waiter.wish.min_hold,
        });
        Some(Entry { grant, id: entry_id, reentrant: false, handed_on: held.used > 1 })
    }

    /// Whether the released hold may go to the head of the local queue.
    fn can_hand_on(&self, now: Tick) -> bool {
        let Phase::Held(held) = &self.phase else { return false };
        let Some((_, head)) = self.first_active() else { return false };
        let lease = held.hold.lease;
        !self.shut_down
            && lease.is_renewed()
            && head.wish.lease == lease
            && head.wish.min_hold.is_zero()
            && !held.hold.is_doubtful()
            && held.hold.is_renewing()
            && held.hold.deadline().since(now) >= lease.duration() / 2
            && now < held.window_end
            && held.tokens.first <= held.tokens.last
    }

    /// Offers the hold to the first active waiter, or the first one behind `after`; releases it if there is none.
    fn offer_next(&mut self, after: Option<u64>, now: Tick, effects: &mut Effects) {
        if let Phase::Held(held) = &mut self.phase {
            held.offer = None;
        }
        let active = |waiter: &Waiter| matches!(waiter.state, WaiterState::Active);
        let behind = after.and_then(|after| {
            self.waiters.range(after + 1..).find(|(_, waiter)| active(waiter)).map(|(&id, _)| id)
        });
        let next = behind.or_else(|| self.first_active().map(|(id, _)| id));
        let fits = next.and_then(|id| self.waiters.get(&id)).is_some_and(|waiter| {
            self.hold().is_some_and(|hold| hold.lease == waiter.wish.lease && hold.is_valid(now))
        });
        let (Some(id), true, Phase::Held(held)) = (next, fits, &mut self.phase) else {
            self.begin_release(None, now, effects);
            return;
        };
        held.offer = Some((id, now));
        if let Some(waiter) = self.waiters.get_mut(&id) {
            waiter.state = WaiterState::Offered;
            effects.wake = waiter.waker.clone();
        }
        if !self.sweeping {
            self.sweeping = true;
            effects.sweep = Some(now + OFFER_TIME);
        }
    }

    fn begin_release(&mut self, report: Option<Report>, now: Tick, effects: &mut Effects) {
        let Phase::Held(held) = &self.phase else { return };
        let hold = Arc::clone(&held.hold);
        hold.set_renewing(false);
        effects.unwatch = Some(Arc::clone(&hold));
        self.end_hold(Phase::Ending { hold, report });
        self.kick(now, effects);
    }

    /// What may be acquired together with the release that is about to be sent.
    fn takeover(&self, now: Tick) -> Option<Again> {
        let (_, head) = self.first_active()?;
        if self.shut_down || self.windows_without_release >= WINDOWS_WITHOUT_RELEASE {
            return None;
        }
        let phantoms = self.pace.listeners_are_phantoms(now);
        let listeners = if phantoms { ListenerPolicy::Ignore } else { ListenerPolicy::Respect };
        Some(Again { lease: head.wish.lease, tokens: self.wanted_tokens(), listeners })
    }

    fn wanted_tokens(&self) -> u32 {
        if self.waiters.len() <= 1 || self.counter_ahead {
            1
        } else {
            self.used_tokens.saturating_mul(2).clamp(1, MAX_TOKENS)
        }
    }

    fn fail_where(&mut self, which: impl Fn(&Waiter) -> bool, error: &AcquireError, effects: &mut Effects) {
        for waiter in self.waiters.values_mut() {
            if !matches!(waiter.state, WaiterState::Failed(_)) && which(waiter) {
                waiter.state = WaiterState::Failed(error.clone());
                effects.wake_more.extend(waiter.waker.take());
            }
        }
    }

    /// Wakes waiters whose wait was shorter than the round trip that has just been answered.
    fn wake_late(&self, effects: &mut Effects) {
        for waiter in self.waiters.values() {
            if waiter.late && matches!(waiter.state, WaiterState::Active) {
                effects.wake_more.extend(waiter.waker.clone());
            }
        }
    }

    /// Sees to it that the driver runs if there is something to do for it.
    fn kick(&mut self, now: Tick, effects: &mut Effects) {
        let needed = match &self.phase {
            Phase::Ending { .. } | Phase::Lingering { .. } => true,
            Phase::Free => self.first_active().is_some(),
            Phase::Calling | Phase::Held(_) => false,
        };
        if !needed {
            return;
        }
        if self.driver {
            effects.notify |= self.parked;
        } else {
            if matches!(self.phase, Phase::Free) {
                self.pace.now(now);
            }
            self.driver = true;
            effects.spawn = true;
        }
    }
}

/// What a release told about rivals.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rivals {
    pub(crate) listeners: u64,
    pub(crate) echo: bool,
    pub(crate) round_trip: Duration,
}
