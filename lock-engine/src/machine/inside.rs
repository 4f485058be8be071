//! Decisions that both sides share: whose turn it is, whether a hold is handed on, whether the driver is needed.

use std::sync::Arc;
use std::time::Duration;

use lock_core::internal::clock::Tick;
use lock_core::store::{Few, Kind, ListenerPolicy, MAX_TOKENS};

use super::{
    Again, Effects, Entry, Held, Live, LiveEntry, MOST_DOUBLINGS, Machine, OFFER_TIME, OWN_OFFER_TIME, Offer,
    Order, Phase, WINDOWS_WITHOUT_RELEASE, Waiter, WaiterState, Wish,
};
use crate::caller::Caller;
use crate::failure::{Failure, Loss};
use crate::hold::{Grant, Lease};
use crate::registry::LaneKind;
use crate::wait::Wait;

impl Machine {
    pub(super) fn is_busy_for_a_try(&self, now: Tick) -> bool {
        // A stale one is not waiting as long as nobody polls it.
        let others = self
            .waiters
            .values()
            .any(|waiter| matches!(waiter.state, WaiterState::Active | WaiterState::Offered));
        match &self.phase {
            Phase::Held(_) => true,
            Phase::Ending { min_hold_end, .. } => others || now < *min_hold_end,
            Phase::Free | Phase::Calling => others,
        }
    }

    pub(super) fn first_active(&self) -> Option<(u64, &Waiter)> {
        self.first_where(|_| true)
    }

    /// The first who waits and wants no replicas to confirm.
    pub(super) fn first_without_policy(&self) -> Option<(u64, &Waiter)> {
        self.first_where(|waiter| waiter.wish.replication.is_none())
    }

    /// Those with this number or a larger one.
    fn waiters_from(&self, id: u64) -> impl Iterator<Item = (u64, &Waiter)> {
        let all = self.waiters.range(id..).map(|(id, waiter)| (*id, &**waiter));
        #[cfg(test)]
        let all = all.inspect(|_| self.seen.update(|seen| seen + 1));
        all
    }

    fn first_where(&self, which: impl Fn(&Waiter) -> bool) -> Option<(u64, &Waiter)> {
        self.waiters_from(0).find(|(_, waiter)| waiter.is_active() && which(waiter))
    }

    /// For whom the key is asked next: the first, or who does not need the replicas that have just not confirmed.
    pub(super) fn next_up(&self, now: Tick) -> Option<(u64, &Waiter)> {
        let set_back = self.unconfirmed || self.pace.is_set_back(now);
        let passes = if set_back { self.first_without_policy() } else { None };
        passes.or_else(|| self.first_active())
    }

    /// The lease that the next caller wants.
    pub(crate) fn wanted_lease(&self, now: Tick) -> Option<Lease> {
        self.next_up(now).map(|(_, waiter)| waiter.wish.lease)
    }

    /// The entries of which the grant is one, and which of them it is.
    pub(super) fn live_of(&mut self, grant: &Arc<Grant>) -> Option<(&mut Live, usize)> {
        let Phase::Held(Held { live: Some(live), .. }) = &mut self.phase else { return None };
        let at = live.position(grant)?;
        Some((live, at))
    }

    pub(super) fn live_tasks(&self) -> impl Iterator<Item = Option<Caller>> + '_ {
        let live = match &self.phase {
            Phase::Held(held) => held.live.as_ref(),
            _ => None,
        };
        live.into_iter().flat_map(|live| live.entries.iter().map(|entry| entry.task))
    }

    /// Takes a waiter out of the queue.
    pub(super) fn take_waiter(&mut self, id: u64, effects: &mut Effects) -> Option<Box<Waiter>> {
        let mut waiter = self.waiters.remove(&id)?;
        self.late.remove(&id);
        effects.discarded = waiter.waker.take();
        self.tries -= usize::from(waiter.wish.wait == Wait::No);
        self.guests -= usize::from(waiter.wish.guest);
        if self.waiters.is_empty() {
            self.turn_end = Tick::MAX;
            effects.deserted = true;
        }
        Some(waiter)
    }

    pub(super) fn end_live(&mut self, effects: &mut Effects) {
        if let Phase::Held(held) = &mut self.phase {
            held.live = None;
        }
        self.send_guests_away(effects);
    }

    pub(super) fn end_hold(&mut self, phase: Phase, effects: &mut Effects) -> Option<Held> {
        let Phase::Held(held) = std::mem::replace(&mut self.phase, phase) else { return None };
        self.used_tokens = held.used.max(1);
        self.send_guests_away(effects);
        Some(held)
    }

    /// Those who could only enter the grant that has ended ask elsewhere.
    fn send_guests_away(&mut self, effects: &mut Effects) {
        if self.guests == 0 {
            return;
        }
        for waiter in self.waiters.values_mut() {
            if waiter.wish.guest && matches!(waiter.state, WaiterState::Active) {
                waiter.state = WaiterState::Moved;
                effects.wake_more.extend(waiter.waker.take());
            }
        }
    }

    /// The innermost live entry is an ancestor of the asker: one more entry, no store call.
    pub(super) fn reenter(&mut self, wish: &Wish, now: Tick) -> Option<Entry> {
        if wish.scope.is_empty() {
            return None;
        }
        let Phase::Held(Held { live: Some(live), renewal, .. }) = &mut self.phase else { return None };
        // The innermost call has to be an enclosing one. Readers do not exclude each other, so a reader looks past them.
        let in_the_way = live.entries.iter().rev().find(|entry| {
            wish.kind != Kind::Read || entry.kind != Kind::Read || wish.scope.contains(&entry.grant)
        });
        let outer = &in_the_way?.grant;
        if !wish.scope.contains(outer) || !outer.hold.is_valid(now) || !outer.is_live() {
            return None;
        }
        let grant = Arc::new(outer.inner(now));
        let longer = !grant.hold.is_renewing() || grant.hold.renewal_lease() < wish.lease.duration;
        if wish.lease.is_renewed && longer {
            grant.hold.renew_to(wish.lease.duration);
            *renewal = grant.hold.next_renewal(self.ticks, now);
        }
        live.entries.push(LiveEntry::new(&grant, wish, now));
        live.min_hold_end = live.min_hold_end.max(now + wish.min_hold);
        Some(Entry { grant, reentrant: true, handed_off: false, part: wish.part })
    }

    pub(super) fn wake_reentrants(&self, effects: &mut Effects) {
        let Phase::Held(Held { live: Some(live), .. }) = &self.phase else { return };
        let Some(innermost) = live.entries.last() else { return };
        for waiter in self.waiters.values() {
            // A reader looks past others.
            let reads = waiter.wish.kind == Kind::Read && !waiter.wish.scope.is_empty();
            if reads || waiter.wish.scope.contains(&innermost.grant) {
                effects.wake_more.extend(waiter.waker.clone());
            }
        }
    }

    /// A waiter with an offer takes it.
    pub(super) fn claim(&mut self, id: u64, now: Tick, effects: &mut Effects) -> Option<Entry> {
        let (clock, valid) = match &self.phase {
            Phase::Held(held) if held.offer.is_some() => (self.clock, self.has_room(held, now)),
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
                self.lose(&hold, Loss::LeaseOver, now, effects);
            }
            return None;
        }
        let waiter = self.take_waiter(id, effects)?;
        self.unclaimed = 0;
        if self.lane == LaneKind::Read {
            return self.claim_shared(&waiter.wish, now);
        }
        let Phase::Held(held) = &mut self.phase else { return None };
        let offer = held.offer.take();
        let token = held.tokens.take()?;
        held.used += 1;
        let max_hold = waiter.wish.max_hold;
        let max_hold_end = max_hold.map_or(Tick::MAX, |max_hold| now + max_hold);
        let grant = Arc::new(Grant::new(Arc::clone(&held.hold), token, clock, now, max_hold_end));
        held.live = Some(Live {
            entries: Few::one(LiveEntry::new(&grant, &waiter.wish, now)),
            min_hold_end: now + waiter.wish.min_hold,
            all_told: false,
        });
        let handed_off = held.used > 1;
        self.end_offer(offer.filter(|offer| offer.open > 1), &WaiterState::Active);
        if self.tries > 0 {
            let busy = self.busy(now);
            self.fail_where(|_, waiter| waiter.wish.wait == Wait::No, &busy, effects);
        }
        Some(Entry { grant, reentrant: false, handed_off, part: None })
    }

    /// Who gets a hold that is not fresh from the store: the first active waiter, or the first one behind `after`, if
    /// the hold is still good for what it asked for.
    pub(super) fn next_holder(&self, after: Option<u64>, now: Tick) -> Option<u64> {
        let Phase::Held(held) = &self.phase else { return None };
        let active = Waiter::is_active;
        let behind = after.and_then(|after| self.waiters_from(after + 1).find(|(_, waiter)| active(waiter)));
        let (id, next) = behind.or_else(|| self.first_active())?;
        let good = !self.shut_down
            && self.lane.hands_on()
            // A writer that has become a reader is in the writers' lane.
            && held.hold.kind() != Kind::Read
            && next.wish.min_hold.is_zero()
            && held.is_good_for(&next.wish, now)
            && !held.tokens.is_empty();
        good.then_some(id)
    }

    /// A waiter with an offer leaves.
    pub(super) fn decline(&mut self, id: u64, now: Tick, effects: &mut Effects) {
        let Phase::Held(Held { offer: Some(offer), .. }) = &mut self.phase else { return };
        offer.open = offer.open.saturating_sub(1);
        if offer.open == 0 {
            self.pass_on(id, now, effects);
        }
    }

    /// An offer came back: to those behind `from`, or to the store.
    pub(super) fn pass_on(&mut self, from: u64, now: Tick, effects: &mut Effects) {
        if let Phase::Held(Held { live: Some(_), offer, .. }) = &mut self.phase {
            // Other readers are in; who let it pass joins them when it is polled.
            *offer = None;
            return;
        }
        match self.next_holder(Some(from), now) {
            Some(next) => self.offer(next, now, effects),
            None => self.begin_release(Order::default(), now, now, effects),
        }
    }

    /// Those who are still offered the hold are not any more.
    pub(super) fn end_offer(&mut self, offer: Option<Offer>, state: &WaiterState) {
        let Some(offer) = offer else { return };
        for (_, waiter) in self.waiters.range_mut(..=offer.last) {
            if matches!(waiter.state, WaiterState::Offered) {
                waiter.state = state.clone();
            }
        }
    }

    /// For how long an offer stands.
    pub(super) fn offer_time(&self) -> Duration {
        match &self.phase {
            Phase::Held(held) if self.lane == LaneKind::Own => {
                let quarter = held.hold.lease.duration / 4;
                // Others of this process wait for no permits that are offered.
                let longest = if held.hold.is_of_permits() { quarter } else { OWN_OFFER_TIME };
                longest.min(quarter).max(OFFER_TIME)
            }
            _ => OFFER_TIME,
        }
    }

    /// Offers the hold to a waiter, and to others behind it that want the same when offers have not been claimed.
    pub(super) fn offer(&mut self, first: u64, now: Tick, effects: &mut Effects) {
        let Phase::Held(held) = &mut self.phase else { return };
        let most =
            if self.lane == LaneKind::Read { usize::MAX } else { 1 << self.unclaimed.min(MOST_DOUBLINGS) };
        let fresh = held.used == 0;
        let mut offer = Offer { since: now, open: 0, last: first };
        for (&id, waiter) in self.waiters.range_mut(first..) {
            let fits = waiter.wish.fits(&held.hold) && (fresh || waiter.wish.min_hold.is_zero());
            if !waiter.is_active() || !fits {
                continue;
            }
            waiter.state = WaiterState::Offered;
            offer.open += 1;
            offer.last = id;
            match (&effects.wake, waiter.waker.clone()) {
                (None, waker) => effects.wake = waker,
                (Some(_), waker) => effects.wake_more.extend(waker),
            }
            if offer.open == most {
                break;
            }
        }
        held.offer = Some(offer);
    }

    pub(super) fn begin_release(
        &mut self,
        order: Order,
        min_hold_end: Tick,
        now: Tick,
        effects: &mut Effects,
    ) {
        let Phase::Held(held) = &self.phase else { return };
        let hold = Arc::clone(&held.hold);
        hold.stop_renewing();
        self.end_hold(Phase::Ending { hold, order, min_hold_end, told: false }, effects);
        self.kick(now, effects);
    }

    /// Forgets the hold without telling the store, which ends it by itself.
    pub(super) fn leave_to_lease(&mut self, now: Tick, effects: &mut Effects) {
        if let Phase::Held(held) = &self.phase {
            held.hold.stop_renewing();
        }
        effects.left_to_lease = true;
        self.end_hold(Phase::Free, effects);
        self.pace.now(now);
        self.kick(now, effects);
    }

    /// What may be acquired together with the release that is about to be sent.
    pub(super) fn takeover(&self, now: Tick) -> Option<Again> {
        let (_, head) = self.first_active()?;
        if self.lane != LaneKind::Mutex
            || !head.wish.replication.is_none()
            || self.shut_down
            || self.windows_without_release >= WINDOWS_WITHOUT_RELEASE
        {
            return None;
        }
        let phantoms = self.pace.listeners_are_phantoms(now);
        let listeners = if phantoms { ListenerPolicy::Ignore } else { ListenerPolicy::Respect };
        Some(Again { lease: head.wish.lease, tokens: self.wanted_tokens(), listeners })
    }

    pub(super) fn wanted_tokens(&self) -> u32 {
        if self.waiters.len() <= 1 || self.counter_ahead || !self.lane.hands_on() {
            1
        } else {
            self.used_tokens.saturating_mul(2).clamp(1, MAX_TOKENS)
        }
    }

    pub(super) fn fail_where(
        &mut self,
        which: impl Fn(u64, &Waiter) -> bool,
        error: &Failure,
        effects: &mut Effects,
    ) {
        for (&id, waiter) in &mut self.waiters {
            if !matches!(waiter.state, WaiterState::Failed(_) | WaiterState::Moved) && which(id, waiter) {
                waiter.state = WaiterState::Failed(error.clone());
                effects.wake_more.extend(waiter.waker.take());
            }
        }
    }

    /// Sees to it that the driver runs if there is something to do for it.
    pub(super) fn kick(&mut self, now: Tick, effects: &mut Effects) {
        let needed = match &self.phase {
            Phase::Ending { .. } => true,
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
