//! Transactions that are committed under a lock.

use std::sync::LazyLock;
use std::time::Duration;

use lock_runtime::testing::memory_manager;
use lock_runtime::{CommitError, LockManager};
use lock_tests::sql_commit::{self, Place, a_lock_of_another_store_commits_nothing, is_misconfigured};
use lock_tests::sql_server::new_place;
use lock_tests::{PostgresServer, eventually};
use sqlx::postgres::Postgres;
use sqlx::{Connection, PgConnection};

const PATIENCE: Duration = Duration::from_secs(60);

static SERVER: LazyLock<PostgresServer> = LazyLock::new(PostgresServer::start);

async fn session(url: &str) -> PgConnection {
    PgConnection::connect(url).await.unwrap()
}

async fn run(session: &mut PgConnection, text: &str) {
    sqlx::raw_sql(text).execute(session).await.unwrap();
}

async fn place() -> (Place<Postgres>, String) {
    new_place(&SERVER).await
}

/// Makes each test run on a new database.
macro_rules! on_postgres {
    ($($name:ident;)*) => {$(
        #[tokio::test]
        async fn $name() {
            sql_commit::$name(&place().await.0).await;
        }
    )*};
}

on_postgres! {
    what_is_not_held_is_not_committed;
    a_lost_guard_commits_nothing;
    a_body_under_the_attribute_commits;
    a_savepoint_is_refused;
}

#[tokio::test]
async fn a_lease_that_ends_while_the_row_is_waited_for_is_over() {
    let (place, url) = place().await;
    sql_commit::a_lease_that_ends_while_the_row_is_waited_for_is_over(&place, &url).await;
}

#[tokio::test]
async fn a_row_that_is_locked_is_waited_for_but_not_for_long() {
    let (place, url) = place().await;
    sql_commit::a_row_that_is_locked_is_waited_for_but_not_for_long(&place, &url).await;
}

#[tokio::test]
async fn a_dropped_future_leaves_no_transaction_on_the_connection() {
    let (place, url) = place().await;
    sql_commit::a_dropped_future_leaves_no_transaction_on_the_connection(&place, &url).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_that_was_stopped_in_its_transaction_commits_nothing() {
    let ((place, url), holder) = (place().await, env!("CARGO_BIN_EXE_holder"));
    sql_commit::a_holder_that_was_stopped_in_its_transaction_commits_nothing(&place, &url, holder).await;
}

#[tokio::test]
async fn guards_of_all_kinds_commit() {
    let server = PostgresServer::start();
    let (place, _) = new_place(&server).await;
    sql_commit::guards_of_all_kinds_commit(&place).await;
    // In a task that may move between threads.
    let (guard, tx) = (place.locks.mutex("task").acquire().await.unwrap(), place.note("task").await);
    tokio::spawn(async move { guard.commit_if_held(tx).await }).await.unwrap().unwrap();
    // The session is as it was before.
    let setting: String = sqlx::query_scalar("SHOW lock_timeout").fetch_one(&place.pool).await.unwrap();
    assert_eq!(setting, "0");
    let log = server.log();
    assert!(!log.contains("transaction in progress"), "{log}");
}

#[tokio::test]
async fn a_lock_that_is_elsewhere_is_told_where_to_be() {
    let ((first, _), (second, _)) = (place().await, place().await);
    let here = "database (and schema) of the locks";
    a_lock_of_another_store_commits_nothing(&first, &second.locks, here).await;
    a_lock_of_another_store_commits_nothing(&first, &memory_manager(), "`mysql://…` or `sqlite:…`").await;
    let folder = tempfile::tempdir().unwrap();
    let file = format!("sqlite:{}", folder.path().join("locks.db").display());
    let file = LockManager::connect(file).await.unwrap();
    a_lock_of_another_store_commits_nothing(&first, &file, "the lock is in SQLite").await;
    let guard = first.locks.mutex("k").acquire().await.unwrap();
    let mut without_table = session(&SERVER.url()).await;
    is_misconfigured(guard.commit_if_held(without_table.begin().await.unwrap()).await, here);
}

#[tokio::test]
async fn the_user_of_the_transaction_needs_two_rights() {
    let (place, url) = place().await;
    let guard = place.locks.mutex("k").acquire().await.unwrap();
    place
        .run("DROP ROLE IF EXISTS writer; CREATE ROLE writer LOGIN; GRANT SELECT ON lock_records TO writer")
        .await;
    let mut writer = session(&url.replace("test@", "writer@")).await;
    let tx = writer.begin().await.unwrap();
    is_misconfigured(guard.commit_if_held(tx).await, "needs SELECT and UPDATE on `lock_records`");
    place.run("GRANT UPDATE ON lock_records TO writer").await;
    let tx = writer.begin().await.unwrap();
    guard.commit_if_held(tx).await.unwrap();
}

/// Renewals change the row all the time.
#[tokio::test]
async fn a_transaction_on_a_snapshot_is_repeated_after_a_renewal() {
    let (place, _) = place().await;
    for level in ["REPEATABLE READ", "SERIALIZABLE"] {
        place.run("DELETE FROM note").await;
        let begin = async || {
            let mut tx = place.pool.begin_with(format!("BEGIN ISOLATION LEVEL {level}")).await.unwrap();
            run(&mut tx, "INSERT INTO note VALUES ('n')").await;
            tx
        };
        let early = begin().await;
        let lease = Duration::from_secs(60);
        let key = level.replace(' ', "-");
        let guard = place.locks.mutex(key).lease(lease).acquire().await.unwrap();
        is_misconfigured(guard.commit_if_held(early).await, "after the lock was acquired");
        let tx = begin().await;
        guard.extend(lease * 2).await.unwrap();
        let error = guard.commit_if_held(tx).await.unwrap_err();
        let code = |cause: &sqlx::Error| cause.as_database_error().unwrap().code().unwrap().into_owned();
        assert!(matches!(&error, CommitError::Conflict { cause } if code(cause) == "40001"), "{error:?}");
        assert!(!place.has("n").await && !guard.is_lost());
        guard.commit_if_held(begin().await).await.unwrap();
        assert!(place.has("n").await);
    }
}

#[tokio::test]
async fn the_users_own_mistakes_are_the_databases_errors() {
    let (place, _) = place().await;
    place
        .run("CREATE TABLE once (id INT UNIQUE DEFERRABLE INITIALLY DEFERRED); INSERT INTO once VALUES (1)")
        .await;
    let guard = place.locks.mutex("k").acquire().await.unwrap();
    for (statement, code) in [("INSERT INTO once VALUES (1)", "23505"), ("SELECT 1 / 0", "25P02")] {
        let mut tx = place.note("n").await;
        let _ = sqlx::raw_sql(statement).execute(&mut *tx).await;
        match guard.commit_if_held(tx).await {
            Err(CommitError::Refused { cause }) => {
                assert_eq!(cause.as_database_error().unwrap().code().unwrap(), code);
            }
            other => panic!("{other:?}"),
        }
        assert!(!place.has("n").await);
    }
}

/// A connection that ends before the answer comes.
#[tokio::test]
async fn without_an_answer_the_outcome_is_unknown() {
    let (place, url) = place().await;
    let mut stranger = session(&url).await;
    let guard = place.locks.mutex("k").acquire().await.unwrap();
    run(&mut stranger, "BEGIN; SELECT FROM lock_records FOR UPDATE").await;
    let tx = place.note("n").await;
    let (outcome, ()) = tokio::join!(guard.commit_if_held(tx), async {
        let waiting = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
                       WHERE datname = current_database() AND wait_event_type = 'Lock'";
        let ended = async || {
            let ended: Option<bool> =
                sqlx::query_scalar(waiting).fetch_optional(&mut stranger).await.unwrap();
            ended.is_some()
        };
        eventually(ended, PATIENCE).await;
    });
    assert!(matches!(outcome, Err(CommitError::Unknown { .. })), "{outcome:?}");
    assert!(!place.has("n").await);
}
