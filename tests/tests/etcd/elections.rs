//! A cluster of three whose members are killed or stopped.

use std::time::{Duration, Instant};

use lock_runtime::{LockError, LockGuard, LockManager};
use lock_tests::database_locks::{
    a_dead_or_stopped_waiter_takes_nothing_with_it,
    a_lock_of_a_dead_or_stopped_holder_is_free_after_its_lease,
};
use lock_tests::database_server::beside_a_busy_disk;
use lock_tests::etcd::Options;
use lock_tests::hammers::Hammers;
use lock_tests::overlap::Report;
use lock_tests::{EtcdCluster, Helper};
use tokio::time::timeout;

use crate::entries::{assert_nothing_is_left, await_entries};

const HAMMER: &str = env!("CARGO_BIN_EXE_hammer");
const HOLDER: &str = env!("CARGO_BIN_EXE_holder");
const LEASE: Duration = Duration::from_secs(2);
const SLACK: Duration = Duration::from_secs(30);

/// A lease that no pause of a busy machine outlasts.
const LONG: Duration = Duration::from_secs(60);

/// Number of processes that work.
const PROCESSES: usize = 3;

fn start() -> EtcdCluster {
    tokio::task::block_in_place(|| EtcdCluster::start_with(Options::default().within(beside_a_busy_disk())))
}

/// Whether a leader that was paused ends no living lease when it goes on: etcd-io/etcd#15247 is
/// fixed in 3.4.31 and 3.5.13.
fn has_sound_leases(cluster: &EtcdCluster) -> bool {
    let status = cluster.etcdctl(&["endpoint", "status"]);
    let version = status.lines().next().and_then(|line| line.split(", ").nth(2)).unwrap();
    let numbers: Vec<u32> = version.split('.').map(|part| part.parse().unwrap_or(0)).collect();
    match numbers[..] {
        [3, 4, patch] => patch >= 31,
        [3, 5, patch] => patch >= 13,
        _ => true,
    }
}

/// Lets processes work, and makes `faults` meanwhile.
pub(crate) fn processes_never_overlap(url: &str, time: Duration, faults: impl FnOnce(&mut Hammers)) {
    processes_work(url, time, faults).assert_clean();
}

/// As [`processes_never_overlap`]; returns what the log says.
fn processes_work(url: &str, time: Duration, faults: impl FnOnce(&mut Hammers)) -> Report {
    let mut hammers = Hammers::start(HAMMER, url, PROCESSES, time, &LEASE.as_millis().to_string());
    hammers.await_work();
    faults(&mut hammers);
    let done: usize = (0..PROCESSES).map(|at| hammers.done(at).sections).sum();
    let report = hammers.report();
    assert_eq!(report.total(), done, "{report}");
    report
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_leaders_and_followers_under_load_leave_one_holder() {
    let mut cluster = start();
    tokio::task::block_in_place(|| {
        processes_never_overlap(&cluster.url(), Duration::from_secs(8), |_| {
            for round in 0..4 {
                let leader = cluster.leader();
                let dies = if round % 2 == 0 { leader } else { (leader + 1) % 3 };
                cluster.kill(dies);
                cluster.leader();
                std::thread::sleep(LEASE / 4);
                cluster.restart(dies);
                cluster.wait_until_ready();
            }
        });
    });
    assert_nothing_is_left(&cluster, LEASE + SLACK).await;
    let locks = LockManager::connect(cluster.url()).await.unwrap();
    locks.multi(["a", "b"]).acquire().await.unwrap().release().await.unwrap();
}

/// It goes on past every lease, with what its clients had sent before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_follower_that_was_stopped_under_load_leaves_one_holder() {
    let mut cluster = start();
    tokio::task::block_in_place(|| {
        processes_never_overlap(&cluster.url(), Duration::from_secs(8), |_| {
            let follower = (cluster.leader() + 1) % 3;
            cluster.stop(follower);
            std::thread::sleep(LEASE * 2);
            cluster.cont(follower);
            cluster.wait_until_ready();
        });
    });
    assert_nothing_is_left(&cluster, LEASE + SLACK).await;
}

/// It answers as if it still were the leader, and so does its client ask.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_that_was_stopped_and_a_client_that_was_stopped_with_it_hold_nothing() {
    let mut cluster = start();
    tokio::task::block_in_place(|| {
        let is_sound = has_sound_leases(&cluster);
        let report = processes_work(&cluster.url(), Duration::from_secs(10), |hammers| {
            for client_is_first in [true, false] {
                let leader = cluster.leader();
                hammers.processes[0].stop();
                cluster.stop(leader);
                assert_ne!(cluster.leader(), leader);
                // Past every lease.
                std::thread::sleep(LEASE * 2);
                if client_is_first {
                    hammers.processes[0].cont();
                }
                cluster.cont(leader);
                if !client_is_first {
                    hammers.processes[0].cont();
                }
                cluster.wait_until_ready();
            }
        });
        if is_sound {
            report.assert_clean();
        }
    });
    assert_nothing_is_left(&cluster, LEASE + SLACK).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_outlives_its_dead_or_stopped_process_by_its_lease() {
    let cluster = start();
    tokio::task::block_in_place(|| {
        a_lock_of_a_dead_or_stopped_holder_is_free_after_its_lease(&cluster.url(), HOLDER, Helper::stop);
    });
    assert_nothing_is_left(&cluster, SLACK).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiters_that_are_killed_and_stopped_are_passed_over() {
    let cluster = start();
    tokio::task::block_in_place(|| {
        a_dead_or_stopped_waiter_takes_nothing_with_it(&cluster.url(), HOLDER, Helper::stop);
    });
    assert_nothing_is_left(&cluster, SLACK).await;
}

/// Releases. The first request may go to a member that does not answer.
async fn release(guard: LockGuard) {
    match guard.release().await {
        Ok(()) | Err(LockError::Unconfirmed { .. }) => {}
        Err(error) => panic!("{error:?}"),
    }
}

/// Neither the hold nor the places of those who wait are lost, and the lock goes on in order.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn holders_and_waiters_outlive_the_leader() {
    let mut cluster = start();
    let builder = || LockManager::builder().lease(LONG);
    let mut managers = Vec::new();
    for _ in 0..3 {
        managers.push(builder().connect(cluster.url()).await.unwrap());
    }
    for stops in [false, true] {
        let holder = managers[0].mutex("k").acquire().await.unwrap();
        let second = tokio::spawn(managers[1].mutex("k").wait(LONG * 2).acquire());
        await_entries(&cluster, "k", 2, SLACK).await;
        let third = tokio::spawn(managers[2].fair("k").wait(LONG * 2).acquire());
        await_entries(&cluster, "k", 3, SLACK).await;
        let leader = cluster.leader();
        tokio::task::block_in_place(|| if stops { cluster.stop(leader) } else { cluster.kill(leader) });
        tokio::task::block_in_place(|| cluster.leader());
        tokio::time::sleep(LEASE).await;
        assert!(!holder.is_lost() && !second.is_finished() && !third.is_finished());
        let mut tokens = vec![holder.fencing_token()];
        release(holder).await;
        let next = timeout(SLACK, second).await.unwrap().unwrap().unwrap();
        assert!(!third.is_finished());
        tokens.push(next.fencing_token());
        release(next).await;
        let last = timeout(SLACK, third).await.unwrap().unwrap().unwrap();
        tokens.push(last.fencing_token());
        release(last).await;
        assert!(tokens.is_sorted_by(|one, next| one < next), "{tokens:?}");
        tokio::task::block_in_place(|| if stops { cluster.cont(leader) } else { cluster.restart(leader) });
        tokio::task::block_in_place(|| cluster.wait_until_ready());
    }
    assert_nothing_is_left(&cluster, SLACK).await;
}

/// A holder counts its lock as lost when its lease is over. A request takes nothing, and leaves
/// nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_majority_nobody_gets_a_lock() {
    let mut cluster = start();
    let builder = || LockManager::builder().lease(LEASE).call_timeout(LEASE / 4);
    let (one, other) =
        (builder().connect(cluster.url()).await.unwrap(), builder().connect(cluster.url()).await.unwrap());
    let guard = one.mutex("held").acquire().await.unwrap();
    let waiter = tokio::spawn(other.mutex("held").wait(SLACK * 3).acquire());
    let leader = cluster.leader();
    let others: Vec<usize> = (0..3).filter(|at| *at != leader).collect();
    for at in &others {
        cluster.stop(*at);
    }
    let start = Instant::now();
    for locks in [&one, &other] {
        let error = locks.mutex("free").no_wait().acquire().await.unwrap_err();
        assert!(matches!(error, LockError::Unavailable { .. }), "{error:?}");
        let error = locks.multi(["b", "c"]).wait(LEASE / 2).acquire().await.unwrap_err();
        assert!(matches!(error, LockError::Unavailable { .. }), "{error:?}");
    }
    guard.lost().await;
    assert!(start.elapsed() < LEASE + SLACK, "{:?}", start.elapsed());
    let error = other.mutex("free").wait(LEASE).acquire().await.unwrap_err();
    assert!(matches!(error, LockError::Unavailable { .. }), "{error:?}");
    assert!(!waiter.is_finished());
    for at in others {
        cluster.cont(at);
    }
    let next = timeout(SLACK * 3, waiter).await.unwrap().unwrap().unwrap();
    assert!(guard.is_lost() && next.fencing_token() > guard.fencing_token());
    release(next).await;
    drop(guard);
    assert_nothing_is_left(&cluster, LEASE + SLACK).await;
    let locks = LockManager::connect(cluster.url()).await.unwrap();
    for key in ["free", "b", "c"] {
        locks.mutex(key).wait(SLACK).acquire().await.unwrap().release().await.unwrap();
    }
}
