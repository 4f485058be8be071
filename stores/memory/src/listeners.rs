//! [`Listeners`]: who watches the semaphores, or the latches, of a store.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use lock_core::internal::sync::{Mutex, lock};
use lock_core::store::{Notice, Watch};
use tokio::sync::mpsc;

/// Notices that wait in one watch; each says the same.
const QUEUE: usize = 2;

#[derive(Default)]
pub(super) struct Listeners(Arc<Mutex<Inner>>);

#[derive(Default)]
struct Inner {
    watches: HashMap<Arc<str>, Vec<(u64, mpsc::Sender<Notice>)>>,
    last: u64,
}

impl Listeners {
    /// Watches `name` until what is returned is dropped.
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

    /// Tells whoever watches `name`. The caller has given every mutex back: this wakes tasks.
    pub(super) fn ring(&self, name: &str) {
        let heard: Vec<_> = match lock(&self.0).watches.get(name) {
            Some(watches) => watches.iter().map(|(_, notices)| notices.clone()).collect(),
            None => return,
        };
        for notices in heard {
            // A full queue has a notice already, a closed one is being dropped.
            let _ = notices.try_send(Notice::Retry);
        }
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        lock(&self.0).watches.len()
    }
}

/// Takes a watch out when it is dropped. Weak: a forgotten watch does not keep a store alive.
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
        // Here the mutex is free again: the end of a channel may wake somebody.
        drop(gone);
    }
}
