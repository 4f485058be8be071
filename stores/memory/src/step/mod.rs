//! [`Step`]: the operations of the store, as atomic steps on its [`Table`], without clocks, mutexes
//! or futures.

mod look;
mod wake;

use std::collections::HashSet;
use std::time::Duration;

use lock_core::LockKey;
use lock_core::internal::clock::Tick;
use lock_core::store::{
    AcquireRequest, Acquired, Busy, Few, Granted, Kind, ListenerPolicy, MAX_TOKENS, Notice, ReleaseRequest,
    Released, RenewItem, Renewed, Rivals, ServerTime, Standing, StoreError, StoreErrorKind, Takeover,
    TokenRange, Withdrawn,
};
use tokio::sync::mpsc;

use super::bell::Bell;
use super::entry::{Counter, Entry, HandleId, WatchId};
use super::table::{Table, Watched};

#[cfg(feature = "testing")]
pub(super) use self::look::Look;
use self::wake::Turn;

/// Maximum token: the maximum of a Redis counter, so that both stores give up at the same number.
const LARGEST_TOKEN: u64 = i64::MAX as u64;

/// Delay after which a waiter looks again if it could have the key at once.
const AT_ONCE: Duration = Duration::from_millis(1);

/// Refuses, at `now`, a request that may be executed until `latest`.
pub(super) fn in_time(now: ServerTime, latest: ServerTime) -> Result<(), StoreError> {
    if now <= latest {
        return Ok(());
    }
    let what = format!("the memory store got a request at {now:?} that expired at {latest:?}");
    Err(StoreError::new(StoreErrorKind::TooLate, what))
}

/// One atomic step on the table. It returns the answer, and collects the notifications in `bell`.
pub(super) struct Step<'a> {
    pub(super) table: &'a mut Table,
    pub(super) prefix: &'a str,
    pub(super) at: At,
    pub(super) bell: Bell,
}

/// The time of a step, and the handle that makes it.
#[derive(Clone, Copy)]
pub(super) struct At {
    pub(super) now: Tick,
    pub(super) server_time: ServerTime,
    pub(super) handle: HandleId,
}

impl Step<'_> {
    /// Takes every item or none, unless the server time is past `latest`.
    pub(super) fn acquire(
        &mut self,
        request: &AcquireRequest,
        latest: ServerTime,
    ) -> Result<Acquired, StoreError> {
        let At { now, server_time, .. } = self.at;
        let moment = server_time.into();
        in_time(server_time, latest)?;
        check_items(request)?;
        // All checks that can fail come before the first change.
        let mut tokens = Few::new();
        for (index, item) in request.items.iter().enumerate() {
            let mut top = 0;
            if let Some(entry) = self.table.get(self.prefix, &item.key) {
                top = entry.counter(now).map_or(0, |counter| counter.top);
                if let Some(until) = entry.refuses(item, now) {
                    self.note(request);
                    let remaining = Some(until.since(now));
                    return Ok(Acquired::Busy(Busy { item: index, remaining, moment, listeners: 0 }));
                }
            }
            tokens.push(self.at.tokens(&item.key, top, request.tokens, request.floor())?);
        }
        let expires = now + request.lease;
        for (item, range) in request.items.iter().zip(&tokens) {
            self.table.change(self.prefix, &item.key, |entry| {
                self.at.count(entry, *range);
                entry.lengthen_counter(expires, request.retention);
                entry.take(item, expires, now);
            });
        }
        Ok(Acquired::Granted(Granted { tokens, moment }))
    }

    /// Records that a refused request waits, if it does.
    fn note(&mut self, request: &AcquireRequest) {
        let now = self.at.now;
        let waits = request.wait.is_some();
        // Whether anything but readers is in the way; needed only if readers would be kept out.
        let intends = waits && request.items.iter().any(|item| item.kind == Kind::Write);
        let blocked = intends
            && request.items.iter().any(|item| {
                self.table.get(self.prefix, &item.key).is_some_and(|entry| {
                    let by_readers = item.kind == Kind::Write && entry.read_write.is_read(now);
                    entry.refuses(item, now).is_some() && !by_readers
                })
            });
        for item in &request.items {
            match item.kind {
                Kind::Fair if waits => {
                    self.table.change(self.prefix, &item.key, |entry| {
                        entry.queue.join(&item.owner, request, now);
                        wake::settle(entry, &item.key, Turn::Tell, self.at, &mut self.bell);
                    });
                }
                Kind::Fair => {
                    if let Some(entry) = self.table.get(self.prefix, &item.key) {
                        entry.queue.renew(&item.owner, now);
                        wake::settle(entry, &item.key, Turn::Tell, self.at, &mut self.bell);
                    }
                }
                Kind::Write if waits => {
                    if let Some(entry) = self.table.get(self.prefix, &item.key) {
                        if blocked {
                            entry.read_write.end_intent(&item.owner, now);
                        } else {
                            entry.read_write.intend(&item.owner, now);
                        }
                    }
                }
                _ => {}
            }
        }
    }

    /// Gives the items back. `latest` is the latest time of the takeover, if there is one.
    pub(super) fn release(&mut self, request: &ReleaseRequest, latest: Option<ServerTime>) -> Released {
        let now = self.at.now;
        let mut held = Few::new();
        let mut listeners = Vec::new();
        for item in &request.items {
            let Some(entry) = self.table.get(self.prefix, &item.key) else {
                held.push(false);
                continue;
            };
            let ended = entry.end(item, request.linger, now);
            held.push(ended);
            if ended && (!request.linger.is_zero() || entry.ends(now).is_none()) {
                listeners.extend(listeners_of(entry, item.kind));
            }
        }
        let own = usize::from(request.own_watch.is_some());
        let rivals = Rivals::counted(count_others(listeners, self.at.handle, own));

        let freed = request.linger.is_zero() && held.iter().all(|held| *held);
        let then = match &request.then {
            Some(takeover) if freed => self.take_over(request, takeover, latest, rivals),
            _ => None,
        };
        // After a takeover the key is still taken: nobody needs to be woken.
        if then.is_none() {
            for (item, _) in request.items.iter().zip(&held).filter(|(_, held)| **held) {
                self.wake(&item.key, request.linger);
            }
        }
        Released { held, rivals, then }
    }

    /// Carries out the takeover of a release, if possible. A failed takeover is not an error of the
    /// release, which has happened: its waiter is told to try, and finds out by itself.
    fn take_over(
        &mut self,
        release: &ReleaseRequest,
        takeover: &Takeover,
        latest: Option<ServerTime>,
        rivals: Rivals,
    ) -> Option<Granted> {
        let mut items = release.items.iter().chain(&takeover.request.items);
        let allowed = match takeover.listeners {
            ListenerPolicy::Respect => rivals == Rivals::None,
            ListenerPolicy::Ignore => true,
        };
        // The other kinds have their own order of succession.
        if !allowed || items.any(|item| item.kind != Kind::Mutex) {
            return None;
        }
        match self.acquire(&takeover.request, latest?) {
            Ok(Acquired::Granted(granted)) => Some(granted),
            Ok(Acquired::Busy(_)) | Err(_) => None,
        }
    }

    /// Renews a hold or keeps a waiter.
    pub(super) fn renew(&mut self, kept: &RenewItem) -> Renewed {
        let now = self.at.now;
        let item = &kept.item;
        match kept.standing {
            Standing::Holder => {
                let expires = now + kept.lease;
                let Some(entry) = self.table.get(self.prefix, &item.key) else { return Renewed::Gone };
                if !entry.renew(item, expires, now) {
                    return Renewed::Gone;
                }
                entry.lengthen_counter(expires, kept.retention);
                Renewed::Held
            }
            Standing::Waiter | Standing::Far => match self.table.get(self.prefix, &item.key) {
                Some(entry) if entry.has(item, now) => Renewed::Held,
                Some(entry) => wake::keep_waiting(entry, item, self.at, &mut self.bell),
                None if item.kind == Kind::Fair => Renewed::Gone,
                None => Renewed::Waiting(AT_ONCE),
            },
        }
    }

    /// Turns a writer into a reader.
    pub(super) fn downgrade(&mut self, kept: &RenewItem) -> Renewed {
        let now = self.at.now;
        let owner = &kept.item.owner;
        let Some(entry) = self.table.get(self.prefix, &kept.item.key) else { return Renewed::Gone };
        let downgraded = entry.read_write.downgrade(owner, now);
        let expires = now + kept.lease;
        if !entry.read_write.renew(owner, expires, now) {
            return Renewed::Gone;
        }
        entry.lengthen_counter(expires, kept.retention);
        if downgraded {
            wake::tell(entry, Kind::Read, &mut self.bell);
        }
        Renewed::Held
    }

    /// Releases the request's holds, and forgets that it waits.
    pub(super) fn withdraw(&mut self, request: &AcquireRequest) -> Withdrawn {
        let At { now, server_time, .. } = self.at;
        for item in &request.items {
            let Some(entry) = self.table.get(self.prefix, &item.key) else { continue };
            if item.kind == Kind::Fair {
                entry.queue.leave(&item.owner);
            }
            if entry.end(item, Duration::ZERO, now) {
                self.wake(&item.key, Duration::ZERO);
            } else if item.kind == Kind::Fair {
                wake::settle(entry, &item.key, Turn::Grant, self.at, &mut self.bell);
            } else if item.kind == Kind::Write && entry.read_write.end_intent(&item.owner, now) {
                wake::tell(entry, Kind::Read, &mut self.bell);
            }
        }
        request.seal().map_or(Withdrawn::Settled, |latest| Withdrawn::by(latest, server_time))
    }

    /// Frees `key`, whatever its holders; returns `false` when there were none.
    pub(super) fn force_release(&mut self, key: &LockKey) -> bool {
        let Some(entry) = self.table.get(self.prefix, key) else { return false };
        if entry.ends(self.at.now).is_none() {
            return false;
        }
        entry.sole = None;
        entry.read_write.clear();
        self.wake(key, Duration::ZERO);
        true
    }

    /// Registers a watch of the request's keys.
    pub(super) fn watch(&mut self, request: &AcquireRequest) -> (mpsc::Receiver<Notice>, Watched) {
        self.table.watch(self.at.handle, self.prefix, &request.items)
    }
}

impl At {
    /// Returns the next tokens of `key`, whose counter is at `top`.
    fn tokens(self, key: &LockKey, top: u64, count: u32, floor: u64) -> Result<TokenRange, StoreError> {
        let count = count.clamp(1, MAX_TOKENS);
        let base = top.max(self.server_time.as_micros()).max(floor);
        match base.checked_add(u64::from(count)).filter(|last| *last <= LARGEST_TOKEN) {
            Some(last) => Ok(TokenRange::ending_at(last, count)),
            None => Err(StoreError::new(
                StoreErrorKind::Refused,
                format!("the fencing counter of {key:?} is at {base} and can't grow by {count}"),
            )),
        }
    }

    /// Sets the counter to the last of these tokens.
    fn count(self, entry: &mut Entry, range: TokenRange) {
        let expires = entry.counter(self.now).map_or(Some(self.now), |counter| counter.expires);
        entry.counter = Some(Counter { top: range.last, expires });
    }
}

/// Returns the watches that hear of the end of holds of this kind.
fn listeners_of(entry: &Entry, kind: Kind) -> impl Iterator<Item = (WatchId, HandleId)> {
    let listeners = entry.listeners.iter().filter(move |listener| listener.channel.is_of(kind));
    listeners.map(|listener| (listener.watcher.id, listener.watcher.handle))
}

/// Returns how many listeners are not among the `own` watches that the releasing caller has on its
/// handle.
fn count_others(mut listeners: Vec<(WatchId, HandleId)>, handle: HandleId, own: usize) -> u64 {
    // A watch of several keys counts as one listener.
    listeners.sort_unstable();
    listeners.dedup();
    let here = listeners.iter().filter(|(_, of)| *of == handle).count();
    let others = listeners.len() - here + here.saturating_sub(own);
    u64::try_from(others).unwrap_or(u64::MAX)
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
