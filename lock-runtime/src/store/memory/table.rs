//! [`Table`]: the memory store's data, and how it gets rid of what has expired.
//!
//! What has expired is treated as absent when it is met, and is thrown away by [`Table::purge`], which looks at a
//! bounded number of entries each time.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::sync::Arc;

use tokio::sync::mpsc;

use crate::clock::Tick;
use crate::key::LockKey;
use crate::store::Notice;
use crate::token::OwnerId;

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

pub(super) struct Watcher {
    pub(super) handle: HandleId,
    pub(super) notices: mpsc::Sender<Notice>,
}

/// What is kept for one key.
pub(super) struct Entry {
    pub(super) name: Arc<str>,
    pub(super) hold: Option<Hold>,
    pub(super) counter: Option<Counter>,
    pub(super) watches: Vec<WatchId>,
    in_calendar: bool,
}

/// There is no hold count: the engine counts re-entries, the store sees one hold.
pub(super) struct Hold {
    pub(super) owner: OwnerId,
    pub(super) expires: Tick,
}

#[derive(Clone, Copy)]
pub(super) struct Counter {
    /// The highest token ever granted.
    pub(super) top: u64,
    /// `None`: kept for ever.
    pub(super) expires: Option<Tick>,
}

impl Entry {
    fn new(name: Arc<str>) -> Self {
        Self { name, hold: None, counter: None, watches: Vec::new(), in_calendar: false }
    }

    pub(super) fn hold(&mut self, now: Tick) -> Option<&mut Hold> {
        self.hold.as_mut().filter(|hold| hold.expires > now)
    }

    pub(super) fn hold_of(&mut self, owner: &OwnerId, now: Tick) -> Option<&mut Hold> {
        self.hold(now).filter(|hold| hold.owner == *owner)
    }

    pub(super) fn counter(&self, now: Tick) -> Option<Counter> {
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

    pub(super) fn get(&mut self, prefix: &str, key: &LockKey) -> Option<&mut Entry> {
        self.name(prefix, key);
        self.entries.get_mut(self.scratch.as_str())
    }

    /// Changes the entry of `key`, which is made if there is none, and sees that it is purged in time.
    pub(super) fn change<T>(
        &mut self,
        prefix: &str,
        key: &LockKey,
        change: impl FnOnce(&mut Entry) -> T,
    ) -> T {
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

    /// Makes a watch that hears nothing until it is written into entries.
    pub(super) fn new_watch(&mut self, handle: HandleId) -> (WatchId, mpsc::Receiver<Notice>) {
        let (notices, receiver) = mpsc::channel(QUEUE);
        self.last_watch += 1;
        let id = WatchId(self.last_watch);
        self.watches.insert(id, Watcher { handle, notices });
        (id, receiver)
    }

    pub(super) fn watcher(&self, id: WatchId) -> Option<&Watcher> {
        self.watches.get(&id)
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
