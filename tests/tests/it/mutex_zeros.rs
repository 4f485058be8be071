//! Durations and numbers of zero: each works or is refused with a reason, and none panics or spins.
//! For known failures elsewhere, see `docs/book/src/rivals.md`.

use std::time::Duration;

use lock_runtime::{ConnectError, LockError, LockManager, LockManagerBuilder, TokenRetention};
use lock_tests::{Site, on_every_store};

const ZERO: Duration = Duration::ZERO;
const LONG: Duration = Duration::from_secs(60);

type Setting = (&'static str, fn(LockManagerBuilder) -> LockManagerBuilder);

const WORKING: [Setting; 4] = [
    ("default_wait", |b| b.default_wait(ZERO)),
    ("cohort_window", |b| b.cohort_window(ZERO)),
    ("subscription_linger", |b| b.subscription_linger(ZERO)),
    ("max_pending_releases", |b| b.max_pending_releases(0)),
];

const REFUSED: [Setting; 8] = [
    ("lease", |b| b.lease(ZERO)),
    ("call_timeout", |b| b.call_timeout(ZERO)),
    ("connect_timeout", |b| b.connect_timeout(ZERO)),
    ("fallback_poll", |b| b.fallback_poll(ZERO)),
    ("max_waiters", |b| b.max_waiters(0)),
    ("max_waiters_per_key", |b| b.max_waiters_per_key(0)),
    ("max_fair_waiters_per_key", |b| b.max_fair_waiters_per_key(0)),
    ("token_retention", |b| b.token_retention(TokenRetention::For(ZERO))),
];

/// Runs tasks of two managers that take turns.
async fn contend(site: &Site, setting: fn(LockManagerBuilder) -> LockManagerBuilder) {
    let managers = [site.manager_with(setting).await, site.manager_with(setting).await];
    let tasks: Vec<_> = (0..8)
        .map(|i| {
            let locks: LockManager = managers[i % 2].clone();
            tokio::spawn(async move {
                for _ in 0..10 {
                    let guard = locks.mutex("zero").wait(LONG).acquire().await.unwrap();
                    tokio::task::yield_now().await;
                    guard.release().await.unwrap();
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
}

on_every_store! {
    async fn settings_of_zero_that_mean_something_work(site: Site) {
        for (name, setting) in WORKING {
            let run = tokio::time::timeout(LONG, contend(&site, setting)).await;
            assert!(run.is_ok(), "{name}: too slow for anything but a loop");
        }
    }

    async fn settings_of_zero_that_mean_nothing_are_refused(site: Site) {
        for (name, setting) in REFUSED {
            match setting(LockManager::builder()).connect(site.url()).await {
                Err(ConnectError::Misconfigured { reason, .. }) => assert!(!reason.is_empty()),
                other => panic!("{name}: {other:?}"),
            }
        }
    }

    async fn requests_of_zero_are_one_attempt_or_refused(site: Site) {
        let (locks, other) = (site.manager().await, site.manager().await);
        let guard = locks.mutex("zero").wait(ZERO).min_hold(ZERO).acquire().await.unwrap();
        let error = other.mutex("zero").wait(ZERO).acquire().await.unwrap_err();
        assert!(matches!(error, LockError::Busy { .. }), "{error:?}");
        for request in [locks.mutex("zero").lease(ZERO), locks.mutex("zero").max_hold(ZERO)] {
            let error = request.acquire().await.unwrap_err();
            assert!(matches!(error, LockError::Misconfigured { .. }), "{error:?}");
        }
        guard.release().await.unwrap();
    }
}
