//! Locks in MariaDB.

use std::sync::LazyLock;
use std::time::{Duration, Instant};

use lock_runtime::{ConnectError, LockManager};
use lock_tests::MariaDbServer;
use lock_tests::database_locks::{self, everything_works_between_two_managers};
use sqlx::mysql::MySqlPoolOptions;

/// For tests with different keys.
static SERVER: LazyLock<MariaDbServer> = LazyLock::new(MariaDbServer::start);

#[tokio::test]
async fn looks_that_are_not_polled_keep_nobody_waiting() {
    let locks = LockManager::connect(SERVER.url()).await.unwrap();
    database_locks::looks_that_are_not_polled_keep_nobody_waiting(&locks).await;
}

#[tokio::test]
async fn a_manager_takes_no_connection_from_the_pool() {
    let server = MariaDbServer::start();
    let pool = MySqlPoolOptions::new().max_connections(1).connect(&server.url()).await.unwrap();
    let _only_one = pool.begin().await.unwrap();
    let connect = || LockManager::builder().connect_mysql(&pool);
    let (one, other) = (connect().await.unwrap(), connect().await.unwrap());
    everything_works_between_two_managers(&one, &other).await;
}

#[tokio::test]
async fn a_user_with_four_rights_needs_no_more_once_there_is_the_table() {
    let server = MariaDbServer::start();
    let pool = sqlx::MySqlPool::connect(&server.url()).await.unwrap();
    let run = async |statement: &str| sqlx::raw_sql(statement).execute(&pool).await.map(drop).unwrap();
    run("CREATE USER app@'%'; GRANT SELECT, INSERT, UPDATE, DELETE ON locks.* TO app@'%'").await;
    let url = server.url().replace("root@", "app@");
    let refused = async |said: &str| match LockManager::connect(&url).await {
        Err(ConnectError::Misconfigured { reason }) => assert!(reason.contains(said), "{reason}"),
        other => panic!("{other:?}"),
    };
    refused("CREATE command denied").await;
    LockManager::connect(server.url()).await.unwrap();
    run("REVOKE ALL ON locks.* FROM app@'%'").await;
    for (right, missing) in [("SELECT", "INSERT"), ("INSERT", "UPDATE"), ("UPDATE", "DELETE")] {
        run(&format!("GRANT {right} ON locks.lock_records TO app@'%'")).await;
        refused(missing).await;
    }
    run("GRANT DELETE ON locks.lock_records TO app@'%'").await;
    let (one, other) = (LockManager::connect(&url).await.unwrap(), LockManager::connect(&url).await.unwrap());
    everything_works_between_two_managers(&one, &other).await;
}

#[tokio::test]
async fn a_server_that_does_not_let_us_in_is_told_at_once() {
    for (from, to, said) in [("/locks", "/nothing", "nothing"), ("root@", "root:hunter2@", "root")] {
        let url = SERVER.url().replace(from, to);
        let start = Instant::now();
        let error = LockManager::connect(url).await.unwrap_err();
        let text = format!("{error} {error:?}");
        assert!(text.contains(said) && !text.contains("hunter2"), "{text}");
        assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
    }
}
