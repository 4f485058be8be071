//! Servers and clients of ZooKeeper that are killed or stopped, and connections that are cut.

use std::time::Duration;

use lock_tests::database_faults;
use lock_tests::zookeeper::ZooKeeper;

database_faults!(ZooKeeper);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crash_loses_no_grant() {
    let url = |server: &lock_tests::ZooKeeperServer| format!("{}/?timeout=60s&tick=500ms", server.url());
    database_faults::a_crash_loses_no_grant::<ZooKeeper>(url, Duration::from_secs(50)).await;
}
