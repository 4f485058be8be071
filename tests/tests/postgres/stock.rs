//! Stocks in PostgreSQL.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use lock_core::store::StoreErrorKind;
use lock_runtime::segmented::{SqlStocks, StockError};
use lock_runtime::testing::memory_manager;
use lock_tests::stock_model::check_on;
use lock_tests::stock_sql::{Deed, PATIENCE, drop_at, open, scenarios, stock, with_steps};
use lock_tests::wire::Fate;
use lock_tests::{Offset, PostgresServer, ServerClock, Wire, eventually};
use sqlx::postgres::PgPoolOptions;

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
    a_sale_without_its_lock_changes_nothing();
    a_merge_waits_for_locks_within_its_time();
    what_comes_too_late_changes_nothing();
    mistakes_are_told();
    everything_at_once_adds_up();
    reservations_end_by_the_databases_clock();
    records_whose_time_is_over_are_thrown_away();
    of_several_with_one_id_one_is_told_that_it_is_new();
    an_audit_sees_what_was_changed_behind_its_back();
    what_is_overdue_is_for_sale_at_once();
    a_hundred_units_are_sold_once(4);
}

/// Its commits are durable: the data agrees with the answers to clients.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crash_of_the_server_loses_nothing_that_was_answered() {
    let mut server = PostgresServer::start();
    let stocks = open(&server.url(), &memory_manager(), 4).await;
    stocks.create_tables().await.unwrap();
    let stock = stock(&stocks, "crash").timeout(Duration::from_millis(500));
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
    let direct = open(&server.url(), &memory_manager(), 2).await;
    direct.create_tables().await.unwrap();
    let locks = memory_manager();
    for (name, lost) in [("answers", Fate::Unanswered), ("requests", Fate::Lost)] {
        // More than one, since connections that wait for lost answers are not given back.
        let stocks = open(&url, &locks, 10).await;
        let (stock, direct) = (stock(&stocks, name), stock(&direct, name));
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
    let locks = memory_manager();
    open(&server.url(), &locks, 1).await.create_tables().await.unwrap();
    for deed in Deed::ALL {
        // A client that does not know yet that clocks may jump.
        let stocks = open(&server.url(), &locks, 1).await;
        let stock = stock(&stocks, &deed.name());
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
    let stocks = open(&server.url(), &locks, 1).await;
    let stock = stock(&stocks, "reserved");
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
    let stocks = open(&server.url(), &memory_manager(), 2).await;
    stocks.create_tables().await.unwrap();
    let stock = stock(&stocks, "locked");
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

/// The pool is the user's, who does not expect another's open transaction in it.
#[tokio::test]
async fn a_dropped_future_leaves_no_transaction_on_the_connection() {
    let server = PostgresServer::start();
    let pool = PgPoolOptions::new().max_connections(1).connect(&server.url()).await.unwrap();
    let other = sqlx::PgPool::connect(&server.url()).await.unwrap();
    let stocks = SqlStocks::postgres(memory_manager(), pool.clone());
    stocks.create_tables().await.unwrap();
    sqlx::query("CREATE TABLE note (number BIGINT)").execute(&pool).await.unwrap();
    let stock = stock(&stocks, "dropped");
    stock.initialize(10, 1).await.unwrap();
    // Dropped later each time: before BEGIN, while it is in flight, and after it.
    for polls in 0.. {
        let has_ended = drop_at(0, polls, stock.confirm("none")).await;
        sqlx::query("INSERT INTO note VALUES ($1)").bind(i64::from(polls)).execute(&pool).await.unwrap();
        let count =
            sqlx::query_scalar::<_, i64>("SELECT COUNT(*) FROM note").fetch_one(&other).await.unwrap();
        assert_eq!(count, i64::from(polls) + 1, "what was written is committed");
        if has_ended {
            assert!(polls > 5, "it waits for the server");
            break;
        }
    }
}

/// However many records are kept.
#[tokio::test]
async fn a_sweep_looks_by_index_at_what_is_over() {
    let server = PostgresServer::start();
    let pool = PgPoolOptions::new().max_connections(1).connect(&server.url()).await.unwrap();
    let stocks = SqlStocks::postgres(memory_manager(), pool.clone());
    stocks.create_tables().await.unwrap();
    let stock = stock(&stocks, "swept");
    stock.initialize(10, 1).await.unwrap();
    let kept = "INSERT INTO lock_stock_operation \
                SELECT 'swept', 'kept:' || n, CASE n % 2 WHEN 0 THEN 'H' ELSE 'S' END, 1 - n % 2, 1, '0:1', \
                7258118400000000, CASE n % 2 WHEN 1 THEN 7258118400000000 END FROM generate_series(1, 10000) n";
    sqlx::query(kept).execute(&pool).await.unwrap();
    sqlx::query("ANALYZE lock_stock_operation").execute(&pool).await.unwrap();
    stock.sweep(10).await.unwrap();
    // The statements as it has sent them, over this connection.
    for (text, condition) in [("SELECT operation, parts %", "deadline <"), ("DELETE %", "kept_until <=")] {
        let named = "SELECT name FROM pg_prepared_statements WHERE statement LIKE $1";
        let name: String = sqlx::query_scalar(named).bind(text).fetch_one(&pool).await.unwrap();
        let explain = format!("EXPLAIN EXECUTE {name} ('swept', 10)");
        let plan: Vec<String> = sqlx::query_scalar(&explain).fetch_all(&pool).await.unwrap();
        let by_index = plan.iter().any(|line| line.contains("Index Cond") && line.contains(condition));
        assert!(by_index, "{plan:#?}");
    }
}

/// Compares stocks in PostgreSQL with the model of all stores.
#[test]
fn a_stock_does_what_the_model_does() {
    let (server, runtime) = (PostgresServer::start(), tokio::runtime::Runtime::new().unwrap());
    let stocks = runtime.block_on(async {
        let stocks = open(&server.url(), &memory_manager(), 2).await;
        stocks.create_tables().await.unwrap();
        stocks
    });
    check_on(&runtime, 60, |name| stock(&stocks, name));
}
