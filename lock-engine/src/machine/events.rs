//! The events of a machine: inputs, time, grants, refusals, errors, loss, unclaimed offers, the
//! end.

use std::sync::Arc;
use std::time::Duration;

use lock_core::Replication;
use lock_core::internal::clock::Tick;
use lock_core::store::{Busy, Moment, Renewed, StoreError, StoreErrorKind, TokenRange, Tokens};

use super::{
    Action, Ask, Asked, COUNTER_AHEAD, Driver, Due, Held, Input, Live, Machine, Phase, Seen, Waiter,
    WaiterState,
};
use crate::failure::{Failure, Loss};
use crate::hold::Hold;

/// The cap of a store that has no room for another waiter.
const ROOM: &str = "the store's room for one key";

impl Machine {
    /// Handles an input.
    pub(crate) fn handle(&mut self, input: Input<'_>, now: Tick) {
        match input {
            Input::Admit(id) => self.admit(id, now),
            Input::Leave(id) => self.leave(id, now),
            Input::Acquired { answer, sent, seen } => self.acquired(answer, sent, seen, now),
            Input::Undone { seen } => self.undone(seen, now),
            Input::Released { answer, seen } => self.released(answer, seen, now),
            Input::ReleaseFailed { error, seen } => self.note_error(error, seen, now),
            Input::Heard { heard, seen } => self.heard_of(&heard, seen, now),
            Input::KeepPlace(at) => {
                if let Some(queued) = self.queued.as_mut().filter(|queued| queued.is_noted) {
                    queued.keep_at = at;
                }
            }
            Input::Renewed { hold, kept, sent, lease } => self.kept(hold, kept, sent, lease, now),
            Input::NotKept { hold } => {
                if let Some(held) = self.held_as(hold) {
                    held.renewal_failed(now);
                }
            }
            Input::Lost { hold, why } => self.lose(hold, why, now),
            Input::Freed => self.verify(),
            Input::DriverGone => self.on_driver_gone(),
            Input::Fail(failure) => self.fail_all(failure, now),
            Input::ShutDown => self.shut_down(now),
        }
    }

    /// Handles the loss of a hold: its deadline is over, the store says that it is gone, or it was
    /// freed by force.
    pub(super) fn lose(&mut self, hold: &Arc<Hold>, why: Loss, now: Tick) {
        if !hold.mark_lost(why) {
            return;
        }
        let min_hold_end = match &self.phase {
            Phase::Held(held) if Arc::ptr_eq(&held.hold, hold) => {
                held.live.as_ref().map_or(now, |live| live.min_hold_end)
            }
            Phase::Ending { hold: other, min_hold_end, .. }
                if Arc::ptr_eq(other, hold) && now < *min_hold_end =>
            {
                *min_hold_end
            }
            // The driver is about to send the release anyway, and will hear that nothing was held.
            _ => return,
        };
        self.act(Action::Abandon(Arc::clone(hold), min_hold_end.since(now)));
        if let Some(held) = self.end_hold(Phase::Free) {
            self.actions.extend(held.live.map(|mut live| live.tell_loss()));
            self.end_offer(held.offer, &WaiterState::Active);
        }
        self.retry.reset(now);
        self.kick(now);
    }

    /// Handles the answer to a renewal to `lease`, sent at `sent`.
    fn kept(&mut self, hold: &Arc<Hold>, kept: Renewed, sent: Tick, lease: Duration, now: Tick) {
        match kept {
            Renewed::Held if hold.renewed(sent, now, lease) => {
                let ticks = self.rules.ticks;
                // A shorter renewal was only a check whether the hold exists.
                let is_renewal = |held: &&mut Held| held.renews.is_none_or(|renews| lease >= renews);
                if let Some(held) = self.held_as(hold).filter(is_renewal) {
                    held.failures = 0;
                    held.renew_to(held.renews, ticks, now);
                }
            }
            Renewed::Held => self.lose(hold, Loss::LeaseOver, now),
            Renewed::Gone | Renewed::Waiting(_) | Renewed::Unknown => self.lose(hold, Loss::TakenAway, now),
        }
    }

    /// Returns the current hold, if it is this one.
    fn held_as(&mut self, hold: &Arc<Hold>) -> Option<&mut Held> {
        match &mut self.phase {
            Phase::Held(held) if Arc::ptr_eq(&held.hold, hold) => Some(held),
            _ => None,
        }
    }

    /// Finds out whether the current hold was granted after the key was freed by force.
    fn verify(&mut self) {
        match self.held().cloned() {
            Some(hold) => self.verify_hold(hold),
            None => self.freed_by_force = matches!(self.phase, Phase::Asking(_) | Phase::Releasing(_)),
        }
    }

    /// Extends the hold to its current end, which shows whether the store still has it.
    fn verify_hold(&mut self, hold: Arc<Hold>) {
        let deadline = hold.deadline();
        self.act(Action::Extend(hold, deadline));
    }

    /// Returns when the next event is due; [`Tick::MAX`] if none is.
    pub(crate) fn poll_timeout(&self) -> Tick {
        let place = self.queued.as_ref().map_or(Tick::MAX, |queued| queued.keep_at).min(self.turn_end);
        let Phase::Held(held) = &self.phase else { return place };
        let offer = held.offer.as_ref().map_or(Tick::MAX, |offer| offer.until);
        let live = held.live.as_ref().filter(|live| !live.all_told);
        let max_hold = live.map_or(Tick::MAX, |live| live.max_hold_end);
        place.min(held.renewal).min(offer).min(max_hold).min(held.drain_end)
    }

    /// Handles everything that is due.
    pub(crate) fn on_time(&mut self, now: Tick) -> Due {
        if let Some(hold) = self.held().filter(|hold| !hold.is_valid(now)).cloned() {
            self.lose(&hold, Loss::LeaseOver, now);
        }
        self.end_max_hold(now);
        if let Phase::Held(held) = &mut self.phase
            && now >= held.drain_end
        {
            held.drain_end = Tick::MAX;
            if self.first_active().is_some() {
                self.seal();
            }
        }
        self.expire_offer(now);
        if now >= self.turn_end {
            self.turn_end = Tick::MAX;
            for waiter in self.waiters.values_mut().filter(|waiter| waiter.is_active()) {
                waiter.state = WaiterState::Unresponsive;
            }
            self.notify();
        }
        let mut due = Due::default();
        if let Some(queued) = self.queued.as_mut().filter(|queued| now >= queued.keep_at) {
            queued.keep_at = Tick::MAX;
            due.keep_place = true;
        }
        if let Phase::Held(held) = &mut self.phase
            && now >= held.renewal
        {
            // Until the answer comes, only the deadline matters.
            held.renewal = held.hold.deadline();
            due.renew = held.renews.map(|_| Arc::clone(&held.hold));
        }
        due
    }

    /// Ends a `max_hold`: the signals fire, and the hold is not renewed any more. The key stays
    /// taken until the guards are dropped or the lease is over.
    fn end_max_hold(&mut self, now: Tick) {
        let ticks = self.rules.ticks;
        let Phase::Held(held) = &mut self.phase else { return };
        let ends = |live: &&mut Live| !live.all_told && now >= live.max_hold_end;
        if let Some(live) = held.live.as_mut().filter(ends) {
            self.actions.push(live.tell_loss());
            held.renew_to(None, ticks, now);
        }
    }

    /// Takes back an offer that was not claimed in time.
    fn expire_offer(&mut self, now: Tick) {
        let Phase::Held(Held { offer, .. }) = &mut self.phase else { return };
        let Some(unclaimed) = offer.take_if(|offer| now >= offer.until) else { return };
        let last = unclaimed.last;
        self.end_offer(Some(unclaimed), &WaiterState::Unresponsive);
        self.unclaimed = self.unclaimed.saturating_add(1);
        self.pass_on(last, now);
    }

    /// Records that the store has answered an acquire, and wakes the waiters that waited only for
    /// that.
    fn heard(&mut self) {
        self.answered = self.asked_for;
        self.actions.extend(std::mem::take(&mut self.late).into_iter().map(Action::Wake));
    }

    /// Handles a grant of the store.
    pub(super) fn on_granted(
        &mut self,
        hold: Hold,
        tokens: TokenRange,
        moment: Moment,
        seen: Seen,
        now: Tick,
    ) {
        let hold = Arc::new(hold);
        self.heard();
        self.busy_until = None;
        self.retry.on_granted(now);
        let ahead = self.rules.abilities.tokens == Tokens::Clock
            && tokens.last > moment.get().saturating_add(COUNTER_AHEAD);
        self.ahead_since = ahead.then_some(now);
        let window_end = now + self.window(hold.lease, seen.round_trip);
        if std::mem::take(&mut self.freed_by_force) {
            self.verify_hold(Arc::clone(&hold));
        }
        // A fresh hold suits every waiter that asks for this lease.
        let head = if hold.replication.is_none() {
            self.first_without_policy()
        } else {
            self.retry.confirmed();
            self.first_active()
        };
        let head = head.filter(|(_, waiter)| waiter.ask.fits(&hold)).map(|(id, _)| id);
        self.unconfirmed = false;
        let lease = hold.lease;
        let mut held = Held {
            hold,
            renews: None,
            failures: 0,
            renewal: Tick::MAX,
            tokens,
            used: 0,
            window_end,
            drain_end: Tick::MAX,
            offer: None,
            live: None,
        };
        held.renew_to(lease.is_renewed.then_some(lease.duration), self.rules.ticks, now);
        self.phase = Phase::Held(held);
        match head {
            Some(head) if !self.shut_down => self.offer(head, now),
            _ => self.begin_release(now, now),
        }
    }

    /// Handles a refusal: another owner has the key.
    pub(super) fn on_busy(&mut self, busy: &Busy, seen: Seen, now: Tick) {
        let remaining = busy.remaining;
        self.heard();
        self.windows_without_release = 0;
        self.busy_until = remaining.map(|remaining| now + remaining);
        self.retry.ahead(busy.ahead, self.rules.fallback);
        self.retry.on_busy(now, remaining, seen.listening, seen.fallback, seen.random);
        self.retry.rivals(busy.listeners, seen.random);
        if self.tries > 0 {
            // A try that came during the call gets its own attempt.
            let asked_for = self.asked_for;
            let answered = |id, waiter: &Waiter| waiter.ask.terms.is_try() && id <= asked_for;
            self.fail_where(answered, self.busy(now));
        }
        if self.next_up(now).is_some_and(|(_, waiter)| waiter.ask.terms.is_try()) {
            self.retry.reset(now);
        }
    }

    /// Handles the failure of an attempt with this policy.
    pub(super) fn on_error(&mut self, error: &StoreError, asked: Replication, seen: Seen, now: Tick) {
        self.heard();
        if asked.is_none() {
            self.note_error(error, seen, now);
        } else {
            // The error does not concern callers without a policy, whatever it is: they find out by
            // themselves.
            self.retry.set_back(now, error.clone(), seen.random);
            self.tell(error, |ask| !ask.terms.replication.is_none());
            self.unconfirmed = true;
        }
    }

    /// Handles a store error that waiters should know about.
    fn note_error(&mut self, error: &StoreError, seen: Seen, now: Tick) {
        self.retry.on_failure(now, error.clone(), seen.random);
        self.tell(error, |_| true);
    }

    /// Fails the waiters that the error concerns and whose wait it ends.
    fn tell(&mut self, error: &StoreError, concerned: impl Fn(&Ask) -> bool) {
        let fatal = !error.is_transient();
        if !fatal && self.tries == 0 {
            return;
        }
        let told = match error.kind() {
            StoreErrorKind::TooManyWaiters => {
                Failure::TooManyWaiters { waiting: self.waiters.len(), cap: ROOM, remaining: None }
            }
            _ => Failure::Store(error.clone()),
        };
        let ends = |_, waiter: &Waiter| concerned(&waiter.ask) && (fatal || waiter.ask.terms.is_try());
        self.fail_where(ends, told);
    }

    /// Handles the unexpected end of the driver: its runtime ended, or it panicked. Its unfinished
    /// work is left to the lease.
    fn on_driver_gone(&mut self) {
        self.driver = Driver::None;
        // A release that had begun reports its end itself.
        if let Phase::Ending { told: false, .. } = self.phase {
            self.act(Action::CountLeft);
        }
        if !matches!(self.phase, Phase::Held(_)) {
            let gone = std::mem::replace(&mut self.phase, Phase::Free);
            if let Phase::Asking(Asked { request, .. })
            | Phase::Releasing(Some(Asked { request, .. }))
            | Phase::Undoing(request, _) = gone
            {
                self.stop_queueing();
                self.act(Action::Withdraw(request));
            }
        }
        self.leave_queue();
    }

    /// Fails all waiters, and takes back their offers.
    fn fail_all(&mut self, failure: Failure, now: Tick) {
        self.fail_where(|_, _| true, failure);
        if let Phase::Held(held) = &mut self.phase
            && held.offer.take().is_some()
            && held.live.is_none()
        {
            self.begin_release(now, now);
        }
    }

    /// Stops granting, and fails all waiters.
    fn shut_down(&mut self, now: Tick) {
        self.shut_down = true;
        self.fail_all(Failure::ShutDown, now);
        self.notify();
    }
}
