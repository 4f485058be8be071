//! Steps that change nothing.

use std::time::Duration;

use lock_core::store::{Kind, LockStatus, ServerTime};
use lock_core::{FencingToken, OwnerId};

use crate::listeners::Listeners;
use crate::lock::Lock;
use crate::queue::Waiter;
use crate::record::{Name, Record};

/// The result of a look without a client.
#[derive(Debug, Default)]
pub struct Look {
    /// The holders.
    pub holders: Vec<OwnerId>,
    /// When the hold ends if nobody renews it.
    pub remaining: Option<Duration>,
    /// The waiters in order, and for how long each counts as alive.
    pub queue: Vec<(OwnerId, Duration)>,
}

/// Returns what is known about a lock, including its queue.
#[must_use]
pub fn look(name: &Name, record: &Record, now: ServerTime) -> Look {
    let Record::Lock(lock) = record else { return Look::default() };
    let status = status_of(name, lock, now, &Listeners::default());
    let alive = |waiter: &Waiter| (waiter.owner.clone(), waiter.alive_until.since(now));
    Look {
        holders: status.holders.into_iter().map(|(owner, _)| owner).collect(),
        remaining: status.remaining,
        queue: lock.queue.live(now).map(alive).collect(),
    }
}

/// Returns what is known about a lock.
pub(crate) fn status_of(name: &Name, lock: &Lock, now: ServerTime, listeners: &Listeners) -> LockStatus {
    let queued = lock.queue.live(now).count();
    let mut status = LockStatus::free();
    status.last_token = lock.counter(now).map(|counter| FencingToken::new(counter.top));
    status.remaining = lock.ends(now).map(|ends| ends.since(now));
    if let Some(hold) = lock.sole(now) {
        status.kind = Some(if queued == 0 { Kind::Mutex } else { Kind::Fair });
        status.holders.push((hold.owner.clone(), 1));
    } else if status.remaining.is_some() {
        status.kind = Some(if lock.read_write.writer(now).is_some() { Kind::Write } else { Kind::Read });
        status.holders.extend(lock.read_write.owners(now).map(|owner| (owner.clone(), 1)));
    }
    let waiters = if queued == 0 { listeners.handles(name) } else { queued };
    status.waiters = u64::try_from(waiters).unwrap_or(u64::MAX);
    status
}
