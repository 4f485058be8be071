//! [`Table`]: the memory store's data, and the removal of expired data.
//!
//! [`Table::purge`] removes expired data; it looks at a bounded number of entries each time.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap};
use std::sync::Arc;

use lock_core::LockKey;
use lock_core::internal::clock::Tick;
use lock_core::store::{Item, Notice};
use tokio::sync::mpsc;

use super::entry::{Channel, Entry, HandleId, Listener, WatchId, Watcher};

/// Maximum number of queued notices per watch. More than one, because our own release in the queue
/// will be ignored as an echo, and must not hide another owner's.
const QUEUE: usize = 16;

/// Minimum size of a table that is worth shrinking.
const SMALL: usize = 1024;

/// Everything the store knows.
#[derive(Default)]
pub(super) struct Table {
    entries: HashMap<Arc<str>, Entry>,
    /// The entries in the order in which they were made, so that a scan page by page misses none.
    made: BTreeMap<u64, Arc<str>>,
    last_made: u64,
    /// When to look at an entry again to remove expired data, soonest first. Each entry has at most
    /// one line here. A line may be too early, if the lease was renewed. It is rewritten when its
    /// time has come, so that renewing costs nothing.
    calendar: BinaryHeap<Reverse<(Tick, Arc<str>)>>,
    /// Number of watches.
    watches: usize,
    last_watch: u64,
    /// Buffer for prefix and key, so that a look-up needs no allocation.
    scratch: String,
}

/// A watch, and the names where its listeners are. Drop it outside the mutex: that may wake a task.
pub(super) struct Watched {
    watcher: Arc<Watcher>,
    names: Vec<Arc<str>>,
}

impl Table {
    /// Copies the data without its watches.
    #[cfg(feature = "testing")]
    pub(super) fn copy(&self) -> Self {
        let mut entries = HashMap::with_capacity(self.entries.len());
        for (name, entry) in &self.entries {
            entries.insert(Arc::clone(name), entry.copy());
        }
        Self {
            entries,
            made: self.made.clone(),
            last_made: self.last_made,
            calendar: self.calendar.clone(),
            watches: 0,
            last_watch: 0,
            scratch: String::new(),
        }
    }

    /// Removes all expired data, whatever the cost.
    #[cfg(feature = "testing")]
    pub(super) fn drop_expired(&mut self, now: Tick) {
        for entry in self.entries.values_mut() {
            entry.queue.purge(now);
            entry.drop_expired(now);
        }
    }

    /// Removes expired data, soonest expiry first, looking at no more than `budget` entries. A key
    /// is looked at twice, for its hold and for its counter. If each step's budget is at least
    /// twice the number of its keys, removing keeps up with adding.
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
                    self.made.remove(&entry.made);
                    self.entries.remove(&name);
                    removed = true;
                }
            }
        }
        if removed {
            self.give_back_memory();
        }
    }

    /// Shrinks the collections, which never happens by itself: after a burst of keys, most of their
    /// capacity would stay unused.
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

    /// Changes the entry of `key`, which is made if necessary, and schedules its purge.
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
                self.last_made += 1;
                self.made.insert(self.last_made, Arc::clone(&name));
                self.entries.entry(Arc::clone(&name)).or_insert_with(|| Entry::new(name, self.last_made))
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

    /// Makes a watch of these items.
    pub(super) fn watch(
        &mut self,
        handle: HandleId,
        prefix: &str,
        items: &[Item],
    ) -> (mpsc::Receiver<Notice>, Watched) {
        let (notices, receiver) = mpsc::channel(QUEUE);
        self.last_watch += 1;
        self.watches += 1;
        let watcher = Arc::new(Watcher { id: WatchId(self.last_watch), handle, notices });
        let listen = |item: &Item| {
            self.change(prefix, &item.key, |entry| {
                let listener = Listener { watcher: Arc::clone(&watcher), channel: Channel::of(item) };
                entry.listeners.push(listener);
                Arc::clone(&entry.name)
            })
        };
        let names = items.iter().map(listen).collect();
        (receiver, Watched { watcher, names })
    }

    /// Removes a watch.
    pub(super) fn unwatch(&mut self, watched: &Watched) {
        self.watches -= 1;
        for name in &watched.names {
            let Some(entry) = self.entries.get_mut(name) else { continue };
            entry.listeners.retain(|listener| listener.watcher.id != watched.watcher.id);
            if entry.is_empty() && !entry.in_calendar {
                self.made.remove(&entry.made);
                self.entries.remove(name);
            }
        }
    }

    /// Returns at most `most` entries from number `cursor` on, and the start of the next page.
    pub(super) fn page(&self, cursor: u64, most: usize) -> (Vec<&Entry>, Option<u64>) {
        let mut rest = self.made.range(cursor..);
        let page = rest.by_ref().take(most).filter_map(|(_, name)| self.entries.get(name)).collect();
        (page, rest.next().map(|(made, _)| *made))
    }

    #[cfg(test)]
    pub(super) fn sizes(&self) -> (usize, usize, usize) {
        assert_eq!(self.made.len(), self.entries.len());
        (self.entries.len(), self.calendar.len(), self.watches)
    }

    #[cfg(test)]
    pub(super) fn capacity(&self) -> usize {
        self.entries.capacity()
    }
}
