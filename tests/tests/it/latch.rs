//! Count-down latches, on both stores.

use std::time::Duration;

use lock_runtime::{LockError, LockManager};
use lock_tests::on_every_store;
use tokio::time::Instant;

const LONG: Duration = Duration::from_secs(60);

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// Starts a task that waits for the latch, and returns when it has waited for a while.
async fn waiting(locks: &LockManager, name: &'static str) -> tokio::task::JoinHandle<Result<(), LockError>> {
    let locks = locks.clone();
    let task = tokio::spawn(async move { locks.latch(name).wait(LONG).await });
    tokio::time::sleep(ms(100)).await;
    assert!(!task.is_finished());
    task
}

on_every_store! {
    async fn a_wait_ends_when_the_count_is_zero(site: Site) {
        let (locks, other) = (site.manager().await, site.manager().await);
        assert!(locks.latch("l").try_set_count(2).await.unwrap());
        let waiter = waiting(&other, "l").await;
        assert_eq!(locks.latch("l").count_down().await.unwrap(), 1);
        assert_eq!(other.latch("l").count().await.unwrap(), 1);
        let counted = Instant::now();
        assert_eq!(locks.latch("l").count_down().await.unwrap(), 0);
        waiter.await.unwrap().unwrap();
        assert!(counted.elapsed() < site.at_most(ms(0)), "{:?}", counted.elapsed());
    }

    async fn a_wait_for_a_latch_ends_in_time(site: Site) {
        let locks = site.manager().await;
        let latch = locks.latch("l");
        latch.try_set_count(1).await.unwrap();
        let start = Instant::now();
        let error = latch.wait(ms(700)).await.unwrap_err();
        assert!(matches!(error, LockError::TimedOut { .. }), "{error:?}");
        assert!(start.elapsed() >= ms(700) && start.elapsed() < site.at_most(ms(700)), "{:?}", start.elapsed());
        let error = latch.wait(Duration::ZERO).await.unwrap_err();
        assert!(matches!(error, LockError::Busy { .. }), "{error:?}");
    }

    async fn everybody_who_waits_for_a_latch_goes_on(site: Site) {
        let (locks, other) = (site.manager().await, site.manager().await);
        locks.latch("l").try_set_count(1).await.unwrap();
        let mut waiters = Vec::new();
        for number in 0..6 {
            waiters.push(waiting(if number % 2 == 0 { &locks } else { &other }, "l").await);
        }
        locks.latch("l").count_down().await.unwrap();
        for waiter in waiters {
            waiter.await.unwrap().unwrap();
        }
    }

    async fn more_counts_than_there_are_leave_a_latch_at_zero(site: Site) {
        let locks = site.manager().await;
        let latch = locks.latch("l");
        latch.try_set_count(1).await.unwrap();
        for _ in 0..4 {
            assert_eq!(latch.count_down().await.unwrap(), 0);
            assert_eq!(latch.count().await.unwrap(), 0);
        }
        latch.wait(Duration::ZERO).await.unwrap();
        latch.wait_forever().await.unwrap();
    }

    async fn a_deleted_latch_lets_everybody_go_on(site: Site) {
        let (locks, other) = (site.manager().await, site.manager().await);
        locks.latch("l").try_set_count(3).await.unwrap();
        let waiter = waiting(&other, "l").await;
        assert!(locks.latch("l").delete().await.unwrap());
        waiter.await.unwrap().unwrap();
        assert_eq!(locks.latch("l").count().await.unwrap(), 0);
    }

    async fn a_latch_that_does_not_exist_is_not_deleted(site: Site) {
        let locks = site.manager().await;
        assert!(!locks.latch("l").delete().await.unwrap());
    }

    async fn a_latch_is_set_once(site: Site) {
        let (locks, other) = (site.manager().await, site.manager().await);
        assert_eq!(locks.latch("l").count().await.unwrap(), 0);
        assert!(locks.latch("l").try_set_count(10).await.unwrap());
        assert!(!other.latch("l").try_set_count(15).await.unwrap());
        assert_eq!(other.latch("l").count().await.unwrap(), 10);
    }

    async fn many_managers_count_a_latch_down_together(site: Site) {
        const MANAGERS: u32 = 6;
        let first = site.manager().await;
        first.latch("l").try_set_count(MANAGERS * 5).await.unwrap();
        let mut tasks = Vec::new();
        for _ in 0..MANAGERS {
            let locks = site.manager().await;
            tasks.push(tokio::spawn(async move {
                let latch = locks.latch("l");
                for _ in 0..5 {
                    latch.count_down().await.unwrap();
                }
                latch.wait(LONG).await.unwrap();
                assert_eq!(latch.count().await.unwrap(), 0);
            }));
        }
        for task in tasks {
            task.await.unwrap();
        }
    }

    async fn what_can_be_no_latch_is_refused(site: Site) {
        let locks = site.manager().await;
        let error = locks.latch("l").try_set_count(0).await.unwrap_err();
        assert!(matches!(error, LockError::Misconfigured { .. }), "{error:?}");
        let error = locks.latch("{u}:1").count_down().await.unwrap_err();
        assert!(matches!(error, LockError::InvalidKey(_)), "{error:?}");
        assert!(error.to_string().contains("hash tag"), "{error}");
    }

    async fn a_shutdown_ends_the_wait_for_a_latch(site: Site) {
        let locks = site.manager().await;
        locks.latch("l").try_set_count(1).await.unwrap();
        let waiter = waiting(&locks, "l").await;
        locks.shutdown(LONG).await.unwrap();
        let error = waiter.await.unwrap().unwrap_err();
        assert!(matches!(error, LockError::ShutDown { .. }), "{error:?}");
        let error = locks.latch("l").count_down().await.unwrap_err();
        assert!(matches!(error, LockError::ShutDown { .. }), "{error:?}");
    }
}
