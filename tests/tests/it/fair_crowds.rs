//! Crowds that wait for one fair lock in one process. Waiters far from the head cost the server
//! little; like all others, they are served in order, and leave with their process.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use lock_runtime::LockManager;
use lock_tests::kinds::{status, waiters_are};
use lock_tests::{Helper, RedisServer};

const LONG: Duration = Duration::from_secs(120);
const CROWD: usize = 400;
/// Time-out for something quick, on a busy machine.
const SLACK: Duration = Duration::from_secs(30);

async fn connect(server: &RedisServer) -> LockManager {
    LockManager::connect(&server.url()).await.unwrap()
}

/// Waits until `count` waiters of a crowd have been served, within `limit`.
async fn served_are(served: &Mutex<Vec<usize>>, count: usize, limit: Duration) {
    let began = Instant::now();
    while served.lock().unwrap().len() < count {
        assert!(began.elapsed() < limit, "{:?}", served.lock().unwrap().len());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Makes `count` tasks wait, in order. Each records its number when it is served.
async fn crowd(locks: &LockManager, first: usize, count: usize, served: &Arc<Mutex<Vec<usize>>>) {
    for number in first..first + count {
        let (waiter, served) = (locks.fair("k").wait(LONG).acquire(), Arc::clone(served));
        tokio::spawn(async move {
            let guard = waiter.await.unwrap();
            served.lock().unwrap().push(number);
            guard.release().await.unwrap();
        });
        // In order, but without a round trip for each.
        if number % 50 == 49 {
            waiters_are(locks, "k", number as u64 + 1).await;
        } else {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crowd_keeps_its_places_and_is_served_in_order() {
    let server = RedisServer::start();
    let (locks, other) = (connect(&server).await, connect(&server).await);
    let held = other.fair("k").acquire().await.unwrap();
    let served = Arc::default();
    crowd(&locks, 0, CROWD, &served).await;
    crowd(&other, CROWD, 1, &served).await;
    // Longer than a place lives without a sign of life, so each has been renewed.
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert_eq!(status(&locks, "k").await.waiters, CROWD as u64 + 1);
    held.release().await.unwrap();
    served_are(&served, CROWD + 1, SLACK).await;
    let served = served.lock().unwrap().clone();
    assert_eq!(*served.last().unwrap(), CROWD, "the other manager's came last");
    // Two tasks whose requests leave at nearly the same time may change places.
    let passed = served.windows(2).filter(|two| two[0] > two[1] + 1).count();
    assert!(passed <= CROWD / 50, "{passed} of {served:?}");
    assert_eq!(server.cli(&["KEYS", "*"]).lines().filter(|key| !key.contains("token")).count(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn far_ones_are_told_when_the_store_has_lost_their_places() {
    let server = RedisServer::start();
    let (locks, other) = (connect(&server).await, connect(&server).await);
    let held = other.fair("k").acquire().await.unwrap();
    let served = Arc::default();
    crowd(&locks, 0, CROWD, &served).await;
    tokio::time::sleep(Duration::from_secs(4)).await;
    // The holder's key stays.
    server.cli(&[
        "DEL",
        "redisson_lock_queue:{lock:k}",
        "redisson_lock_timeout:{lock:k}",
        "lock_fair_alive:{lock:k}",
    ]);
    let deadline = Instant::now() + SLACK;
    while status(&locks, "k").await.waiters < CROWD as u64 {
        assert!(Instant::now() < deadline, "{} have joined again", status(&locks, "k").await.waiters);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    held.release().await.unwrap();
    served_are(&served, CROWD, SLACK).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crowd_that_is_killed_holds_nobody_up() {
    let server = RedisServer::start();
    let locks = connect(&server).await;
    let held = locks.fair("k").acquire().await.unwrap();
    let mut doomed = Helper::spawn(env!("CARGO_BIN_EXE_holder"), [&*server.url()]);
    assert_eq!(doomed.line(SLACK), "ready");
    for _ in 0..CROWD {
        assert_eq!(doomed.ask("start k kind=fair wait=120000"), "started");
    }
    waiters_are(&locks, "k", CROWD as u64).await;
    let behind = tokio::spawn(locks.fair("k").wait(LONG).acquire());
    waiters_are(&locks, "k", CROWD as u64 + 1).await;
    // Their places have been renewed as those of distant waiters are.
    tokio::time::sleep(Duration::from_secs(5)).await;
    doomed.kill();
    tokio::time::sleep(Duration::from_secs(4)).await;
    held.release().await.unwrap();
    let granted = tokio::time::timeout(SLACK, behind).await.expect("the dead hold it up").unwrap();
    granted.unwrap().release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_that_ends_without_a_word_is_noticed_by_a_crowd() {
    let server = RedisServer::start();
    let (locks, other) = (connect(&server).await, connect(&server).await);
    let lease = Duration::from_secs(8);
    let _forgotten = other.fair("k").lease(lease).acquire().await.unwrap();
    let began = Instant::now();
    let served = Arc::default();
    crowd(&locks, 0, 150, &served).await;
    served_are(&served, 1, lease + SLACK).await;
    assert!(began.elapsed() >= lease / 2, "the lock was free before");
    served_are(&served, 150, SLACK).await;
}
