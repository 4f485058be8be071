//! A server whose clock is stepped.
#![cfg(target_os = "linux")]

use lock_tests::database_clocks;
use lock_tests::mongodb::MongoDb;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_step_forward_ends_leases_early_and_tells_the_holder_within_its_lease() {
    database_clocks::a_step_forward_ends_leases_early_and_tells_the_holder_within_its_lease::<MongoDb>()
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_step_back_keeps_only_the_locks_of_the_dead() {
    database_clocks::a_step_back_keeps_only_the_locks_of_the_dead::<MongoDb>(env!("CARGO_BIN_EXE_holder"))
        .await;
}
