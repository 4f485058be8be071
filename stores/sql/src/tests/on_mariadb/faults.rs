//! Settings that lose grants, statements that meet other sessions, and the limits of sessions.

use std::sync::Arc;

use lock_core::store::{
    AcquireRequest, Acquired, Item, Kind, LockStore, RenewItem, RenewRequest, Renewed, StoreErrorKind,
    Withdrawn,
};
use sqlx::{Connection, Executor, MySqlConnection, Row};

use super::*;
use crate::SqlStore;
use crate::links::Links;
use crate::options::Options;
use crate::plumbing::Arg;
use crate::statements::Statements;
use crate::tests::rows::{SECOND, granted, item, released, request};

fn store(server: &MariaDbServer) -> Arc<SqlStore> {
    mysql(server.url().parse().unwrap(), &settings(""))
}

async fn session(server: &MariaDbServer) -> MySqlConnection {
    MySqlConnection::connect(&server.url()).await.unwrap()
}

async fn run(session: &mut MySqlConnection, text: &str) {
    session.execute(text).await.unwrap();
}

async fn refusal(server: &MariaDbServer) -> String {
    let error = store(server).check().await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Unsupported, "{error}");
    error.to_string()
}

/// The manager refuses them when it connects. A setting that is changed later is shown to lose a
/// grant: the server is killed, and another gets the lock.
#[tokio::test]
async fn commits_that_do_not_wait_for_the_disk_lose_grants_and_are_refused() {
    let mut server = MariaDbServer::start();
    let mut operator = session(&server).await;
    for setting in ["0", "2"] {
        run(&mut operator, &format!("SET GLOBAL innodb_flush_log_at_trx_commit = {setting}")).await;
        let error = refusal(&server).await;
        assert!(error.contains(&format!("`innodb_flush_log_at_trx_commit` is {setting}")), "{error}");
    }
    run(&mut operator, "SET GLOBAL innodb_flush_log_at_trx_commit = 1").await;
    let before = store(&server);
    assert!(granted(&before, "kept", "owner:1").await);
    run(&mut operator, "SET GLOBAL innodb_flush_log_at_timeout = 2700").await;
    run(&mut operator, "SET GLOBAL innodb_flush_log_at_trx_commit = 0").await;
    assert!(granted(&before, "lost", "owner:1").await, "on a connection that was made before");
    server.kill();
    server.restart();
    let after = store(&server);
    assert!(!granted(&after, "kept", "owner:2").await);
    assert!(granted(&after, "lost", "owner:2").await, "the crash has undone the first grant");
}

#[tokio::test]
async fn a_binary_log_that_does_not_wait_for_the_disk_is_refused() {
    let log = ["log_bin=log", "binlog_format=STATEMENT"];
    let server = MariaDbServer::try_start_in(&std::env::temp_dir(), &log).unwrap();
    let error = refusal(&server).await;
    assert!(error.contains("`sync_binlog` is 0"), "{error}");
    let mut operator = session(&server).await;
    run(&mut operator, "SET GLOBAL sync_binlog = 1").await;
    // It can't have READ COMMITTED.
    let error = store(&server).acquire(request(&["a"], "owner:1", SECOND, SECOND)).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Unsupported, "{error}");
    assert!(error.to_string().contains("BINLOG_FORMAT"), "{error}");
    run(&mut operator, "SET GLOBAL binlog_format = MIXED").await;
    assert!(granted(&store(&server), "a", "owner:1").await);
}

#[tokio::test]
async fn a_clock_of_the_statement_is_refused() {
    let server = MariaDbServer::try_start_in(&std::env::temp_dir(), &["sysdate_is_now=1"]).unwrap();
    let error = refusal(&server).await;
    assert!(error.contains("--sysdate-is-now"), "{error}");
}

/// Its own sessions have settings of ours, whatever those of the server are.
#[tokio::test]
async fn sessions_have_the_settings_that_steps_rely_on() {
    let settings = [
        "sql_mode=ANSI,NO_BACKSLASH_ESCAPES,SIMULTANEOUS_ASSIGNMENT",
        "transaction_isolation=SERIALIZABLE",
        "autocommit=0",
        "default_time_zone=+05:30",
        "wait_timeout=1",
        "innodb_lock_wait_timeout=50",
        "max_statement_time=0.2",
        "completion_type=CHAIN",
    ];
    let server = MariaDbServer::try_start_in(&std::env::temp_dir(), &settings).unwrap();
    let mut operator = session(&server).await;
    for setting in ["sql_select_limit = 1", "max_join_size = 1"] {
        run(&mut operator, &format!("SET GLOBAL {setting}")).await;
    }
    let (one, other) = (store(&server), store(&server));
    one.check().await.unwrap();
    let key = "\u{e9}\u{1f512} '\\\" $1 %_";
    assert!(granted(&one, key, "owner:'\\\"\u{1f512}").await && !granted(&other, key, "owner:2").await);
    let status = other.status(item(key, "x").key).await.unwrap();
    assert!(status.remaining.unwrap() > 30 * SECOND, "{status:?}");
    // A limit of one row would lose the others.
    assert!(granted(&one, "b", "owner:1").await && granted(&one, "c", "owner:1").await);
    let items = ["b", "c"].map(|key| RenewItem::hold(item(key, "owner:1"), 60 * SECOND));
    let renewal = Arc::new(RenewRequest { items: items.into(), timeout: 5 * SECOND });
    assert_eq!(one.renew(renewal).await.unwrap(), [Renewed::Held, Renewed::Held]);
    // The server's time-out for idle sessions is not ours.
    tokio::time::sleep(2 * SECOND).await;
    assert!(released(&one, key, "owner:'\\\"\u{1f512}").await && granted(&other, key, "owner:2").await);
}

/// A statement may wait for a row for longer than its caller. The clock is read when it has the
/// row, so a request that is late by then takes nothing.
#[tokio::test]
async fn a_request_that_waited_too_long_for_a_row_takes_nothing() {
    let server = MariaDbServer::start();
    let (store, other) = (store(&server), store(&server));
    let mut stranger = session(&server).await;
    for (keys, is_there) in [(&["absent"][..], false), (&["over"], true), (&["one", "two"], true)] {
        for key in keys.iter().filter(|_| is_there) {
            assert!(granted(&other, key, "owner:1").await && released(&other, key, "owner:1").await);
        }
        store.check().await.unwrap();
        run(&mut stranger, "BEGIN").await;
        let lock = match is_there {
            true => {
                format!("SELECT 1 FROM lock_records WHERE class = 'lock' AND name = '{}' FOR UPDATE", keys[0])
            }
            false => format!("INSERT INTO lock_records VALUES ('lock', '{}', 'x', 0, 0, 0, '{{}}')", keys[0]),
        };
        // The table comes with the first step.
        assert!(granted(&other, &format!("warm {}", keys[0]), "owner:1").await);
        run(&mut stranger, &lock).await;
        let late = request(keys, "owner:2", 60 * SECOND, SECOND / 4);
        let error = store.acquire(Arc::clone(&late)).await.unwrap_err();
        assert!(error.is_transient(), "{error}");
        tokio::time::sleep(SECOND / 4).await;
        run(&mut stranger, if is_there { "COMMIT" } else { "ROLLBACK" }).await;
        assert_eq!(store.withdraw(Arc::clone(&late)).await.unwrap(), Withdrawn::Settled);
        for key in keys {
            let status = other.status(item(key, "x").key).await.unwrap();
            assert!(!status.is_locked(), "{keys:?}: {status:?}");
        }
    }
}

/// A grant that is under way when its request is withdrawn is found by the withdrawal, although
/// nobody else can see its row.
#[tokio::test]
async fn a_withdrawal_waits_for_what_is_in_flight() {
    let server = MariaDbServer::start();
    let store = store(&server);
    assert!(granted(&store, "warm", "owner:1").await);
    let mut stalled = session(&server).await;
    let until = "9000000000000000";
    run(&mut stalled, "BEGIN").await;
    let insert = format!(
        "INSERT INTO lock_records VALUES ('lock', 'a', 'v', 7, {until}, {until}, '{{\"held\":[\"owner:2\",{until}]}}')"
    );
    run(&mut stalled, &insert).await;
    let withdrawn = request(&["a"], "owner:2", SECOND, 5 * SECOND);
    withdrawn.stamp(lock_core::store::ServerTime::from_micros(1));
    let call = tokio::spawn(store.withdraw(withdrawn));
    tokio::time::sleep(SECOND / 4).await;
    assert!(!call.is_finished());
    run(&mut stalled, "COMMIT").await;
    assert_eq!(call.await.unwrap().unwrap(), Withdrawn::Settled);
    assert!(!store.status(item("a", "x").key).await.unwrap().is_locked());
}

/// Without a hint, the optimiser reads all rows of a small table, and waits for each locked one.
#[tokio::test]
async fn a_step_waits_for_no_row_but_its_own() {
    let server = MariaDbServer::start();
    let store = store(&server);
    for key in ["a", "b", "c", "x"] {
        assert!(granted(&store, key, "owner:1").await);
    }
    for key in ["over 1", "over 2", "over 3"] {
        assert!(granted(&store, key, "owner:1").await && released(&store, key, "owner:1").await);
    }
    let mut stranger = session(&server).await;
    let over = "UPDATE lock_records SET until = 1, kept_until = 1, token = 1 WHERE name LIKE 'over%'";
    run(&mut stranger, over).await;
    run(&mut stranger, "BEGIN").await;
    let lock = "SELECT 1 FROM lock_records WHERE class = 'lock' AND name IN ('over 2', 'x') FOR UPDATE";
    run(&mut stranger, lock).await;

    let items = ["a", "b", "c", "x"].map(|key| RenewItem::hold(item(key, "owner:1"), 60 * SECOND));
    let renewal = Arc::new(RenewRequest { items: items.into(), timeout: SECOND / 2 });
    let renewed = store.renew(renewal).await.unwrap();
    assert_eq!(renewed, [Renewed::Held, Renewed::Held, Renewed::Held, Renewed::Unknown]);
    let two = store.acquire(request(&["e", "y"], "owner:1", SECOND, SECOND / 2)).await;
    assert!(two.is_ok(), "{two:?}");
    store.store().sweep().await.unwrap();
    let rows =
        stranger.fetch_all("SELECT CAST(name AS CHAR) FROM lock_records WHERE name LIKE 'over%'").await;
    let left: Vec<String> = rows.unwrap().iter().map(|row| row.get(0)).collect();
    assert_eq!(left, ["over 2"]);
}

/// Rows are found by the index in a table of any size.
#[tokio::test]
async fn statements_that_lock_rows_find_them_by_the_index() {
    let server = MariaDbServer::start();
    let options = Options::MySql(Box::new(server.url().parse().unwrap()));
    let statements = Statements::of(&options);
    let mut link = Links::new(options.clone(), 1).take().await.unwrap();
    link.run(&statements.create).await.unwrap();
    for rows in [0, 3, 2000] {
        let fill = format!(
            "DELETE FROM lock_records; INSERT INTO lock_records \
             SELECT 'lock', CONCAT('k', seq), 'v', 1, 1, 1, '{{}}' FROM seq_1_to_{rows}; ANALYZE TABLE lock_records"
        );
        link.run(&fill.replace("seq_1_to_0", "seq_1_to_1 WHERE FALSE")).await.unwrap();
        let many: Vec<String> = (0..300).map(|number| format!("k{number}")).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        for names in [&["k1"][..], &["k1", "k2"], &many] {
            let args = [Arg::Text("lock"), Arg::Names(names)];
            let locking = [&statements.lock, &statements.lock_free, statements.lock_over.as_ref().unwrap()];
            for statement in locking.into_iter().chain([&statements.remove]) {
                let first = statement.split(';').next().unwrap();
                let plan = link.rows(&format!("EXPLAIN {first}"), &args).await.unwrap();
                let (kind, key) = (plan[0].maybe_text(3).unwrap(), plan[0].maybe_text(5).unwrap());
                // Without rows there is no plan.
                if rows == 0 && kind.is_none() {
                    continue;
                }
                let by_name = ["range", "const"].contains(&kind.as_deref().unwrap_or_default());
                assert!(
                    by_name && key.as_deref() == Some("PRIMARY"),
                    "{rows} {kind:?} {key:?}: {first:.200}"
                );
            }
        }
    }
}

/// The server ends a transaction whose program has stopped, and lets others have its rows.
#[tokio::test]
async fn a_program_that_stops_in_a_transaction_keeps_rows_for_a_second() {
    let server = MariaDbServer::start();
    let store = store(&server);
    assert!(granted(&store, "a", "owner:1").await && released(&store, "a", "owner:1").await);
    let options = Options::MySql(Box::new(server.url().parse().unwrap()));
    let statements = Statements::of(&options);
    let mut stopped = Links::new(options.clone(), 1).take().await.unwrap();
    stopped.begin(options.begin()).await.unwrap();
    stopped.rows(&statements.lock, &[Arg::Text("lock"), Arg::Names(&["a"])]).await.unwrap();
    let answer = store.acquire(request(&["a", "b"], "owner:2", SECOND, 20 * SECOND)).await;
    assert!(answer.is_ok(), "{answer:?}");
    let late = stopped.run(options.commit()).await;
    assert!(late.is_err(), "its session has ended");
}

/// InnoDB undoes the smaller of two transactions.
#[tokio::test]
async fn a_step_that_was_undone_by_a_deadlock_is_made_again() {
    let server = MariaDbServer::start();
    let store = store(&server);
    for key in ["a", "b"] {
        assert!(granted(&store, key, "owner:1").await && released(&store, key, "owner:1").await);
    }
    let mut stranger = session(&server).await;
    run(&mut stranger, "CREATE TABLE heavy (n INT PRIMARY KEY)").await;
    run(&mut stranger, "BEGIN").await;
    run(&mut stranger, "INSERT INTO heavy SELECT seq FROM seq_1_to_1000").await;
    run(&mut stranger, "SELECT 1 FROM lock_records WHERE class = 'lock' AND name = 'b' FOR UPDATE").await;
    let step = tokio::spawn(store.acquire(request(&["a", "b"], "owner:2", 60 * SECOND, 20 * SECOND)));
    tokio::time::sleep(SECOND / 4).await;
    assert!(!step.is_finished());
    run(&mut stranger, "SELECT 1 FROM lock_records WHERE class = 'lock' AND name = 'a' FOR UPDATE").await;
    run(&mut stranger, "COMMIT").await;
    step.await.unwrap().unwrap();
    let mut monitor = session(&server).await;
    let status = monitor.fetch_one("SHOW ENGINE INNODB STATUS").await.unwrap();
    assert!(status.get::<String, _>("Status").contains("LATEST DETECTED DEADLOCK"));
    assert!(!granted(&store, "a", "owner:3").await);
}

#[tokio::test]
async fn a_key_is_as_long_as_the_index_allows_or_refused() {
    let server = MariaDbServer::start();
    let store = store(&server);
    let longest = "\u{e9}".repeat(1250);
    assert!(granted(&store, &longest, "owner:1").await && !granted(&store, &longest, "owner:2").await);
    let other = format!("{}e", "\u{e9}".repeat(1249));
    assert!(granted(&store, &other, "owner:2").await, "no name is cut");
    let long = request(&[&format!("{longest}x")], "owner:1", SECOND, SECOND);
    let error = store.acquire(long).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Unsupported, "{error}");
    assert!(error.to_string().contains("at most 2500 bytes"), "{error}");
}

/// Sessions that an operator kills, and a server that restarts.
#[tokio::test]
async fn connections_that_end_cost_no_grant() {
    let mut server = MariaDbServer::start();
    let store = store(&server);
    assert!(granted(&store, "a", "owner:1").await);
    let mut operator = session(&server).await;
    let kill = "SELECT id FROM information_schema.processlist WHERE id <> CONNECTION_ID() AND user = 'root'";
    for row in operator.fetch_all(kill).await.unwrap() {
        run(&mut operator, &format!("KILL {}", row.get::<i64, _>(0))).await;
    }
    let mut failures = 0;
    while let Err(error) = store.acquire(request(&["b"], "owner:1", SECOND, 5 * SECOND)).await {
        failures += 1;
        assert!(error.is_transient() && failures < 5, "{error}");
    }
    server.kill();
    let error = store.acquire(request(&["c"], "owner:1", SECOND, SECOND)).await.unwrap_err();
    assert!(error.is_transient(), "{error}");
    server.restart();
    let mut failures = 0;
    while let Err(error) = store.acquire(request(&["c"], "owner:1", SECOND, 5 * SECOND)).await {
        failures += 1;
        assert!(error.is_transient() && failures < 5, "{error}");
    }
    assert!(!granted(&store, "a", "owner:2").await && released(&store, "a", "owner:1").await);
}

/// A user without a right is told which table it is about.
#[tokio::test]
async fn rights_and_databases_that_are_missing_are_told() {
    let server = MariaDbServer::start();
    assert!(granted(&store(&server), "a", "owner:1").await);
    let mut operator = session(&server).await;
    run(&mut operator, "CREATE USER app@'%' IDENTIFIED BY 'secret'").await;
    run(&mut operator, "GRANT SELECT, INSERT, UPDATE ON locks.lock_records TO app@'%'").await;
    let url = |user: &str, database: &str| server.url().replace("root", user).replace("/locks", database);
    let open = |user: &str, database: &str| mysql(url(user, database).parse().unwrap(), &settings(""));
    let error = open("app:secret", "/locks").check().await.unwrap_err();
    assert!(error.kind() == StoreErrorKind::Denied && error.to_string().contains("DELETE"), "{error}");
    run(&mut operator, "GRANT DELETE ON locks.lock_records TO app@'%'").await;
    open("app:secret", "/locks").check().await.unwrap();
    assert_eq!(open("app:wrong", "/locks").check().await.unwrap_err().kind(), StoreErrorKind::Denied);
    let error = open("root", "/nowhere").check().await.unwrap_err();
    assert!(error.kind() == StoreErrorKind::Unsupported && error.to_string().contains("nowhere"), "{error}");
    run(&mut operator, "SET GLOBAL read_only = 1").await;
    assert_eq!(open("app:secret", "/locks").check().await.unwrap_err().kind(), StoreErrorKind::ReadOnly);
}

/// InnoDB goes through all waiters of a row at each commit. So sessions wait for a name first, and
/// one of them for the row.
#[tokio::test(flavor = "multi_thread")]
async fn of_many_processes_one_waits_for_the_row() {
    const MANY: usize = 20;

    let server = MariaDbServer::start();
    let mut stranger = session(&server).await;
    let first = store(&server);
    let of = |owner: &str| {
        let item = Item { kind: Kind::Read, ..item("a", owner) };
        Arc::new(AcquireRequest::new(vec![item], 60 * SECOND, 20 * SECOND))
    };
    let is_granted = |answer| matches!(answer, Ok(Acquired::Granted(_)));
    // A row with several holders is locked by whoever changes it.
    for owner in ["reader:first", "reader:second"] {
        assert!(is_granted(first.acquire(of(owner)).await));
    }
    run(&mut stranger, "BEGIN; SELECT * FROM lock_records FOR UPDATE").await;
    let others = (0..MANY).map(|number| {
        let (store, request) = (store(&server), of(&format!("reader:{number}")));
        tokio::spawn(async move { store.acquire(request).await })
    });
    let others: Vec<_> = others.collect();
    let mut operator = session(&server).await;
    let (mut for_a_name, mut for_the_row) = (0_i64, 0_i64);
    for _ in 0..60 {
        let both = "SELECT (SELECT COUNT(*) FROM information_schema.processlist WHERE state = 'User lock'), \
                    (SELECT COUNT(*) FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT')";
        let row = operator.fetch_one(both).await.unwrap();
        for_a_name = for_a_name.max(row.get(0));
        for_the_row = for_the_row.max(row.get(1));
        if for_a_name >= MANY as i64 / 2 && for_the_row >= 1 {
            break;
        }
        // If it is asked more often, the server says what it has said before.
        tokio::time::sleep(SECOND / 5).await;
    }
    assert!(for_a_name >= MANY as i64 / 2, "{for_a_name}");
    assert_eq!(for_the_row, 1);
    run(&mut stranger, "COMMIT").await;
    for other in others {
        assert!(is_granted(other.await.unwrap()));
    }
}
