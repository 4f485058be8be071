//! Transactions that are committed under a lock.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;
use std::time::{Duration, Instant};

use lock_runtime::testing::memory_manager;
use lock_runtime::{CommitError, ConnectError, LockManager};
use lock_tests::sql_commit::{self, Place, a_lock_of_another_store_commits_nothing, is_misconfigured};
use lock_tests::{Helper, PostgresServer, eventually};
use sqlx::postgres::{PgPool, PgPoolOptions, Postgres};
use sqlx::{Connection, PgConnection};

const PATIENCE: Duration = Duration::from_secs(60);

static SERVER: LazyLock<PostgresServer> = LazyLock::new(PostgresServer::start);
static DATABASES: AtomicU64 = AtomicU64::new(0);

/// Makes a database on this server. Returns its URL.
async fn database(server: &PostgresServer) -> String {
    let name = format!("d{}", DATABASES.fetch_add(1, Ordering::Relaxed));
    let mut session = session(&server.url()).await;
    sqlx::query(&format!("CREATE DATABASE {name}")).execute(&mut session).await.unwrap();
    server.url().replace("/postgres", &format!("/{name}"))
}

async fn session(url: &str) -> PgConnection {
    PgConnection::connect(url).await.unwrap()
}

async fn run(session: &mut PgConnection, text: &str) {
    sqlx::raw_sql(text).execute(session).await.unwrap();
}

/// Connects, even if a busy machine lets the session of an attempt be ended.
async fn connect(url: &str) -> LockManager {
    for _ in 0..20 {
        match LockManager::connect(url).await {
            Err(ConnectError::Unavailable { .. }) => {}
            other => return other.unwrap(),
        }
    }
    panic!("{url} is not available");
}

async fn place() -> (Place<Postgres>, String) {
    place_on(&SERVER).await
}

async fn place_on(server: &PostgresServer) -> (Place<Postgres>, String) {
    let url = database(server).await;
    let pool = PgPoolOptions::new().max_connections(1).connect(&url).await.unwrap();
    (Place::new(connect(&url).await, connect(&url).await, pool).await, url)
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
async fn guards_of_all_kinds_commit() {
    let server = PostgresServer::start();
    let (place, _) = place_on(&server).await;
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
    a_lock_of_another_store_commits_nothing(&first, &memory_manager(), "`postgres://…` or `sqlite:…`").await;
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

/// The statement waits for the row, and looks at the clock afterwards.
#[tokio::test]
async fn a_lease_that_ends_while_the_row_is_waited_for_is_over() {
    let (place, url) = place().await;
    let mut stranger = session(&url).await;
    let guard = place.locks.mutex("k").acquire().await.unwrap();
    let mut attempts = 0;
    loop {
        run(
            &mut stranger,
            "BEGIN; UPDATE lock_records SET record = REPLACE(record, until::text, \
             (EXTRACT(EPOCH FROM clock_timestamp() + interval '200 ms') * 1000000)::bigint::text)",
        )
        .await;
        let commit = async { guard.commit_if_held(place.note("late").await).await };
        let (outcome, ()) = tokio::join!(commit, async {
            tokio::time::sleep(Duration::from_millis(250)).await;
            run(&mut stranger, "COMMIT").await;
        });
        match outcome {
            Err(CommitError::NotHeld { .. }) => break,
            // A busy machine has taken the row away for more than a second.
            Err(CommitError::Conflict { .. }) if attempts < 20 => attempts += 1,
            other => panic!("{other:?}"),
        }
    }
    assert!(!place.has("late").await);
}

#[tokio::test]
async fn a_row_that_is_locked_is_waited_for_but_not_for_long() {
    let (place, url) = place().await;
    let mut stranger = session(&url).await;
    let guard = place.locks.mutex("k").acquire().await.unwrap();
    run(&mut stranger, "BEGIN; SELECT FROM lock_records FOR UPDATE").await;
    let start = Instant::now();
    let error = place.refused(&guard, "a").await;
    assert!(matches!(error, CommitError::Conflict { .. }), "{error:?}");
    assert!((Duration::from_secs(1)..PATIENCE).contains(&start.elapsed()), "{:?}", start.elapsed());
    let waits = async {
        let tx = place.note("b").await;
        guard.commit_if_held(tx).await
    };
    let (outcome, ()) = tokio::join!(waits, async {
        tokio::time::sleep(Duration::from_millis(200)).await;
        run(&mut stranger, "COMMIT").await;
    });
    match outcome {
        Ok(()) => assert!(place.has("b").await),
        // A busy machine has taken the row away for more than a second.
        Err(CommitError::Conflict { .. }) => guard.commit_if_held(place.note("b").await).await.unwrap(),
        Err(other) => panic!("{other:?}"),
    }
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

/// The pool is the user's.
#[tokio::test]
async fn a_dropped_future_leaves_no_transaction_on_the_connection() {
    let (place, url) = place().await;
    let elsewhere = PgPool::connect(&url).await.unwrap();
    let guard = place.locks.mutex("k").acquire().await.unwrap();
    for polls in 0..10 {
        let tx = place.note(&format!("tx {polls}")).await;
        let mut commit = Box::pin(guard.commit_if_held(tx));
        let mut left = polls;
        std::future::poll_fn(|cx| {
            if left == 0 {
                return Poll::Ready(());
            }
            left -= 1;
            commit.as_mut().poll(cx).map(drop)
        })
        .await;
        drop(commit);
        place.run(&format!("INSERT INTO note VALUES ('own {polls}')")).await;
        let seen = sqlx::query("SELECT FROM note WHERE name = $1").bind(format!("own {polls}"));
        assert!(seen.fetch_optional(&elsewhere).await.unwrap().is_some(), "after {polls} polls");
    }
}

fn holder(url: &str, lease: &str) -> Helper {
    let mut helper = Helper::spawn(env!("CARGO_BIN_EXE_holder"), [url, lease]);
    assert_eq!(helper.line(PATIENCE), "ready");
    helper
}

/// A holder is stopped within its transaction. Others get the lock when its lease is over, a
/// hundred less one neighbours are renewed meanwhile, and its late commit is refused. Once by its
/// own clock, and once by the database alone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_that_was_stopped_in_its_transaction_commits_nothing() {
    const LEASE: Duration = Duration::from_secs(6);
    let (place, url) = place().await;
    let mut neighbours = Vec::new();
    for number in 0..99 {
        if number % 33 == 0 {
            neighbours.push((LockManager::builder().lease(LEASE).connect(&url).await.unwrap(), Vec::new()));
        }
        let (locks, guards) = neighbours.last_mut().unwrap();
        guards.push(locks.mutex(format!("neighbour:{number}")).acquire().await.unwrap());
    }
    let ends = async |which: &str| -> i64 {
        let select = format!("SELECT {which}(until) FROM lock_records WHERE name LIKE '%neighbour%'");
        sqlx::query_scalar(&select).fetch_one(&place.pool).await.unwrap()
    };
    for (lease, said) in [("lease=1000", "was lost"), ("lease=600000", "not held any more in the database")] {
        let (mut first, mut second) = (holder(&url, lease), holder(&url, "lease=600000"));
        let name = format!("by the {lease}");
        assert!(first.ask("acquire k").starts_with("acquired"));
        assert_eq!(first.ask(&format!("begin k {name}")), "begun");
        let before = ends("MAX").await;
        first.stop();
        if said != "was lost" {
            // The holder believes in ten minutes. The database knows better.
            place
                .run(
                    "UPDATE lock_records SET version = 'v', record = REPLACE(record, until::text, now.ends::text), \
                     until = now.ends FROM (SELECT (EXTRACT(EPOCH FROM clock_timestamp()) * 1000000)::bigint \
                     + 1000000 AS ends) AS now WHERE name LIKE '%:k'",
                )
                .await;
        }
        assert!(second.ask("acquire k wait=60000").starts_with("acquired"));
        let renewed = async || ends("MIN").await > before + LEASE.as_micros() as i64;
        eventually(renewed, PATIENCE).await;
        assert!(neighbours.iter().flat_map(|(_, guards)| guards).all(|guard| !guard.is_lost()));
        first.cont();
        if said != "was lost" {
            assert!(first.ask("state k").starts_with("held"));
        }
        let answer = first.ask("commit k");
        assert!(answer.starts_with("failed") && answer.contains(said), "{answer}");
        assert!(!place.has(&name).await);
        assert_eq!(second.ask(&format!("begin k {name}")), "begun");
        assert_eq!(second.ask("commit k"), "committed");
        assert!(place.has(&name).await);
        assert_eq!(second.ask("release k"), "released");
    }
}
