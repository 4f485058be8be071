//! What callers do: ask, poll, leave, enter again, release.

use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use lock_core::internal::clock::Tick;
use lock_core::store::{Few, Kind};
use tokio::sync::oneshot;

use super::{
    Cap, Effects, Ended, Enqueued, Entry, Held, Leaving, LiveEntry, LostGrants, Machine, Order, Pending,
    Phase, Polled, Waiter, WaiterState, Wish,
};
use crate::caller::Caller;
use crate::failure::{Failure, Loss};
use crate::hold::Grant;
use crate::registry::LaneKind;
use crate::wait::Wait;

impl Machine {
    /// Somebody wants the key.
    pub(crate) fn enqueue(
        &mut self,
        wish: Wish,
        now: Tick,
        cap: Cap,
        effects: &mut Effects,
    ) -> Result<Enqueued, Failure> {
        if let Some(entry) = self.reenter(&wish, now) {
            return Ok(Enqueued::Entered(entry));
        }
        if self.shut_down {
            return Err(Failure::ShutDown);
        }
        if let Some(entry) = self.join(&wish, now) {
            return Ok(Enqueued::Entered(entry));
        }
        if self.is_closed_for(&wish, now, effects) {
            return Ok(Enqueued::Elsewhere);
        }
        if wish.wait == Wait::No && self.is_busy_for_a_try(now) {
            return Err(self.refuse_a_try(&wish, now));
        }
        if self.waiters.len() >= cap.most {
            return Err(cap.refuse(self.waiters.len(), self.taken_for(now)));
        }
        let alone = matches!(self.phase, Phase::Free) && !wish.guest && self.first_active().is_none();
        self.pace.asked(wish.replication, alone, now);
        self.tries += usize::from(wish.wait == Wait::No);
        self.guests += usize::from(wish.guest);
        let id = self.new_id();
        self.waiters.insert(
            id,
            Box::new(Waiter { gated: wish.gated.is_some(), wish, state: WaiterState::Active, waker: None }),
        );
        self.kick(now, effects);
        Ok(Enqueued::Waiting(id))
    }

    /// A waiter's future is polled.
    pub(crate) fn poll_waiter(&mut self, id: u64, now: Tick, waker: &Waker, effects: &mut Effects) -> Polled {
        let Some(waiter) = self.waiters.get_mut(&id) else {
            return Polled::Failed(Failure::ShutDown);
        };
        match &waiter.state {
            WaiterState::Failed(error) => {
                let error = error.clone();
                self.take_waiter(id, effects);
                return Polled::Failed(error);
            }
            WaiterState::Offered => {
                if let Some(entry) = self.claim(id, now, effects) {
                    return Polled::Granted(entry);
                }
            }
            WaiterState::Moved => {
                self.take_waiter(id, effects);
                return Polled::Elsewhere;
            }
            WaiterState::Active => {}
            WaiterState::Stale => {
                waiter.state = WaiterState::Active;
                self.kick(now, effects);
            }
        }
        if let Some(waiter) = self.waiters.get(&id)
            && (!waiter.wish.scope.is_empty() || self.lane == LaneKind::Read)
        {
            let wish = waiter.wish.clone();
            let entry = self.reenter(&wish, now).or_else(|| self.join(&wish, now));
            if let Some(entry) = entry {
                self.take_waiter(id, effects);
                return Polled::Granted(entry);
            }
            if self.is_closed_for(&wish, now, effects) {
                self.take_waiter(id, effects);
                return Polled::Elsewhere;
            }
        }
        if let Some(waiter) = self.waiters.get_mut(&id)
            && !waiter.waker.as_ref().is_some_and(|old| old.will_wake(waker))
        {
            effects.discarded = waiter.waker.replace(waker.clone());
        }
        Polled::Pending
    }

    /// It is the waiter's turn, who could not be granted anything before.
    pub(crate) fn admit(&mut self, id: u64, now: Tick, effects: &mut Effects) {
        if let Some(waiter) = self.waiters.get_mut(&id).filter(|waiter| waiter.gated) {
            waiter.gated = false;
            self.turn_end = waiter.wish.gated.unwrap_or(Tick::MAX);
            self.kick(now, effects);
        }
    }

    /// Whether the waiter has not been admitted.
    pub(crate) fn is_gated(&self, id: u64) -> bool {
        self.waiters.get(&id).is_some_and(|waiter| waiter.gated)
    }

    /// Whether the store is being asked, or will be within `grace`, has not answered since the waiter came, and nobody
    /// is known to have the key: a wait shorter than a round trip is not over then. An answer wakes the waiter.
    pub(crate) fn awaits_first_answer(&mut self, id: u64, now: Tick, grace: Duration) -> bool {
        let Some(waiter) = self.waiters.get(&id) else { return false };
        let asks = !self.parked || self.pace.not_before_with(waiter.wish.replication) <= now + grace;
        let awaits = self.driver && asks && id > self.answered && self.taken_for(now).is_none();
        if awaits {
            self.late.insert(id);
        }
        awaits
    }

    /// Whether the task that waits holds the key already, in a way that re-entry can't see.
    pub(crate) fn waits_for_itself(&self, id: u64) -> bool {
        let task = self.waiters.get(&id).and_then(|waiter| waiter.wish.task);
        task.is_some() && self.live_tasks().any(|other| other == task)
    }

    /// A waiter gives up or is dropped.
    pub(crate) fn leave(&mut self, id: u64, now: Tick, effects: &mut Effects) {
        let Some(waiter) = self.take_waiter(id, effects) else { return };
        if matches!(waiter.state, WaiterState::Offered) {
            self.decline(id, now, effects);
        } else if self.parked && self.first_active().is_none() {
            effects.notify = true;
        }
    }

    /// One more entry beside that of a guard, which proves that the caller may.
    pub(crate) fn reenter_guard(
        &mut self,
        grant: &Arc<Grant>,
        part: Option<u16>,
        now: Tick,
    ) -> Option<Entry> {
        let (live, at) = self.live_of(grant)?;
        if !grant.hold.is_valid(now) || !grant.is_live() {
            return None;
        }
        let outer = live.entries.get(at)?;
        let (kind, renewed, until) = (outer.kind, outer.renewed, outer.until);
        let inner = Arc::new(grant.inner(now));
        let (grant, task) = (Arc::clone(&inner), Caller::current());
        live.entries.push(LiveEntry { grant, kind, renewed, until, task });
        Some(Entry { grant: inner, reentrant: true, handed_off: false, part })
    }

    /// A guard of a write lock becomes one of a read lock.
    pub(crate) fn downgrade(&mut self, grant: &Arc<Grant>, now: Tick, effects: &mut Effects) -> Ended {
        if grant.is_lost_at(now) {
            return Ended::Lost;
        }
        let Some((live, at)) = self.live_of(grant) else { return Ended::NotHeld };
        if let Some(entry) = live.entries.get_mut(at) {
            entry.kind = Kind::Read;
        }
        self.wake_reentrants(effects);
        self.only_readers_left(effects)
    }

    /// A hold for writing becomes one for reading when no writer is left in it.
    fn only_readers_left(&self, effects: &mut Effects) -> Ended {
        let Phase::Held(Held { hold, live: Some(live), .. }) = &self.phase else { return Ended::Nested };
        let only_readers = live.entries.iter().all(|e| e.kind == Kind::Read);
        if only_readers && hold.kind() == Kind::Write && hold.is_single() && hold.read_only() {
            let (report, outcome) = oneshot::channel();
            effects.downgrade = Some((Arc::clone(hold), report));
            return Ended::Releasing(outcome);
        }
        Ended::Nested
    }

    /// A guard is released or dropped. When `reserve` has no place for its release, the hold is left to its lease.
    pub(crate) fn release(
        &mut self,
        entry: &Entry,
        leaving: Leaving,
        reserve: impl FnOnce() -> Option<Pending>,
        now: Tick,
        effects: &mut Effects,
    ) -> Ended {
        let was_lost = entry.grant.end(now);
        let over = if was_lost { Ended::Lost } else { Ended::NotHeld };
        let Phase::Held(Held { hold, renewal, live: Some(live), .. }) = &mut self.phase else { return over };
        let Some(at) = live.position(&entry.grant) else { return over };
        if live.entries.len() > 1 {
            live.entries.take(at);
            if hold.is_renewing() && !live.entries.iter().any(|e| e.renewed) {
                hold.stop_renewing();
                *renewal = hold.deadline();
                let until = live.entries.iter().map(|e| e.until).max().unwrap_or_default();
                if hold.deadline() < until {
                    effects.lengthen = Some((Arc::clone(hold), until.since(now)));
                }
            }
            self.wake_reentrants(effects);
            if was_lost {
                // The others are told when the hold is: they may have been renewed just now.
                let grants = Few::one(Arc::clone(&entry.grant));
                effects.lost = Some(LostGrants { grants, news: false });
                return Ended::Lost;
            }
            return self.only_readers_left(effects);
        }
        let min_hold_end = live.min_hold_end;
        let hold = Arc::clone(hold);
        if !hold.is_valid(now) {
            self.lose(&hold, Loss::LeaseOver, now, effects);
            return Ended::Lost;
        }
        if was_lost {
            effects.lost = Some(live.tell_loss());
        }
        self.end_live(effects);
        let ended = if self.is_offered() {
            // Other readers are about to enter.
            Ended::HandedOn
        } else if now >= min_hold_end
            && let Some(next) = self.next_holder(None, now)
        {
            self.offer(next, now, effects);
            Ended::HandedOn
        } else if let pending @ Some(_) = reserve() {
            let (report, ended) = match leaving {
                // At the end of the `min_hold`, nobody is there any more.
                Leaving::Released if now >= min_hold_end => {
                    let (report, outcome) = oneshot::channel();
                    (Some(report), Ended::Releasing(outcome))
                }
                Leaving::Released | Leaving::Dropped => (None, Ended::ReleasingUnheard),
            };
            self.begin_release(Order { report, pending }, min_hold_end, now, effects);
            ended
        } else {
            self.leave_to_lease(now, effects);
            Ended::LeftToLease
        };
        if was_lost { Ended::Lost } else { ended }
    }
}
