//! Tests on one server.

mod conformance;
mod epochs;
mod login;
mod names;
mod queues;
mod sessions;
mod tls;
mod tokens;
mod version;

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, LazyLock};

use lock_test_servers::EtcdServer;

use super::store;
use crate::EtcdStore;

static SERVER: LazyLock<EtcdServer> = LazyLock::new(EtcdServer::start);

/// Returns a prefix that no other test has.
fn new_prefix() -> String {
    static LAST: AtomicU32 = AtomicU32::new(0);
    format!("t{}:", LAST.fetch_add(1, Ordering::Relaxed))
}

/// Returns a handle with names that no other test has, and their prefix.
fn new_store() -> (Arc<EtcdStore>, String) {
    let prefix = new_prefix();
    (store(&SERVER.url(), &prefix), prefix)
}

/// Returns the keys under a prefix.
fn keys(prefix: &str) -> Vec<String> {
    let keys = SERVER.etcdctl(&["get", "--prefix", "--keys-only", prefix]);
    keys.lines().filter(|line| !line.is_empty()).map(str::to_owned).collect()
}
