//! [`Health`]: keeps the store's last error, and says once that the store fails and once that it
//! works again. A subscriber that panics there is caught: the answer of the call still has to be
//! dealt with.

use std::time::Duration;

use lock_core::internal::clock::Tick;
use lock_core::internal::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use lock_core::internal::sync::{Mutex, catch_panics, lock};
use lock_core::store::StoreError;

use crate::trace::TARGET;

/// A store that fails now and then is spoken of this often at most.
const PAUSE: Duration = Duration::from_secs(10);

/// Whether the store answered the last call.
#[derive(Debug, Default)]
pub(crate) struct Health {
    failing: AtomicBool,
    /// When the next warning is due.
    quiet_until: AtomicU64,
    last_error: Mutex<Option<(Tick, StoreError)>>,
}

impl Health {
    pub(crate) fn last_error(&self) -> Option<(Tick, StoreError)> {
        lock(&self.last_error).clone()
    }

    /// Takes note of an error. A transient one is a failure; with any other, the store has
    /// answered.
    pub(super) fn note(&self, now: Tick, error: &StoreError) {
        *lock(&self.last_error) = Some((now, error.clone()));
        if !error.is_transient() {
            self.answered();
        } else if self.is_news(now) {
            catch_panics(|| {
                tracing::warn!(target: TARGET, %error, "the lock store fails; waiters go on asking until their wait is over, holders until their lease is, releases until it answers");
            });
        }
    }

    /// For one of those who fail at the same time.
    pub(super) fn is_news(&self, now: Tick) -> bool {
        let is_news = !self.failing.load(Ordering::Relaxed)
            && now.as_nanos() >= self.quiet_until.load(Ordering::Relaxed)
            && !self.failing.swap(true, Ordering::Relaxed);
        if is_news {
            self.quiet_until.store((now + PAUSE).as_nanos(), Ordering::Relaxed);
        }
        is_news
    }

    pub(crate) fn answered(&self) {
        if self.failing.load(Ordering::Relaxed) && self.failing.swap(false, Ordering::Relaxed) {
            catch_panics(|| tracing::info!(target: TARGET, "the lock store answers again"));
        }
    }
}
