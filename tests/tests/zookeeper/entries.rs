//! The entries of locks, as the server shows them.

use std::io;
use std::time::Duration;

use lock_runtime::LockManager;
use lock_tests::database_server::lock_nodes;
use lock_tests::{ZooKeeperEnsemble, ZooKeeperServer, eventually};
use tokio::task::block_in_place;

/// Servers that show their nodes.
pub(crate) trait Nodes {
    /// Returns the nodes of all locks.
    fn nodes(&self) -> io::Result<Vec<String>>;
}

impl Nodes for ZooKeeperServer {
    fn nodes(&self) -> io::Result<Vec<String>> {
        block_in_place(|| lock_nodes(self))
    }
}

impl Nodes for ZooKeeperEnsemble {
    fn nodes(&self) -> io::Result<Vec<String>> {
        block_in_place(|| lock_nodes(self.member(self.leader())))
    }
}

/// Connects a manager with this lease. Its sessions last for a minute, the longest that the servers
/// of tests grant, so that no session ends while a test looks.
pub(crate) async fn connect(server: &ZooKeeperServer, lease: Duration) -> LockManager {
    let url = format!("{}/?timeout=60s&tick=200ms", server.url());
    LockManager::builder().lease(lease).call_timeout(Duration::from_secs(10)).connect(url).await.unwrap()
}

/// Returns the directory of a lock of a manager with the default prefix.
pub(crate) fn path(lock: &str) -> String {
    format!("/lock:{lock}")
}

/// Returns the entries of a lock, oldest first.
pub(crate) fn entries(server: &impl Nodes, lock: &str) -> Vec<String> {
    let directory = format!("{}/", path(lock));
    let mut entries = server.nodes().unwrap();
    entries.retain(|node| node.strip_prefix(&directory).is_some_and(|name| !name.contains('/')));
    entries.sort_by_key(|entry| entry[entry.len() - 10..].to_owned());
    entries
}

/// Waits until a lock has this many entries, and returns them, oldest first.
pub(crate) async fn await_entries(
    server: &impl Nodes,
    lock: &str,
    count: usize,
    within: Duration,
) -> Vec<String> {
    eventually(async || entries(server, lock).len() == count, within).await;
    entries(server, lock)
}

/// Asserts that no entry is left, after this time at the latest.
pub(crate) async fn assert_nothing_is_left(server: &impl Nodes, within: Duration) {
    eventually(async || server.nodes().is_ok_and(|nodes| nodes.is_empty()), within).await;
}
