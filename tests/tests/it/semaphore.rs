//! Semaphores, on both stores.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use lock_runtime::{LockError, LockManager, SemaphorePermit, testing};
use lock_tests::{Site, eventually, first_poll, on_every_store, poll_once_and_drop};
use tokio::task::JoinHandle;
use tokio::time::Instant;

const LONG: Duration = Duration::from_secs(60);

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// Returns two managers of a semaphore with this many permits.
async fn with_permits(site: &Site, permits: u32) -> (LockManager, LockManager) {
    let (locks, other) = (site.manager().await, site.manager().await);
    assert!(locks.semaphore("s").try_set_permits(permits).await.unwrap());
    (locks, other)
}

async fn take(locks: &LockManager, permits: u32) -> SemaphorePermit {
    locks.semaphore("s").permits(permits).wait(LONG).acquire().await.unwrap()
}

async fn is_free(locks: &LockManager, permits: u32) -> bool {
    locks.semaphore("s").permits(permits).try_acquire().await.unwrap().is_some()
}

async fn counts(locks: &LockManager) -> (i64, u64, i64) {
    let semaphore = locks.semaphore("s");
    let available = semaphore.available_permits().await.unwrap();
    let acquired = semaphore.acquired_permits().await.unwrap();
    (available, acquired, semaphore.total_permits().await.unwrap())
}

/// Starts a task that waits for permits, and returns when it has waited for a while.
async fn waiting(locks: &LockManager, permits: u32) -> JoinHandle<SemaphorePermit> {
    let locks = locks.clone();
    let task = tokio::spawn(async move { take(&locks, permits).await });
    tokio::time::sleep(ms(100)).await;
    assert!(!task.is_finished());
    task
}

/// Goes in and out with a permit `rounds` times, and never meets more than `most` others.
fn visitor(
    locks: LockManager,
    permits: u32,
    rounds: u32,
    most: u64,
    inside: &Arc<AtomicU64>,
) -> JoinHandle<()> {
    let inside = Arc::clone(inside);
    tokio::spawn(async move {
        for round in 0..rounds {
            let permit = take(&locks, permits).await;
            let met = inside.fetch_add(1, Ordering::SeqCst);
            assert!(met < most, "{met} others are inside");
            tokio::time::sleep(ms(1)).await;
            inside.fetch_sub(1, Ordering::SeqCst);
            if round % 2 == 0 { permit.release().await.unwrap() } else { drop(permit) }
        }
    })
}

on_every_store! {
    async fn a_semaphore_without_permits_lets_nobody_in(site: Site) {
        let locks = site.manager().await;
        assert_eq!(counts(&locks).await, (0, 0, 0));
        assert!(!is_free(&locks, 1).await);
        let error = locks.semaphore("s").wait(ms(300)).acquire().await.unwrap_err();
        assert!(matches!(error, LockError::TimedOut { .. }), "{error:?}");
        assert_eq!(counts(&locks).await, (0, 0, 0));
    }

    async fn permits_are_set_once(site: Site) {
        let (locks, other) = with_permits(&site, 10).await;
        assert!(!other.semaphore("s").try_set_permits(15).await.unwrap());
        assert_eq!(counts(&locks).await, (10, 0, 10));
    }

    async fn permits_can_be_added_and_taken_away(site: Site) {
        let (locks, other) = with_permits(&site, 10).await;
        locks.semaphore("s").add_permits(5).await.unwrap();
        assert_eq!(counts(&other).await, (15, 0, 15));
        let permit = take(&locks, 15).await;
        locks.semaphore("s").add_permits(-10).await.unwrap();
        assert_eq!(counts(&other).await, (-10, 15, 5));
        assert!(!is_free(&other, 1).await);
        permit.release().await.unwrap();
        assert_eq!(counts(&other).await, (5, 0, 5));
        locks.semaphore("s").add_permits(-10).await.unwrap();
        assert_eq!(counts(&other).await, (-5, 0, -5));
    }

    async fn a_waiter_for_two_permits_enters_when_they_are_added(site: Site) {
        let (locks, other) = with_permits(&site, 1).await;
        let waiter = waiting(&other, 2).await;
        locks.semaphore("s").add_permits(1).await.unwrap();
        assert_eq!(waiter.await.unwrap().ids().len(), 2);
    }

    async fn the_number_of_permits_can_be_set_below_what_is_held(site: Site) {
        let (locks, other) = with_permits(&site, 4).await;
        let permits = [take(&locks, 1).await, take(&other, 2).await];
        other.semaphore("s").set_permits(2).await.unwrap();
        assert_eq!(counts(&locks).await, (-1, 3, 2));
        for permit in permits {
            permit.release().await.unwrap();
        }
        assert_eq!(counts(&locks).await, (2, 0, 2));
        let (_first, waiter) = (take(&locks, 2).await, waiting(&other, 1).await);
        locks.semaphore("s").set_permits(3).await.unwrap();
        drop(waiter.await.unwrap());
    }

    async fn a_waiter_enters_when_a_permit_is_released(site: Site) {
        let (locks, other) = with_permits(&site, 1).await;
        let permit = take(&locks, 1).await;
        assert!(!is_free(&other, 1).await);
        let waiter = waiting(&other, 1).await;
        let released = Instant::now();
        permit.release().await.unwrap();
        waiter.await.unwrap().release().await.unwrap();
        assert!(released.elapsed() < site.at_most(ms(0)), "{:?}", released.elapsed());
        assert!(is_free(&locks, 1).await);
    }

    async fn a_waiter_for_many_enters_after_as_many_releases(site: Site) {
        let (locks, other) = with_permits(&site, 6).await;
        let mut permits = vec![take(&locks, 3).await, take(&locks, 3).await];
        let waiter = waiting(&other, 4).await;
        permits.pop().unwrap().release().await.unwrap();
        tokio::time::sleep(ms(100)).await;
        assert!(!waiter.is_finished());
        permits.pop().unwrap().release().await.unwrap();
        let permit = waiter.await.unwrap();
        assert_eq!(counts(&locks).await, (2, 4, 6));
        permit.release().await.unwrap();
    }

    async fn waiters_for_all_permits_take_turns(site: Site) {
        let (locks, other) = with_permits(&site, 2).await;
        let inside = Arc::default();
        let tasks = [&locks, &other, &locks, &other].map(|locks| visitor(locks.clone(), 2, 5, 1, &inside));
        for task in tasks {
            task.await.unwrap();
        }
        eventually(async || counts(&locks).await == (2, 0, 2), site.at_most(ms(1000))).await;
    }

    async fn a_wait_for_permits_ends_in_time(site: Site) {
        let (locks, other) = with_permits(&site, 5).await;
        let _permit = take(&locks, 4).await;
        for locks in [&locks, &other] {
            let start = Instant::now();
            let error = locks.semaphore("s").permits(4).wait(ms(700)).acquire().await.unwrap_err();
            assert!(matches!(error, LockError::TimedOut { .. }), "{error:?}");
            let took = start.elapsed();
            assert!(took >= ms(700) && took < site.at_most(ms(700)), "{took:?}");
        }
        // Nor for waiters that are not at the head.
        let _first = first_poll(locks.semaphore("s").permits(5).wait_forever().acquire()).await;
        let start = Instant::now();
        let error = locks.semaphore("s").wait(ms(300)).acquire().await.unwrap_err();
        assert!(matches!(error, LockError::TimedOut { .. }), "{error:?}");
        assert!(start.elapsed() < site.at_most(ms(300)), "{:?}", start.elapsed());
    }

    async fn released_permits_can_be_taken_again(site: Site) {
        let (locks, other) = with_permits(&site, 2).await;
        for locks in [&locks, &other, &locks] {
            let permit = take(locks, 2).await;
            assert_eq!(counts(locks).await, (0, 2, 2));
            permit.release().await.unwrap();
            assert_eq!(counts(locks).await, (2, 0, 2));
        }
    }

    async fn every_permit_has_an_id_of_its_own(site: Site) {
        let (locks, other) = with_permits(&site, 20).await;
        let permits = [take(&locks, 7).await, take(&other, 7).await, take(&locks, 1).await];
        let ids: HashSet<String> = permits.iter().flat_map(SemaphorePermit::ids).map(ToString::to_string).collect();
        assert_eq!(ids.len(), 15);
        assert!(ids.iter().all(|id| id.len() == 32 && id.bytes().all(|b| b.is_ascii_hexdigit())), "{ids:?}");
    }

    async fn dropped_permits_come_back(site: Site) {
        let (locks, other) = with_permits(&site, 3).await;
        drop(take(&locks, 3).await);
        eventually(async || is_free(&other, 3).await, site.at_most(ms(1000))).await;
    }

    async fn tasks_of_one_manager_are_never_more_than_there_are_permits(site: Site) {
        let (locks, _) = with_permits(&site, 3).await;
        let inside = Arc::default();
        let tasks: Vec<_> = (0..20).map(|_| visitor(locks.clone(), 1, 3, 3, &inside)).collect();
        for task in tasks {
            task.await.unwrap();
        }
        eventually(async || counts(&locks).await == (3, 0, 3), site.at_most(ms(1000))).await;
        eventually(async || {
            let left = testing::leftovers(&locks);
            (left.keys, left.timers, left.tasks, left.waiters) == (0, 0, 0, 0)
        }, site.at_most(ms(1000))).await;
    }

    async fn managers_are_never_more_than_there_are_permits(site: Site) {
        let (first, _) = with_permits(&site, 2).await;
        let inside = Arc::default();
        let mut tasks = Vec::new();
        for _ in 0..8 {
            tasks.push(visitor(site.manager().await, 1, 5, 2, &inside));
        }
        for task in tasks {
            task.await.unwrap();
        }
        eventually(async || counts(&first).await == (2, 0, 2), site.at_most(ms(1000))).await;
    }

    async fn one_permit_is_a_mutex_between_managers(site: Site) {
        let (first, _) = with_permits(&site, 1).await;
        let number = Arc::new(AtomicU64::new(0));
        let mut tasks = Vec::new();
        for _ in 0..8 {
            let (locks, number) = (site.manager().await, Arc::clone(&number));
            tasks.push(tokio::spawn(async move {
                let permit = take(&locks, 1).await;
                let seen = number.load(Ordering::SeqCst);
                tokio::time::sleep(ms(1)).await;
                number.store(seen + 1, Ordering::SeqCst);
                permit.release().await.unwrap();
            }));
        }
        for task in tasks {
            task.await.unwrap();
        }
        assert_eq!(number.load(Ordering::SeqCst), 8);
        assert_eq!(counts(&first).await, (1, 0, 1));
    }

    async fn permits_whose_lease_is_over_come_back_and_the_holder_knows(site: Site) {
        let (locks, other) = with_permits(&site, 2).await;
        let lease = ms(500);
        let taken = Instant::now();
        let permit = locks.semaphore("s").permits(2).lease(lease).acquire().await.unwrap();
        assert!(permit.remaining() <= lease);
        assert_eq!(counts(&other).await.1, 2);
        let waiter = waiting(&other, 2).await;
        permit.lost().await;
        assert!(permit.is_lost() && permit.cancellation_token().is_cancelled());
        let next = waiter.await.unwrap();
        let took = taken.elapsed();
        assert!(took > lease * 9 / 10 && took < site.at_most(lease), "{took:?}");
        let error = permit.release().await.unwrap_err();
        assert!(matches!(error, LockError::Lost { .. }), "{error:?}");
        assert_eq!(counts(&locks).await, (0, 2, 2));
        next.release().await.unwrap();
        assert_eq!(counts(&locks).await, (2, 0, 2));
    }

    async fn permits_without_a_lease_of_their_own_are_renewed(site: Site) {
        let (locks, other) = with_permits(&site, 3).await;
        let brief = site.manager_with(|builder| builder.lease(ms(600))).await;
        let permits = [take(&brief, 2).await, take(&brief, 1).await];
        for _ in 0..20 {
            tokio::time::sleep(ms(100)).await;
            assert!(permits.iter().all(|permit| !permit.is_lost()));
            assert_eq!(counts(&other).await, (0, 3, 3));
        }
        drop(permits);
        eventually(async || is_free(&locks, 3).await, site.at_most(ms(1000))).await;
    }

    async fn a_fixed_lease_of_permits_can_be_made_longer(site: Site) {
        let (locks, other) = with_permits(&site, 1).await;
        let permit = locks.semaphore("s").lease(ms(1000)).acquire().await.unwrap();
        permit.extend(LONG).await.unwrap();
        assert!(permit.remaining() > LONG / 2);
        tokio::time::sleep(ms(1100)).await;
        assert!(!is_free(&other, 1).await);
        permit.release().await.unwrap();
    }

    async fn waiters_of_one_manager_are_served_in_order(site: Site) {
        let (locks, _) = with_permits(&site, 1).await;
        let first = take(&locks, 1).await;
        let order = Arc::new(std::sync::Mutex::new(Vec::new()));
        let mut tasks = Vec::new();
        for number in 0..10 {
            let (locks, order) = (locks.clone(), Arc::clone(&order));
            let waiter = first_poll(async move {
                let permit = take(&locks, 1).await;
                order.lock().unwrap().push(number);
                permit.release().await.unwrap();
            });
            tasks.push(tokio::spawn(waiter.await));
        }
        first.release().await.unwrap();
        for task in tasks {
            task.await.unwrap();
        }
        assert_eq!(*order.lock().unwrap(), (0..10).collect::<Vec<_>>());
    }

    async fn who_wants_many_permits_is_not_overtaken_by_others_of_its_manager(site: Site) {
        let (locks, other) = with_permits(&site, 3).await;
        let permit = take(&locks, 2).await;
        let (many, few) = (waiting(&locks, 2).await, waiting(&locks, 1).await);
        assert_eq!(counts(&other).await, (1, 2, 3), "one would be enough for the second");
        permit.release().await.unwrap();
        let (many, few) = (many.await.unwrap(), few.await.unwrap());
        assert_eq!((many.ids().len(), few.ids().len()), (2, 1));
    }

    async fn an_abandoned_wait_takes_no_permit(site: Site) {
        let (locks, other) = with_permits(&site, 1).await;
        for _ in 0..20 {
            poll_once_and_drop(locks.semaphore("s").wait(LONG).acquire()).await;
            take(&other, 1).await.release().await.unwrap();
        }
        // Nor does a waiter, at the head or not.
        let permit = take(&other, 1).await;
        let waiters = [waiting(&locks, 1).await, waiting(&locks, 1).await, waiting(&locks, 1).await];
        for waiter in &waiters {
            waiter.abort();
        }
        permit.release().await.unwrap();
        eventually(async || counts(&other).await == (1, 0, 1), site.at_most(ms(1000))).await;
        take(&locks, 1).await.release().await.unwrap();
    }

    async fn who_is_not_polled_does_not_hold_up_the_line(site: Site) {
        let (locks, _) = with_permits(&site, 2).await;
        let permit = take(&locks, 2).await;
        let idle = first_poll(locks.semaphore("s").wait(LONG).acquire()).await;
        let waiter = waiting(&locks, 1).await;
        permit.release().await.unwrap();
        waiter.await.unwrap().release().await.unwrap();
        // It has been granted a permit, and gets it when it is polled.
        let permit = idle.await.unwrap();
        assert!(!permit.is_lost());
    }

    async fn a_line_has_a_cap(site: Site) {
        let (other, _) = with_permits(&site, 1).await;
        let locks = site.manager_with(|builder| builder.max_waiters_per_key(2)).await;
        let _permit = take(&other, 1).await;
        let _waiters = [waiting(&locks, 1).await, waiting(&locks, 1).await];
        let error = locks.semaphore("s").acquire().await.unwrap_err();
        assert!(matches!(error, LockError::TooManyWaiters { waiting: 2, .. }), "{error:?}");
    }

    async fn a_shutdown_ends_waits_and_gives_permits_back(site: Site) {
        let (locks, other) = with_permits(&site, 2).await;
        let permit = take(&locks, 2).await;
        let waiter = first_poll(locks.semaphore("s").wait(LONG).acquire()).await;
        let second = first_poll(locks.semaphore("s").wait(LONG).acquire()).await;
        let error = locks.shutdown(ms(100)).await.unwrap_err();
        assert!(error.cut_off() == 1 && error.drained(), "{error}");
        assert!(permit.is_lost());
        for waiter in [waiter, second] {
            let error = waiter.await.unwrap_err();
            assert!(matches!(error, LockError::ShutDown { .. }), "{error:?}");
        }
        assert_eq!(counts(&other).await, (2, 0, 2));
        let error = locks.semaphore("s").acquire().await.unwrap_err();
        assert!(matches!(error, LockError::ShutDown { .. }), "{error:?}");
        // The same for a manager that had no semaphores before.
        let unused = site.manager().await;
        unused.shutdown(LONG).await.unwrap();
        let error = unused.semaphore("s").acquire().await.unwrap_err();
        assert!(matches!(error, LockError::ShutDown { .. }), "{error:?}");
    }

    async fn what_can_be_no_request_for_permits_is_refused(site: Site) {
        let (locks, _) = with_permits(&site, 1).await;
        for permits in [0, 1001] {
            let error = locks.semaphore("s").permits(permits).acquire().await.unwrap_err();
            assert!(matches!(error, LockError::Misconfigured { .. }), "{error:?}");
        }
        let error = locks.semaphore("s").lease(ms(1)).acquire().await.unwrap_err();
        assert!(matches!(error, LockError::Misconfigured { .. }), "{error:?}");
        let error = locks.semaphore("a{b").add_permits(1).await.unwrap_err();
        assert!(matches!(error, LockError::InvalidKey(_)), "{error:?}");
        let error = locks.semaphore("big").try_set_permits(u32::MAX).await.unwrap_err();
        assert!(matches!(error, LockError::Misconfigured { .. }), "{error:?}");
    }

    async fn a_semaphores_name_may_have_a_hash_tag(site: Site) {
        let (locks, other) = (site.manager().await, site.manager().await);
        locks.semaphore("{u}:1").try_set_permits(1).await.unwrap();
        let permit = locks.semaphore("{u}:1").acquire().await.unwrap();
        assert!(other.semaphore("{u}:1").try_acquire().await.unwrap().is_none());
        permit.release().await.unwrap();
    }
}
