//! [`Listeners`]: the watches of a store's semaphores or latches.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use lock_core::internal::sync::{Mutex, lock};
use lock_core::store::{Notice, Watch};
use tokio::sync::mpsc;

/// Maximum number of queued notices per watch; all of them say the same.
const QUEUE: usize = 2;

#[derive(Default)]
pub(super) struct Listeners(Arc<Mutex<Inner>>);

#[derive(Default)]
struct Inner {
    watches: HashMap<Arc<str>, Vec<(u64, mpsc::Sender<Notice>)>>,
    last: u64,
}

impl Listeners {
    /// Watches `name` until the returned watch is dropped.
    pub(super) fn watch(&self, name: &str) -> Watch {
        let (notices, receiver) = mpsc::channel(QUEUE);
        let name: Arc<str> = Arc::from(name);
        let mut inner = lock(&self.0);
        inner.last += 1;
        let id = inner.last;
        inner.watches.entry(Arc::clone(&name)).or_default().push((id, notices));
        drop(inner);
        Watch::new(receiver, true, Box::new(Registration { listeners: Arc::downgrade(&self.0), name, id }))
    }

    /// Notifies the watches of `name`. Wakes tasks, so the caller must have released every mutex.
    pub(super) fn ring(&self, name: &str) {
        let heard: Vec<_> = match lock(&self.0).watches.get(name) {
            Some(watches) => watches.iter().map(|(_, notices)| notices.clone()).collect(),
            None => return,
        };
        for notices in heard {
            // A full queue has a notice already; a closed one is being dropped.
            let _ = notices.try_send(Notice::Retry);
        }
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        lock(&self.0).watches.len()
    }
}

/// Removes a watch on drop. Weak, so that a leaked watch does not keep a store alive.
struct Registration {
    listeners: Weak<Mutex<Inner>>,
    name: Arc<str>,
    id: u64,
}

impl Drop for Registration {
    fn drop(&mut self) {
        let Some(listeners) = self.listeners.upgrade() else { return };
        let mut inner = lock(&listeners);
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
