//! Handing a mutex over: what wakes its waiters, when, in which order, and how long they wait in
//! all. For known failures elsewhere, see `docs/book/src/rivals.md`.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lock_runtime::testing::memory_manager;
use lock_runtime::{LockError, LockManager};
use lock_tests::{
    Distance, Layout, RedisServer, Site, eventually, first_poll, on_every_layout, on_every_store, validity,
};
use tokio::time::Instant;

const LONG: Duration = Duration::from_secs(60);

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// Returns two managers on one memory store, like two processes.
async fn rivals() -> (LockManager, LockManager) {
    let site = Site::memory();
    (site.manager().await, site.manager().await)
}

/// Returns Jain's index of `counts`: 1 if they are equal, 1/n if one of n has everything.
fn evenness(counts: &[usize]) -> f64 {
    let exact = |n: usize| f64::from(u32::try_from(n).expect("small"));
    let sum: f64 = counts.iter().map(|count| exact(*count)).sum();
    let squares: f64 = counts.iter().map(|count| exact(*count).powi(2)).sum();
    sum * sum / (squares * exact(counts.len()))
}

/// Runs `tasks` tasks that want one lock again as soon as they have released it, until it was
/// granted `total` times. Returns the number of grants of each.
async fn hot_key(tasks: Vec<LockManager>, total: usize) -> Vec<usize> {
    let granted = Arc::new(AtomicUsize::new(0));
    let gate = tasks[0].mutex("hot").acquire().await.unwrap();
    let mut running = Vec::new();
    for locks in tasks {
        let granted = granted.clone();
        // All of them are in line before the first one is let in.
        let mut next = first_poll(locks.mutex("hot").wait(LONG).acquire()).await;
        running.push(tokio::spawn(async move {
            let mut mine = 0;
            loop {
                let guard = next.await.unwrap();
                if granted.fetch_add(1, Ordering::SeqCst) >= total {
                    return mine;
                }
                mine += 1;
                tokio::task::yield_now().await;
                guard.release().await.unwrap();
                next = Box::pin(locks.mutex("hot").wait(LONG).acquire());
            }
        }));
    }
    gate.release().await.unwrap();
    let mut counts = Vec::new();
    for task in running {
        counts.push(task.await.unwrap());
    }
    counts
}

on_every_store! {
    /// The leases last ten minutes, so only a message or the fallback can wake a waiter. Channels
    /// are left and subscribed again at every turn, when a message can be missed.
    async fn no_hand_off_between_processes_is_missed(site: Site) {
        const ROUNDS: usize = 400;
        let released = Arc::new(Mutex::new(Instant::now()));
        let mut tasks = Vec::new();
        for _ in 0..3 {
            let settings = |b: lock_runtime::LockManagerBuilder| b.lease(LONG * 10).subscription_linger(Duration::ZERO);
            let locks = site.manager_with(settings).await;
            let released = released.clone();
            tasks.push(tokio::spawn(async move {
                let mut longest = Duration::ZERO;
                for _ in 0..ROUNDS {
                    let guard = locks.mutex("handed on").wait(LONG).acquire().await.unwrap();
                    longest = longest.max(released.lock().unwrap().elapsed());
                    tokio::task::yield_now().await;
                    *released.lock().unwrap() = Instant::now();
                    guard.release().await.unwrap();
                }
                longest
            }));
        }
        for task in tasks {
            let longest = task.await.unwrap();
            // Under paused time the first fallback is far away: a waiter that needed it was not
            // woken.
            assert!(longest < site.at_most(ms(100)), "free for {longest:?} while others waited");
        }
    }

    async fn a_task_that_comes_back_at_once_does_not_starve_the_others(site: Site) {
        let locks = site.manager().await;
        let counts = hot_key(vec![locks; 16], 1600).await;
        assert!(evenness(&counts) > 0.9, "{counts:?}");
    }

    async fn a_free_lock_is_found_free_after_a_crowd_has_left(site: Site) {
        let (locks, other) = (site.manager().await, site.manager().await);
        let held = locks.mutex("left").acquire().await.unwrap();
        let mut crowd = Vec::new();
        for manager in [&locks, &other] {
            for _ in 0..50 {
                crowd.push(first_poll(manager.mutex("left").wait(LONG).acquire()).await);
            }
        }
        drop(crowd);
        held.release().await.unwrap();
        // A waiter that left, here or there, was promised nothing.
        for manager in [&other, &locks] {
            let guard = manager.mutex("left").wait(LONG).acquire().await.unwrap();
            guard.release().await.unwrap();
        }
        eventually(async || !other.status("left").await.unwrap().is_locked(), site.at_most(ms(100))).await;
    }
}

/// Timers have a resolution of a millisecond, and polls are tens of them apart: an acquire that
/// takes no time under paused time used neither.
#[tokio::test(start_paused = true)]
async fn a_free_lock_needs_no_timer() {
    let locks = memory_manager();
    let start = Instant::now();
    for _ in 0..100 {
        locks.mutex("free").acquire().await.unwrap().release().await.unwrap();
        drop(locks.mutex("free").try_acquire().await.unwrap().expect("free"));
    }
    assert_eq!(start.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn a_waiter_is_woken_without_a_timer_here_and_in_another_process() {
    let (locks, other) = rivals().await;
    for waiting in [&locks, &other] {
        let held = locks.mutex("woken").acquire().await.unwrap();
        let waiter = tokio::spawn(waiting.mutex("woken").wait(LONG).acquire());
        // By now the fallback has grown to its longest interval, and the hand-off window is over.
        tokio::time::sleep(LONG / 2).await;
        let start = Instant::now();
        held.release().await.unwrap();
        waiter.await.unwrap().unwrap().release().await.unwrap();
        assert_eq!(start.elapsed(), Duration::ZERO);
    }
}

#[tokio::test(start_paused = true)]
async fn a_hundred_waiters_take_no_longer_than_their_bodies() {
    let (locks, other) = rivals().await;
    let start = Instant::now();
    let counts = hot_key(vec![locks.clone(); 100], 300).await;
    assert!(start.elapsed() < ms(50), "{:?} in one process, {counts:?}", start.elapsed());
    let start = Instant::now();
    let mixed: Vec<_> = (0..100).map(|i| if i % 2 == 0 { locks.clone() } else { other.clone() }).collect();
    let counts = hot_key(mixed, 300).await;
    assert!(start.elapsed() < ms(1000), "{:?} in two, {counts:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn short_waits_end_when_they_should() {
    let (locks, other) = rivals().await;
    let _held = locks.mutex("short").acquire().await.unwrap();
    for waiting in [&locks, &other] {
        for limit in [1, 10, 50] {
            let start = Instant::now();
            let error = waiting.mutex("short").wait(ms(limit)).acquire().await.unwrap_err();
            assert!(matches!(error, LockError::TimedOut { .. }), "{error:?}");
            let took = start.elapsed();
            assert!(took >= ms(limit) && took <= ms(limit + 2), "{took:?} instead of {limit} ms");
        }
    }
}

/// First for a holder in its own process, and, when that one has lost the lock, for one in another
/// process.
#[tokio::test(start_paused = true)]
async fn waiting_here_and_then_elsewhere_is_one_wait() {
    let site = Site::memory();
    let (locks, other) = (site.manager_with(|builder| builder.lease(ms(3000))).await, site.manager().await);
    let held = locks.mutex("twice").acquire().await.unwrap();
    let start = Instant::now();
    let waiter = tokio::spawn(locks.mutex("twice").wait(ms(2500)).acquire());
    tokio::time::sleep(ms(100)).await;
    assert!(other.force_release("twice").await.unwrap());
    let taken = other.mutex("twice").try_acquire().await.unwrap().expect("it was freed");
    tokio::time::timeout(LONG, held.lost()).await.expect("a renewal finds the lock gone");
    let lost = start.elapsed();
    assert!(lost > ms(500) && lost < ms(2000), "heard in the middle of the wait: {lost:?}");
    let error = waiter.await.unwrap().unwrap_err();
    assert!(matches!(error, LockError::TimedOut { .. }), "{error:?}");
    assert!(start.elapsed() >= ms(2500) && start.elapsed() < ms(2510), "{:?}", start.elapsed());
    drop(taken);
}

#[tokio::test(start_paused = true)]
async fn a_lock_that_was_waited_for_is_valid_for_all_of_its_lease() {
    let (locks, other) = rivals().await;
    let lease = Duration::from_secs(10);
    for waiting in [&locks, &other] {
        let held = locks.mutex("late").acquire().await.unwrap();
        let waiter = tokio::spawn(waiting.mutex("late").lease(lease).wait(LONG).acquire());
        tokio::time::sleep(lease * 2).await;
        held.release().await.unwrap();
        let guard = waiter.await.unwrap().unwrap();
        assert_eq!(guard.remaining(), validity(lease));
        guard.release().await.unwrap();
    }
}

/// Everything works where a round trip takes longer than many of the fixed delays.
async fn a_server_that_is_far_away_can_be_used(layout: Layout) {
    let server = RedisServer::start();
    let (way, lease) = (ms(40), Duration::from_secs(3));
    let distance = Distance::to(server.addr(), way).await;
    let url = layout.url(&distance.url());
    let connect = async || LockManager::builder().lease(lease).connect(&url).await.unwrap();
    let (locks, other) = (connect().await, connect().await);

    // Validity counts from when the request was sent, not from its answer.
    let held = locks.mutex("far").acquire().await.unwrap();
    assert!(held.remaining() <= validity(lease) - way * 2, "{:?}", held.remaining());
    assert!(other.mutex("far").try_acquire().await.unwrap().is_none());
    let waiters: Vec<_> = (0..6)
        .map(|i| {
            let locks = if i % 2 == 0 { locks.clone() } else { other.clone() };
            tokio::spawn(async move {
                let guard = locks.mutex("far").wait(LONG).acquire().await.unwrap();
                guard.release().await.unwrap();
            })
        })
        .collect();
    tokio::time::sleep(lease + lease / 2).await;
    assert!(!held.is_lost(), "it is renewed");
    assert!(waiters.iter().all(|waiter| !waiter.is_finished()));
    held.release().await.unwrap();
    for waiter in waiters {
        waiter.await.unwrap();
    }
    assert!(locks.mutex("far").no_wait().acquire().await.is_ok());
}

on_every_layout! { async: a_server_that_is_far_away_can_be_used }
