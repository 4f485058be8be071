//! Several keys at once: node-redlock gives all of them one value, and so do we.

use lock_tests::plain::{LIMIT, LONG, count, waiter};

use super::{SHORT, is_free, owner_of};

/// Increments of each of four programs or managers.
const TIMES: u32 = 50;

lock_tests::on_clients! {
    [node_redlock = NodeRedlock on 1, node_redlock_quorum = NodeRedlock on 3]

    async fn their_keys_are_taken_for_us_one_by_one_and_together(fleet: Fleet) {
        let (mut rival, locks) = (fleet.rival(), fleet.connect(LONG).await);
        let value = rival.acquire("a,b", LONG);
        for key in ["a", "b"] {
            fleet.has_value(key, &value).await;
            assert!(!is_free(&locks, key).await);
            assert_eq!(owner_of(&locks, key).await, value);
        }
        for keys in [["a", "b"], ["b", "c"]] {
            assert!(locks.multi(keys).try_acquire().await.unwrap().is_none());
        }
        assert!(is_free(&locks, "c").await, "all or nothing");
        let waiting = waiter(locks.multi(["b", "a"]), &locks, "a").await;
        assert!(!waiting.is_finished());
        assert!(rival.release("a,b"));
        waiting.await.unwrap().release().await.unwrap();
        for key in ["a", "b"] {
            fleet.is_free(key).await;
        }
    }

    async fn our_keys_are_taken_for_them_one_by_one_and_together(fleet: Fleet) {
        let (mut rival, locks) = (fleet.rival(), fleet.connect(LONG).await);
        let guard = locks.multi(["a", "b"]).acquire().await.unwrap();
        for keys in ["a", "b", "a,b", "c,b"] {
            assert_eq!(rival.try_acquire(keys, LONG), None, "{keys}");
        }
        assert!(is_free(&locks, "c").await, "all or nothing");
        rival.wait(&fleet.servers()[0], "b,a", LONG).await;
        rival.assert_still_out();
        guard.release().await.unwrap();
        rival.granted();
        assert!(!is_free(&locks, "a").await && !is_free(&locks, "b").await);
        assert!(rival.release("b,a"));
    }

    async fn their_late_release_leaves_the_key_that_we_took(fleet: Fleet) {
        let (mut rival, locks) = (fleet.rival(), fleet.connect(LONG).await);
        rival.acquire("a,b", SHORT);
        let guard = locks.mutex("a").wait(LIMIT).acquire().await.unwrap();
        let owner = owner_of(&locks, "a").await;
        assert!(!rival.release("a,b"));
        fleet.has_value("a", &owner).await;
        assert!(!guard.is_lost());
        guard.release().await.unwrap();
    }

    async fn a_mixed_crowd_counts_right_under_two_keys(fleet: Fleet) {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("count");
        std::fs::write(&file, "0").unwrap();
        let mut rivals = [fleet.rival(), fleet.rival()];
        let managers = [fleet.connect(LONG).await, fleet.connect(LONG).await];
        // All of them begin when it is released.
        let start = managers[0].multi(["a", "b"]).acquire().await.unwrap();
        for (rival, keys) in rivals.iter_mut().zip(["a,b", "b,a"]) {
            rival.count(keys, &file, TIMES);
        }
        let ours = managers.map(|locks| {
            let file = file.clone();
            tokio::spawn(async move { count(|| locks.multi(["a", "b"]), &file, TIMES).await })
        });
        start.release().await.unwrap();
        for task in ours {
            task.await.unwrap();
        }
        rivals.iter_mut().for_each(|rival| rival.counted());
        assert_eq!(std::fs::read_to_string(&file).unwrap(), (4 * TIMES).to_string());
    }
}
