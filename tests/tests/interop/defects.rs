//! Defects of Redisson, and differences from its own documentation: how they show, and that our
//! side stays correct beside them. `docs/book/src/interop.md` says what to avoid.

use std::time::{Duration, Instant};

use lock_runtime::{LockError, LockManager};
use lock_tests::eventually;
use lock_tests::java::{Java, Kind, SLACK, Servers, Settings, Shared, connect};

/// Lease of Redisson's watchdog, short enough to see a few renewals.
const WATCHDOG: Duration = Duration::from_secs(1);

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

async fn both(server: &impl Servers) -> (LockManager, Java) {
    let java = Java::start_with(server, Settings::default().watchdog(WATCHDOG)).await;
    (connect(server, |builder| builder).await, java)
}

/// Returns the milliseconds that the lock has left; `None` if it is free.
fn time_left(server: &impl Servers) -> Option<u64> {
    server.ask("k", &["PTTL", "k"]).parse().ok()
}

/// Redisson keeps the lease of an expired hold for the next hold of the same object. That hold may
/// end before the watchdog's first renewal.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_java_hold_with_the_lease_of_an_expired_one_ends_early_and_rust_has_the_next() {
    let server = Shared::start();
    let watchdog = Duration::from_secs(6);
    let java = Java::start_with(&server, Settings::default().watchdog(watchdog)).await;
    let locks = connect(&server, |builder| builder).await;
    let lock = java.lock("a", "lock", "k");
    lock.lock_for(ms(500)).await.done();
    eventually(async || time_left(&server).is_none(), SLACK).await;
    lock.lock().await.done();
    let left = time_left(&server).expect("it is held");
    assert!(left <= 500, "{left} ms, although the watchdog has {watchdog:?}: is the defect mended?");
    let guard = locks.mutex("k").wait(SLACK).acquire().await.unwrap();
    // Java believes that it holds the lock, and goes on renewing, but only finds its own holds.
    let start = Instant::now();
    while start.elapsed() < watchdog / 3 + ms(1000) {
        assert!(!guard.is_lost());
        assert!(is_ours(&locks, &guard).await);
        tokio::time::sleep(ms(100)).await;
    }
    assert_eq!(lock.unlock().await.exception(), "IllegalMonitorStateException");
    guard.release().await.expect("held until here");
}

async fn is_ours(locks: &LockManager, guard: &lock_runtime::LockGuard) -> bool {
    let status = locks.status(guard.key().clone()).await.unwrap();
    status.holders.len() == 1 && status.last_token == Some(guard.fencing_token())
}

/// A thread that is interrupted while its script is in flight leaves a lock that nobody holds, and
/// that Redisson renews forever.
#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_left_by_an_interrupted_java_thread_is_seen_and_freed_by_force() {
    let Some(mut server) = Shared::single_only("it stops the server") else { return };
    let (locks, java) = both(&server).await;
    let lock = java.lock("a", "lock", "k");
    // The server knows the scripts now: one command takes the lock.
    lock.lock().await.done();
    lock.unlock().await.done();
    server.stop();
    let interrupted = lock.lock();
    eventually(async || server.unread_connections() > 0, SLACK).await;
    java.interrupt("a").await;
    println!("the thread is told: {}", interrupted.await.exception());
    server.cont();
    eventually(async || time_left(&server).is_some(), SLACK).await;
    let start = Instant::now();
    while start.elapsed() < WATCHDOG * 3 {
        assert!(time_left(&server).is_some(), "freed after {:?}: is the defect mended?", start.elapsed());
        tokio::time::sleep(ms(50)).await;
    }
    assert!(matches!(locks.mutex("k").no_wait().acquire().await, Err(LockError::Busy { .. })));
    let holders = locks.status("k").await.unwrap().holders;
    assert!(holders.len() == 1 && holders[0].0.to_string().starts_with(java.client()), "{holders:?}");
    assert!(locks.force_release("k").await.unwrap());
    let guard = locks.mutex("k").acquire().await.unwrap();
    tokio::time::sleep(WATCHDOG * 2).await;
    assert!(is_ours(&locks, &guard).await);
    guard.release().await.unwrap();
}

/// The client of an interrupted waiter may go on listening, so it looks like a waiter to us.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_interrupted_java_waiter_takes_nothing_with_it() {
    let server = Shared::start();
    let (locks, java) = both(&server).await;
    let guard = locks.mutex("k").acquire().await.unwrap();
    let waiting = java.lock("a", "lock", "k").try_lock_within(ms(3000));
    eventually(async || Kind::Lock.waiting_clients(&server, "k") == 1, SLACK).await;
    java.interrupt("a").await;
    let exception = waiting.await.exception().to_owned();
    assert!(["InterruptedException", "RedisException"].contains(&exception.as_str()), "{exception}");
    // A script that was on its way at the interruption still finds the lock held. After the release
    // it would take the lock for nobody, and the client would renew it.
    tokio::time::sleep(ms(500)).await;
    guard.release().await.unwrap();
    // No lock is taken for a thread that is gone; after a release, a waiter that hears of it costs
    // the others at most a short step back.
    let start = Instant::now();
    for _ in 0..100 {
        locks.mutex("k").acquire().await.unwrap().release().await.unwrap();
    }
    println!(
        "100 grants beside {} listeners: {:.2?}",
        Kind::Lock.waiting_clients(&server, "k"),
        start.elapsed()
    );
    assert!(start.elapsed() < SLACK);
    assert_eq!(time_left(&server), None);
}

/// Each hold of Redisson starts a timer that its unlock does not stop. After many quick holds, the
/// next one is renewed that many times in each period.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn timers_of_former_java_holds_do_not_touch_a_rust_lease() {
    let server = Shared::start();
    let (locks, java) = both(&server).await;
    let lock = java.lock("a", "lock", "k");
    lock.call("hammer", &[("rounds", "200")]).await.done();
    let guard = locks.mutex("k").lease(WATCHDOG * 4).acquire().await.unwrap();
    let mut last = u64::MAX;
    while let Some(left) = time_left(&server).filter(|_| !guard.is_lost()) {
        assert!(left <= last, "{left} ms after {last}");
        last = left;
        tokio::time::sleep(ms(20)).await;
    }
    assert!(last < 500, "it went to its end: {last}");
}

/// Redisson wakes one or two threads of a program for each message.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_waiting_thread_and_task_gets_in_without_a_lease_running_out() {
    let server = Shared::start();
    let java = Java::start(&server).await;
    let locks = connect(&server, |builder| builder).await;
    let others = connect(&server, |builder| builder).await;
    let guard = locks.mutex("k").acquire().await.unwrap();
    let threads: Vec<String> = (0..8).map(|thread| format!("thread-{thread}")).collect();
    let mut calls = Vec::new();
    for thread in &threads {
        let lock = java.lock(thread, "lock", "k");
        // A thread handles its calls in order, so it unlocks as soon as it has locked.
        calls.push((lock.lock(), lock.unlock()));
    }
    let tasks: Vec<_> = (0..8)
        .map(|_| {
            let others = others.clone();
            tokio::spawn(async move {
                others.mutex("k").wait_forever().acquire().await.unwrap().release().await.unwrap();
            })
        })
        .collect();
    eventually(async || Kind::Lock.waiting_clients(&server, "k") == 2, SLACK).await;
    let released = Instant::now();
    guard.release().await.unwrap();
    for (locked, unlocked) in calls {
        locked.await.done();
        unlocked.await.done();
    }
    for task in tasks {
        task.await.unwrap();
    }
    println!("8 threads and 8 tasks within {:.2?}", released.elapsed());
    assert!(released.elapsed() < SLACK);
}

/// Its documentation says that `tryLockAndGetToken()` returns null when the lock is taken. In fact
/// it waits.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn try_lock_and_get_token_waits_and_gets_a_larger_token_than_ours() {
    let server = Shared::start();
    let (locks, java) = both(&server).await;
    let lock = java.lock("a", "fenced", "k");
    let guard = locks.mutex("k").acquire().await.unwrap();
    let token = guard.fencing_token().get();
    let mut call = lock.call("trytoken", &[]);
    eventually(async || Kind::Fenced.waiting_clients(&server, "k") == 1, SLACK).await;
    call.assert_still_out();
    // This is how to ask without waiting.
    let other = java.lock("b", "fenced", "k");
    assert!(other.call("trytoken", &[("wait", "0")]).await.value().is_null());
    guard.release().await.unwrap();
    assert!(call.await.number() > token);
    lock.unlock().await.done();
}

/// `lockAndGetToken(lease)` takes a lock without a fixed lease.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_given_to_lock_and_get_token_is_ignored_and_rust_waits_for_the_unlock() {
    // Renewed every third of the lease: a busy machine may be late by the rest.
    let watchdog = ms(6000);
    let server = Shared::start();
    let java = Java::start_with(&server, Settings::default().watchdog(watchdog)).await;
    let locks = connect(&server, |builder| builder).await;
    let lock = java.lock("a", "fenced", "k");
    let token = lock.call("token", &[("lease", "300")]).await.number();
    let start = Instant::now();
    while start.elapsed() < watchdog + ms(500) {
        assert!(locks.mutex("k").try_acquire().await.unwrap().is_none(), "{:?}", start.elapsed());
        tokio::time::sleep(ms(20)).await;
    }
    lock.unlock().await.done();
    let guard = locks.mutex("k").acquire().await.unwrap();
    assert!(guard.fencing_token().get() > token);
    guard.release().await.unwrap();
}

/// A spin lock of Redisson publishes nothing when it is released.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rust_waiter_behind_a_spin_lock_enters_when_it_looks_again() {
    let server = Shared::start();
    let java = Java::start(&server).await;
    let locks = connect(&server, |builder| builder).await;
    let spin = java.lock("a", "spin", "k");
    spin.lock().await.done();
    let waiting = tokio::spawn(async move { locks.mutex("k").wait_forever().acquire().await.unwrap() });
    eventually(async || Kind::Lock.waiting_clients(&server, "k") == 1, SLACK).await;
    spin.unlock().await.done();
    let unlocked = Instant::now();
    let guard = waiting.await.unwrap();
    println!("in {:.2?} after the unlock", unlocked.elapsed());
    assert!(unlocked.elapsed() < SLACK);
    assert!(!spin.try_lock().await.is_true());
    guard.release().await.unwrap();
}

/// Redisson and Redis Cluster disagree about the slots of such names: Java can lock them there, but
/// not unlock them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_name_with_a_lone_brace_is_refused_here() {
    let server = Shared::start();
    let (locks, java) = both(&server).await;
    java.lock("a", "lock", "a{b").lock().await.done();
    for name in ["a{b", "{}x", "x}{y"] {
        let error = locks.mutex(name).acquire().await.unwrap_err();
        assert!(matches!(error, LockError::InvalidKey { .. }), "{error:?}");
    }
}
