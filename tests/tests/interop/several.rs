//! Locks of several keys: Redisson's multi lock, which takes the keys one by one in the order
//! given, and ours, which takes all or none. In a cluster most of the keys here are in different
//! slots.

use std::sync::Arc;
use std::time::{Duration, Instant};

use lock_runtime::{LockError, LockGuard, LockManager, Loss, MultiKey};
use lock_tests::clock::now_nanos;
use lock_tests::eventually;
use lock_tests::java::{
    Kind, LEASE, SLACK, Settings, Shared, connect, judge, nothing_is_left, with_defaults, with_short_lease,
    with_short_lease_and,
};
use lock_tests::overlap::{Recorder, Report};

const ROUNDS: usize = 10;

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

async fn is_free(locks: &LockManager, name: &str) -> bool {
    locks.mutex(name).try_acquire().await.unwrap().is_some()
}

async fn both(locks: &LockManager, keys: [&str; 2]) -> LockGuard {
    locks.multi(keys).wait(SLACK * 3).acquire().await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_java_multi_lock_keeps_rust_out_of_each_key_until_it_unlocks() {
    let server = Shared::start();
    let (locks, java) = with_defaults(&server).await;
    let multi = java.lock("a", "multi", "lock:b,lock:a");
    multi.lock().await.done();
    assert!(!is_free(&locks, "a").await && !is_free(&locks, "b").await);
    for keys in [["a", "b"], ["b", "c"]] {
        assert!(locks.multi(keys).try_acquire().await.unwrap().is_none());
    }
    assert!(is_free(&locks, "c").await, "all or nothing");
    let waiting = tokio::spawn({
        let locks = locks.clone();
        async move { both(&locks, ["a", "b"]).await }
    });
    eventually(async || Kind::Lock.waiting_clients(&server, "a") == 1, SLACK).await;
    assert!(!waiting.is_finished());
    let start = Instant::now();
    multi.unlock().await.done();
    waiting.await.unwrap().release().await.unwrap();
    assert!(start.elapsed() < SLACK);
    nothing_is_left(&server).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rust_lock_of_several_keys_keeps_java_out_of_each_until_it_releases() {
    let server = Shared::start();
    let (locks, java) = with_defaults(&server).await;
    let guard = both(&locks, ["a", "b"]).await;
    for name in ["a", "b"] {
        assert!(!java.lock("a", "lock", name).try_lock().await.is_true());
    }
    for members in ["lock:a,lock:b", "lock:c,lock:b"] {
        assert!(!java.lock("a", "multi", members).try_lock().await.is_true());
    }
    assert!(is_free(&locks, "c").await, "given back");
    let multi = java.lock("b", "multi", "lock:b,lock:a");
    let waiting = multi.lock().within(SLACK);
    java.is_parked("b").await;
    guard.release().await.unwrap();
    waiting.await.done();
    assert!(!is_free(&locks, "a").await && !is_free(&locks, "b").await);
    multi.unlock().await.done();
    nothing_is_left(&server).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn several_keys_pass_from_one_side_to_the_other_at_once() {
    let server = Shared::start();
    let (locks, java) = with_defaults(&server).await;
    let (mut to_java, mut to_rust) = (Vec::new(), Vec::new());
    // The first round loads classes and scripts.
    for round in 0..=ROUNDS {
        // New names for each round, so that nobody listens for them yet.
        let (a, b) = (format!("a{round}"), format!("b{round}"));
        let members = format!("lock:{b},lock:{a}");
        let multi = java.lock("a", "multi", &members);
        let guard = both(&locks, [&a, &b]).await;
        let waiting = multi.lock().within(SLACK);
        java.is_parked("a").await;
        let released = now_nanos();
        guard.release().await.unwrap();
        let entered = waiting.await;
        entered.done();

        let waiting = tokio::spawn({
            let (locks, a, b) = (locks.clone(), a.clone(), b.clone());
            async move { (both(&locks, [&a, &b]).await, now_nanos()) }
        });
        eventually(async || Kind::Lock.waiting_clients(&server, &a) == 1, SLACK).await;
        let unlocked = multi.unlock().await;
        unlocked.done();
        let (guard, entered_again) = waiting.await.unwrap();
        guard.release().await.unwrap();
        if round > 0 {
            to_java.push(Duration::from_nanos(entered.end - released));
            to_rust.push(Duration::from_nanos(entered_again - unlocked.start));
        }
    }
    judge("several keys, Rust to Java", to_java);
    judge("several keys, Java to Rust", to_rust);
}

/// Redisson holds one key while it waits for the other; our side holds nothing while it waits.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_same_keys_in_opposite_orders_go_on_on_both_sides() {
    let server = Shared::start();
    let (locks, java) = with_short_lease(&server).await;
    let time = Duration::from_secs(3);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("log");
    let recorder = Arc::new(Recorder::open(&path).unwrap());
    let end = Instant::now() + time;
    let tasks: Vec<_> = (0..4)
        .map(|_| {
            let (locks, recorder) = (locks.clone(), recorder.clone());
            tokio::spawn(async move {
                let mut rounds = 0_u64;
                while Instant::now() < end {
                    let guard = both(&locks, ["a", "b"]).await;
                    let sections: Vec<_> = guard
                        .tokens()
                        .iter()
                        .map(|(key, token)| recorder.enter(key.as_str(), token.get(), || guard.remaining()))
                        .collect();
                    tokio::time::sleep(ms(1)).await;
                    for section in sections {
                        recorder.leave(section, || guard.remaining());
                    }
                    guard.release().await.unwrap();
                    rounds += 1;
                }
                rounds
            })
        })
        .collect();
    let (one, two) = (java.lock("a", "multi", "lock:b,lock:a"), java.lock("b", "multi", "lock:b,lock:a"));
    let (one, two) = tokio::join!(one.hammer(time, ms(1), &path), two.hammer(time, ms(1), &path));
    let mut rust = 0;
    for task in tasks {
        rust += task.await.unwrap();
    }
    println!(
        "several keys: {} rounds of Java, longest wait {:.2?}; {rust} of Rust",
        one.0 + two.0,
        one.1.max(two.1)
    );
    assert!(one.0 > 0 && two.0 > 0 && rust > 0);
    let report = Report::read(&path).unwrap();
    report.assert_clean();
    assert_eq!(report.total() as u64, 2 * (one.0 + two.0 + rust));
    nothing_is_left(&server).await;
}

/// The keys are in one slot of a cluster, since a lock of ours over several slots has no place in a
/// queue.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn several_keys_of_several_kinds_are_the_same_on_both_sides() {
    let server = Shared::start();
    let (locks, java) = with_defaults(&server).await;
    let other = connect(&server, |builder| builder).await;
    let keys = || {
        [MultiKey::fair("{t}:f"), MultiKey::mutex("{t}:m"), MultiKey::read("{t}:r"), MultiKey::write("{t}:w")]
    };
    let multi = java.lock("a", "multi", "write:{t}:w,read:{t}:r,lock:{t}:m,fair:{t}:f");
    multi.lock().await.done();
    assert!(locks.fair("{t}:f").try_acquire().await.unwrap().is_none());
    assert!(!is_free(&locks, "{t}:m").await);
    assert!(locks.write("{t}:r").try_acquire().await.unwrap().is_none());
    assert!(locks.read("{t}:r").try_acquire().await.unwrap().is_some(), "readers are inside together");
    assert!(locks.read("{t}:w").try_acquire().await.unwrap().is_none());
    assert!(locks.multi(keys()).try_acquire().await.unwrap().is_none());
    let waiting = tokio::spawn({
        let locks = locks.clone();
        async move { locks.multi(keys()).wait(SLACK * 3).acquire().await.unwrap() }
    });
    eventually(async || Kind::Fair.waiting_clients(&server, "{t}:f") == 1, SLACK).await;
    multi.unlock().await.done();
    let guard = waiting.await.unwrap();
    for (kind, name) in [("fair", "{t}:f"), ("lock", "{t}:m"), ("write", "{t}:r"), ("read", "{t}:w")] {
        assert!(!java.lock("b", kind, name).try_lock().await.is_true(), "{name}");
    }
    let reader = java.lock("b", "read", "{t}:r");
    assert!(reader.try_lock().await.is_true());
    assert!(other.read("{t}:r").try_acquire().await.unwrap().is_some());
    reader.unlock().await.done();
    let waiting = multi.lock().within(SLACK * 3);
    guard.release().await.unwrap();
    waiting.await.done();
    multi.unlock().await.done();
    nothing_is_left(&server).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn java_enters_a_key_of_its_multi_lock_again_and_rust_waits_for_the_last_unlock() {
    let server = Shared::start();
    let (locks, java) = with_defaults(&server).await;
    let (multi, single) = (java.lock("a", "multi", "lock:a,lock:b"), java.lock("a", "lock", "a"));
    multi.lock().await.done();
    single.lock().await.done();
    multi.lock().await.done();
    assert_eq!(single.status().await.count, 3);
    let waiting = tokio::spawn({
        let locks = locks.clone();
        async move { both(&locks, ["a", "b"]).await }
    });
    eventually(async || Kind::Lock.waiting_clients(&server, "a") == 1, SLACK).await;
    for lock in [multi, single] {
        lock.unlock().await.done();
        assert!(!waiting.is_finished() && !is_free(&locks, "b").await);
    }
    multi.unlock().await.done();
    waiting.await.unwrap().release().await.unwrap();
    nothing_is_left(&server).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn several_keys_are_lost_together_when_java_takes_one_by_force() {
    let server = Shared::start();
    let (locks, java) = with_short_lease(&server).await;
    let guard = both(&locks, ["a", "b"]).await;
    assert!(java.lock("admin", "lock", "b").force_unlock().await.is_true());
    tokio::time::timeout(LEASE + SLACK, guard.lost()).await.expect("the locks are lost");
    match guard.release().await {
        Err(LockError::Lost { why, .. }) => assert_eq!(why, Loss::TakenAway),
        other => panic!("{other:?}"),
    }
    nothing_is_left(&server).await;
    // And the other way round.
    let multi = java.lock("a", "multi", "lock:a,lock:b");
    multi.lock().await.done();
    assert!(locks.force_release("a").await.unwrap());
    let guard = locks.mutex("a").acquire().await.unwrap();
    assert_eq!(multi.unlock().await.exception(), "IllegalMonitorStateException");
    assert!(!guard.is_lost());
    guard.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn several_keys_of_a_killed_java_holder_are_free_within_its_lease() {
    let server = Shared::start();
    let (locks, mut java) = with_short_lease_and(&server, Settings::default().alone()).await;
    java.lock("a", "multi", "lock:{t}:a,fair:{t}:b").lock().await.done();
    let keys = [MultiKey::mutex("{t}:a"), MultiKey::fair("{t}:b")];
    let waiting = tokio::spawn(async move { locks.multi(keys).wait(SLACK * 3).acquire().await.unwrap() });
    eventually(async || Kind::Fair.waiting_clients(&server, "{t}:b") == 1, SLACK).await;
    java.kill();
    let killed = Instant::now();
    waiting.await.unwrap().release().await.unwrap();
    println!("in {:.2?} after Java was killed, lease {LEASE:?}", killed.elapsed());
    assert!(killed.elapsed() < LEASE + SLACK);
    nothing_is_left(&server).await;
}
