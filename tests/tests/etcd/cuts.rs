//! Requests that are lost, or whose answers are, and futures that are dropped.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use lock_runtime::{LockError, LockManager};
use lock_tests::database_server::{LockServer, beside_a_busy_disk, connect, deletes, enters};
use lock_tests::dice::Dice;
use lock_tests::etcd::{Etcd, Options};
use lock_tests::wire::Fate;
use lock_tests::{Distance, EtcdCluster, EtcdServer, Wire, eventually};
use tokio::runtime::Builder;
use tokio::time::timeout;

use crate::entries::{assert_only_epochs_are_left, await_entries, entries};

const LEASE: Duration = Duration::from_secs(10);
const CALL: Duration = Duration::from_secs(1);
const SLACK: Duration = Duration::from_secs(40);

/// How often futures are dropped.
const DROPS: u64 = 200;

const FATES: [Fate; 3] = [Fate::Cut, Fate::Unanswered, Fate::Lost];

/// Makes the next such request meet `fate`.
fn break_next(wire: &Wire, is_it: fn(&[u8]) -> bool, fate: Fate) {
    let mut is_over = false;
    wire.set(move |request| {
        let hits = !is_over && is_it(request);
        is_over |= hits;
        if hits { fate } else { Fate::Passes }
    });
}

async fn behind(wire: &Wire) -> LockManager {
    LockManager::builder().lease(LEASE).call_timeout(CALL).connect(Etcd::url_at(wire.addr())).await.unwrap()
}

/// A server closes connections that it finds too curious.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_in_quiet_times_keeps_its_connection() {
    let server = Etcd::start_beside_a_busy_disk().await;
    let wire = Wire::to(server.addr());
    let connections = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&connections);
    wire.set(move |request| {
        count.fetch_add(usize::from(request.starts_with(b"PRI * HTTP/2.0")), Ordering::Relaxed);
        Fate::Passes
    });
    let other = connect(&server, Duration::from_secs(600)).await;
    let guard = other.mutex("k").acquire().await.unwrap();
    let locks = LockManager::builder().lease(Duration::from_secs(600));
    let locks = locks.connect(Etcd::url_at(wire.addr())).await.unwrap();
    let waiter = tokio::spawn(locks.mutex("k").wait(SLACK * 2).acquire());
    await_entries(&server, "k", 2, SLACK).await;
    tokio::time::sleep(Duration::from_secs(20)).await;
    // One more if the machine has stood still.
    assert!(connections.load(Ordering::Relaxed) <= 2, "{connections:?}");
    guard.release().await.unwrap();
    timeout(SLACK, waiter).await.unwrap().unwrap().unwrap().release().await.unwrap();
}

/// It is repeated, and is one hold.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_acquire_whose_answer_is_lost_is_one_hold() {
    let server = Etcd::start_beside_a_busy_disk().await;
    let other = connect(&server, LEASE).await;
    let mut last = None;
    for fate in FATES {
        let wire = Wire::to(server.addr());
        let locks = behind(&wire).await;
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
    assert_only_epochs_are_left(&server, SLACK).await;
}

/// It may fail, and then it is withdrawn: nobody waits for its lease.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_acquire_that_gives_up_without_an_answer_leaves_nothing() {
    let lease = Duration::from_secs(600);
    let server = Etcd::start_beside_a_busy_disk().await;
    let other = connect(&server, LEASE).await;
    for fate in FATES {
        let wire = Wire::to(server.addr());
        let builder = LockManager::builder().lease(lease).call_timeout(CALL);
        let locks = builder.connect(Etcd::url_at(wire.addr())).await.unwrap();
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
    let server = Etcd::start_beside_a_busy_disk().await;
    let other = connect(&server, LEASE).await;
    for fate in FATES {
        let wire = Wire::to(server.addr());
        let locks = behind(&wire).await;
        let guard = locks.mutex("k").acquire().await.unwrap();
        let token = guard.fencing_token();
        let waiter = tokio::spawn(other.mutex("k").wait(SLACK).acquire());
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
    assert_only_epochs_are_left(&server, SLACK).await;
}

/// Waiters whose watch is mute or cut, while the lock changes hands.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_behind_a_broken_connection_gets_its_turn() {
    let server = Etcd::start_beside_a_busy_disk().await;
    let other = connect(&server, LEASE).await;
    for fate in FATES {
        let wire = Wire::to(server.addr());
        let locks = behind(&wire).await;
        let guard = other.mutex("k").acquire().await.unwrap();
        let token = guard.fencing_token();
        let waiter = tokio::spawn(locks.mutex("k").wait(SLACK * 2).acquire());
        await_entries(&server, "k", 2, SLACK).await;
        // The next one, whatever it is: a check of the connection, at the latest.
        break_next(&wire, |_| true, fate);
        eventually(async || wire.hits() == 1, SLACK).await;
        assert!(!waiter.is_finished());
        guard.release().await.unwrap();
        let next = timeout(SLACK, waiter).await.unwrap().unwrap().unwrap();
        assert!(next.fencing_token() > token);
        next.release().await.unwrap();
    }
    assert_only_epochs_are_left(&server, SLACK).await;
}

/// A client that reaches the servers through wires.
fn url(wires: &[Wire]) -> String {
    let addrs: Vec<_> = wires.iter().map(|wire| wire.addr().to_string()).collect();
    format!("etcd://{}/", addrs.join(","))
}

/// Whichever it is: the client goes on at another one, and keeps its hold and its place.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_loses_its_member_goes_on_at_another() {
    let options = Options::default().within(beside_a_busy_disk());
    let cluster = tokio::task::block_in_place(|| EtcdCluster::start_with(options));
    let lease = Duration::from_secs(12);
    for fate in FATES {
        let wires: Vec<Wire> = cluster.members().map(|member| Wire::to(member.addr())).collect();
        let builder = || LockManager::builder().lease(lease).call_timeout(CALL);
        let (one, two) =
            (builder().connect(url(&wires)).await.unwrap(), builder().connect(url(&wires)).await.unwrap());
        let guard = one.mutex("k").acquire().await.unwrap();
        let waiter = tokio::spawn(two.mutex("k").wait(SLACK * 2).acquire());
        let place = await_entries(&cluster, "k", 2, SLACK).await;
        for wire in &wires {
            wire.set(move |_| fate);
            // Time for a renewal.
            tokio::time::sleep(lease / 3 + CALL * 2).await;
            wire.set(|_| Fate::Passes);
            assert!(!guard.is_lost() && !waiter.is_finished(), "{fate:?}: {guard:?}");
        }
        assert_eq!(entries(&cluster, "k"), place);
        let token = guard.fencing_token();
        guard.release().await.unwrap();
        let next = timeout(SLACK, waiter).await.unwrap().unwrap().unwrap();
        assert!(next.fencing_token() > token);
        next.release().await.unwrap();
    }
    assert_only_epochs_are_left(&cluster, SLACK).await;
}

/// A place that nobody kept for too long is deleted. A delete that arrives late finds the lock
/// granted to the same request, under the same name.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_delete_of_a_place_that_was_given_up_ends_no_hold() {
    let way = Duration::from_secs(5);
    let server = Etcd::start_beside_a_busy_disk().await;
    let other = connect(&server, LEASE).await;
    let (near, slow) = (Wire::to(server.addr()), Distance::to(server.addr(), way).await);
    let far = Wire::to(slow.addr());
    let is_sent = Arc::new(AtomicBool::new(false));
    let sent = Arc::clone(&is_sent);
    far.set(move |request| {
        sent.fetch_or(deletes(request), Ordering::SeqCst);
        Fate::Passes
    });
    let wires = [near, far];
    let builder = LockManager::builder().lease(LEASE).call_timeout(CALL);
    let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let locks = runtime.spawn(builder.connect(url(&wires))).await.unwrap().unwrap();
    let guard = other.mutex("k").acquire().await.unwrap();
    let waiter = runtime.spawn(locks.mutex("k").wait(SLACK * 3).acquire());
    await_entries(&server, "k", 2, SLACK).await;
    wires[0].set(|_| Fate::Cut);
    // Its only thread stands still.
    runtime.spawn(async { std::thread::sleep(Duration::from_secs(4)) });
    eventually(async || is_sent.load(Ordering::SeqCst), SLACK).await;
    wires[0].set(|_| Fate::Passes);
    guard.release().await.unwrap();
    let next = timeout(SLACK * 2, waiter).await.unwrap().unwrap().unwrap();
    let until = Instant::now() + way * 3 / 2;
    while Instant::now() < until {
        let rival = other.mutex("k").try_acquire().await.unwrap();
        assert!(rival.is_none() || next.is_lost(), "{rival:?} beside {next:?}");
        assert!(!next.is_lost(), "{next:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    next.release().await.unwrap();
    runtime.shutdown_background();
}

/// Drops acquires in their midst, of a lock that is free or held.
async fn drop_acquires(server: &EtcdServer, locks: &LockManager, dice: &mut Dice) {
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

/// The entries go at once, not with their lease.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acquires_that_are_dropped_leave_nothing() {
    let mut dice = Dice::new(42);
    let server = Etcd::start_beside_a_busy_disk().await;
    let long = connect(&server, Duration::from_secs(600)).await;
    drop_acquires(&server, &long, &mut dice).await;
    let short = connect(&server, Duration::from_secs(2)).await;
    drop_acquires(&server, &short, &mut dice).await;
}
