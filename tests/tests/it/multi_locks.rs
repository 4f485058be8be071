//! Locks of several keys: all or nothing, in whatever order they are named, with one wait, one
//! guard and one end.
//!
//! Keys with `{s}` in their names are in one slot of a cluster. Only requests for keys of one slot
//! have places in queues. Others may hold some of their keys for a moment while they wait.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use lock_runtime::{Kind, LockError, LockGuard, LockManagerBuilder, MultiKey};
use lock_tests::kinds::{is_free, is_locked, lock, locked, nothing_is_left, rival_of, status, waiters_are};
use lock_tests::{Site, eventually, first_poll, on_every_store, poll_once_and_drop, validity};
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

/// Returns one key of each kind of lock that the store has.
fn mixed(site: &Site) -> [(Kind, &'static str); 4] {
    let kinds = [(Kind::Fair, "{s}f"), (Kind::Mutex, "{s}m"), (Kind::Read, "{s}r"), (Kind::Write, "{s}w")];
    if site.is_plain() { kinds.map(|(_, key)| (Kind::Mutex, key)) } else { kinds }
}

fn all(site: &Site) -> [MultiKey; 4] {
    mixed(site).map(|(kind, key)| match kind {
        Kind::Fair => MultiKey::fair(key),
        Kind::Read => MultiKey::read(key),
        Kind::Write => MultiKey::write(key),
        _ => MultiKey::mutex(key),
    })
}

on_every_store! {
    async fn all_keys_are_taken_and_all_are_given_back(site: Site) {
        let (locks, other) = (site.manager().await, site.manager().await);
        for _ in 0..3 {
            let guard = locks.multi(["b", "a", "c", "a"]).acquire().await.unwrap();
            assert_eq!(locked(&other, &["a", "b", "c"]).await, [true; 3]);
            let tokens = guard.tokens();
            let keys: Vec<_> = tokens.iter().map(|(key, _)| key.as_str()).collect();
            assert_eq!(keys, ["a", "b", "c"], "in the order of the keys, each once");
            assert_eq!((guard.key().as_str(), guard.fencing_token()), ("a", tokens[0].1));
            for (key, token) in &tokens {
                let last = status(&other, key.as_str()).await.last_token;
                assert!(last >= Some(*token) || site.is_plain(), "{last:?}");
                assert!(!site.tells_the_last_token() || last == Some(*token), "{last:?}");
                assert!(!is_free(other.mutex(key.clone())).await);
            }
            guard.release().await.unwrap();
            assert_eq!(locked(&other, &["a", "b", "c"]).await, [false; 3]);
        }
        nothing_is_left(&site, &[&locks, &other], &["a", "b", "c"]).await;
    }

    async fn the_tokens_of_each_key_grow(site: Site) {
        let (locks, other) = (site.manager().await, site.manager().await);
        let first = locks.multi(["a", "b"]).acquire().await.unwrap();
        let before = first.tokens();
        first.release().await.unwrap();
        let single = other.mutex("b").acquire().await.unwrap();
        assert!(single.fencing_token() > before[1].1);
        let between = single.fencing_token();
        single.release().await.unwrap();
        let second = other.multi(["c", "b", "a"]).acquire().await.unwrap();
        let after = second.tokens();
        assert!(after[0].1 > before[0].1 && after[1].1 > between, "{before:?}, {between:?}, {after:?}");
        assert_eq!(second.view().tokens(), after);
        second.release().await.unwrap();
    }

    async fn nothing_is_taken_when_one_key_is_busy(site: Site) {
        let (locks, other) = (site.manager().await, site.manager().await);
        for busy in ["{s}a", "{s}b", "{s}c"] {
            let held = other.mutex(busy).acquire().await.unwrap();
            for manager in [&locks, &other] {
                assert!(manager.multi(["{s}a", "{s}b", "{s}c"]).try_acquire().await.unwrap().is_none());
                let error = manager.multi(["{s}a", "{s}b", "{s}c"]).wait(ms(100)).acquire().await.unwrap_err();
                assert!(matches!(error, LockError::TimedOut { .. }), "{error:?}");
            }
            for key in ["{s}a", "{s}b", "{s}c"] {
                assert_eq!(is_locked(&locks, key).await, key == busy);
            }
            held.release().await.unwrap();
            assert!(is_free(locks.multi(["{s}a", "{s}b", "{s}c"])).await, "{busy} is free again");
        }
        nothing_is_left(&site, &[&locks, &other], &["{s}a", "{s}b", "{s}c"]).await;
    }

    async fn a_waiter_for_several_keys_gets_them_when_the_last_is_free(site: Site) {
        let (locks, other) = (site.manager_with(endless).await, site.manager_with(endless).await);
        for manager in [&locks, &other] {
            let (a, b) = (locks.mutex("{s}a").acquire().await.unwrap(), other.mutex("{s}b").acquire().await.unwrap());
            let waiter = tokio::spawn(manager.multi(["{s}a", "{s}b", "{s}c"]).wait(LONG).acquire());
            tokio::time::sleep(ms(50)).await;
            a.release().await.unwrap();
            tokio::time::sleep(ms(50)).await;
            assert!(!waiter.is_finished());
            assert!(is_free(locks.mutex("{s}c")).await, "who waits has nothing");
            assert!(is_free(other.mutex("{s}a")).await, "who waits has nothing");
            let start = Instant::now();
            b.release().await.unwrap();
            let guard = waiter.await.unwrap().unwrap();
            assert!(start.elapsed() < site.at_most(ms(100)), "{:?}", start.elapsed());
            guard.release().await.unwrap();
        }
        nothing_is_left(&site, &[&locks, &other], &["{s}a", "{s}b", "{s}c"]).await;
    }

    async fn one_wait_is_for_all_keys_together(site: Site) {
        let limit = Duration::from_secs(1);
        let (locks, other) = (site.manager_with(endless).await, site.manager_with(endless).await);
        let (a, b) = (other.mutex("{s}a").acquire().await.unwrap(), other.mutex("{s}b").acquire().await.unwrap());
        let waiter = locks.multi(["{s}a", "{s}b"]).wait(limit);
        let start = Instant::now();
        let (error, ()) = tokio::join!(waiter.acquire(), async {
            // One of the keys becomes free halfway; that begins no new wait.
            tokio::time::sleep(limit / 2).await;
            a.release().await.unwrap();
        });
        let took = start.elapsed();
        assert!(took >= limit && took < site.at_most(limit), "{took:?}");
        assert!(matches!(error, Err(LockError::TimedOut { .. })), "{error:?}");
        assert_eq!(locked(&locks, &["{s}a", "{s}b"]).await, [false, true]);
        b.release().await.unwrap();
    }

    /// Each task names two of three keys in a different order, again and again.
    async fn opposite_orders_never_deadlock(site: Site) {
        const ROUNDS: u64 = 20;
        let orders = [["a", "b"], ["b", "a"], ["b", "c"], ["c", "b"], ["c", "a"], ["a", "c"]];
        let managers = [site.manager_with(endless).await, site.manager_with(endless).await];
        let sums = Arc::new([AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0)]);
        let mut tasks = Vec::new();
        for (n, order) in orders.into_iter().chain(orders).enumerate() {
            let (locks, sums) = (managers[n / 6].clone(), sums.clone());
            tasks.push(tokio::spawn(async move {
                for _ in 0..ROUNDS {
                    let guard = locks.multi(order).wait(LONG * 3).acquire().await.unwrap();
                    for key in order {
                        let sum = &sums[usize::from(key.as_bytes()[0] - b'a')];
                        let seen = sum.load(Ordering::SeqCst);
                        tokio::task::yield_now().await;
                        sum.store(seen + 1, Ordering::SeqCst);
                    }
                    guard.release().await.unwrap();
                }
            }));
        }
        for task in tasks {
            task.await.unwrap();
        }
        for sum in sums.iter() {
            assert_eq!(sum.load(Ordering::SeqCst), 8 * ROUNDS, "nothing was counted twice");
        }
        let [a, b] = &managers;
        nothing_is_left(&site, &[a, b], &["a", "b", "c"]).await;
    }

    /// Ten callers try once, with leases that nobody releases: one wins, and the others know at
    /// once.
    async fn one_of_ten_tries_gets_all_keys(site: Site) {
        let (locks, other) = (site.manager().await, site.manager().await);
        let tasks: Vec<_> = (0..10)
            .map(|n| {
                let locks = if n % 2 == 0 { locks.clone() } else { other.clone() };
                tokio::spawn(locks.multi(["a", "b", "c"]).lease(Duration::from_secs(10)).try_acquire())
            })
            .collect();
        let mut winners = Vec::new();
        for task in tasks {
            winners.extend(task.await.unwrap().unwrap());
        }
        assert_eq!(winners.len(), 1);
        assert_eq!(locked(&locks, &["a", "b", "c"]).await, [true; 3]);
        drop(winners);
        nothing_is_left(&site, &[&locks, &other], &["a", "b", "c"]).await;
    }

    async fn keys_of_all_kinds_are_taken_together(site: Site) {
        let (locks, other) = (site.manager_with(endless).await, site.manager_with(endless).await);
        let guard = locks.multi(all(&site)).acquire().await.unwrap();
        for (kind, key) in mixed(&site) {
            assert!(!is_free(lock(&other, rival_of(kind), key)).await, "{kind:?}");
        }
        assert!(site.is_plain() || is_free(other.read("{s}r")).await, "readers share");
        let waiter = tokio::spawn(other.multi(all(&site)).wait(LONG).acquire());
        tokio::time::sleep(ms(50)).await;
        assert!(!waiter.is_finished());
        let tokens = guard.tokens();
        guard.release().await.unwrap();
        let next = waiter.await.unwrap().unwrap();
        for (before, after) in tokens.iter().zip(next.tokens()) {
            assert!(after.0 == before.0 && after.1 > before.1, "{before:?} {after:?}");
        }
        next.release().await.unwrap();
        nothing_is_left(&site, &[&locks, &other], &["{s}f", "{s}m", "{s}r", "{s}w"]).await;
    }

    /// For each kind, one of the keys is busy and then free: the lock of several keys is granted as
    /// a single waiter would be.
    async fn a_lock_of_all_kinds_waits_for_any_of_its_keys(site: Site) {
        let (locks, other) = (site.manager_with(endless).await, site.manager_with(endless).await);
        for (kind, key) in mixed(&site) {
            let held = lock(&other, rival_of(kind), key).acquire().await.unwrap();
            assert!(locks.multi(all(&site)).try_acquire().await.unwrap().is_none(), "{kind:?}");
            let waiter = tokio::spawn(locks.multi(all(&site)).wait(LONG).acquire());
            waiters_are(&other, key, 1).await;
            let start = Instant::now();
            held.release().await.unwrap();
            let guard = waiter.await.unwrap().unwrap();
            assert!(start.elapsed() < site.at_most(ms(100)), "{kind:?}: {:?}", start.elapsed());
            guard.release().await.unwrap();
        }
        nothing_is_left(&site, &[&locks, &other], &["{s}f", "{s}m", "{s}r", "{s}w"]).await;
    }

    async fn the_watchdog_keeps_all_keys(site: Site) {
        let lease = Duration::from_secs(1);
        let (locks, other) = (site.manager_with(|builder| builder.lease(lease)).await, site.manager().await);
        let guard = locks.multi(all(&site)).acquire().await.unwrap();
        let start = Instant::now();
        while start.elapsed() < lease * 5 {
            tokio::time::sleep(lease / 2).await;
            assert!(!guard.is_lost(), "after {:?}", start.elapsed());
            assert!(guard.remaining() > Duration::ZERO && guard.remaining() <= lease);
            for (kind, key) in mixed(&site) {
                let free = is_free(lock(&other, rival_of(kind), key)).await;
                assert!(!free, "{kind:?} after {:?}", start.elapsed());
            }
        }
        guard.release().await.unwrap();
        nothing_is_left(&site, &[&locks, &other], &["{s}f", "{s}m", "{s}r", "{s}w"]).await;
    }

    async fn a_fixed_lease_is_that_of_all_keys(site: Site) {
        let (lease, longer) = (Duration::from_secs(1), Duration::from_secs(3));
        let (locks, other) = (site.manager().await, site.manager().await);
        let start = Instant::now();
        let guard = locks.multi(all(&site)).lease(lease).acquire().await.unwrap();
        guard.extend(longer).await.unwrap();
        timeout(LONG, guard.lost()).await.expect("nobody renews it");
        let took = start.elapsed();
        assert!(took >= validity(longer) && took < site.at_most(longer), "{took:?}");
        for (kind, key) in mixed(&site) {
            let next = lock(&other, rival_of(kind), key).wait(LONG).acquire().await.unwrap();
            assert!(start.elapsed() < site.at_most(longer), "{kind:?}: {:?}", start.elapsed());
            next.release().await.unwrap();
        }
        let error = guard.extend(longer).await.unwrap_err();
        assert!(matches!(error, LockError::Lost { .. }), "{error:?}");
        let error = guard.release().await.unwrap_err();
        assert!(matches!(error, LockError::Lost { .. }), "{error:?}");
    }

    /// Whichever key is taken away, the guard is lost as a whole, once, and the body is cancelled.
    async fn the_loss_of_one_key_is_the_loss_of_all(site: Site) {
        let lease = ms(900);
        let (locks, other) = (site.manager_with(|builder| builder.lease(lease)).await, site.manager().await);
        for (kind, key) in mixed(&site) {
            let guard = locks.multi(all(&site)).acquire().await.unwrap();
            let (view, token) = (guard.view(), guard.cancellation_token());
            assert!(view.is_held() && !token.is_cancelled());
            let start = Instant::now();
            assert!(other.force_release(key).await.unwrap());
            timeout(LONG, guard.lost()).await.expect("one of its keys is gone");
            assert!(start.elapsed() < site.at_most(lease), "{kind:?}: {:?}", start.elapsed());
            assert!(guard.is_lost() && view.is_lost() && !view.is_held() && token.is_cancelled());
            assert!(guard.remaining().is_zero());
            // The other keys are released without anybody asking.
            for (kind, key) in mixed(&site) {
                eventually(async || is_free(lock(&other, rival_of(kind), key)).await, site.at_most(lease)).await;
            }
            let error = guard.release().await.unwrap_err();
            assert!(matches!(error, LockError::Lost { .. }), "{kind:?}: {error:?}");
        }
        let outcome = locks
            .multi(all(&site))
            .with(async |_| {
                assert!(other.force_release("{s}m").await.unwrap());
                std::future::pending::<()>().await;
            })
            .await;
        assert!(matches!(outcome, Err(LockError::Lost { .. })), "{outcome:?}");
        nothing_is_left(&site, &[&locks, &other], &["{s}f", "{s}m", "{s}r", "{s}w"]).await;
    }

    async fn an_abandoned_acquire_of_several_keys_leaves_nothing_behind(site: Site) {
        let (locks, other) = (site.manager_with(endless).await, site.manager_with(endless).await);
        for (kind, key) in mixed(&site) {
            for round in 0..6 {
                drop(locks.multi(all(&site)).wait(LONG).acquire());
                poll_once_and_drop(locks.multi(all(&site)).wait(LONG).acquire()).await;
                let held = lock(&other, rival_of(kind), key).wait(LONG).acquire().await.unwrap();
                let waiting = first_poll(locks.multi(all(&site)).wait(LONG).acquire()).await;
                if round % 2 == 0 {
                    waiters_are(&other, key, 1).await;
                }
                if round % 3 == 0 {
                    held.release().await.unwrap();
                    drop(waiting);
                } else {
                    drop(waiting);
                    held.release().await.unwrap();
                }
            }
            for (kind, key) in mixed(&site) {
                lock(&other, rival_of(kind), key).wait(LONG).acquire().await.unwrap().release().await.unwrap();
            }
            nothing_is_left(&site, &[&locks, &other], &["{s}f", "{s}m", "{s}r", "{s}w"]).await;
        }
    }

    /// A fair key of a lock of several has a place in that key's queue, before and behind others.
    async fn a_fair_key_of_several_waits_in_its_queue(site: Site) {
        let (locks, other) = (site.manager_with(endless).await, site.manager_with(endless).await);
        let held = locks.fair("{s}f").acquire().await.unwrap();
        let first = tokio::spawn(other.fair("{s}f").wait(LONG).acquire());
        waiters_are(&locks, "{s}f", 1).await;
        let several = tokio::spawn(locks.multi([MultiKey::fair("{s}f"), MultiKey::mutex("{s}m")]).wait(LONG).acquire());
        waiters_are(&locks, "{s}f", 2).await;
        let last = tokio::spawn(other.fair("{s}f").wait(LONG).acquire());
        waiters_are(&locks, "{s}f", 3).await;
        held.release().await.unwrap();
        let get = async |waiter: tokio::task::JoinHandle<Result<LockGuard, LockError>>| {
            let guard = waiter.await.unwrap().unwrap();
            let (key, token) = guard.tokens()[0].clone();
            assert_eq!(key.as_str(), "{s}f");
            guard.release().await.unwrap();
            token
        };
        let (first, several, last) = tokio::join!(get(first), get(several), get(last));
        // A busy machine can cause a waiter to miss its offer, and so to be passed over; paused
        // time can't.
        let in_order = first < several && several < last;
        assert!(in_order || site.is_remote(), "{first} {several} {last}");
        nothing_is_left(&site, &[&locks, &other], &["{s}f", "{s}m"]).await;
    }

    async fn no_keys_and_one_key_in_two_kinds_are_refused_and_one_key_is_a_lock(site: Site) {
        let locks = site.manager().await;
        let none: [MultiKey; 0] = [];
        let error = locks.multi(none).acquire().await.unwrap_err();
        assert!(matches!(error, LockError::Misconfigured { .. }), "{error:?}");
        let twice = [MultiKey::read("a"), MultiKey::write("a")];
        let error = locks.multi(twice).acquire().await.unwrap_err();
        assert!(matches!(error, LockError::Misconfigured { .. }), "{error:?}");
        let error = locks.multi(["a", ""]).acquire().await.unwrap_err();
        assert!(matches!(error, LockError::InvalidKey(_)), "{error:?}");
        let one = locks.multi([MultiKey::write("a"), MultiKey::write("a")]).acquire().await.unwrap();
        assert_eq!(one.tokens().len(), 1);
        let reader = one.downgrade().await.unwrap();
        assert_eq!(status(&locks, "a").await.kind, Some(Kind::Read));
        reader.release().await.unwrap();
    }

    async fn min_hold_and_max_hold_are_those_of_all_keys(site: Site) {
        let (least, most) = (ms(700), ms(1500));
        let (locks, other) = (site.manager().await, site.manager().await);
        let start = Instant::now();
        locks.multi(all(&site)).min_hold(least).acquire().await.unwrap().release().await.unwrap();
        for (kind, key) in mixed(&site) {
            let free = is_free(lock(&other, rival_of(kind), key)).await;
            assert!(!free || start.elapsed() >= least, "{kind:?}: still taken");
        }
        let guard = other.multi(all(&site)).max_hold(most).wait(LONG).acquire().await.unwrap();
        assert!(start.elapsed() >= least && start.elapsed() < site.at_most(least), "{:?}", start.elapsed());
        timeout(LONG, guard.lost()).await.expect("its max_hold is over");
        let took = start.elapsed();
        assert!(took >= least + most && took < site.at_most(least + most), "{took:?}");
        drop(guard);
        nothing_is_left(&site, &[&locks, &other], &["{s}f", "{s}m", "{s}r", "{s}w"]).await;
    }
}
