//! The readers of one process that share one hold, and callers who have come to the wrong lane.

use std::time::Duration;

use lock_core::FencingToken;
use lock_core::internal::clock::Tick;

use super::{Action, Ask, Held, Live, LiveEntry, Machine, Pass, Phase, WaiterState};
use crate::spec::LaneKind;

/// A reader that finds the window of a shared hold over waits so long for its readers to leave, so
/// that others have their turn; then it takes a hold of its own.
const DRAIN_TIME: Duration = Duration::from_millis(10);

impl Machine {
    /// Enters a shared hold beside the readers that are in it, if its window is open.
    pub(crate) fn join(&mut self, ask: &Ask, now: Tick) -> Option<Pass> {
        if self.is_open(ask, now) { self.enter_shared(ask, now) } else { None }
    }

    fn is_open(&self, ask: &Ask, now: Tick) -> bool {
        let Phase::Held(held) = &self.phase else { return false };
        self.lane == LaneKind::Read
            && !ask.guest
            && !self.sealed
            && !self.shut_down
            && (held.live.is_some() || held.offer.is_some())
            && held.is_good_for(ask, now)
            && self.has_room(held, now)
    }

    /// Whether one more caller may enter the hold, as far as its validity goes.
    pub(super) fn has_room(&self, held: &Held, now: Tick) -> bool {
        (self.lane == LaneKind::Read || !held.tokens.is_empty()) && held.hold.is_valid(now)
    }

    /// A waiter to whom the shared hold was offered enters it.
    pub(super) fn claim_shared(&mut self, ask: &Ask, now: Tick) -> Option<Pass> {
        if let Phase::Held(Held { offer, .. }) = &mut self.phase
            && let Some(open) = offer.as_mut()
        {
            open.open = open.open.saturating_sub(1);
            offer.take_if(|offer| offer.open == 0);
        }
        self.enter_shared(ask, now)
    }

    fn enter_shared(&mut self, ask: &Ask, now: Tick) -> Option<Pass> {
        let Phase::Held(held) = &mut self.phase else { return None };
        let handed_off = held.used > 0;
        held.used += 1;
        // All readers of the hold have its one token.
        let token = FencingToken::new(held.tokens.last);
        held.live.get_or_insert_with(|| Live::new(token, Tick::MAX, now));
        let pass = self.enter(LiveEntry::new(ask, now))?;
        Some(Pass { handed_off, ..pass })
    }

    /// Whether a hold that was granted here is still offered to somebody.
    pub(super) fn is_offered(&self) -> bool {
        matches!(&self.phase, Phase::Held(Held { offer: Some(_), .. }))
    }

    /// Whether the caller has to ask in another lane: it is a guest and its host has gone, or it
    /// would have to wait for readers to leave, who are no obstacle to it.
    pub(super) fn is_sealed_for(&mut self, ask: &Ask, now: Tick) -> bool {
        if ask.guest {
            return !matches!(&self.phase, Phase::Held(Held { live: Some(_), .. }));
        }
        if self.lane != LaneKind::Read {
            return false;
        }
        if self.sealed {
            return true;
        }
        let Phase::Held(held) = &mut self.phase else { return false };
        if held.live.is_none() && held.offer.is_none() {
            return false;
        }
        let until = held.window_end + DRAIN_TIME;
        if now >= until || !held.hold.is_valid(now) || held.hold.is_doubtful() {
            self.seal();
            return true;
        }
        held.drain_end = until;
        false
    }

    /// Takes nobody any more: callers find a fresh lane, and so do those who wait.
    pub(super) fn seal(&mut self) {
        self.sealed = true;
        self.act(Action::Detach);
        self.change_where(|_, waiter| waiter.is_active(), &WaiterState::Moved);
    }
}
