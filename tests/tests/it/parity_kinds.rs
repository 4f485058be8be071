//! The behaviour that Redisson's own tests pin for each of its locks, on every kind: acquiring,
//! releasing, waiting, leases, loss. The mutex also has the files `mutex_…`; here it runs beside
//! the others where that costs nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use lock_runtime::{Kind, LockError, LockManager, LockManagerBuilder};
use lock_tests::kinds::{
    EXCLUSIVE, KINDS, is_free, is_locked, lock, nothing_is_left, rival_of, status, waiters_are,
};
use lock_tests::{eventually, on_every_store, validity};
use tokio::time::{Instant, timeout};

const LONG: Duration = Duration::from_secs(60);
/// Lease that does not expire during these tests.
const ENDLESS: Duration = Duration::from_secs(3600);

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

fn endless(builder: LockManagerBuilder) -> LockManagerBuilder {
    builder.lease(ENDLESS)
}

/// Adds one to a number under the lock, in two steps that others could get between.
async fn count(locks: &LockManager, kind: Kind, key: &str, number: &AtomicU64) {
    let guard = lock(locks, kind, key).wait(LONG * 3).acquire().await.expect("everybody gets a turn");
    let seen = number.load(Ordering::SeqCst);
    tokio::time::sleep(ms(1)).await;
    number.store(seen + 1, Ordering::SeqCst);
    guard.release().await.expect("the lock was held until here");
}

on_every_store! {
    async fn a_lock_of_any_kind_can_be_taken_again(site: Site) {
        let locks = site.manager().await;
        for kind in KINDS {
            let mut last = None;
            for _ in 0..3 {
                let guard = lock(&locks, kind, "again").acquire().await.unwrap();
                assert!(Some(guard.fencing_token()) > last, "{kind:?}: tokens grow");
                last = Some(guard.fencing_token());
                assert!(is_locked(&locks, "again").await);
                guard.release().await.unwrap();
                assert!(!is_locked(&locks, "again").await);
            }
        }
        nothing_is_left(&site, &[&locks], &["again"]).await;
    }

    async fn status_shows_how_a_lock_is_held_and_by_how_many(site: Site) {
        let (locks, other) = (site.manager().await, site.manager().await);
        for kind in KINDS {
            let guard = lock(&locks, kind, "seen").acquire().await.unwrap();
            for manager in [&locks, &other] {
                let seen = status(manager, "seen").await;
                // Without waiters, a fair lock looks like a mutex.
                let expected = if kind == Kind::Fair { Kind::Mutex } else { kind };
                assert!(seen.kind == Some(kind) || seen.kind == Some(expected), "{kind:?}: {seen:?}");
                let counts: Vec<u64> = seen.holders.iter().map(|(_, count)| *count).collect();
                assert_eq!(counts, [1], "{kind:?}");
                assert!(seen.last_token >= Some(guard.fencing_token()), "{kind:?}");
                assert!(!site.tells_the_last_token() || seen.last_token == Some(guard.fencing_token()), "{kind:?}");
                let remaining = seen.remaining.expect("a held lock has a remaining time");
                assert!(remaining > Duration::from_secs(15) && remaining <= Duration::from_secs(30), "{remaining:?}");
                assert!(seen.holders[0].0.as_str().starts_with(locks.id()), "{seen:?}");
            }
            assert!(!is_free(lock(&other, rival_of(kind), "seen")).await);
            guard.release().await.unwrap();
            for manager in [&locks, &other] {
                let seen = status(manager, "seen").await;
                assert_eq!((seen.kind, seen.holders.len(), seen.remaining), (None, 0, None), "{kind:?}");
            }
            assert!(is_free(lock(&other, rival_of(kind), "seen")).await);
        }
    }

    async fn kinds_of_one_key_exclude_each_other(site: Site) {
        let (locks, other) = (site.manager().await, site.manager().await);
        for held in KINDS {
            let guard = lock(&locks, held, "kinds").acquire().await.unwrap();
            for wanted in KINDS {
                let expected = (held, wanted) == (Kind::Read, Kind::Read);
                for manager in [&locks, &other] {
                    assert_eq!(is_free(lock(manager, wanted, "kinds")).await, expected, "{wanted:?} beside {held:?}");
                }
            }
            guard.release().await.unwrap();
        }
        nothing_is_left(&site, &[&locks, &other], &["kinds"]).await;
    }

    /// Every kind waits for every other kind that it excludes, in the holder's process and in
    /// another one.
    async fn a_waiter_of_any_kind_is_woken_by_the_release_of_any_other(site: Site) {
        let (locks, other) = (site.manager_with(endless).await, site.manager_with(endless).await);
        for held in KINDS {
            for wanted in KINDS {
                for manager in [&locks, &other] {
                    if (held, wanted) == (Kind::Read, Kind::Read) {
                        continue;
                    }
                    let guard = lock(&locks, held, "woken").acquire().await.unwrap();
                    let waiter = tokio::spawn(lock(manager, wanted, "woken").wait(LONG).acquire());
                    // Under paused time it has subscribed when time passes; on a server that is
                    // only likely.
                    tokio::time::sleep(ms(20)).await;
                    assert!(!waiter.is_finished(), "{wanted:?} beside {held:?}");
                    let start = Instant::now();
                    guard.release().await.unwrap();
                    let next = waiter.await.unwrap().unwrap();
                    let took = start.elapsed();
                    assert!(took < site.at_most(ms(100)), "{wanted:?} after {held:?}: {took:?}");
                    next.release().await.unwrap();
                }
            }
        }
        nothing_is_left(&site, &[&locks, &other], &["woken"]).await;
    }

    async fn a_wait_for_any_kind_ends_at_its_limit(site: Site) {
        let limit = Duration::from_secs(3);
        let (locks, other) = (site.manager().await, site.manager().await);
        for kind in KINDS {
            let held = lock(&locks, rival_of(kind), "limit").acquire().await.unwrap();
            for waiter in [&locks, &other] {
                let start = Instant::now();
                let error = lock(waiter, kind, "limit").wait(limit).acquire().await.unwrap_err();
                let took = start.elapsed();
                assert!(took >= limit && took < site.at_most(limit), "{kind:?}: {took:?}");
                assert!(matches!(error, LockError::TimedOut { .. }), "{kind:?}: {error:?}");
            }
            held.release().await.unwrap();
            // The places of waiters that gave up are taken back in the background.
            eventually(async || is_free(lock(&locks, kind, "limit")).await, LONG).await;
        }
        nothing_is_left(&site, &[&locks, &other], &["limit"]).await;
    }

    async fn a_lease_that_ends_lets_a_waiter_of_any_kind_in(site: Site) {
        let lease = Duration::from_secs(2);
        let (locks, other) = (site.manager().await, site.manager().await);
        for kind in KINDS {
            let start = Instant::now();
            let guard = lock(&locks, kind, "ends").lease(lease).acquire().await.unwrap();
            let next = lock(&other, rival_of(kind), "ends").wait(LONG).acquire().await.unwrap();
            let took = start.elapsed();
            assert!(took >= validity(lease) && took < site.at_most(lease), "{kind:?}: {took:?}");
            timeout(LONG, guard.lost()).await.expect("the holder hears");
            assert!(guard.is_lost() && guard.remaining().is_zero());
            assert!(next.fencing_token() > guard.fencing_token(), "{kind:?}");
            let error = guard.extend(LONG).await.unwrap_err();
            assert!(matches!(error, LockError::Lost { .. }), "{kind:?}: {error:?}");
            let error = guard.release().await.unwrap_err();
            assert!(matches!(error, LockError::Lost { .. }), "{kind:?}: {error:?}");
            assert!(is_locked(&other, "ends").await, "the next holder is not disturbed");
            assert!(!next.is_lost());
            next.release().await.unwrap();
        }
        nothing_is_left(&site, &[&locks, &other], &["ends"]).await;
    }

    async fn a_former_holder_of_any_kind_can_not_release_the_next_ones_lock(site: Site) {
        let (locks, other) = (site.manager().await, site.manager().await);
        for kind in KINDS {
            let late = lock(&locks, kind, "late").lease(ms(200)).acquire().await.unwrap();
            let next = lock(&other, rival_of(kind), "late").wait(LONG).acquire().await.unwrap();
            drop(late);
            assert!(!is_free(lock(&locks, kind, "late")).await, "{kind:?}");
            tokio::time::sleep(ms(100)).await;
            assert_eq!(status(&other, "late").await.holders.len(), 1, "{kind:?}");
            assert!(!next.is_lost());
            next.release().await.unwrap();
        }
    }

    async fn a_lease_that_ran_out_leaves_the_next_hold_of_the_same_handle_its_full_one(site: Site) {
        let locks = site.manager_with(|builder| builder.lease(ms(900))).await;
        let other = site.manager().await;
        for kind in KINDS {
            let handle = lock(&locks, kind, "handle").wait(LONG);
            let short = handle.clone().lease(ms(300)).acquire().await.unwrap();
            timeout(LONG, short.lost()).await.expect("nobody extends it");
            let guard = handle.acquire().await.unwrap();
            // Renewed from its first third on, whatever lease was there before.
            tokio::time::sleep(ms(900) * 3).await;
            assert!(!guard.is_lost(), "{kind:?}");
            assert!(!is_free(lock(&other, rival_of(kind), "handle")).await, "{kind:?}");
            guard.release().await.unwrap();
        }
    }

    async fn the_watchdog_keeps_locks_of_all_kinds_for_ten_leases(site: Site) {
        let lease = Duration::from_secs(1);
        let (locks, other) = (site.manager_with(|builder| builder.lease(lease)).await, site.manager().await);
        let mut held = Vec::new();
        for (kind, key) in KINDS.into_iter().zip(["a", "b", "c", "d"]) {
            held.push((kind, key, lock(&locks, kind, key).acquire().await.unwrap()));
        }
        let start = Instant::now();
        while start.elapsed() < lease * 10 {
            tokio::time::sleep(lease / 2).await;
            for (kind, key, guard) in &held {
                assert!(!guard.is_lost(), "{kind:?} after {:?}", start.elapsed());
                assert!(!is_free(lock(&other, rival_of(*kind), key)).await, "{kind:?} after {:?}", start.elapsed());
            }
        }
        for (.., guard) in held {
            guard.release().await.unwrap();
        }
        nothing_is_left(&site, &[&locks, &other], &["a", "b", "c", "d"]).await;
    }

    async fn extend_lengthens_a_fixed_lease_of_any_kind(site: Site) {
        let (lease, longer) = (Duration::from_secs(2), Duration::from_secs(6));
        let (locks, other) = (site.manager().await, site.manager().await);
        for kind in KINDS {
            let guard = lock(&locks, kind, "extended").lease(lease).acquire().await.unwrap();
            let start = Instant::now();
            guard.extend(longer).await.unwrap();
            assert!(guard.remaining() > lease, "{kind:?}: {:?}", guard.remaining());
            guard.extend(ms(500)).await.unwrap();
            assert!(guard.remaining() > lease, "{kind:?}: it never shortens");
            let next = lock(&other, rival_of(kind), "extended").wait(LONG).acquire().await.unwrap();
            let took = start.elapsed();
            assert!(took >= validity(longer) && took < site.at_most(longer), "{kind:?}: {took:?}");
            assert!(guard.is_lost());
            next.release().await.unwrap();
        }
    }

    async fn max_hold_ends_a_renewed_lock_of_any_kind(site: Site) {
        let (limit, lease) = (Duration::from_secs(2), ms(600));
        let (locks, other) = (site.manager_with(|builder| builder.lease(lease)).await, site.manager().await);
        for kind in KINDS {
            let start = Instant::now();
            let guard = lock(&locks, kind, "bounded").max_hold(limit).acquire().await.unwrap();
            timeout(LONG, guard.lost()).await.expect("its max_hold is over");
            let took = start.elapsed();
            assert!(took >= limit && took < site.at_most(limit), "{kind:?}: {took:?}");
            // Free within a lease although the guard lives.
            let next = lock(&other, rival_of(kind), "bounded").wait(LONG).acquire().await.unwrap();
            assert!(start.elapsed() < site.at_most(limit + lease), "{kind:?}: {:?}", start.elapsed());
            next.release().await.unwrap();
            drop(guard);
        }
        nothing_is_left(&site, &[&locks, &other], &["bounded"]).await;
    }

    async fn min_hold_keeps_the_key_taken_whatever_its_kind(site: Site) {
        let least = Duration::from_secs(1);
        let (locks, other) = (site.manager().await, site.manager().await);
        for kind in KINDS {
            let start = Instant::now();
            let guard = lock(&locks, kind, "periodic").min_hold(least).acquire().await.unwrap();
            guard.release().await.unwrap();
            for manager in [&locks, &other] {
                let free = is_free(lock(manager, rival_of(kind), "periodic")).await;
                assert!(!free || start.elapsed() >= least, "{kind:?}: still taken");
            }
            let next = lock(&other, rival_of(kind), "periodic").wait(LONG).acquire().await.unwrap();
            let took = start.elapsed();
            assert!(took >= least && took < site.at_most(least), "{kind:?}: {took:?}");
            next.release().await.unwrap();
        }
        nothing_is_left(&site, &[&locks, &other], &["periodic"]).await;
    }

    async fn force_release_frees_a_lock_of_any_kind_and_wakes_who_waits(site: Site) {
        let (locks, other) = (site.manager_with(endless).await, site.manager_with(endless).await);
        for kind in KINDS {
            let guard = lock(&locks, kind, "forced").acquire().await.unwrap();
            let waiter = tokio::spawn(lock(&other, rival_of(kind), "forced").wait(LONG).acquire());
            waiters_are(&locks, "forced", 1).await;
            let start = Instant::now();
            assert!(locks.force_release("forced").await.unwrap(), "{kind:?}");
            // The holder in this process learns of it at once.
            timeout(LONG, guard.lost()).await.expect("it was taken away");
            let next = waiter.await.unwrap().unwrap();
            assert!(start.elapsed() < site.at_most(ms(100)), "{kind:?}: {:?}", start.elapsed());
            assert!(next.fencing_token() > guard.fencing_token(), "{kind:?}: the counter survives");
            let error = guard.release().await.unwrap_err();
            assert!(matches!(error, LockError::Lost { .. }), "{kind:?}: {error:?}");
            next.release().await.unwrap();
            // On a quorum, most of the servers answer a release; the last one may hear of it later.
            eventually(async || !locks.force_release("forced").await.unwrap(), LONG).await;
        }
        nothing_is_left(&site, &[&locks, &other], &["forced"]).await;
    }

    /// The holder learns of it at its next renewal, although its own process had no part in it.
    async fn a_holder_of_any_kind_hears_that_its_lock_was_taken_away(site: Site) {
        let lease = ms(900);
        let (locks, other) = (site.manager_with(|builder| builder.lease(lease)).await, site.manager().await);
        for kind in KINDS {
            let start = Instant::now();
            let outcome = lock(&locks, kind, "taken")
                .with(async |held| {
                    assert!(other.force_release("taken").await.unwrap());
                    held.lost().await;
                    std::future::pending::<()>().await;
                })
                .await;
            let error = outcome.expect_err("the body was cancelled");
            assert!(matches!(error, LockError::Lost { .. }) && error.body_started(), "{kind:?}: {error:?}");
            assert!(start.elapsed() < site.at_most(lease), "{kind:?}: {:?}", start.elapsed());
        }
        nothing_is_left(&site, &[&locks, &other], &["taken"]).await;
    }

    async fn every_task_of_one_manager_gets_a_lock_of_any_kind(site: Site) {
        let locks = site.manager().await;
        for kind in EXCLUSIVE {
            let number = Arc::new(AtomicU64::new(0));
            let tasks: Vec<_> = (0..15)
                .map(|_| {
                    let (locks, number) = (locks.clone(), number.clone());
                    tokio::spawn(async move { count(&locks, kind, "jobs", &number).await })
                })
                .collect();
            for task in tasks {
                task.await.unwrap();
            }
            assert_eq!(number.load(Ordering::SeqCst), 15, "{kind:?}");
        }
        nothing_is_left(&site, &[&locks], &["jobs"]).await;
    }

    async fn sixteen_managers_count_exactly_under_any_kind(site: Site) {
        let mut managers = Vec::new();
        for _ in 0..16 {
            managers.push(site.manager().await);
        }
        for kind in [Kind::Fair, Kind::Write] {
            let number = Arc::new(AtomicU64::new(0));
            let mut tasks = Vec::new();
            for locks in managers.clone() {
                let number = number.clone();
                tasks.push(tokio::spawn(async move {
                    for _ in 0..25 {
                        count(&locks, kind, "counted", &number).await;
                    }
                }));
            }
            for task in tasks {
                task.await.unwrap();
            }
            assert_eq!(number.load(Ordering::SeqCst), 16 * 25, "{kind:?}");
        }
    }

    async fn a_hundred_managers_count_exactly_under_a_fair_lock(site: Site) {
        let number = Arc::new(AtomicU64::new(0));
        let mut tasks = Vec::new();
        for _ in 0..100 {
            let (locks, number) = (site.manager().await, number.clone());
            tasks.push(tokio::spawn(async move { count(&locks, Kind::Fair, "counted", &number).await }));
        }
        for task in tasks {
            task.await.unwrap();
        }
        assert_eq!(number.load(Ordering::SeqCst), 100);
    }

    /// Tokens grow in the order of the holders, of whatever kind and manager.
    async fn tokens_grow_under_contention_of_all_kinds(site: Site) {
        let last = Arc::new(AtomicU64::new(0));
        let mut tasks = Vec::new();
        for manager in 0..4 {
            let locks = site.manager().await;
            for kind in EXCLUSIVE {
                let (locks, last) = (locks.clone(), last.clone());
                tasks.push(tokio::spawn(async move {
                    for round in 0..15 {
                        let guard = lock(&locks, kind, "fenced").wait(LONG * 3).acquire().await.unwrap();
                        let token = guard.fencing_token().get();
                        let before = last.swap(token, Ordering::SeqCst);
                        assert!(token > before, "{kind:?} of {manager}, round {round}: {token} after {before}");
                        tokio::task::yield_now().await;
                        assert_eq!(last.load(Ordering::SeqCst), token, "nobody else was inside");
                        guard.release().await.unwrap();
                    }
                }));
            }
        }
        for task in tasks {
            task.await.unwrap();
        }
        assert!(last.load(Ordering::SeqCst) < 1 << 53);
    }
}
