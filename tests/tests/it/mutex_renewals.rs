//! Renewal and validity while the store is slow, silent or refuses. For known failures elsewhere,
//! see `docs/book/src/rivals.md`.

use std::time::Duration;

use lock_runtime::testing::{manager_on, memory_manager, memory_store};
use lock_runtime::{LockError, LockGuard, LockManager};
use lock_tests::probe::{Probe, Renewals};
use lock_tests::{Layout, RedisServer, on_every_layout, on_every_store, validity};
use tokio::time::{Instant, sleep};

const SECOND: Duration = Duration::from_secs(1);
const LONG: Duration = Duration::from_secs(60);
const SLACK: Duration = Duration::from_secs(10);

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// Waits for the loss of a lock, with a time-out.
async fn lost(guard: &LockGuard) {
    tokio::time::timeout(LONG, guard.lost()).await.expect("it is lost by its deadline");
}

on_every_store! {
    async fn a_fixed_lease_that_ran_out_leaves_the_next_hold_its_full_one(site: Site) {
        let lease = 2 * SECOND;
        let (locks, other) = (site.manager_with(|builder| builder.lease(lease)).await, site.manager().await);
        let mutex = locks.mutex("again").wait(LONG);
        let short = mutex.clone().lease(ms(300)).acquire().await.unwrap();
        lost(&short).await;
        let guard = mutex.acquire().await.unwrap();
        if !site.is_remote() {
            assert_eq!(guard.remaining(), validity(lease));
        }
        let start = Instant::now();
        while start.elapsed() < lease * 2 {
            sleep(lease / 8).await;
            assert!(!guard.is_lost(), "after {:?}", start.elapsed());
            assert!(other.mutex("again").try_acquire().await.unwrap().is_none(), "after {:?}", start.elapsed());
        }
        drop(short);
        guard.release().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn with_the_defaults_a_lock_is_kept_as_long_as_its_guard() {
    let locks = memory_manager();
    let guard = locks.mutex("kept").acquire().await.unwrap();
    let start = Instant::now();
    while start.elapsed() < 3600 * SECOND {
        sleep(SECOND).await;
        assert!(!guard.is_lost(), "after {:?}", start.elapsed());
        assert!(guard.remaining() > 15 * SECOND, "{:?} left after {:?}", guard.remaining(), start.elapsed());
        assert!(locks.status("kept").await.unwrap().is_locked(), "after {:?}", start.elapsed());
    }
    guard.release().await.unwrap();
}

/// Both at the grant and at each renewal.
#[tokio::test(start_paused = true)]
async fn validity_counts_from_when_the_store_was_asked() {
    let (lease, way) = (9 * SECOND, ms(200));
    let probe = Probe::new(memory_store());
    let locks = manager_on(LockManager::builder().lease(lease), probe.clone());
    probe.set_way(way);
    let guard = locks.mutex("k").acquire().await.unwrap();
    assert_eq!(guard.remaining(), validity(lease) - way * 2);
    let start = Instant::now();
    let mut most = Duration::ZERO;
    while start.elapsed() < lease * 3 {
        sleep(ms(1)).await;
        most = most.max(guard.remaining());
        assert!(guard.remaining() > lease / 2, "it is renewed");
    }
    // Seen at most a millisecond after the answer.
    assert!(most <= validity(lease) - way * 2 && most > validity(lease) - way * 3, "{most:?}");
    guard.release().await.unwrap();
}

/// A renewal without an answer holds up neither the body nor the next renewal, and a refused one
/// ends nothing.
#[tokio::test(start_paused = true)]
async fn a_body_goes_on_while_its_renewals_fail() {
    for trouble in [Renewals::Hang, Renewals::Fail] {
        let lease = 9 * SECOND;
        let probe = Probe::new(memory_store());
        let locks = manager_on(LockManager::builder().lease(lease), probe.clone());
        let longest = locks
            .mutex("k")
            .with(async |held| {
                let start = Instant::now();
                let mut longest = Duration::ZERO;
                while start.elapsed() < lease * 3 {
                    // The renewals from 2 s to 6 s of each lease are in trouble.
                    let into_lease = start.elapsed().as_secs() % lease.as_secs();
                    probe.set_renewals(if (2..6).contains(&into_lease) { trouble } else { Renewals::Work });
                    let before = Instant::now();
                    sleep(ms(10)).await;
                    longest = longest.max(before.elapsed());
                    assert!(!held.is_lost());
                }
                longest
            })
            .await
            .unwrap_or_else(|error| panic!("{trouble:?}: {error}"));
        assert!(longest <= ms(12), "{trouble:?}: not polled for {longest:?}");
        assert_eq!(probe.releases(), 1, "{trouble:?}: at the end, and never because of a renewal");
        assert!(probe.keeps() >= 9, "{trouble:?}: {} renewals", probe.keeps());
    }
}

/// A failure is no reason to give up a lock that is still valid, here or at the store.
async fn a_failed_extension_releases_nothing(layout: Layout) {
    let mut server = RedisServer::start();
    let locks =
        LockManager::builder().call_timeout(ms(300)).connect(&layout.url(&server.url())).await.unwrap();
    let guard = locks.mutex("k").lease(LONG).acquire().await.unwrap();
    server.stop();
    let error = guard.extend(LONG * 2).await.unwrap_err();
    assert!(matches!(error, LockError::Unconfirmed { .. }), "{error:?}");
    assert!(!guard.is_lost());
    server.cont();
    let other = LockManager::connect(&layout.url(&server.url())).await.unwrap();
    assert!(other.mutex("k").try_acquire().await.unwrap().is_none());
    guard.extend(LONG * 3).await.unwrap();
    assert!(guard.remaining() > LONG * 2, "{:?}", guard.remaining());
    guard.release().await.unwrap();
}

/// Neither earlier, when its first renewal gets no answer, nor later, when the hanging call ends.
async fn a_holder_counts_its_lock_as_lost_at_its_deadline_while_a_renewal_hangs(layout: Layout) {
    let mut server = RedisServer::start();
    let lease = 2 * SECOND;
    let builder = LockManager::builder().lease(lease).call_timeout(LONG);
    let locks = builder.connect(&layout.url(&server.url())).await.unwrap();
    let start = Instant::now();
    let guard = locks.mutex("k").acquire().await.unwrap();
    server.stop();
    lost(&guard).await;
    assert!(guard.is_lost() && guard.remaining() == Duration::ZERO);
    assert!(start.elapsed() >= validity(lease), "{:?}", start.elapsed());
    assert!(start.elapsed() < lease + SLACK, "{:?}", start.elapsed());
    server.cont();
}

async fn a_server_that_falls_silent_is_unavailable_when_the_wait_ends(layout: Layout) {
    let mut server = RedisServer::start();
    let locks =
        LockManager::builder().call_timeout(ms(300)).connect(&layout.url(&server.url())).await.unwrap();
    locks.mutex("k").acquire().await.unwrap().release().await.unwrap();
    server.stop();
    let start = Instant::now();
    let error = locks.mutex("k").wait(SECOND).acquire().await.unwrap_err();
    assert!(matches!(error, LockError::Unavailable { .. }), "{error:?}");
    assert!(start.elapsed() >= SECOND && start.elapsed() < SECOND + SLACK, "{:?}", start.elapsed());
    let start = Instant::now();
    let error = locks.mutex("other").try_acquire().await.unwrap_err();
    assert!(matches!(error, LockError::Unavailable { .. }), "{error:?}");
    assert!(start.elapsed() < SLACK, "{:?}", start.elapsed());
    server.cont();
    // And the abandoned calls are not in the way.
    locks.mutex("k").wait(LONG).acquire().await.unwrap().release().await.unwrap();
}

on_every_layout! {
    async:
    a_failed_extension_releases_nothing,
    a_holder_counts_its_lock_as_lost_at_its_deadline_while_a_renewal_hangs,
    a_server_that_falls_silent_is_unavailable_when_the_wait_ends,
}
