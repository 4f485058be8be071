//! Locks in PostgreSQL.

use std::time::{Duration, Instant};

use lock_runtime::{ConnectError, LockManager};
use lock_tests::PostgresServer;
use lock_tests::database_locks::{self, everything_works_between_two_managers, processes_count_exactly};
use sqlx::postgres::PgPoolOptions;

#[test]
fn two_processes_count_to_ten_thousand() {
    let server = PostgresServer::start();
    processes_count_exactly(&server.url(), env!("CARGO_BIN_EXE_counter"), 2);
}

#[tokio::test]
async fn looks_that_are_not_polled_keep_nobody_waiting() {
    let server = PostgresServer::start();
    database_locks::looks_that_are_not_polled_keep_nobody_waiting(
        &LockManager::connect(server.url()).await.unwrap(),
    )
    .await;
}

#[tokio::test]
async fn a_manager_takes_no_connection_from_the_pool() {
    let server = PostgresServer::start();
    let pool = PgPoolOptions::new().max_connections(1).connect(&server.url()).await.unwrap();
    let _only_one = pool.begin().await.unwrap();
    let connect = || LockManager::builder().connect_postgres(&pool);
    let (one, other) = (connect().await.unwrap(), connect().await.unwrap());
    everything_works_between_two_managers(&one, &other).await;
}

#[tokio::test]
async fn a_user_with_four_rights_needs_no_more_once_there_is_the_table() {
    let server = PostgresServer::start();
    let pool = sqlx::PgPool::connect(&server.url()).await.unwrap();
    let run = async |statement: &str| sqlx::raw_sql(statement).execute(&pool).await.map(drop).unwrap();
    run("CREATE ROLE app LOGIN; REVOKE CREATE ON SCHEMA public FROM PUBLIC").await;
    let url = server.url().replace("test@", "app@");
    let refused = async |said: &str| match LockManager::connect(&url).await {
        Err(ConnectError::Misconfigured { reason }) => assert!(reason.contains(said), "{reason}"),
        other => panic!("{other:?}"),
    };
    refused("permission denied for schema public").await;
    LockManager::connect(server.url()).await.unwrap();
    refused("permission denied for table lock_records").await;
    run("GRANT SELECT, INSERT, UPDATE ON lock_records TO app").await;
    refused("permission denied for table lock_records").await;
    run("GRANT DELETE ON lock_records TO app").await;
    let (one, other) = (LockManager::connect(&url).await.unwrap(), LockManager::connect(&url).await.unwrap());
    everything_works_between_two_managers(&one, &other).await;
}

#[tokio::test]
async fn a_server_that_does_not_let_us_in_is_told_at_once() {
    let server = PostgresServer::start();
    for (from, to, said) in [("/postgres", "/nothing", "nothing"), ("test@", "nobody:hunter2@", "nobody")] {
        let url = server.url().replace(from, to);
        let start = Instant::now();
        let error = LockManager::connect(&url).await.unwrap_err();
        let text = format!("{error} {error:?}");
        assert!(text.contains(said) && !text.contains("hunter2"), "{text}");
        assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
    }
}
