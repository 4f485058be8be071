//! Servers and clients of MariaDB that are killed or stopped, and connections that are cut.

use std::time::Duration;

use lock_tests::database_faults;
use lock_tests::database_server::url;
use lock_tests::mariadb::MariaDb;

database_faults!(MariaDb);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crash_loses_no_grant() {
    database_faults::a_crash_loses_no_grant::<MariaDb>(url, Duration::from_secs(600)).await;
}
