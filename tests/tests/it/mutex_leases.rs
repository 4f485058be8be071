//! How long a mutex is held: the watchdog, fixed leases, `extend`, `max_hold`, `min_hold`, and
//! bodies that lose it.

use std::time::Duration;

use lock_runtime::{LockError, LockManagerBuilder, TokenRetention};
use lock_tests::{eventually, on_every_store, validity};
use tokio::time::Instant;

const LONG: Duration = Duration::from_secs(60);

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

on_every_store! {
    async fn the_counter_outlives_a_hold_however_long_it_is_renewed(site: Site) {
        let second = Duration::from_secs(1);
        let short = |builder: LockManagerBuilder| {
            builder.lease(second).token_retention(TokenRetention::For(second))
        };
        let (locks, other) = (site.manager_with(short).await, site.manager_with(short).await);
        for lock in [locks.mutex("renewed"), locks.fair("renewed"), locks.write("renewed")] {
            let guard = lock.acquire().await.unwrap();
            let token = guard.fencing_token();
            tokio::time::sleep(second * 4).await;
            assert!(!guard.is_lost());
            // Read from the counter, since the next token would also be larger by the server's
            // clock.
            assert!(other.status("renewed").await.unwrap().last_token >= Some(token));
            guard.release().await.unwrap();
            assert!(other.mutex("renewed").acquire().await.unwrap().fencing_token() > token);
        }
    }

    async fn the_watchdog_keeps_a_lock_for_ten_leases(site: Site) {
        let lease = Duration::from_secs(1);
        let (locks, other) = (site.manager_with(|builder| builder.lease(lease)).await, site.manager().await);
        let guard = locks.mutex("kept").acquire().await.unwrap();
        let start = Instant::now();
        while start.elapsed() < lease * 10 {
            tokio::time::sleep(lease / 4).await;
            assert!(other.mutex("kept").try_acquire().await.unwrap().is_none(), "after {:?}", start.elapsed());
            assert!(!guard.is_lost(), "after {:?}", start.elapsed());
            assert!(guard.remaining() > Duration::ZERO && guard.remaining() <= lease);
        }
        guard.release().await.unwrap();
        assert!(other.mutex("kept").try_acquire().await.unwrap().is_some());
    }

    async fn a_fixed_lease_ends_while_the_holder_lives(site: Site) {
        let lease = Duration::from_secs(1);
        let (locks, other) = (site.manager().await, site.manager().await);
        let start = Instant::now();
        let guard = locks.mutex("fixed").lease(lease).acquire().await.unwrap();
        assert!(other.mutex("fixed").try_acquire().await.unwrap().is_none());
        let next = other.mutex("fixed").wait(LONG).acquire().await.unwrap();
        assert!(start.elapsed() >= validity(lease), "{:?}", start.elapsed());
        assert!(start.elapsed() < site.at_most(lease), "{:?}", start.elapsed());
        assert!(guard.is_lost());
        assert!(next.fencing_token() > guard.fencing_token());
        next.release().await.unwrap();
    }

    async fn a_fixed_lease_is_lost_locally_before_it_ends_at_the_store(site: Site) {
        let locks = site.manager().await;
        let guard = locks.mutex("margin").lease(ms(500)).acquire().await.unwrap();
        guard.lost().await;
        // Promise P3: it is lost at the local deadline, which is earlier than the store's, whatever
        // the store says.
        assert!(guard.is_lost());
        assert_eq!(guard.remaining(), Duration::ZERO);
        eventually(async || !locks.status("margin").await.unwrap().is_locked(), site.at_most(ms(500))).await;
    }

    async fn extend_lengthens_a_fixed_lease_and_never_shortens_it(site: Site) {
        let locks = site.manager().await;
        let guard = locks.mutex("extended").lease(Duration::from_secs(2)).acquire().await.unwrap();
        guard.extend(Duration::from_secs(20)).await.unwrap();
        assert!(guard.remaining() > Duration::from_secs(10), "{:?}", guard.remaining());
        guard.extend(Duration::from_secs(1)).await.unwrap();
        assert!(guard.remaining() > Duration::from_secs(10), "{:?}", guard.remaining());
        tokio::time::sleep(Duration::from_secs(3)).await;
        assert!(!guard.is_lost(), "past its first lease");
        assert!(locks.status("extended").await.unwrap().is_locked());
        guard.release().await.unwrap();
    }

    async fn a_lost_guard_can_not_be_extended(site: Site) {
        let locks = site.manager().await;
        let guard = locks.mutex("too late").lease(ms(200)).acquire().await.unwrap();
        guard.lost().await;
        let error = guard.extend(LONG).await.unwrap_err();
        assert!(matches!(error, LockError::Lost { .. }), "{error:?}");
        assert!(guard.is_lost(), "lost is final");
    }

    async fn max_hold_ends_a_hold_that_the_watchdog_would_keep(site: Site) {
        let (locks, other) = (site.manager_with(|builder| builder.lease(ms(500))).await, site.manager().await);
        let start = Instant::now();
        let guard = locks.mutex("bounded").max_hold(Duration::from_secs(2)).acquire().await.unwrap();
        guard.lost().await;
        assert!(start.elapsed() >= Duration::from_secs(2), "{:?}", start.elapsed());
        assert!(start.elapsed() < site.at_most(Duration::from_secs(2)), "{:?}", start.elapsed());
        // Renewal has stopped: it is free within a lease, though the guard lives.
        let next = other.mutex("bounded").wait(LONG).acquire().await.unwrap();
        assert!(start.elapsed() < site.at_most(ms(2500)), "{:?}", start.elapsed());
        next.release().await.unwrap();
        drop(guard);
    }

    async fn min_hold_keeps_the_key_taken_after_a_quick_body(site: Site) {
        let (locks, other) = (site.manager().await, site.manager().await);
        let start = Instant::now();
        let guard = locks.mutex("periodic").min_hold(Duration::from_secs(1)).acquire().await.unwrap();
        guard.release().await.unwrap();
        assert!(other.mutex("periodic").try_acquire().await.unwrap().is_none(), "still taken");
        let next = other.mutex("periodic").wait(LONG).acquire().await.unwrap();
        assert!(start.elapsed() >= Duration::from_secs(1), "{:?}", start.elapsed());
        assert!(start.elapsed() < site.at_most(Duration::from_secs(1)), "{:?}", start.elapsed());
        next.release().await.unwrap();
    }

    async fn a_body_is_cancelled_when_its_lock_is_taken_away(site: Site) {
        let (locks, other) = (site.manager_with(|builder| builder.lease(ms(900))).await, site.manager().await);
        let start = Instant::now();
        let outcome = locks
            .mutex("cancelled")
            .with(async |_guard| {
                assert!(other.force_release("cancelled").await.unwrap());
                std::future::pending::<()>().await;
            })
            .await;
        assert!(matches!(outcome, Err(LockError::Lost { .. })), "{outcome:?}");
        assert!(outcome.unwrap_err().body_started());
        assert!(start.elapsed() < site.at_most(ms(900)), "{:?}", start.elapsed());
    }

    async fn with_releases_and_returns_what_the_body_made(site: Site) {
        let locks = site.manager().await;
        let token = locks.mutex("with").with(async |guard| guard.fencing_token()).await.unwrap();
        let next = locks.mutex("with").try_acquire().await.unwrap().expect("it was released");
        assert!(next.fencing_token() > token);
    }

    async fn a_dropped_guard_frees_the_lock_in_the_background(site: Site) {
        let (locks, other) = (site.manager().await, site.manager().await);
        drop(locks.mutex("dropped").acquire().await.unwrap());
        let start = Instant::now();
        other.mutex("dropped").wait(LONG).acquire().await.unwrap().release().await.unwrap();
        assert!(start.elapsed() < site.at_most(ms(500)), "{:?}", start.elapsed());
    }

    async fn shutdown_gives_back_what_is_held_and_refuses_what_comes(site: Site) {
        let (locks, other) = (site.manager().await, site.manager().await);
        let guard = locks.mutex("shut").acquire().await.unwrap();
        let start = Instant::now();
        let error = locks.shutdown(Duration::from_secs(1)).await.unwrap_err();
        assert!(start.elapsed() >= Duration::from_secs(1), "bodies get the time to finish");
        assert_eq!((error.cut_off(), error.drained()), (1, true));
        assert!(guard.is_lost());
        assert!(other.mutex("shut").try_acquire().await.unwrap().is_some(), "given back");
        let error = locks.mutex("shut").acquire().await.unwrap_err();
        assert!(matches!(error, lock_runtime::LockError::ShutDown { .. }), "{error:?}");
    }
}
