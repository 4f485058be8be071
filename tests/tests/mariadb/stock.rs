//! Stocks in MariaDB.

use std::time::Duration;

use lock_runtime::LockManager;
use lock_runtime::segmented::StockError;
use lock_tests::mariadb::MariaDb;
use lock_tests::stock_on_servers;
use lock_tests::stock_sql::{Deed, PATIENCE, stock};
use lock_tests::{MariaDbServer, eventually};

stock_on_servers!(MariaDb);

/// With a user who may create no table, a sale says what is missing. A user who may use the tables
/// that somebody else has made needs no more.
#[tokio::test]
async fn a_user_without_rights_is_told_and_one_who_may_use_the_tables_needs_no_more() {
    const TABLES: [&str; 3] = ["lock_stock", "lock_stock_segment", "lock_stock_operation"];
    let server = MariaDbServer::start();
    let pool = sqlx::MySqlPool::connect(&server.url()).await.unwrap();
    let run = async |text: &str| sqlx::raw_sql(text).execute(&pool).await.map(drop).unwrap();
    let owner = LockManager::connect(server.url()).await.unwrap();
    run("CREATE USER shop@'%'").await;
    run("GRANT SELECT, INSERT, UPDATE, DELETE ON locks.lock_records TO shop@'%'").await;
    let locks = LockManager::connect(server.url().replace("root@", "shop@")).await.unwrap();
    // It may not even know which tables there are.
    let error = stock(&locks, "few").initialize(10, 2).await.unwrap_err();
    assert!(error.to_string().contains("command denied to user 'shop'"), "{error}");
    assert!(matches!(stock(&owner, "few").take("op", 1).await, Err(StockError::Missing { .. })));
    for table in TABLES {
        run(&format!("GRANT SELECT, INSERT, UPDATE, DELETE ON locks.{table} TO shop@'%'")).await;
    }
    assert!(stock(&locks, "few").initialize(10, 2).await.unwrap());
    stock(&locks, "few").take("op", 7).await.unwrap();
    stock(&locks, "few").give_back("op").await.unwrap();
    assert!(!stock(&locks, "few").sweep(10).await.unwrap().more);
}

/// Names are bytes: none is cut, and each byte counts.
#[tokio::test]
async fn names_at_their_longest_that_differ_in_one_byte_are_different() {
    let server = MariaDbServer::start();
    let locks = LockManager::builder().prefix("").connect(server.url()).await.unwrap();
    let name = |end: &str| format!("{}{end}", "\u{e9}".repeat(1249));
    let operation = |end: &str| format!("{}{end}", "\u{1f512}".repeat(31));
    for (name, units) in [(name("aa"), 10), (name("aA"), 20), (name("\u{e8}"), 30), (name("a "), 40)] {
        let stock = stock(&locks, &name);
        assert!(stock.initialize(units, 3).await.unwrap() && !stock.initialize(units, 3).await.unwrap());
        for end in ["aaaa", "aaaA", "aaa ", "aa\u{e9}"] {
            for repeated in [false, true] {
                assert_eq!(stock.take(operation(end), 2).await.unwrap().is_repeated(), repeated, "{end}");
            }
        }
        stock.reserve("quoted '\\\"$1", 1, Duration::from_secs(60)).await.unwrap();
        stock.cancel("quoted '\\\"$1").await.unwrap();
        assert_eq!(stock.available().await.unwrap(), units - 8);
        assert!(stock.audit().await.unwrap().agrees());
    }
    let error = stock(&locks, &name("aaa")).initialize(1, 1).await.unwrap_err();
    assert!(error.to_string().contains("at most 2500 bytes"), "{error}");
}

/// Without hints, the optimiser reads many rows more than it needs, and waits for each that
/// somebody has locked.
#[tokio::test]
async fn an_operation_waits_for_no_row_of_others() {
    const MANY: u64 = 100;
    let server = MariaDbServer::start();
    let locks = LockManager::connect(server.url()).await.unwrap();
    let pool = sqlx::MySqlPool::connect(&server.url()).await.unwrap();
    for other in ["a", "z"] {
        Deed::Sweep.prepare(&stock(&locks, other)).await;
    }
    for deed in Deed::ALL {
        deed.prepare(&stock(&locks, &deed.name())).await;
    }
    let many = stock(&locks, "many");
    many.initialize(1000, 3).await.unwrap();
    let moment = Duration::from_millis(1);
    for number in 0..MANY {
        many.clone().retention(moment).take(format!("sold {number}"), 1).await.unwrap();
        many.reserve(format!("held {number}"), 1, moment).await.unwrap();
    }
    many.take("other", 1).await.unwrap();
    tokio::time::sleep(moment * 5).await;

    let mut stranger = pool.acquire().await.unwrap();
    let begin = "SET TRANSACTION ISOLATION LEVEL READ COMMITTED; BEGIN";
    sqlx::raw_sql(begin).execute(&mut *stranger).await.unwrap();
    for (table, rows) in [("lock_stock", 2), ("lock_stock_segment", 6), ("lock_stock_operation", 2)] {
        let lock = format!("SELECT 1 FROM {table} WHERE stock IN ('lock:a', 'lock:z') FOR UPDATE");
        assert_eq!(sqlx::raw_sql(&lock).fetch_all(&mut *stranger).await.unwrap().len(), rows);
    }
    let other =
        "SELECT 1 FROM lock_stock_operation WHERE stock = 'lock:many' AND operation = 'other' FOR UPDATE";
    assert_eq!(sqlx::raw_sql(other).fetch_all(&mut *stranger).await.unwrap().len(), 1);
    let before = count(&pool, "Innodb_row_lock_waits").await;
    for deed in Deed::ALL {
        deed.is_settled_by_the_same_again(&stock(&locks, &deed.name()), "beside a stranger").await;
        assert_eq!(count(&pool, "Innodb_row_lock_waits").await, before, "{deed:?}");
    }
    let swept = many.sweep(2 * MANY as u32).await.unwrap();
    assert_eq!((swept.expired, swept.forgotten), (MANY, MANY));
    assert_eq!(count(&pool, "Innodb_row_lock_waits").await, before);
}

/// Returns a counter of the server.
async fn count(pool: &sqlx::MySqlPool, name: &str) -> i64 {
    let count =
        "SELECT CAST(variable_value AS SIGNED) FROM information_schema.global_status WHERE variable_name = ?";
    sqlx::query_scalar(count).bind(name).fetch_one(pool).await.unwrap()
}

/// InnoDB undoes the smaller of two transactions that wait for each other. And it undoes a
/// statement that has waited for a row for a second.
#[tokio::test]
async fn a_sale_that_was_undone_is_made_again() {
    let server = MariaDbServer::start();
    let locks = LockManager::connect(server.url()).await.unwrap();
    let pool = sqlx::MySqlPool::connect(&server.url()).await.unwrap();
    let stock = stock(&locks, "undone");
    stock.initialize(10, 1).await.unwrap();
    let run = async |session: &mut sqlx::MySqlConnection, text: &str| {
        sqlx::raw_sql(text).execute(session).await.map(drop).unwrap();
    };
    let mut stranger = pool.acquire().await.unwrap();
    run(&mut stranger, "CREATE TABLE heavy (n INT PRIMARY KEY)").await;
    let lock = "BEGIN; INSERT INTO heavy SELECT seq FROM seq_1_to_1000; \
                SELECT 1 FROM lock_stock_segment FOR UPDATE";
    for (operation, undone) in [("deadlock", "Innodb_deadlocks"), ("late", "Innodb_row_lock_waits")] {
        run(&mut stranger, lock).await;
        let before = count(&pool, undone).await;
        let (taken, ()) = tokio::join!(stock.take(operation, 3), async {
            eventually(async || count(&pool, "Innodb_row_lock_current_waits").await > 0, PATIENCE).await;
            if operation == "deadlock" {
                let same = "SELECT 1 FROM lock_stock_operation WHERE operation = 'deadlock' FOR UPDATE";
                run(&mut stranger, same).await;
            }
            // The second wait is that of the second attempt.
            let waits = if operation == "late" { 2 } else { 1 };
            eventually(async || count(&pool, undone).await >= before + waits, PATIENCE).await;
            run(&mut stranger, "ROLLBACK").await;
        });
        assert!(!taken.unwrap().is_repeated());
    }
    assert_eq!(stock.snapshot().await.unwrap().sold(), 6);
    assert!(stock.audit().await.unwrap().agrees());
}
