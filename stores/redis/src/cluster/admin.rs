//! Operators' steps on a cluster.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use lock_core::LockKey;
use lock_core::store::{LockStatus, ScanRequest, Scanned, StoreError, StoreErrorKind};

use super::super::check;
use super::super::join::join;
use super::super::names::Names;
use super::super::node::Node;
use super::Cluster;
use super::slots::{Place, slot};

/// A cursor over all servers consists of the server's index, a mark of the set of servers, and the
/// server's own cursor.
const MARK_BITS: u32 = 8;
const OWN_BITS: u32 = 46;

impl Cluster {
    fn slot_of(&self, key: &LockKey) -> Result<u16, StoreError> {
        Ok(slot(&Names::new(&self.options.prefix, key)?.lock().to_string()))
    }

    pub(in super::super) async fn status(&self, key: &LockKey) -> Result<LockStatus, StoreError> {
        let deadline = self.deadline(self.options.call_timeout);
        let step = |node: Arc<Node>, at| async move { node.status(key, at).await };
        Ok(self.at_slot(self.slot_of(key)?, deadline, step).await?)
    }

    pub(in super::super) async fn force_release(&self, key: &LockKey) -> Result<bool, StoreError> {
        let deadline = self.deadline(self.options.call_timeout);
        let step = |node: Arc<Node>, at| async move { node.force_release(key, at).await };
        Ok(self.at_slot(self.slot_of(key)?, deadline, step).await?)
    }

    /// Checks every server with slots.
    pub(in super::super) async fn check(&self) -> Result<(), StoreError> {
        let timeout = self.options.connect_timeout;
        let map = self.map(self.deadline(timeout)).await?;
        if !self.healthy.load(Ordering::Relaxed) {
            self.refresh();
            let what = "CLUSTERDOWN the servers say that the cluster is down";
            return Err(self.error(StoreErrorKind::NotReady, what));
        }
        let nodes: Result<Vec<_>, _> = map.primaries().iter().map(|place| self.node(place)).collect();
        let nodes = nodes?;
        let strict = self.options.strict;
        let checks =
            nodes.iter().map(|node| check::check(&node.connector, check::Mode::Cluster, strict, timeout));
        join(checks).await.into_iter().collect::<Result<(), _>>()?;
        if let Some(key) = &self.options.nobodys_key()
            && let Ok(slot) = self.slot_of(key)
        {
            let step = |node: Arc<Node>, at| async move { node.warn_of_rights(key, at).await };
            drop(self.at_slot(slot, self.deadline(timeout / 10), step).await);
        }
        Ok(())
    }

    /// Lists the locks of one server after the other.
    pub(in super::super) async fn scan(&self, request: &ScanRequest) -> Result<Scanned, StoreError> {
        let deadline = self.deadline(request.timeout);
        let map = self.map(deadline).await?;
        let mut places = map.primaries().to_vec();
        places.sort_unstable();
        let cursor = Cursor::read(request.cursor);
        let changed = || {
            let what =
                "the servers of the cluster have changed while the locks were listed; begin a new list";
            self.error(StoreErrorKind::Refused, what)
        };
        let mark = mark(&places);
        if request.cursor != 0 && cursor.mark != mark {
            return Err(changed());
        }
        let place = places.get(cursor.server).ok_or_else(changed)?;
        let left = deadline.since(self.now());
        let page = ScanRequest { cursor: cursor.own, timeout: left, ..request.clone() };
        let scanned = self.node(place)?.scan(&page).await.map_err(|fault| {
            self.doubt(&fault.error);
            let what = format!(
                "the list of locks is incomplete, because one server can't be asked: {}",
                fault.error
            );
            StoreError::new(fault.error.kind(), what)
        })?;
        let next = match scanned.next {
            Some(own) => Some(Cursor { own, ..cursor }),
            None if cursor.server + 1 < places.len() => {
                Some(Cursor { server: cursor.server + 1, mark, own: 0 })
            }
            None => None,
        };
        let next = next.map(|next| Cursor { mark, ..next }.write());
        if next == Some(None) {
            return Err(self.error(StoreErrorKind::Unsupported, "the cursor of SCAN is too large"));
        }
        Ok(Scanned { locks: scanned.locks, next: next.flatten() })
    }
}

/// Position in a walk over all servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Cursor {
    /// Index into the sorted servers.
    server: usize,
    mark: u64,
    /// The server's own cursor.
    own: u64,
}

impl Cursor {
    fn read(cursor: u64) -> Self {
        Self {
            server: usize::try_from(cursor >> (MARK_BITS + OWN_BITS)).unwrap_or(usize::MAX),
            mark: cursor >> OWN_BITS & ((1 << MARK_BITS) - 1),
            own: cursor & ((1 << OWN_BITS) - 1),
        }
    }

    /// Returns `None` if a part does not fit.
    fn write(self) -> Option<u64> {
        let cursor = (self.server as u64) << (MARK_BITS + OWN_BITS) | self.mark << OWN_BITS | self.own;
        Some(cursor).filter(|cursor| Self::read(*cursor) == self)
    }
}

/// Returns a number that almost always differs for another set of servers.
fn mark(places: &[Place]) -> u64 {
    let text: Vec<String> = places.iter().map(ToString::to_string).collect();
    u64::from(slot(&text.join(","))) & ((1 << MARK_BITS) - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cursors_are_read_as_they_were_written() {
        for cursor in [
            Cursor { server: 0, mark: 7, own: 1 },
            Cursor { server: 999, mark: 255, own: (1 << OWN_BITS) - 1 },
            Cursor { server: 1, mark: 0, own: 0 },
        ] {
            assert_eq!(Cursor::read(cursor.write().unwrap()), cursor);
        }
        assert_eq!(Cursor { server: 0, mark: 0, own: 1 << OWN_BITS }.write(), None);
        assert_eq!(Cursor { server: 1024, mark: 0, own: 0 }.write(), None);
        assert_eq!(Cursor::read(0), Cursor { server: 0, mark: 0, own: 0 });
    }

    #[test]
    fn other_servers_have_another_mark() {
        let one = [Place::new("a", 1), Place::new("b", 2)];
        let other = [Place::new("a", 1), Place::new("b", 3)];
        assert_ne!(mark(&one), mark(&other));
    }
}
