//! Stocks in PostgreSQL.

use lock_runtime::LockManager;
use lock_runtime::segmented::StockError;
use lock_tests::PostgresServer;
use lock_tests::postgres::Postgres;
use lock_tests::stock_sql::{scenarios, servers, stock};

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

/// In one thread, so that the call is seen between two of its steps.
#[tokio::test]
async fn a_caller_who_is_not_polled_keeps_nobody_out() {
    scenarios::a_caller_who_is_not_polled_keeps_nobody_out(&PostgresServer::start().url()).await;
}

#[test]
fn a_call_that_was_dropped_keeps_nobody_out() {
    scenarios::a_call_that_was_dropped_keeps_nobody_out(&PostgresServer::start().url());
}

/// Makes each test run on servers of its own.
macro_rules! on_servers {
    ($($(#[$meta:meta])* fn $name:ident();)*) => {$(
        $(#[$meta])*
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $name() {
            servers::$name::<Postgres>().await;
        }
    )*};
}

on_servers! {
    fn a_crash_of_the_server_loses_nothing_that_was_answered();
    fn a_commit_without_an_answer_is_told_by_the_same_again();
    #[cfg(target_os = "linux")]
    fn the_servers_clock_decides_what_is_too_late_and_what_is_over();
    fn a_row_that_is_locked_elsewhere_is_waited_for_until_the_time_is_over();
}

#[test]
fn a_stock_does_what_the_model_does() {
    servers::a_stock_does_what_the_model_does::<Postgres>();
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
