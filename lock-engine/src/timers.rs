//! [`Timers`]: when something is due, by lane.

use std::collections::BTreeMap;
use std::sync::Weak;

use lock_core::internal::clock::Tick;
use lock_core::internal::sync::{Mutex, lock};
use tokio::sync::Notify;

use super::lane::Lane;

/// The next time of each lane at which its machine has something to do. A lane's time is moved
/// under its machine's mutex.
#[derive(Debug, Default)]
// Its mutex is not beside what all threads read.
#[repr(align(128))]
pub(crate) struct Timers {
    inner: Mutex<Inner>,
    /// An earlier time than the one slept for was put in.
    earlier: Notify,
}

#[derive(Debug, Default)]
struct Inner {
    /// By time, and by the lane's number.
    queue: BTreeMap<(Tick, u64), Weak<Lane>>,
    /// What the timekeeper sleeps for.
    sleeping_until: Option<Tick>,
}

impl Timers {
    /// Moves the time of a lane from `old` to `new`; [`Tick::MAX`] stands for no time.
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

    /// Takes out what is due, of `most` lanes at most.
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

    /// When the next lane is due; the timekeeper sleeps until then, or until
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

    /// Lanes that have a time, for tests that look for leaks.
    #[cfg(feature = "testing")]
    pub(crate) fn len(&self) -> usize {
        lock(&self.inner).queue.len()
    }
}
