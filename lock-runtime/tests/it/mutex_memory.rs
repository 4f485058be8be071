//! The mutex on the memory store, under paused time.
#![allow(clippy::async_yields_async)]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use lock_runtime::{LockError, LockManager, in_current_scope};
use tokio::time::{Instant, advance, sleep};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

async fn manager() -> LockManager {
    LockManager::connect("memory:").await.unwrap()
}

/// Returns two managers on one store, like two processes.
async fn rivals(name: &str) -> (LockManager, LockManager) {
    let url = format!("memory:{name}");
    (LockManager::connect(&url).await.unwrap(), LockManager::connect(&url).await.unwrap())
}

#[tokio::test(start_paused = true)]
async fn a_free_lock_is_taken_and_given_back() {
    let locks = manager().await;
    let guard = locks.mutex("k").acquire().await.unwrap();
    assert!(!guard.is_lost());
    assert!(guard.remaining() > 29 * SECOND);
    assert!(locks.status("k").await.unwrap().is_locked());
    guard.release().await.unwrap();
    assert!(!locks.status("k").await.unwrap().is_locked());
}

#[tokio::test(start_paused = true)]
async fn a_dropped_lock_is_found_free_by_the_next_try() {
    let locks = manager().await;
    for _ in 0..10 {
        let guard = locks.mutex("k").try_acquire().await.unwrap().expect("free");
        assert!(locks.mutex("k").try_acquire().await.unwrap().is_none());
        drop(guard);
    }
}

#[tokio::test(start_paused = true)]
async fn waiters_enter_in_order_with_growing_tokens() {
    let locks = manager().await;
    let guard = locks.mutex("k").acquire().await.unwrap();
    let order = Arc::new(std::sync::Mutex::new(Vec::new()));
    let mut tasks = Vec::new();
    for i in 0..20 {
        let (locks, order) = (locks.clone(), Arc::clone(&order));
        tasks.push(tokio::spawn(async move {
            let guard = locks.mutex("k").acquire().await.unwrap();
            order.lock().unwrap().push((i, guard.fencing_token()));
            sleep(MS).await;
            guard.release().await.unwrap();
        }));
        tokio::task::yield_now().await;
    }
    sleep(MS).await;
    let first = guard.fencing_token();
    drop(guard);
    for task in tasks {
        task.await.unwrap();
    }
    let order = order.lock().unwrap();
    assert_eq!(order.iter().map(|(i, _)| *i).collect::<Vec<_>>(), (0..20).collect::<Vec<_>>());
    assert!(order[0].1 > first);
    assert!(order.windows(2).all(|pair| pair[0].1 < pair[1].1), "{order:?}");
}

#[tokio::test(start_paused = true)]
async fn two_processes_exclude_each_other_and_both_progress() {
    let (a, b) = rivals("exclude").await;
    let inside = Arc::new(AtomicUsize::new(0));
    let mut tasks = Vec::new();
    for i in 0..16 {
        let locks = if i % 2 == 0 { a.clone() } else { b.clone() };
        let inside = Arc::clone(&inside);
        tasks.push(tokio::spawn(async move {
            for _ in 0..50 {
                let guard = locks.mutex("k").wait(SECOND * 600).acquire().await.unwrap();
                assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                sleep(MS).await;
                inside.fetch_sub(1, Ordering::SeqCst);
                drop(guard);
            }
        }));
    }
    for task in tasks {
        task.await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_wait_ends_in_time() {
    let (a, b) = rivals("wait").await;
    let _guard = a.mutex("k").acquire().await.unwrap();
    for locks in [a, b] {
        let start = Instant::now();
        let error = locks.mutex("k").wait(3 * SECOND).acquire().await.unwrap_err();
        assert!(matches!(error, LockError::TimedOut { .. }), "{error:?}");
        let took = start.elapsed();
        assert!(took >= 3 * SECOND && took < 3 * SECOND + 10 * MS, "{took:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_watchdog_keeps_a_lock_for_ten_leases() {
    let locks = LockManager::builder().lease(SECOND).connect("memory:").await.unwrap();
    let guard = locks.mutex("k").acquire().await.unwrap();
    for _ in 0..100 {
        sleep(SECOND / 10).await;
        assert!(!guard.is_lost());
    }
    guard.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_fixed_lease_ends_by_itself() {
    let (a, b) = rivals("fixed").await;
    let guard = a.mutex("k").lease(SECOND).acquire().await.unwrap();
    let start = Instant::now();
    let next = b.mutex("k").acquire().await.unwrap();
    // The holder gives the key back as soon as its hold is uncertain: one hundredth of the lease
    // and 2 ms before it expires.
    assert!(start.elapsed() >= 988 * MS && start.elapsed() < SECOND + 20 * MS, "{:?}", start.elapsed());
    assert!(guard.is_lost());
    assert!(next.fencing_token() > guard.fencing_token());
    assert!(matches!(guard.release().await, Err(LockError::Lost { .. })));
    assert!(!next.is_lost());
    assert!(b.status("k").await.unwrap().is_locked());
}

#[tokio::test(start_paused = true)]
async fn lost_fires_at_the_deadline() {
    let locks = manager().await;
    let guard = locks.mutex("k").lease(SECOND).acquire().await.unwrap();
    let start = Instant::now();
    guard.lost().await;
    assert!(start.elapsed() <= SECOND);
    assert!(guard.is_lost() && guard.cancellation_token().is_cancelled());
    assert_eq!(guard.remaining(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn extend_lengthens_a_fixed_lease_and_never_shortens_it() {
    let locks = manager().await;
    let guard = locks.mutex("k").lease(SECOND).acquire().await.unwrap();
    guard.extend(20 * SECOND).await.unwrap();
    assert!(guard.remaining() > 19 * SECOND);
    guard.extend(SECOND).await.unwrap();
    assert!(guard.remaining() > 19 * SECOND);
    sleep(15 * SECOND).await;
    assert!(!guard.is_lost());
    sleep(5 * SECOND).await;
    assert!(guard.is_lost());
    assert!(guard.extend(SECOND).await.is_err());
}

#[tokio::test(start_paused = true)]
async fn max_hold_ends_a_renewed_lock() {
    let locks = manager().await;
    let start = Instant::now();
    let result = locks.mutex("k").max_hold(3 * SECOND).with(async |_| sleep(60 * SECOND).await).await;
    assert!(matches!(result, Err(LockError::Lost { .. })), "{result:?}");
    assert!(start.elapsed() < 3 * SECOND + 10 * MS);
    drop(locks.mutex("k").no_wait().acquire().await.expect("released with its body"));
}

#[tokio::test(start_paused = true)]
async fn min_hold_keeps_the_key_taken_after_its_release() {
    let (a, b) = rivals("min_hold").await;
    let start = Instant::now();
    a.mutex("k").min_hold(5 * SECOND).acquire().await.unwrap().release().await.unwrap();
    assert!(start.elapsed() < SECOND);
    assert!(b.mutex("k").try_acquire().await.unwrap().is_none());
    let _next = b.mutex("k").wait(20 * SECOND).acquire().await.unwrap();
    assert!(start.elapsed() >= 5 * SECOND && start.elapsed() < 6 * SECOND, "{:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_call_inside_enters_again_and_siblings_exclude_each_other() {
    let locks = manager().await;
    let inside = AtomicUsize::new(0);
    locks
        .mutex("k")
        .with(async |outer| {
            let sibling = async || {
                locks
                    .mutex("k")
                    .with(async |inner| {
                        assert_eq!(inner.fencing_token(), outer.fencing_token());
                        assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                        sleep(MS).await;
                        inside.fetch_sub(1, Ordering::SeqCst);
                    })
                    .await
                    .unwrap();
            };
            tokio::join!(sibling(), sibling(), sibling());
        })
        .await
        .unwrap();
    assert!(!locks.status("k").await.unwrap().is_locked());
}

#[tokio::test(start_paused = true)]
async fn spawned_tasks_are_strangers_unless_they_carry_the_scope() {
    let locks = manager().await;
    locks
        .mutex("k")
        .with(async |_| {
            let stranger = locks.clone();
            let refused = tokio::spawn(async move { stranger.mutex("k").try_acquire().await.unwrap() });
            assert!(refused.await.unwrap().is_none());
            let child = locks.clone();
            let entered =
                tokio::spawn(in_current_scope(async move { child.mutex("k").try_acquire().await.unwrap() }));
            assert!(entered.await.unwrap().is_some());
        })
        .await
        .unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_child_that_outlives_its_parent_gets_nothing() {
    let locks = manager().await;
    let (go, wait) = tokio::sync::oneshot::channel::<()>();
    let child = locks
        .mutex("k")
        .with(async |_| {
            let locks = locks.clone();
            tokio::spawn(in_current_scope(async move {
                wait.await.unwrap();
                locks.mutex("k").try_acquire().await.unwrap()
            }))
        })
        .await
        .unwrap();
    let other = locks.mutex("k").acquire().await.unwrap();
    go.send(()).unwrap();
    assert!(child.await.unwrap().is_none());
    drop(other);
}

#[tokio::test(start_paused = true)]
async fn a_waiter_that_is_never_polled_does_not_block_the_others() {
    let (a, b) = rivals("parked").await;
    let guard = a.mutex("k").acquire().await.unwrap();
    let mut parked = Box::pin(a.mutex("k").wait_forever().acquire());
    assert!(futures_poll_once(&mut parked).await);
    drop(guard);
    let start = Instant::now();
    let other = a.mutex("k").acquire().await.unwrap();
    assert!(start.elapsed() < 100 * MS, "{:?}", start.elapsed());
    drop(other);
    let other = b.mutex("k").acquire().await.unwrap();
    assert!(start.elapsed() < 200 * MS, "{:?}", start.elapsed());
    drop(other);
    // It has kept its place, and is served when it is polled again.
    drop(parked.await.unwrap());
}

/// Polls once. Returns whether the future is pending.
async fn futures_poll_once<F: Future + Unpin>(future: &mut F) -> bool {
    std::future::poll_fn(|cx| std::task::Poll::Ready(std::pin::Pin::new(&mut *future).poll(cx).is_pending()))
        .await
}

#[tokio::test(start_paused = true)]
async fn force_release_frees_the_key_and_tells_the_holder() {
    let (a, b) = rivals("force").await;
    let guard = a.mutex("k").acquire().await.unwrap();
    assert!(b.force_release("k").await.unwrap());
    assert!(!b.force_release("k").await.unwrap());
    let next = b.mutex("k").no_wait().acquire().await.unwrap();
    assert!(next.fencing_token() > guard.fencing_token());
    tokio::time::timeout(11 * SECOND, guard.lost()).await.expect("told by its next renewal");
    assert!(matches!(guard.release().await, Err(LockError::Lost { .. })));
    assert!(!next.is_lost());
}

#[tokio::test(start_paused = true)]
async fn shutdown_fails_waiters_lets_bodies_finish_and_releases() {
    let locks = manager().await;
    let body = {
        let locks = locks.clone();
        tokio::spawn(async move { locks.mutex("k").with(async |_| sleep(SECOND).await).await })
    };
    tokio::task::yield_now().await;
    let waiter = {
        let locks = locks.clone();
        tokio::spawn(async move { locks.mutex("k").wait_forever().acquire().await })
    };
    sleep(10 * MS).await;
    locks.shutdown(5 * SECOND).await.unwrap();
    body.await.unwrap().unwrap();
    assert!(matches!(waiter.await.unwrap(), Err(LockError::ShutDown { .. })));
    assert!(matches!(locks.mutex("k").acquire().await, Err(LockError::ShutDown { .. })));
}

#[tokio::test(start_paused = true)]
async fn waiter_caps_refuse_at_once() {
    let locks = LockManager::builder().max_waiters_per_key(1).connect("memory:").await.unwrap();
    let _guard = locks.mutex("k").acquire().await.unwrap();
    let mut waiting = Box::pin(locks.mutex("k").acquire());
    assert!(futures_poll_once(&mut waiting).await);
    let error = locks.mutex("k").acquire().await.unwrap_err();
    assert!(matches!(error, LockError::TooManyWaiters { .. }), "{error:?}");
}

#[tokio::test(start_paused = true)]
async fn a_lock_dropped_at_every_poll_leaves_nothing() {
    let locks = manager().await;
    for n in 0..12 {
        let mut acquire = Box::pin(locks.mutex("k").acquire());
        for _ in 0..n {
            if !futures_poll_once(&mut acquire).await {
                break;
            }
            tokio::task::yield_now().await;
        }
        drop(acquire);
        sleep(50 * MS).await;
        assert!(!locks.status("k").await.unwrap().is_locked(), "after {n} polls");
    }
    advance(SECOND).await;
}
