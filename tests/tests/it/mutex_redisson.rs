//! The behaviour that Redisson's own tests pin for its `RLock`, on both stores.
//! `docs/book/src/redisson-parity.md` says which test corresponds to which.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use lock_runtime::LockManager;
use lock_tests::kinds::{is_free, is_locked};
use lock_tests::{eventually, on_every_store, poll_once_and_drop, validity};
use tokio::time::Instant;

const LONG: Duration = Duration::from_secs(60);

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// Adds one to a number under the lock, in two steps that others could get between.
async fn count(locks: &LockManager, key: &str, number: &AtomicU64) {
    let guard = locks.mutex(key).wait(LONG).acquire().await.expect("everybody gets a turn");
    let seen = number.load(Ordering::SeqCst);
    tokio::time::sleep(ms(1)).await;
    number.store(seen + 1, Ordering::SeqCst);
    guard.release().await.expect("the lock was held until here");
}

on_every_store! {
    async fn a_lock_can_be_taken_again(site: Site) {
        let locks = site.manager().await;
        let mut last = None;
        for _ in 0..3 {
            let guard = locks.mutex("again").acquire().await.unwrap();
            assert!(Some(guard.fencing_token()) > last, "tokens grow");
            last = Some(guard.fencing_token());
            guard.release().await.unwrap();
            assert!(!is_locked(&locks, "again").await);
        }
    }

    async fn status_shows_who_holds_a_lock(site: Site) {
        let (locks, other) = (site.manager().await, site.manager().await);
        assert!(!is_locked(&locks, "seen").await);
        let guard = locks.mutex("seen").acquire().await.unwrap();
        for manager in [&locks, &other] {
            let status = manager.status("seen").await.unwrap();
            let counts: Vec<u64> = status.holders.iter().map(|(_, count)| *count).collect();
            assert_eq!(counts, [1]);
            assert!(site.is_plain() || status.last_token >= Some(guard.fencing_token()));
            assert!(!site.tells_the_last_token() || status.last_token == Some(guard.fencing_token()));
            let remaining = status.remaining.expect("a held lock has a remaining time");
            assert!(remaining > Duration::from_secs(15) && remaining <= Duration::from_secs(30), "{remaining:?}");
        }
        assert!(other.mutex("seen").try_acquire().await.unwrap().is_none());
        guard.release().await.unwrap();
        for manager in [&locks, &other] {
            let status = manager.status("seen").await.unwrap();
            assert!(status.holders.is_empty());
            assert_eq!(status.remaining, None);
        }
        assert!(other.mutex("seen").try_acquire().await.unwrap().is_some());
    }

    async fn waiters_of_two_names_do_not_get_in_each_others_way(site: Site) {
        let locks = [site.manager().await, site.manager().await];
        for round in 0..10 {
            let mut waiting = Vec::new();
            for key in ["left", "right"] {
                let guard = locks[0].mutex(key).acquire().await.unwrap();
                let other = locks[1].clone();
                waiting.push(tokio::spawn(async move {
                    let guard = other.mutex(key).wait(LONG).acquire().await?;
                    guard.release().await.expect("held until here");
                    Ok::<_, lock_runtime::LockError>(())
                }));
                // Both ways of releasing.
                if round % 2 == 0 { guard.release().await.unwrap() } else { drop(guard) }
            }
            for waiter in waiting {
                waiter.await.unwrap().unwrap();
            }
        }
    }

    async fn an_abandoned_acquire_leaves_no_lock_behind(site: Site) {
        let locks = site.manager_with(|builder| builder.lease(ms(1000))).await;
        let other = site.manager().await;
        for _ in 0..20 {
            // Dropped just after its first step, which may be on its way to the store.
            poll_once_and_drop(locks.mutex("abandoned").wait(LONG).acquire()).await;
            let guard = other.mutex("abandoned").wait(LONG).acquire().await.unwrap();
            guard.release().await.unwrap();
        }
        eventually(async || !is_locked(&other, "abandoned").await, site.at_most(ms(1000))).await;
        // And no renewal keeps a lock without a holder: it stays free.
        tokio::time::sleep(ms(1500)).await;
        assert!(!is_locked(&other, "abandoned").await);
    }

    async fn nested_leases_end_with_the_outermost(site: Site) {
        let lease = Duration::from_secs(10);
        let locks = site.manager().await;
        let outer = locks.mutex("nested").lease(lease).acquire().await.unwrap();
        let token = outer.fencing_token();
        let view = outer.view();
        let nested = locks.clone();
        outer
            .scope(async move {
                let second = nested.mutex("nested").lease(lease).acquire().await.unwrap();
                let third_locks = nested.clone();
                let third = second
                    .scope(async move { third_locks.mutex("nested").lease(lease).acquire().await.unwrap() })
                    .await;
                assert_eq!((second.fencing_token(), third.fencing_token()), (token, token));
                third.release().await.unwrap();
                second.release().await.unwrap();
            })
            .await;
        assert!(!view.is_lost());
        let remaining = locks.status("nested").await.unwrap().remaining.expect("the outermost still holds it");
        assert!(remaining > Duration::from_secs(4) && remaining <= lease, "{remaining:?}");
        outer.release().await.unwrap();
        assert!(!is_locked(&locks, "nested").await);
    }

    async fn force_release_frees_a_lock_for_everybody(site: Site) {
        let (locks, other) = (site.manager().await, site.manager().await);
        let guard = locks.mutex("forced").acquire().await.unwrap();
        let token = guard.fencing_token();
        assert!(other.force_release("forced").await.unwrap());
        assert!(!other.force_release("forced").await.unwrap(), "it was free already");
        assert!(!is_locked(&locks, "forced").await);
        let next = other.mutex("forced").try_acquire().await.unwrap().expect("the lock is free");
        assert!(next.fencing_token() > token, "the counter survives");
        // The former holder can't touch it, and learns of its loss at the next renewal at the
        // latest.
        drop(guard);
        tokio::time::sleep(ms(50)).await;
        assert!(is_locked(&other, "forced").await);
        next.release().await.unwrap();
    }

    async fn a_waiter_is_woken_by_a_forced_release(site: Site) {
        let (locks, other) = (site.manager().await, site.manager().await);
        let _guard = locks.mutex("forced").acquire().await.unwrap();
        let waiter = tokio::spawn({
            let other = other.clone();
            async move { other.mutex("forced").wait(LONG).acquire().await }
        });
        tokio::time::sleep(ms(200)).await;
        assert!(!waiter.is_finished());
        assert!(locks.force_release("forced").await.unwrap());
        let start = Instant::now();
        let guard = waiter.await.unwrap().unwrap();
        assert!(start.elapsed() < site.at_most(ms(5000)), "{:?}", start.elapsed());
        guard.release().await.unwrap();
    }

    async fn a_lease_that_ends_lets_the_waiter_in_and_the_holder_know(site: Site) {
        let (locks, other) = (site.manager().await, site.manager().await);
        let lease = Duration::from_secs(2);
        let start = Instant::now();
        let guard = locks.mutex("ends").lease(lease).acquire().await.unwrap();
        let granted = Instant::now();
        let (lost, next) = tokio::join!(
            async {
                guard.lost().await;
                start.elapsed()
            },
            async {
                let next = other.mutex("ends").wait(LONG).acquire().await.unwrap();
                (start.elapsed(), granted.elapsed(), next)
            }
        );
        let (since_start, since_grant, next) = next;
        assert!(since_start >= validity(lease), "the lease was kept: {since_start:?}");
        assert!(since_grant < site.at_most(lease), "{since_grant:?}");
        assert!(lost < site.at_most(lease), "{lost:?}");
        assert!(guard.is_lost() && guard.remaining() == Duration::ZERO);
        assert!(guard.cancellation_token().is_cancelled());
        assert!(next.fencing_token() > guard.fencing_token());
        let error = guard.release().await.expect_err("it was lost");
        assert!(matches!(error, lock_runtime::LockError::Lost { .. }), "{error:?}");
        assert!(is_locked(&other, "ends").await, "the next holder is not disturbed");
        next.release().await.unwrap();
    }

    async fn remaining_time_follows_the_lease_that_was_asked_for(site: Site) {
        let locks = site.manager().await;
        let hour = Duration::from_secs(3600);
        let guard = locks.mutex("remaining").lease(hour).acquire().await.unwrap();
        let remaining = locks.status("remaining").await.unwrap().remaining.unwrap();
        assert!(remaining > hour - LONG && remaining <= hour, "{remaining:?}");
        assert!(guard.remaining() > hour - LONG * 2 && guard.remaining() <= hour, "{:?}", guard.remaining());
        guard.release().await.unwrap();
        assert_eq!(locks.status("remaining").await.unwrap().remaining, None);
        // A lease asked for once has no after-effect.
        let guard = locks.mutex("remaining").acquire().await.unwrap();
        let remaining = locks.status("remaining").await.unwrap().remaining.unwrap();
        assert!(remaining > Duration::from_secs(15) && remaining <= Duration::from_secs(30), "{remaining:?}");
        guard.release().await.unwrap();
    }

    async fn a_guard_that_lost_its_lock_can_not_release_the_next_holders(site: Site) {
        let (locks, other) = (site.manager().await, site.manager().await);
        let late = locks.mutex("late").lease(ms(200)).acquire().await.unwrap();
        let next = other.mutex("late").wait(LONG).acquire().await.unwrap();
        drop(late);
        let late = locks.mutex("late").try_acquire().await.unwrap();
        assert!(late.is_none());
        tokio::time::sleep(ms(100)).await;
        assert_eq!(other.status("late").await.unwrap().holders.len(), 1);
        assert!(!next.is_lost());
        next.release().await.unwrap();
    }

    async fn a_lock_entered_twice_stays_taken_until_both_have_left(site: Site) {
        let (locks, other) = (site.manager().await, site.manager().await);
        let first = locks.mutex("twice").acquire().await.unwrap();
        let second = first.reenter().unwrap();
        first.release().await.unwrap();
        assert!(other.mutex("twice").try_acquire().await.unwrap().is_none());
        second.release().await.unwrap();
        // At once, except on a quorum, where a server may still have it, or be about to undo the
        // previous try.
        let within = if site.is_quorum() { LONG } else { Duration::ZERO };
        eventually(async || is_free(other.mutex("twice")).await, within).await;
    }

    async fn a_hold_after_many_quick_ones_is_renewed(site: Site) {
        let lease = ms(600);
        let locks = site.manager_with(|builder| builder.lease(lease)).await;
        let mut tasks = Vec::new();
        for task in 0..16 {
            let locks = locks.clone();
            tasks.push(tokio::spawn(async move {
                let key = format!("quick:{task}");
                for _ in 0..50 {
                    if let Some(guard) = locks.mutex(&key).try_acquire().await.unwrap() {
                        guard.release().await.unwrap();
                    }
                }
                let guard = locks.mutex(&key).acquire().await.unwrap();
                tokio::time::sleep(lease * 3).await;
                assert!(!guard.is_lost());
                guard.release().await.unwrap();
            }));
        }
        for task in tasks {
            task.await.unwrap();
        }
    }

    async fn every_task_of_one_manager_gets_in(site: Site) {
        let locks = site.manager().await;
        let number = Arc::new(AtomicU64::new(0));
        let tasks: Vec<_> = (0..15)
            .map(|_| {
                let (locks, number) = (locks.clone(), number.clone());
                tokio::spawn(async move { count(&locks, "jobs", &number).await })
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
        assert_eq!(number.load(Ordering::SeqCst), 15);
    }

    async fn sixteen_managers_count_exactly(site: Site) {
        let number = Arc::new(AtomicU64::new(0));
        let mut tasks = Vec::new();
        for _ in 0..16 {
            let (locks, number) = (site.manager().await, number.clone());
            tasks.push(tokio::spawn(async move {
                for _ in 0..25 {
                    count(&locks, "counted", &number).await;
                }
            }));
        }
        for task in tasks {
            task.await.unwrap();
        }
        assert_eq!(number.load(Ordering::SeqCst), 16 * 25);
    }

    async fn a_hundred_managers_count_exactly(site: Site) {
        let number = Arc::new(AtomicU64::new(0));
        let mut tasks = Vec::new();
        for _ in 0..100 {
            let (locks, number) = (site.manager().await, number.clone());
            tasks.push(tokio::spawn(async move { count(&locks, "counted", &number).await }));
        }
        for task in tasks {
            task.await.unwrap();
        }
        assert_eq!(number.load(Ordering::SeqCst), 100);
    }
}
