//! [`LockServer`]: what the tests of locks need to know of a product, to run on each of them.

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use lock_runtime::LockManager;

use crate::etcd::Etcd;
use crate::mongodb::{MongoDb, doc};
use crate::zookeeper::{DELETE, MULTI, ZooKeeper, operations};
use crate::{DatabaseServer, EtcdServer, MongoDbServer, Product, ZooKeeperServer, eventually};

/// A product whose servers have locks.
pub trait LockServer: Product {
    /// Returns the URL of the server behind this address, for the user who may do everything. Its
    /// clients connect to no other address.
    fn url_at(addr: SocketAddr) -> String;

    /// Starts a server that leaves what it writes to the system's cache. A kill of the server loses
    /// nothing of that, and a busy disk does not end leases.
    fn start_beside_a_busy_disk() -> impl Future<Output = DatabaseServer<Self>>;

    /// Whether this request of a client writes.
    fn writes(request: &[u8]) -> bool;

    /// Asserts that nobody holds or waits for anything, after this time at the latest.
    fn assert_nothing_is_left(server: &DatabaseServer<Self>, within: Duration) -> impl Future<Output = ()>;
}

impl LockServer for MongoDb {
    fn url_at(addr: SocketAddr) -> String {
        format!("mongodb://{addr}/locks?directConnection=true")
    }

    async fn start_beside_a_busy_disk() -> MongoDbServer {
        MongoDbServer::try_start_in(beside_a_busy_disk(), &[]).unwrap()
    }

    fn writes(request: &[u8]) -> bool {
        [&b"findAndModify"[..], b"updates", b"commitTransaction"].iter().any(|text| has(request, text))
    }

    async fn assert_nothing_is_left(server: &MongoDbServer, within: Duration) {
        eventually(async || records(server) == Some(0), within).await;
    }
}

impl LockServer for Etcd {
    fn url_at(addr: SocketAddr) -> String {
        format!("etcd://{addr}/")
    }

    async fn start_beside_a_busy_disk() -> EtcdServer {
        EtcdServer::try_start_in(beside_a_busy_disk(), &[]).unwrap()
    }

    fn writes(request: &[u8]) -> bool {
        enters(request) || deletes(request)
    }

    async fn assert_nothing_is_left(server: &EtcdServer, within: Duration) {
        // Epochs end with their leases, at the latest.
        let is_empty = async || {
            tokio::task::block_in_place(|| server.try_etcdctl(ALL_KEYS)).is_ok_and(|keys| keys.is_empty())
        };
        eventually(is_empty, within).await;
    }
}

impl LockServer for ZooKeeper {
    /// Sessions last for 12 s. Leases may have 11 s.
    fn url_at(addr: SocketAddr) -> String {
        format!("zookeeper://{addr}/{SESSION}")
    }

    async fn start_beside_a_busy_disk() -> ZooKeeperServer {
        ZooKeeperServer::try_start_in(beside_a_busy_disk(), &["tickTime=200"]).unwrap()
    }

    fn writes(request: &[u8]) -> bool {
        operations(request).iter().any(|operation| [DELETE, MULTI].contains(operation))
    }

    async fn assert_nothing_is_left(server: &ZooKeeperServer, within: Duration) {
        let is_empty =
            async || tokio::task::block_in_place(|| lock_nodes(server)).is_ok_and(|nodes| nodes.is_empty());
        eventually(is_empty, within).await;
    }
}

/// The session of a manager, in a URL: much longer than leases, and ticks as of the servers.
pub const SESSION: &str = "?timeout=12s&tick=200ms";

/// Returns the nodes of all locks in ZooKeeper: holders and waiters.
///
/// # Errors
///
/// When the server does not answer.
pub fn lock_nodes(server: &ZooKeeperServer) -> io::Result<Vec<String>> {
    let mut nodes = server.ephemerals()?;
    nodes.retain(|path| !path.contains("/lock-sessions/"));
    Ok(nodes)
}

/// Lists the names of all keys.
pub const ALL_KEYS: &[&str] = &["get", "", "--prefix", "--keys-only"];

/// Whether this request to etcd enters a queue, or withdraws.
#[must_use]
pub fn enters(request: &[u8]) -> bool {
    has(request, b"lock-epochs/")
}

/// Whether this request to etcd deletes a key in a transaction.
#[must_use]
pub fn deletes(request: &[u8]) -> bool {
    // The lengths of the operation, of the deletion in it, and of the key in that.
    request.windows(6).any(|part| {
        let [0x12, op, 0x1a, deletion, 0x0a, key] = *part else { return false };
        op == deletion.wrapping_add(2) && deletion == key.wrapping_add(2)
    })
}

/// Returns a folder that is in memory, if the system has one.
#[must_use]
pub fn beside_a_busy_disk() -> &'static Path {
    let memory = Path::new("/dev/shm");
    if memory.is_dir() { memory } else { Path::new("/tmp") }
}

/// Returns how many records of a member count: those with holders, waiters or permits.
#[must_use]
pub fn records(server: &MongoDbServer) -> Option<usize> {
    let now = doc! { "$multiply": [{ "$toLong": "$$NOW" }, 1000_i64] };
    let counts = doc! { "$expr": { "$gt": ["$until", now] } };
    let found = server.try_command(doc! { "find": "lock_records", "filter": counts, "$db": "locks" }).ok()?;
    Some(found.get_document("cursor").ok()?.get_array("firstBatch").ok()?.len())
}

/// Whether a request has this text.
pub(crate) fn has(request: &[u8], text: &[u8]) -> bool {
    request.windows(text.len()).any(|part| part == text)
}

/// Returns the URL of a server, for the user who may do everything.
pub fn url<P: LockServer>(server: &DatabaseServer<P>) -> String {
    P::url_at(server.addr())
}

/// Connects a manager to a server. Its locks have this lease.
pub async fn connect<P: LockServer>(server: &DatabaseServer<P>, lease: Duration) -> LockManager {
    LockManager::builder().lease(lease).connect(url(server)).await.unwrap()
}
