//! Waiters in a fair queue that die or pause: those behind pass over them, in order, and wait no
//! longer than a dead waiter counts as alive.

use std::sync::Arc;
use std::time::Duration;

use lock_core::store::{AcquireRequest, Acquired, Item, LockStore, WAITER_LIFE};
use lock_runtime::testing::named_memory_store;
use lock_runtime::{Kind, LockKey, LockManager, OwnerId};
use lock_tests::kinds::{status, waiters_are};
use tokio::time::Instant;

const LONG: Duration = Duration::from_secs(60);
const ENDLESS: Duration = Duration::from_secs(3600);

/// Joins the queue and is never heard of again.
async fn dies_in_line(store: &Arc<dyn LockStore>, name: &str) {
    let item = Item {
        key: LockKey::new("dead").unwrap(),
        kind: Kind::Fair,
        owner: OwnerId::new(format!("dead:{name}")),
    };
    let request = AcquireRequest::new(vec![item], ENDLESS, Duration::from_secs(2)).queued(LONG);
    assert!(matches!(store.acquire(Arc::new(request)).await.unwrap(), Acquired::Busy(_)));
}

async fn rivals(name: &str) -> (LockManager, LockManager, Arc<dyn LockStore>) {
    let url = format!("memory:{name}");
    let settings = || LockManager::builder().lease(ENDLESS).prefix("");
    let (locks, other) = (settings().connect(&url).await.unwrap(), settings().connect(&url).await.unwrap());
    (locks, other, named_memory_store(name))
}

#[tokio::test(start_paused = true)]
async fn a_dead_head_is_passed_over_when_it_has_not_been_heard_of() {
    let (locks, other, store) = rivals("dead-head").await;
    let held = locks.fair("dead").acquire().await.unwrap();
    dies_in_line(&store, "1").await;
    dies_in_line(&store, "2").await;
    let waiter = tokio::spawn(other.fair("dead").wait(LONG).acquire());
    waiters_are(&locks, "dead", 3).await;
    let start = Instant::now();
    held.release().await.unwrap();
    let guard = waiter.await.unwrap().unwrap();
    // Not the minutes of a dead Redisson head: the life of a waiter, and the next check.
    assert!(start.elapsed() <= WAITER_LIFE + Duration::from_millis(1600), "{:?}", start.elapsed());
    assert_eq!(status(&locks, "dead").await.waiters, 0);
    guard.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_head_that_has_long_been_dead_costs_nothing() {
    let (locks, other, store) = rivals("long-dead").await;
    let held = locks.fair("dead").acquire().await.unwrap();
    dies_in_line(&store, "1").await;
    let first = tokio::spawn(other.fair("dead").wait(LONG).acquire());
    waiters_are(&locks, "dead", 2).await;
    dies_in_line(&store, "2").await;
    let second = tokio::spawn(locks.fair("dead").wait(LONG).acquire());
    waiters_are(&locks, "dead", 4).await;
    tokio::time::sleep(WAITER_LIFE * 2).await;
    let start = Instant::now();
    held.release().await.unwrap();
    let guard = first.await.unwrap().unwrap();
    let token = guard.fencing_token();
    assert!(!second.is_finished());
    guard.release().await.unwrap();
    let guard = second.await.unwrap().unwrap();
    assert!(guard.fencing_token() > token);
    assert!(start.elapsed() < Duration::from_millis(50), "{:?}", start.elapsed());
    guard.release().await.unwrap();
}

/// The lock is released to a head that dies before it can use the grant. The lease of that grant is
/// short, and then it is the next one's turn.
#[tokio::test(start_paused = true)]
async fn a_head_that_dies_as_it_is_granted_holds_the_others_up_for_a_short_lease_only() {
    let (locks, other, store) = rivals("dies-granted").await;
    let held = locks.fair("dead").acquire().await.unwrap();
    dies_in_line(&store, "1").await;
    let waiter = tokio::spawn(other.fair("dead").wait(LONG).acquire());
    waiters_are(&locks, "dead", 2).await;
    let start = Instant::now();
    held.release().await.unwrap();
    let guard = waiter.await.unwrap().unwrap();
    let bound = lock_core::store::DIRECT_LEASE + WAITER_LIFE;
    assert!(start.elapsed() < bound, "{:?}", start.elapsed());
    guard.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_try_is_not_refused_for_ever_because_of_the_dead() {
    let (locks, _, store) = rivals("dead-try").await;
    let held = locks.fair("dead").acquire().await.unwrap();
    dies_in_line(&store, "1").await;
    tokio::time::sleep(WAITER_LIFE * 2).await;
    held.release().await.unwrap();
    let guard = locks.fair("dead").try_acquire().await.unwrap().expect("only the dead are before it");
    guard.release().await.unwrap();
}
