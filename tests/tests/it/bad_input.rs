//! Names, databases and times at the limits of their ranges on real servers: each works, or is
//! refused with an explanation.

use std::time::Duration;

use lock_runtime::{ConnectError, LockError, LockKey, LockManager, Replication, TokenRetention};
use lock_tests::{RedisServer, Sentinels};

const SECOND: Duration = Duration::from_secs(1);

async fn refused(url: &str) -> String {
    match LockManager::connect(url).await {
        Err(ConnectError::Misconfigured { reason }) => reason.to_string(),
        other => panic!("{url}: {other:?}"),
    }
}

#[tokio::test]
async fn the_error_names_a_missing_database() {
    let server = RedisServer::start();
    for (path, said) in [
        ("/99", "a database number that the server does not have"),
        ("/-1", "database number"),
        ("/abc", "database number"),
    ] {
        let reason = refused(&format!("{}{path}", server.url())).await;
        assert!(reason.contains(said), "{path}: {reason}");
    }
    // A manager that connects later reports it with the first lock, at once and not after the wait.
    let locks = LockManager::connect_lazy(format!("{}/99", server.url())).unwrap();
    let asked = locks.mutex("k").wait(600 * SECOND).acquire();
    let error = tokio::time::timeout(60 * SECOND, asked).await.expect("at once").unwrap_err();
    assert!(
        matches!(&error, LockError::Misconfigured { reason } if reason.contains("a database number that the server does not have")),
        "{error:?}"
    );

    let (first, last) = (server.url(), format!("{}/15", server.url()));
    let (first, last) =
        (LockManager::connect(first).await.unwrap(), LockManager::connect(last).await.unwrap());
    let held = [first.mutex("k").acquire().await.unwrap(), last.mutex("k").acquire().await.unwrap()];
    for guard in held {
        guard.release().await.unwrap();
    }
}

#[tokio::test]
async fn the_error_names_a_missing_database_through_sentinels() {
    let group = Sentinels::start();
    for (path, said) in [
        ("/99", "a database number that the server does not have"),
        ("/-1", "database number"),
        ("/abc", "database number"),
    ] {
        let reason = refused(&format!("{}{path}", group.url())).await;
        assert!(reason.contains(said), "{path}: {reason}");
    }
}

#[tokio::test]
async fn the_longest_key_behind_the_longest_prefix_is_locked() {
    let server = RedisServer::start();
    let prefix = "ü".repeat(LockKey::LONGEST / 2 - 1);
    let locks = LockManager::builder().prefix(prefix).connect(server.url()).await.unwrap();
    let longest = "k".repeat(LockKey::LONGEST);
    for lock in [LockManager::mutex, LockManager::fair, LockManager::read, LockManager::write]
        .map(|kind| kind(&locks, &longest))
    {
        lock.acquire().await.unwrap().release().await.unwrap();
    }
    let locks = LockManager::builder().prefix("").connect(server.url()).await.unwrap();
    let key = format!("x{}", "€".repeat(LockKey::LONGEST / 3));
    let guard = locks.mutex(&key).acquire().await.unwrap();
    assert!(locks.status(&key).await.unwrap().kind.is_some());
    guard.release().await.unwrap();
}

#[tokio::test]
async fn the_longest_times_are_within_what_the_server_takes() {
    let server = RedisServer::start();
    for retention in [TokenRetention::For(Duration::MAX), TokenRetention::Keep] {
        let locks = LockManager::builder().token_retention(retention).connect(server.url()).await.unwrap();
        let lease = 366 * 24 * 3600 * SECOND;
        for lock in [locks.mutex("long"), locks.fair("long-fair"), locks.write("long-write")] {
            let guard =
                lock.lease(lease).wait(Duration::MAX).max_hold(Duration::MAX).acquire().await.unwrap();
            guard.extend(lease).await.unwrap();
            guard.release().await.unwrap();
        }
    }
}

#[tokio::test]
async fn replicas_that_have_for_ever_to_confirm_do_not_outlast_the_wait() {
    let server = RedisServer::start();
    let locks = LockManager::connect(server.url()).await.unwrap();
    for timeout in [Duration::from_nanos(1), Duration::MAX] {
        let asked = locks.mutex("k").replication(Replication::at_least(1, timeout)).wait(SECOND).acquire();
        let error = tokio::time::timeout(60 * SECOND, asked).await.expect("the wait is over").unwrap_err();
        assert!(matches!(error, LockError::NotReplicated { .. }), "{timeout:?}: {error:?}");
    }
}
