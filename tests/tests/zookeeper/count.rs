//! A count, apart from the other tests of locks so that it starts early: it may take the longest.

use std::time::Duration;

use lock_tests::curator;
use lock_tests::database_locks::processes_count_exactly_beside;
use lock_tests::database_server::LockServer;
use lock_tests::zookeeper::ZooKeeper;

/// How often Curator counts.
const OF_CURATOR: usize = 400;

const SLACK: Duration = Duration::from_secs(60);

/// Reading and writing are two steps here too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_processes_and_curator_count_to_ten_thousand() {
    let server = ZooKeeper::start_beside_a_busy_disk().await;
    tokio::task::block_in_place(|| {
        let mut curator = curator::start(&server.connect_string(), SLACK);
        let counter = env!("CARGO_BIN_EXE_counter");
        processes_count_exactly_beside(&server.url(), counter, 2, OF_CURATOR, |file| {
            let count = format!("a count /lock:count {file} {OF_CURATOR}");
            assert_eq!(curator.ask(&count), "counted");
        });
    });
    ZooKeeper::assert_nothing_is_left(&server, SLACK).await;
}
