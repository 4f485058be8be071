//! Waiters that are not polled, in a `select!` arm or forgotten: they do not keep others from the
//! lock. Paused time.

use std::pin::Pin;
use std::task::{Context, Waker};
use std::time::Duration;

use lock_runtime::testing::memory_manager;
use lock_runtime::{Acquire, LockManager};
use tokio::time::{Instant, sleep, timeout};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

/// Returns a waiter in the queue that is not polled again.
fn unpolled(locks: &LockManager, key: &str) -> Acquire {
    let mut waiter = locks.mutex(key).wait_forever().acquire();
    let polled = Pin::new(&mut waiter).poll(&mut Context::from_waker(Waker::noop()));
    assert!(polled.is_pending());
    waiter
}

#[tokio::test(start_paused = true)]
async fn a_try_finds_a_free_key_free() {
    let locks = memory_manager();
    let held = locks.mutex("k").acquire().await.unwrap();
    let (waiter, _forgotten) = (unpolled(&locks, "k"), unpolled(&locks, "k"));
    assert!(locks.mutex("k").try_acquire().await.unwrap().is_none());
    drop(held);
    sleep(SECOND).await;
    for _ in 0..3 {
        assert!(!locks.status("k").await.unwrap().is_locked());
        assert!(locks.mutex("k").try_acquire().await.unwrap().is_some(), "busy, and nobody has it");
        sleep(MS).await;
    }
    // Once it is polled again, it is a waiter like any other.
    drop(waiter.await.unwrap());
}

/// Polls once outside the manager's runtime, where only the queue is available. Returns whether the
/// future is still pending.
fn pending<F: Future + Send>(future: Pin<&mut F>) -> bool {
    let poll = || future.poll(&mut Context::from_waker(Waker::noop())).is_pending();
    std::thread::scope(|scope| scope.spawn(poll).join().unwrap())
}

#[tokio::test(start_paused = true)]
async fn a_try_does_not_wait_behind_one_that_comes_back() {
    let locks = memory_manager();
    let held = locks.mutex("k").acquire().await.unwrap();
    let stale = unpolled(&locks, "k");
    drop(held);
    sleep(SECOND).await;
    let mut tried = Box::pin(locks.mutex("k").try_acquire());
    assert!(pending(tried.as_mut()));
    let _guard = stale.await.unwrap();
    assert!(timeout(SECOND, tried).await.unwrap().unwrap().is_none());
}

#[tokio::test(start_paused = true)]
async fn a_try_does_not_wait_behind_one_that_was_offered_the_lock_with_it() {
    let locks = memory_manager();
    let held = locks.mutex("k").acquire().await.unwrap();
    let _stale = unpolled(&locks, "k");
    drop(held);
    sleep(SECOND).await;
    let mut tried = Box::pin(locks.mutex("k").try_acquire());
    let mut other = Box::pin(locks.mutex("k").wait_forever().acquire());
    assert!(pending(tried.as_mut()) && pending(other.as_mut()));
    tokio::task::yield_now().await;
    let _guard = other.await.unwrap();
    assert!(timeout(SECOND, tried).await.unwrap().unwrap().is_none());
}

#[tokio::test(start_paused = true)]
async fn a_try_that_is_polled_late_is_answered() {
    let locks = memory_manager();
    let mut tried = Box::pin(locks.mutex("k").try_acquire());
    assert!(pending(tried.as_mut()));
    let _guard = locks.mutex("k").wait_forever().acquire().await.unwrap();
    assert!(timeout(SECOND, tried).await.unwrap().unwrap().is_none());
}

#[tokio::test(start_paused = true)]
async fn many_do_not_delay_one_that_is_polled() {
    for rival in [false, true] {
        let name = format!("memory:unpolled-{rival}");
        let locks = LockManager::connect(&name).await.unwrap();
        let other = LockManager::connect(&name).await.unwrap();
        let held = locks.mutex("k").acquire().await.unwrap();
        let stuck: Vec<_> = (0..5000).map(|_| unpolled(&locks, "k")).collect();
        let waiting = if rival { other } else { locks.clone() };
        let live = tokio::spawn(async move { waiting.mutex("k").wait_forever().acquire().await.map(drop) });
        sleep(MS).await;
        let start = Instant::now();
        drop(held);
        live.await.unwrap().unwrap();
        assert!(start.elapsed() < SECOND, "{:?} behind 5000 (rival: {rival})", start.elapsed());
        drop(stuck);
    }
}

#[tokio::test(start_paused = true)]
async fn the_queue_keeps_its_order_behind_them() {
    let locks = memory_manager();
    let held = locks.mutex("k").acquire().await.unwrap();
    let stuck = [unpolled(&locks, "k"), unpolled(&locks, "k"), unpolled(&locks, "k")];
    let (order, mut entered) = tokio::sync::mpsc::unbounded_channel();
    for number in 0..20 {
        let (locks, order) = (locks.clone(), order.clone());
        tokio::spawn(async move {
            let _guard = locks.mutex("k").wait_forever().acquire().await.unwrap();
            sleep(MS).await;
            order.send(number).unwrap();
        });
        sleep(MS).await;
    }
    drop((held, order));
    let mut seen = Vec::new();
    while let Some(number) = entered.recv().await {
        seen.push(number);
    }
    // Callers that were offered the lock together may enter in any order.
    let (together, later) = seen.split_at(8);
    assert!(together.iter().all(|number| *number < 12), "{seen:?}");
    assert!(later.is_sorted(), "{seen:?}");
    drop(stuck);
}

#[tokio::test(start_paused = true)]
async fn a_call_inside_that_is_polled_late_does_not_enter_a_lost_lock() {
    let locks = memory_manager();
    let outer = locks.mutex("k").lease(100 * MS).acquire().await.unwrap();
    let mut inner = Box::pin(outer.scope(locks.mutex("k").lease(SECOND).acquire()));
    assert!(pending(inner.as_mut()), "a longer lease takes a call");
    sleep(2 * SECOND).await;
    assert!(outer.is_lost());
    let guard = timeout(SECOND, inner).await.unwrap().unwrap();
    assert!(!guard.is_lost() && guard.fencing_token() > outer.fencing_token(), "{guard:?}");
}
