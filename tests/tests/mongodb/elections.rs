//! A replica set of three whose primaries are killed, stopped, or told to step down.

use std::time::{Duration, Instant};

use lock_runtime::{LockError, LockManager};
use lock_tests::database_server::{beside_a_busy_disk, records};
use lock_tests::hammers::Hammers;
use lock_tests::mongodb::Options;
use lock_tests::{MongoDbSet, eventually};

const HAMMER: &str = env!("CARGO_BIN_EXE_hammer");
const LEASE: Duration = Duration::from_secs(2);
const SLACK: Duration = Duration::from_secs(30);

/// Number of processes that work.
const PROCESSES: usize = 3;

fn start() -> MongoDbSet {
    let options = Options::default().within(beside_a_busy_disk()).election_timeout(Duration::from_secs(1));
    tokio::task::block_in_place(|| MongoDbSet::start_with(options))
}

async fn assert_nothing_is_left(set: &MongoDbSet) {
    let is_empty = async || {
        let primary = tokio::task::block_in_place(|| set.primary());
        records(set.member(primary)) == Some(0)
    };
    eventually(is_empty, LEASE + SLACK).await;
}

/// Lets processes work, and makes `faults` meanwhile.
fn processes_never_overlap(url: &str, time: Duration, faults: impl FnOnce(&mut Hammers)) {
    let mut hammers = Hammers::start(HAMMER, url, PROCESSES, time, &LEASE.as_millis().to_string());
    hammers.await_work();
    faults(&mut hammers);
    let done: usize = (0..PROCESSES).map(|at| hammers.done(at).sections).sum();
    let report = hammers.report();
    report.assert_clean();
    assert_eq!(report.total(), done, "{report}");
}

/// Grants are of a majority, so a new primary has them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn elections_under_load_have_one_holder() {
    let mut set = start();
    tokio::task::block_in_place(|| {
        processes_never_overlap(&set.url(), Duration::from_secs(8), |_| {
            for _ in 0..2 {
                set.step_down();
                std::thread::sleep(LEASE / 4);
                let primary = set.primary();
                set.kill(primary);
                set.primary();
                std::thread::sleep(LEASE / 4);
                set.restart(primary);
                set.settle();
            }
        });
    });
    assert_nothing_is_left(&set).await;
    let locks = LockManager::connect(set.url()).await.unwrap();
    locks.multi(["a", "b"]).acquire().await.unwrap().release().await.unwrap();
}

/// It answers as if it were still the primary, and so does its client ask.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_primary_that_was_stopped_and_a_client_that_was_stopped_with_it_hold_nothing() {
    let mut set = start();
    tokio::task::block_in_place(|| {
        processes_never_overlap(&set.url(), Duration::from_secs(8), |hammers| {
            for client_is_first in [true, false] {
                let primary = set.primary();
                hammers.processes[0].stop();
                set.stop(primary);
                let next = set.primary();
                assert_ne!(primary, next);
                // Past every lease.
                std::thread::sleep(LEASE * 3 / 2);
                if client_is_first {
                    hammers.processes[0].cont();
                }
                set.cont(primary);
                if !client_is_first {
                    hammers.processes[0].cont();
                }
                set.settle();
            }
        });
    });
    assert_nothing_is_left(&set).await;
}

/// A holder counts its lock as lost when its lease is over. A request takes nothing, and leaves
/// nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_majority_nobody_gets_a_lock() {
    let mut set = start();
    let builder = || LockManager::builder().lease(LEASE).call_timeout(LEASE / 4);
    let (one, other) =
        (builder().connect(set.url()).await.unwrap(), builder().connect(set.url()).await.unwrap());
    let guard = one.mutex("held").acquire().await.unwrap();
    let waiter = tokio::spawn(other.mutex("held").wait(SLACK * 3).acquire());
    let primary = set.primary();
    let others: Vec<usize> = (0..3).filter(|at| *at != primary).collect();
    for at in &others {
        set.stop(*at);
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
        set.cont(at);
    }
    let next = waiter.await.unwrap().unwrap();
    assert!(guard.is_lost() && next.fencing_token() > guard.fencing_token());
    next.release().await.unwrap();
    drop(guard);
    assert_nothing_is_left(&set).await;
    for key in ["free", "b", "c"] {
        one.mutex(key).wait(SLACK).acquire().await.unwrap().release().await.unwrap();
    }
}
