//! The readers of one process that share one hold, and callers who have come to the wrong lane.

use std::sync::Arc;
use std::time::Duration;

use lock_core::FencingToken;
use lock_core::internal::clock::Tick;
use lock_core::store::Few;

use super::{Effects, Entry, Held, Live, LiveEntry, Machine, Phase, Wish};
use crate::hold::Grant;
use crate::registry::LaneKind;

/// A reader that finds the window of a shared hold over waits so long for its readers to leave, so that others have
/// their turn; then it takes a hold of its own.
const DRAIN_TIME: Duration = Duration::from_millis(10);

impl Machine {
    /// Enters a shared hold beside the readers that are in it, if its window is open.
    pub(crate) fn join(&mut self, wish: &Wish, now: Tick) -> Option<Entry> {
        if self.is_open(wish, now) { self.enter_shared(wish, now) } else { None }
    }

    fn is_open(&self, wish: &Wish, now: Tick) -> bool {
        let Phase::Held(held) = &self.phase else { return false };
        self.lane == LaneKind::Read
            && !wish.guest
            && !self.closed
            && !self.shut_down
            && (held.live.is_some() || held.offer.is_some())
            && held.is_good_for(wish, now)
            && self.has_room(held, now)
    }

    /// Whether one more caller may enter the hold, as far as its validity goes.
    pub(super) fn has_room(&self, held: &Held, now: Tick) -> bool {
        let lost = held.live.as_ref().is_some_and(|live| live.is_lost_at(now));
        (self.lane == LaneKind::Read || !held.tokens.is_empty()) && held.hold.is_valid(now) && !lost
    }

    /// A waiter to whom the shared hold was offered enters it.
    pub(super) fn claim_shared(&mut self, wish: &Wish, now: Tick) -> Option<Entry> {
        if let Phase::Held(Held { offer, .. }) = &mut self.phase
            && let Some(open) = offer.as_mut()
        {
            open.open = open.open.saturating_sub(1);
            if open.open == 0 {
                *offer = None;
            }
        }
        self.enter_shared(wish, now)
    }

    fn enter_shared(&mut self, wish: &Wish, now: Tick) -> Option<Entry> {
        let Phase::Held(held) = &mut self.phase else { return None };
        let handed_off = held.used > 0;
        held.used += 1;
        // All readers of the hold have its one token.
        let token = FencingToken::new(held.tokens.last);
        let grant = Arc::new(Grant::new(Arc::clone(&held.hold), token, self.clock, now, Tick::MAX));
        let live =
            held.live.get_or_insert_with(|| Live { entries: Few::new(), min_hold_end: now, all_told: false });
        live.entries.push(LiveEntry::new(&grant, wish, now));
        Some(Entry { grant, reentrant: false, handed_off, part: None })
    }

    /// Whether a hold that was granted here is still offered to somebody.
    pub(super) fn is_offered(&self) -> bool {
        matches!(&self.phase, Phase::Held(Held { offer: Some(_), .. }))
    }

    /// Whether the caller has to ask in another lane: it is a guest and its host has gone, or it would have to wait for
    /// readers to leave, who are no obstacle to it.
    pub(super) fn is_closed_for(&mut self, wish: &Wish, now: Tick, effects: &mut Effects) -> bool {
        if wish.guest {
            return !matches!(&self.phase, Phase::Held(Held { live: Some(_), .. }));
        }
        if self.lane != LaneKind::Read {
            return false;
        }
        if self.closed {
            return true;
        }
        let Phase::Held(held) = &mut self.phase else { return false };
        if held.live.is_none() && held.offer.is_none() {
            return false;
        }
        let until = held.window_end + DRAIN_TIME;
        if now >= until || !held.hold.is_valid(now) || held.hold.is_doubtful() {
            self.close(effects);
            return true;
        }
        held.drain_end = until;
        false
    }

    pub(super) fn close(&mut self, effects: &mut Effects) {
        self.closed = true;
        effects.detach = true;
        for waiter in self.waiters.values_mut() {
            if waiter.is_active() {
                waiter.state = super::WaiterState::Moved;
                effects.wake_more.extend(waiter.waker.take());
            }
        }
    }
}
