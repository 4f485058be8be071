//! Locks in SQLite.

use std::convert::Infallible;
use std::str::FromStr;
use std::time::Duration;

use lock_runtime::{ConnectError, Credentials, LockManager};
use lock_tests::database_locks::{self, everything_works_between_two_managers, processes_count_exactly};
use sqlx::sqlite::{SqliteConnectOptions, SqlitePoolOptions};
use tempfile::TempDir;

const COUNTER: &str = env!("CARGO_BIN_EXE_counter");

fn folder() -> (TempDir, String) {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", folder.path().join("locks.db").display());
    (folder, url)
}

#[test]
fn two_processes_count_to_ten_thousand() {
    let (_folder, url) = folder();
    processes_count_exactly(&url, COUNTER, 2);
}

#[test]
fn four_processes_count_to_ten_thousand_on_one_file() {
    let (_folder, url) = folder();
    processes_count_exactly(&url, COUNTER, 4);
}

#[tokio::test]
async fn looks_that_are_not_polled_keep_nobody_waiting() {
    let (_folder, url) = folder();
    database_locks::looks_that_are_not_polled_keep_nobody_waiting(&LockManager::connect(&url).await.unwrap())
        .await;
}

#[tokio::test]
async fn credentials_are_for_redis() {
    let (_folder, url) = folder();
    let builder =
        LockManager::builder().credentials(|_| async { Ok::<_, Infallible>(Credentials::password("x")) });
    let error = builder.connect(&url).await.unwrap_err();
    assert!(
        matches!(&error, ConnectError::Misconfigured { .. }) && error.to_string().contains("URL"),
        "{error}"
    );
}

#[tokio::test]
async fn two_managers_share_a_file() {
    let (_folder, url) = folder();
    let connect = || LockManager::connect(&url);
    everything_works_between_two_managers(&connect().await.unwrap(), &connect().await.unwrap()).await;
}

#[tokio::test]
async fn a_manager_takes_no_connection_from_the_pool() {
    let (_folder, url) = folder();
    let options = SqliteConnectOptions::from_str(&url).unwrap().create_if_missing(true);
    let pool = SqlitePoolOptions::new().max_connections(1).connect_with(options).await.unwrap();
    let _only_one = pool.acquire().await.unwrap();
    let connect = || LockManager::builder().connect_sqlite(&pool);
    everything_works_between_two_managers(&connect().await.unwrap(), &connect().await.unwrap()).await;
}

#[tokio::test]
async fn a_database_in_memory_is_refused() {
    let named = SqliteConnectOptions::new().filename("locks.db").in_memory(true);
    let pool = |options| SqlitePoolOptions::new().max_connections(1).connect_lazy_with(options);
    for refused in [
        LockManager::connect("sqlite::memory:").await,
        LockManager::builder().connect_sqlite(&pool("sqlite::memory:".parse().unwrap())).await,
        LockManager::builder().connect_sqlite(&pool(named)).await,
    ] {
        match refused {
            Err(ConnectError::Misconfigured { reason }) => assert!(reason.contains("in memory"), "{reason}"),
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test]
async fn a_file_in_no_folder_can_not_be_opened() {
    let (folder, _url) = folder();
    let url = format!("sqlite:{}", folder.path().join("no/locks.db").display());
    let builder = LockManager::builder().connect_timeout(Duration::from_millis(500));
    match builder.connect(&url).await {
        Err(ConnectError::Unavailable { cause }) => {
            assert!(cause.to_string().contains("unable to open database file"), "{cause}");
        }
        other => panic!("{other:?}"),
    }
}
