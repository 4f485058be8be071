//! Steps that change nothing.

#[cfg(feature = "testing")]
use std::time::Duration;

#[cfg(feature = "testing")]
use lock_core::OwnerId;
use lock_core::store::{Cursor, Kind, LockStatus, ScanRequest, Scanned, StoreError};
use lock_core::{FencingToken, LockKey};

use super::{At, Step};
use crate::entry::{Channel, Entry};
#[cfg(feature = "testing")]
use crate::queue::Waiter;

/// The result of a look without a client.
#[cfg(feature = "testing")]
#[derive(Default)]
pub(crate) struct Look {
    pub(crate) holders: Vec<OwnerId>,
    pub(crate) remaining: Option<Duration>,
    pub(crate) queue: Vec<(OwnerId, Duration)>,
}

/// Maximum number of entries that one page of a scan looks at.
const PAGE: usize = 256;

impl Step<'_> {
    /// Returns what is known about `key`.
    pub(crate) fn status(&mut self, key: &LockKey) -> LockStatus {
        match self.table.get(self.prefix, key) {
            Some(entry) => status_of(entry, self.at),
            None => LockStatus::free(),
        }
    }

    /// Returns what is known about `key`, including its queue.
    #[cfg(feature = "testing")]
    pub(crate) fn look(&mut self, key: &LockKey) -> Look {
        let status = self.status(key);
        let now = self.at.now;
        let Some(entry) = self.table.get(self.prefix, key) else { return Look::default() };
        let alive = |waiter: &Waiter| (waiter.owner.clone(), waiter.alive_until.since(now));
        Look {
            holders: status.holders.into_iter().map(|(owner, _)| owner).collect(),
            remaining: status.remaining,
            queue: entry.queue.live(now).map(alive).collect(),
        }
    }

    /// Returns the next page of locks.
    pub(crate) fn scan(&self, request: &ScanRequest) -> Result<Scanned, StoreError> {
        let from = request.cursor.as_ref().map_or(Ok(0), Cursor::to_number)?;
        let (page, next) = self.table.page(from, PAGE);
        let found = page.into_iter().filter_map(|entry| {
            entry.ends(self.at.now)?;
            let name = entry.name.strip_prefix(self.prefix)?;
            // Handles with other prefixes may have keys that are invalid here.
            let key = LockKey::new(name.starts_with(&request.prefix).then_some(name)?).ok()?;
            Some((key, status_of(entry, self.at)))
        });
        Ok(Scanned { locks: found.collect(), next: next.map(Cursor::from) })
    }
}

fn status_of(entry: &Entry, At { now, .. }: At) -> LockStatus {
    let queued = entry.queue.live(now).count();
    let mut status = LockStatus::free();
    status.last_token = entry.counter(now).map(|counter| FencingToken::new(counter.top));
    status.remaining = entry.ends(now).map(|ends| ends.since(now));
    if let Some(hold) = entry.sole(now) {
        status.kind = Some(if queued == 0 { Kind::Mutex } else { Kind::Fair });
        status.holders.push((hold.owner.clone(), 1));
    } else if status.remaining.is_some() {
        status.kind = Some(if entry.read_write.writer(now).is_some() { Kind::Write } else { Kind::Read });
        status.holders.extend(entry.read_write.owners(now).map(|owner| (owner.clone(), 1)));
    }
    let waiters = if queued == 0 { listening_handles(entry) } else { queued };
    status.waiters = u64::try_from(waiters).unwrap_or(u64::MAX);
    status
}

/// Returns how many handles listen for releases.
fn listening_handles(entry: &Entry) -> usize {
    let public = entry.listeners.iter().filter(|listener| !matches!(listener.channel, Channel::Fair(_)));
    let mut handles = public.map(|listener| listener.watcher.handle).collect::<Vec<_>>();
    handles.sort_unstable();
    handles.dedup();
    handles.len()
}
