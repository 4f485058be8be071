//! The error of a caller that does not get a lock: for how long the key is taken, or which cap is
//! reached. On the memory store, under paused time.
#![allow(clippy::async_yields_async)]

use std::future::Future;
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

use lock_runtime::{Lock, LockError, LockGuard, LockManager};
use tokio::time::advance;

const SECOND: Duration = Duration::from_secs(1);
const LEASE: Duration = Duration::from_secs(30);

type Acquiring = Pin<Box<dyn Future<Output = Result<LockGuard, LockError>> + Send>>;

async fn manager() -> LockManager {
    LockManager::connect("memory:").await.unwrap()
}

/// Returns two managers on one store, like two processes.
async fn rivals(name: &str) -> (LockManager, LockManager) {
    let url = format!("memory:{name}");
    (LockManager::connect(&url).await.unwrap(), LockManager::connect(&url).await.unwrap())
}

/// Returns an acquire that was polled once, and is waiting.
async fn waiting(lock: Lock) -> Acquiring {
    let mut acquire: Acquiring = Box::pin(lock.acquire());
    let pending = std::future::poll_fn(|cx| Poll::Ready(acquire.as_mut().poll(cx).is_pending())).await;
    assert!(pending);
    acquire
}

fn remaining(error: &LockError) -> Option<Duration> {
    let by_runtime = match error {
        LockError::Busy { remaining, .. }
        | LockError::TimedOut { remaining, .. }
        | LockError::TooManyWaiters { remaining, .. } => *remaining,
        error => panic!("{error:?}"),
    };
    let by_lock = match error.clone() {
        LockError::Busy { remaining, .. }
        | LockError::TimedOut { remaining, .. }
        | LockError::TooManyWaiters { remaining, .. } => remaining,
        error => panic!("{error:?}"),
    };
    assert_eq!(by_runtime, by_lock);
    assert!(!error.to_string().contains("remaining"), "{error}");
    by_runtime
}

/// Returns the name of the cap that is reached, and the number of waiters.
fn cap(error: &LockError) -> (&'static str, usize) {
    match error {
        LockError::TooManyWaiters { cap, waiting, .. } => (cap, *waiting),
        error => panic!("{error:?}"),
    }
}

fn about(wanted: Duration, error: &LockError) {
    let found = remaining(error).expect("known");
    assert!(found <= wanted && found + SECOND > wanted, "{found:?} instead of {wanted:?}");
}

#[tokio::test(start_paused = true)]
async fn who_does_not_wait_hears_for_how_long_somebody_else_has_the_key() {
    let (ours, theirs) = rivals("refusals-busy").await;
    let _guard = theirs.mutex("k").lease(10 * SECOND).acquire().await.unwrap();
    for lock in [ours.mutex("k"), ours.fair("k"), ours.read("k"), ours.write("k")] {
        about(10 * SECOND, &lock.no_wait().acquire().await.unwrap_err());
    }
    advance(4 * SECOND).await;
    about(6 * SECOND, &ours.mutex("k").no_wait().acquire().await.unwrap_err());
    about(6 * SECOND, &ours.multi(["j", "k"]).no_wait().acquire().await.unwrap_err());
}

#[tokio::test(start_paused = true)]
async fn who_does_not_wait_hears_for_how_long_this_process_has_the_key() {
    let locks = manager().await;
    let guard = locks.mutex("k").acquire().await.unwrap();
    about(LEASE, &locks.mutex("k").no_wait().acquire().await.unwrap_err());
    drop(guard);
    let _guard = locks.mutex("k").lease(5 * SECOND).acquire().await.unwrap();
    advance(2 * SECOND).await;
    about(3 * SECOND, &locks.mutex("k").no_wait().acquire().await.unwrap_err());
}

#[tokio::test(start_paused = true)]
async fn a_key_that_lingers_is_taken_until_the_end_of_its_min_hold() {
    let locks = manager().await;
    let guard = locks.mutex("k").min_hold(10 * SECOND).acquire().await.unwrap();
    guard.release().await.unwrap();
    about(10 * SECOND, &locks.mutex("k").no_wait().acquire().await.unwrap_err());
}

#[tokio::test(start_paused = true)]
async fn whose_wait_is_over_hears_for_how_long_the_key_is_still_taken() {
    let (ours, theirs) = rivals("refusals-timed-out").await;
    let _guard = theirs.mutex("k").lease(10 * SECOND).acquire().await.unwrap();
    for lock in [ours.mutex("k"), ours.fair("k")] {
        let error = lock.wait(SECOND).acquire().await.unwrap_err();
        assert!(matches!(error, LockError::TimedOut { .. }), "{error:?}");
        assert!(remaining(&error).is_some_and(|left| left > 7 * SECOND), "{error:?}");
    }
    let _guard = ours.mutex("own").acquire().await.unwrap();
    let error = ours.mutex("own").wait(SECOND).acquire().await.unwrap_err();
    assert!(matches!(error, LockError::TimedOut { .. }), "{error:?}");
    assert!(remaining(&error).is_some_and(|left| left > 20 * SECOND && left <= LEASE), "{error:?}");
}

#[tokio::test(start_paused = true)]
async fn one_caller_too_many_hears_for_how_long_the_key_is_taken() {
    let (ours, theirs) = rivals("refusals-full").await;
    let _guard = theirs.fair("k").lease(10 * SECOND).acquire().await.unwrap();
    for lock in [ours.mutex("k"), ours.fair("k")] {
        let waiter = waiting(lock.clone().max_waiters(1)).await;
        advance(Duration::from_millis(100)).await;
        about(10 * SECOND, &lock.max_waiters(1).acquire().await.unwrap_err());
        drop(waiter);
    }
}

#[tokio::test(start_paused = true)]
async fn permits_and_latches_say_nothing_that_the_store_does_not_know() {
    let locks = manager().await;
    let latch = locks.latch("l");
    latch.try_set_count(1).await.unwrap();
    assert_eq!(remaining(&latch.wait(Duration::ZERO).await.unwrap_err()), None);
    assert_eq!(remaining(&latch.wait(SECOND).await.unwrap_err()), None);
    // The number of permits was never set.
    assert_eq!(remaining(&locks.semaphore("s").no_wait().acquire().await.unwrap_err()), None);
    assert_eq!(remaining(&locks.semaphore("s").wait(SECOND).acquire().await.unwrap_err()), None);
}

#[tokio::test(start_paused = true)]
async fn a_lock_has_a_cap_of_its_own() {
    let locks = LockManager::builder().max_waiters_per_key(3).connect("memory:").await.unwrap();
    let _guard = locks.mutex("k").acquire().await.unwrap();
    let mut waiters = vec![waiting(locks.mutex("k").max_waiters(2)).await];
    waiters.push(waiting(locks.mutex("k").max_waiters(2)).await);
    let error = locks.mutex("k").max_waiters(2).acquire().await.unwrap_err();
    assert_eq!(cap(&error), ("max_waiters of this lock", 2));
    assert!(error.to_string().contains("max_waiters of this lock"), "{error}");
    // Other locks have the manager's cap, which also applies to this lock.
    waiters.push(waiting(locks.mutex("k")).await);
    for lock in [locks.mutex("k"), locks.mutex("k").max_waiters(9)] {
        assert_eq!(cap(&lock.acquire().await.unwrap_err()), ("max_waiters_per_key", 3));
    }
    // A waiter that leaves makes room.
    waiters.clear();
    drop(waiting(locks.mutex("k").max_waiters(1)).await);
}

#[tokio::test(start_paused = true)]
async fn the_cap_of_a_lock_counts_those_who_wait_alone() {
    let (ours, theirs) = rivals("refusals-own-lanes").await;
    let guard = theirs.fair("k").acquire().await.unwrap();
    let waiter = waiting(ours.fair("k").max_waiters(1)).await;
    let error = ours.fair("k").max_waiters(1).acquire().await.unwrap_err();
    assert_eq!(cap(&error), ("max_waiters of this lock", 1));
    guard.release().await.unwrap();
    drop(waiter.await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn the_cap_of_all_keys_is_said_to_be_that() {
    let locks = LockManager::builder().max_waiters(1).connect("memory:").await.unwrap();
    let _guard = locks.mutex("k").acquire().await.unwrap();
    let _waiter = waiting(locks.mutex("k")).await;
    let error = locks.mutex("other").max_waiters(5).acquire().await.unwrap_err();
    assert_eq!((cap(&error), remaining(&error)), (("max_waiters", 1), None));
    let error = locks.mutex("k").max_waiters(5).acquire().await.unwrap_err();
    assert_eq!(cap(&error), ("max_waiters", 1));
    about(LEASE, &error);
}

#[tokio::test(start_paused = true)]
async fn who_enters_again_is_not_counted() {
    let locks = manager().await;
    let guard = locks.mutex("k").acquire().await.unwrap();
    let _waiter = waiting(locks.mutex("k")).await;
    let inner = guard.scope(locks.mutex("k").max_waiters(1).acquire()).await.unwrap();
    assert_eq!(inner.fencing_token(), guard.fencing_token());
}

#[tokio::test(start_paused = true)]
async fn a_waiter_cap_of_zero_is_refused() {
    let error = manager().await.mutex("k").max_waiters(0).acquire().await.unwrap_err();
    assert!(matches!(&error, LockError::Misconfigured { .. }) && error.to_string().contains("no_wait"));
}
