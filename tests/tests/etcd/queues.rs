//! Queues whose entries vanish, and waits through a compaction. On a cluster of three.

use std::time::Duration;

use lock_runtime::{Kind, LockError, LockGuard, LockManager};
use lock_tests::database_locks::ten_thousand_waiters_are_one_entry;
use lock_tests::database_server::{LockServer, beside_a_busy_disk, url};
use lock_tests::etcd::{Etcd, Options};
use lock_tests::kinds::lock;
use lock_tests::{EtcdCluster, Helper, eventually};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::entries::{Ctl, assert_only_epochs_are_left, await_entries, entries, lease_of, name};

const HOLDER: &str = env!("CARGO_BIN_EXE_holder");
const SLACK: Duration = Duration::from_secs(30);

/// A lease that no pause of a busy machine outlasts.
const LONG: Duration = Duration::from_secs(60);

/// Time in which somebody who gets in by mistake would do so.
const MEANWHILE: Duration = Duration::from_millis(1500);

/// The kinds that have a queue in etcd.
const QUEUED: [Kind; 2] = [Kind::Mutex, Kind::Fair];

fn start() -> EtcdCluster {
    tokio::task::block_in_place(|| EtcdCluster::start_with(Options::default().within(beside_a_busy_disk())))
}

async fn connect(cluster: &EtcdCluster) -> LockManager {
    LockManager::builder().lease(LONG).connect(cluster.url()).await.unwrap()
}

type Waiter = JoinHandle<Result<LockGuard, LockError>>;

/// Starts to wait for `k`, and returns when the queue has this many entries.
async fn waiter(cluster: &EtcdCluster, locks: &LockManager, kind: Kind, place: usize) -> Waiter {
    let waiter = tokio::spawn(lock(locks, kind, "k").wait(LONG * 2).acquire());
    await_entries(cluster, "k", place, SLACK).await;
    waiter
}

async fn granted(waiter: Waiter) -> LockGuard {
    timeout(SLACK, waiter).await.unwrap().unwrap().unwrap()
}

fn revoke(cluster: &EtcdCluster, entry: &str) {
    let said = cluster.ctl(&["lease", "revoke", lease_of(entry)]).unwrap();
    assert!(said.contains("revoked"), "{said}");
}

/// Watches that begin at a revision which is gone would fail, also when they are opened again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiters_outlive_a_compaction() {
    let mut cluster = start();
    let (one, two, three) = (connect(&cluster).await, connect(&cluster).await, connect(&cluster).await);
    let holder = one.mutex("k").acquire().await.unwrap();
    let second = waiter(&cluster, &two, Kind::Mutex, 2).await;
    let third = waiter(&cluster, &three, Kind::Fair, 3).await;
    for n in 0..5 {
        cluster.ctl(&["put", "other", &n.to_string()]).unwrap();
        let said = cluster.ctl(&["get", "other", "--write-out=fields"]).unwrap();
        let revision = said.lines().find_map(|line| line.strip_prefix("\"Revision\" : ")).unwrap();
        let said = cluster.ctl(&["compact", revision]).unwrap();
        assert!(said.contains("compacted"), "{said}");
    }
    cluster.ctl(&["del", "other"]).unwrap();
    // By then, each member has closed its connections.
    for at in 0..3 {
        tokio::task::block_in_place(|| {
            cluster.restart(at);
            cluster.wait_until_ready();
        });
    }
    tokio::time::sleep(MEANWHILE).await;
    assert!(!second.is_finished() && !third.is_finished());
    let mut token = holder.fencing_token();
    holder.release().await.unwrap();
    for waiter in [second, third] {
        let guard = granted(waiter).await;
        assert!(guard.fencing_token() > token);
        token = guard.fencing_token();
        guard.release().await.unwrap();
    }
    assert_only_epochs_are_left(&cluster, SLACK).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_waiters_of_a_process_are_one_entry() {
    let server = Etcd::start_beside_a_busy_disk().await;
    let connect = async || LockManager::connect(url(&server)).await.unwrap();
    let (holder, locks) = (connect().await, connect().await);
    ten_thousand_waiters_are_one_entry(&holder, &locks, || entries(&server, "k").len()).await;
}

/// It asks again, and gets its turn behind the holder.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_whose_session_ends_waits_again() {
    let cluster = start();
    let (one, two) = (connect(&cluster).await, connect(&cluster).await);
    for kind in QUEUED {
        let holder = one.mutex("k").acquire().await.unwrap();
        let second = waiter(&cluster, &two, kind, 2).await;
        let before = entries(&cluster, "k");
        revoke(&cluster, &before[1]);
        let has_come_again = async || {
            let now = entries(&cluster, "k");
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
    assert_only_epochs_are_left(&cluster, SLACK).await;
}

/// As above, if only the entry goes: somebody has deleted it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_whose_entry_is_deleted_waits_again() {
    let cluster = start();
    let (one, two) = (connect(&cluster).await, connect(&cluster).await);
    for kind in QUEUED {
        let holder = one.mutex("k").acquire().await.unwrap();
        let second = waiter(&cluster, &two, kind, 2).await;
        let before = entries(&cluster, "k");
        cluster.ctl(&["del", &before[1]]).unwrap();
        await_entries(&cluster, "k", 2, SLACK).await;
        tokio::time::sleep(MEANWHILE).await;
        assert!(!second.is_finished() && !holder.is_lost());
        holder.release().await.unwrap();
        granted(second).await.release().await.unwrap();
    }
    assert_only_epochs_are_left(&cluster, SLACK).await;
}

/// A waiter that takes the end of the one before it for a grant would fail here.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_in_front_that_dies_lets_nobody_in() {
    let cluster = start();
    let (one, three) = (connect(&cluster).await, connect(&cluster).await);
    let dies_as = |etcdctl: bool| match etcdctl {
        true => cluster.spawn_etcdctl(&["lock", &name("k"), "--ttl=2"]),
        false => {
            let mut dies = Helper::spawn(HOLDER, [&*cluster.url(), "lease=2000"]);
            tokio::task::block_in_place(|| {
                assert_eq!(dies.line(SLACK), "ready");
                assert_eq!(dies.ask("start k wait=60000"), "started");
            });
            dies
        }
    };
    for etcdctl in [false, true] {
        for kind in QUEUED {
            let holder = one.mutex("k").acquire().await.unwrap();
            let mut dies = dies_as(etcdctl);
            await_entries(&cluster, "k", 2, SLACK).await;
            let third = waiter(&cluster, &three, kind, 3).await;
            tokio::task::block_in_place(|| dies.kill());
            await_entries(&cluster, "k", 2, SLACK).await;
            tokio::time::sleep(MEANWHILE).await;
            assert!(!third.is_finished() && !holder.is_lost());
            let token = holder.fencing_token();
            holder.release().await.unwrap();
            let guard = granted(third).await;
            assert!(guard.fencing_token() > token);
            guard.release().await.unwrap();
        }
    }
    assert_only_epochs_are_left(&cluster, SLACK).await;
}

/// At the next renewal, at the latest.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hold_whose_lease_is_revoked_is_lost() {
    let lease = Duration::from_secs(6);
    let cluster = start();
    let one = LockManager::builder().lease(lease).connect(cluster.url()).await.unwrap();
    let two = connect(&cluster).await;
    let guard = one.mutex("k").acquire().await.unwrap();
    // It ends with the same session.
    let beside = one.mutex("beside").acquire().await.unwrap();
    let second = waiter(&cluster, &two, Kind::Mutex, 2).await;
    revoke(&cluster, &entries(&cluster, "k")[0]);
    let next = granted(second).await;
    assert!(next.fencing_token() > guard.fencing_token());
    timeout(lease + SLACK, guard.lost()).await.unwrap();
    timeout(lease + SLACK, beside.lost()).await.unwrap();
    assert!(matches!(guard.release().await.unwrap_err(), LockError::Lost { .. }));
    assert!(!next.is_lost());
    assert_eq!(entries(&cluster, "k").len(), 1);
    next.release().await.unwrap();
    drop(beside);
    // The manager goes on in another session.
    one.mutex("k").acquire().await.unwrap().release().await.unwrap();
    assert_only_epochs_are_left(&cluster, SLACK).await;
}

/// Its session is kept, with heartbeats, for as long as it waits.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_keeps_its_place_for_longer_than_its_lease() {
    let cluster = start();
    let lease = Duration::from_secs(6);
    let one = connect(&cluster).await;
    let two = LockManager::builder().lease(lease).connect(cluster.url()).await.unwrap();
    let holder = one.mutex("k").acquire().await.unwrap();
    let second = waiter(&cluster, &two, Kind::Fair, 2).await;
    let before = entries(&cluster, "k");
    tokio::time::sleep(lease * 5 / 2).await;
    assert_eq!(entries(&cluster, "k"), before);
    assert!(!second.is_finished() && !holder.is_lost());
    holder.release().await.unwrap();
    granted(second).await.release().await.unwrap();
    assert_only_epochs_are_left(&cluster, SLACK).await;
}

/// The session lives on meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_keeps_its_place_while_the_server_is_silent() {
    let mut server = Etcd::start_beside_a_busy_disk().await;
    let one = LockManager::builder().lease(LONG).connect(url(&server)).await.unwrap();
    // Its session lasts for 24 s, and gets a heartbeat every 6 s.
    let two = LockManager::builder().lease(Duration::from_secs(18)).connect(url(&server)).await.unwrap();
    let holder = one.mutex("k").acquire().await.unwrap();
    let second = tokio::spawn(two.mutex("k").wait(LONG * 2).acquire());
    let before = await_entries(&server, "k", 2, SLACK).await;
    server.stop();
    tokio::time::sleep(Duration::from_secs(11)).await;
    server.cont();
    // What was deleted would be gone, or made again, by then.
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(entries(&server, "k"), before);
    holder.release().await.unwrap();
    granted(second).await.release().await.unwrap();
}

/// It moves to a session that lasts for long enough.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_extended_hold_outlives_the_session_in_which_it_was_made() {
    let cluster = start();
    let (one, two) = (connect(&cluster).await, connect(&cluster).await);
    let guard = one.mutex("k").lease(Duration::from_secs(20)).acquire().await.unwrap();
    guard.extend(Duration::from_secs(600)).await.unwrap();
    let before = entries(&cluster, "k");
    revoke(&cluster, &before[0]);
    assert_eq!(entries(&cluster, "k"), before);
    assert!(guard.remaining() > Duration::from_secs(300), "{guard:?}");
    assert!(two.mutex("k").try_acquire().await.unwrap().is_none());
    guard.extend(Duration::from_secs(900)).await.unwrap();
    assert!(!guard.is_lost() && guard.remaining() > Duration::from_secs(600), "{guard:?}");
    let second = waiter(&cluster, &two, Kind::Fair, 2).await;
    let token = guard.fencing_token();
    guard.release().await.unwrap();
    let next = granted(second).await;
    assert!(next.fencing_token() > token);
    // Both sessions can be used, whatever has ended.
    let again = tokio::spawn(one.mutex("k").wait(LONG).acquire());
    await_entries(&cluster, "k", 2, SLACK).await;
    next.release().await.unwrap();
    granted(again).await.release().await.unwrap();
    assert_only_epochs_are_left(&cluster, SLACK).await;
}

/// A caller that takes locks one after the other, in the order of their names, waits for nobody who
/// takes them together.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn several_that_wait_for_one_key_keep_nobody_from_the_others_for_good() {
    let cluster = start();
    let (one, two) = (connect(&cluster).await, connect(&cluster).await);
    let first = one.mutex("k").acquire().await.unwrap();
    let both = tokio::spawn(two.multi(["k", "l"]).wait(LONG).acquire());
    tokio::time::sleep(MEANWHILE).await;
    assert!(!both.is_finished());
    let second = one.mutex("l").wait(SLACK / 2).acquire().await.unwrap();
    second.release().await.unwrap();
    first.release().await.unwrap();
    granted(both).await.release().await.unwrap();
    assert_only_epochs_are_left(&cluster, SLACK).await;
}
