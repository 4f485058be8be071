//! Requests that are lost, or whose answers are, and futures that are dropped.

use std::net::SocketAddr;
use std::time::Duration;

use lock_runtime::{LockError, LockManager};
use lock_tests::database_server::{LockServer, beside_a_busy_disk};
use lock_tests::dice::Dice;
use lock_tests::wire::Fate;
use lock_tests::zookeeper::{DELETE, MULTI, Options, ZooKeeper, operations};
use lock_tests::{Wire, ZooKeeperEnsemble, ZooKeeperServer, eventually};
use tokio::task::block_in_place;
use tokio::time::timeout;

use crate::entries::{assert_nothing_is_left, await_entries, connect, entries};

const LEASE: Duration = Duration::from_secs(10);
const CALL: Duration = Duration::from_secs(1);

/// Shorter than the sessions behind a wire, so that no session that has ended is the reason.
const SLACK: Duration = Duration::from_secs(40);

/// How often futures are dropped.
const DROPS: u64 = 200;

const FATES: [Fate; 3] = [Fate::Cut, Fate::Unanswered, Fate::Lost];

fn enters(request: &[u8]) -> bool {
    operations(request).contains(&MULTI)
}

fn deletes(request: &[u8]) -> bool {
    operations(request).contains(&DELETE)
}

/// Makes the next such request meet `fate`.
fn break_next(wire: &Wire, is_it: fn(&[u8]) -> bool, fate: Fate) {
    let mut is_over = false;
    wire.set(move |request| {
        let hits = !is_over && is_it(request);
        is_over |= hits;
        if hits { fate } else { Fate::Passes }
    });
}

async fn behind(addrs: &[SocketAddr]) -> LockManager {
    behind_for(addrs, LEASE).await
}

/// As [`behind`], with this lease.
async fn behind_for(addrs: &[SocketAddr], lease: Duration) -> LockManager {
    let hosts: Vec<_> = addrs.iter().map(SocketAddr::to_string).collect();
    let url = format!("zookeeper://{}/?timeout=60s&tick=200ms", hosts.join(","));
    LockManager::builder().lease(lease).call_timeout(CALL).connect(url).await.unwrap()
}

/// It is repeated, and is one hold.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_acquire_whose_answer_is_lost_is_one_hold() {
    let server = ZooKeeper::start_beside_a_busy_disk().await;
    let other = connect(&server, LEASE).await;
    let mut last = None;
    for fate in FATES {
        let wire = Wire::to(server.addr());
        let locks = behind(&[wire.addr()]).await;
        locks.mutex("warm").acquire().await.unwrap().release().await.unwrap();
        break_next(&wire, enters, fate);
        let guard = timeout(SLACK, locks.mutex("k").wait(SLACK).acquire()).await.unwrap().unwrap();
        assert_eq!(wire.hits(), 1, "{fate:?}");
        assert!(last < Some(guard.fencing_token()), "{last:?}, {guard:?}");
        last = Some(guard.fencing_token());
        assert_eq!(entries(&server, "k").len(), 1, "{fate:?}");
        let busy = other.mutex("k").no_wait().acquire().await.unwrap_err();
        assert!(busy.is_busy(), "{busy:?}");
        guard.release().await.unwrap();
        assert_eq!(entries(&server, "k"), [""; 0], "{fate:?}");
        let next = other.mutex("k").no_wait().acquire().await.unwrap();
        assert!(last < Some(next.fencing_token()));
        next.release().await.unwrap();
    }
    assert_nothing_is_left(&server, SLACK).await;
}

/// It may fail, and then it is withdrawn: nobody waits for its session.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_acquire_that_gives_up_without_an_answer_leaves_nothing() {
    let server = ZooKeeper::start_beside_a_busy_disk().await;
    let other = connect(&server, LEASE).await;
    for fate in FATES {
        let wire = Wire::to(server.addr());
        let locks = behind(&[wire.addr()]).await;
        locks.mutex("warm").acquire().await.unwrap().release().await.unwrap();
        break_next(&wire, enters, fate);
        match locks.mutex("k").no_wait().acquire().await {
            // There was time for another attempt.
            Ok(guard) => guard.release().await.unwrap(),
            Err(error) => assert!(matches!(error, LockError::Unavailable { .. }), "{fate:?}: {error:?}"),
        }
        assert_eq!(wire.hits(), 1, "{fate:?}");
        let next = timeout(SLACK, other.mutex("k").wait(SLACK).acquire()).await.unwrap().unwrap();
        next.release().await.unwrap();
        assert_eq!(entries(&server, "k"), [""; 0], "{fate:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_whose_answer_is_lost_is_a_release() {
    let server = ZooKeeper::start_beside_a_busy_disk().await;
    let other = connect(&server, LEASE).await;
    for fate in FATES {
        let wire = Wire::to(server.addr());
        let locks = behind(&[wire.addr()]).await;
        let guard = locks.mutex("k").acquire().await.unwrap();
        let token = guard.fencing_token();
        let waiter = tokio::spawn(other.mutex("k").wait(SLACK).acquire());
        await_entries(&server, "k", 2, SLACK).await;
        break_next(&wire, deletes, fate);
        match guard.release().await {
            Ok(()) | Err(LockError::Unconfirmed { .. } | LockError::Lost { .. }) => {}
            Err(error) => panic!("{fate:?}: {error:?}"),
        }
        assert_eq!(wire.hits(), 1, "{fate:?}");
        let next = timeout(SLACK, waiter).await.unwrap().unwrap().unwrap();
        assert!(next.fencing_token() > token);
        // A late copy of the release does not end the next hold, of the same manager or another.
        tokio::time::sleep(CALL * 2).await;
        assert_eq!(entries(&server, "k").len(), 1, "{fate:?}");
        next.release().await.unwrap();
        let again = locks.mutex("k").wait(SLACK).acquire().await.unwrap();
        tokio::time::sleep(CALL).await;
        assert!(!again.is_lost());
        again.release().await.unwrap();
    }
    assert_nothing_is_left(&server, SLACK).await;
}

/// Waiters whose watch is mute or cut, while the lock changes hands.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_behind_a_broken_connection_gets_its_turn() {
    let server = ZooKeeper::start_beside_a_busy_disk().await;
    let other = connect(&server, LEASE).await;
    for fate in FATES {
        let wire = Wire::to(server.addr());
        let locks = behind(&[wire.addr()]).await;
        let guard = other.mutex("k").acquire().await.unwrap();
        let token = guard.fencing_token();
        let waiter = tokio::spawn(locks.mutex("k").wait(SLACK * 2).acquire());
        await_entries(&server, "k", 2, SLACK).await;
        // The next one, whatever it is: a heartbeat, at the latest.
        break_next(&wire, |_| true, fate);
        eventually(async || wire.hits() == 1, SLACK).await;
        assert!(!waiter.is_finished());
        guard.release().await.unwrap();
        let next = timeout(SLACK, waiter).await.unwrap().unwrap().unwrap();
        assert!(next.fencing_token() > token);
        next.release().await.unwrap();
    }
    assert_nothing_is_left(&server, SLACK).await;
}

/// Whichever it is: the client goes on at another one, and keeps its hold and its place.
async fn goes_on_at_another(ensemble: &ZooKeeperEnsemble, fate: Fate) {
    // A silent member is noticed after four seconds.
    let lease = Duration::from_secs(20);
    let wires: Vec<Wire> = ensemble.members().map(|member| Wire::to(member.addr())).collect();
    let addrs: Vec<_> = wires.iter().map(Wire::addr).collect();
    let (one, two) = (behind_for(&addrs, lease).await, behind_for(&addrs, lease).await);
    let key = format!("{fate:?}");
    let guard = one.mutex(&*key).acquire().await.unwrap();
    let waiter = tokio::spawn(two.mutex(&*key).wait(SLACK * 2).acquire());
    let place = await_entries(ensemble, &key, 2, SLACK).await;
    for wire in &wires {
        wire.set(move |_| fate);
        // Time for a renewal.
        tokio::time::sleep(lease / 3 + CALL * 2).await;
        wire.set(|_| Fate::Passes);
        assert!(!guard.is_lost() && !waiter.is_finished(), "{guard:?}");
    }
    assert!(wires.iter().map(Wire::hits).sum::<usize>() >= 2, "both have lost their members");
    assert_eq!(entries(ensemble, &key), place);
    let token = guard.fencing_token();
    guard.release().await.unwrap();
    let next = timeout(SLACK, waiter).await.unwrap().unwrap().unwrap();
    assert!(next.fencing_token() > token);
    next.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_loses_its_member_goes_on_at_another() {
    let options = Options::default().within(beside_a_busy_disk());
    let ensemble = block_in_place(|| ZooKeeperEnsemble::start_with(options));
    let [one, two, three] = FATES.map(|fate| goes_on_at_another(&ensemble, fate));
    tokio::join!(one, two, three);
    assert_nothing_is_left(&ensemble, SLACK).await;
}

/// Drops acquires in their midst, of a lock that is free or held.
async fn drop_acquires(server: &ZooKeeperServer, locks: &LockManager, dice: &mut Dice) {
    let held = locks.mutex("held").acquire().await.unwrap();
    for n in 0..DROPS {
        let limit = dice.between(Duration::ZERO, Duration::from_millis(6));
        let key = ["held", "free", "also"][(n % 3) as usize];
        let lock = if n % 2 == 0 { locks.mutex(key) } else { locks.fair(key) };
        let several = locks.multi(["free", "also"]);
        let lock = if n % 5 == 0 { several } else { lock };
        if let Ok(guard) = timeout(limit, lock.wait(SLACK).acquire()).await {
            assert_ne!(guard.unwrap().key().as_str(), "held");
        }
    }
    held.release().await.unwrap();
    let no_entries = async || ["held", "free", "also"].iter().all(|lock| entries(server, lock).is_empty());
    eventually(no_entries, SLACK).await;
    for lock in ["held", "free", "also"] {
        locks.mutex(lock).no_wait().acquire().await.unwrap().release().await.unwrap();
    }
}

/// The entries go at once, not with their session.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acquires_that_are_dropped_leave_nothing() {
    let mut dice = Dice::new(42);
    let server = ZooKeeper::start_beside_a_busy_disk().await;
    drop_acquires(&server, &connect(&server, LEASE).await, &mut dice).await;
    drop_acquires(&server, &connect(&server, CALL * 2).await, &mut dice).await;
}
