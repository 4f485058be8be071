//! An ensemble of three whose members are killed, stopped or cut off.

use std::time::{Duration, Instant};

use lock_runtime::{LockError, LockGuard, LockManager};
use lock_tests::database_locks::{
    a_dead_or_stopped_waiter_takes_nothing_with_it,
    a_lock_of_a_dead_or_stopped_holder_is_free_after_its_lease,
};
use lock_tests::database_server::{SESSION, beside_a_busy_disk};
use lock_tests::hammers::Hammers;
use lock_tests::zookeeper::Options;
use lock_tests::{Helper, ZooKeeperEnsemble};
use tokio::task::block_in_place;
use tokio::time::timeout;

use crate::entries::{assert_nothing_is_left, await_entries};

const HAMMER: &str = env!("CARGO_BIN_EXE_hammer");
const HOLDER: &str = env!("CARGO_BIN_EXE_holder");
const LEASE: Duration = Duration::from_secs(2);
const SLACK: Duration = Duration::from_secs(30);

/// A lease that no pause of a busy machine outlasts.
const LONG: Duration = Duration::from_secs(50);

/// The time-out of short sessions, which are longer than [`LEASE`] and heartbeats.
const SHORT: Duration = Duration::from_secs(4);

/// Maximum time of the work beside all faults.
const LIMIT: Duration = Duration::from_secs(300);

/// Number of processes that work.
const PROCESSES: usize = 3;

fn start() -> ZooKeeperEnsemble {
    block_in_place(|| ZooKeeperEnsemble::start_with(Options::default().within(beside_a_busy_disk())))
}

/// Returns the URL of managers whose sessions have this time-out.
fn url(ensemble: &ZooKeeperEnsemble, timeout: Duration) -> String {
    format!("{}/?timeout={}s&tick=200ms", ensemble.url(), timeout.as_secs())
}

async fn connect(ensemble: &ZooKeeperEnsemble) -> LockManager {
    let url = url(ensemble, Duration::from_secs(60));
    LockManager::builder().lease(LONG).connect(url).await.unwrap()
}

/// Lets processes work, and makes `faults` meanwhile.
fn processes_never_overlap(url: &str, faults: impl FnOnce(&mut Hammers)) {
    let mut hammers = Hammers::start(HAMMER, url, PROCESSES, LIMIT, &LEASE.as_millis().to_string());
    hammers.await_work();
    faults(&mut hammers);
    // Beside the last fault, too.
    std::thread::sleep(LEASE);
    hammers.end();
    let done: usize = (0..PROCESSES).map(|at| hammers.done(at).sections).sum();
    let report = hammers.report();
    assert_eq!(report.total(), done, "{report}");
    report.assert_clean();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_leaders_and_followers_under_load_leave_one_holder() {
    let mut ensemble = start();
    block_in_place(|| {
        processes_never_overlap(&url(&ensemble, SHORT), |_| {
            for round in 0..2 {
                let leader = ensemble.leader();
                let dies = if round % 2 == 0 { leader } else { (leader + 1) % 3 };
                ensemble.kill(dies);
                ensemble.leader();
                std::thread::sleep(LEASE / 4);
                ensemble.restart(dies);
                ensemble.wait_until_ready();
            }
        });
    });
    assert_nothing_is_left(&ensemble, SHORT + SLACK).await;
    let locks = connect(&ensemble).await;
    locks.multi(["hammered:0", "hammered:1"]).acquire().await.unwrap().release().await.unwrap();
}

/// It goes on past every session, with what its clients had sent before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_follower_that_was_stopped_under_load_leaves_one_holder() {
    let mut ensemble = start();
    block_in_place(|| {
        processes_never_overlap(&url(&ensemble, SHORT), |_| {
            let follower = (ensemble.leader() + 1) % 3;
            ensemble.stop(follower);
            std::thread::sleep(SHORT * 5 / 4);
            ensemble.cont(follower);
            ensemble.wait_until_ready();
        });
    });
    assert_nothing_is_left(&ensemble, SHORT + SLACK).await;
}

/// It answers as if it still were the leader, and so does its client ask.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_that_was_stopped_and_a_client_that_was_stopped_with_it_hold_nothing() {
    let mut ensemble = start();
    block_in_place(|| {
        processes_never_overlap(&url(&ensemble, SHORT), |hammers| {
            for client_is_first in [true, false] {
                let leader = ensemble.leader();
                hammers.processes[0].stop();
                ensemble.stop(leader);
                assert_ne!(ensemble.leader(), leader);
                // Past every session.
                std::thread::sleep(SHORT * 3 / 2);
                if client_is_first {
                    hammers.processes[0].cont();
                }
                ensemble.cont(leader);
                if !client_is_first {
                    hammers.processes[0].cont();
                }
                ensemble.wait_until_ready();
            }
        });
    });
    assert_nothing_is_left(&ensemble, SHORT + SLACK).await;
}

/// A leader that is cut off from the others answers reads, pings and `sync` until it notices. So
/// does a follower.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_that_are_cut_off_from_the_others_grant_nothing_twice() {
    let mut ensemble = start();
    block_in_place(|| {
        processes_never_overlap(&url(&ensemble, SHORT), |_| {
            for cuts_leader in [true, false] {
                let leader = ensemble.leader();
                let cut = if cuts_leader { leader } else { (leader + 1) % 3 };
                ensemble.part(cut);
                ensemble.leader();
                // Past every session.
                std::thread::sleep(SHORT * 5 / 4);
                ensemble.join();
                ensemble.wait_until_ready();
            }
        });
    });
    assert_nothing_is_left(&ensemble, SHORT + SLACK).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_outlives_its_dead_or_stopped_process_by_its_lease() {
    let ensemble = start();
    block_in_place(|| {
        let url = format!("{}/{SESSION}", ensemble.url());
        a_lock_of_a_dead_or_stopped_holder_is_free_after_its_lease(&url, HOLDER, Helper::stop);
    });
    assert_nothing_is_left(&ensemble, SLACK).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiters_that_are_killed_and_stopped_are_passed_over() {
    let ensemble = start();
    block_in_place(|| {
        let url = format!("{}/{SESSION}", ensemble.url());
        a_dead_or_stopped_waiter_takes_nothing_with_it(&url, HOLDER, Helper::stop);
    });
    assert_nothing_is_left(&ensemble, SLACK).await;
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
    let mut ensemble = start();
    let [one, two, three] = [connect(&ensemble).await, connect(&ensemble).await, connect(&ensemble).await];
    for stops in [false, true] {
        let holder = one.mutex("k").acquire().await.unwrap();
        let second = tokio::spawn(two.mutex("k").wait(LONG * 2).acquire());
        await_entries(&ensemble, "k", 2, SLACK).await;
        let third = tokio::spawn(three.fair("k").wait(LONG * 2).acquire());
        await_entries(&ensemble, "k", 3, SLACK).await;
        let leader = block_in_place(|| ensemble.leader());
        block_in_place(|| if stops { ensemble.stop(leader) } else { ensemble.kill(leader) });
        block_in_place(|| ensemble.leader());
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
        block_in_place(|| if stops { ensemble.cont(leader) } else { ensemble.restart(leader) });
        block_in_place(|| ensemble.wait_until_ready());
    }
    assert_nothing_is_left(&ensemble, SLACK).await;
}

/// A holder counts its lock as lost when its lease is over. A request takes nothing, and leaves
/// nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_majority_nobody_gets_a_lock() {
    let mut ensemble = start();
    // Much longer than the bound below, so that no session that has ended is the reason.
    let url = url(&ensemble, Duration::from_secs(60));
    let builder = || LockManager::builder().lease(LEASE).call_timeout(LEASE / 4);
    let (one, other) = (builder().connect(&url).await.unwrap(), builder().connect(&url).await.unwrap());
    let guard = one.mutex("held").acquire().await.unwrap();
    let waiter = tokio::spawn(other.mutex("held").wait(SLACK * 3).acquire());
    let leader = block_in_place(|| ensemble.leader());
    let others: Vec<usize> = (0..3).filter(|at| *at != leader).collect();
    for at in &others {
        ensemble.stop(*at);
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
        ensemble.cont(at);
    }
    let next = timeout(SLACK * 3, waiter).await.unwrap().unwrap().unwrap();
    assert!(guard.is_lost() && next.fencing_token() > guard.fencing_token());
    release(next).await;
    drop(guard);
    assert_nothing_is_left(&ensemble, SLACK).await;
    let locks = builder().connect(url).await.unwrap();
    for key in ["free", "b", "c"] {
        locks.mutex(key).wait(SLACK).acquire().await.unwrap().release().await.unwrap();
    }
}
