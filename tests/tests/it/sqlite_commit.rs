//! Transactions in SQLite that are committed under a lock.

use std::time::Duration;

use lock_runtime::testing::memory_manager;
use lock_runtime::{CommitError, LockManager};
use lock_tests::sql_commit::{self, Notes, Place, a_lock_of_another_store_commits_nothing, is_misconfigured};
use sqlx::sqlite::{Sqlite, SqliteConnectOptions, SqlitePoolOptions};
use sqlx::{ConnectOptions, Connection};
use tempfile::TempDir;

async fn place() -> (Place<Sqlite>, TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("locks.db");
    let url = format!("sqlite:{}", file.display());
    let connect = || LockManager::connect(&url);
    let (locks, other) = (connect().await.unwrap(), connect().await.unwrap());
    let options = SqliteConnectOptions::new().filename(file);
    let pool = SqlitePoolOptions::new().max_connections(1).connect_with(options).await.unwrap();
    (Place::new(locks, other, pool).await, folder)
}

/// Makes each test run on a new file.
macro_rules! on_sqlite {
    ($($name:ident;)*) => {$(
        #[tokio::test]
        async fn $name() {
            let (place, _folder) = place().await;
            sql_commit::$name(&place).await;
        }
    )*};
}

on_sqlite! {
    guards_of_all_kinds_commit;
    what_is_not_held_is_not_committed;
    a_lost_guard_commits_nothing;
    a_body_under_the_attribute_commits;
    a_savepoint_is_refused;
}

#[tokio::test]
async fn a_lock_that_is_elsewhere_is_told_where_to_be() {
    let (first, _folder) = place().await;
    let (second, other_folder) = place().await;
    let here = "database (and schema) of the locks";
    a_lock_of_another_store_commits_nothing(&first, &second.locks, here).await;
    a_lock_of_another_store_commits_nothing(&first, &memory_manager(), "`mysql://…` or `sqlite:…`").await;
    let guard = first.locks.mutex("k").acquire().await.unwrap();
    // The commit would be atomic for each of the files only.
    let file = other_folder.path().join("own.db");
    let options = SqliteConnectOptions::new().filename(file).create_if_missing(true);
    let mut own = options.connect().await.unwrap();
    Sqlite::run(&mut own, &format!("ATTACH '{}' AS locks", other_folder.path().join("locks.db").display()))
        .await
        .unwrap();
    is_misconfigured(guard.commit_if_held(own.begin().await.unwrap()).await, here);
}

/// A transaction may have a table of this name.
#[tokio::test]
async fn a_temporary_table_hides_no_lock() {
    let (place, _folder) = place().await;
    let guard = place.locks.mutex("k").acquire().await.unwrap();
    let mut tx = place.note("mine").await;
    Sqlite::run(&mut tx, "CREATE TEMP TABLE lock_records AS SELECT * FROM main.lock_records").await.unwrap();
    assert!(guard.commit_if_held(tx).await.is_ok());
}

/// A transaction that has read begins to write when it commits.
#[tokio::test]
async fn a_transaction_on_a_snapshot_is_repeated_after_a_renewal() {
    let (place, _folder) = place().await;
    let lease = Duration::from_secs(60);
    let guard = place.locks.mutex("k").lease(lease).acquire().await.unwrap();
    let read = async || {
        let mut tx = place.pool.begin().await.unwrap();
        Sqlite::number(&mut tx, "SELECT COUNT(*) FROM note").await;
        tx
    };
    guard.commit_if_held(read().await).await.unwrap();
    let tx = read().await;
    guard.extend(lease * 2).await.unwrap();
    let error = guard.commit_if_held(tx).await.unwrap_err();
    // SQLITE_BUSY_SNAPSHOT
    let code = |cause: &sqlx::Error| cause.as_database_error().unwrap().code().unwrap().into_owned();
    assert!(matches!(&error, CommitError::Conflict { cause } if code(cause) == "517"), "{error:?}");
    guard.commit_if_held(read().await).await.unwrap();
    let immediate = place.pool.begin_with("BEGIN IMMEDIATE").await.unwrap();
    guard.commit_if_held(immediate).await.unwrap();
}

/// The time-out is that of the user's connection.
#[tokio::test]
async fn a_file_that_others_write_to_is_waited_for_but_not_for_long() {
    let (place, folder) = place().await;
    let guard = place.locks.mutex("k").acquire().await.unwrap();
    let options = SqliteConnectOptions::new().filename(folder.path().join("locks.db"));
    let mut hasty = options.clone().busy_timeout(Duration::from_millis(100)).connect().await.unwrap();
    let mut stranger = options.connect().await.unwrap();
    let mut tx = stranger.begin_with("BEGIN IMMEDIATE").await.unwrap();
    Sqlite::run(&mut tx, "INSERT INTO note VALUES ('stranger')").await.unwrap();
    let error = guard.commit_if_held(hasty.begin().await.unwrap()).await.unwrap_err();
    assert!(matches!(&error, CommitError::Conflict { .. }), "{error:?}");
    tx.commit().await.unwrap();
    guard.commit_if_held(hasty.begin().await.unwrap()).await.unwrap();
}
