//! What time and the store do: steps of the driver and their outcomes, loss, unclaimed offers, the end.

use std::sync::Arc;
use std::time::Duration;

use lock_core::Replication;
use lock_core::internal::clock::Tick;
use lock_core::store::{Busy, ServerTime, StoreError, TokenRange};

use super::{
    Ask, COUNTER_AHEAD, Due, Effects, Held, Live, Machine, Order, Phase, Rivals, Step, Waiter, WaiterState,
    Wish,
};
use crate::failure::{Failure, Loss};
use crate::hold::{Hold, Ticks};
use crate::settings::LONGEST;
use crate::wait::Wait;

impl Machine {
    /// The hold's deadline is over, the store says that it is gone, or somebody freed it by force.
    pub(crate) fn lose(&mut self, hold: &Arc<Hold>, why: Loss, now: Tick, effects: &mut Effects) {
        if !hold.mark_lost(why) {
            return;
        }
        hold.stop_renewing();
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
        effects.abandon = Some((Arc::clone(hold), min_hold_end.since(now)));
        if let Some(held) = self.end_hold(Phase::Free, effects) {
            effects.lost = held.live.map(|mut live| live.tell_loss());
            self.end_offer(held.offer, &WaiterState::Active);
        }
        self.pace.now(now);
        self.kick(now, effects);
    }

    /// The key was freed by force, and it is not known whether what is held now was granted after that.
    pub(crate) fn verify(&mut self, _: Tick, effects: &mut Effects) {
        match &self.phase {
            Phase::Held(held) => effects.verify = Some(Arc::clone(&held.hold)),
            Phase::Calling => self.freed_by_force = true,
            _ => {}
        }
    }

    /// When something is due, whatever it is.
    pub(crate) fn due(&self) -> Tick {
        let place = self.queued.as_ref().map_or(Tick::MAX, |queued| queued.keep_at).min(self.turn_end);
        let Phase::Held(held) = &self.phase else { return place };
        let offer = held.offer.as_ref().map_or(Tick::MAX, |offer| offer.since + self.offer_time());
        let live = held.live.as_ref().filter(|live| !live.all_told);
        let max_hold = live.map_or(Tick::MAX, Live::max_hold_end);
        place.min(held.renewal).min(offer).min(max_hold).min(held.drain_end)
    }

    /// The time for which the lane's timer was set has come.
    pub(crate) fn on_time(&mut self, timer: Tick, now: Tick, effects: &mut Effects) -> Due {
        if self.timer == timer {
            self.timer = Tick::MAX;
        }
        if let Some(hold) = self.held().filter(|hold| !hold.is_valid(now)).cloned() {
            self.lose(&hold, Loss::LeaseOver, now, effects);
        }
        self.end_max_hold(now, effects);
        if let Phase::Held(held) = &mut self.phase
            && now >= held.drain_end
        {
            held.drain_end = Tick::MAX;
            if self.first_active().is_some() {
                self.close(effects);
            }
        }
        self.sweep(now, effects);
        if now >= self.turn_end {
            self.turn_end = Tick::MAX;
            for waiter in self.waiters.values_mut().filter(|waiter| waiter.is_active()) {
                waiter.state = WaiterState::Stale;
            }
            effects.notify |= self.parked;
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
            due.renew = Some(Arc::clone(&held.hold)).filter(|hold| hold.is_renewing());
        }
        due
    }

    /// The hold was renewed, or could not be: when it is to be looked at again.
    pub(crate) fn renew_at(&mut self, hold: &Arc<Hold>, due: impl FnOnce(Ticks) -> Tick) {
        if let Phase::Held(held) = &mut self.phase
            && Arc::ptr_eq(&held.hold, hold)
        {
            held.renewal = due(self.ticks);
        }
    }

    /// The end of a `max_hold`: the signals fire, and the hold is not renewed any more. The key
    /// stays taken until the guards go or the lease is over.
    fn end_max_hold(&mut self, now: Tick, effects: &mut Effects) {
        if let Phase::Held(Held { hold, renewal, live: Some(live), .. }) = &mut self.phase
            && !live.all_told
            && now >= live.max_hold_end()
        {
            hold.stop_renewing();
            *renewal = hold.deadline();
            effects.lost = Some(live.tell_loss());
        }
    }

    /// Takes back an offer that nobody claimed in time.
    fn sweep(&mut self, now: Tick, effects: &mut Effects) {
        let offer_time = self.offer_time();
        let Phase::Held(Held { offer, .. }) = &mut self.phase else { return };
        let Some(unclaimed) = offer.take_if(|offer| now >= offer.since + offer_time) else { return };
        let last = unclaimed.last;
        self.end_offer(Some(unclaimed), &WaiterState::Stale);
        self.unclaimed = self.unclaimed.saturating_add(1);
        self.pass_on(last, now, effects);
    }

    /// The driver asks what to do. It must carry the step out and report by one of the `on_…` methods.
    pub(crate) fn next_step(&mut self, now: Tick) -> Step {
        self.parked = false;
        match std::mem::replace(&mut self.phase, Phase::Calling) {
            Phase::Ending { hold, order, min_hold_end, .. } if now >= min_hold_end => {
                let then = self.takeover(now);
                Step::Release { hold, order, then }
            }
            // The store ends the hold by itself; nobody here waits for it any more.
            Phase::Ending { told: true, .. } if self.shut_down => {
                self.phase = Phase::Free;
                self.driver = false;
                Step::Exit
            }
            Phase::Ending { hold, mut order, min_hold_end, told } => {
                let step = if told {
                    self.parked = true;
                    Step::Park { until: min_hold_end }
                } else {
                    let (hold, pending) = (Arc::clone(&hold), order.pending.take());
                    Step::Linger { hold, rest: min_hold_end.since(now), pending }
                };
                self.phase = Phase::Ending { hold, order, min_hold_end, told: true };
                step
            }
            held @ Phase::Held(_) => {
                self.phase = held;
                self.driver = false;
                Step::Exit
            }
            Phase::Free | Phase::Calling => {
                let Some((_, waiter)) = self.next_up(now) else {
                    self.phase = Phase::Free;
                    self.driver = false;
                    return Step::Exit;
                };
                let until = self.pace.not_before_with(waiter.wish.replication);
                if now < until {
                    self.phase = Phase::Free;
                    self.parked = true;
                    return Step::Park { until };
                }
                let wish = &waiter.wish;
                let ask = Ask {
                    lease: wish.lease,
                    tokens: self.wanted_tokens(),
                    wait: wish.wait,
                    min_hold: wish.min_hold,
                    replication: wish.replication,
                };
                self.asked_for = self.next_id;
                Step::Acquire(ask)
            }
        }
    }

    /// The driver heard a message about the key; `true` if it should look for the next step at once.
    pub(crate) fn on_message(&mut self, now: Tick) -> bool {
        let heard = matches!(self.phase, Phase::Free) && self.pace.message(now);
        if heard {
            // What the store said of the holder is no longer so.
            self.busy_until = None;
        }
        heard
    }

    /// The store has told what an attempt would find, and when one is worth while.
    pub(crate) fn seen(&mut self, now: Tick, until: Tick, far: bool, effects: &mut Effects) {
        if matches!(self.phase, Phase::Free) && self.pace.seen(now, until, far) {
            effects.notify |= self.parked;
        }
    }

    /// The store says when an attempt is worth while.
    pub(crate) fn look_again(&mut self, at: Tick, effects: &mut Effects) {
        if matches!(self.phase, Phase::Free) && self.pace.no_later(at) {
            effects.notify |= self.parked;
        }
    }

    /// The store has answered an acquire: those who wait for nothing else look again.
    fn heard(&mut self, effects: &mut Effects) {
        self.answered = self.asked_for;
        for id in std::mem::take(&mut self.late) {
            effects.wake_more.extend(self.waiters.get(&id).and_then(|waiter| waiter.waker.clone()));
        }
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
        self.heard(effects);
        self.busy_until = None;
        self.pace.granted(now);
        self.counter_ahead = tokens.last > server_time.as_micros().saturating_add(COUNTER_AHEAD);
        let window_end = now + window;
        if std::mem::take(&mut self.freed_by_force) {
            effects.verify = Some(Arc::clone(&hold));
        }
        // Fresh from the store, it is good for everything that asks for this lease.
        let head = if hold.replication.is_none() {
            self.first_without_policy()
        } else {
            self.pace.confirmed();
            self.first_active()
        };
        let head = head.filter(|(_, waiter)| waiter.wish.fits(&hold)).map(|(id, _)| id);
        self.unconfirmed = false;
        let renewal = hold.next_renewal(self.ticks, now);
        self.phase = Phase::Held(Held {
            hold,
            renewal,
            tokens,
            used: 0,
            window_end,
            drain_end: Tick::MAX,
            offer: None,
            live: None,
        });
        match head {
            Some(head) if !self.shut_down => self.offer(head, now, effects),
            _ => self.begin_release(Order::default(), now, now, effects),
        }
    }

    /// Somebody else has the key.
    pub(crate) fn on_busy(
        &mut self,
        now: Tick,
        busy: &Busy,
        listening: bool,
        longest: Duration,
        random: f64,
        effects: &mut Effects,
    ) {
        let remaining = busy.remaining;
        self.heard(effects);
        self.phase = Phase::Free;
        self.windows_without_release = 0;
        // Who does not know says something very long.
        self.busy_until = (remaining <= LONGEST).then(|| now + remaining);
        self.pace.busy(now, remaining, listening, longest, random);
        self.pace.rivals(busy.listeners, random);
        if self.tries > 0 {
            // A try that came while the call was under way gets an attempt of its own.
            let asked_for = self.asked_for;
            let answered = |id, waiter: &Waiter| waiter.wish.wait == Wait::No && id <= asked_for;
            self.fail_where(answered, &self.busy(now), effects);
        }
        if self.next_up(now).is_some_and(|(_, waiter)| waiter.wish.wait == Wait::No) {
            self.pace.now(now);
        }
    }

    /// The attempt with this policy failed.
    pub(crate) fn on_error(
        &mut self,
        error: &StoreError,
        asked: Replication,
        now: Tick,
        random: f64,
        effects: &mut Effects,
    ) {
        self.heard(effects);
        self.phase = Phase::Free;
        if asked.is_none() {
            self.note_error(error, now, random, effects);
        } else {
            // No matter of those who have none, whatever it is: they find out by themselves.
            self.pace.set_back(now, error.clone(), random);
            self.tell(error, |wish| !wish.replication.is_none(), effects);
            self.unconfirmed = true;
        }
    }

    /// A store error that waiters should know about.
    pub(crate) fn note_error(&mut self, error: &StoreError, now: Tick, random: f64, effects: &mut Effects) {
        self.pace.failed(now, error.clone(), random);
        self.tell(error, |_| true, effects);
    }

    /// Fails those whom the error concerns, unless they go on waiting.
    fn tell(&mut self, error: &StoreError, concerned: impl Fn(&Wish) -> bool, effects: &mut Effects) {
        let fatal = !error.is_transient();
        if !fatal && self.tries == 0 {
            return;
        }
        let told = Failure::Store(error.clone());
        let ends = |_, waiter: &Waiter| concerned(&waiter.wish) && (fatal || waiter.wish.wait == Wait::No);
        self.fail_where(ends, &told, effects);
    }

    /// The release was answered, or given up: the key is not ours any more.
    pub(crate) fn on_released(&mut self, now: Tick, rivals: Option<Rivals>) {
        self.phase = Phase::Free;
        self.busy_until = None;
        self.windows_without_release = 0;
        let waits = self.first_active().is_some_and(|(_, waiter)| waiter.wish.wait != Wait::No);
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

    /// The driver is gone without having said so: its runtime ended, or it panicked. What it was doing is left to the
    /// lease.
    pub(crate) fn on_driver_gone(&mut self, effects: &mut Effects) {
        self.driver = false;
        self.parked = false;
        // A release that had been begun tells of its end itself.
        effects.left_to_lease |= matches!(self.phase, Phase::Ending { told: false, .. });
        if !matches!(self.phase, Phase::Held(_)) {
            let gone = std::mem::replace(&mut self.phase, Phase::Free);
            if let Phase::Ending { order, .. } = gone {
                effects.dropped = Some(order);
            }
        }
    }

    /// Tells all waiters the error, and takes back what they are offered.
    pub(crate) fn fail_all(&mut self, error: &Failure, now: Tick, effects: &mut Effects) {
        self.fail_where(|_, _| true, error, effects);
        if let Phase::Held(held) = &mut self.phase
            && held.offer.take().is_some()
            && held.live.is_none()
        {
            self.begin_release(Order::default(), now, now, effects);
        }
    }

    /// No grants from now on; everybody who waits is told.
    pub(crate) fn shut_down(&mut self, now: Tick, effects: &mut Effects) {
        self.shut_down = true;
        let error = Failure::ShutDown;
        self.fail_all(&error, now, effects);
        if self.parked {
            effects.notify = true;
        }
    }
}
