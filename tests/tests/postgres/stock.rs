//! Stocks in PostgreSQL.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use lock_core::store::StoreErrorKind;
use lock_runtime::LockManager;
use lock_runtime::segmented::StockError;
use lock_tests::stock_model::check_on;
use lock_tests::stock_sql::{Deed, PATIENCE, scenarios, stock, with_steps};
use lock_tests::wire::Fate;
use lock_tests::{Offset, PostgresServer, ServerClock, Wire, eventually};

const SELLER: &str = env!("CARGO_BIN_EXE_sql_seller");

/// Makes each test run on a new server.
macro_rules! on_postgres {
    ($($name:ident($($arg:expr),*);)*) => {$(
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $name() {
            let server = PostgresServer::start();
            scenarios::$name(&server.url() $(, $arg)*).await;
        }
    )*};
}

on_postgres! {
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
    scenarios::a_call_that_was_dropped_keeps_nobody_out(&PostgresServer::start().url());
}

/// Its commits are durable: the data agrees with the answers to clients.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crash_of_the_server_loses_nothing_that_was_answered() {
    let mut server = PostgresServer::start();
    let locks = LockManager::connect(server.url()).await.unwrap();
    let stock = stock(&locks, "crash").timeout(Duration::from_millis(500));
    stock.initialize(1500, 5).await.unwrap();
    let (sold, failed) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let crashes = Arc::new(AtomicU64::new(0));
    let tasks: Vec<_> = (0..4)
        .map(|task| {
            let (stock, sold) = (stock.clone(), Arc::clone(&sold));
            let (failed, crashes) = (Arc::clone(&failed), Arc::clone(&crashes));
            tokio::spawn(async move {
                let mut number = 0;
                // Until the stock is sold out, and the server has crashed as often as planned.
                loop {
                    match stock.take(format!("{task}:{number}"), 1 + number % 7).await {
                        Ok(_) => sold.fetch_add(1 + number % 7, Ordering::Relaxed),
                        Err(StockError::SoldOut { .. }) if crashes.load(Ordering::Relaxed) == 3 => break,
                        Err(StockError::SoldOut { .. }) => 0,
                        // A repetition tells whether it was done.
                        Err(StockError::Unavailable { .. }) => {
                            failed.fetch_add(1, Ordering::Relaxed);
                            continue;
                        }
                        Err(StockError::Contended { .. }) => continue,
                        Err(error) => panic!("{error}"),
                    };
                    number += 1;
                }
            })
        })
        .collect();
    for _ in 0..3 {
        let (before, errors) = (sold.load(Ordering::Relaxed), failed.load(Ordering::Relaxed));
        eventually(async || sold.load(Ordering::Relaxed) >= (before + 100).min(1490), PATIENCE).await;
        server.kill();
        eventually(async || failed.load(Ordering::Relaxed) > errors, PATIENCE).await;
        server = tokio::task::spawn_blocking(move || {
            server.restart();
            server
        })
        .await
        .unwrap();
        crashes.fetch_add(1, Ordering::Relaxed);
    }
    for task in tasks {
        task.await.unwrap();
    }
    let snapshot = stock.timeout(PATIENCE).snapshot().await.unwrap();
    assert!(snapshot.balances(), "{snapshot:?}");
    assert_eq!(snapshot.sold(), sold.load(Ordering::Relaxed), "{snapshot:?}");
}

/// Only then is the outcome unknown, and a repetition tells.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_without_an_answer_is_told_by_the_same_again() {
    let server = PostgresServer::start();
    let wire = Arc::new(Wire::to(server.addr()));
    let url = format!("postgres://test@{}/postgres", wire.addr());
    let direct = LockManager::connect(server.url()).await.unwrap();
    for (name, lost) in [("answers", Fate::Unanswered), ("requests", Fate::Lost)] {
        let locks = LockManager::connect(&url).await.unwrap();
        let (stock, direct) = (stock(&locks, name), stock(&direct, name));
        stock.initialize(30, 3).await.unwrap();
        let switch = Arc::clone(&wire);
        let step = move |step: &str| {
            if step == "before commit" {
                switch.set(move |_| lost);
            }
        };
        let hasty = stock.clone().timeout(Duration::from_secs(1));
        let error = with_steps(step, hasty.take("op", 25)).await.unwrap_err();
        assert!(
            matches!(&error, StockError::Unavailable { cause, .. } if cause.outcome_unknown()),
            "{error}"
        );
        wire.set(|_| Fate::Passes);
        let is_done = lost == Fate::Unanswered;
        assert_eq!(direct.snapshot().await.unwrap().sold(), if is_done { 25 } else { 0 });
        // A COMMIT that did not arrive: the server ends the transaction by itself.
        assert_eq!(stock.take("op", 25).await.unwrap().is_repeated(), is_done);
        assert_eq!(direct.snapshot().await.unwrap().sold(), 25);
    }
}

/// The caller's clock does not matter: the server's clock is stepped, and this process has all the
/// time it needs.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn the_servers_clock_decides_what_is_too_late_and_what_is_over() {
    const HOUR: Duration = Duration::from_secs(60 * 60);
    let clock = ServerClock::new(Offset::NONE).unwrap();
    let server = PostgresServer::start_with_clock(&clock);
    for deed in Deed::ALL {
        // A client that does not know yet that clocks may jump.
        let locks = LockManager::connect(server.url()).await.unwrap();
        let stock = stock(&locks, &deed.name());
        deed.prepare(&stock).await;
        let (before, stepped) = (stock.snapshot().await.unwrap(), clock.clone());
        let step = move |step: &str| {
            if step == "after begin" {
                stepped.set(Offset::Ahead(HOUR)).unwrap();
            }
        };
        let Err(error) = with_steps(step, deed.act(&stock)).await else { panic!("{deed:?} was done") };
        let is_late = matches!(&error, StockError::Unavailable { cause, .. } if cause.kind() == StoreErrorKind::TooLate);
        assert!(is_late, "{deed:?}: {error}");
        clock.set(Offset::NONE).unwrap();
        assert_eq!(stock.snapshot().await.unwrap(), before, "{deed:?}");
        deed.is_settled_by_the_same_again(&stock, "after the clock was stepped").await;
    }
    let locks = LockManager::connect(server.url()).await.unwrap();
    let stock = stock(&locks, "reserved");
    stock.initialize(10, 1).await.unwrap();
    stock.reserve("short", 3, HOUR).await.unwrap();
    stock.reserve("long", 3, HOUR * 3).await.unwrap();
    clock.set(Offset::Ahead(HOUR * 2)).unwrap();
    // Measured by the clock as it was known, the next call is too old.
    let error = stock.confirm("long").await.unwrap_err();
    assert!(error.is_retryable(), "{error}");
    assert!(matches!(stock.confirm("short").await, Err(StockError::Expired { .. })));
    stock.confirm("long").await.unwrap();
    assert_eq!(stock.available().await.unwrap(), 7);
}

/// Another client has locked a row, and does not release it in time.
#[tokio::test]
async fn a_row_that_is_locked_elsewhere_is_waited_for_until_the_time_is_over() {
    let server = PostgresServer::start();
    let locks = LockManager::connect(server.url()).await.unwrap();
    let stock = stock(&locks, "locked");
    stock.initialize(10, 1).await.unwrap();
    let pool = sqlx::PgPool::connect(&server.url()).await.unwrap();
    let mut other = pool.begin().await.unwrap();
    sqlx::query("SELECT FROM lock_stock_segment FOR UPDATE").execute(&mut *other).await.unwrap();
    let error = stock.clone().timeout(Duration::from_millis(300)).take("op", 3).await.unwrap_err();
    assert!(matches!(&error, StockError::Unavailable { cause, .. } if !cause.outcome_unknown()), "{error}");
    assert_eq!(stock.available().await.unwrap(), 10);
    let (taken, ()) = tokio::join!(stock.take("op", 3), async {
        let waits = "SELECT COUNT(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'";
        let waits = async || sqlx::query_scalar::<_, i64>(waits).fetch_one(&pool).await.unwrap() > 0;
        eventually(waits, PATIENCE).await;
        other.commit().await.unwrap();
    });
    assert!(!taken.unwrap().is_repeated());
}

/// With a user who may create no table, a sale says what is missing; one who may use the tables
/// that somebody else has made needs no more.
#[tokio::test]
async fn a_user_without_rights_is_told_and_one_who_may_use_the_tables_needs_no_more() {
    let server = PostgresServer::start();
    let pool = sqlx::PgPool::connect(&server.url()).await.unwrap();
    let run = async |text: &'static str| {
        sqlx::raw_sql(text).execute(&pool).await.unwrap();
    };
    run("CREATE ROLE shop LOGIN; REVOKE CREATE ON SCHEMA public FROM PUBLIC").await;
    let owner = LockManager::connect(server.url()).await.unwrap();
    run("GRANT SELECT, INSERT, UPDATE, DELETE ON lock_records TO shop").await;
    let url = server.url().replace("test@", "shop@");
    let locks = LockManager::connect(url).await.unwrap();
    let error = stock(&locks, "few").initialize(10, 2).await.unwrap_err();
    let said = error.to_string();
    assert!(said.contains("permission denied for schema public; a user who may create tables"), "{said}");
    assert!(matches!(stock(&owner, "few").take("op", 1).await, Err(StockError::Missing { .. })));
    let error = stock(&locks, "few").initialize(10, 2).await.unwrap_err();
    assert!(error.to_string().contains("permission denied for table lock_stock"), "{error}");
    run("GRANT SELECT, INSERT, UPDATE, DELETE ON lock_stock, lock_stock_segment, lock_stock_operation TO shop").await;
    assert!(stock(&locks, "few").initialize(10, 2).await.unwrap());
    stock(&locks, "few").take("op", 7).await.unwrap();
    stock(&locks, "few").give_back("op").await.unwrap();
    assert!(!stock(&locks, "few").sweep(10).await.unwrap().more);
}

/// Compares stocks in PostgreSQL with the model of all stores.
#[test]
fn a_stock_does_what_the_model_does() {
    let (server, runtime) = (PostgresServer::start(), tokio::runtime::Runtime::new().unwrap());
    let locks = runtime.block_on(LockManager::connect(server.url())).unwrap();
    check_on(&runtime, 60, |name| stock(&locks, name));
}
