//! Locks that replicas confirm, on a primary whose real replica is paused when it must not confirm.

use std::time::Duration;

use lock_runtime::{LockError, LockManager, Replication};
use lock_tests::eventually;

use super::stock_replication::{LONG, replicated};

/// Time-out for something quick, on a busy machine.
const SLACK: Duration = Duration::from_secs(10);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_is_had_only_when_it_is_replicated() {
    let (primary, mut replica) = replicated().await;
    let locks = LockManager::connect(primary.url()).await.unwrap();
    let lock = || locks.mutex("a").replication(Replication::at_least(1, Duration::from_millis(200)));
    let guard = lock().acquire().await.unwrap();
    assert_eq!(replica.cli(&["EXISTS", "lock:a"]), "1");
    guard.release().await.unwrap();

    replica.stop();
    let error = lock().wait(Duration::from_secs(1)).acquire().await.unwrap_err();
    assert!(matches!(error, LockError::NotReplicated { .. }), "{error}");
    let free = async || primary.cli(&["EXISTS", "lock:a"]) == "0";
    // The lock is withdrawn.
    eventually(free, SLACK).await;
    // A lock that needs no replicas is granted.
    locks.mutex("a").acquire().await.unwrap().release().await.unwrap();

    // Within the wait.
    let waiting = tokio::spawn(lock().wait(LONG).acquire());
    let blocked = async || primary.cli(&["INFO", "clients"]).contains("blocked_clients:1\r\n");
    eventually(blocked, SLACK).await;
    replica.cont();
    waiting.await.unwrap().unwrap().release().await.unwrap();
    eventually(free, SLACK).await;
}

#[tokio::test]
async fn a_user_who_may_not_wait_for_replicas_is_told_long_before_the_wait_is_over() {
    let (primary, _replica) = replicated().await;
    primary.cli(&["ACL", "SETUSER", "ann", "on", ">hunter2", "allkeys", "allchannels", "+@all", "-wait"]);
    let url = format!("redis://ann:hunter2@127.0.0.1:{}", primary.port());
    let locks = LockManager::connect(&url).await.unwrap();
    let policy = Replication::at_least(1, LONG);
    let error = locks.mutex("c").replication(policy).wait(LONG).acquire().await.unwrap_err();
    assert!(matches!(error, LockError::Misconfigured { .. }), "long before its wait is over: {error}");
}
