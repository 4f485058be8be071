//! # Unit tests of code with locks
//!
//! Code with locks should be tested like any other: without a server, many tests at once, and
//! without waiting for real time-outs.
//!
//! **Copy** the tests below, and these lines into `Cargo.toml`:
//!
//! ```toml
//! [dev-dependencies]
//! lock-runtime = { path = "../distributed-locks/lock-runtime", features = ["testing"] }
//! tokio = { version = "1", features = ["macros", "rt", "test-util"] }
//! ```
//!
//! **Watch**
//! - Give each test its own manager, by `with_default` or in a field of your service. `set_default`
//!   is for the whole process: all tests would share one manager.
//! - With `start_paused`, leases, waits and renewals follow tokio's clock, which jumps ahead when
//!   all tasks wait. That works in memory only: a server has its own clock.
//! - `lose` takes a lock away. Use it to test that half-done work does no harm.
#![allow(clippy::print_stdout)]
#![cfg_attr(not(test), allow(dead_code))]

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use lock_runtime::{LockError, distributed_lock};

/// Prints labels, one a minute. This is the code under test.
#[distributed_lock(key = "printer", wait = "5s")]
async fn print_labels(labels: u32, printed: &AtomicU32) -> Result<(), LockError> {
    for _ in 0..labels {
        tokio::time::sleep(Duration::from_secs(60)).await;
        printed.fetch_add(1, Ordering::Relaxed);
    }
    Ok(())
}

fn main() {
    println!("the recipe is in the tests: cargo test -p example-recipes --example unit_test");
}

#[cfg(test)]
mod tests {
    use lock_runtime::{Loss, testing, with_default};
    use tokio::time::{Instant, sleep};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_long_job_keeps_its_lock_and_leaves_none_behind() {
        let (locks, printed) = (testing::memory_manager(), AtomicU32::new(0));
        with_default(locks.clone(), print_labels(60, &printed)).await.unwrap();
        assert_eq!(printed.into_inner(), 60, "an hour of work, in no time");
        assert!(!locks.status("printer").await.unwrap().is_locked());
    }

    #[tokio::test(start_paused = true)]
    async fn a_caller_that_finds_the_printer_taken_is_told_after_five_seconds() {
        let (locks, printed) = (testing::memory_manager(), AtomicU32::new(0));
        let _guard = locks.mutex("printer").acquire().await.unwrap();
        let start = Instant::now();
        let error = with_default(locks.clone(), print_labels(1, &printed)).await.unwrap_err();
        assert!(error.is_busy() && !error.body_started(), "{error}");
        assert_eq!(start.elapsed().as_secs(), 5);
        assert_eq!(printed.into_inner(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_job_that_loses_its_lock_stops() {
        let (locks, printed) = (testing::memory_manager(), AtomicU32::new(0));
        let lose = async {
            sleep(Duration::from_secs(150)).await;
            assert!(testing::lose(&locks, "printer"), "the job does not hold the lock");
        };
        let (job, ()) = tokio::join!(with_default(locks.clone(), print_labels(60, &printed)), lose);
        assert!(matches!(job, Err(LockError::Lost { why: Loss::TakenAway, .. })), "{job:?}");
        sleep(Duration::from_secs(3600)).await;
        assert_eq!(printed.into_inner(), 2, "it went on without the lock");
    }
}
