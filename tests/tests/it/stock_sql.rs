//! Stocks in SQLite. Those in PostgreSQL are in `tests/postgres`.

use lock_tests::stock_sql::{scenarios, sqlite_in};
use tempfile::TempDir;

const SELLER: &str = env!("CARGO_BIN_EXE_sql_seller");

fn folder() -> (TempDir, String) {
    let folder = tempfile::tempdir().unwrap();
    let url = sqlite_in(folder.path());
    (folder, url)
}

/// Makes each test run on a new database.
macro_rules! on_sqlite {
    ($($name:ident($($arg:expr),*);)*) => {$(
        #[tokio::test]
        async fn $name() {
            let (_folder, url) = folder();
            scenarios::$name(&url $(, $arg)*).await;
        }
    )*};
}

on_sqlite! {
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
    reservations_end_by_the_databases_clock();
    records_whose_time_is_over_are_thrown_away();
    an_audit_sees_what_was_changed_behind_its_back();
    what_is_overdue_is_for_sale_at_once();
    an_unreadable_reservation_is_named();
}

#[test]
fn a_call_that_was_dropped_keeps_nobody_out() {
    let (_folder, url) = folder();
    scenarios::a_call_that_was_dropped_keeps_nobody_out(&url);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_several_with_one_id_one_is_told_that_it_is_new() {
    let (_folder, url) = folder();
    scenarios::of_several_with_one_id_one_is_told_that_it_is_new(&url).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hundred_units_are_sold_once() {
    let (_folder, url) = folder();
    scenarios::a_hundred_units_are_sold_once(&url).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn everything_at_once_adds_up() {
    let (_folder, url) = folder();
    scenarios::everything_at_once_adds_up(&url).await;
}
