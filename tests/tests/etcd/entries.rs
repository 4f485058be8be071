//! The keys in etcd, as `etcdctl` shows them.

use std::io;
use std::time::Duration;

use lock_tests::database_server::ALL_KEYS;
use lock_tests::{EtcdCluster, EtcdServer, eventually};

/// Servers with an `etcdctl`.
pub(crate) trait Ctl {
    fn ctl(&self, args: &[&str]) -> io::Result<String>;
}

impl Ctl for EtcdServer {
    fn ctl(&self, args: &[&str]) -> io::Result<String> {
        tokio::task::block_in_place(|| self.try_etcdctl(args))
    }
}

impl Ctl for EtcdCluster {
    fn ctl(&self, args: &[&str]) -> io::Result<String> {
        tokio::task::block_in_place(|| self.try_etcdctl(args))
    }
}

/// Returns the name in etcd of a lock of a manager with the default prefix.
pub(crate) fn name(lock: &str) -> String {
    format!("lock:{lock}")
}

/// Returns the entries of a lock, oldest first.
pub(crate) fn entries(etcd: &impl Ctl, lock: &str) -> Vec<String> {
    let prefix = format!("{}/", name(lock));
    let listed = etcd.ctl(&["get", &prefix, "--prefix", "--keys-only", "--sort-by=CREATE"]).unwrap();
    listed.split_whitespace().map(str::to_owned).collect()
}

/// Waits until a lock has this many entries, and returns them, oldest first.
pub(crate) async fn await_entries(
    etcd: &impl Ctl,
    lock: &str,
    count: usize,
    within: Duration,
) -> Vec<String> {
    eventually(async || entries(etcd, lock).len() == count, within).await;
    entries(etcd, lock)
}

/// Returns the lease in the name of an entry.
pub(crate) fn lease_of(entry: &str) -> &str {
    let name = entry.rsplit_once('/').expect("the name of an entry").1;
    name.split_once('-').map_or(name, |(lease, _)| lease)
}

/// Asserts that no key is left, after this time at the latest: no entries and no epochs.
pub(crate) async fn assert_nothing_is_left(etcd: &impl Ctl, within: Duration) {
    eventually(async || etcd.ctl(ALL_KEYS).is_ok_and(|keys| keys.is_empty()), within).await;
}

/// Asserts that no entry is left, after this time at the latest. Epochs are left until their leases
/// end, which may be long.
pub(crate) async fn assert_only_epochs_are_left(etcd: &impl Ctl, within: Duration) {
    let is_so = async || {
        etcd.ctl(ALL_KEYS).is_ok_and(|keys| keys.split_whitespace().all(|key| key.starts_with(EPOCHS)))
    };
    eventually(is_so, within).await;
    let epochs = etcd.ctl(&["get", EPOCHS, "--prefix", "--write-out=fields"]).unwrap();
    assert!(!epochs.contains("\"Lease\" : 0\n"), "each ends with a lease: {epochs}");
}

/// In front of the names of epochs.
const EPOCHS: &str = "lock-epochs/";
