//! [`Turn`]: a place among Curator's clients that wait for permits.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use lock_core::OwnerId;
use lock_core::store::StoreError;
use lock_store_sequences::{Class, Entry};
use zookeeper_client::Error;

use crate::errors::of_write;
use crate::link::{Link, NUMBERED, revision};
use crate::names;
use crate::own::{At, Node};

/// An entry in the mutex of a semaphore, as Curator's clients have while they wait.
///
/// The first of them has a node among the permits already, which keeps its place free. So it is
/// never overtaken. If this session were not in their queue, each of them would be followed by the
/// next one at once, and no permit would ever be left. While this entry is the first, none of them
/// asks.
pub(crate) struct Turn<'a> {
    link: &'a Link,
    entry: Entry,
}

impl<'a> Turn<'a> {
    /// Makes a place that is not entered yet.
    pub(crate) fn new(link: &'a Link, leases: &str) -> Self {
        static LAST: AtomicU64 = AtomicU64::new(0);
        let owner = OwnerId::new(format!("waiter:{}", LAST.fetch_add(1, Ordering::Relaxed)));
        let entry = Entry { lock: Arc::from(names::locks(leases)), class: Class::Lock, owner };
        link.names.remember(&entry);
        Self { link, entry }
    }

    /// Enters the queue, if there is one.
    pub(crate) async fn enter(&self) -> Result<(), StoreError> {
        let Self { link, entry } = self;
        if link.names.get(entry) != At::Nowhere || link.stat(&entry.lock).await?.is_none() {
            return Ok(());
        }
        let (path, client) = (names::path_of(entry, link.id), link.client().await?);
        link.names.set(entry, At::Unknown);
        let (at, entered) = match client.create(&path, entry.owner.as_str().as_bytes(), &NUMBERED).await {
            Ok((stat, number)) => {
                let path = Arc::from(format!("{path}{number}"));
                (At::Node(Node { path, born: revision(stat.czxid), turned: None }), Ok(()))
            }
            // The queue is gone by now.
            Err(Error::NoNode) => (At::Nowhere, Ok(())),
            Err(error) => {
                let error = link.failed(&error, of_write);
                (if error.outcome_unknown() { At::Unknown } else { At::Nowhere }, Err(error))
            }
        };
        link.names.set(entry, at);
        entered
    }

    /// Leaves the queue.
    pub(crate) async fn leave(self) -> Result<(), StoreError> {
        let Self { link, entry } = &self;
        if link.has_ended() {
            return Ok(());
        }
        if link.names.get(entry) == At::Unknown {
            // A request to enter, which was dropped, is executed before this.
            link.beat().await?;
            let names = link.children(&entry.lock).await?.unwrap_or_default().0;
            link.look_for(entry, &names).await?;
        }
        if let At::Node(node) = link.names.get(entry) {
            link.delete(&node.path).await?;
            link.names.set(entry, At::Nowhere);
        }
        Ok(())
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        if self.link.names.forget(&self.entry) {
            self.link.make_tidy();
        }
    }
}
