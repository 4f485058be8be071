//! A count, apart from the other tests of locks so that it starts early: it may take the longest.

use std::time::Duration;

use lock_tests::database_locks::processes_count_exactly_beside;
use lock_tests::database_server::LockServer;
use lock_tests::etcd::Etcd;

/// How often `etcdctl` counts.
const OF_ETCDCTL: usize = 40;

const SLACK: Duration = Duration::from_secs(120);

/// Reading and writing are two steps here too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_processes_and_etcdctl_count_to_ten_thousand() {
    let server = Etcd::start_beside_a_busy_disk().await;
    tokio::task::block_in_place(|| {
        processes_count_exactly_beside(&server.url(), env!("CARGO_BIN_EXE_counter"), 2, OF_ETCDCTL, |file| {
            let add = format!("n=$(cat '{file}') && printf %s $((n + 1)) > '{file}'");
            for _ in 0..OF_ETCDCTL {
                server.spawn_etcdctl(&["lock", "lock:count", "--", "sh", "-c", &add]).finish(SLACK);
            }
        });
    });
    Etcd::assert_nothing_is_left(&server, SLACK).await;
}
