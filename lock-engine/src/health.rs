//! [`Health`]: keeps the store's last error, and reports once that the store fails and once that it
//! works again. Panics of subscribers are caught there, because the call's answer still has to be
//! handled.

use std::time::Duration;

use lock_core::internal::clock::Tick;
use lock_core::internal::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use lock_core::internal::sync::{Mutex, catch_panics, lock};
use lock_core::store::StoreError;

use crate::trace::TARGET;

/// Minimum time between two reports on a store that fails now and then.
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

    /// Records an error. A transient error counts as a failure; with any other, the store has
    /// answered.
    pub(super) fn note(&self, now: Tick, error: &StoreError) {
        *lock(&self.last_error) = Some((now, error.clone()));
        if !error.is_transient() {
            self.answered();
        } else if self.is_news(now) {
            catch_panics(|| {
                tracing::warn!(target: TARGET, %error, "the lock store fails; acquires are retried until their wait \
                                                        ends, renewals until the lease ends, releases until the \
                                                        store answers");
            });
        }
    }

    /// Whether this failure has to be reported; true for only one of several concurrent failures.
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
