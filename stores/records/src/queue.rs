//! [`Queue`]: the waiters for a fair lock, in order of arrival.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use lock_core::store::{AcquireRequest, ServerTime};
use lock_core::{OwnerId, TokenRetention};

/// The place where a waiter hears of its grant: one of the processes on the database.
pub type ListenerId = Arc<str>;

/// The waiters of one key. Dead ones count as absent, and are removed by [`Queue::purge`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Queue {
    pub(super) waiters: VecDeque<Waiter>,
    /// Whether the first waiter has still to be told that it may be its turn.
    pub(super) unheard: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Waiter {
    pub(super) owner: OwnerId,
    pub(super) lease: Duration,
    pub(super) retention: TokenRetention,
    /// Whether a release may grant it the key: its request is for this key alone, and any token
    /// will do.
    pub(super) direct: bool,
    /// When it begins to count as dead.
    pub(super) alive_until: ServerTime,
    /// Where it listened when it queued or last gave a sign of life.
    pub(super) listener: Option<ListenerId>,
}

/// A waiter's sign of life.
#[derive(Clone, Debug)]
pub(super) struct Sign {
    pub(super) now: ServerTime,
    /// Time after which it counts as dead without another sign.
    pub(super) life: Duration,
    pub(super) listener: Option<ListenerId>,
}

/// Whether a time is so far ahead that a clock must have been set back since something got `life`.
/// Estimates of the clock differ by less.
pub(super) fn is_beyond(time: ServerTime, now: ServerTime, life: Duration) -> bool {
    time > now + life * 2
}

impl Queue {
    /// Removes the dead waiters, wherever they stand.
    pub(super) fn purge(&mut self, now: ServerTime) {
        self.unheard |= self.waiters.front().is_some_and(|head| head.alive_until <= now);
        self.waiters.retain(|waiter| waiter.alive_until > now);
    }

    /// Shortens the lives that the database's clock has lengthened when it was set back: no sign
    /// of life counts for longer than `life`.
    pub(super) fn bound(&mut self, now: ServerTime, life: Duration) {
        let longer = |waiter: &&mut Waiter| is_beyond(waiter.alive_until, now, life);
        self.waiters.iter_mut().filter(longer).for_each(|waiter| waiter.alive_until = now + life);
    }

    /// Returns the first live waiter.
    pub(super) fn head(&self, now: ServerTime) -> Option<&Waiter> {
        self.live(now).next()
    }

    pub(super) fn live(&self, now: ServerTime) -> impl Iterator<Item = &Waiter> {
        self.waiters.iter().filter(move |waiter| waiter.alive_until > now)
    }

    /// Returns how many waiters are before `owner`, and until when one of them counts as alive;
    /// `None` if there are none. Without a message, `owner` is not the first until then.
    pub(super) fn preceding(&self, owner: &OwnerId, now: ServerTime) -> Option<(u32, ServerTime)> {
        let place = self.live(now).position(|waiter| waiter.owner == *owner)?;
        let until = self.live(now).take(place).map(|waiter| waiter.alive_until).max()?;
        Some((u32::try_from(place).unwrap_or(u32::MAX), until))
    }

    fn live_of(&mut self, owner: &OwnerId, now: ServerTime) -> Option<&mut Waiter> {
        let mut alive = self.waiters.iter_mut().filter(|waiter| waiter.alive_until > now);
        alive.find(|waiter| waiter.owner == *owner)
    }

    /// Records a sign of life of `owner`; returns whether it is queued.
    pub(super) fn renew(&mut self, owner: &OwnerId, sign: Sign) -> bool {
        let Some(waiter) = self.live_of(owner, sign.now) else { return false };
        waiter.alive_until = sign.now + sign.life;
        waiter.listener = sign.listener;
        true
    }

    /// Records that `owner` asks again, if it is queued. A waiter that polls does so often: in the
    /// first eighth of its life, nothing has to be written.
    pub(super) fn asks_again(&mut self, owner: &OwnerId, sign: Sign) -> Option<&mut Waiter> {
        let waiter = self.live_of(owner, sign.now)?;
        if waiter.alive_until <= sign.now + sign.life * 7 / 8 {
            waiter.alive_until = sign.now + sign.life;
        }
        waiter.listener = sign.listener;
        Some(waiter)
    }

    /// Queues `owner` at the end, unless it has a place already.
    pub(super) fn join(&mut self, owner: &OwnerId, request: &AcquireRequest, sign: Sign) {
        let direct = request.items.len() == 1 && request.floor() == 0;
        let (now, life, listener) = (sign.now, sign.life, sign.listener.clone());
        if let Some(waiter) = self.asks_again(owner, sign) {
            (waiter.lease, waiter.retention) = (request.lease, request.retention);
            waiter.direct = direct;
            return;
        }
        self.purge(now);
        self.waiters.push_back(Waiter {
            owner: owner.clone(),
            lease: request.lease,
            retention: request.retention,
            direct,
            alive_until: now + life,
            listener,
        });
    }

    /// Removes `owner` from the queue.
    pub(super) fn leave(&mut self, owner: &OwnerId) {
        self.unheard |= self.waiters.front().is_some_and(|head| head.owner == *owner);
        self.waiters.retain(|waiter| waiter.owner != *owner);
    }

    /// Notes that the key may have become free, so that the first waiter has to be told.
    pub(super) fn stir(&mut self) {
        self.unheard = true;
    }

    /// Whether the first waiter has to be told; `true` only once.
    pub(super) fn take_unheard(&mut self) -> bool {
        std::mem::take(&mut self.unheard)
    }

    /// Returns when the last waiter is dead if none gives a sign of life.
    pub(super) fn over(&self) -> Option<ServerTime> {
        self.waiters.iter().map(|waiter| waiter.alive_until).max()
    }

    /// Removes all waiters once all are dead. Not earlier, because the next in line would have to
    /// be told, which the calendar can't do.
    pub(super) fn drop_expired(&mut self, now: ServerTime) {
        if self.over().is_none_or(|over| over <= now) {
            *self = Self::default();
        }
    }
}
