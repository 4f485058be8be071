//! Read and write locks of both sides on the same keys: which holders share a lock, which exclude
//! each other, and for how long. Two writers are in `exclusive.rs`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use lock_runtime::{LockError, LockGuard, LockManager, Loss};
use lock_tests::clock::now_nanos;
use lock_tests::java::{
    Java, JavaLock, Kind, LEASE, SLACK, Servers, Settings, Shared, connect, judge, nothing_is_left,
    redis_name, with_defaults, with_short_lease, with_short_lease_and,
};
use lock_tests::{Helper, eventually};
use tokio::task::JoinHandle;

const ROUNDS: usize = 10;

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

async fn read(locks: &LockManager, name: &str) -> LockGuard {
    locks.read(name).wait(SLACK * 3).acquire().await.unwrap()
}

fn waiting_reader(locks: &LockManager, name: &str) -> JoinHandle<(LockGuard, u64)> {
    let (locks, name) = (locks.clone(), name.to_owned());
    tokio::spawn(async move { (read(&locks, &name).await, now_nanos()) })
}

fn waiting_writer(locks: &LockManager, name: &str) -> JoinHandle<(LockGuard, u64)> {
    let (locks, name) = (locks.clone(), name.to_owned());
    tokio::spawn(async move { (locks.write(name).wait(SLACK * 3).acquire().await.unwrap(), now_nanos()) })
}

async fn may_read(locks: &LockManager, name: &str) -> bool {
    locks.read(name).try_acquire().await.unwrap().is_some()
}

async fn may_write(locks: &LockManager, name: &str) -> bool {
    locks.write(name).try_acquire().await.unwrap().is_some()
}

/// Waits until `clients` clients of either side have found the lock taken and listen.
async fn clients_wait(server: &Shared, name: &str, clients: usize) {
    eventually(async || Kind::Write.waiting_clients(server, name) == clients, SLACK).await;
}

fn time_left(server: &Shared, key: &str) -> i64 {
    server.ask(key, &["PTTL", key]).parse().expect("a number")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readers_of_both_sides_are_inside_together_and_writers_wait_for_the_last() {
    let server = Shared::start();
    let (locks, java) = with_defaults(&server).await;
    let other = connect(&server, |builder| builder).await;
    for java_is_last in [true, false] {
        for java_writes in [true, false] {
            let name = format!("last-java:{java_is_last}:writer-java:{java_writes}");
            let (a, b) = (java.lock("a", "read", &name), java.lock("b", "read", &name));
            a.lock().await.done();
            let first = read(&locks, &name).await;
            b.lock().await.done();
            let mut second = Some(read(&other, &name).await);
            assert!(a.status().await.mine && b.status().await.mine);
            assert_eq!(locks.status(&*name).await.unwrap().holders.len(), 4);
            let writer = java.lock("writer", "write", &name);
            assert!(!writer.try_lock().await.is_true());
            assert!(!may_write(&locks, &name).await);

            let mut java_waits = java_writes.then(|| writer.lock());
            let rust_waits = (!java_writes).then(|| waiting_writer(&locks, &name));
            if java_writes {
                java.is_parked("writer").await;
            }
            clients_wait(&server, &name, 1).await;
            a.unlock().await.done();
            first.release().await.unwrap();
            if java_is_last {
                second.take().unwrap().release().await.unwrap();
            } else {
                b.unlock().await.done();
            }
            // Long enough for a wrong message to be heard.
            tokio::time::sleep(ms(200)).await;
            if let Some(waits) = &mut java_waits {
                waits.assert_still_out();
            }
            assert!(rust_waits.as_ref().is_none_or(|waits| !waits.is_finished()));
            let start = Instant::now();
            match second {
                Some(second) => second.release().await.unwrap(),
                None => b.unlock().await.done(),
            }
            if let Some(waits) = java_waits {
                waits.within(SLACK).await.done();
                writer.unlock().await.done();
            }
            if let Some(waits) = rust_waits {
                waits.await.unwrap().0.release().await.unwrap();
            }
            assert!(start.elapsed() < SLACK, "{name}: {:?}", start.elapsed());
        }
    }
    nothing_is_left(&server).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_writer_of_either_side_keeps_the_readers_of_both_out() {
    let server = Shared::start();
    let (locks, java) = with_defaults(&server).await;
    let other = connect(&server, |builder| builder).await;
    let (writer, reader) = (java.lock("a", "write", "k"), java.lock("b", "read", "k"));
    writer.lock().await.done();
    assert!(!reader.try_lock().await.is_true());
    assert!(!may_read(&locks, "k").await);
    writer.unlock().await.done();
    let guard = locks.write("k").acquire().await.unwrap();
    assert!(!reader.try_lock().await.is_true());
    assert!(!may_read(&other, "k").await);
    guard.release().await.unwrap();
    assert!(reader.try_lock().await.is_true());
    assert!(may_read(&locks, "k").await);
    reader.unlock().await.done();
    nothing_is_left(&server).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_java_waiter_enters_at_once_when_rust_gives_way() {
    let server = Shared::start();
    let (locks, java) = with_defaults(&server).await;
    for (java_kind, rust_writes) in [("read", true), ("write", false)] {
        let mut times = Vec::new();
        // The first round loads classes and scripts.
        for round in 0..=ROUNDS {
            // A new name for each round, so that nobody listens for it yet.
            let name = format!("{java_kind}:{round}");
            let guard = if rust_writes {
                locks.write(&*name).acquire().await.unwrap()
            } else {
                read(&locks, &name).await
            };
            let lock = java.lock("a", java_kind, &name);
            let waiting = lock.lock().within(SLACK);
            java.is_parked("a").await;
            let released = now_nanos();
            guard.release().await.unwrap();
            let entered = waiting.await;
            entered.done();
            if round > 0 {
                times.push(Duration::from_nanos(entered.end - released));
            }
            lock.unlock().await.done();
        }
        let rust = if rust_writes { "writer" } else { "reader" };
        judge(&format!("Rust {rust} to Java {java_kind} lock"), times);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rust_waiter_enters_at_once_when_java_unlocks() {
    let server = Shared::start();
    let (locks, java) = with_defaults(&server).await;
    for java_kind in ["read", "write"] {
        let mut times = Vec::new();
        for round in 0..=ROUNDS {
            let name = format!("{java_kind}:{round}");
            let lock = java.lock("a", java_kind, &name);
            lock.lock().await.done();
            let waiting = if java_kind == "read" {
                waiting_writer(&locks, &name)
            } else {
                waiting_reader(&locks, &name)
            };
            clients_wait(&server, &name, 1).await;
            let unlocked = lock.unlock().await;
            unlocked.done();
            let (guard, entered) = waiting.await.unwrap();
            if round > 0 {
                times.push(Duration::from_nanos(entered - unlocked.start));
            }
            guard.release().await.unwrap();
        }
        judge(&format!("Java {java_kind} lock to Rust"), times);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_readers_that_wait_enter_together_when_a_writer_goes() {
    let server = Shared::start();
    let (locks, java) = with_defaults(&server).await;
    let other = connect(&server, |builder| builder).await;
    for java_writes in [true, false] {
        let name = format!("writer-java:{java_writes}");
        let writer = java.lock("writer", "write", &name);
        let guard = if java_writes {
            writer.lock().await.done();
            None
        } else {
            Some(locks.write(&*name).acquire().await.unwrap())
        };
        let threads: Vec<_> = (0..4).map(|thread| format!("reader-{thread}")).collect();
        let readers: Vec<JavaLock<'_>> =
            threads.iter().map(|thread| java.lock(thread, "read", &name)).collect();
        let calls: Vec<_> = readers.iter().map(|reader| reader.lock().within(SLACK)).collect();
        let tasks: Vec<_> =
            (0..4).map(|task| waiting_reader(if task % 2 == 0 { &locks } else { &other }, &name)).collect();
        clients_wait(&server, &name, 3).await;
        for thread in &threads {
            java.is_parked(thread).await;
        }
        match guard {
            Some(guard) => guard.release().await.unwrap(),
            None => writer.unlock().await.done(),
        }
        let mut guards = Vec::new();
        for call in calls {
            call.await.done();
        }
        for task in tasks {
            guards.push(task.await.unwrap().0);
        }
        // Nobody has left yet.
        for reader in &readers {
            assert!(reader.status().await.mine);
            reader.unlock().await.done();
        }
        for guard in guards {
            guard.release().await.unwrap();
        }
    }
    nothing_is_left(&server).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_downgrade_of_rust_lets_waiting_java_readers_in_at_once() {
    let server = Shared::start();
    let (locks, java) = with_defaults(&server).await;
    let guard = locks.write("k").acquire().await.unwrap();
    let token = guard.fencing_token();
    let reader = java.lock("a", "read", "k");
    let waiting = reader.lock().within(SLACK);
    java.is_parked("a").await;
    let downgraded = now_nanos();
    let guard = guard.downgrade().await.unwrap();
    let entered = waiting.await;
    entered.done();
    println!("in {:.2?} after the downgrade", Duration::from_nanos(entered.end - downgraded));
    assert!(!guard.is_lost() && guard.fencing_token() == token);
    let writer = java.lock("b", "write", "k");
    assert!(!writer.try_lock().await.is_true() && !may_write(&locks, "k").await);
    guard.release().await.unwrap();
    assert!(!writer.try_lock().await.is_true());
    reader.unlock().await.done();
    assert!(writer.try_lock().await.is_true());
    writer.unlock().await.done();
    nothing_is_left(&server).await;
}

/// As Redisson allows: a read lock inside the write lock, which is released first.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rust_read_lock_inside_a_write_lock_outlives_it_beside_java_readers() {
    let server = Shared::start();
    let (locks, java) = with_defaults(&server).await;
    let writer = locks.write("k").acquire().await.unwrap();
    let inside = writer.scope(async { locks.read("k").acquire().await.unwrap() }).await;
    let reader = java.lock("a", "read", "k");
    let waiting = reader.lock().within(SLACK);
    java.is_parked("a").await;
    writer.release().await.unwrap();
    waiting.await.done();
    assert!(!inside.is_lost());
    assert!(!java.lock("b", "write", "k").try_lock().await.is_true());
    reader.unlock().await.done();
    inside.release().await.expect("held until here");
    nothing_is_left(&server).await;
}

/// Redisson does not announce its downgrade; its own waiting readers sleep until the lease is over.
/// Ours look again, less often the longer they have waited.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_downgrade_of_java_lets_waiting_rust_readers_in_when_they_look_again() {
    let server = Shared::start();
    let (locks, java) = with_defaults(&server).await;
    for waited in [Duration::ZERO, Duration::from_secs(6)] {
        let name = format!("waited:{}", waited.as_secs());
        let (writer, reader) = (java.lock("a", "write", &name), java.lock("a", "read", &name));
        writer.lock().await.done();
        reader.lock().await.done();
        let waiting = waiting_reader(&locks, &name);
        let mut of_java = java.lock("b", "read", &name).lock();
        clients_wait(&server, &name, 2).await;
        java.is_parked("b").await;
        tokio::time::sleep(waited).await;
        let downgraded = writer.unlock().await;
        downgraded.done();
        let (guard, entered) = waiting.await.unwrap();
        let after = Duration::from_nanos(entered - downgraded.start);
        println!("in {after:.2?} after the downgrade, having waited for {waited:?}");
        assert!(after < SLACK, "{after:?}");
        of_java.assert_still_out();
        assert!(!may_write(&locks, &name).await);
        reader.unlock().await.done();
        assert!(!guard.is_lost());
        guard.release().await.unwrap();
        // The last reader that leaves publishes its release.
        of_java.within(SLACK).await.done();
        java.lock("b", "read", &name).unlock().await.done();
    }
    nothing_is_left(&server).await;
}

/// Readers come and go on both sides; each time one of Redisson's leaves, it looks at all holds.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readers_of_both_sides_keep_what_they_hold_for_three_leases_while_others_come_and_go() {
    let server = Shared::start();
    let (locks, java) = with_short_lease(&server).await;
    let other = connect(&server, |builder| builder.lease(LEASE)).await;
    let held = java.lock("a", "read", "k");
    held.lock().await.done();
    let guard = read(&locks, "k").await;
    let time = (LEASE * 3).as_millis().to_string();
    let visits = java
        .lock("b", "read", "k")
        .call("hammer", &[("for", time.as_str()), ("hold_us", "5000"), ("pause_us", "5000")]);
    let done = Arc::new(AtomicBool::new(false));
    let visitors: Vec<_> = [None, Some(ms(500))]
        .map(|lease| {
            let (other, done) = (other.clone(), done.clone());
            tokio::spawn(async move {
                let mut rounds = 0;
                while !done.load(Ordering::Relaxed) {
                    let lock = other.read("k").wait(SLACK * 3);
                    let lock = if let Some(lease) = lease { lock.lease(lease) } else { lock };
                    let guard = lock.acquire().await.unwrap();
                    tokio::time::sleep(ms(5)).await;
                    guard.release().await.unwrap();
                    rounds += 1;
                }
                rounds
            })
        })
        .into();
    let (start, mut least) = (Instant::now(), i64::MAX);
    while start.elapsed() < LEASE * 3 {
        let left = time_left(&server, "k");
        assert!(left > 0 && left <= 3000, "{left} ms after {:?}", start.elapsed());
        least = least.min(left);
        assert!(!guard.is_lost() && held.status().await.mine);
        assert!(!java.lock("c", "write", "k").try_lock().await.is_true());
        assert!(!may_write(&locks, "k").await);
        tokio::time::sleep(ms(50)).await;
    }
    done.store(true, Ordering::Relaxed);
    let visits = visits.await.value()["rounds"].as_u64().unwrap();
    let mut rust = Vec::new();
    for visitor in visitors {
        rust.push(visitor.await.unwrap());
    }
    println!("renewed with {least} ms left at least, beside {visits} visits of Java and {rust:?} of Rust");
    held.unlock().await.done();
    assert!(!may_write(&other, "k").await);
    guard.release().await.expect("held until here");
    nothing_is_left(&server).await;
    assert!(may_write(&locks, "k").await);
}

/// A reader that leaves sets the expiry of the whole lock by the holds that are left.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_that_leaves_takes_its_own_time_along_and_not_that_of_others() {
    let server = Shared::start();
    let (locks, java) = with_short_lease(&server).await;
    let lock = java.lock("a", "read", "k");
    lock.lock_for(SLACK * 6).await.done();
    let guard = read(&locks, "k").await;
    assert!(time_left(&server, "k") > 3000);
    lock.unlock().await.done();
    let left = time_left(&server, "k");
    assert!(left > 0 && left <= 3000, "{left}");
    guard.release().await.unwrap();

    // Again, with more than one hold of a thread. On another lock, since Redisson's object would
    // keep its former lease.
    let lock = java.lock("a", "read", "j");
    let guard = read(&locks, "j").await;
    for _ in 0..2 {
        lock.lock().await.done();
    }
    let long = locks.read("j").lease(SLACK * 6).acquire().await.unwrap();
    assert!(time_left(&server, "j") > 3000);
    long.release().await.unwrap();
    lock.unlock().await.done();
    let left = time_left(&server, "j");
    assert!(left > 0 && left <= 3000, "{left}");
    let start = Instant::now();
    while start.elapsed() < LEASE + ms(1000) {
        assert!(!guard.is_lost() && lock.status().await.mine);
        tokio::time::sleep(ms(100)).await;
    }
    assert_eq!(lock.status().await.count, 1);
    lock.unlock().await.done();
    guard.release().await.unwrap();
    nothing_is_left(&server).await;
}

/// Starts another process that reads.
fn helper_reads(server: &Shared) -> Helper {
    let lease = format!("lease={}", LEASE.as_millis());
    let mut helper = Helper::spawn(env!("CARGO_BIN_EXE_holder"), [server.url(), lease]);
    assert_eq!(helper.line(SLACK * 2), "ready");
    assert!(helper.ask("acquire k kind=read").starts_with("acquired"));
    helper
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_reader_of_one_side_lets_a_writer_of_the_other_in_within_its_lease() {
    let server = Shared::start();
    let (locks, mut java) = with_short_lease_and(&server, Settings::default().alone()).await;
    let mut helper = helper_reads(&server);
    let writer = java.lock("a", "write", "lock:k");
    let waiting = writer.lock().within(LEASE + SLACK);
    clients_wait(&server, "lock:k", 1).await;
    helper.kill();
    let killed = Instant::now();
    waiting.await.done();
    println!("Java in {:.2?} after Rust was killed, lease {LEASE:?}", killed.elapsed());
    writer.unlock().await.done();

    java.lock("a", "read", "j").lock().await.done();
    let waiting = waiting_writer(&locks, "j");
    clients_wait(&server, "j", 1).await;
    java.kill();
    let killed = Instant::now();
    waiting.await.unwrap().0.release().await.unwrap();
    println!("Rust in {:.2?} after Java was killed, lease {LEASE:?}", killed.elapsed());
    assert!(killed.elapsed() < LEASE + SLACK);
    nothing_is_left(&server).await;
}

/// A dead reader's lease is over while others still read. When the last of those leaves, a writer
/// enters at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_reader_does_not_outlive_its_lease_because_others_read_on() {
    let server = Shared::start();
    let (locks, java) = with_short_lease(&server).await;
    let mut doomed = Java::start_with(&server, Settings::default().alone().watchdog(LEASE)).await;
    let holds = |server: &Shared| server.keys().iter().filter(|key| key.contains(":rwlock_timeout:")).count();

    // Dead: Rust; still reads: Java; enters: Rust.
    let mut helper = helper_reads(&server);
    let reader = java.lock("a", "read", "lock:k");
    reader.lock().await.done();
    helper.kill();
    eventually(async || holds(&server) == 1, LEASE + SLACK).await;
    let waiting = waiting_writer(&locks, "lock:k");
    clients_wait(&server, "lock:k", 1).await;
    let unlocked = reader.unlock().await;
    unlocked.done();
    let (guard, entered) = waiting.await.unwrap();
    println!("Rust in {:.2?} after the last living reader", Duration::from_nanos(entered - unlocked.start));
    guard.release().await.unwrap();

    // Dead: Java; still reads: Rust; enters: Java.
    doomed.lock("a", "read", "j").lock().await.done();
    let guard = read(&locks, "j").await;
    doomed.kill();
    eventually(async || holds(&server) == 1, LEASE + SLACK).await;
    assert!(!guard.is_lost());
    let writer = java.lock("a", "write", "j");
    let waiting = writer.lock();
    clients_wait(&server, "j", 1).await;
    let released = now_nanos();
    guard.release().await.unwrap();
    let entered = waiting.await;
    entered.done();
    println!("Java in {:.2?} after the last living reader", Duration::from_nanos(entered.end - released));
    writer.unlock().await.done();
    nothing_is_left(&server).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_forced_unlock_of_either_side_takes_the_lock_from_the_readers_of_both() {
    let server = Shared::start();
    let (locks, java) = with_short_lease(&server).await;
    for java_forces in [true, false] {
        let name = format!("java-forces:{java_forces}");
        let reader = java.lock("a", "read", &name);
        reader.lock().await.done();
        let guard = read(&locks, &name).await;
        let writer = java.lock("writer", "write", &name);
        let waiting = writer.lock().within(SLACK);
        java.is_parked("writer").await;
        if java_forces {
            assert!(java.lock("admin", "read", &name).force_unlock().await.is_true());
        } else {
            assert!(locks.force_release(&*name).await.unwrap());
        }
        waiting.await.done();
        tokio::time::timeout(LEASE + SLACK, guard.lost()).await.expect("the lock is lost");
        match guard.release().await {
            Err(LockError::Lost { why, .. }) => assert_eq!(why, Loss::TakenAway),
            other => panic!("{other:?}"),
        }
        assert_eq!(reader.unlock().await.exception(), "IllegalMonitorStateException");
        assert!(writer.status().await.mine, "the next holder is not disturbed");
        writer.unlock().await.done();
    }
    nothing_is_left(&server).await;
}

/// There is no bound on how long Java's readers can keep a writer of ours waiting.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiting_rust_writer_keeps_rust_readers_out_and_not_those_of_java() {
    let server = Shared::start();
    let (locks, java) = with_defaults(&server).await;
    let other = connect(&server, |builder| builder).await;
    let (a, b) = (java.lock("a", "read", "k"), java.lock("b", "read", "k"));
    a.lock().await.done();
    let writer = waiting_writer(&locks, "k");
    let intent = redis_name("lock_rw_intent", "k");
    eventually(async || server.ask(&intent, &["EXISTS", &intent]) == "1", SLACK).await;
    assert!(!may_read(&other, "k").await);
    assert!(b.try_lock().await.is_true());
    a.unlock().await.done();
    assert!(!writer.is_finished());
    // Renewed for as long as the writer waits.
    let start = Instant::now();
    while start.elapsed() < ms(2500) {
        assert!(!may_read(&other, "k").await);
        tokio::time::sleep(ms(50)).await;
    }
    b.unlock().await.done();
    writer.await.unwrap().0.release().await.unwrap();
    nothing_is_left(&server).await;
}

/// Readers of ours that come without a pause share a hold, which takes no more of them after its
/// window. Redisson's waiting writers leave no intent.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_java_writer_has_its_share_beside_rust_readers_without_a_pause() {
    let server = Shared::start();
    let (locks, java) = with_defaults(&server).await;
    let time = Duration::from_secs(5);
    let end = Instant::now() + time;
    let readers: Vec<_> = (0..8)
        .map(|_| {
            let locks = locks.clone();
            tokio::spawn(async move {
                let mut rounds = 0_u64;
                while Instant::now() < end {
                    let guard = read(&locks, "k").await;
                    tokio::time::sleep(ms(2)).await;
                    guard.release().await.unwrap();
                    rounds += 1;
                }
                rounds
            })
        })
        .collect();
    let log = tempfile::tempdir().unwrap();
    let (rounds, longest) =
        java.lock("a", "write", "k").hammer(time, Duration::ZERO, &log.path().join("log")).await;
    let mut read = 0;
    for reader in readers {
        read += reader.await.unwrap();
    }
    println!("Java wrote {rounds} times in {time:?}, longest wait {longest:.2?}; Rust read {read} times");
    assert!(rounds >= 5 && longest < time / 2, "{rounds} times, {longest:?}");
    assert!(read > 0);
    nothing_is_left(&server).await;
}

/// Redisson stops renewing a write lock when its thread releases a read lock inside it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_java_write_lock_whose_renewal_a_read_unlock_has_ended_is_followed_by_rust() {
    let server = Shared::start();
    let (locks, java) = with_short_lease(&server).await;
    let (writer, reader) = (java.lock("a", "write", "k"), java.lock("a", "read", "k"));
    writer.lock().await.done();
    reader.lock().await.done();
    reader.unlock().await.done();
    let start = Instant::now();
    let (guard, _) = waiting_writer(&locks, "k").await.unwrap();
    println!("Java's write lock ended {:.2?} after the read unlock, lease {LEASE:?}", start.elapsed());
    assert!(start.elapsed() < LEASE + SLACK, "is the defect mended?");
    // Java finds out at its unlock, and does not disturb the next holder.
    assert_eq!(writer.unlock().await.exception(), "IllegalMonitorStateException");
    let start = Instant::now();
    while start.elapsed() < LEASE * 2 {
        assert!(!guard.is_lost());
        tokio::time::sleep(ms(100)).await;
    }
    guard.release().await.expect("held until here");
    nothing_is_left(&server).await;
}

/// Each re-entry of Redisson's write lock adds a lease to the remaining time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_nested_java_write_lock_that_has_grown_is_waited_for_and_not_shortened() {
    let server = Shared::start();
    let (locks, mut java) = with_short_lease_and(&server, Settings::default().alone()).await;
    let writer = java.lock("a", "write", "k");
    for _ in 0..3 {
        writer.lock().await.done();
    }
    let left = time_left(&server, "k");
    assert!(left > 6000, "{left} ms: is the defect mended?");
    assert!(locks.status("k").await.unwrap().remaining.unwrap() > LEASE);
    let waiting = waiting_writer(&locks, "k");
    clients_wait(&server, "k", 1).await;
    java.kill();
    let killed = Instant::now();
    waiting.await.unwrap().0.release().await.unwrap();
    println!("in {:.2?} after Java was killed, lease {LEASE:?}", killed.elapsed());
    assert!(killed.elapsed() < LEASE * 3 + SLACK);
    nothing_is_left(&server).await;
}
