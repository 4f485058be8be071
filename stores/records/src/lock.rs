//! [`Lock`]: the data of a lock. Expired data counts as absent.

use std::time::Duration;

use lock_core::store::{Abilities, Item, Kind, ServerTime};
use lock_core::{OwnerId, TokenRetention};

use super::queue::Queue;
use super::read_write::ReadWrite;

/// The data of a lock.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lock {
    /// The holder of a mutex or a fair lock: they differ in who is next, not in how they are held.
    pub(super) sole: Option<Held>,
    pub(super) queue: Queue,
    pub(super) read_write: ReadWrite,
    pub(super) counter: Option<Counter>,
}

/// The hold of one owner. There is no hold count: the engine counts re-entries, the store sees one
/// hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Held {
    pub(super) owner: OwnerId,
    pub(super) expires: ServerTime,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Counter {
    /// The highest token ever granted.
    pub(super) top: u64,
    /// `None`: kept forever.
    pub(super) expires: Option<ServerTime>,
}

impl Lock {
    pub(super) fn sole(&self, now: ServerTime) -> Option<&Held> {
        self.sole.as_ref().filter(|hold| hold.expires > now)
    }

    fn sole_of(&mut self, owner: &OwnerId, now: ServerTime) -> Option<&mut Held> {
        self.sole.as_mut().filter(|hold| hold.expires > now && hold.owner == *owner)
    }

    fn is_sole(&self, owner: &OwnerId, now: ServerTime) -> bool {
        self.sole(now).is_some_and(|hold| hold.owner == *owner)
    }

    /// Whether this owner holds the key, in whichever kind.
    #[must_use]
    pub fn is_held_by(&self, owner: &OwnerId, now: ServerTime) -> bool {
        self.is_sole(owner, now) || self.read_write.is_held_by(owner, now)
    }

    /// Returns when the last hold of any kind ends if nobody renews it; `None` when the key is
    /// free.
    pub(super) fn ends(&self, now: ServerTime) -> Option<ServerTime> {
        let sole = self.sole(now).map(|hold| hold.expires);
        sole.or_else(|| self.read_write.ends(now))
    }

    pub(super) fn counter(&self, now: ServerTime) -> Option<Counter> {
        self.counter.filter(|counter| counter.expires.is_none_or(|expires| expires > now))
    }

    /// Lets the counter outlive a hold that ends at `ends`. Never shortens its life.
    pub(super) fn lengthen_counter(&mut self, ends: ServerTime, retention: TokenRetention) {
        if let Some(counter) = &mut self.counter {
            counter.expires = match retention {
                TokenRetention::For(time) => counter.expires.map(|expires| expires.max(ends + time)),
                TokenRetention::Keep => None,
            };
        }
    }

    /// Lets nobody that waits keep others out for longer than it says, although the clock was set
    /// back.
    pub(super) fn bound_waits(&mut self, abilities: &Abilities, now: ServerTime) {
        self.queue.bound(now, abilities.waiter_life);
        self.read_write.bound(now, abilities.intent_life);
    }

    /// Returns until when `item` can't be had; `None` when it can.
    pub(super) fn refuses(&self, item: &Item, abilities: &Abilities, now: ServerTime) -> Option<ServerTime> {
        let owner = &item.owner;
        match item.kind {
            Kind::Read | Kind::Write if self.sole(now).is_some() => self.ends(now),
            Kind::Read => self.read_write.refuses_read(owner, now),
            Kind::Write => self.read_write.refuses_write(owner, now),
            _ if self.is_sole(owner, now) => None,
            kind if abilities.queues(kind) => self.ends(now).or_else(|| {
                let head = self.queue.head(now).filter(|head| head.owner != *owner);
                head.map(|head| head.alive_until)
            }),
            _ => self.ends(now),
        }
    }

    /// Takes an item that is not refused. A re-sent request counts as the same grant, which is
    /// never shortened.
    pub(super) fn take(&mut self, item: &Item, expires: ServerTime, abilities: &Abilities, now: ServerTime) {
        let owner = &item.owner;
        match item.kind {
            Kind::Read => self.read_write.read(owner, expires, now),
            Kind::Write => self.read_write.write(owner, expires, now),
            kind => {
                if abilities.queues(kind) {
                    self.queue.leave(owner);
                }
                self.take_sole(owner, expires, now);
            }
        }
    }

    pub(super) fn take_sole(&mut self, owner: &OwnerId, expires: ServerTime, now: ServerTime) {
        match self.sole_of(owner, now) {
            Some(hold) => hold.expires = hold.expires.max(expires),
            None => self.sole = Some(Held { owner: owner.clone(), expires }),
        }
    }

    /// Whether the item's owner holds the key.
    pub(super) fn has(&self, item: &Item, now: ServerTime) -> bool {
        match item.kind {
            Kind::Read | Kind::Write => self.read_write.is_held_by(&item.owner, now),
            _ => self.is_sole(&item.owner, now),
        }
    }

    /// Extends the hold of the item's owner; returns whether there is one.
    pub(super) fn renew(&mut self, item: &Item, expires: ServerTime, now: ServerTime) -> bool {
        match item.kind {
            Kind::Read | Kind::Write => self.read_write.renew(&item.owner, expires, now),
            _ => {
                let Some(hold) = self.sole_of(&item.owner, now) else { return false };
                hold.expires = hold.expires.max(expires);
                true
            }
        }
    }

    /// Ends the hold of the item's owner, now or after `linger`; returns whether there was one.
    pub(super) fn end(&mut self, item: &Item, linger: Duration, now: ServerTime) -> bool {
        match item.kind {
            Kind::Read | Kind::Write => self.read_write.end(&item.owner, linger, now),
            _ => {
                let Some(hold) = self.sole_of(&item.owner, now) else { return false };
                hold.expires = hold.expires.min(now + linger);
                self.sole.take_if(|_| linger.is_zero());
                true
            }
        }
    }

    /// Returns the earliest time at which some of this entry can be thrown away.
    pub(super) fn due(&self) -> Option<ServerTime> {
        let sole = self.sole.as_ref().map(|hold| hold.expires);
        let counter = self.counter.and_then(|counter| counter.expires);
        let all = [sole, counter, self.read_write.over(), self.queue.over()];
        all.into_iter().flatten().min()
    }

    /// Returns how many hold or wait, about.
    pub(super) fn owners(&self) -> usize {
        let ReadWrite { writer, readers, intent } = &self.read_write;
        let single = self.sole.iter().chain(writer).chain(intent).count();
        single + readers.len() + self.queue.waiters.len()
    }

    /// Visits the end of everything that ends by itself.
    pub(super) fn ends_of_all(&self, visit: &mut dyn FnMut(ServerTime)) {
        let ReadWrite { writer, readers, intent } = &self.read_write;
        let holds = self.sole.iter().chain(writer).chain(readers).chain(intent);
        holds.for_each(|hold| visit(hold.expires));
        self.queue.waiters.iter().for_each(|waiter| visit(waiter.alive_until));
        self.counter.and_then(|counter| counter.expires).into_iter().for_each(visit);
    }

    /// Returns when everything here is over, but for the counter.
    #[cfg(feature = "text")]
    pub(super) fn over(&self) -> Option<ServerTime> {
        let sole = self.sole.as_ref().map(|hold| hold.expires);
        [sole, self.read_write.over(), self.queue.over()].into_iter().flatten().max()
    }

    pub(super) fn drop_expired(&mut self, now: ServerTime) {
        if self.sole(now).is_none() {
            self.sole = None;
        }
        self.counter = self.counter(now);
        self.read_write.drop_expired(now);
        self.queue.drop_expired(now);
    }

    pub(super) fn is_empty(&self) -> bool {
        let held = self.sole.is_some() || self.read_write.over().is_some() || self.queue.over().is_some();
        !held && self.counter.is_none()
    }
}
