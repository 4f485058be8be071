//! [`ReadWrite`]: the readers of a key, its writer, and the waiting writer.

use std::time::Duration;

use lock_core::OwnerId;
use lock_core::store::ServerTime;

use super::lock::Held;
use super::queue::is_beyond;

/// The read/write state of a key. Expired holds count as absent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ReadWrite {
    /// The writer, which may be among the readers as well.
    pub(super) writer: Option<Held>,
    pub(super) readers: Vec<Held>,
    /// A writer that waits for readers to leave, and keeps new ones out.
    pub(super) intent: Option<Held>,
}

impl ReadWrite {
    fn live(&self, now: ServerTime) -> impl Iterator<Item = &Held> {
        self.writer.iter().chain(&self.readers).filter(move |hold| hold.expires > now)
    }

    fn live_of<'a>(&'a mut self, owner: &'a OwnerId, now: ServerTime) -> impl Iterator<Item = &'a mut Held> {
        let holds = self.writer.iter_mut().chain(&mut self.readers);
        holds.filter(move |hold| hold.expires > now && hold.owner == *owner)
    }

    /// Returns the owners, the writer first.
    pub(super) fn owners(&self, now: ServerTime) -> impl Iterator<Item = &OwnerId> {
        self.live(now).map(|hold| &hold.owner)
    }

    pub(super) fn writer(&self, now: ServerTime) -> Option<&Held> {
        self.writer.as_ref().filter(|hold| hold.expires > now)
    }

    fn intent(&self, now: ServerTime) -> Option<&Held> {
        self.intent.as_ref().filter(|intent| intent.expires > now)
    }

    /// Returns when the last hold ends if nobody renews.
    pub(super) fn ends(&self, now: ServerTime) -> Option<ServerTime> {
        self.live(now).map(|hold| hold.expires).max()
    }

    pub(super) fn is_held_by(&self, owner: &OwnerId, now: ServerTime) -> bool {
        self.live(now).any(|hold| hold.owner == *owner)
    }

    /// Returns until when `owner` may not read.
    pub(super) fn refuses_read(&self, owner: &OwnerId, now: ServerTime) -> Option<ServerTime> {
        if self.is_held_by(owner, now) {
            return None;
        }
        match self.writer(now) {
            Some(_) => self.ends(now),
            None => self.intent(now).map(|intent| intent.expires),
        }
    }

    /// Returns until when `owner` may not write.
    pub(super) fn refuses_write(&self, owner: &OwnerId, now: ServerTime) -> Option<ServerTime> {
        match self.writer(now) {
            Some(writer) if writer.owner == *owner => None,
            _ => self.ends(now),
        }
    }

    pub(super) fn read(&mut self, owner: &OwnerId, expires: ServerTime, now: ServerTime) {
        self.readers.retain(|reader| reader.expires > now);
        match self.readers.iter_mut().find(|reader| reader.owner == *owner) {
            Some(reader) => reader.expires = reader.expires.max(expires),
            None => self.readers.push(Held { owner: owner.clone(), expires }),
        }
    }

    pub(super) fn write(&mut self, owner: &OwnerId, expires: ServerTime, now: ServerTime) {
        let before = self.writer(now).map_or(expires, |writer| writer.expires);
        self.writer = Some(Held { owner: owner.clone(), expires: before.max(expires) });
        self.end_intent(owner, now);
    }

    /// Shortens an intent that the database's clock has lengthened when it was set back.
    pub(super) fn bound(&mut self, now: ServerTime, life: Duration) {
        if let Some(intent) = self.intent.as_mut().filter(|intent| is_beyond(intent.expires, now, life)) {
            intent.expires = now + life;
        }
    }

    /// Notes that `owner` waits to write: if only readers are in its way, new ones are kept out.
    /// Another writer's intent does the same, and stays.
    pub(super) fn intend(&mut self, owner: &OwnerId, life: Duration, now: ServerTime) {
        if self.is_read(now) && self.intent(now).is_none_or(|intent| intent.owner == *owner) {
            self.intent = Some(Held { owner: owner.clone(), expires: now + life });
        }
    }

    /// Whether readers hold the key, and no writer.
    pub(super) fn is_read(&self, now: ServerTime) -> bool {
        self.writer(now).is_none() && self.ends(now).is_some()
    }

    /// Extends the intent of `owner` while there are readers to keep out. Returns whether
    /// readers hold the key and no intent keeps new ones out.
    pub(super) fn keep_intent(&mut self, owner: &OwnerId, life: Duration, now: ServerTime) -> bool {
        if !self.is_read(now) {
            return false;
        }
        match self.intent.as_mut().filter(|intent| intent.expires > now) {
            Some(intent) => {
                if intent.owner == *owner {
                    intent.expires = now + life;
                }
                false
            }
            None => true,
        }
    }

    /// Ends the intent of `owner`; returns whether there was one.
    pub(super) fn end_intent(&mut self, owner: &OwnerId, now: ServerTime) -> bool {
        if self.intent.as_ref().is_none_or(|intent| intent.owner != *owner) {
            return false;
        }
        self.intent.take().is_some_and(|intent| intent.expires > now)
    }

    /// Ends the holds of `owner`, now or after `linger`; returns whether there were any.
    pub(super) fn end(&mut self, owner: &OwnerId, linger: Duration, now: ServerTime) -> bool {
        let mut held = false;
        for hold in self.live_of(owner, now) {
            held = true;
            hold.expires = hold.expires.min(now + linger);
        }
        self.drop_ended(now);
        held
    }

    /// Extends the holds of `owner`; returns whether there are any.
    pub(super) fn renew(&mut self, owner: &OwnerId, expires: ServerTime, now: ServerTime) -> bool {
        let mut held = false;
        for hold in self.live_of(owner, now) {
            held = true;
            hold.expires = hold.expires.max(expires);
        }
        held
    }

    /// Turns `owner` from the writer into a reader; returns whether it was the writer.
    pub(super) fn downgrade(&mut self, owner: &OwnerId, now: ServerTime) -> bool {
        match self.writer.take_if(|writer| writer.expires > now && writer.owner == *owner) {
            Some(writer) => {
                self.read(owner, writer.expires, now);
                true
            }
            None => false,
        }
    }

    /// Ends all holds; a waiting writer's intent stays.
    pub(super) fn clear(&mut self) {
        self.writer = None;
        self.readers = Vec::new();
    }

    /// Returns when everything here has expired.
    pub(super) fn over(&self) -> Option<ServerTime> {
        let all = self.writer.iter().chain(&self.readers).chain(&self.intent);
        all.map(|hold| hold.expires).max()
    }

    pub(super) fn drop_expired(&mut self, now: ServerTime) {
        self.drop_ended(now);
        self.intent.take_if(|intent| intent.expires <= now);
    }

    fn drop_ended(&mut self, now: ServerTime) {
        self.writer.take_if(|writer| writer.expires <= now);
        self.readers.retain(|reader| reader.expires > now);
        if self.readers.is_empty() {
            self.readers = Vec::new();
        }
    }
}
