//! [`Table`]: the memory store's data and its atomic steps, without clocks, mutexes or futures.
//!
//! Every step is told what time it is. What has expired is treated as absent when it is met, and is thrown away by
//! [`Table::purge`], which looks at a bounded number of entries each time.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;

use crate::clock::Tick;
use crate::config::TokenRetention;
use crate::key::LockKey;
use crate::store::{
    AcquireRequest, Acquired, Busy, Granted, KeepItem, Kept, ListenerPolicy, LockStatus, MAX_TOKENS, Notice,
    ReleaseRequest, Released, ServerTime, StoreError, StoreErrorKind, Takeover, TokenRange, Withdrawn,
};
use crate::token::{FencingToken, OwnerId};

/// The largest token: what a Redis counter can hold, so that both stores give up at the same number.
const LARGEST_TOKEN: u64 = i64::MAX as u64;

/// Notices that wait in one watch. More than one, so that a release of somebody else is still heard when our own
/// release is in the queue and will be ignored as an echo.
const QUEUE: usize = 16;

/// Tables smaller than this are not worth shrinking.
const SMALL: usize = 1024;

/// Everything the store knows.
#[derive(Default)]
pub(super) struct Table {
    entries: HashMap<Arc<str>, Entry>,
    /// When to look at an entry again to throw away what has expired, soonest first. An entry has at most one line
    /// here. A line may be too early (the lease was renewed) and is then written anew when its time has come, so
    /// that renewing costs nothing.
    calendar: BinaryHeap<Reverse<(Tick, Arc<str>)>>,
    watches: HashMap<WatchId, Watcher>,
    last_watch: u64,
    /// Where prefix and key are put together, so that looking something up allocates nothing.
    scratch: String,
}

/// One watch, among all of a table.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(super) struct WatchId(u64);

/// One handle on the table: the releases of a manager are echoes to the watches of the same manager.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct HandleId(pub(super) u64);

struct Watcher {
    handle: HandleId,
    notices: mpsc::Sender<Notice>,
}

/// What is kept for one key.
struct Entry {
    name: Arc<str>,
    hold: Option<Hold>,
    counter: Option<Counter>,
    watches: Vec<WatchId>,
    in_calendar: bool,
}

/// There is no hold count: the engine counts re-entries, the store sees one hold.
struct Hold {
    owner: OwnerId,
    expires: Tick,
}

#[derive(Clone, Copy)]
struct Counter {
    /// The highest token ever granted.
    top: u64,
    /// `None`: kept for ever.
    expires: Option<Tick>,
}

impl Entry {
    fn new(name: Arc<str>) -> Self {
        Self { name, hold: None, counter: None, watches: Vec::new(), in_calendar: false }
    }

    fn hold(&mut self, now: Tick) -> Option<&mut Hold> {
        self.hold.as_mut().filter(|hold| hold.expires > now)
    }

    fn hold_of(&mut self, owner: &OwnerId, now: Tick) -> Option<&mut Hold> {
        self.hold(now).filter(|hold| hold.owner == *owner)
    }

    fn counter(&self, now: Tick) -> Option<Counter> {
        self.counter.filter(|counter| counter.expires.is_none_or(|expires| expires > now))
    }

    /// The soonest time at which something of this entry can be thrown away.
    fn due(&self) -> Option<Tick> {
        let hold = self.hold.as_ref().map(|hold| hold.expires);
        let counter = self.counter.and_then(|counter| counter.expires);
        hold.into_iter().chain(counter).min()
    }

    fn drop_expired(&mut self, now: Tick) {
        if self.hold(now).is_none() {
            self.hold = None;
        }
        self.counter = self.counter(now);
    }

    fn is_empty(&self) -> bool {
        self.hold.is_none() && self.counter.is_none() && self.watches.is_empty()
    }
}

impl Table {
    /// Throws away what has expired, looking at no more than `budget` entries, soonest expiry first. As long as each
    /// step's budget is at least twice the number of its keys (a key is looked at for its hold and for its counter),
    /// throwing away keeps up with adding.
    pub(super) fn purge(&mut self, now: Tick, budget: usize) {
        let mut removed = false;
        for _ in 0..budget {
            if self.calendar.peek().is_none_or(|Reverse((due, _))| *due > now) {
                break;
            }
            let Some(Reverse((_, name))) = self.calendar.pop() else { break };
            let Some(entry) = self.entries.get_mut(&name) else { continue };
            entry.drop_expired(now);
            if let Some(due) = entry.due() {
                self.calendar.push(Reverse((due, name)));
            } else {
                entry.in_calendar = false;
                if entry.is_empty() {
                    self.entries.remove(&name);
                    removed = true;
                }
            }
        }
        if removed {
            self.give_back_memory();
        }
    }

    /// Collections never shrink by themselves; after a burst of keys most of their room would stay empty.
    fn give_back_memory(&mut self) {
        let wanted = 2 * self.entries.len().max(SMALL / 4);
        if self.entries.capacity() > SMALL && self.entries.capacity() / 2 > wanted {
            self.entries.shrink_to(wanted);
            self.calendar.shrink_to(wanted);
        }
    }

    fn get(&mut self, prefix: &str, key: &LockKey) -> Option<&mut Entry> {
        self.name(prefix, key);
        self.entries.get_mut(self.scratch.as_str())
    }

    /// Changes the entry of `key`, which is made if there is none, and sees that it is purged in time.
    fn change<T>(&mut self, prefix: &str, key: &LockKey, change: impl FnOnce(&mut Entry) -> T) -> T {
        self.name(prefix, key);
        let entry = match self.entries.get_mut(self.scratch.as_str()) {
            Some(entry) => entry,
            None => {
                let name: Arc<str> = Arc::from(self.scratch.as_str());
                self.entries.entry(Arc::clone(&name)).or_insert_with(|| Entry::new(name))
            }
        };
        let result = change(entry);
        if !entry.in_calendar
            && let Some(due) = entry.due()
        {
            entry.in_calendar = true;
            self.calendar.push(Reverse((due, Arc::clone(&entry.name))));
        }
        result
    }

    fn name(&mut self, prefix: &str, key: &LockKey) {
        self.scratch.clear();
        self.scratch.push_str(prefix);
        self.scratch.push_str(key.as_str());
    }

    /// Forgets a watch. What is returned is to be dropped outside the mutex: it may wake somebody.
    pub(super) fn unwatch(&mut self, id: WatchId, names: &[Arc<str>]) -> Option<impl Sized + use<>> {
        for name in names {
            let Some(entry) = self.entries.get_mut(name) else { continue };
            entry.watches.retain(|watch| *watch != id);
            if entry.is_empty() && !entry.in_calendar {
                self.entries.remove(name);
            }
        }
        self.watches.remove(&id)
    }

    #[cfg(test)]
    pub(super) fn sizes(&self) -> (usize, usize, usize) {
        (self.entries.len(), self.calendar.len(), self.watches.len())
    }

    #[cfg(test)]
    pub(super) fn capacity(&self) -> usize {
        self.entries.capacity()
    }
}

/// Whom a step has to tell, once the mutex is free again: telling wakes tasks.
#[derive(Default)]
#[must_use]
pub(super) struct Bell {
    own: Vec<mpsc::Sender<Notice>>,
    others: Vec<mpsc::Sender<Notice>>,
}

impl Bell {
    /// Tells them, and returns whether a watch of the releasing handle was among those who heard it.
    pub(super) fn ring(self) -> bool {
        for other in self.others {
            // A full queue has a notice already, a closed one is being dropped.
            let _ = other.try_send(Notice::Retry);
        }
        let mut echo = false;
        for own in self.own {
            echo |= own.try_send(Notice::Retry).is_ok();
        }
        echo
    }
}

/// One atomic step on the table, by one handle at one time.
pub(super) struct Step<'a> {
    pub(super) table: &'a mut Table,
    pub(super) prefix: &'a str,
    pub(super) handle: HandleId,
    pub(super) retention: TokenRetention,
    pub(super) now: Tick,
    pub(super) server_time: ServerTime,
}

impl Step<'_> {
    /// Takes every item or none, unless the server time is past `latest`.
    pub(super) fn acquire(
        &mut self,
        request: &AcquireRequest,
        latest: ServerTime,
    ) -> Result<Acquired, StoreError> {
        if self.server_time > latest {
            return Err(StoreError::new(
                StoreErrorKind::TooLate,
                format!(
                    "the memory store got a request at {:?} that expired at {latest:?}",
                    self.server_time
                ),
            ));
        }
        check_items(request)?;
        // Whatever can fail comes before the first change.
        let mut tokens = Vec::with_capacity(request.items.len());
        for (index, item) in request.items.iter().enumerate() {
            let entry = self.table.get(self.prefix, &item.key);
            let mut top = 0;
            if let Some(entry) = entry {
                top = entry.counter(self.now).map_or(0, |counter| counter.top);
                if let Some(hold) = entry.hold(self.now)
                    && hold.owner != item.owner
                {
                    let remaining = hold.expires.since(self.now);
                    return Ok(Acquired::Busy(Busy {
                        item: index,
                        remaining,
                        server_time: self.server_time,
                    }));
                }
            }
            tokens.push(self.next_tokens(&item.key, top, request)?);
        }
        let expires = self.now + request.lease;
        for (item, range) in request.items.iter().zip(&tokens) {
            let (now, retention) = (self.now, self.retention);
            self.table.change(self.prefix, &item.key, |entry| {
                let counter = entry.counter(now);
                entry.counter =
                    Some(Counter { top: range.last, expires: counter_expiry(counter, retention, now) });
                match entry.hold_of(&item.owner, now) {
                    // The request was sent again: this very grant, which is never shortened.
                    Some(hold) => hold.expires = hold.expires.max(expires),
                    None => entry.hold = Some(Hold { owner: item.owner.clone(), expires }),
                }
            });
        }
        Ok(Acquired::Granted(Granted { tokens, server_time: self.server_time }))
    }

    fn next_tokens(
        &self,
        key: &LockKey,
        top: u64,
        request: &AcquireRequest,
    ) -> Result<TokenRange, StoreError> {
        let count = request.tokens.clamp(1, MAX_TOKENS);
        let base = top.max(self.server_time.as_micros()).max(request.token_floor);
        match base.checked_add(u64::from(count)).filter(|last| *last <= LARGEST_TOKEN) {
            Some(last) => Ok(TokenRange::ending_at(last, count)),
            None => Err(StoreError::new(
                StoreErrorKind::Refused,
                format!("the fencing counter of {key:?} is at {base} and can't grow by {count}"),
            )),
        }
    }

    /// Gives the items back. `latest` is that of the takeover, if there is one.
    pub(super) fn release(
        &mut self,
        request: &ReleaseRequest,
        latest: Option<ServerTime>,
    ) -> (Released, Bell) {
        let mut held = Vec::with_capacity(request.items.len());
        let mut heard = Vec::new();
        for item in &request.items {
            held.push(self.end(&item.key, &item.owner, request.linger, &mut heard));
        }
        let bell = self.bell(heard);
        let other_listeners = u64::try_from(bell.others.len()).unwrap_or(u64::MAX);
        let freed = request.linger.is_zero() && held.iter().all(|held| *held);
        let then = match &request.then {
            Some(takeover) if freed => self.take_over(takeover, latest, other_listeners),
            _ => None,
        };
        // After a takeover the key is as taken as before: there is nothing to wake up for.
        let bell = if then.is_some() { Bell::default() } else { bell };
        (Released { held, other_listeners, echo: false, then }, bell)
    }

    /// A takeover that can't be carried out is not an error of the release, which has happened: the waiter for whom
    /// it was meant is told to try, and finds out by itself.
    fn take_over(&mut self, takeover: &Takeover, latest: Option<ServerTime>, others: u64) -> Option<Granted> {
        let allowed = match takeover.listeners {
            ListenerPolicy::Respect => others == 0,
            ListenerPolicy::Ignore => true,
        };
        match self.acquire(&takeover.request, latest.filter(|_| allowed)?) {
            Ok(Acquired::Granted(granted)) => Some(granted),
            Ok(Acquired::Busy(_)) | Err(_) => None,
        }
    }

    /// Ends a hold now or after `linger`, if `owner` has it. Who listens is told in both cases: a waiter that sleeps
    /// to the end of the lease has to learn that the end has come nearer.
    fn end(&mut self, key: &LockKey, owner: &OwnerId, linger: Duration, heard: &mut Vec<WatchId>) -> bool {
        let Some(entry) = self.table.get(self.prefix, key) else { return false };
        let Some(hold) = entry.hold_of(owner, self.now) else { return false };
        if linger.is_zero() {
            entry.hold = None;
        } else {
            hold.expires = hold.expires.min(self.now + linger);
        }
        heard.extend_from_slice(&entry.watches);
        true
    }

    fn bell(&self, mut heard: Vec<WatchId>) -> Bell {
        // A watch of several keys is told once.
        heard.sort_unstable();
        heard.dedup();
        let mut bell = Bell::default();
        for watcher in heard.iter().filter_map(|id| self.table.watches.get(id)) {
            let side = if watcher.handle == self.handle { &mut bell.own } else { &mut bell.others };
            side.push(watcher.notices.clone());
        }
        bell
    }

    /// Renews a hold.
    pub(super) fn keep(&mut self, kept: &KeepItem) -> Kept {
        let entry = self.table.get(self.prefix, &kept.item.key);
        match entry.and_then(|entry| entry.hold_of(&kept.item.owner, self.now)) {
            Some(hold) => {
                hold.expires = hold.expires.max(self.now + kept.lease);
                Kept::Renewed
            }
            None => Kept::Gone,
        }
    }

    /// Frees what the request has taken.
    pub(super) fn withdraw(&mut self, request: &AcquireRequest) -> (Withdrawn, Bell) {
        let mut heard = Vec::new();
        for item in &request.items {
            self.end(&item.key, &item.owner, Duration::ZERO, &mut heard);
        }
        let withdrawn = match request.latest() {
            Some(latest) if latest >= self.server_time => {
                let micros = latest.as_micros().saturating_sub(self.server_time.as_micros());
                Withdrawn::Pending(Duration::from_micros(micros.saturating_add(1)))
            }
            _ => Withdrawn::Settled,
        };
        (withdrawn, self.bell(heard))
    }

    /// Registers a watch of the request's keys.
    pub(super) fn watch(
        &mut self,
        request: &AcquireRequest,
    ) -> (mpsc::Receiver<Notice>, WatchId, Vec<Arc<str>>) {
        let (notices, receiver) = mpsc::channel(QUEUE);
        self.table.last_watch += 1;
        let id = WatchId(self.table.last_watch);
        self.table.watches.insert(id, Watcher { handle: self.handle, notices });
        let mut names = Vec::with_capacity(request.items.len());
        for item in &request.items {
            names.push(self.table.change(self.prefix, &item.key, |entry| {
                entry.watches.push(id);
                Arc::clone(&entry.name)
            }));
        }
        (receiver, id, names)
    }

    /// What is known about `key`.
    pub(super) fn status(&mut self, key: &LockKey) -> LockStatus {
        let mut status = LockStatus { holders: Vec::new(), remaining: None, last_token: None };
        let Some(entry) = self.table.get(self.prefix, key) else { return status };
        status.last_token = entry.counter(self.now).map(|counter| FencingToken::new(counter.top));
        if let Some(hold) = entry.hold(self.now) {
            status.holders.push((hold.owner.clone(), 1));
            status.remaining = Some(hold.expires.since(self.now));
        }
        status
    }

    /// Frees `key` whoever holds it; `false` when nobody did.
    pub(super) fn force_release(&mut self, key: &LockKey) -> (bool, Bell) {
        let Some(entry) = self.table.get(self.prefix, key) else { return (false, Bell::default()) };
        let Some(hold) = entry.hold(self.now) else { return (false, Bell::default()) };
        let owner = hold.owner.clone();
        let mut heard = Vec::new();
        let freed = self.end(key, &owner, Duration::ZERO, &mut heard);
        (freed, self.bell(heard))
    }
}

/// A counter that has no expiry never gets one, and an expiry never comes nearer: other handles on the table may
/// have been made with a longer retention.
fn counter_expiry(before: Option<Counter>, retention: TokenRetention, now: Tick) -> Option<Tick> {
    let wanted = match retention {
        TokenRetention::For(time) => now + time,
        TokenRetention::Keep => return None,
    };
    match before {
        Some(counter) => counter.expires.map(|expires| expires.max(wanted)),
        None => Some(wanted),
    }
}

fn check_items(request: &AcquireRequest) -> Result<(), StoreError> {
    let items = &request.items;
    let mut seen = HashSet::new();
    let problem = match items.len() {
        0 => "a request without keys",
        1 => return Ok(()),
        _ if items.iter().all(|item| seen.insert(&item.key)) => return Ok(()),
        _ => "a request that names a key twice",
    };
    Err(StoreError::new(StoreErrorKind::Refused, format!("the memory store refuses {problem}")))
}
