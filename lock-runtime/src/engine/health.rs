//! [`Health`]: says once that the store fails, and once that it works again.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crate::clock::Tick;

/// A store that fails now and then is spoken of this often at most.
const PAUSE: Duration = Duration::from_secs(10);

/// Whether the store answered the last call.
#[derive(Debug, Default)]
pub(crate) struct Health {
    failing: AtomicBool,
    /// When the next warning is due.
    quiet_until: AtomicU64,
}

impl Health {
    pub(crate) fn failed(&self, now: Tick, error: &dyn std::fmt::Display) {
        if !self.failing.load(Ordering::Relaxed)
            && now.as_nanos() >= self.quiet_until.load(Ordering::Relaxed)
            && !self.failing.swap(true, Ordering::Relaxed)
        {
            self.quiet_until.store((now + PAUSE).as_nanos(), Ordering::Relaxed);
            tracing::warn!(%error, "the lock store fails; waiters go on asking until their wait is over, holders until their lease is");
        }
    }

    pub(crate) fn answered(&self) {
        if self.failing.load(Ordering::Relaxed) && self.failing.swap(false, Ordering::Relaxed) {
            tracing::info!("the lock store answers again");
        }
    }
}
