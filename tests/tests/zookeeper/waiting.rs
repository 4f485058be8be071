//! Waiters of one process, as Curator sees them.

use std::time::Duration;

use lock_runtime::LockManager;
use lock_tests::callers::Callers;
use lock_tests::database_locks::ten_thousand_waiters_are_one_entry;
use lock_tests::{ZooKeeperServer, curator};

/// Returns the number of entries of a lock.
fn entries(curator: &mut Callers, path: &str) -> usize {
    let answer = tokio::task::block_in_place(|| curator.ask(&format!("a participants {path}")));
    let names = answer.strip_prefix("participants").expect(&answer);
    names.split_whitespace().count()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_waiters_of_a_process_are_one_entry() {
    let (server, mut curator) = tokio::task::block_in_place(|| {
        let server = ZooKeeperServer::start();
        let curator = curator::start(&server.connect_string(), Duration::from_secs(10));
        (server, curator)
    });
    let connect = async || LockManager::builder().prefix("").connect(server.url()).await.unwrap();
    let (holder, locks) = (connect().await, connect().await);
    ten_thousand_waiters_are_one_entry(&holder, &locks, || entries(&mut curator, "/k")).await;
}
