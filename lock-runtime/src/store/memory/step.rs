//! [`Step`]: what the store can do, as atomic steps on its [`Table`], without clocks, mutexes or futures.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;

use super::table::{Counter, HandleId, Hold, Table, WatchId};
use crate::clock::Tick;
use crate::config::TokenRetention;
use crate::key::LockKey;
use crate::store::{
    AcquireRequest, Acquired, Busy, Granted, KeepItem, Kept, Kind, ListenerPolicy, LockStatus, MAX_TOKENS,
    Notice, ReleaseRequest, Released, ServerTime, StoreError, StoreErrorKind, Takeover, TokenRange,
    Withdrawn,
};
use crate::token::{FencingToken, OwnerId};

/// The largest token: what a Redis counter can hold, so that both stores give up at the same number.
const LARGEST_TOKEN: u64 = i64::MAX as u64;

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
        for watcher in heard.iter().filter_map(|id| self.table.watcher(*id)) {
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
        let withdrawn = match request.seal() {
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
        let (id, receiver) = self.table.new_watch(self.handle);
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
        let mut status = LockStatus::free();
        let Some(entry) = self.table.get(self.prefix, key) else { return status };
        status.last_token = entry.counter(self.now).map(|counter| FencingToken::new(counter.top));
        if let Some(hold) = entry.hold(self.now) {
            status.kind = Some(Kind::Mutex);
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
