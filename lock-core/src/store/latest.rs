//! [`Latest`]: the time until which a request may be executed.

use std::time::Duration;

use super::ServerTime;
use crate::internal::sync::atomic::{AtomicU64, Ordering};

/// Latest time of a request that was withdrawn before it was sent.
const SEALED: u64 = u64::MAX;

/// The largest server time at which any copy of a request may still be executed.
#[derive(Debug, Default)]
pub(super) struct Latest(AtomicU64);

impl Latest {
    /// Records that the request is sent now: it may be executed until `timeout` after the server's
    /// time. The result never decreases. A sealed request gets a time in the past.
    pub(super) fn stamp(&self, estimate: ServerTime, timeout: Duration) -> ServerTime {
        let micros = u64::try_from(timeout.as_micros()).unwrap_or(u64::MAX);
        let latest = estimate.as_micros().saturating_add(micros).min(SEALED - 1);
        let later = |old: u64| (old != SEALED).then(|| old.max(latest));
        let stamped = self.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, later);
        ServerTime::from_micros(stamped.map_or(0, |old| old.max(latest)))
    }

    /// Returns the latest time. `None` when the request was never stamped, and so never sent: it
    /// can't be sent from then on.
    pub(super) fn seal(&self) -> Option<ServerTime> {
        match self.0.compare_exchange(0, SEALED, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) | Err(SEALED) => None,
            Err(latest) => Some(ServerTime::from_micros(latest)),
        }
    }

    /// Returns the latest time; `None` before the first stamp.
    pub(super) fn get(&self) -> Option<ServerTime> {
        Some(self.0.load(Ordering::Acquire))
            .filter(|&latest| latest > 0 && latest != SEALED)
            .map(ServerTime::from_micros)
    }

    /// Whether the request was sealed before it was ever sent.
    pub(super) fn is_sealed(&self) -> bool {
        self.0.load(Ordering::Acquire) == SEALED
    }
}
