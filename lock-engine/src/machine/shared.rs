//! The readers of one process that share a hold, and callers that have to ask in another lane.
//! Either the hold takes no more readers, or the grant that they wanted to enter has ended.

use std::time::Duration;

use lock_core::internal::clock::Tick;

use super::{Ask, Held, Machine, Pass, Phase, WaiterState};
use crate::spec::LaneKind;

/// Maximum time for which a new reader waits for the readers of a shared hold to leave once its
/// window is over. Others get their turn this way. Then the reader takes its own hold.
const DRAIN_TIME: Duration = Duration::from_millis(10);

impl Machine {
    /// Enters a shared hold beside its readers, if its window is open.
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

    /// Whether a hold that was granted here is still on offer.
    pub(super) fn is_offered(&self) -> bool {
        matches!(&self.phase, Phase::Held(Held { offer: Some(_), .. }))
    }

    /// Whether the caller has to ask in another lane. This is so for a guest whose host is gone,
    /// and for a reader that would only wait for other readers to leave.
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

    /// Seals the lane: new callers and active waiters find a fresh one.
    pub(super) fn seal(&mut self) {
        self.sealed = true;
        self.change_where(|_, waiter| waiter.is_active(), &WaiterState::Over(None));
    }
}
