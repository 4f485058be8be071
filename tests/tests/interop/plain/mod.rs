//! The clients of other languages and ours on the same lock in the plain layout: redis-py's `Lock`,
//! redsync and node-redlock.

mod quorum;
mod several;

use std::time::{Duration, Instant};

use lock_runtime::{LockError, LockManager};
use lock_tests::RedisServer;
use lock_tests::plain::{LIMIT, LONG, count, waiter};

/// A lease that is short enough to wait for its end.
const SHORT: Duration = Duration::from_secs(2);
/// A lease that is renewed. Longer, so that a busy machine does not miss its end.
const RENEWED: Duration = Duration::from_secs(3);
/// Increments of each of four programs or managers.
const TIMES: u32 = 75;

async fn is_free(locks: &LockManager, key: &str) -> bool {
    locks.mutex(key).try_acquire().await.unwrap().is_some()
}

async fn owner_of(locks: &LockManager, key: &str) -> String {
    let status = locks.status(key).await.unwrap();
    assert!(status.holders.len() <= 1, "{status:?}");
    status.holders.first().map_or_else(String::new, |(owner, _)| owner.to_string())
}

lock_tests::on_clients! {
    [redis_py = RedisPy on 1, redsync = Redsync on 1, node_redlock = NodeRedlock on 1,
     redsync_quorum = Redsync on 3, node_redlock_quorum = NodeRedlock on 3]

    async fn their_hold_keeps_us_out_until_their_release(fleet: Fleet) {
        let (mut rival, locks) = (fleet.rival(), fleet.connect(LONG).await);
        let value = rival.acquire("k", LONG);
        fleet.has_value("k", &value).await;
        assert!(!is_free(&locks, "k").await);
        assert_eq!(owner_of(&locks, "k").await, value);
        let remaining = locks.status("k").await.unwrap().remaining.unwrap();
        assert!(remaining > LONG - LIMIT && remaining <= LONG, "{remaining:?}");
        let error = locks.mutex("k").wait(Duration::from_millis(300)).acquire().await.unwrap_err();
        assert!(matches!(error, LockError::TimedOut { .. }), "{error:?}");
        assert!(rival.release("k"));
        fleet.is_free("k").await;
        locks.mutex("k").try_acquire().await.unwrap().expect("it is free").release().await.unwrap();
    }

    async fn our_hold_keeps_them_out_until_our_release(fleet: Fleet) {
        let (mut rival, locks) = (fleet.rival(), fleet.connect(LONG).await);
        let guard = locks.mutex("k").acquire().await.unwrap();
        let owner = owner_of(&locks, "k").await;
        fleet.has_value("k", &owner).await;
        assert_eq!(rival.try_acquire("k", LONG), None);
        fleet.has_value("k", &owner).await;
        guard.release().await.unwrap();
        fleet.is_free("k").await;
        rival.acquire("k", LONG);
        assert!(rival.release("k"));
    }

    /// Nobody tells our waiter, so it has to look by itself.
    async fn our_waiter_enters_after_their_release(fleet: Fleet) {
        let (mut rival, locks) = (fleet.rival(), fleet.connect(LONG).await);
        rival.acquire("k", LONG);
        let waiting = waiter(locks.mutex("k"), &locks, "k").await;
        assert!(!waiting.is_finished());
        let start = Instant::now();
        assert!(rival.release("k"));
        let guard = waiting.await.unwrap();
        println!("{:.2?} after their release", start.elapsed());
        assert_eq!(rival.try_acquire("k", LONG), None);
        guard.release().await.unwrap();
    }

    async fn their_waiter_enters_after_our_release(fleet: Fleet) {
        let (mut rival, locks) = (fleet.rival(), fleet.connect(LONG).await);
        let guard = locks.mutex("k").acquire().await.unwrap();
        rival.wait(&fleet.servers()[0], "k", LONG).await;
        rival.assert_still_out();
        guard.release().await.unwrap();
        let value = rival.granted();
        assert_eq!(owner_of(&locks, "k").await, value);
        assert!(rival.release("k"));
    }

    async fn our_waiter_enters_when_their_lease_ends_and_their_late_calls_change_nothing(fleet: Fleet) {
        let (mut rival, locks) = (fleet.rival(), fleet.connect(LONG).await);
        let start = Instant::now();
        rival.acquire("k", SHORT);
        let waiting = waiter(locks.mutex("k"), &locks, "k").await;
        let guard = waiting.await.unwrap();
        assert!(start.elapsed() > SHORT / 2, "{:?}", start.elapsed());
        let owner = owner_of(&locks, "k").await;
        assert!(!rival.extend("k", LONG));
        assert!(!rival.release("k"));
        fleet.has_value("k", &owner).await;
        assert!(!guard.is_lost());
        guard.release().await.unwrap();
    }

    async fn their_waiter_enters_when_our_lease_ends_and_our_late_release_changes_nothing(fleet: Fleet) {
        let (mut rival, locks) = (fleet.rival(), fleet.connect(LONG).await);
        let start = Instant::now();
        let guard = locks.mutex("k").lease(SHORT).acquire().await.unwrap();
        rival.start_waiting("k", LONG);
        let value = rival.granted();
        assert!(start.elapsed() > SHORT / 2, "{:?}", start.elapsed());
        assert!(guard.is_lost());
        assert!(matches!(guard.release().await, Err(LockError::Lost { .. })));
        fleet.has_value("k", &value).await;
        assert!(rival.release("k"));
    }

    async fn our_renewals_keep_them_out_for_three_leases(fleet: Fleet) {
        let (mut rival, locks) = (fleet.rival(), fleet.connect(RENEWED).await);
        let start = Instant::now();
        let guard = locks.mutex("k").acquire().await.unwrap();
        rival.wait(&fleet.servers()[0], "k", LONG).await;
        while start.elapsed() < RENEWED * 3 {
            let left = |server: &RedisServer| server.cli(&["PTTL", "k"]).parse::<i64>().unwrap();
            let held = fleet.servers().iter().filter(|server| (1..=3000).contains(&left(server)));
            assert!(held.count() > fleet.servers().len() / 2, "after {:?}", start.elapsed());
            assert!(!guard.is_lost());
            rival.assert_still_out();
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        guard.release().await.unwrap();
        rival.granted();
        assert!(rival.release("k"));
    }

    async fn their_extension_keeps_us_out_beyond_their_first_lease(fleet: Fleet) {
        let (mut rival, locks) = (fleet.rival(), fleet.connect(LONG).await);
        // Long enough that the extension is in time.
        let first = SHORT * 2;
        rival.acquire("k", first);
        assert!(rival.extend("k", LONG));
        let waiting = waiter(locks.mutex("k"), &locks, "k").await;
        tokio::time::sleep(first).await;
        assert!(!waiting.is_finished() && !is_free(&locks, "k").await);
        assert!(rival.release("k"));
        waiting.await.unwrap().release().await.unwrap();
    }

    async fn our_forced_release_takes_it_from_them(fleet: Fleet) {
        let (mut rival, locks) = (fleet.rival(), fleet.connect(LONG).await);
        let value = rival.acquire("k", LONG);
        // A request that comes after the forced release would take the key of that server again.
        fleet.has_value_everywhere("k", &value).await;
        assert!(locks.force_release("k").await.unwrap());
        fleet.is_free("k").await;
        let guard = locks.mutex("k").acquire().await.unwrap();
        assert!(!rival.release("k"));
        guard.release().await.unwrap();
    }

    async fn a_mixed_crowd_counts_right(fleet: Fleet) {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("count");
        std::fs::write(&file, "0").unwrap();
        let mut rivals = [fleet.rival(), fleet.rival()];
        let managers = [fleet.connect(LONG).await, fleet.connect(LONG).await];
        // All of them begin when it is released.
        let start = managers[0].mutex("k").acquire().await.unwrap();
        for rival in &mut rivals {
            rival.count("k", &file, TIMES);
        }
        let ours = managers.map(|locks| {
            let file = file.clone();
            tokio::spawn(async move { count(|| locks.mutex("k"), &file, TIMES).await })
        });
        start.release().await.unwrap();
        for task in ours {
            task.await.unwrap();
        }
        rivals.iter_mut().for_each(|rival| rival.counted());
        assert_eq!(std::fs::read_to_string(&file).unwrap(), (4 * TIMES).to_string());
        fleet.is_free("k").await;
    }
}

lock_tests::on_clients! {
    [redis_py_only = RedisPy on 1]

    /// redis-py's default, `timeout=None`.
    async fn their_hold_without_an_end_has_none_in_our_status(fleet: Fleet) {
        let (mut rival, locks) = (fleet.rival(), fleet.connect(SHORT).await);
        let value = rival.acquire("k", Duration::ZERO);
        let status = locks.status("k").await.unwrap();
        assert_eq!(status.remaining, None);
        assert_eq!(owner_of(&locks, "k").await, value);
        assert!(!is_free(&locks, "k").await);
        let waiting = waiter(locks.mutex("k"), &locks, "k").await;
        tokio::time::sleep(SHORT * 2).await;
        assert!(!waiting.is_finished());
        assert_eq!(fleet.servers()[0].cli(&["PTTL", "k"]), "-1");
        assert!(rival.release("k"));
        waiting.await.unwrap().release().await.unwrap();
    }
}
