//! The order of waiters, and who has to be notified.

use std::time::Duration;

use lock_core::store::{DIRECT_LEASE, Item, Kind, Notice, Renewed};
use lock_core::{FencingToken, LockKey, OwnerId};

use super::{AT_ONCE, At, Step};
use crate::bell::Bell;
use crate::entry::{Channel, Entry, Listener};

/// The way in which the first of a fair queue gets its turn.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Turn {
    /// It is granted the key in this step.
    Grant,
    /// It is told to try.
    Tell,
}

impl Step<'_> {
    /// Notifies listeners that a hold of `key` has ended, or will end after `linger`. The latter
    /// matters too: a waiter that sleeps until the end of the lease has to learn that the end is
    /// nearer.
    pub(super) fn wake(&mut self, key: &LockKey, linger: Duration) {
        let now = self.at.now;
        let Some(entry) = self.table.get(self.prefix, key) else { return };
        if linger.is_zero() {
            entry.queue.stir();
            settle(entry, key, Turn::Grant, self.at, &mut self.bell);
            // Other holds are left, or the key was just granted.
            if entry.ends(now).is_some() {
                return;
            }
        } else {
            let head = entry.queue.head(now).map(|head| &head.owner);
            if let Some(listener) = head.and_then(|head| listener_of(entry, head)) {
                self.bell.retry(listener);
            }
        }
        tell(entry, Kind::Mutex, &mut self.bell);
        tell(entry, Kind::Read, &mut self.bell);
    }
}

/// Grants the key to the first of the queue, or notifies it, if the key is free and it has not been
/// told.
pub(super) fn settle(entry: &mut Entry, key: &LockKey, turn: Turn, at: At, bell: &mut Bell) {
    let now = at.now;
    entry.queue.purge(now);
    if entry.ends(now).is_some() || !entry.queue.take_unheard() {
        return;
    }
    let Some(head) = entry.queue.head(now) else { return };
    // Without a watch, the waiter asks by itself, in its own time.
    let Some(listener) = listener_of(entry, &head.owner) else { return };
    let top = entry.counter(now).map_or(0, |counter| counter.top);
    let range = (turn == Turn::Grant && head.direct).then(|| at.tokens(key, top, 1, 0));
    let Some(Ok(range)) = range else {
        bell.retry(listener);
        return;
    };
    let token = FencingToken::new(range.last);
    bell.granted(listener, Notice::Granted { token, moment: at.server_time.into() });
    let owner = head.owner.clone();
    let (expires, retention) = (now + head.lease.min(DIRECT_LEASE), head.retention);
    entry.queue.leave(&owner);
    entry.take_sole(&owner, expires, now);
    at.count(entry, range);
    entry.lengthen_counter(expires, retention);
}

/// Records a sign of life of a waiter that has not got the key.
pub(super) fn keep_waiting(entry: &mut Entry, item: &Item, at: At, bell: &mut Bell) -> Renewed {
    let now = at.now;
    match item.kind {
        Kind::Fair => {
            let queued = entry.queue.renew(&item.owner, now).is_some();
            settle(entry, &item.key, Turn::Tell, at, bell);
            if !queued {
                return Renewed::Gone;
            }
        }
        // The whole request has to be sent again, because it decides whether there may be an
        // intent.
        Kind::Write if entry.read_write.keep_intent(&item.owner, now) => return Renewed::Waiting(AT_ONCE),
        _ => {}
    }
    Renewed::Waiting(entry.refuses(item, now).map_or(AT_ONCE, |until| until.since(now)))
}

/// Notifies all waiters for keys of this kind, except those in the queue.
pub(super) fn tell(entry: &Entry, kind: Kind, bell: &mut Bell) {
    for listener in entry.listeners.iter().filter(|listener| listener.channel.is_of(kind)) {
        bell.retry(listener);
    }
}

fn listener_of<'a>(entry: &'a Entry, owner: &OwnerId) -> Option<&'a Listener> {
    let mine = |listener: &&Listener| matches!(&listener.channel, Channel::Fair(of) if of == owner);
    entry.listeners.iter().filter(mine).find(|listener| !listener.watcher.notices.is_closed())
}
