//! [`Watches`]: the watches of a process, by name.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Weak};

use tokio::sync::mpsc;

use crate::internal::sync::{Mutex, lock};
use crate::store::{Notice, Watch};

/// Maximum number of queued notices per watch; all of them say the same.
const QUEUE: usize = 2;

/// The watches of a process, by the name of a key or a channel. Clones share them.
#[derive(Clone, Default)]
pub struct Watches(Arc<Mutex<Inner>>);

#[derive(Default)]
struct Inner {
    watches: HashMap<Arc<str>, Vec<(u64, mpsc::Sender<Notice>)>>,
    last: u64,
}

impl Watches {
    /// Watches `name` until the returned watch is dropped. The watch is confirmed: the caller
    /// promises that [`ring`](Self::ring) will be called after each release from now on.
    #[must_use]
    pub fn watch(&self, name: &str) -> Watch {
        let (notices, receiver) = mpsc::channel(QUEUE);
        let name: Arc<str> = Arc::from(name);
        let mut inner = lock(&self.0);
        inner.last += 1;
        let id = inner.last;
        inner.watches.entry(Arc::clone(&name)).or_default().push((id, notices));
        drop(inner);
        Watch::new(receiver, true, Box::new(Registration { watches: Arc::downgrade(&self.0), name, id }))
    }

    /// Notifies the watches of `name`. Wakes tasks, so the caller must have released every mutex.
    pub fn ring(&self, name: &str) {
        let heard: Vec<_> = match lock(&self.0).watches.get(name) {
            Some(watches) => watches.iter().map(|(_, notices)| notices.clone()).collect(),
            None => return,
        };
        for notices in heard {
            // A full queue has a notice already; a closed one is being dropped.
            let _ = notices.try_send(Notice::Retry);
        }
    }

    /// Returns how many names are watched.
    #[must_use]
    pub fn len(&self) -> usize {
        lock(&self.0).watches.len()
    }

    /// Whether no name is watched.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl fmt::Debug for Watches {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watches").field("names", &self.len()).finish()
    }
}

/// Removes a watch on drop. Weak, so that a leaked watch does not keep a store alive.
struct Registration {
    watches: Weak<Mutex<Inner>>,
    name: Arc<str>,
    id: u64,
}

impl Drop for Registration {
    fn drop(&mut self) {
        let Some(all) = self.watches.upgrade() else { return };
        let mut inner = lock(&all);
        let Some(watches) = inner.watches.get_mut(&self.name) else { return };
        let at = watches.iter().position(|(id, _)| *id == self.id);
        let gone = at.map(|at| watches.swap_remove(at));
        if watches.is_empty() {
            inner.watches.remove(&self.name);
        }
        drop(inner);
        // The mutex is released here: the end of a channel may wake a task.
        drop(gone);
    }
}
