//! Waiters of one process, as Curator sees them.

use std::time::Duration;

use lock_runtime::LockManager;
use lock_tests::callers::Callers;
use lock_tests::{ZooKeeperServer, curator, eventually};
use tokio::task::JoinSet;

/// Default maximum number of waiters for a key.
const WAITERS: usize = 10_000;
/// Time-outs; speed is not tested here.
const LONG: Duration = Duration::from_secs(600);
const SLACK: Duration = Duration::from_secs(60);

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
    let held = holder.mutex("k").acquire().await.unwrap();
    let mut waiters = JoinSet::new();
    for _ in 0..WAITERS {
        let lock = locks.mutex("k").wait(LONG);
        waiters.spawn(async move { lock.acquire().await.unwrap().release().await.unwrap() });
    }
    eventually(async || entries(&mut curator, "/k") == 2, SLACK).await;
    // All are in by now, and no other entry comes.
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(entries(&mut curator, "/k"), 2);
    held.release().await.unwrap();
    let mut most = 0;
    while waiters.join_next().await.transpose().unwrap().is_some() {
        if waiters.len().is_multiple_of(1000) {
            most = most.max(entries(&mut curator, "/k"));
        }
    }
    assert!(most <= 1, "{most} entries");
    eventually(async || entries(&mut curator, "/k") == 0, SLACK).await;
}
