//! [`Model`]: every kind of lock, written as plainly as possible.

use std::collections::BTreeMap;

use lock_core::store::{DIRECT_LEASE, INTENT_LIFE, Kind, TokenRange, WAITER_LIFE};

use super::{RETENTION_MS, Wish};

/// The model. Times are milliseconds since the start. Data is thrown away only by calls.
#[derive(Default)]
pub(super) struct Model {
    pub(super) now: u64,
    keys: BTreeMap<usize, Key>,
}

#[derive(Default)]
struct Key {
    /// The holder of a mutex or a fair lock.
    sole: Option<(u8, u64)>,
    writer: Option<(u8, u64)>,
    readers: BTreeMap<u8, u64>,
    intent: Option<(u8, u64)>,
    queue: Vec<Waiter>,
    counter: Option<(u64, u64)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Waiter {
    pub(super) owner: u8,
    pub(super) lease_ms: u64,
    pub(super) direct: bool,
    dies: u64,
}

fn ms(duration: std::time::Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap()
}

fn is_sole(kind: Kind) -> bool {
    matches!(kind, Kind::Mutex | Kind::Fair)
}

impl Model {
    fn key(&mut self, key: usize) -> &mut Key {
        let now = self.now;
        let state = self.keys.entry(key).or_default();
        // Expired data counts as absent.
        state.sole = state.sole.filter(|(_, ends)| *ends > now);
        state.writer = state.writer.filter(|(_, ends)| *ends > now);
        state.readers.retain(|_, ends| *ends > now);
        state.intent = state.intent.filter(|(_, ends)| *ends > now);
        state.queue.retain(|waiter| waiter.dies > now);
        state.counter = state.counter.filter(|(_, ends)| *ends > now);
        state
    }

    pub(super) fn counter(&mut self, key: usize) -> Option<u64> {
        self.key(key).counter.map(|(top, _)| top)
    }

    pub(super) fn queue(&mut self, key: usize) -> Vec<Waiter> {
        self.key(key).queue.clone()
    }

    fn shared_ends(&mut self, key: usize) -> Option<u64> {
        let key = self.key(key);
        key.readers.values().copied().chain(key.writer.map(|(_, ends)| ends)).max()
    }

    pub(super) fn ends(&mut self, key: usize) -> Option<u64> {
        let sole = self.key(key).sole.map(|(_, ends)| ends);
        sole.or_else(|| self.shared_ends(key))
    }

    /// Returns the kind and the holders, the writer first.
    pub(super) fn holders(&mut self, key: usize) -> (Option<Kind>, Vec<u8>) {
        let key = self.key(key);
        let readers = key.readers.keys().copied();
        match (key.sole, key.writer) {
            (Some((owner, _)), _) if key.queue.is_empty() => (Some(Kind::Mutex), vec![owner]),
            (Some((owner, _)), _) => (Some(Kind::Fair), vec![owner]),
            (None, Some((owner, _))) => (Some(Kind::Write), std::iter::once(owner).chain(readers).collect()),
            (None, None) if key.readers.is_empty() => (None, Vec::new()),
            (None, None) => (Some(Kind::Read), readers.collect()),
        }
    }

    pub(super) fn has(&mut self, key: usize, kind: Kind, owner: u8) -> bool {
        let key = self.key(key);
        let is_mine = |hold: Option<(u8, u64)>| hold.is_some_and(|(holder, _)| holder == owner);
        if is_sole(kind) {
            is_mine(key.sole)
        } else {
            is_mine(key.writer) || key.readers.contains_key(&owner)
        }
    }

    /// Returns until when the key can't be had.
    pub(super) fn refuses(&mut self, key: usize, kind: Kind, owner: u8) -> Option<u64> {
        let ends = self.ends(key);
        let state = self.key(key);
        let writes = state.writer.is_some_and(|(writer, _)| writer == owner);
        let head = state.queue.first().filter(|head| head.owner != owner).map(|head| head.dies);
        let mine = match kind {
            Kind::Read => writes || state.readers.contains_key(&owner),
            Kind::Write => writes,
            _ => state.sole.is_some_and(|(holder, _)| holder == owner),
        };
        match kind {
            _ if mine => None,
            Kind::Fair => ends.or(head),
            Kind::Read if state.sole.is_none() && state.writer.is_none() => {
                state.intent.map(|(_, ends)| ends)
            }
            _ => ends,
        }
    }

    /// Returns when a waiter looks again that is refused `until` then.
    pub(super) fn turn(&mut self, key: usize, kind: Kind, owner: u8, until: u64) -> u64 {
        let queue = self.queue(key);
        let place = queue.iter().position(|waiter| waiter.owner == owner && kind == Kind::Fair);
        let place = place.unwrap_or(0);
        let alive = queue.iter().take(place).map(|waiter| waiter.dies).max().unwrap_or(0);
        until.max(alive.min(until + 300 * place as u64))
    }

    /// Takes the next tokens for a hold of `lease_ms`.
    pub(super) fn count(&mut self, key: usize, tokens: u32, base: u64, lease_ms: u64) -> TokenRange {
        let top = self.counter(key).unwrap_or(0).max(base) + u64::from(tokens);
        let ends = self.key(key).counter.map_or(self.now + 1, |(_, ends)| ends);
        self.key(key).counter = Some((top, ends));
        self.lengthen_counter(key, lease_ms);
        TokenRange::ending_at(top, tokens)
    }

    pub(super) fn lengthen_counter(&mut self, key: usize, lease_ms: u64) {
        let least = self.now + lease_ms + RETENTION_MS;
        if let Some((_, ends)) = &mut self.key(key).counter {
            *ends = least.max(*ends);
        }
    }

    fn take(&mut self, key: usize, kind: Kind, owner: u8, ends: u64) {
        let state = self.key(key);
        let longer =
            |hold: Option<(u8, u64)>| Some((owner, hold.map_or(ends, |(_, before)| before.max(ends))));
        match kind {
            Kind::Fair => {
                state.sole = longer(state.sole);
                state.queue.retain(|waiter| waiter.owner != owner);
            }
            Kind::Read => {
                let hold = state.readers.entry(owner).or_default();
                *hold = ends.max(*hold);
            }
            Kind::Write => {
                state.writer = longer(state.writer);
                state.intent = state.intent.filter(|(writer, _)| *writer != owner);
            }
            _ => state.sole = longer(state.sole),
        }
    }

    /// Acquires; returns the token ranges, or the index of the first busy item and until when it is
    /// busy.
    pub(super) fn acquire(
        &mut self,
        wish: &Wish,
        floor: u64,
        micros: u64,
    ) -> Result<Vec<TokenRange>, (usize, u64)> {
        let items = wish.items.clone();
        let refusal = items.iter().enumerate().find_map(|(index, (key, kind))| {
            self.refuses(*key, *kind, wish.owner).map(|until| (index, until))
        });
        let blocked = items.iter().any(|(key, kind)| {
            let read = *kind == Kind::Write && self.is_read(*key);
            !read && self.refuses(*key, *kind, wish.owner).is_some()
        });
        for (key, kind) in items {
            match kind {
                _ if refusal.is_none() => self.take(key, kind, wish.owner, self.now + wish.lease_ms),
                Kind::Fair => self.queue_up(key, wish),
                Kind::Write if wish.waits && blocked => {
                    self.end_intent(key, wish.owner);
                }
                Kind::Write if wish.waits => self.intend(key, wish.owner),
                _ => {}
            }
        }
        match refusal {
            Some((index, until)) => {
                let (key, kind) = wish.items[index];
                Err((index, self.turn(key, kind, wish.owner, until)))
            }
            None => Ok(wish
                .items
                .iter()
                .map(|(key, _)| self.count(*key, wish.tokens, micros.max(floor), wish.lease_ms))
                .collect()),
        }
    }

    fn queue_up(&mut self, key: usize, wish: &Wish) {
        let dies = self.now + ms(WAITER_LIFE);
        let direct = wish.items.len() == 1 && wish.floor.is_none();
        let waiter = Waiter { owner: wish.owner, lease_ms: wish.lease_ms, direct, dies };
        // Whoever asks in the first eighth of its life gains nothing.
        let now = self.now;
        let later = move |before: u64| if before <= now + ms(WAITER_LIFE) * 7 / 8 { dies } else { before };
        let queue = &mut self.key(key).queue;
        match queue.iter_mut().find(|before| before.owner == wish.owner) {
            Some(before) if wish.waits => *before = Waiter { dies: later(before.dies), ..waiter },
            Some(before) => before.dies = later(before.dies),
            None if wish.waits => queue.push(waiter),
            None => {}
        }
    }

    pub(super) fn keep_place(&mut self, key: usize, owner: u8) -> bool {
        let dies = self.now + ms(WAITER_LIFE);
        let waiter = self.key(key).queue.iter_mut().find(|waiter| waiter.owner == owner);
        waiter.map(|waiter| waiter.dies = dies).is_some()
    }

    pub(super) fn leave(&mut self, key: usize, owner: u8) {
        self.key(key).queue.retain(|waiter| waiter.owner != owner);
    }

    pub(super) fn is_read(&mut self, key: usize) -> bool {
        let state = self.key(key);
        !state.readers.is_empty() && state.writer.is_none()
    }

    /// Extends the owner's intent; returns whether readers hold the key and no intent keeps new
    /// ones out.
    pub(super) fn keep_intent(&mut self, key: usize, owner: u8) -> bool {
        match self.key(key).intent {
            Some((writer, _)) => {
                if writer == owner {
                    self.intend(key, owner);
                }
                false
            }
            None => self.is_read(key),
        }
    }

    pub(super) fn intend(&mut self, key: usize, owner: u8) {
        let ends = self.now + ms(INTENT_LIFE);
        let read = self.is_read(key);
        let state = self.key(key);
        if read && state.intent.is_none_or(|(writer, _)| writer == owner) {
            state.intent = Some((owner, ends));
        }
    }

    pub(super) fn end_intent(&mut self, key: usize, owner: u8) -> bool {
        let intent = &mut self.key(key).intent;
        intent.take_if(|(writer, _)| *writer == owner).is_some()
    }

    /// Changes the end of an owner's holds.
    pub(super) fn change(&mut self, key: usize, kind: Kind, owner: u8, change: impl Fn(u64) -> u64) {
        let state = self.key(key);
        let sole = state.sole.as_mut().filter(|_| is_sole(kind));
        let writer = state.writer.as_mut().filter(|_| !is_sole(kind));
        for (holder, ends) in sole.into_iter().chain(writer) {
            if *holder == owner {
                *ends = change(*ends);
            }
        }
        if let Some(ends) = state.readers.get_mut(&owner).filter(|_| !is_sole(kind)) {
            *ends = change(*ends);
        }
    }

    /// Downgrades the owner; returns whether it was a writer.
    pub(super) fn downgrade(&mut self, key: usize, owner: u8) -> bool {
        let Some((_, ends)) = self.key(key).writer.take_if(|(writer, _)| *writer == owner) else {
            return false;
        };
        self.take(key, Kind::Read, owner, ends);
        true
    }

    pub(super) fn clear(&mut self, key: usize) {
        let state = self.key(key);
        (state.sole, state.writer) = (None, None);
        state.readers.clear();
    }

    /// Grants the key to the first of its queue.
    pub(super) fn grant_directly(&mut self, key: usize, micros: u64) -> (Waiter, TokenRange) {
        let head = self.queue(key)[0];
        let lease_ms = head.lease_ms.min(ms(DIRECT_LEASE));
        self.take(key, Kind::Fair, head.owner, self.now + lease_ms);
        (head, self.count(key, 1, micros, lease_ms))
    }
}
