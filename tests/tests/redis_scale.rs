//! Many waiters on one key, and many keys held by one process: memory, caps, shutdown.
//!
//! The tests run one at a time, since the allocator counts for the whole process.
#![allow(clippy::print_stdout, reason = "figures and seeds, shown with --nocapture and on failure")]

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use lock_runtime::{LockError, LockGuard, LockManager, testing};
use lock_tests::memory::{Counting, live_bytes};
use lock_tests::{RedisServer, eventually, first_poll};
use tokio::time::Instant;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Default maximum numbers of waiters: for a key, and in all.
const WAITERS: usize = 10_000;
const MOST_WAITERS: usize = 100_000;
const HOLDS: usize = 100_000;
/// Time-outs; speed is not tested here.
const LONG: Duration = Duration::from_secs(600);
const SLACK: Duration = Duration::from_secs(60);
const LEASE: Duration = Duration::from_secs(30);

/// Runs a test alone in the process, to the end of its runtime.
fn alone(test: impl Future<Output = ()>) {
    static ONE: Mutex<()> = Mutex::new(());
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    runtime.worker_threads(2).enable_all().build().expect("a runtime").block_on(test);
}

async fn connect(server: &RedisServer) -> LockManager {
    LockManager::connect(&server.url()).await.expect("the server is up")
}

/// Connects a manager whose calls may take as long as a slow machine needs for a hundred thousand
/// at once.
async fn patient(server: &RedisServer) -> LockManager {
    let settings = LockManager::builder().lease(LEASE).call_timeout(SLACK / 2);
    settings.connect(&server.url()).await.expect("the server is up")
}

/// Returns the number of locks on the server.
fn locks_on(server: &RedisServer) -> usize {
    let keys = server.cli(&["KEYS", "lock:*"]);
    keys.lines().filter(|key| !key.is_empty()).count()
}

async fn assert_nothing_is_left(locks: &LockManager, server: &RedisServer) {
    eventually(
        async || {
            let rest = testing::leftovers(locks);
            (rest.keys, rest.timers, rest.tasks) == (0, 0, 0)
        },
        SLACK,
    )
    .await;
    // Another manager may have released some just now.
    eventually(async || locks_on(server) == 0, SLACK).await;
}

/// Returns the bytes for each of `count` things allocated since `before`.
fn each(before: u64, count: usize) -> u64 {
    live_bytes().saturating_sub(before) / count as u64
}

fn assert_too_many(error: &LockError, at: usize, by: &str) {
    match error {
        LockError::TooManyWaiters { waiting, cap, .. } => assert_eq!((*waiting, *cap), (at, by)),
        error => panic!("{error:?}"),
    }
}

#[test]
fn ten_thousand_waiters_are_small_and_one_more_is_refused_and_all_leave_nothing() {
    alone(async {
        let server = RedisServer::start();
        let (holder, locks) = (connect(&server).await, connect(&server).await);
        let guard = holder.mutex("k").acquire().await.unwrap();
        // Allocated once, for any number of waiters.
        let first = first_poll(locks.mutex("k").wait(LONG).acquire()).await;
        eventually(async || server.cli(&["PUBSUB", "CHANNELS", "*"]).contains("{lock:k}"), SLACK).await;

        let before = live_bytes();
        let mut waiters = Vec::with_capacity(WAITERS);
        for _ in 1..WAITERS {
            waiters.push(first_poll(locks.mutex("k").wait(LONG).acquire()).await);
        }
        let bytes = each(before, WAITERS);
        println!("{bytes} bytes a waiter, its future included");
        assert!(bytes <= 4096, "{bytes}");

        // The default cap applies at once, and to tries as well.
        let error = locks.mutex("k").wait(LONG).acquire().await.unwrap_err();
        assert_too_many(&error, WAITERS, "max_waiters_per_key");
        // Other keys are not affected.
        locks.mutex("other").acquire().await.unwrap().release().await.unwrap();

        drop((first, waiters));
        eventually(async || testing::leftovers(&locks).keys == 0, SLACK).await;
        let left = live_bytes().saturating_sub(before);
        println!("{left} bytes when they have left");
        assert!(left < WAITERS as u64 * 8, "{left}");
        guard.release().await.unwrap();
        assert_nothing_is_left(&locks, &server).await;
        assert_nothing_is_left(&holder, &server).await;
    });
}

#[test]
fn a_hundred_thousand_waiters_fill_the_process_and_one_more_is_refused() {
    alone(async {
        let server = RedisServer::start();
        let (holder, locks) = (connect(&server).await, connect(&server).await);
        let keys: Vec<String> = (0..MOST_WAITERS / WAITERS).map(|n| format!("k{n}")).collect();
        let mut guards = Vec::new();
        for key in &keys {
            guards.push(holder.mutex(key).acquire().await.unwrap());
        }
        let mut waiters = Vec::with_capacity(MOST_WAITERS);
        for n in 0..MOST_WAITERS {
            waiters.push(first_poll(locks.mutex(&keys[n % keys.len()]).wait(LONG).acquire()).await);
        }
        let error = locks.mutex("other").wait(LONG).acquire().await.unwrap_err();
        assert_too_many(&error, MOST_WAITERS, "max_waiters");
        // A place that is left is free again.
        waiters.pop();
        locks.mutex("other").acquire().await.unwrap().release().await.unwrap();
        drop(waiters);
        for guard in guards {
            guard.release().await.unwrap();
        }
        assert_nothing_is_left(&locks, &server).await;
    });
}

#[test]
fn ten_thousand_waiters_all_get_the_lock() {
    alone(async {
        let server = RedisServer::start();
        let (holder, locks) = (connect(&server).await, connect(&server).await);
        let guard = holder.mutex("k").acquire().await.unwrap();
        let inside = Arc::new(AtomicUsize::new(0));
        let tasks: Vec<_> = (0..WAITERS)
            .map(|_| {
                let (locks, inside) = (locks.clone(), Arc::clone(&inside));
                tokio::spawn(async move {
                    let guard = locks.mutex("k").wait(LONG).acquire().await.unwrap();
                    assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                    tokio::task::yield_now().await;
                    inside.fetch_sub(1, Ordering::SeqCst);
                    guard.fencing_token()
                })
            })
            .collect();
        guard.release().await.unwrap();
        let start = Instant::now();
        let mut tokens = Vec::with_capacity(WAITERS);
        for task in tasks {
            tokens.push(task.await.unwrap());
        }
        println!("{WAITERS} waiters in {:?}", start.elapsed());
        tokens.sort_unstable();
        tokens.dedup();
        assert_eq!(tokens.len(), WAITERS, "each has a token of its own");
        assert_nothing_is_left(&locks, &server).await;
    });
}

#[test]
fn ten_thousand_waiters_are_told_of_a_shutdown() {
    alone(async {
        let server = RedisServer::start();
        let (holder, locks) = (connect(&server).await, connect(&server).await);
        let guard = holder.mutex("k").acquire().await.unwrap();
        let mut waiters = Vec::with_capacity(WAITERS);
        for _ in 0..WAITERS {
            waiters.push(first_poll(locks.mutex("k").wait(LONG).acquire()).await);
        }
        let start = Instant::now();
        locks.shutdown(SLACK).await.expect("nobody holds anything");
        println!("shutdown with {WAITERS} waiters took {:?}", start.elapsed());
        assert!(start.elapsed() < SLACK);
        for waiter in waiters {
            let error = waiter.await.unwrap_err();
            assert!(matches!(error, LockError::ShutDown { .. }), "{error:?}");
        }
        assert_eq!(locks_on(&server), 1, "the holder's, in another manager");
        guard.release().await.unwrap();
        assert_nothing_is_left(&locks, &server).await;
    });
}

#[test]
fn small_caps_refuse_early_and_let_in_again() {
    alone(async {
        let server = RedisServer::start();
        let holder = connect(&server).await;
        let settings = LockManager::builder().max_waiters_per_key(2).max_waiters(3);
        let locks = settings.connect(&server.url()).await.unwrap();
        let guards = [holder.mutex("a").acquire().await.unwrap(), holder.mutex("b").acquire().await.unwrap()];
        let mut waiters = Vec::new();
        for key in ["a", "a", "b"] {
            waiters.push(first_poll(locks.mutex(key).wait(LONG).acquire()).await);
        }
        // The overall cap comes first; without it, that of the key.
        assert_too_many(&locks.mutex("b").wait(LONG).acquire().await.unwrap_err(), 3, "max_waiters");
        waiters.pop();
        assert_too_many(&locks.mutex("a").wait(LONG).acquire().await.unwrap_err(), 2, "max_waiters_per_key");
        // A call that does not wait needs no place.
        assert!(locks.mutex("a").try_acquire().await.unwrap().is_none());
        // A place that was left is free again.
        waiters.pop();
        waiters.push(first_poll(locks.mutex("a").wait(LONG).acquire()).await);
        drop((waiters, guards));
        assert_nothing_is_left(&locks, &server).await;
        assert_nothing_is_left(&holder, &server).await;
    });
}

/// Holds `count` keys, many of which are requested at once.
async fn hold(locks: &LockManager, count: usize) -> Vec<LockGuard> {
    const AT_ONCE: usize = 500;
    let mut guards = Vec::with_capacity(count);
    let mut next = 0;
    while next < count {
        let end = (next + AT_ONCE).min(count);
        let asked: Vec<_> = (next..end)
            .map(|n| tokio::spawn(locks.mutex(format!("held:{n}")).wait(LONG).acquire()))
            .collect();
        for task in asked {
            guards.push(task.await.unwrap().unwrap());
        }
        next = end;
    }
    guards
}

#[test]
fn a_hundred_thousand_holds_are_small_and_kept_and_a_shutdown_frees_them() {
    alone(async {
        let server = RedisServer::start();
        let locks = patient(&server).await;
        drop(hold(&locks, 1000).await);
        assert_nothing_is_left(&locks, &server).await;

        let before = live_bytes();
        let start = Instant::now();
        let guards = hold(&locks, HOLDS).await;
        println!("{HOLDS} keys were taken in {:?}", start.elapsed());
        let bytes = each(before, HOLDS);
        println!("{bytes} bytes a hold, its guard included");
        assert!(bytes <= 2048, "{bytes}");
        assert_eq!(locks_on(&server), HOLDS);

        // Every one is renewed, and that leaves no memory allocated.
        let taken = Instant::now();
        let renewed = |guard: &LockGuard| guard.remaining() + taken.elapsed() > LEASE;
        eventually(async || guards.iter().all(renewed), LEASE).await;
        assert!(!guards.iter().any(LockGuard::is_lost));
        let bytes = each(before, HOLDS);
        println!("{bytes} bytes when all are renewed");
        assert!(bytes <= 2048, "{bytes}");

        let start = Instant::now();
        let error = locks.shutdown(Duration::ZERO).await.expect_err("they were held");
        println!("shutdown with {HOLDS} holds took {:?}", start.elapsed());
        assert_eq!((error.cut_off(), error.drained()), (HOLDS, true));
        assert_eq!(locks_on(&server), 0);
        assert!(guards.iter().all(LockGuard::is_lost));
        drop(guards);
        assert_nothing_is_left(&locks, &server).await;
        let left = live_bytes().saturating_sub(before);
        println!("{left} bytes when they are gone");
        // The tables keep their largest size.
        assert!(left < HOLDS as u64 * 128, "{left}");
    });
}

#[test]
fn a_shutdown_waits_for_the_releases_of_many_dropped_guards() {
    alone(async {
        let server = RedisServer::start();
        let locks = patient(&server).await;
        let guards = hold(&locks, HOLDS / 10).await;
        drop(guards);
        let start = Instant::now();
        locks.shutdown(SLACK).await.expect("everything was given back");
        println!("shutdown with {} releases took {:?}", HOLDS / 10, start.elapsed());
        assert_nothing_is_left(&locks, &server).await;
    });
}
