//! [`Timers`]: when each lane is due.

use std::collections::BTreeMap;
use std::sync::Weak;

use lock_core::internal::clock::Tick;
use lock_core::internal::sync::{Mutex, lock};
use tokio::sync::Notify;

use super::lane::Lane;

/// The next time at which the machine of each lane has something to do. A lane's time is changed
/// under its machine's mutex.
#[derive(Debug, Default)]
// The mutex must not share a cache line with data that all threads read.
#[repr(align(128))]
pub(crate) struct Timers {
    inner: Mutex<Inner>,
    /// Notified when a lane becomes due earlier than the timekeeper sleeps.
    earlier: Notify,
}

#[derive(Debug, Default)]
struct Inner {
    /// The lanes, by due time and number.
    queue: BTreeMap<(Tick, u64), Weak<Lane>>,
    /// The time until which the timekeeper sleeps.
    sleeping_until: Option<Tick>,
}

impl Timers {
    /// Moves the due time of a lane from `old` to `new`; [`Tick::MAX`] stands for no time.
    pub(crate) fn change(&self, id: u64, old: Tick, new: Tick, lane: impl FnOnce() -> Weak<Lane>) {
        let mut inner = lock(&self.inner);
        if old < Tick::MAX {
            inner.queue.remove(&(old, id));
        }
        if new == Tick::MAX {
            return;
        }
        inner.queue.insert((new, id), lane());
        let wake = inner.sleeping_until.is_some_and(|until| new < until);
        drop(inner);
        if wake {
            self.earlier.notify_one();
        }
    }

    /// Removes and returns the lanes that are due, `most` at most.
    pub(crate) fn due(&self, now: Tick, most: usize) -> Vec<(Tick, Weak<Lane>)> {
        let mut inner = lock(&self.inner);
        let mut lanes = Vec::new();
        while let Some(first) = inner.queue.first_entry() {
            if first.key().0 > now || lanes.len() == most {
                break;
            }
            let ((due, _), lane) = first.remove_entry();
            lanes.push((due, lane));
        }
        lanes
    }

    /// Returns when the next lane is due; the timekeeper sleeps until then, or until
    /// [`earlier`](Self::earlier).
    pub(crate) fn sleep_until(&self) -> Tick {
        let mut inner = lock(&self.inner);
        let next = inner.queue.first_key_value().map_or(Tick::MAX, |((due, _), _)| *due);
        inner.sleeping_until = Some(next);
        next
    }

    pub(crate) async fn earlier(&self) {
        self.earlier.notified().await;
    }

    /// Returns the number of lanes with a due time, for tests that look for leaks.
    #[cfg(feature = "testing")]
    pub(crate) fn len(&self) -> usize {
        lock(&self.inner).queue.len()
    }
}
