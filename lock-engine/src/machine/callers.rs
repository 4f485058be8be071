//! The callers' side: ask, poll, leave, re-enter, release.

use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use lock_core::internal::clock::Tick;
use lock_core::store::Kind;

use super::{
    Action, Ask, Cap, Driver, Enqueued, Held, LiveEntry, Machine, Pass, Phase, ReleaseOutcome, Waiter,
    WaiterState,
};
use crate::failure::{Failure, Loss};
use crate::spec::LaneKind;

impl Machine {
    /// Handles a new caller that wants the key.
    pub(crate) fn enqueue(&mut self, ask: Ask, cap: Cap, now: Tick) -> Result<Enqueued, Failure> {
        if let Some(pass) = self.reenter(&ask, now).or_else(|| self.join(&ask, now)) {
            return Ok(Enqueued::Entered(pass));
        }
        if self.shut_down {
            return Err(Failure::ShutDown);
        }
        if self.is_sealed_for(&ask, now) {
            return Ok(Enqueued::Elsewhere);
        }
        if ask.terms.is_try() && self.is_busy_for_a_try(now) {
            return Err(self.refuse_a_try(&ask, now));
        }
        if self.waiters.len() >= cap.most {
            return Err(cap.refuse(self.waiters.len(), self.taken_for(now)));
        }
        let alone = matches!(self.phase, Phase::Free) && !ask.guest && self.first_active().is_none();
        self.retry.on_new_waiter(ask.terms.replication, alone, now);
        self.tries += usize::from(ask.terms.is_try());
        self.guests += usize::from(ask.guest);
        let id = self.new_number();
        let waiter = Waiter { gated: ask.gated.is_some(), ask, state: WaiterState::Active };
        self.waiters.insert(id, Box::new(waiter));
        self.kick(now);
        Ok(Enqueued::Waiting(id))
    }

    /// Polls a waiter. `None` means that it has to ask again, in another lane.
    pub(crate) fn poll_waiter(&mut self, id: u64, now: Tick) -> Poll<Result<Option<Pass>, Failure>> {
        let Some(waiter) = self.waiters.get_mut(&id) else { return Poll::Ready(Err(Failure::ShutDown)) };
        match &waiter.state {
            WaiterState::Over(failure) => {
                let over = failure.clone().map_or(Ok(None), Err);
                self.take_waiter(id);
                return Poll::Ready(over);
            }
            WaiterState::Offered => {
                if let Some(pass) = self.claim(id, now) {
                    return Poll::Ready(Ok(Some(pass)));
                }
            }
            WaiterState::Active => {}
            WaiterState::Unresponsive => {
                waiter.state = WaiterState::Active;
                self.kick(now);
            }
        }
        if let Some(waiter) = self.waiters.get(&id)
            && (!waiter.ask.inside.is_empty() || self.lane == LaneKind::Read)
        {
            let ask = waiter.ask.clone();
            let pass = self.reenter(&ask, now).or_else(|| self.join(&ask, now));
            if pass.is_some() || self.is_sealed_for(&ask, now) {
                self.take_waiter(id);
                return Poll::Ready(Ok(pass));
            }
        }
        Poll::Pending
    }

    /// Starts the turn of a gated waiter.
    pub(super) fn admit(&mut self, id: u64, now: Tick) {
        if let Some(waiter) = self.waiters.get_mut(&id).filter(|waiter| waiter.gated) {
            waiter.gated = false;
            self.turn_end = waiter.ask.gated.unwrap_or(Tick::MAX);
            self.kick(now);
        }
    }

    /// Whether the waiter is still gated.
    pub(crate) fn is_gated(&self, id: u64) -> bool {
        self.waiters.get(&id).is_some_and(|waiter| waiter.gated)
    }

    /// Whether the waiter may still get a first answer, so that a wait shorter than a round trip is
    /// not over yet. This holds if the store is being asked, or will be within `grace`, and has not
    /// answered since the waiter came. No holder may be known. An answer wakes the waiter.
    pub(crate) fn awaits_first_answer(&mut self, id: u64, now: Tick, grace: Duration) -> bool {
        let Some(waiter) = self.waiters.get(&id) else { return false };
        let asks = match self.driver {
            Driver::None => false,
            Driver::Running => true,
            Driver::Parked => self.retry.not_before_with(waiter.ask.terms.replication) <= now + grace,
        };
        let awaits = asks && id > self.answered && self.taken_for(now).is_none();
        if awaits {
            self.late.insert(id);
        }
        awaits
    }

    /// Removes a waiter that gives up or is dropped.
    pub(super) fn leave(&mut self, id: u64, now: Tick) {
        let Some(waiter) = self.take_waiter(id) else { return };
        if matches!(waiter.state, WaiterState::Offered) {
            self.decline(id, now);
        } else if self.driver == Driver::Parked && self.first_active().is_none() {
            self.notify();
        }
    }

    /// Adds an entry beside that of a live grant, which proves that the caller may re-enter.
    pub(crate) fn reenter_guard(&mut self, number: u64, part: Option<u16>, now: Tick) -> Option<Pass> {
        let (live, at) = self.live_of(number)?;
        let outer = *live.entries.get(at)?;
        let is_valid = self.held()?.is_valid(now);
        let pass = is_valid.then(|| self.enter(outer)).flatten()?;
        Some(Pass { reentrant: true, part, ..pass })
    }

    /// Turns the grant of a write lock into one of a read lock.
    pub(crate) fn downgrade(&mut self, number: u64) -> ReleaseOutcome {
        let Some((live, at)) = self.live_of(number) else { return ReleaseOutcome::NotHeld };
        if let Some(entry) = live.entries.get_mut(at) {
            entry.kind = Kind::Read;
        }
        self.wake_reentrants();
        self.only_readers_left()
    }

    /// Turns a hold for writing into one for reading when no writer is left in it.
    fn only_readers_left(&self) -> ReleaseOutcome {
        let Phase::Held(Held { hold, live: Some(live), .. }) = &self.phase else {
            return ReleaseOutcome::Nested;
        };
        let only_readers = live.entries.iter().all(|e| e.kind == Kind::Read);
        let can = self.rules.abilities.downgrade && hold.kind() == Kind::Write && hold.is_single();
        if only_readers && can && hold.mark_downgraded() {
            return ReleaseOutcome::Downgrading(hold.clone());
        }
        ReleaseOutcome::Nested
    }

    /// Ends a grant; `was_lost` says whether its lock was lost. When `reserve` has no capacity for
    /// its release, the hold is left to its lease.
    pub(crate) fn release(
        &mut self,
        number: u64,
        was_lost: bool,
        reserve: impl FnOnce() -> bool,
        now: Tick,
    ) -> ReleaseOutcome {
        let over = if was_lost { ReleaseOutcome::Lost } else { ReleaseOutcome::NotHeld };
        let ticks = self.rules.ticks;
        let Phase::Held(held) = &mut self.phase else { return over };
        let hold = Arc::clone(&held.hold);
        let Some(live) = &mut held.live else { return over };
        let Some(at) = live.position(number) else { return over };
        if live.entries.len() > 1 {
            live.entries.take(at);
            if held.renews.is_some() && live.entries.iter().all(|entry| entry.until.is_some()) {
                let until = live.entries.iter().filter_map(|entry| entry.until).max().unwrap_or_default();
                held.renew_to(None, ticks, now);
                if hold.deadline() < until {
                    self.actions.push(Action::Extend(hold, until));
                }
            }
            self.wake_reentrants();
            // The other entries hear of it when the hold is lost: they may just have been renewed.
            return if was_lost { ReleaseOutcome::Lost } else { self.only_readers_left() };
        }
        let min_hold_end = live.min_hold_end;
        if !hold.is_valid(now) {
            self.lose(&hold, Loss::LeaseOver, now);
            return ReleaseOutcome::Lost;
        }
        if was_lost {
            self.actions.push(live.tell_loss());
        }
        self.end_live();
        let ended = if self.is_offered() {
            // Other readers are about to enter.
            ReleaseOutcome::HandedOff
        } else if now >= min_hold_end
            && let Some(next) = self.next_holder(None, now)
        {
            self.offer(next, now);
            ReleaseOutcome::HandedOff
        } else if reserve() {
            self.begin_release(min_hold_end, now);
            if now >= min_hold_end { ReleaseOutcome::Releasing } else { ReleaseOutcome::Lingering }
        } else {
            self.leave_to_lease(now);
            ReleaseOutcome::LeftToLease
        };
        if was_lost { ReleaseOutcome::Lost } else { ended }
    }

    /// Adds an entry to what callers have of the hold.
    pub(super) fn enter(&mut self, entry: LiveEntry) -> Option<Pass> {
        let number = self.new_number();
        let Phase::Held(Held { hold, live: Some(live), .. }) = &mut self.phase else { return None };
        live.entries.push(LiveEntry { number, ..entry });
        let (hold, token, max_hold_end) = (hold.clone(), live.token, live.max_hold_end);
        Some(Pass { number, hold, token, max_hold_end, reentrant: false, handed_off: false, part: None })
    }
}
