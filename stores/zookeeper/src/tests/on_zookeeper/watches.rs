//! Watches of many nodes, beside a connection that breaks.

use lock_test_servers::wire::{Fate, Wire};

use super::*;

/// Makes a name that is so long that 128 waiters, or 300 holds, watch more than the client
/// sends in one request.
fn long(at: u32) -> String {
    format!("{at:0>500}")
}

/// Opens a handle behind a wire.
fn behind(wire: &Wire, root: &str) -> Arc<ZooKeeperStore> {
    store(&format!("zookeeper://{}{root}?{OPTIONS}", wire.addr()), "")
}

/// Cuts the connection once, and waits until its session has gone on.
async fn cut(wire: &Wire, store: &ZooKeeperStore) {
    let before = session(store).await;
    wire.next("-beat", Fate::Cut);
    let goes_on = async {
        while wire.hits() == 0 || store.store().beat(before, Duration::ZERO).await.is_err() {
            tokio::time::sleep(SECOND / 10).await;
        }
    };
    tokio::time::timeout(SLACK, goes_on).await.expect("the client does not connect again");
    assert_eq!(session(store).await, before);
}

#[tokio::test]
async fn many_renewed_holds_outlast_a_cut() {
    let wire = Wire::to(SERVER.addr());
    let store = behind(&wire, &new_root());
    let mut lost = store.lost().unwrap();
    let mut holds = Vec::new();
    for first in (0..300).step_by(100) {
        let items: Vec<_> = (first..first + 100).map(|at| item(Kind::Mutex, &long(at), 1)).collect();
        let hold = Arc::new(AcquireRequest::new(items, 600 * SECOND, SLACK));
        assert!(granted(&store, &hold).await);
        assert_eq!(renew(&store, &hold, 600 * SECOND).await, [Renewed::Held; 100]);
        holds.push(hold);
    }
    // Their watches begin.
    tokio::time::sleep(SECOND).await;
    cut(&wire, &store).await;
    let more = trying(Kind::Mutex, "more", 1, 600 * SECOND);
    assert!(granted(&store, &more).await);
    for hold in &holds {
        assert_eq!(renew(&store, hold, 600 * SECOND).await, [Renewed::Held; 100]);
    }
    assert!(tokio::time::timeout(SECOND / 2, &mut lost).await.is_err());
    // Holds that are not watched hear of the session's end as well.
    SERVER.end_session(session(&store).await.0);
    let mut told = 0;
    while told < 300 {
        told += tokio::time::timeout(SLACK, &mut lost).await.expect("some were not told").len();
        lost = store.lost().unwrap();
    }
}

/// Those that are not watched are looked for.
#[tokio::test]
async fn many_waiters_outlast_a_cut_and_hear_of_their_turns() {
    let (wire, root) = (Wire::to(SERVER.addr()), new_root());
    let (store, other) = (behind(&wire, &root), super::super::store(&url(&root), ""));
    let many = 128;
    let items: Vec<_> = (0..many).map(|at| item(Kind::Mutex, &long(at), 1)).collect();
    let hold = Arc::new(AcquireRequest::new(items, 600 * SECOND, SLACK));
    assert!(granted(&other, &hold).await);
    let mut watches = Vec::new();
    for at in 0..many {
        watches.push(queue(&store, &waiting(Kind::Mutex, &long(at), 2)).await);
    }
    tokio::time::sleep(SECOND).await;
    cut(&wire, &store).await;
    assert!(release(&other, &hold).await);
    for watch in &mut watches {
        hears_grant(watch).await;
    }
}
