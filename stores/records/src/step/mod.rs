//! The steps of locks, on the records of a [`Work`], without clocks, mutexes or futures.

mod look;
mod wake;

use std::time::Duration;

use lock_core::LockKey;
use lock_core::store::{
    AcquireRequest, Busy, Few, Item, Kind, ListenerPolicy, LockStatus, MAX_TOKENS, ReleaseRequest, RenewItem,
    Renewed, Rivals, ServerTime, Standing, StoreError, StoreErrorKind, Takeover, TokenRange,
};

pub(crate) use self::look::status_of;
pub use self::look::{Look, look};
use self::wake::Turn;
use crate::listeners::{Event, HandleId, What, count_others};
use crate::lock::{Counter, Lock};
use crate::queue::ListenerId;
use crate::record::Record;
use crate::store::Work;

/// Maximum token: the maximum of a Redis counter, so that both stores give up at the same number.
const LARGEST_TOKEN: u64 = i64::MAX as u64;

/// Delay after which a waiter looks again if it could have the key at once.
const AT_ONCE: Duration = Duration::from_millis(1);

/// Refuses, at `now`, a request that may be executed until `latest`.
///
/// # Errors
///
/// [`StoreErrorKind::TooLate`].
pub fn in_time(now: ServerTime, latest: ServerTime) -> Result<(), StoreError> {
    if now <= latest {
        return Ok(());
    }
    let what = format!("the store got a request at {now:?} that expired at {latest:?}");
    Err(StoreError::new(StoreErrorKind::TooLate, what))
}

/// The outcome of a release.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) held: Few<bool>,
    pub(crate) rivals: Rivals,
    /// The tokens of the takeover, if it was made.
    pub(crate) then: Option<Few<TokenRange>>,
}

impl Work<'_> {
    fn lock(&mut self, index: usize) -> Option<&mut Lock> {
        self.records.get_mut(index).map(Record::lock)
    }

    fn tell(&mut self, index: usize, what: What) {
        self.events.push(Event { index, what, to: None });
    }

    fn tell_waiter(&mut self, index: usize, what: What, to: Option<ListenerId>) {
        // One that does not listen asks by itself.
        if to.is_some() {
            self.events.push(Event { index, what, to });
        }
    }

    /// Takes every item or none, unless the time is past `latest`. The tokens of each item, or the
    /// first busy item and until when it is busy.
    pub(crate) fn acquire(
        &mut self,
        request: &AcquireRequest,
        latest: ServerTime,
    ) -> Result<Result<Few<TokenRange>, Busy>, StoreError> {
        let (now, abilities) = (self.now, self.abilities);
        in_time(now, latest)?;
        // All checks that can fail come before the first grant.
        let mut tokens = Few::new();
        for (index, item) in request.items.iter().enumerate() {
            let Some(lock) = self.lock(index) else { continue };
            lock.bound_waits(abilities, now);
            let top = lock.counter(now).map_or(0, |counter| counter.top);
            if let Some(until) = lock.refuses(item, abilities, now) {
                self.note(request);
                let (until, ahead) = self.turn(index, item, until);
                let busy = Busy { item: index, ahead, ..Busy::until(Some(until.since(now)), now) };
                return Ok(Err(busy));
            }
            tokens.push(next_tokens(&item.key, top, now, request.tokens, request.floor())?);
        }
        let expires = now + request.lease;
        for (index, (item, range)) in request.items.iter().zip(&tokens).enumerate() {
            let Some(lock) = self.lock(index) else { continue };
            count(lock, *range, now);
            lock.lengthen_counter(expires, request.retention);
            lock.take(item, expires, abilities, now);
        }
        Ok(Ok(tokens))
    }

    /// Records that a refused request waits, if it does.
    fn note(&mut self, request: &AcquireRequest) {
        let (now, abilities) = (self.now, self.abilities);
        let waits = request.wait.is_some();
        // Whether anything but readers is in the way; needed only if readers would be kept out.
        let intends = waits && request.items.iter().any(|item| item.kind == Kind::Write);
        let blocked = intends
            && request.items.iter().enumerate().any(|(index, item)| {
                self.lock(index).is_some_and(|lock| {
                    let by_readers = item.kind == Kind::Write && lock.read_write.is_read(now);
                    lock.refuses(item, abilities, now).is_some() && !by_readers
                })
            });
        for (index, item) in request.items.iter().enumerate() {
            let sign = self.sign();
            let Some(lock) = self.lock(index) else { continue };
            match item.kind {
                kind if abilities.queues(kind) => {
                    // A mutex that can't be used yet, because of another one, is not reserved:
                    // whoever has that one may ask for this one before it gives that one back.
                    let is_reserved = kind == Kind::Fair || request.items.len() == 1;
                    if waits && !is_reserved && lock.refuses(item, abilities, now).is_none() {
                        lock.queue.leave(&item.owner);
                    } else if waits {
                        lock.queue.join(&item.owner, request, sign);
                    } else {
                        lock.queue.asks_again(&item.owner, sign);
                    }
                    self.settle(index, &item.key, Turn::Tell);
                }
                Kind::Write if waits && blocked => drop(lock.read_write.end_intent(&item.owner, now)),
                Kind::Write if waits => lock.read_write.intend(&item.owner, abilities.intent_life, now),
                _ => {}
            }
        }
    }

    /// Gives the items back; each has its record at one of `places`. `latest` is the latest time of
    /// the takeover, if there is one.
    pub(crate) fn release(
        &mut self,
        request: &ReleaseRequest,
        places: &[usize],
        latest: Option<ServerTime>,
        handle: HandleId,
    ) -> Ended {
        let (now, abilities) = (self.now, self.abilities);
        let mut held = Few::new();
        let mut listeners = Vec::new();
        // Whether every waiter for these kinds is in a queue, and whether one is.
        let all_queue = request.items.iter().all(|item| abilities.queues(item.kind));
        let mut queued = false;
        for (&index, item) in places.iter().zip(&request.items) {
            let found = self.records.get_mut(index).map(Record::lock).zip(self.names.get(index));
            let Some((lock, name)) = found else { continue };
            let ended = lock.end(item, request.linger, now);
            held.push(ended);
            queued |= abilities.queues(item.kind) && lock.queue.head(now).is_some();
            if ended && (!request.linger.is_zero() || lock.ends(now).is_none()) {
                listeners.extend(self.listeners.of_kind(name, item.kind));
            }
        }
        let own = usize::from(request.own_watch.is_some());
        let rivals = match Rivals::counted(count_others(listeners, handle, own)) {
            Rivals::None if queued && !abilities.counts_listeners => Rivals::Some,
            Rivals::None if !all_queue && !abilities.counts_listeners => Rivals::Unknown,
            counted => counted,
        };
        let freed = request.linger.is_zero() && held.iter().all(|held| *held);
        let then = match &request.then {
            // Those in a queue come first.
            Some(takeover)
                if freed && !queued && abilities.takeovers && self.records.len() == places.len() =>
            {
                self.take_over(request, takeover, latest, rivals)
            }
            _ => None,
        };
        // After a takeover the key is still taken: nobody needs to be woken.
        if then.is_none() {
            let all = places.iter().zip(&request.items).zip(&held);
            for ((&index, item), _) in all.filter(|(_, held)| **held) {
                self.wake(index, &item.key, request.linger);
            }
        }
        Ended { held, rivals, then }
    }

    /// Carries out the takeover of a release, if possible. A failed takeover is not an error of the
    /// release, which has happened: its waiter is told to try, and finds out by itself.
    fn take_over(
        &mut self,
        release: &ReleaseRequest,
        takeover: &Takeover,
        latest: Option<ServerTime>,
        rivals: Rivals,
    ) -> Option<Few<TokenRange>> {
        let (before, after) = (&release.items, &takeover.request.items);
        let allowed = match takeover.listeners {
            ListenerPolicy::Respect => rivals == Rivals::None,
            ListenerPolicy::Ignore => true,
        };
        let same = |(one, other): (&Item, &Item)| one.key == other.key;
        let same_keys = before.len() == after.len() && before.iter().zip(after).all(same);
        // The other kinds have their own order of succession.
        if !allowed || !same_keys || before.iter().chain(after).any(|item| item.kind != Kind::Mutex) {
            return None;
        }
        self.acquire(&takeover.request, latest?).ok()?.ok()
    }

    /// Renews a hold or keeps a waiter.
    pub(crate) fn renew(&mut self, index: usize, kept: &RenewItem) -> Renewed {
        let now = self.now;
        let item = &kept.item;
        let Some(lock) = self.lock(index) else { return Renewed::Gone };
        match kept.standing {
            Standing::Holder => {
                let expires = now + kept.lease;
                if !lock.renew(item, expires, now) {
                    return Renewed::Gone;
                }
                lock.lengthen_counter(expires, kept.retention);
                Renewed::Held
            }
            Standing::Waiter | Standing::Far if lock.has(item, now) => Renewed::Held,
            Standing::Waiter | Standing::Far => self.keep_waiting(index, item),
        }
    }

    /// Turns a writer into a reader.
    pub(crate) fn downgrade(&mut self, index: usize, kept: &RenewItem) -> Renewed {
        let now = self.now;
        let owner = &kept.item.owner;
        let Some(lock) = self.lock(index) else { return Renewed::Gone };
        let downgraded = lock.read_write.downgrade(owner, now);
        let expires = now + kept.lease;
        if !lock.read_write.renew(owner, expires, now) {
            return Renewed::Gone;
        }
        lock.lengthen_counter(expires, kept.retention);
        if downgraded {
            self.tell(index, What::Readable);
        }
        Renewed::Held
    }

    /// Releases the request's holds, each at one of `places`, and forgets that it waits.
    pub(crate) fn withdraw(&mut self, request: &AcquireRequest, places: &[usize]) {
        let (now, abilities) = (self.now, self.abilities);
        for (&index, item) in places.iter().zip(&request.items) {
            let Some(lock) = self.lock(index) else { continue };
            let queues = abilities.queues(item.kind);
            if queues {
                lock.queue.leave(&item.owner);
            }
            if lock.end(item, Duration::ZERO, now) {
                self.wake(index, &item.key, Duration::ZERO);
            } else if queues {
                self.settle(index, &item.key, Turn::Grant);
            } else if item.kind == Kind::Write && lock.read_write.end_intent(&item.owner, now) {
                self.tell(index, What::Readable);
            }
        }
    }

    /// Returns what is known about the lock.
    pub(crate) fn status(&mut self) -> LockStatus {
        let now = self.now;
        let (Some(Record::Lock(lock)), Some(name)) = (self.records.first(), self.names.first()) else {
            return LockStatus::free();
        };
        status_of(name, lock, now, self.listeners)
    }

    /// Frees `key`, whatever its holders; returns `false` when there were none.
    pub(crate) fn force_release(&mut self, key: &LockKey) -> bool {
        let now = self.now;
        let Some(lock) = self.lock(0).filter(|lock| lock.ends(now).is_some()) else { return false };
        lock.sole = None;
        lock.read_write.clear();
        self.wake(0, key, Duration::ZERO);
        true
    }
}

/// Returns the next tokens of `key`, whose counter is at `top`.
fn next_tokens(
    key: &LockKey,
    top: u64,
    now: ServerTime,
    count: u32,
    floor: u64,
) -> Result<TokenRange, StoreError> {
    let count = count.clamp(1, MAX_TOKENS);
    let base = top.max(now.as_micros()).max(floor);
    match base.checked_add(u64::from(count)).filter(|last| *last <= LARGEST_TOKEN) {
        Some(last) => Ok(TokenRange::ending_at(last, count)),
        None => Err(StoreError::new(
            StoreErrorKind::Refused,
            format!("the fencing counter of {key:?} is at {base} and can't grow by {count}"),
        )),
    }
}

/// Sets the counter to the last of these tokens.
fn count(lock: &mut Lock, range: TokenRange, now: ServerTime) {
    let expires = lock.counter(now).map_or(Some(now), |counter| counter.expires);
    lock.counter = Some(Counter { top: range.last, expires });
}

#[cfg(test)]
mod tests {
    use lock_core::OwnerId;
    use lock_core::store::Abilities;

    use super::*;
    use crate::{Class, Listeners, Name};

    const ABILITIES: Abilities = Abilities { fair: true, read_write: true, ..Abilities::MUTEX };
    const LATER: u64 = 3_600_000_000;

    fn request(kind: Kind, owner: &str) -> AcquireRequest {
        let item = Item { key: LockKey::new("k").unwrap(), kind, owner: OwnerId::new(owner) };
        AcquireRequest::new(vec![item], Duration::from_secs(1), Duration::from_secs(1))
            .queued(Duration::from_secs(60))
    }

    /// Returns how long the owner has to wait; `None` once it has the key.
    fn ask(record: &mut Record, kind: Kind, owner: &str, now: u64) -> Option<Duration> {
        let (listeners, request) = (Listeners::default(), request(kind, owner));
        let (names, now) = ([Name { class: Class::Lock, text: "k".into() }], ServerTime::from_micros(now));
        let records = std::slice::from_mut(record);
        let answer = Work::new(records, &names, now, &listeners, &ABILITIES).acquire(&request, now);
        answer.unwrap().err().map(|busy| busy.remaining.unwrap())
    }

    /// Their holder has gone with them.
    #[test]
    fn dead_waiters_are_over_in_time_although_the_clock_was_set_back() {
        let (waiters, intents) = (ABILITIES.waiter_life, ABILITIES.intent_life);
        for (first, second, life) in [(Kind::Fair, Kind::Fair, waiters), (Kind::Read, Kind::Write, intents)] {
            let mut record = Record::empty(Class::Lock);
            assert_eq!(ask(&mut record, first, "holder", LATER), None);
            assert!(ask(&mut record, second, "dead", LATER).is_some());
            record.lock().sole = None;
            record.lock().read_write.readers.clear();
            let left = ask(&mut record, first, "other", 1).unwrap();
            assert!(left <= life, "{first:?} {left:?}");
            let then = 1 + u64::try_from(life.as_micros()).unwrap();
            assert_eq!(ask(&mut record, first, "other", then), None, "{first:?}");
        }
    }
}
