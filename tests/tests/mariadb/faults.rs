//! Servers and clients of MariaDB that are killed or stopped, and connections that are cut.

use std::time::Duration;

use lock_runtime::LockManager;
use lock_tests::mariadb::MariaDb;
use lock_tests::{MariaDbServer, database_faults, database_server};

const HAMMER: &str = env!("CARGO_BIN_EXE_hammer");
const HOLDER: &str = env!("CARGO_BIN_EXE_holder");

/// Makes each test run on a server of its own.
macro_rules! on_mariadb {
    ($(fn $name:ident($($program:expr)?);)*) => {$(
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $name() {
            database_faults::$name::<MariaDb>($($program)?).await;
        }
    )*};
}

on_mariadb! {
    fn a_server_that_is_killed_and_stopped_under_load_has_one_holder(HAMMER);
    fn processes_that_are_killed_and_stopped_under_load_overlap_with_nobody(HAMMER);
    fn connections_that_are_cut_all_the_time_cost_no_grant_and_double_none(HAMMER);
    fn a_lock_outlives_its_dead_or_stopped_process_by_its_lease(HOLDER);
    fn waiters_that_are_killed_and_stopped_are_passed_over(HOLDER);
    fn a_stopped_server_is_unavailable_in_time_and_its_holders_are_lost_in_time();
}

/// A grant that was answered is on the disk.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crash_loses_no_grant() {
    let mut server = MariaDbServer::start();
    let mut guards = Vec::new();
    for crash in 0..3 {
        let locks = database_server::connect(&server, Duration::from_secs(600)).await;
        guards.push(locks.mutex(format!("k{crash}")).acquire().await.unwrap());
        tokio::task::block_in_place(|| server.restart());
        let other = LockManager::connect(server.url()).await.unwrap();
        for guard in &guards {
            let error = other.mutex(guard.key()).no_wait().acquire().await.unwrap_err();
            assert!(error.is_busy(), "{guard:?}: {error:?}");
        }
    }
}
