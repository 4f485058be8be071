//! The queue of a fair lock: first come, first served, across managers; and the callers that have
//! no place in it.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use lock_runtime::{FencingToken, LockError, LockGuard, LockManager};
use lock_tests::kinds::{is_free, is_locked, nothing_is_left, status, waiters_are};
use lock_tests::{Site, eventually, first_poll, on_every_store, poll_once_and_drop, validity};
use tokio::task::JoinHandle;
use tokio::time::Instant;

const LONG: Duration = Duration::from_secs(60);
/// Lease that does not expire during these tests.
const ENDLESS: Duration = Duration::from_secs(3600);

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// Returns three managers, which are like three processes to the store.
async fn three(site: &Site) -> [LockManager; 3] {
    let endless = |builder: lock_runtime::LockManagerBuilder| builder.lease(ENDLESS);
    [site.manager_with(endless).await, site.manager_with(endless).await, site.manager_with(endless).await]
}

type Waiter = JoinHandle<Result<LockGuard, LockError>>;

/// Waits for `key` in a new task, and returns when that is in the queue as the `place`th.
async fn queue(locks: &LockManager, key: &'static str, place: u64) -> Waiter {
    let waiter = tokio::spawn(locks.fair(key).wait(LONG).acquire());
    waiters_are(locks, key, place).await;
    waiter
}

/// Repeats an attempt until it succeeds. A busy machine can cause a waiter to miss its offer for 20
/// ms, and so to be passed over. Under paused time this can't happen, so the first attempt must
/// succeed; on a server, one that starts within a minute.
async fn in_one_of_a_few_attempts(site: &Site, attempt: impl AsyncFn() -> bool) {
    let end = Instant::now() + LONG;
    while !attempt().await {
        assert!(site.is_remote() && Instant::now() < end, "in none of its attempts");
        // Whatever keeps the machine busy lasts longer than an attempt.
        tokio::time::sleep(ms(200)).await;
    }
}

/// Returns the places in the queue of nine waiters, in the order in which they got in.
async fn order_of_nine(locks: &[LockManager; 3]) -> Vec<usize> {
    let held = locks[0].fair("order").wait(LONG).acquire().await.unwrap();
    let order = Arc::new(Mutex::new(Vec::new()));
    let mut running = Vec::new();
    // Neighbours in the queue belong to different managers, except for two in the middle.
    for (place, manager) in [0, 1, 2, 1, 1, 0, 2, 0, 1].into_iter().enumerate() {
        let waiter = queue(&locks[manager], "order", place as u64 + 1).await;
        let order = order.clone();
        running.push(tokio::spawn(async move {
            let guard = waiter.await.unwrap().unwrap();
            order.lock().unwrap().push((place, guard.fencing_token()));
            tokio::time::sleep(ms(5)).await;
            guard.release().await.unwrap();
        }));
    }
    let mut last = held.fencing_token();
    held.release().await.unwrap();
    for task in running {
        task.await.unwrap();
    }
    let order = order.lock().unwrap().clone();
    for &(place, token) in &order {
        assert!(token > last, "the token of {place} is larger than the one before");
        last = token;
    }
    order.into_iter().map(|(place, _)| place).collect()
}

/// A guard as its caller got it.
struct Entered {
    guard: LockGuard,
    at: Instant,
    /// Its remaining validity a moment after that.
    remaining: Duration,
}

impl Entered {
    fn now(guard: LockGuard) -> Self {
        let at = Instant::now();
        Self { remaining: guard.remaining(), guard, at }
    }
}

on_every_store! {
    async fn waiters_of_several_managers_get_in_in_the_order_in_which_they_came(site: Site) {
        let locks = three(&site).await;
        in_one_of_a_few_attempts(&site, async || order_of_nine(&locks).await == [0, 1, 2, 3, 4, 5, 6, 7, 8]).await;
        let [a, b, c] = &locks;
        nothing_is_left(&site, &[a, b, c], &["order"]).await;
    }

    async fn a_try_does_not_overtake_those_who_wait(site: Site) {
        let locks = three(&site).await;
        in_one_of_a_few_attempts(&site, async || {
            let held = locks[0].fair("try").wait(LONG).acquire().await.unwrap();
            let waiter = queue(&locks[1], "try", 1).await;
            held.release().await.unwrap();
            let mut overtaken = false;
            // Whether the waiter already has the lock or is about to, its own process, the holder's
            // and a third one come too late.
            for manager in &locks {
                overtaken |= is_free(manager.fair("try")).await;
            }
            let guard = waiter.await.unwrap().unwrap();
            for manager in &locks {
                assert!(!is_free(manager.fair("try")).await);
            }
            guard.release().await.unwrap();
            !overtaken
        })
        .await;
        assert!(is_free(locks[2].fair("try")).await);
    }

    async fn a_try_that_is_refused_has_no_place_in_the_queue(site: Site) {
        let locks = three(&site).await;
        let held = locks[0].fair("refused").acquire().await.unwrap();
        let waiter = queue(&locks[1], "refused", 1).await;
        for manager in &locks {
            assert!(manager.fair("refused").try_acquire().await.unwrap().is_none());
            let error = manager.fair("refused").no_wait().acquire().await.unwrap_err();
            assert!(matches!(error, LockError::Busy { .. }), "{error:?}");
        }
        assert_eq!(locks[2].status("refused").await.unwrap().waiters, 1);
        held.release().await.unwrap();
        waiter.await.unwrap().unwrap().release().await.unwrap();
        let [a, b, c] = &locks;
        nothing_is_left(&site, &[a, b, c], &["refused"]).await;
    }

    /// An expired wait and a dropped future leave no ghost for the others to wait behind.
    async fn who_gives_up_leaves_no_ghost_in_the_queue(site: Site) {
        let locks = three(&site).await;
        let held = locks[0].fair("ghost").acquire().await.unwrap();
        let start = Instant::now();
        let error = locks[1].fair("ghost").wait(ms(200)).acquire().await.unwrap_err();
        assert!(matches!(error, LockError::TimedOut { .. }), "{error:?}");
        assert!(start.elapsed() >= ms(200) && start.elapsed() < site.at_most(ms(200)), "{:?}", start.elapsed());
        poll_once_and_drop(locks[2].fair("ghost").wait(LONG).acquire()).await;
        let waiter = queue_behind_nobody(&locks[2], "ghost").await;
        waiter.abort();
        waiters_are(&locks[0], "ghost", 0).await;
        held.release().await.unwrap();
        let next = locks[1].fair("ghost").try_acquire().await.unwrap().expect("nobody is before it");
        next.release().await.unwrap();
        let [a, b, c] = &locks;
        nothing_is_left(&site, &[a, b, c], &["ghost"]).await;
    }

    async fn who_gives_up_in_the_middle_of_the_queue_lets_those_behind_move_up(site: Site) {
        let locks = three(&site).await;
        in_one_of_a_few_attempts(&site, async || {
            let held = locks[0].fair("gap").wait(LONG).acquire().await.unwrap();
            let first = queue(&locks[1], "gap", 1).await;
            let leaver = queue(&locks[2], "gap", 2).await;
            let last = queue(&locks[0], "gap", 3).await;
            leaver.abort();
            waiters_are(&locks[0], "gap", 2).await;
            held.release().await.unwrap();
            let start = Instant::now();
            let get = async |waiter: Waiter| {
                let guard = waiter.await.unwrap().unwrap();
                let token = guard.fencing_token();
                guard.release().await.unwrap();
                token
            };
            let (first, last) = tokio::join!(get(first), get(last));
            assert!(start.elapsed() < site.at_most(ms(0)), "nobody was waited for: {:?}", start.elapsed());
            first < last
        })
        .await;
    }

    async fn every_waiter_has_one_place_of_its_own(site: Site) {
        let locks = three(&site).await;
        let held = locks[0].fair("places").acquire().await.unwrap();
        let mut waiters = Vec::new();
        for place in 1..=6 {
            waiters.push(queue(&locks[place as usize % 3], "places", place).await);
        }
        // While they wait and are kept alive, their number stays the same.
        let start = Instant::now();
        while start.elapsed() < Duration::from_secs(8) {
            tokio::time::sleep(ms(500)).await;
            let waiting = locks[1].status("places").await.unwrap().waiters;
            assert_eq!(waiting, 6, "after {:?}", start.elapsed());
        }
        held.release().await.unwrap();
        for waiter in waiters {
            waiter.await.unwrap().unwrap().release().await.unwrap();
        }
        assert_eq!(locks[1].status("places").await.unwrap().waiters, 0);
    }

    /// Eight waiters have leases of one second, and none of them releases the lock.
    async fn leases_that_end_let_waiters_in_in_order(site: Site) {
        const LEASE: Duration = Duration::from_secs(1);
        let locks = three(&site).await;
        let start = Instant::now();
        let held = locks[0].fair("leases").lease(LEASE).acquire().await.unwrap();
        let mut waiters = Vec::new();
        for place in 0..7 {
            let manager = locks[place % 3].clone();
            let first = first_poll(manager.fair("leases").lease(LEASE).wait(LONG).acquire()).await;
            waiters.push(tokio::spawn(async move { Entered::now(first.await.unwrap()) }));
            waiters_are(&manager, "leases", place as u64 + 1).await;
        }
        // Kept, so that only the ends of the leases free the lock.
        let mut kept = vec![Entered::now(held)];
        for waiter in waiters {
            kept.push(waiter.await.unwrap());
        }
        let took = start.elapsed();
        assert!(took < site.at_most(LEASE * 7), "{took:?}");
        if !site.is_remote() {
            // On a server, a waiter may hear late of its own grant, and then has less of it.
            assert!(took >= validity(LEASE) * 7, "each has its whole lease: {took:?}");
            assert!(kept.is_sorted_by_key(|entered| entered.guard.fencing_token()), "in the order of the queue");
        }
        kept.sort_by_key(|entered| entered.guard.fencing_token());
        for pair in kept.windows(2) {
            let over = pair[0].at + pair[0].remaining;
            assert!(pair[1].at >= over, "{:?} early", over - pair[1].at);
        }
    }

    async fn a_crowd_of_waiters_of_all_managers_gets_in(site: Site) {
        let locks = three(&site).await;
        let tokens = Arc::new(Mutex::new(Vec::<FencingToken>::new()));
        let tasks: Vec<_> = (0..150)
            .map(|n| {
                let (locks, tokens) = (locks[n % 3].clone(), tokens.clone());
                tokio::spawn(async move {
                    let guard = locks.fair("crowd").wait(LONG * 3).acquire().await.unwrap();
                    tokens.lock().unwrap().push(guard.fencing_token());
                    guard.release().await.unwrap();
                })
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
        let tokens = tokens.lock().unwrap().clone();
        assert_eq!(tokens.len(), 150);
        assert!(tokens.windows(2).all(|pair| pair[0] < pair[1]), "tokens grow in the order of the grants");
        let [a, b, c] = &locks;
        nothing_is_left(&site, &[a, b, c], &["crowd"]).await;
    }

    async fn a_forced_release_lets_the_first_waiter_in(site: Site) {
        let locks = three(&site).await;
        let held = locks[0].fair("forced").acquire().await.unwrap();
        let first = queue(&locks[1], "forced", 1).await;
        let second = queue(&locks[2], "forced", 2).await;
        assert!(locks[2].force_release("forced").await.unwrap());
        let start = Instant::now();
        let get = async |waiter: Waiter| {
            let guard = waiter.await.unwrap().unwrap();
            let token = guard.fencing_token();
            let took = start.elapsed();
            guard.release().await.unwrap();
            (token, took)
        };
        let ((first, took), (second, _)) = tokio::join!(get(first), get(second));
        assert!(took < site.at_most(ms(100)), "{took:?}");
        assert!(first > held.fencing_token() && second > held.fencing_token());
        assert!(first < second || site.is_remote(), "in the order of the queue");
        drop(held);
        let [a, b, c] = &locks;
        nothing_is_left(&site, &[a, b, c], &["forced"]).await;
    }

    /// A fair lock and a mutex of the same key exclude each other, but share nothing else.
    async fn a_fair_lock_and_a_mutex_of_one_key_exclude_each_other(site: Site) {
        let locks = three(&site).await;
        let fair = locks[0].fair("both").acquire().await.unwrap();
        for manager in &locks {
            assert!(manager.mutex("both").try_acquire().await.unwrap().is_none());
        }
        let waiting = first_poll(locks[1].mutex("both").wait(LONG).acquire()).await;
        fair.release().await.unwrap();
        let mutex = waiting.await.unwrap();
        for manager in &locks {
            assert!(manager.fair("both").try_acquire().await.unwrap().is_none());
        }
        let waiting = queue(&locks[2], "both", 1).await;
        mutex.release().await.unwrap();
        waiting.await.unwrap().unwrap().release().await.unwrap();
        assert!(!is_locked(&locks[0], "both").await);
    }

    async fn a_dropped_waiter_that_was_just_granted_the_lock_passes_it_on(site: Site) {
        let locks = three(&site).await;
        for round in 0..10 {
            let held = locks[0].fair("passed on").wait(LONG).acquire().await.unwrap();
            let leaver = first_poll(locks[1].fair("passed on").wait(LONG).acquire()).await;
            waiters_are(&locks[0], "passed on", 1).await;
            let next = queue(&locks[2], "passed on", 2).await;
            let token = Some(held.fencing_token());
            held.release().await.unwrap();
            if round % 2 == 0 {
                // The store has granted it, and the waiter does not know yet.
                eventually(async || status(&locks[0], "passed on").await.last_token > token, LONG).await;
            }
            drop(leaver);
            next.await.unwrap().unwrap().release().await.unwrap();
        }
        let [a, b, c] = &locks;
        nothing_is_left(&site, &[a, b, c], &["passed on"]).await;
    }
}

/// Queues like [`queue`], but first waits until the others have left.
async fn queue_behind_nobody(locks: &LockManager, key: &'static str) -> Waiter {
    waiters_are(locks, key, 0).await;
    queue(locks, key, 1).await
}
