//! Waiting for permits in this process: first in, first out, and no waiter harms those that come
//! later.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use lock_runtime::testing::memory_manager;
use lock_runtime::{LockError, LockManager};

const SECOND: Duration = Duration::from_secs(1);

fn poll<F: Future + ?Sized>(future: &mut Pin<Box<F>>) -> Poll<F::Output> {
    future.as_mut().poll(&mut Context::from_waker(Waker::noop()))
}

async fn settle() {
    for _ in 0..200 {
        tokio::task::yield_now().await;
    }
}

/// Its place was in a line that no longer exists; by now, another waiter may have an equal place.
#[tokio::test(start_paused = true)]
async fn one_who_was_served_late_takes_nobody_out_of_the_next_line() {
    let locks = memory_manager();
    let permits = locks.semaphore("s").wait(5 * SECOND);
    permits.try_set_permits(10).await.unwrap();
    let line = || (Box::pin(permits.acquire()), Box::pin(permits.clone().acquire()));
    let (mut first, mut second) = line();
    assert!(poll(&mut first).is_pending() && poll(&mut second).is_pending());
    // Both are served, and the line is empty.
    settle().await;
    let (mut third, mut fourth) = line();
    assert!(poll(&mut third).is_pending() && poll(&mut fourth).is_pending());
    let _second = second.await.unwrap();
    let _fourth = fourth.await.unwrap();
    let _third = third.await.unwrap();
    drop(first);
}

/// The same if the wait is over: a caller that is served then must not leave a line of others.
#[tokio::test(start_paused = true)]
async fn one_whose_wait_is_over_takes_nobody_out_of_the_next_line() {
    let locks = memory_manager();
    let permits = locks.semaphore("s");
    permits.try_set_permits(10).await.unwrap();
    let mut short: Vec<_> = (0..2).map(|_| Box::pin(permits.clone().wait(SECOND).acquire())).collect();
    short.iter_mut().for_each(|acquire| assert!(poll(acquire).is_pending()));
    settle().await;
    let mut next: Vec<_> = (0..2).map(|_| Box::pin(permits.clone().wait(60 * SECOND).acquire())).collect();
    next.iter_mut().for_each(|acquire| assert!(poll(acquire).is_pending()));
    tokio::time::advance(2 * SECOND).await;
    for acquire in short {
        let permit = acquire.await.unwrap();
        assert!(!permit.is_lost());
    }
    for acquire in next {
        drop(acquire.await.unwrap());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn load_refuses_nobody() {
    const PAIRS: usize = 2000;
    let locks = memory_manager();
    let permits = locks.semaphore("s").wait(60 * SECOND);
    permits.try_set_permits(100).await.unwrap();
    let tasks: Vec<_> = (0..4)
        .map(|_| {
            let permits = permits.clone();
            tokio::spawn(async move {
                for _ in 0..PAIRS {
                    permits.acquire().await.unwrap().release().await.unwrap();
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
}

/// A caller that was admitted among `max_waiters` keeps its place until it has the permits.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn one_who_waits_is_not_refused_for_those_who_come_later() {
    const ENOUGH: usize = 20_000;
    let locks = LockManager::builder().max_waiters(3).connect("memory:").await.unwrap();
    let scarce = locks.semaphore("scarce").wait(60 * SECOND);
    let plenty = locks.semaphore("plenty").wait(60 * SECOND);
    scarce.try_set_permits(1).await.unwrap();
    plenty.try_set_permits(100).await.unwrap();
    let (refused, granted) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let late = Arc::new(AtomicBool::new(false));
    let tasks: Vec<_> = (0..6)
        .map(|n| {
            let permits = if n < 3 { scarce.clone() } else { plenty.clone() };
            let (refused, granted, late) = (Arc::clone(&refused), Arc::clone(&granted), Arc::clone(&late));
            tokio::spawn(async move {
                while granted.load(Ordering::Relaxed) < ENOUGH && !late.load(Ordering::Relaxed) {
                    let mut acquire = Box::pin(permits.acquire());
                    let acquired = match poll(&mut acquire) {
                        Poll::Ready(Err(LockError::TooManyWaiters { .. })) => {
                            refused.fetch_add(1, Ordering::Relaxed);
                            tokio::task::yield_now().await;
                            continue;
                        }
                        Poll::Ready(at_once) => at_once,
                        Poll::Pending => acquire.await,
                    };
                    match acquired {
                        Ok(permit) => {
                            granted.fetch_add(1, Ordering::Relaxed);
                            permit.release().await.unwrap();
                        }
                        Err(LockError::TooManyWaiters { .. }) => late.store(true, Ordering::Relaxed),
                        Err(error) => panic!("{error}"),
                    }
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    assert!(refused.load(Ordering::Relaxed) > 0, "the cap was never reached");
    assert!(!late.load(Ordering::Relaxed), "refused after it had been let in");
}

#[tokio::test(start_paused = true)]
async fn latch_waits_are_under_the_caps() {
    let locks =
        LockManager::builder().max_waiters(3).max_waiters_per_key(2).connect("memory:").await.unwrap();
    for latch in ["a", "b"] {
        locks.latch(latch).try_set_count(1).await.unwrap();
    }
    let wait = |latch: &str| {
        let latch = locks.latch(latch);
        tokio::spawn(async move { latch.wait_forever().await })
    };
    let full = async |latch: &str| match locks.latch(latch).wait(SECOND).await {
        Err(LockError::TooManyWaiters { waiting, cap, .. }) => (waiting, cap),
        other => panic!("{other:?}"),
    };
    let waiting = [wait("a"), wait("a")];
    tokio::time::sleep(SECOND).await;
    let looked = locks.latch("a").wait(Duration::ZERO).await;
    assert!(matches!(looked, Err(LockError::Busy { .. })), "{looked:?}");
    assert_eq!(full("a").await, (2, "max_waiters_per_key"));
    let third = wait("b");
    tokio::time::sleep(SECOND).await;
    assert_eq!(full("b").await, (3, "max_waiters"));
    third.abort();
    assert!(third.await.is_err());
    assert!(matches!(locks.latch("b").wait(SECOND).await, Err(LockError::TimedOut { .. })));
    locks.latch("a").count_down().await.unwrap();
    for waiter in waiting {
        waiter.await.unwrap().unwrap();
    }
    let left = lock_runtime::testing::leftovers(&locks);
    assert_eq!((left.keys, left.waiters), (0, 0));
}

/// A semaphore is not a lock: inside a lock of the same name, permits are taken as anywhere else.
#[tokio::test(start_paused = true)]
async fn permits_inside_a_lock_of_the_same_name_are_taken_at_the_store() {
    let locks = memory_manager();
    let permits = locks.semaphore("a").wait(SECOND);
    permits.try_set_permits(1).await.unwrap();
    for lock in [locks.mutex("a"), locks.fair("a"), locks.write("a")] {
        let body = lock.with(async |_| {
            let permit = permits.acquire().await.unwrap();
            assert_eq!(permits.available_permits().await.unwrap(), 0);
            assert!(matches!(permits.acquire().await, Err(LockError::TimedOut { .. })));
            permit.release().await.unwrap();
        });
        body.await.unwrap();
    }
}

/// The first in the line wants more permits than there are, and is not polled.
#[tokio::test(start_paused = true)]
async fn one_who_is_not_polled_leaves_the_line_when_its_wait_is_over() {
    let locks = memory_manager();
    let permits = locks.semaphore("s");
    permits.try_set_permits(2).await.unwrap();
    let mut greedy = Box::pin(permits.clone().permits(3).wait(SECOND / 10).acquire());
    assert!(poll(&mut greedy).is_pending());
    settle().await;
    let permit = permits.clone().wait(5 * SECOND).acquire().await.unwrap();
    assert!(matches!(greedy.await, Err(LockError::TimedOut { .. })));
    drop(permit);
}

/// Each waiter is told, and none inside the drop of another.
#[test]
fn the_runtime_may_go_while_many_stand_in_line() {
    const WAITERS: usize = 10_000;
    let ours = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    for _ in 0..3 {
        let theirs =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let locks = theirs.block_on(async { memory_manager() });
        let waiters: Vec<_> = ours.block_on(async {
            let permits = locks.semaphore("s").wait(60 * SECOND);
            let mut waiters: Vec<_> = (0..WAITERS).map(|_| Box::pin(permits.acquire())).collect();
            waiters.iter_mut().for_each(|waiter| assert!(poll(waiter).is_pending()));
            waiters
        });
        drop(theirs);
        ours.block_on(async {
            for waiter in waiters {
                assert!(matches!(waiter.await, Err(LockError::ShutDown { .. })));
            }
        });
    }
}
