//! Operators' steps on a cluster.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use lock_core::LockKey;
use lock_core::store::{Cursor, LockStatus, ScanRequest, Scanned, StoreError, StoreErrorKind};

use super::super::check;
use super::super::hash_slot::slot;
use super::super::join::join;
use super::super::names::Names;
use super::super::node::Node;
use super::Cluster;
use super::slots::Place;

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
        let at = request.cursor.as_ref().map(Walk::read);
        let changed = || {
            let what =
                "the servers of the cluster have changed while the locks were listed; begin a new list";
            self.error(StoreErrorKind::Refused, what)
        };
        let mark = mark(&places);
        let at = at.unwrap_or(Some(Walk { server: 0, mark, own: 0 })).ok_or_else(Cursor::refusal)?;
        let at = Some(at).filter(|at| at.mark == mark).ok_or_else(changed)?;
        let place =
            usize::try_from(at.server).ok().and_then(|server| places.get(server)).ok_or_else(changed)?;
        let left = deadline.since(self.now());
        let own = Some(Cursor::from(at.own)).filter(|_| at.own > 0);
        let page = ScanRequest { cursor: own, timeout: left, ..request.clone() };
        let scanned = self.node(place)?.scan(&page).await.map_err(|fault| {
            self.doubt(&fault.error);
            let what = format!(
                "the list of locks is incomplete, because one server can't be asked: {}",
                fault.error
            );
            StoreError::new(fault.error.kind(), what)
        })?;
        let next = match scanned.next.and_then(|own| own.to_number().ok()) {
            Some(own) => Some(Walk { own, ..at }),
            None if at.server + 1 < places.len() as u64 => Some(Walk { server: at.server + 1, mark, own: 0 }),
            None => None,
        };
        Ok(Scanned { locks: scanned.locks, next: next.map(Walk::write) })
    }
}

/// Position in a walk over all servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Walk {
    /// Index into the sorted servers.
    server: u64,
    /// Mark of the set of servers.
    mark: u64,
    /// The server's own cursor.
    own: u64,
}

impl Walk {
    /// Returns `None` for a cursor that is not from an earlier page.
    fn read(cursor: &Cursor) -> Option<Self> {
        let (numbers, []) = cursor.as_bytes().as_chunks::<8>() else { return None };
        let [server, mark, own] = numbers else { return None };
        let [server, mark, own] = [server, mark, own].map(|number| u64::from_be_bytes(*number));
        Some(Self { server, mark, own })
    }

    fn write(self) -> Cursor {
        Cursor::new([self.server, self.mark, self.own].map(u64::to_be_bytes).concat())
    }
}

/// Returns a number that almost always differs for another set of servers.
fn mark(places: &[Place]) -> u64 {
    let text: Vec<String> = places.iter().map(ToString::to_string).collect();
    u64::from(slot(&text.join(",")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cursors_are_read_as_they_were_written() {
        for walk in [Walk { server: 0, mark: 7, own: 1 }, Walk { server: 999, mark: 255, own: u64::MAX }] {
            assert_eq!(Walk::read(&walk.write()), Some(walk));
        }
        assert_eq!(Walk::read(&Cursor::from(7)), None);
    }

    #[test]
    fn other_servers_have_another_mark() {
        let one = [Place::new("a", 1), Place::new("b", 2)];
        let other = [Place::new("a", 1), Place::new("b", 3)];
        assert_ne!(mark(&one), mark(&other));
    }
}
