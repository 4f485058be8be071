//! Deletes the entries that nobody has kept, when they are due.

use std::sync::{Arc, Weak};
use std::time::Duration;

use lock_core::internal::clock::Tick;
use lock_core::internal::sync::lock;
use lock_core::store::kit::bounded;
use tokio::sync::Notify;

use crate::entries::{Entries, State};
use crate::leave::Leaving;
use crate::locks::Inner;
use crate::store::{Entry, OrderedStore};

/// Delay before an entry is deleted again.
const DELETE_AGAIN: Duration = Duration::from_millis(200);

/// Maximum number of entries that are deleted at once.
const BATCH: usize = 50;

impl<S: OrderedStore> Inner<S> {
    /// Makes sure that entries which are due at `until` are deleted then. The caller
    /// [wakes](Self::wake) the sweeper when it has released the mutex.
    pub(crate) fn sweep_by(&self, entries: &mut Entries, until: Tick) -> Sweeper {
        let sweeper = match entries.sweeps {
            _ if entries.is_empty() => return Sweeper::Sleeps,
            Some(wakes) if wakes <= until => return Sweeper::Sleeps,
            Some(_) => Sweeper::Wakes,
            None => Sweeper::Begins,
        };
        entries.sweeps = Some(until);
        sweeper
    }

    pub(crate) fn wake(&self, sweeper: Sweeper) {
        match sweeper {
            Sweeper::Sleeps => {}
            Sweeper::Wakes => self.earlier.notify_one(),
            Sweeper::Begins => {
                tokio::spawn(sweep(Weak::clone(&self.me), Arc::clone(&self.earlier)));
            }
        }
    }

    /// Deletes the entries that are due. Returns how long to sleep; `None` if no entry is left.
    pub(crate) async fn sweep_once(&self) -> Option<Duration> {
        self.delete_due().await;
        let mut entries = lock(&self.entries);
        let now = self.clock.now();
        let (due, next) = entries.due(now);
        let wakes = match (due.is_empty(), next) {
            (false, _) => Some(now),
            (true, next) => next,
        };
        entries.sweeps = wakes;
        debug_assert!(wakes.is_some() || entries.is_empty(), "an entry without an end");
        wakes.map(|wakes| wakes.since(now))
    }

    /// Deletes the entries that nobody has kept.
    pub(crate) async fn delete_due(&self) {
        let mut groups: Vec<Leaving> = Vec::new();
        let mut stopped = Vec::new();
        {
            let mut entries = lock(&self.entries);
            for entry in entries.due(self.clock.now()).0 {
                // Its task would take the deletion for a loss.
                stopped.extend(entries.change(&entry, |own| {
                    own.state = State::Ends;
                    let has_room = |group: &&mut Leaving| group.is_of(own) && group.all.len() < BATCH;
                    match groups.iter_mut().find(has_room) {
                        Some(group) => group.all.push((0, entry.clone(), own.born)),
                        None => groups
                            .push(Leaving { all: vec![(0, entry.clone(), own.born)], ..Leaving::of(own) }),
                    }
                    std::mem::take(&mut own.following)
                }));
            }
        }
        drop(stopped);
        for group in groups {
            let all = group.all.iter().map(|(_, entry, born)| (entry.clone(), Some(*born))).collect();
            let left = bounded(self.settings.call_timeout, self.leave_in(&group, all)).await;
            let again = self.clock.now() + DELETE_AGAIN;
            for (_, entry, born) in &group.all {
                match &left {
                    Ok(_) => self.forget(entry, *born),
                    Err(_) => {
                        let mut entries = lock(&self.entries);
                        if entries.get(entry).is_some_and(|own| own.born == *born) {
                            entries.change(entry, |own| own.until = again);
                        }
                    }
                }
            }
        }
    }

    /// Forgets an entry that is gone.
    pub(crate) fn forget(&self, entry: &Entry, born: u64) {
        let mut entries = lock(&self.entries);
        let is_it = entries.get(entry).is_some_and(|own| own.born == born);
        let gone = if is_it { entries.remove(entry) } else { None };
        drop(entries);
        drop(gone);
    }
}

/// The message to the sweeper.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Sweeper {
    Sleeps,
    Wakes,
    Begins,
}

/// Deletes entries when nobody has kept them, until none is left.
async fn sweep<S: OrderedStore>(locks: Weak<Inner<S>>, earlier: Arc<Notify>) {
    loop {
        let Some(inner) = locks.upgrade() else { return };
        let Some(pause) = inner.sweep_once().await else { return };
        drop(inner);
        let _ = tokio::time::timeout(pause, earlier.notified()).await;
    }
}
