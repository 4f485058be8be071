//! Entries that leave queues, and epochs that end.

use std::collections::HashMap;
use std::collections::hash_map::Entry as MapEntry;
use std::sync::Arc;

use futures_util::future::join_all;
use lock_core::store::StoreError;
use lock_store_sequences::{Entry, Epoch, Left};
use zookeeper_client::Error;

use crate::errors::of_write;
use crate::link::{Change, Failed, Link, revision};
use crate::names;
use crate::own::{At, Node};

impl Link {
    /// Deletes the nodes of entries that are known. Returns which of them were there.
    pub(crate) async fn leave_at_once(
        &self,
        entries: &[(Entry, Option<u64>)],
    ) -> Result<Vec<bool>, StoreError> {
        let deletions = entries.iter().map(|(entry, born)| async move {
            let node = match self.names.get(entry) {
                At::Node(node) if born.is_none_or(|born| node.born == born) => node,
                _ => return Ok(false),
            };
            let mut was_there = false;
            for path in [Some(&node.path), node.turned.as_ref()].into_iter().flatten() {
                was_there |= self.delete(path).await?;
            }
            self.names.gone(entry, node.born);
            Ok(was_there)
        });
        // All are sent before one is awaited.
        join_all(deletions).await.into_iter().collect()
    }

    /// Ends an epoch, and looks for the nodes that its requests may have made. `None` if it has
    /// ended.
    pub(crate) async fn end_epoch(
        &self,
        epoch: Epoch,
        entries: impl Iterator<Item = &Entry>,
    ) -> Result<Option<Left>, StoreError> {
        let version = i32::try_from(epoch.version).unwrap_or(i32::MAX);
        match self.commit(&[Change::Write(self.epoch(epoch.slot), version)]).await {
            Ok(_) => {}
            Err(Failed::At(_, Error::BadVersion | Error::NoNode)) => {
                return Ok(Some(self.version(epoch).await?.map_or(Left::Ended, Left::Late)));
            }
            Err(Failed::At(_, error)) => return Err(self.failed(&error, of_write)),
            Err(Failed::Store(error)) => return Err(error),
        }
        // Every copy was executed before that, or is refused. So this list shows their nodes.
        let mut lists: HashMap<&str, Vec<String>> = HashMap::new();
        for entry in entries.filter(|entry| self.names.get(entry) == At::Unknown) {
            let names = match lists.entry(&entry.lock) {
                MapEntry::Occupied(names) => names.into_mut(),
                MapEntry::Vacant(place) => {
                    place.insert(self.children(&entry.lock).await?.unwrap_or_default().0)
                }
            };
            self.look_for(entry, names).await?;
        }
        Ok(None)
    }

    /// Returns the version of an epoch that is not the one which was sent. If there is none, the
    /// session has ended.
    pub(crate) async fn version(&self, epoch: Epoch) -> Result<Option<i64>, StoreError> {
        let stat = self.stat(&self.epoch(epoch.slot)).await?;
        if stat.is_none() {
            self.end();
        }
        Ok(stat.map(|stat| stat.version.into()))
    }

    /// Looks for the node of an entry among those of its directory.
    pub(crate) async fn look_for(&self, entry: &Entry, names: &[String]) -> Result<(), StoreError> {
        let begins = names::path_of(entry, self.id);
        let begins = names::split(&begins).1;
        let mut at = At::Nowhere;
        for name in names.iter().filter(|name| name.starts_with(begins)) {
            let path = format!("{}/{name}", entry.lock);
            let Some(stat) = self.stat(&path).await? else { continue };
            if let At::Node(old) = at {
                // There is one entry for each owner. An older one was given up.
                self.delete(&old.path).await?;
            }
            at = At::Node(Node { path: Arc::from(path), born: revision(stat.czxid), turned: None });
        }
        self.names.set(entry, at);
        Ok(())
    }
}
