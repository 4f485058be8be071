//! [`Name`]: the name of an entry at the store, as long as it may be needed.

use std::any::Any;
use std::fmt;
use std::sync::{Arc, Weak};

use crate::store::{Entry, OrderedStore, Session};

/// A name that the store forgets when this is dropped.
pub(crate) struct Name(#[expect(dead_code, reason = "only its drop counts")] Box<dyn Any + Send + Sync>);

struct NameAt<S: OrderedStore> {
    store: Weak<S>,
    session: Session,
    entry: Entry,
}

impl Name {
    pub(crate) fn new<S: OrderedStore>(store: &Arc<S>, session: Session, entry: &Entry) -> Self {
        store.remember(session, entry);
        Self(Box::new(NameAt { store: Arc::downgrade(store), session, entry: entry.clone() }))
    }
}

impl<S: OrderedStore> Drop for NameAt<S> {
    fn drop(&mut self) {
        if let Some(store) = self.store.upgrade() {
            store.forget(self.session, &self.entry);
        }
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Name")
    }
}
