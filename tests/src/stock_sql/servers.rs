//! Tests on servers of any product, which they start: with crashes, connections that are cut,
//! clocks that are stepped, and rows that others lock. They need a runtime of several threads.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use lock_core::store::StoreErrorKind;
use lock_runtime::LockManager;
use lock_runtime::segmented::StockError;

use super::{Deed, PATIENCE, stock, with_steps};
use crate::database_server::{LockServer, url};
use crate::sql_commit::Notes;
use crate::sql_server::{SqlServer, pool};
use crate::stock_model::check_on;
use crate::wire::Fate;
use crate::{DatabaseServer, Offset, ServerClock, Wire, eventually};

/// Makes the tests of stocks for one product, each on a server of its own. `databases` are those
/// that also a database without SQL has.
#[macro_export]
macro_rules! stock_on_servers {
    ($product:ty) => {
        $crate::stock_on_servers! { $product, databases }
        $crate::stock_on_servers! { $product, servers:
            fn a_row_that_is_locked_elsewhere_is_waited_for_until_the_time_is_over();
        }
    };
    ($product:ty, databases) => {
        $crate::stock_on_servers! { $product, scenarios:
            fn a_dropped_future_has_done_all_or_nothing();
            fn a_killed_seller_leaves_all_or_nothing(env!("CARGO_BIN_EXE_sql_seller"));
            fn two_processes_sell_each_unit_once(env!("CARGO_BIN_EXE_sql_seller"));
            fn an_older_token_is_refused();
            fn sales_from_several_segments_end_beside_small_ones();
            fn a_prefix_is_another_stock();
            fn a_restock_comes_between_sales_from_several_segments();
            fn what_comes_too_late_changes_nothing();
            fn mistakes_are_told();
            fn everything_at_once_adds_up();
            fn reservations_end_by_the_databases_clock();
            fn records_whose_time_is_over_are_thrown_away();
            fn of_several_with_one_id_one_is_told_that_it_is_new();
            fn an_audit_sees_what_was_changed_behind_its_back();
            fn what_is_overdue_is_for_sale_at_once();
            fn an_unreadable_reservation_is_named();
            fn a_hundred_units_are_sold_once();
        }
        $crate::stock_on_servers! { $product, servers:
            fn a_crash_of_the_server_loses_nothing_that_was_answered();
            fn a_commit_without_an_answer_is_told_by_the_same_again();
            #[cfg(target_os = "linux")]
            fn the_servers_clock_decides_what_is_too_late_and_what_is_over();
        }

        /// In one thread, so that the call is seen between two of its steps.
        #[tokio::test]
        async fn a_caller_who_is_not_polled_keeps_nobody_out() {
            let server = $crate::DatabaseServer::<$product>::start();
            let url = $crate::database_server::url(&server);
            $crate::stock_sql::scenarios::a_caller_who_is_not_polled_keeps_nobody_out(&url).await;
        }

        #[test]
        fn a_call_that_was_dropped_keeps_nobody_out() {
            let server = $crate::DatabaseServer::<$product>::start();
            let url = $crate::database_server::url(&server);
            $crate::stock_sql::scenarios::a_call_that_was_dropped_keeps_nobody_out(&url);
        }

        #[test]
        fn a_stock_does_what_the_model_does() {
            $crate::stock_sql::servers::a_stock_does_what_the_model_does::<$product>();
        }
    };
    ($product:ty, scenarios: $(fn $name:ident($($arg:expr)?);)*) => {$(
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $name() {
            let server = $crate::DatabaseServer::<$product>::start();
            let url = $crate::database_server::url(&server);
            $crate::stock_sql::scenarios::$name(&url $(, $arg)?).await;
        }
    )*};
    ($product:ty, servers: $($(#[$meta:meta])* fn $name:ident();)*) => {$(
        $(#[$meta])*
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $name() {
            $crate::stock_sql::servers::$name::<$product>().await;
        }
    )*};
}

/// Its commits are durable: the data agrees with the answers to clients.
pub async fn a_crash_of_the_server_loses_nothing_that_was_answered<P: LockServer>() {
    let mut server = P::start_beside_a_busy_disk().await;
    let locks = LockManager::connect(url(&server)).await.unwrap();
    let stock = stock(&locks, "crash").timeout(Duration::from_secs(2));
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
        tokio::task::block_in_place(|| server.restart());
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
pub async fn a_commit_without_an_answer_is_told_by_the_same_again<P: LockServer>() {
    let server = DatabaseServer::<P>::start();
    let wire = Arc::new(Wire::to(server.addr()));
    let through = P::url_at(wire.addr());
    let direct = LockManager::connect(url(&server)).await.unwrap();
    for (name, lost) in [("answers", Fate::Unanswered), ("requests", Fate::Lost)] {
        let locks = LockManager::connect(&through).await.unwrap();
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
pub async fn the_servers_clock_decides_what_is_too_late_and_what_is_over<P: LockServer>() {
    const HOUR: Duration = Duration::from_secs(60 * 60);
    let clock = ServerClock::new(Offset::NONE).unwrap();
    let server = DatabaseServer::<P>::start_with_clock(&clock);
    for deed in Deed::ALL {
        // A client that does not know yet that clocks may jump.
        let locks = LockManager::connect(url(&server)).await.unwrap();
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
    let locks = LockManager::connect(url(&server)).await.unwrap();
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
pub async fn a_row_that_is_locked_elsewhere_is_waited_for_until_the_time_is_over<P: SqlServer>() {
    let server = DatabaseServer::<P>::start();
    let locks = LockManager::connect(url(&server)).await.unwrap();
    let stock = stock(&locks, "locked");
    stock.initialize(10, 1).await.unwrap();
    let pool = pool(&server).await;
    let mut other = pool.begin().await.unwrap();
    P::Database::run(&mut other, "SELECT 1 FROM lock_stock_segment FOR UPDATE").await.unwrap();
    let error = stock.clone().timeout(Duration::from_millis(300)).take("op", 3).await.unwrap_err();
    assert!(matches!(&error, StockError::Unavailable { cause, .. } if !cause.outcome_unknown()), "{error}");
    assert_eq!(stock.available().await.unwrap(), 10);
    let (taken, ()) = tokio::join!(stock.take("op", 3), async {
        let mut session = pool.acquire().await.unwrap();
        eventually(async || P::Database::number(&mut session, P::WAITING).await > 0, PATIENCE).await;
        other.commit().await.unwrap();
    });
    assert!(!taken.unwrap().is_repeated());
}

/// Compares stocks with the model of all stores.
pub fn a_stock_does_what_the_model_does<P: LockServer>() {
    let (server, runtime) = (DatabaseServer::<P>::start(), tokio::runtime::Runtime::new().unwrap());
    let locks = runtime.block_on(LockManager::connect(url(&server))).unwrap();
    check_on(&runtime, 60, |name| stock(&locks, name));
}
