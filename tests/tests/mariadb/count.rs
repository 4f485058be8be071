//! A count, apart from the other tests of locks so that it starts early: it may take the longest.

use lock_tests::database_locks::processes_count_exactly;
use lock_tests::database_server::LockServer;
use lock_tests::mariadb::MariaDb;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_processes_count_to_ten_thousand() {
    // It makes twenty thousand commits.
    let server = MariaDb::start_beside_a_busy_disk().await;
    tokio::task::block_in_place(|| {
        processes_count_exactly(&server.url(), env!("CARGO_BIN_EXE_counter"), 2);
    });
}
