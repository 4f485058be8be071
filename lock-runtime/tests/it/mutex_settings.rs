//! Durations at the ends of their ranges, and refused ones. Paused time.

use std::time::Duration;

use lock_core::store::{StoreError, StoreErrorKind};
use lock_runtime::{ConnectError, LockError, LockManager, LockManagerBuilder, TokenRetention};
use tokio::time::sleep;

const SECOND: Duration = Duration::from_secs(1);
const MAX: Duration = Duration::MAX;

async fn connect(builder: LockManagerBuilder) -> LockManager {
    builder.connect("memory:").await.unwrap()
}

fn reason(error: LockError) -> String {
    let LockError::Misconfigured { reason } = error else { panic!("{error:?}") };
    reason.to_string()
}

#[tokio::test(start_paused = true)]
async fn endless_times_are_long_times() {
    let locks = LockManager::builder()
        .default_wait(MAX)
        .call_timeout(MAX)
        .connect_timeout(MAX)
        .fallback_poll(MAX)
        .subscription_linger(MAX)
        .cohort_window(MAX)
        .connect("memory:endless")
        .await
        .unwrap();
    let rival = LockManager::builder().lease(SECOND / 10).connect("memory:endless").await.unwrap();
    let held = rival.mutex("k").acquire().await.unwrap();
    let waiter = tokio::spawn({
        let locks = locks.clone();
        async move { locks.mutex("k").max_hold(MAX).acquire().await }
    });
    // The rival renews its hold many times, and each attempt is answered with "busy".
    sleep(60 * SECOND).await;
    assert!(!waiter.is_finished());
    held.release().await.unwrap();
    let guard = waiter.await.unwrap().unwrap();
    assert!(!guard.is_lost());
    drop(guard);
    locks.shutdown(MAX).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn endless_leases_are_refused() {
    let keep = LockManager::builder().token_retention(TokenRetention::Keep);
    for builder in [LockManager::builder().lease(MAX), keep.clone().lease(MAX)] {
        let error = builder.connect("memory:").await.unwrap_err();
        assert!(matches!(error, ConnectError::Misconfigured { .. }), "{error:?}");
    }
    for locks in [connect(LockManager::builder()).await, connect(keep).await] {
        for request in [locks.mutex("k").lease(MAX), locks.mutex("k").min_hold(MAX)] {
            reason(request.acquire().await.unwrap_err());
        }
        let guard = locks.mutex("k").lease(SECOND).acquire().await.unwrap();
        let error = guard.extend(MAX).await.unwrap_err();
        assert!(matches!(error, LockError::Misconfigured { .. }), "{error:?}");
    }
    let locks = connect(LockManager::builder()).await;
    let error = locks.mutex("k").min_hold(MAX).acquire().await.unwrap_err();
    assert!(reason(error).contains("min_hold"));
}

#[tokio::test(start_paused = true)]
async fn a_min_hold_may_last_for_longer_than_a_counter_is_kept() {
    const HOURS: Duration = Duration::from_secs(25 * 3600);
    let locks = LockManager::connect("memory:min-hold-of-days").await.unwrap();
    let rival = LockManager::connect("memory:min-hold-of-days").await.unwrap();
    let guard = locks.mutex("k").min_hold(HOURS).acquire().await.unwrap();
    let token = guard.fencing_token();
    guard.release().await.unwrap();
    sleep(HOURS - SECOND).await;
    assert!(rival.mutex("k").try_acquire().await.unwrap().is_none());
    // 14 minutes after the hold has ended.
    sleep(SECOND * 14 * 60).await;
    assert_eq!(rival.status("k").await.unwrap().last_token, Some(token));
    assert!(rival.mutex("k").try_acquire().await.unwrap().unwrap().fencing_token() > token);
}

#[tokio::test(start_paused = true)]
async fn a_counter_outlives_its_hold_by_the_retention_of_the_lock_or_of_the_manager() {
    let own = TokenRetention::For(100 * SECOND);
    let default = connect(LockManager::builder()).await;
    let set = connect(LockManager::builder().token_retention(TokenRetention::Keep)).await;
    let minutes = Some(15 * 60 * SECOND);
    for (locks, lock, retention) in [
        (&default, default.mutex("k"), minutes),
        (&default, default.read("k"), minutes),
        (&default, default.fair("k").token_retention(own), Some(100 * SECOND)),
        (&set, set.write("k").token_retention(own), Some(100 * SECOND)),
        (&set, set.mutex("kept"), None),
    ] {
        let guard = lock.acquire().await.unwrap();
        let token = guard.fencing_token();
        // The hold is renewed for much longer than the counter is kept.
        sleep(3600 * SECOND).await;
        guard.release().await.unwrap();
        let key = if retention.is_some() { "k" } else { "kept" };
        sleep(retention.unwrap_or(MAX / 2).min(1000 * 3600 * SECOND)).await;
        assert_eq!(locks.status(key).await.unwrap().last_token, Some(token), "{retention:?}");
        if retention.is_some() {
            sleep(31 * SECOND).await;
            assert_eq!(locks.status(key).await.unwrap().last_token, None, "{retention:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_reader_with_a_retention_of_its_own_does_not_wait_for_others() {
    let locks = connect(LockManager::builder()).await;
    let _reads = locks.read("k").acquire().await.unwrap();
    for retention in [TokenRetention::Keep, TokenRetention::For(SECOND)] {
        let lock = locks.read("k").token_retention(retention).no_wait();
        drop(lock.acquire().await.unwrap());
    }
}

#[tokio::test(start_paused = true)]
async fn a_retention_that_is_too_short_is_refused() {
    let locks = connect(LockManager::builder()).await;
    let lock = locks.mutex("k").token_retention(TokenRetention::For(SECOND / 2));
    assert!(reason(lock.acquire().await.unwrap_err()).contains("second or more"));
}

#[tokio::test(start_paused = true)]
async fn a_default_wait_of_zero_is_one_attempt() {
    let locks = connect(LockManager::builder().default_wait(Duration::ZERO)).await;
    let _held = locks.mutex("k").acquire().await.unwrap();
    let error = locks.mutex("k").acquire().await.unwrap_err();
    assert!(matches!(error, LockError::Busy { .. }), "{error:?}");
}

#[tokio::test(start_paused = true)]
async fn a_prefix_that_makes_no_name_is_refused_at_once() {
    for prefix in ["a{", "}", "line\n"] {
        let error = LockManager::builder().prefix(prefix).connect("memory:").await.unwrap_err();
        let ConnectError::Misconfigured { reason } = error else { panic!("{error:?}") };
        assert!(reason.contains("prefix"), "{reason}");
    }
    for prefix in ["", "shop:", "{tenant}:"] {
        assert!(LockManager::builder().prefix(prefix).connect("memory:").await.is_ok());
    }
}

#[tokio::test(start_paused = true)]
async fn an_address_that_is_none_is_not_repeated() {
    for url in ["secret@127.0.0.1:6379", "redis:secret@127.0.0.1", "secret"] {
        let error = LockManager::connect(url).await.unwrap_err();
        let ConnectError::Misconfigured { reason } = error else { panic!("{error:?}") };
        assert!(reason.contains("redis://") && !reason.contains("secret"), "{reason}");
    }
    let error = LockManager::connect("redis:127.0.0.1:6379").await.unwrap_err();
    assert!(error.to_string().contains("`//` is missing"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn only_what_never_started_is_retryable() {
    let locks = connect(LockManager::builder()).await;
    let guard = locks.mutex("k").lease(SECOND).acquire().await.unwrap();
    let never_started = locks.mutex("k").no_wait().acquire().await.unwrap_err();
    assert!(never_started.is_retryable() && !never_started.body_started());
    let cause = StoreError::new(StoreErrorKind::Unreachable, "no connection");
    let unconfirmed = LockError::Unconfirmed { key: guard.key().clone(), cause };
    assert!(!unconfirmed.is_retryable() && unconfirmed.body_started(), "{unconfirmed}");
    sleep(2 * SECOND).await;
    let lost = guard.release().await.unwrap_err();
    assert!(!lost.is_retryable() && lost.body_started(), "{lost}");
}
