//! Rows that strangers lock, and pools whose connections all wait.

use lock_tests::mariadb::MariaDb;
use lock_tests::sql_rows;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_that_a_stranger_has_locked_cost_only_their_own_keys() {
    sql_rows::rows_that_a_stranger_has_locked_cost_only_their_own_keys::<MariaDb>().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn handlers_that_wait_inside_transactions_hold_up_no_renewal_and_no_release() {
    sql_rows::handlers_that_wait_inside_transactions_hold_up_no_renewal_and_no_release::<MariaDb>().await;
}
