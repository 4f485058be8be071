//! Callers of every kind that leave: acquires that are dropped at any moment, guards that are
//! dropped, managers that are shut down. They leave no hold, no place in a queue and no intent.

use std::time::Duration;

use lock_runtime::{LockError, LockManagerBuilder};
use lock_tests::kinds::{KINDS, is_free, lock, nothing_is_left, rival_of, status, waiters_are};
use lock_tests::{eventually, first_poll, on_every_store, poll_once_and_drop};
use tokio::time::Instant;

const LONG: Duration = Duration::from_secs(60);
/// Lease that does not expire during these tests.
const ENDLESS: Duration = Duration::from_secs(3600);

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

fn endless(builder: LockManagerBuilder) -> LockManagerBuilder {
    builder.lease(ENDLESS)
}

on_every_store! {
    async fn a_dropped_guard_of_any_kind_frees_the_lock_in_the_background(site: Site) {
        let (locks, other) = (site.manager_with(endless).await, site.manager().await);
        for kind in KINDS {
            drop(lock(&locks, kind, "dropped").acquire().await.unwrap());
            let start = Instant::now();
            let next = lock(&other, rival_of(kind), "dropped").wait(LONG).acquire().await.unwrap();
            assert!(start.elapsed() < site.at_most(ms(500)), "{kind:?}: {:?}", start.elapsed());
            next.release().await.unwrap();
        }
        nothing_is_left(&site, &[&locks, &other], &["dropped"]).await;
    }

    /// Dropped before it was polled, just after its first step, in the queue, and as it was
    /// granted.
    async fn an_abandoned_acquire_of_any_kind_leaves_nothing_behind(site: Site) {
        let (locks, other) = (site.manager_with(endless).await, site.manager_with(endless).await);
        for kind in KINDS {
            for round in 0..12 {
                drop(lock(&locks, kind, "left").wait(LONG).acquire());
                poll_once_and_drop(lock(&locks, kind, "left").wait(LONG).acquire()).await;
                let held = lock(&other, rival_of(kind), "left").wait(LONG).acquire().await.unwrap();
                poll_once_and_drop(lock(&locks, kind, "left").wait(LONG).acquire()).await;
                let waiting = first_poll(lock(&locks, kind, "left").wait(LONG).acquire()).await;
                if round % 3 > 0 {
                    waiters_are(&other, "left", 1).await;
                }
                if round % 3 == 2 {
                    let token = Some(held.fencing_token());
                    held.release().await.unwrap();
                    // The store has granted it, and the waiter does not know yet.
                    eventually(async || status(&other, "left").await.last_token > token, LONG).await;
                    drop(waiting);
                } else {
                    drop(waiting);
                    held.release().await.unwrap();
                }
            }
            lock(&other, rival_of(kind), "left").wait(LONG).acquire().await.unwrap().release().await.unwrap();
            lock(&locks, kind, "left").wait(LONG).acquire().await.unwrap().release().await.unwrap();
            nothing_is_left(&site, &[&locks, &other], &["left"]).await;
        }
    }

    /// An acquire of a busy lock that is aborted at any moment leaves no entry, no intent and no
    /// hold.
    async fn waiters_of_all_kinds_that_are_aborted_at_any_moment_leave_nothing(site: Site) {
        let managers = [site.manager_with(endless).await, site.manager_with(endless).await];
        let mut tasks = Vec::new();
        for n in 0..120_usize {
            let (locks, kind) = (managers[n % 2].clone(), KINDS[n % 3 + 1]);
            tasks.push(tokio::spawn(async move {
                for _ in 0..3 {
                    let guard = lock(&locks, kind, "aborted").wait(LONG * 3).acquire().await.unwrap();
                    tokio::time::sleep(ms(1)).await;
                    drop(guard);
                }
            }));
            if n % 8 == 7 {
                tokio::time::sleep(ms(3)).await;
            }
            if n >= 20 && n % 2 == 0 {
                tasks[n - 20].abort();
            }
        }
        for (n, task) in tasks.into_iter().enumerate() {
            match task.await {
                Ok(()) => {}
                Err(error) => assert!(error.is_cancelled(), "{n}: {error}"),
            }
        }
        let [a, b] = &managers;
        nothing_is_left(&site, &[a, b], &["aborted"]).await;
        for kind in KINDS {
            assert!(is_free(lock(a, kind, "aborted")).await, "{kind:?}");
        }
    }

    async fn a_shutdown_gives_locks_of_all_kinds_back_and_ends_waiters(site: Site) {
        let (locks, other) = (site.manager_with(endless).await, site.manager_with(endless).await);
        let mut held = Vec::new();
        for (kind, key) in KINDS.into_iter().zip(["a", "b", "c", "d"]) {
            held.push(lock(&locks, kind, key).acquire().await.unwrap());
        }
        let theirs = other.write("e").acquire().await.unwrap();
        let mut waiting = Vec::new();
        for kind in KINDS {
            waiting.push(tokio::spawn(lock(&locks, kind, "e").wait(LONG).acquire()));
        }
        eventually(async || lock_runtime::testing::leftovers(&locks).waiters == 4, LONG).await;
        let error = locks.shutdown(ms(200)).await.unwrap_err();
        assert_eq!((error.cut_off(), error.drained()), (4, true));
        for waiter in waiting {
            let error = waiter.await.unwrap().unwrap_err();
            assert!(matches!(error, LockError::ShutDown { .. }), "{error:?}");
        }
        assert!(held.iter().all(lock_runtime::LockGuard::is_lost));
        for (kind, key) in KINDS.into_iter().zip(["a", "b", "c", "d"]) {
            assert!(is_free(lock(&other, rival_of(kind), key)).await, "{kind:?}");
        }
        theirs.release().await.unwrap();
        drop(held);
        for kind in KINDS {
            eventually(async || is_free(lock(&other, kind, "e")).await, LONG).await;
        }
        nothing_is_left(&site, &[&other], &["a", "b", "c", "d", "e"]).await;
    }
}
