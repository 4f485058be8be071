//! Ownership: guards that have lost their lock, siblings, thieves, and releases that nobody awaits.
//! For known failures elsewhere, see `docs/book/src/rivals.md`.

use std::time::Duration;

use lock_runtime::{LockError, LockGuard, LockManager, OwnerId};
use lock_tests::{eventually, first_poll, on_every_store, poll_once_and_drop};
use tokio::time::Instant;

const LONG: Duration = Duration::from_secs(60);
/// Lease that does not expire during these tests.
const ENDLESS: Duration = Duration::from_secs(3600);

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

async fn owner(locks: &LockManager, key: &str) -> Option<OwnerId> {
    let status = locks.status(key).await.expect("the store answers");
    status.holders.first().map(|(owner, _)| owner.clone())
}

/// Waits for the loss of a lock, with a time-out.
async fn lost(guard: &LockGuard) {
    tokio::time::timeout(LONG, guard.lost()).await.expect("it is lost by its deadline");
}

on_every_store! {
    /// The guard believes in its lock until it hears otherwise from the store; its release is the
    /// first to hear.
    async fn a_release_that_finds_the_lock_gone_says_so(site: Site) {
        let (locks, other) = (site.manager().await, site.manager().await);
        let guard = locks.mutex("gone").acquire().await.unwrap();
        assert!(other.force_release("gone").await.unwrap());
        let error = guard.release().await.unwrap_err();
        assert!(matches!(error, LockError::Lost { .. }), "{error:?}");

        let guard = locks.mutex("gone").acquire().await.unwrap();
        assert!(other.force_release("gone").await.unwrap());
        let next = other.mutex("gone").try_acquire().await.unwrap().expect("it was freed");
        let error = guard.release().await.unwrap_err();
        assert!(matches!(error, LockError::Lost { .. }), "{error:?}");
        assert!(owner(&locks, "gone").await.is_some(), "the next holder is not disturbed");
        next.release().await.unwrap();
    }

    async fn an_extension_that_finds_the_lock_gone_says_so(site: Site) {
        let (locks, other) = (site.manager().await, site.manager().await);
        let guard = locks.mutex("gone").lease(LONG).acquire().await.unwrap();
        assert!(other.force_release("gone").await.unwrap());
        let next = other.mutex("gone").lease(LONG).try_acquire().await.unwrap().expect("it was freed");
        let error = guard.extend(ENDLESS).await.unwrap_err();
        assert!(matches!(error, LockError::Lost { .. }), "{error:?}");
        assert!(guard.is_lost());
        let remaining = other.status("gone").await.unwrap().remaining.expect("still taken");
        assert!(remaining <= LONG, "the next holder's lease is its own: {remaining:?}");
        next.release().await.unwrap();
    }

    async fn a_release_whose_caller_leaves_is_carried_out(site: Site) {
        let settings = |b: lock_runtime::LockManagerBuilder| b.lease(ENDLESS);
        let (locks, other) = (site.manager_with(settings).await, site.manager().await);
        // One release is never polled, and one is dropped while it is in flight.
        drop(locks.mutex("left").acquire().await.unwrap().release());
        other.mutex("left").wait(LONG).acquire().await.unwrap().release().await.unwrap();
        let guard = locks.mutex("left").acquire().await.unwrap();
        poll_once_and_drop(guard.release()).await;
        other.mutex("left").wait(LONG).acquire().await.unwrap().release().await.unwrap();
    }

    async fn a_waiter_that_is_dropped_as_it_is_granted_leaves_no_lock(site: Site) {
        let settings = |b: lock_runtime::LockManagerBuilder| b.lease(ENDLESS);
        let (locks, other) = (site.manager_with(settings).await, site.manager().await);
        for round in 0..20 {
            let held = other.mutex("offered").wait(LONG).acquire().await.unwrap();
            let waiting = first_poll(locks.mutex("offered").wait(LONG).acquire()).await;
            let token = held.fencing_token();
            held.release().await.unwrap();
            if round % 2 == 0 && !site.is_plain() {
                // The lock was granted when the caller leaves, which was never told, and may have
                // been taken back already.
                let granted = async || other.status("offered").await.unwrap().last_token > Some(token);
                eventually(granted, LONG).await;
            }
            drop(waiting);
        }
        other.mutex("offered").wait(LONG).acquire().await.unwrap().release().await.unwrap();
    }

    /// Two guards of one handle are two holds: the rights of the first end with its lease.
    async fn a_stale_guard_touches_nothing_of_its_sibling(site: Site) {
        let (locks, other) = (site.manager().await, site.manager().await);
        let mutex = locks.mutex("siblings").wait(LONG);
        for way in ["extend", "release", "drop"] {
            let stale = mutex.clone().lease(ms(300)).acquire().await.unwrap();
            lost(&stale).await;
            let sibling = mutex.clone().lease(LONG).acquire().await.unwrap();
            let held_by = owner(&other, "siblings").await;
            match way {
                "extend" => {
                    let error = stale.extend(ENDLESS).await.unwrap_err();
                    assert!(matches!(error, LockError::Lost { .. }), "{error:?}");
                    assert!(other.status("siblings").await.unwrap().remaining.unwrap() <= LONG);
                }
                "release" => {
                    let error = stale.release().await.unwrap_err();
                    assert!(matches!(error, LockError::Lost { .. }), "{error:?}");
                }
                _ => drop(stale),
            }
            // Everything sent in the background has arrived before this.
            locks.mutex("another").acquire().await.unwrap().release().await.unwrap();
            assert!(!sibling.is_lost(), "{way}");
            assert_eq!(owner(&other, "siblings").await, held_by, "{way}");
            assert!(other.mutex("siblings").try_acquire().await.unwrap().is_none(), "{way}");
            sibling.release().await.unwrap();
        }
    }

    async fn every_hold_has_an_owner_of_its_own(site: Site) {
        let locks = site.manager().await;
        let mutex = locks.mutex("owned");
        let mut owners = Vec::new();
        for _ in 0..20 {
            let guard = mutex.clone().acquire().await.unwrap();
            owners.push(owner(&locks, "owned").await.expect("it is held"));
            guard.release().await.unwrap();
        }
        let all: std::collections::HashSet<_> = owners.iter().map(ToString::to_string).collect();
        assert_eq!(all.len(), owners.len(), "{owners:?}");
    }

    async fn a_stolen_lock_is_noticed_at_the_next_renewal(site: Site) {
        let lease = Duration::from_secs(6);
        let (locks, thief) = (site.manager_with(|builder| builder.lease(lease)).await, site.manager().await);
        let start = Instant::now();
        let mut stolen = None;
        let outcome = locks
            .mutex("stolen")
            .with(async |_| {
                assert!(thief.force_release("stolen").await.unwrap());
                stolen = Some(thief.mutex("stolen").try_acquire().await.unwrap().expect("it was freed"));
                tokio::time::sleep(LONG).await;
            })
            .await;
        let error = outcome.unwrap_err();
        assert!(matches!(error, LockError::Lost { why: lock_runtime::Loss::TakenAway, .. }), "{error:?}");
        assert!(start.elapsed() < site.at_most(lease / 3), "{:?}", start.elapsed());
        let stolen = stolen.unwrap();
        assert!(!stolen.is_lost());
        stolen.release().await.expect("nobody touched it");
    }

    /// The guard owns the lock, and not a thread or a task.
    async fn a_guard_is_used_and_released_by_any_task(site: Site) {
        let (locks, other) = (site.manager().await, site.manager().await);
        let guard = locks.mutex("moved").lease(LONG).acquire().await.unwrap();
        let token = guard.fencing_token();
        let guard = tokio::spawn(async move {
            guard.extend(ENDLESS).await.unwrap();
            guard
        })
        .await
        .unwrap();
        assert!(other.status("moved").await.unwrap().remaining.unwrap() > LONG);
        let runtime = tokio::runtime::Handle::current();
        let guard = tokio::task::spawn_blocking(move || {
            let _entered = runtime.enter();
            let again = guard.reenter().unwrap();
            assert_eq!(again.fencing_token(), token);
            drop(guard);
            again
        })
        .await
        .unwrap();
        assert!(other.mutex("moved").try_acquire().await.unwrap().is_none());
        tokio::spawn(async move { guard.release().await.unwrap() }).await.unwrap();
        assert!(other.mutex("moved").try_acquire().await.unwrap().is_some());
    }
}
