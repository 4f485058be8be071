//! Three servers: what one of them does, alone, stops neither side.

use lock_tests::plain::LONG;

use super::{is_free, owner_of};

lock_tests::on_clients! {
    [redsync = Redsync on 3, node_redlock = NodeRedlock on 3]

    async fn a_majority_is_enough_for_both_sides(fleet: Fleet) {
        let mut fleet = fleet;
        let (mut rival, locks) = (fleet.rival(), fleet.connect(LONG).await);
        fleet.servers_mut()[2].kill();
        let guard = locks.mutex("k").acquire().await.unwrap();
        assert_eq!(rival.try_acquire("k", LONG), None);
        guard.release().await.unwrap();
        let value = rival.acquire("k", LONG);
        assert!(!is_free(&locks, "k").await);
        assert_eq!(owner_of(&locks, "k").await, value);
        assert!(rival.release("k"));
        assert!(is_free(&locks, "k").await);
    }

    async fn a_foreign_hold_on_a_minority_stops_neither_side(fleet: Fleet) {
        let (mut rival, locks) = (fleet.rival(), fleet.connect(LONG).await);
        let minority = &fleet.servers()[1];
        minority.cli(&["SET", "k", "left over", "PX", "300000"]);
        locks.mutex("k").acquire().await.unwrap().release().await.unwrap();
        rival.acquire("k", LONG);
        assert!(!is_free(&locks, "k").await);
        assert!(rival.release("k"));
        assert_eq!(minority.cli(&["GET", "k"]), "left over");
    }
}
