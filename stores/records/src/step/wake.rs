//! The order of waiters, and who has to be notified.

use std::time::Duration;

use lock_core::store::{Item, Kind, Renewed, ServerTime};
use lock_core::{FencingToken, LockKey};

use super::{AT_ONCE, count, next_tokens};
use crate::listeners::What;
use crate::queue::Sign;
use crate::record::Record;
use crate::store::Work;

/// Time between the looks of two waiters after the end of a lease that was not renewed.
const TURN: Duration = Duration::from_millis(300);

/// The way in which the first of a fair queue gets its turn.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Turn {
    /// It is granted the key in this step.
    Grant,
    /// It is told to try.
    Tell,
}

impl Work<'_> {
    /// Notifies listeners that a hold of `key` has ended, or will end after `linger`. The latter
    /// matters too: a waiter that sleeps until the end of the lease has to learn that the end is
    /// nearer.
    pub(super) fn wake(&mut self, index: usize, key: &LockKey, linger: Duration) {
        let now = self.now;
        let Some(lock) = self.lock(index) else { return };
        if linger.is_zero() {
            lock.queue.stir();
            self.settle(index, key, Turn::Grant);
            // Other holds are left, or the key was just granted.
            if self.lock(index).is_none_or(|lock| lock.ends(now).is_some()) {
                return;
            }
        } else if let Some(head) = lock.queue.head(now) {
            let (owner, listener) = (head.owner.clone(), head.listener.clone());
            let listener =
                self.names.get(index).and_then(|name| self.listeners.reach(name, &owner, listener.as_ref()));
            self.tell_waiter(index, What::Told(owner), listener);
        }
        self.tell(index, What::Freed);
    }

    /// Grants the key to the first of the queue, or notifies it, if the key is free and it has not
    /// been told.
    pub(super) fn settle(&mut self, index: usize, key: &LockKey, turn: Turn) {
        let now = self.now;
        let (Some(lock), Some(name)) = (self.records.get_mut(index).map(Record::lock), self.names.get(index))
        else {
            return;
        };
        lock.queue.purge(now);
        if lock.ends(now).is_some() || !lock.queue.take_unheard() {
            return;
        }
        let Some(head) = lock.queue.head(now) else { return };
        let owner = head.owner.clone();
        // A waiter that does not listen asks by itself, in its own time.
        let listener @ Some(_) = self.listeners.reach(name, &owner, head.listener.as_ref()) else { return };
        let (expires, retention) = (now + head.lease.min(self.abilities.direct_lease), head.retention);
        let top = lock.counter(now).map_or(0, |counter| counter.top);
        let range = (turn == Turn::Grant && head.direct).then(|| next_tokens(key, top, now, 1, 0));
        let Some(Ok(range)) = range else {
            return self.tell_waiter(index, What::Told(owner), listener);
        };
        lock.queue.leave(&owner);
        lock.take_sole(&owner, expires, now);
        count(lock, range, now);
        lock.lengthen_counter(expires, retention);
        self.tell_waiter(index, What::Granted(owner, FencingToken::new(range.last)), listener);
    }

    /// Returns the sign of life that a waiter gives in this step.
    pub(super) fn sign(&self) -> Sign {
        Sign { now: self.now, life: self.abilities.waiter_life, listener: self.listeners.here() }
    }

    /// Records a sign of life of a waiter that has not got the key.
    pub(super) fn keep_waiting(&mut self, index: usize, item: &Item) -> Renewed {
        let (now, abilities) = (self.now, self.abilities);
        let sign = self.sign();
        let Some(lock) = self.lock(index) else { return Renewed::Gone };
        lock.bound_waits(abilities, now);
        match item.kind {
            kind if abilities.queues(kind) => {
                let queued = lock.queue.renew(&item.owner, sign);
                self.settle(index, &item.key, Turn::Tell);
                if !queued {
                    return Renewed::Gone;
                }
            }
            // The whole request has to be sent again, because it decides whether there may be an
            // intent.
            Kind::Write if lock.read_write.keep_intent(&item.owner, abilities.intent_life, now) => {
                return Renewed::Waiting(AT_ONCE);
            }
            _ => {}
        }
        let refused = self.lock(index).and_then(|lock| lock.refuses(item, abilities, now));
        Renewed::Waiting(refused.map_or(AT_ONCE, |until| self.turn(index, item, until).0.since(now)))
    }

    /// Returns when a waiter looks again that is refused `until` then, and how many precede it. One
    /// that others precede looks later, in its turn: they may have left by then, of which it hears
    /// nothing.
    pub(super) fn turn(&mut self, index: usize, item: &Item, until: ServerTime) -> (ServerTime, u32) {
        let now = self.now;
        if !self.abilities.queues(item.kind) {
            return (until, 0);
        }
        let preceding = self.lock(index).and_then(|lock| lock.queue.preceding(&item.owner, now));
        let Some((ahead, alive)) = preceding else { return (until, 0) };
        (until.max(alive.min(until + TURN.saturating_mul(ahead))), ahead)
    }
}
