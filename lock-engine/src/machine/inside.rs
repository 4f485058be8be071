//! Decisions that [`callers`](super::callers) and [`events`](super::events) share: whose turn it
//! is, whether a hold is handed off, whether the driver is needed.

use std::sync::Arc;

use lock_core::FencingToken;
use lock_core::internal::clock::Tick;
use lock_core::store::Kind;

use super::{
    Action, Ask, Driver, Held, Live, LiveEntry, MOST_DOUBLINGS, Machine, OFFER_TIME, OWN_OFFER_TIME, Offer,
    Pass, Phase, Waiter, WaiterState,
};
use crate::failure::{Failure, Loss};
use crate::spec::LaneKind;
use crate::terms::Terms;

impl Machine {
    pub(super) fn is_busy_for_a_try(&self, now: Tick) -> bool {
        // An unresponsive waiter does not count until it is polled.
        let others = self
            .waiters
            .values()
            .any(|waiter| matches!(waiter.state, WaiterState::Active | WaiterState::Offered));
        match &self.phase {
            Phase::Held(_) => true,
            Phase::Ending { min_hold_end, .. } => others || now < *min_hold_end,
            _ => others,
        }
    }

    pub(super) fn first_active(&self) -> Option<(u64, &Waiter)> {
        self.first_where(|_| true)
    }

    /// Returns the first waiter that wants no replicas to confirm.
    pub(super) fn first_without_policy(&self) -> Option<(u64, &Waiter)> {
        self.first_where(|waiter| waiter.ask.terms.replication.is_none())
    }

    /// Returns the waiters with this number or a larger one.
    fn waiters_from(&self, id: u64) -> impl Iterator<Item = (u64, &Waiter)> {
        let all = self.waiters.range(id..).map(|(id, waiter)| (*id, &**waiter));
        #[cfg(test)]
        let all = all.inspect(|_| self.seen.update(|seen| seen + 1));
        all
    }

    fn first_where(&self, which: impl Fn(&Waiter) -> bool) -> Option<(u64, &Waiter)> {
        self.waiters_from(0).find(|(_, waiter)| waiter.is_active() && which(waiter))
    }

    /// Returns the waiter for which the key is requested next. It is the first, or one that does
    /// not need the replicas that have just failed to confirm.
    pub(super) fn next_up(&self, now: Tick) -> Option<(u64, &Waiter)> {
        let set_back = self.unconfirmed || self.retry.is_set_back(now);
        let passes = if set_back { self.first_without_policy() } else { None };
        passes.or_else(|| self.first_active())
    }

    /// Returns the terms of the next waiter.
    pub(super) fn next_terms(&self, now: Tick) -> Option<Terms> {
        self.next_up(now).map(|(_, waiter)| waiter.ask.terms)
    }

    /// Returns the live part of the hold that has this entry, and the index of the entry.
    pub(super) fn live_of(&mut self, number: u64) -> Option<(&mut Live, usize)> {
        let Phase::Held(Held { live: Some(live), .. }) = &mut self.phase else { return None };
        let at = live.position(number)?;
        Some((live, at))
    }

    /// Removes a waiter from the queue.
    pub(super) fn take_waiter(&mut self, id: u64) -> Option<Box<Waiter>> {
        let waiter = self.waiters.remove(&id)?;
        self.late.remove(&id);
        self.tries -= usize::from(waiter.ask.terms.is_try());
        self.guests -= usize::from(waiter.ask.guest);
        if self.waiters.is_empty() {
            self.turn_end = Tick::MAX;
            self.notify();
        }
        Some(waiter)
    }

    pub(super) fn end_live(&mut self) {
        if let Phase::Held(held) = &mut self.phase {
            held.live = None;
        }
        self.send_guests_away();
    }

    pub(super) fn end_hold(&mut self, phase: Phase) -> Option<Held> {
        let Phase::Held(held) = std::mem::replace(&mut self.phase, phase) else { return None };
        self.used_tokens = held.used.max(1);
        self.send_guests_away();
        Some(held)
    }

    /// Sends guests elsewhere, because the grant that they could enter has ended.
    fn send_guests_away(&mut self) {
        if self.guests > 0 {
            self.change_where(|_, waiter| waiter.ask.guest && waiter.is_waiting(), &WaiterState::Over(None));
        }
    }

    /// Enters an ancestor's grant without a store call, if the innermost live entry belongs to an
    /// enclosing call.
    pub(super) fn reenter(&mut self, ask: &Ask, now: Tick) -> Option<Pass> {
        if ask.inside.is_empty() {
            return None;
        }
        let ticks = self.rules.ticks;
        let Phase::Held(held) = &mut self.phase else { return None };
        let live = held.live.as_mut()?;
        // The innermost entry has to belong to an enclosing call. Readers do not exclude each
        // other, so a reader ignores other readers' entries.
        let in_the_way = live.entries.iter().rev().find(|entry| {
            ask.kind != Kind::Read || entry.kind != Kind::Read || ask.inside.contains(&entry.number)
        });
        if !ask.inside.contains(&in_the_way?.number) || !held.hold.is_valid(now) || now >= live.max_hold_end {
            return None;
        }
        let lease = ask.terms.lease;
        live.min_hold_end = live.min_hold_end.max(now + ask.terms.min_hold);
        if lease.is_renewed && held.renews.is_none_or(|renews| renews < lease.duration) {
            held.renew_to(Some(lease.duration), ticks, now);
        }
        let pass = self.enter(LiveEntry::new(ask, now))?;
        Some(Pass { reentrant: true, part: ask.part, ..pass })
    }

    pub(super) fn wake_reentrants(&mut self) {
        let Phase::Held(Held { live: Some(live), .. }) = &self.phase else { return };
        let Some(innermost) = live.entries.last() else { return };
        // A reader ignores the entries of other readers.
        let may = |ask: &Ask| {
            ask.kind == Kind::Read && !ask.inside.is_empty() || ask.inside.contains(&innermost.number)
        };
        let woken = self.waiters.iter().filter(|(_, waiter)| may(&waiter.ask));
        self.actions.extend(woken.map(|(id, _)| Action::Wake(*id)));
    }

    /// Lets a waiter claim its offer.
    pub(super) fn claim(&mut self, id: u64, now: Tick) -> Option<Pass> {
        if let Some(hold) = self.held().filter(|hold| !hold.is_valid(now)).cloned() {
            self.lose(&hold, Loss::LeaseOver, now);
            return None;
        }
        let ask = self.take_waiter(id)?.ask;
        self.unclaimed = 0;
        let shares = self.lane == LaneKind::Read;
        let Phase::Held(held) = &mut self.phase else { return None };
        held.offer.as_mut()?.open -= 1;
        let ended = held.offer.take_if(|offer| !shares || offer.open == 0);
        self.end_offer(ended.filter(|offer| offer.open > 0), &WaiterState::Active);
        let pass = self.take(&ask, now)?;
        if self.tries > 0 && !shares {
            let busy = self.busy(now);
            self.fail_where(|_, waiter| waiter.ask.terms.is_try(), busy);
        }
        Some(pass)
    }

    /// Gives the hold to one more caller, beside others if they share it.
    pub(super) fn take(&mut self, ask: &Ask, now: Tick) -> Option<Pass> {
        let shares = self.lane == LaneKind::Read;
        let Phase::Held(held) = &mut self.phase else { return None };
        // All readers of a shared hold use its one token.
        let token = if shares { FencingToken::new(held.tokens.last) } else { held.tokens.take()? };
        let handed_off = held.used > 0;
        held.used += 1;
        let max_hold = ask.terms.max_hold.filter(|_| !shares);
        let max_hold_end = max_hold.map_or(Tick::MAX, |max_hold| now + max_hold);
        let min_hold_end = now + ask.terms.min_hold;
        held.live.get_or_insert_with(|| Live::new(token, max_hold_end, min_hold_end));
        let pass = self.enter(LiveEntry::new(ask, now))?;
        Some(Pass { handed_off, ..pass })
    }

    /// Returns the next waiter for a hold that is not fresh from the store: the first active one
    /// behind `after`, or else the first. `None` if the hold is no longer good for its request.
    pub(super) fn next_holder(&self, after: Option<u64>, now: Tick) -> Option<u64> {
        let Phase::Held(held) = &self.phase else { return None };
        let active = Waiter::is_active;
        let behind = after.and_then(|after| self.waiters_from(after + 1).find(|(_, waiter)| active(waiter)));
        let (id, next) = behind.or_else(|| self.first_active())?;
        let good = !self.shut_down
            && self.lane.hands_off()
            // A writer that has become a reader is in the writers' lane.
            && held.hold.kind() != Kind::Read
            && next.ask.terms.min_hold.is_zero()
            && held.is_good_for(&next.ask, now)
            && !held.tokens.is_empty();
        good.then_some(id)
    }

    /// Declines an offer, because its waiter leaves.
    pub(super) fn decline(&mut self, id: u64, now: Tick) {
        let Phase::Held(Held { offer: Some(offer), .. }) = &mut self.phase else { return };
        offer.open = offer.open.saturating_sub(1);
        if offer.open == 0 {
            self.pass_on(id, now);
        }
    }

    /// Passes an offer that came back on to the waiters behind `from`, or releases the hold.
    pub(super) fn pass_on(&mut self, from: u64, now: Tick) {
        if let Phase::Held(Held { live: Some(_), offer, .. }) = &mut self.phase {
            // Other readers are in; the waiter that let it pass joins them when it is polled.
            *offer = None;
            return;
        }
        match self.next_holder(Some(from), now) {
            Some(next) => self.offer(next, now),
            None => self.begin_release(now, now),
        }
    }

    /// Ends an offer for all waiters that still have it.
    pub(super) fn end_offer(&mut self, offer: Option<Offer>, state: &WaiterState) {
        let Some(offer) = offer else { return };
        for (_, waiter) in self.waiters.range_mut(..=offer.last) {
            if matches!(waiter.state, WaiterState::Offered) {
                waiter.state = state.clone();
            }
        }
    }

    /// Offers the hold to a waiter. After unclaimed offers, it is offered to others behind it too,
    /// if they want the same.
    pub(super) fn offer(&mut self, first: u64, now: Tick) {
        let Phase::Held(held) = &mut self.phase else { return };
        let most =
            if self.lane == LaneKind::Read { usize::MAX } else { 1 << self.unclaimed.min(MOST_DOUBLINGS) };
        let fresh = held.used == 0;
        let quarter = held.hold.lease.duration / 4;
        let time = match self.lane {
            // No other caller of this process waits for permits that are on offer.
            LaneKind::Own if held.hold.is_of_permits() => quarter,
            LaneKind::Own => quarter.min(OWN_OFFER_TIME),
            _ => OFFER_TIME,
        };
        let mut offer = Offer { until: now + time.max(OFFER_TIME), open: 0, last: first };
        for (&id, waiter) in self.waiters.range_mut(first..) {
            let fits = waiter.ask.fits(&held.hold) && (fresh || waiter.ask.terms.min_hold.is_zero());
            if !waiter.is_active() || !fits {
                continue;
            }
            waiter.state = WaiterState::Offered;
            offer.open += 1;
            offer.last = id;
            self.actions.push(Action::Wake(id));
            if offer.open == most {
                break;
            }
        }
        held.offer = Some(offer);
    }

    pub(super) fn begin_release(&mut self, min_hold_end: Tick, now: Tick) {
        let Phase::Held(held) = &self.phase else { return };
        let hold = Arc::clone(&held.hold);
        self.end_hold(Phase::Ending { hold, min_hold_end, told: false });
        self.kick(now);
    }

    /// Forgets the hold without telling the store, which ends it by itself.
    pub(super) fn leave_to_lease(&mut self, now: Tick) {
        self.end_hold(Phase::Free);
        self.act(Action::CountLeft);
        self.retry.reset(now);
        self.kick(now);
    }

    /// Fails the selected waiters.
    pub(super) fn fail_where(&mut self, which: impl Fn(u64, &Waiter) -> bool, failure: Failure) {
        self.change_where(which, &WaiterState::Over(Some(failure)));
    }

    /// Changes the state of the selected waiters that still wait, and wakes them.
    pub(super) fn change_where(&mut self, which: impl Fn(u64, &Waiter) -> bool, state: &WaiterState) {
        for (&id, waiter) in &mut self.waiters {
            if !matches!(waiter.state, WaiterState::Over(_)) && which(id, waiter) {
                waiter.state = state.clone();
                self.actions.push(Action::Wake(id));
            }
        }
    }

    /// Starts the driver if there is work for it.
    pub(super) fn kick(&mut self, now: Tick) {
        let needed = match &self.phase {
            Phase::Ending { .. } => true,
            Phase::Free => self.first_active().is_some(),
            _ => false,
        };
        if needed && self.driver == Driver::None {
            if matches!(self.phase, Phase::Free) {
                self.retry.reset(now);
            }
            self.driver = Driver::Running;
            self.act(Action::Drive);
        } else if needed {
            self.notify();
        }
    }
}
