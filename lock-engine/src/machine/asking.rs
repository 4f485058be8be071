//! The requests to the store, under which owner they are made, and the handling of their answers.

use std::sync::Arc;
use std::time::Duration;

use lock_core::internal::clock::Tick;
use lock_core::store::kit::no_answer;
use lock_core::store::{
    Abilities, AcquireRequest, Acquired, DIRECT_LEASE, FAR_LIFE, Granted, LONGEST_WAIT, ListenerPolicy,
    Moment, Notice, Notices, Released, Renewed, Rivals, Standing, StoreError, StoreErrorKind, Takeover,
    TokenRange,
};
use lock_core::{FencingToken, OwnerId};

use super::{
    Action, Asked, Driver, Heard, Machine, Phase, PlaceKept, Queued, Seen, Step, WINDOWS_WITHOUT_RELEASE,
};
use crate::hold::Hold;
use crate::retry::POLL_LONGEST;
use crate::spec::LaneKind;
use crate::terms::{Lease, Terms};

/// Maximum window of local hand-offs, whatever the settings say.
const LONGEST_WINDOW: Duration = Duration::from_millis(250);

/// Delay before places are kept again after a failed call,
const KEEP_AGAIN: Duration = Duration::from_millis(100);
/// and for places far from the head of a queue.
const FAR_AGAIN: Duration = Duration::from_secs(1);
/// Time for the call that keeps a place, before the waiter asks by itself.
const KEEP_TIME: Duration = Duration::from_secs(1);
/// Added to times that the store has rounded down.
const MARGIN: Duration = Duration::from_millis(1);

impl Machine {
    /// Returns the driver's next step. `owner` makes an owner that was not used before.
    pub(crate) fn next_step(&mut self, now: Tick, owner: impl FnOnce() -> OwnerId) -> Step {
        self.driver = Driver::Running;
        match std::mem::replace(&mut self.phase, Phase::Free) {
            Phase::Ending { hold, min_hold_end, .. } if now >= min_hold_end => {
                let asked = self.takeover(owner, now);
                let listeners = match self.retry.listeners_are_phantoms(now) {
                    true => ListenerPolicy::Ignore,
                    false => ListenerPolicy::Respect,
                };
                let then =
                    asked.as_ref().map(|asked| Takeover { request: Arc::clone(&asked.request), listeners });
                self.phase = Phase::Releasing(asked);
                Step::Release { hold, then }
            }
            // The store ends the hold by itself, and no caller waits for it any more.
            Phase::Ending { told: true, .. } if self.shut_down => self.exit(),
            Phase::Ending { hold, min_hold_end, told } => {
                self.phase = Phase::Ending { hold: Arc::clone(&hold), min_hold_end, told: true };
                if told {
                    self.park(min_hold_end)
                } else {
                    Step::Linger { hold, rest: min_hold_end.since(now) }
                }
            }
            Phase::Undoing(request, error) => {
                self.phase = Phase::Undoing(Arc::clone(&request), error);
                Step::Undo(request)
            }
            Phase::Held(held) => {
                let open = held.offer.as_ref().map_or(0, |offer| offer.open);
                self.phase = Phase::Held(held);
                // Goes on listening for the waiters that have no offer.
                if self.waiters.len() > open && !self.shut_down { self.park(Tick::MAX) } else { self.exit() }
            }
            Phase::Free | Phase::Asking(_) | Phase::Releasing(_) => {
                let Some(terms) = self.next_terms(now) else { return self.exit() };
                let until = self.retry.not_before_with(terms.replication);
                if now < until {
                    return self.park(until);
                }
                self.asked_for = self.last_number;
                let request = self.next_request(&terms, owner, now);
                self.phase = Phase::Asking(Asked { request: Arc::clone(&request), lease: terms.lease });
                Step::Acquire(request)
            }
        }
    }

    fn exit(&mut self) -> Step {
        self.leave_queue();
        self.driver = Driver::None;
        Step::Exit
    }

    fn park(&mut self, until: Tick) -> Step {
        self.driver = Driver::Parked;
        Step::Park { until }
    }

    fn request(&self, lease: Lease, tokens: u32, owner: impl FnOnce() -> OwnerId) -> AcquireRequest {
        let items = self.spec.items(&self.key, owner());
        let request = AcquireRequest::new(items, lease.duration, self.rules.call_timeout);
        request.tokens(tokens).retention(lease.retention)
    }

    /// Returns the request that waits at the store, or a new one.
    fn next_request(
        &mut self,
        terms: &Terms,
        owner: impl FnOnce() -> OwnerId,
        now: Tick,
    ) -> Arc<AcquireRequest> {
        let &Terms { lease, replication, .. } = terms;
        let queues =
            self.spec.is_queued(&self.rules.abilities) || self.spec.has_an_intent(&self.rules.abilities);
        let waits = !terms.is_try() && queues;
        let same = |queued: &&mut Queued| waits && suits(&queued.request, terms);
        if let Some(queued) = self.queued.as_mut().filter(same) {
            queued.asking = true;
            return Arc::clone(&queued.request);
        }
        self.leave_queue();
        let mut request = self.request(lease, self.wanted_tokens(now), owner).replicated(replication);
        // The replicas get their time after the grant.
        request.timeout += replication.timeout();
        if !waits {
            return Arc::new(request);
        }
        // The place of a mutex is that of all its callers.
        let shared = self.lane == LaneKind::Mutex;
        request = request.queued(if shared { LONGEST_WAIT } else { terms.wait.limit() });
        request.direct = may_be_direct(terms);
        let request = Arc::new(request);
        self.queued = Some(Queued::new(&request));
        request
    }

    /// Returns the request to acquire the key together with the release that is about to be sent.
    fn takeover(&mut self, owner: impl FnOnce() -> OwnerId, now: Tick) -> Option<Asked> {
        let terms = self.first_active()?.1.ask.terms;
        let may = self.lane == LaneKind::Mutex
            && self.rules.abilities.takeovers
            && terms.replication.is_none()
            && !self.shut_down
            && self.windows_without_release < WINDOWS_WITHOUT_RELEASE;
        may.then(|| {
            let request = Arc::new(self.request(terms.lease, self.wanted_tokens(now), owner));
            Asked { request, lease: terms.lease }
        })
    }

    fn wanted_tokens(&self, now: Tick) -> u32 {
        if self.waiters.len() <= 1 || !self.lane.hands_off() {
            return 1;
        }
        // The counter must not run away from the clock, which counts microseconds.
        let most = self.ahead_since.map_or(u128::MAX, |since| now.since(since).as_micros());
        let most = u32::try_from(most).unwrap_or(u32::MAX).min(self.rules.abilities.most_tokens);
        self.used_tokens.saturating_mul(2).min(most).max(1)
    }

    // ---- places at the store --------------------------------------------------------------------

    /// Forgets that the request waits at the store, without withdrawing it.
    pub(super) fn stop_queueing(&mut self) -> Option<Queued> {
        let queued = self.queued.take()?;
        if queued.is_noted {
            self.act(Action::LeaveQueue);
        }
        Some(queued)
    }

    /// Withdraws the request that waits at the store, because no caller wants it any more.
    pub(super) fn leave_queue(&mut self) {
        if let Some(queued) = self.stop_queueing() {
            self.act(Action::Withdraw(queued.request));
        }
    }

    /// Records that the store has queued the request, which was sent at `since`.
    fn note_place(&mut self, since: Tick, found: Moment, random: f64, now: Tick) {
        let keep_at = self.place_due(Standing::Waiter, random, now);
        if let Some(queued) = &mut self.queued {
            *queued = Queued { is_noted: true, since, found, asking: false, keep_at, ..queued.clone() };
            let request = Arc::clone(&queued.request);
            self.act(Action::JoinQueue(request));
        }
    }

    /// Leaves the next look to the call that keeps the place, which is one for all waiters of the
    /// process, if it says the same as another attempt.
    fn look_by_keeping(&mut self, remaining: Option<Duration>, fallback: Duration, now: Tick) {
        let polled = self.polls_by_keeping(now);
        let waits_for_one = |queued: &&mut Queued| queued.request.items.len() == 1;
        if self.rules.abilities.queues_mutexes
            && self.spec.is_queued(&self.rules.abilities)
            && let Some(queued) = self.queued.as_mut().filter(waits_for_one)
        {
            // Often at first, by itself.
            let polled = polled.filter(|polled| *polled <= self.retry.not_before());
            queued.keep_at = polled.map_or(queued.keep_at, |polled| queued.keep_at.min(polled));
            let kept = queued.keep_at.since(now);
            let pause = if polled.is_some() { kept + KEEP_TIME } else { look_after(fallback, kept) };
            // The end of a lease causes no message.
            let pause = remaining.map_or(pause, |left| pause.min(left.saturating_add(MARGIN)));
            self.retry.seen(now, now + pause, polled.is_some());
        }
    }

    /// Returns when the place is kept next if that is how the lane polls: the store has no
    /// messages, and it may be the next to get the key. Where messages are only missing for a
    /// while, attempts ask for them again.
    fn polls_by_keeping(&self, now: Tick) -> Option<Tick> {
        let polls = self.rules.abilities.queues_mutexes
            && self.rules.abilities.notices == Notices::Polled
            && self.spec.is_queued(&self.rules.abilities)
            && !self.retry.hears()
            && self.retry.poll() == POLL_LONGEST
            && self.rules.fallback >= POLL_LONGEST;
        polls.then(|| self.rules.ticks.before(now + POLL_LONGEST, POLL_LONGEST / 4))
    }

    /// Returns when the place of the lane's request in the store's queues has to be kept next.
    pub(crate) fn place_due(&self, standing: Standing, random: f64, now: Tick) -> Tick {
        // A tick may be a quarter of that earlier; on average, this is half a life.
        let Abilities { waiter_life, intent_life, .. } = self.rules.abilities;
        let often = if self.spec.has_an_intent(&self.rules.abilities) {
            intent_life / 3
        } else {
            waiter_life * 9 / 16
        };
        let pause = match standing {
            // Random, because otherwise the calls of a crowd that came together would come all at
            // once.
            Standing::Far => (FAR_LIFE / 2).mul_f64(1.0 - random / 2.0),
            _ => often,
        };
        // Rounded to ticks, so that waiters share calls.
        self.rules.ticks.before(now + pause, often / 4)
    }

    /// Handles the answer to keeping the place of the lane's request. Returns whether the answer is
    /// about the current request.
    pub(crate) fn place_kept(&mut self, about: &PlaceKept<'_>, random: f64, now: Tick) -> bool {
        let &PlaceKept { each, standing, .. } = about;
        let [next, first] =
            [about.next, Standing::Waiter].map(|standing| self.place_due(standing, random, now));
        let polled = self.polls_by_keeping(now).filter(|_| each.len() == 1);
        let next = polled.map_or(next, |polled| next.min(polled));
        let Some(queued) = self.queued.as_mut().filter(|queued| queued.is_noted) else { return false };
        if !Arc::ptr_eq(&queued.request, about.request) || queued.asking {
            queued.keep_at = first;
            return false;
        }
        queued.keep_at = next;
        if each.is_empty() || each.contains(&Renewed::Unknown) {
            queued.keep_at = now + if standing == Standing::Far { FAR_AGAIN } else { KEEP_AGAIN };
            return false;
        }
        // A request for several keys is granted when the last of them is free.
        let left = |kept: &Renewed| if let Renewed::Waiting(left) = kept { *left } else { Duration::ZERO };
        let mut look = each.iter().map(left).max().unwrap_or_default().min(LONGEST_WAIT);
        if each.contains(&Renewed::Gone) || each == [Renewed::Held] {
            look = Duration::ZERO;
        } else if !each.contains(&Renewed::Held) {
            queued.since = queued.since.max(about.sent);
        }
        let far = standing == Standing::Far;
        let before = self.retry.not_before();
        if !matches!(self.phase, Phase::Free) {
            // No attempt is due in this phase.
        } else if about.is_seen
            && self.spec.is_queued(&self.rules.abilities)
            && each.len() == 1
            && look > MARGIN
        {
            // The end of a lease causes no message.
            let kept = next.since(now);
            let pause =
                if polled.is_some() { kept + KEEP_TIME } else { look_after(self.rules.fallback, kept) };
            let pause = if far { FAR_LIFE } else { pause.min(look + MARGIN) };
            self.retry.seen(now, now + pause, far || polled.is_some());
        } else {
            self.retry.bring_forward(now + look + MARGIN);
        }
        if self.retry.not_before() < before {
            self.notify();
        }
        true
    }

    // ---- answers --------------------------------------------------------------------------------

    /// Handles the answer to the request that was sent at `sent`.
    pub(super) fn acquired(
        &mut self,
        answer: Result<Acquired, StoreError>,
        sent: Tick,
        seen: Seen,
        now: Tick,
    ) {
        let Phase::Asking(asked) = std::mem::replace(&mut self.phase, Phase::Free) else { return };
        let request = &asked.request;
        match answer {
            Ok(Acquired::Granted(granted)) => self.granted(asked, &granted, sent, seen, now),
            Ok(Acquired::Busy(busy)) => {
                self.on_busy(&busy, seen, now);
                self.note_place(sent, busy.moment, seen.random, now);
                self.look_by_keeping(busy.remaining, seen.fallback, now);
            }
            Err(error) if error.kind() == StoreErrorKind::NotReplicated => {
                // Others may have the key, and so may this process under another owner: it is
                // undone before the next attempt.
                self.stop_queueing();
                self.phase = Phase::Undoing(asked.request, error);
            }
            Err(error) => {
                if error.outcome_unknown() {
                    let keeps = request.items.len() == 1 && error.kind() != StoreErrorKind::Unsettled;
                    match self.queued.as_mut().filter(|_| keeps) {
                        // It is re-sent under the same owner, to keep its place. Not with several
                        // keys or several stores: there the store itself may withdraw it later.
                        Some(queued) => queued.unanswered = true,
                        None => {
                            self.stop_queueing();
                            self.act(Action::Withdraw(Arc::clone(request)));
                        }
                    }
                }
                self.on_error(&error, request.replication, seen, now);
            }
        }
    }

    pub(super) fn undone(&mut self, seen: Seen, now: Tick) {
        if let Phase::Undoing(request, error) = std::mem::replace(&mut self.phase, Phase::Free) {
            self.on_error(&error, request.replication, seen, now);
        }
    }

    /// Handles a grant: the hold counts from before its request was sent. An answer without a valid
    /// hold is undone.
    fn granted(&mut self, asked: Asked, granted: &Granted, sent: Tick, seen: Seen, now: Tick) {
        let Asked { request, lease } = asked;
        let queued = self.stop_queueing();
        let first = granted.tokens.first().filter(|tokens| !tokens.is_empty());
        let hold = Hold::granted(&request, &granted.tokens, lease, sent).filter(|hold| hold.is_valid(now));
        let (Some(mut hold), Some(&tokens)) = (hold, first) else {
            let replication = request.replication;
            self.act(Action::Withdraw(request));
            return self.on_error(&no_answer(self.rules.call_timeout), replication, seen, now);
        };
        hold.unanswered = queued.filter(|queued| queued.unanswered).map(|_| request);
        self.on_granted(hold, tokens, granted.moment, seen, now);
    }

    /// Handles a notice that the store has granted the waiting request, at some time after it was
    /// last known to wait.
    fn granted_directly(&mut self, token: FencingToken, moment: Moment, seen: Seen, now: Tick) {
        let (phase, known) = (&self.phase, |queued: &&Queued| queued.is_noted && queued.found < moment);
        if !matches!(phase, Phase::Free) || self.queued.as_ref().filter(known).is_none() {
            // The notice comes late: the process was stopped, or the connection is slow.
            return self.retry.reset(now);
        }
        let Some(terms) = self.next_terms(now) else {
            // No caller waits any more.
            return self.leave_queue();
        };
        if !self.queued.as_ref().is_some_and(|queued| suits(&queued.request, &terms)) {
            // The request was for a caller that has left, and the next one wants another lease.
            self.leave_queue();
            return self.retry.reset(now);
        }
        let lease = terms.lease;
        let Some(Queued { request, since, unanswered, .. }) = self.stop_queueing() else { return };
        let tokens = TokenRange { first: token.get(), last: token.get() };
        let direct = self.rules.abilities.direct_lease.min(lease.duration);
        let hold = Hold::granted(&request, &[tokens], lease, since).map(|hold| hold.until(since, direct));
        let Some(mut hold) = hold.filter(|hold| hold.is_valid(now)) else {
            // The request is sent again under the same owner: the hold may still be there.
            self.queued = Some(Queued { unanswered, ..Queued::new(&request) });
            return self.retry.reset(now);
        };
        hold.unanswered = Some(request).filter(|_| unanswered);
        let shared = self.waiters.len() > 1;
        self.on_granted(hold, tokens, moment, seen, now);
        if let Phase::Held(held) = &mut self.phase
            && lease.is_renewed
            && !shared
        {
            // Most holds end before. Others in this process would want more of it.
            held.renew_later(direct, self.rules.ticks, now);
        }
        if let Some(hold) = self.held().filter(|_| !lease.is_renewed).cloned() {
            // It counts from when the request was last known to wait, and has the length of a
            // direct grant: that is less than requested.
            self.act(Action::Extend(hold, now + lease.duration));
        }
    }

    /// Handles news about the key, or about the delivery of messages.
    pub(super) fn heard_of(&mut self, heard: &Heard, seen: Seen, now: Tick) {
        match heard {
            Heard::Confirmed => self.retry.listening(now),
            Heard::Unconfirmed => self.retry.deaf(now),
            Heard::Notice(Notice::Granted { token, moment }) => {
                self.granted_directly(*token, *moment, seen, now);
            }
            Heard::Notice(_) => {
                if matches!(self.phase, Phase::Free) {
                    self.retry.on_notification(now);
                    // The store's last answer about the holder is outdated.
                    self.busy_until = None;
                }
            }
        }
    }

    /// Handles the answer to a release, or its failure: the key is not ours any more, unless it was
    /// taken again in the same step.
    pub(super) fn released(&mut self, answer: Option<(Tick, Released)>, seen: Seen, now: Tick) {
        let Phase::Releasing(then) = std::mem::replace(&mut self.phase, Phase::Free) else { return };
        if let (Some(asked), Some((sent, Released { then: Some(granted), .. }))) = (then, &answer) {
            self.windows_without_release += 1;
            return self.granted(asked, granted, *sent, seen, now);
        }
        self.busy_until = None;
        self.windows_without_release = 0;
        let waits = self.first_active().is_some_and(|(_, waiter)| !waiter.ask.terms.is_try());
        // In a queue of the store, the next request goes to the end in any case.
        let may_be_first = waits && !self.spec.is_queued(&self.rules.abilities);
        match answer {
            Some((_, released))
                if may_be_first
                    && released.rivals != Rivals::None
                    && !self.retry.listeners_are_phantoms(now) =>
            {
                self.retry.step_back(now, seen.round_trip);
            }
            _ => self.retry.reset(now),
        }
    }

    /// Returns how long a hold may be handed off inside the process.
    pub(super) fn window(&self, lease: Lease, round_trip: Duration) -> Duration {
        let longest = self.rules.window.min(LONGEST_WINDOW).min(lease.duration / 10);
        (round_trip * 8).max(Duration::from_millis(5)).min(longest)
    }
}

/// Returns the pause before a waiter asks that hears nothing. Its place is kept after `kept`, which
/// is a look, too. If that is about as soon, it stands for the attempt.
pub(super) fn look_after(fallback: Duration, kept: Duration) -> Duration {
    if kept <= fallback * 5 / 4 { fallback.max(kept + KEEP_TIME) } else { fallback }
}

/// Whether a request that waits at the store is also one for a caller with these terms.
fn suits(request: &AcquireRequest, terms: &Terms) -> bool {
    let Terms { lease, replication, .. } = *terms;
    (request.lease, request.retention, request.replication, request.direct)
        == (lease.duration, lease.retention, replication, may_be_direct(terms))
}

/// Whether a release may grant the key directly. Such a grant lasts a few seconds and waits for no
/// replicas. A key with a longer `min_hold` has to stay taken even if this process dies by then.
fn may_be_direct(terms: &Terms) -> bool {
    terms.min_hold <= DIRECT_LEASE && terms.replication.is_none()
}

impl Queued {
    fn new(request: &Arc<AcquireRequest>) -> Self {
        Self {
            request: Arc::clone(request),
            is_noted: false,
            since: Tick::default(),
            found: Moment::default(),
            asking: true,
            unanswered: false,
            keep_at: Tick::MAX,
        }
    }
}
