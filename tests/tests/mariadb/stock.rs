//! Stocks in MariaDB.

use lock_runtime::LockManager;
use lock_runtime::segmented::StockError;
use lock_tests::MariaDbServer;
use lock_tests::mariadb::MariaDb;
use lock_tests::stock_sql::{scenarios, servers, stock};

const SELLER: &str = env!("CARGO_BIN_EXE_sql_seller");

/// Makes each test run on a new server.
macro_rules! on_mariadb {
    ($($name:ident($($arg:expr),*);)*) => {$(
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $name() {
            let server = MariaDbServer::start();
            scenarios::$name(&server.url() $(, $arg)*).await;
        }
    )*};
}

on_mariadb! {
    a_dropped_future_has_done_all_or_nothing();
    a_killed_seller_leaves_all_or_nothing(SELLER);
    two_processes_sell_each_unit_once(SELLER);
    an_older_token_is_refused();
    sales_from_several_segments_end_beside_small_ones();
    a_prefix_is_another_stock();
    a_caller_who_is_not_polled_keeps_nobody_out();
    a_restock_comes_between_sales_from_several_segments();
    what_comes_too_late_changes_nothing();
    mistakes_are_told();
    everything_at_once_adds_up();
    reservations_end_by_the_databases_clock();
    records_whose_time_is_over_are_thrown_away();
    of_several_with_one_id_one_is_told_that_it_is_new();
    an_audit_sees_what_was_changed_behind_its_back();
    what_is_overdue_is_for_sale_at_once();
    an_unreadable_reservation_is_named();
    a_hundred_units_are_sold_once();
}

#[test]
fn a_call_that_was_dropped_keeps_nobody_out() {
    scenarios::a_call_that_was_dropped_keeps_nobody_out(&MariaDbServer::start().url());
}

/// Makes each test run on servers of its own.
macro_rules! on_servers {
    ($($(#[$meta:meta])* $name:ident();)*) => {$(
        $(#[$meta])*
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $name() {
            servers::$name::<MariaDb>().await;
        }
    )*};
}

on_servers! {
    a_crash_of_the_server_loses_nothing_that_was_answered();
    a_commit_without_an_answer_is_told_by_the_same_again();
    #[cfg(target_os = "linux")]
    the_servers_clock_decides_what_is_too_late_and_what_is_over();
    a_row_that_is_locked_elsewhere_is_waited_for_until_the_time_is_over();
}

#[test]
fn a_stock_does_what_the_model_does() {
    servers::a_stock_does_what_the_model_does::<MariaDb>();
}

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
        stock.reserve("quoted '\\\"$1", 1, std::time::Duration::from_secs(60)).await.unwrap();
        stock.cancel("quoted '\\\"$1").await.unwrap();
        assert_eq!(stock.available().await.unwrap(), units - 8);
        assert!(stock.audit().await.unwrap().agrees());
    }
    let error = stock(&locks, &name("aaa")).initialize(1, 1).await.unwrap_err();
    assert!(error.to_string().contains("at most 2500 bytes"), "{error}");
}
