//! Queues whose entries vanish.

use std::time::Duration;

use lock_runtime::{Kind, LockError, LockGuard, LockManager};
use lock_tests::callers::Callers;
use lock_tests::database_server::LockServer;
use lock_tests::kinds::lock;
use lock_tests::zookeeper::ZooKeeper;
use lock_tests::{Helper, ZooKeeperServer, curator, eventually};
use tokio::task::{JoinHandle, block_in_place};
use tokio::time::timeout;

use crate::entries::{assert_nothing_is_left, await_entries, connect, entries};

const HOLDER: &str = env!("CARGO_BIN_EXE_holder");
const SLACK: Duration = Duration::from_secs(30);

/// A lease that no pause of a busy machine outlasts.
const LONG: Duration = Duration::from_secs(50);

/// Time in which somebody who gets in by mistake would do so.
const MEANWHILE: Duration = Duration::from_millis(1500);

/// The kinds that have a queue in ZooKeeper.
const QUEUED: [Kind; 4] = [Kind::Mutex, Kind::Fair, Kind::Read, Kind::Write];

async fn start() -> (ZooKeeperServer, LockManager, LockManager) {
    let server = ZooKeeper::start_beside_a_busy_disk().await;
    let (one, two) = (connect(&server, LONG).await, connect(&server, LONG).await);
    (server, one, two)
}

/// Somebody who deletes nodes.
fn operator(server: &ZooKeeperServer) -> Callers {
    block_in_place(|| curator::start(&server.connect_string(), SLACK))
}

fn delete(operator: &mut Callers, entry: &str) {
    block_in_place(|| assert_eq!(operator.ask(&format!("a delete {entry}")), "deleted"));
}

/// Ends the session of an entry of ours.
fn end_session(server: &ZooKeeperServer, entry: &str) {
    // Its name has the session: in the first 12 digits, and the first 4 behind the last `-` of the
    // UUID.
    let (_, uuid) = entry.rsplit_once("/_c_").unwrap();
    let parts: Vec<&str> = uuid.split('-').collect();
    let digits = format!("{}{}{}", parts[0], parts[1], &parts[4][..4]);
    let session = u64::from_str_radix(&digits, 16).unwrap().cast_signed();
    block_in_place(|| server.end_session(session));
}

type Waiter = JoinHandle<Result<LockGuard, LockError>>;

/// Starts to wait for `k`, and returns when the queue has this many entries.
async fn waiter(server: &ZooKeeperServer, locks: &LockManager, kind: Kind, place: usize) -> Waiter {
    let waiter = tokio::spawn(lock(locks, kind, "k").wait(LONG * 2).acquire());
    await_entries(server, "k", place, SLACK).await;
    waiter
}

async fn granted(waiter: Waiter) -> LockGuard {
    timeout(SLACK, waiter).await.unwrap().unwrap().unwrap()
}

/// It asks again, and gets its turn behind the holder.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_whose_session_ends_waits_again() {
    let (server, one, two) = start().await;
    for kind in QUEUED {
        let holder = one.mutex("k").acquire().await.unwrap();
        let second = waiter(&server, &two, kind, 2).await;
        let before = entries(&server, "k");
        end_session(&server, &before[1]);
        let has_come_again = async || {
            let now = entries(&server, "k");
            now.len() == 2 && now[0] == before[0] && now[1] != before[1]
        };
        eventually(has_come_again, SLACK).await;
        tokio::time::sleep(MEANWHILE).await;
        assert!(!second.is_finished() && !holder.is_lost());
        let token = holder.fencing_token();
        holder.release().await.unwrap();
        let guard = granted(second).await;
        assert!(guard.fencing_token() > token);
        guard.release().await.unwrap();
    }
    assert_nothing_is_left(&server, SLACK).await;
}

/// As above, if only the entry goes: somebody has deleted it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_whose_entry_is_deleted_waits_again() {
    let (server, one, two) = start().await;
    let mut operator = operator(&server);
    for kind in QUEUED {
        let holder = one.mutex("k").acquire().await.unwrap();
        let second = waiter(&server, &two, kind, 2).await;
        let before = entries(&server, "k");
        delete(&mut operator, &before[1]);
        await_entries(&server, "k", 2, SLACK).await;
        tokio::time::sleep(MEANWHILE).await;
        assert!(!second.is_finished() && !holder.is_lost());
        holder.release().await.unwrap();
        granted(second).await.release().await.unwrap();
    }
    assert_nothing_is_left(&server, SLACK).await;
}

/// A waiter that takes the end of the one before it for a grant would fail here.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_in_front_that_dies_lets_nobody_in() {
    let (server, one, three) = start().await;
    for kind in QUEUED {
        let holder = one.mutex("k").acquire().await.unwrap();
        let url = format!("{}/?timeout=3s&tick=200ms", server.url());
        let mut dies = Helper::spawn(HOLDER, [&*url, "lease=2000"]);
        block_in_place(|| {
            assert_eq!(dies.line(SLACK), "ready");
            assert_eq!(dies.ask("start k kind=write wait=60000"), "started");
        });
        await_entries(&server, "k", 2, SLACK).await;
        let third = waiter(&server, &three, kind, 3).await;
        let before = entries(&server, "k");
        block_in_place(|| dies.kill());
        eventually(async || entries(&server, "k") == [&*before[0], &*before[2]], SLACK).await;
        tokio::time::sleep(MEANWHILE).await;
        assert!(!third.is_finished() && !holder.is_lost());
        let token = holder.fencing_token();
        holder.release().await.unwrap();
        let guard = granted(third).await;
        assert!(guard.fencing_token() > token);
        guard.release().await.unwrap();
    }
    assert_nothing_is_left(&server, SLACK).await;
}

/// At the next renewal, at the latest.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hold_whose_session_ends_is_lost() {
    let lease = Duration::from_secs(6);
    let (server, two, _) = start().await;
    let one = connect(&server, lease).await;
    let guard = one.mutex("k").acquire().await.unwrap();
    // It ends with the same session.
    let beside = one.mutex("beside").acquire().await.unwrap();
    let second = waiter(&server, &two, Kind::Mutex, 2).await;
    end_session(&server, &entries(&server, "k")[0]);
    let next = granted(second).await;
    assert!(next.fencing_token() > guard.fencing_token());
    timeout(lease + SLACK, guard.lost()).await.unwrap();
    timeout(lease + SLACK, beside.lost()).await.unwrap();
    assert!(matches!(guard.release().await.unwrap_err(), LockError::Lost { .. }));
    assert!(!next.is_lost());
    assert_eq!(entries(&server, "k").len(), 1);
    next.release().await.unwrap();
    drop(beside);
    // The manager goes on in another session.
    one.mutex("k").acquire().await.unwrap().release().await.unwrap();
    assert_nothing_is_left(&server, SLACK).await;
}

/// Its session is kept, with heartbeats, for as long as it waits.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_keeps_its_place_for_longer_than_its_session() {
    let (server, one, _) = start().await;
    let url = format!("{}/?timeout=4s&tick=200ms", server.url());
    let two = LockManager::builder().lease(Duration::from_secs(2)).connect(url).await.unwrap();
    let holder = one.mutex("k").acquire().await.unwrap();
    let second = waiter(&server, &two, Kind::Fair, 2).await;
    let before = entries(&server, "k");
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert_eq!(entries(&server, "k"), before);
    assert!(!second.is_finished() && !holder.is_lost());
    holder.release().await.unwrap();
    granted(second).await.release().await.unwrap();
    assert_nothing_is_left(&server, SLACK).await;
}

/// A caller that takes locks one after the other, in the order of their names, waits for nobody who
/// takes them together.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn several_that_wait_for_one_key_keep_nobody_from_the_others_for_good() {
    let (server, one, two) = start().await;
    let first = one.mutex("k").acquire().await.unwrap();
    let both = tokio::spawn(two.multi(["k", "l"]).wait(LONG).acquire());
    tokio::time::sleep(MEANWHILE).await;
    assert!(!both.is_finished());
    let second = one.mutex("l").wait(SLACK / 2).acquire().await.unwrap();
    second.release().await.unwrap();
    first.release().await.unwrap();
    granted(both).await.release().await.unwrap();
    assert_nothing_is_left(&server, SLACK).await;
}
