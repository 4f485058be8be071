//! The readers of one process that share one hold, and callers who have come to the wrong lane.

use std::time::Duration;

use lock_core::internal::clock::Tick;

use super::{Ask, Held, Machine, Pass, Phase, WaiterState};
use crate::spec::LaneKind;

/// A reader that finds the window of a shared hold over waits so long for its readers to leave, so
/// that others have their turn; then it takes a hold of its own.
const DRAIN_TIME: Duration = Duration::from_millis(10);

impl Machine {
    /// Enters a shared hold beside the readers that are in it, if its window is open.
    pub(crate) fn join(&mut self, ask: &Ask, now: Tick) -> Option<Pass> {
        if self.is_open(ask, now) { self.take(ask, now) } else { None }
    }

    fn is_open(&self, ask: &Ask, now: Tick) -> bool {
        let Phase::Held(held) = &self.phase else { return false };
        self.lane == LaneKind::Read
            && !ask.guest
            && !self.sealed
            && !self.shut_down
            && (held.live.is_some() || held.offer.is_some())
            && held.is_good_for(ask, now)
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
        if now >= until || !held.hold.is_valid(now) || held.failures > 0 {
            self.seal();
            return true;
        }
        held.drain_end = until;
        false
    }

    /// Takes nobody any more: callers find a fresh lane, and so do those who wait.
    pub(super) fn seal(&mut self) {
        self.sealed = true;
        self.change_where(|_, waiter| waiter.is_active(), &WaiterState::Over(None));
    }
}
