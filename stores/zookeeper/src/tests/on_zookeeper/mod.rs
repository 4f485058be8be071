//! Tests on one server.

mod conformance;
mod downgrades;
mod epochs;
mod names;
mod queues;
mod semaphores;
mod sessions;
#[cfg(feature = "tls")]
mod tls;
mod watches;

use std::sync::LazyLock;
use std::sync::atomic::{AtomicU32, Ordering};

use lock_store_sequences::{OrderedStore, Session};
use lock_test_servers::ZooKeeperServer;
use zookeeper_client::{Acls, Client, CreateMode, CreateOptions};

use super::*;

/// A tick is 200 ms.
static SERVER: LazyLock<ZooKeeperServer> =
    LazyLock::new(|| ZooKeeperServer::start_with(&["tickTime=200", "maxSessionTimeout=1000000"]));

/// A session lasts for longer than every lease of the tests.
const OPTIONS: &str = "timeout=800s&tick=200ms";

const PERSISTENT: CreateOptions<'static> = CreateMode::Persistent.with_acls(Acls::anyone_all());
const NUMBERED: CreateOptions<'static> = CreateMode::EphemeralSequential.with_acls(Acls::anyone_all());

/// Returns a directory that no other test has.
fn new_root() -> String {
    static LAST: AtomicU32 = AtomicU32::new(0);
    format!("/t{}", LAST.fetch_add(1, Ordering::Relaxed))
}

fn url(root: &str) -> String {
    format!("{}{root}?{OPTIONS}", SERVER.url())
}

/// Returns a handle with a directory that no other test has, and that.
fn new_store() -> (Arc<ZooKeeperStore>, String) {
    let root = new_root();
    (store(&url(&root), ""), root)
}

/// Connects as somebody else.
async fn client() -> Client {
    Client::connect(&SERVER.connect_string()).await.unwrap()
}

/// Returns the names of the nodes in a directory. There are none if it is not there.
async fn nodes(directory: &str) -> Vec<String> {
    let client = client().await;
    client.sync("/").await.unwrap();
    let mut names = client.list_children(directory).await.unwrap_or_default();
    names.sort();
    names
}

/// Deletes the nodes in a directory.
async fn delete_all(directory: &str) {
    let client = client().await;
    for name in nodes(directory).await {
        client.delete(&format!("{directory}/{name}"), None).await.unwrap();
    }
}

/// Returns the session of a store.
async fn session(store: &ZooKeeperStore) -> Session {
    store.store().begin(SECOND).await.unwrap().0
}
