//! Transactions that are committed under a lock.

use std::sync::LazyLock;
use std::time::Duration;

use lock_runtime::testing::memory_manager;
use lock_runtime::{CommitError, LockManager};
use lock_tests::sql_commit::{self, Notes, Place, a_lock_of_another_store_commits_nothing, is_misconfigured};
use lock_tests::sql_server::new_place;
use lock_tests::wire::Fate;
use lock_tests::{MariaDbServer, Wire, eventually};
use sqlx::Connection;
use sqlx::mysql::{MySql, MySqlConnection};

const PATIENCE: Duration = Duration::from_secs(60);

static SERVER: LazyLock<MariaDbServer> = LazyLock::new(MariaDbServer::start);

async fn session(url: &str) -> MySqlConnection {
    MySqlConnection::connect(url).await.unwrap()
}

async fn place() -> (Place<MySql>, String) {
    new_place(&SERVER).await
}

/// Makes each test run on a new database.
macro_rules! on_mariadb {
    ($($name:ident;)*) => {$(
        #[tokio::test]
        async fn $name() {
            sql_commit::$name(&place().await.0).await;
        }
    )*};
}

on_mariadb! {
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
    let (place, _) = place().await;
    sql_commit::guards_of_all_kinds_commit(&place).await;
    // In a task that may move between threads.
    let (guard, tx) = (place.locks.mutex("task").acquire().await.unwrap(), place.note("task").await);
    tokio::spawn(async move { guard.commit_if_held(tx).await }).await.unwrap().unwrap();
    // The session is as it was before.
    let is_same = ["wait_timeout", "innodb_lock_wait_timeout"]
        .map(|name| format!("@@SESSION.{name} = @@GLOBAL.{name}"));
    let is_same = format!("SELECT {} AND @@in_transaction = 0", is_same.join(" AND "));
    assert_eq!(MySql::number(&mut *place.pool.acquire().await.unwrap(), &is_same).await, 1);
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

/// MariaDB 10.11 lets a user lock rows with SELECT alone.
#[tokio::test]
async fn the_user_of_the_transaction_needs_rights_to_the_table() {
    let (place, url) = place().await;
    let guard = place.locks.mutex("k").acquire().await.unwrap();
    place.run("CREATE USER writer@'%'; GRANT INSERT ON note TO writer@'%'").await;
    let mut writer = session(&url.replace("root@", "writer@")).await;
    let note = "INSERT INTO note VALUES ('n')";
    let mut tx = writer.begin().await.unwrap();
    MySql::run(&mut tx, note).await.unwrap();
    is_misconfigured(guard.commit_if_held(tx).await, "needs SELECT and UPDATE on `lock_records`");
    assert!(!place.has("n").await);
    place.run("GRANT SELECT, UPDATE ON lock_records TO writer@'%'").await;
    let mut tx = writer.begin().await.unwrap();
    MySql::run(&mut tx, note).await.unwrap();
    guard.commit_if_held(tx).await.unwrap();
    assert!(place.has("n").await);
}

/// Renewals change the row all the time. By default, a read that locks it sees the newest one.
#[tokio::test]
async fn a_transaction_on_a_snapshot_is_repeated_after_a_renewal() {
    let (place, _) = place().await;
    let lease = Duration::from_secs(60);
    for (is_strict, key) in [("OFF", "lenient"), ("ON", "strict")] {
        place.run(&format!("SET SESSION innodb_snapshot_isolation = {is_strict}")).await;
        let begin = async || {
            let mut tx = place.note(key).await;
            assert_eq!(MySql::number(&mut tx, "SELECT COUNT(*) > 0 FROM lock_records").await, 1);
            tx
        };
        let guard = place.locks.mutex(key).lease(lease).acquire().await.unwrap();
        let tx = begin().await;
        guard.extend(lease * 2).await.unwrap();
        let outcome = guard.commit_if_held(tx).await;
        if is_strict == "ON" {
            assert!(matches!(outcome, Err(CommitError::Conflict { .. })), "{outcome:?}");
            assert!(!place.has(key).await && !guard.is_lost());
            guard.commit_if_held(begin().await).await.unwrap();
        } else {
            outcome.unwrap();
        }
        assert!(place.has(key).await);
    }
}

/// The commit arrives and its answer does not; or the commit does not, and the server ends the
/// session.
#[tokio::test]
async fn without_an_answer_the_outcome_is_unknown() {
    let (place, url) = place().await;
    let wire = Wire::to(SERVER.addr());
    let url = url.replace(&SERVER.addr().to_string(), &wire.addr().to_string());
    let guard = place.locks.mutex("k").acquire().await.unwrap();
    for (fate, is_committed) in [(Fate::Cut, true), (Fate::Lost, false)] {
        let (mut session, name) = (session(&url).await, format!("{fate:?}"));
        let mut tx = session.begin().await.unwrap();
        MySql::run(&mut tx, &format!("INSERT INTO note VALUES ('{name}')")).await.unwrap();
        wire.next("COMMIT", fate);
        let outcome = tokio::time::timeout(PATIENCE, guard.commit_if_held(tx)).await.expect("it ends");
        assert!(matches!(outcome, Err(CommitError::Unknown { .. })), "{name}: {outcome:?}");
        assert_eq!(place.has(&name).await, is_committed, "{name}");
        // Nobody has the row.
        guard.commit_if_held(place.note(&format!("after {name}")).await).await.unwrap();
    }
}

/// A statement of the user's has committed the transaction, so that later ones are committed one by
/// one.
#[tokio::test]
async fn a_transaction_that_the_server_has_ended_is_told() {
    let (place, _) = place().await;
    let guard = place.locks.mutex("k").acquire().await.unwrap();
    let mut tx = place.note("before").await;
    MySql::run(&mut tx, "CREATE TABLE other (id INT)").await.unwrap();
    MySql::run(&mut tx, "INSERT INTO note VALUES ('after')").await.unwrap();
    let outcome = guard.commit_if_held(tx).await;
    let Err(CommitError::Unknown { cause }) = outcome else { panic!("{outcome:?}") };
    assert!(cause.to_string().contains("has ended the transaction before"), "{cause}");
    assert!(place.has("after").await, "which is why the error does not say that it was rolled back");
    guard.commit_if_held(place.note("next").await).await.unwrap();
    assert!(place.has("next").await);
}

/// An operator kills the session while it waits for the row, before anything is committed.
#[tokio::test]
async fn a_session_that_ends_during_the_check_commits_nothing() {
    let (place, url) = place().await;
    let mut stranger = session(&url).await;
    let guard = place.locks.mutex("k").acquire().await.unwrap();
    MySql::run(&mut stranger, "BEGIN; SELECT 1 FROM lock_records FOR UPDATE").await.unwrap();
    let mut tx = place.note("n").await;
    let id = MySql::number(&mut tx, "SELECT CAST(CONNECTION_ID() AS SIGNED)").await;
    let (outcome, ()) = tokio::join!(guard.commit_if_held(tx), async {
        let waits = format!(
            "SELECT COUNT(*) FROM information_schema.processlist WHERE id = {id} AND info LIKE '%FOR UPDATE%'"
        );
        eventually(async || MySql::number(&mut stranger, &waits).await == 1, PATIENCE).await;
        MySql::run(&mut stranger, &format!("KILL {id}")).await.unwrap();
    });
    assert!(matches!(outcome, Err(CommitError::Refused { .. })), "{outcome:?}");
    MySql::run(&mut stranger, "COMMIT").await.unwrap();
    assert!(!place.has("n").await);
    guard.commit_if_held(place.note("n").await).await.unwrap();
}
