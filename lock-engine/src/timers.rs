//! [`Timers`]: the one timer structure of a manager.

use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::{Arc, Weak};

use lock_core::internal::clock::Tick;
use lock_core::internal::sync::{Mutex, lock};
use tokio::sync::Notify;

use super::hold::Hold;
use super::registry::Lane;

/// Something that is due.
#[derive(Clone, Debug)]
pub(crate) enum Job {
    /// Renew the hold, or find that its deadline is over.
    Hold(Arc<Hold>),
    /// A `max_hold` ends.
    MaxHold(Weak<Lane>),
    /// Take back an unclaimed offer.
    Sweep(Weak<Lane>),
    /// Readers have had their time to leave a shared hold.
    LetGo(Weak<Lane>),
    /// Keep the place in the store's queues.
    Waiting(Weak<Lane>),
}

/// Jobs in the order in which they are due; each has a number by which it is moved or removed.
#[derive(Debug, Default)]
// Its mutex is not beside what all threads read.
#[repr(align(128))]
pub(crate) struct Timers {
    inner: Mutex<Inner>,
    /// An earlier job than the one slept for was put in.
    earlier: Notify,
}

#[derive(Debug, Default)]
struct Inner {
    queue: BTreeMap<(Tick, u64), Job>,
    due: HashMap<u64, Tick, BuildHasherDefault<Spread>>,
    /// What the timekeeper sleeps for.
    sleeping_until: Option<Tick>,
}

/// Hashes the numbers of jobs, which the engine counts: nobody else chooses them, so they only have to be spread.
#[derive(Default)]
struct Spread(u64);

impl Hasher for Spread {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.write_u64(self.0 ^ u64::from(byte)));
    }

    fn write_u64(&mut self, number: u64) {
        // 2^64 by the golden ratio. The table takes its place from the low bits and a tag from the high ones.
        self.0 = number.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(32);
    }
}

impl Timers {
    /// Puts the job in, in place of an earlier one with its number.
    pub(crate) fn set(&self, id: u64, due: Tick, job: Job) {
        let mut inner = lock(&self.inner);
        if let Some(old) = inner.due.insert(id, due) {
            inner.queue.remove(&(old, id));
        }
        inner.queue.insert((due, id), job);
        let wake = inner.sleeping_until.is_some_and(|until| due < until);
        drop(inner);
        if wake {
            self.earlier.notify_one();
        }
    }

    /// Takes the job out.
    pub(crate) fn remove(&self, id: u64) {
        let mut inner = lock(&self.inner);
        if let Some(due) = inner.due.remove(&id) {
            inner.queue.remove(&(due, id));
        }
    }

    /// Takes out what is due, `most` jobs at most.
    pub(crate) fn due(&self, now: Tick, most: usize) -> Vec<Job> {
        let mut inner = lock(&self.inner);
        let mut jobs = Vec::new();
        while let Some(first) = inner.queue.first_entry() {
            if first.key().0 > now || jobs.len() == most {
                break;
            }
            let ((_, id), job) = first.remove_entry();
            inner.due.remove(&id);
            jobs.push(job);
        }
        jobs
    }

    /// When the next job is due; the timekeeper sleeps until then, or until [`earlier`](Self::earlier).
    pub(crate) fn sleep_until(&self) -> Tick {
        let mut inner = lock(&self.inner);
        let next = inner.queue.first_key_value().map_or(Tick::MAX, |((due, _), _)| *due);
        inner.sleeping_until = Some(next);
        next
    }

    pub(crate) async fn earlier(&self) {
        self.earlier.notified().await;
    }

    /// Jobs set, for tests that look for leaks.
    #[cfg(feature = "testing")]
    pub(crate) fn len(&self) -> usize {
        lock(&self.inner).queue.len()
    }
}
