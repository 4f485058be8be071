//! Semaphores and count-down latches that both sides share: `RPermitExpirableSemaphore` and
//! `RCountDownLatch`.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use lock_runtime::{LockManager, SemaphorePermit};
use lock_tests::clock::now_nanos;
use lock_tests::java::{
    Java, JavaLock, LEASE, SLACK, Servers, Settings, Shared, connect, judge, with_defaults,
};
use lock_tests::{Helper, eventually};

const ROUNDS: usize = 10;

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

async fn permit(locks: &LockManager, name: &str) -> SemaphorePermit {
    locks.semaphore(name).wait(SLACK * 3).acquire().await.unwrap()
}

async fn is_free(locks: &LockManager, name: &str) -> bool {
    locks.semaphore(name).try_acquire().await.unwrap().is_some()
}

/// Acquires a permit in Java for a minute, and returns its id.
async fn java_permit(semaphore: &JavaLock<'_>) -> String {
    let answer = semaphore.call("acquire", &[("lease", "60000")]).await;
    answer.value().as_str().expect("a permit's id").to_owned()
}

async fn java_release(semaphore: &JavaLock<'_>, id: &str) {
    semaphore.call("release", &[("id", id)]).await.done();
}

async fn clients_wait(server: &Shared, channel: &str, clients: usize) {
    eventually(async || server.listeners(channel) == clients, SLACK).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn permits_of_both_sides_are_counted_together() {
    let server = Shared::start();
    let (locks, java) = with_defaults(&server).await;
    for java_makes_it in [true, false] {
        let name = format!("java-makes:{java_makes_it}");
        let (ours, theirs) = (locks.semaphore(&*name), java.lock("a", "semaphore", &name));
        let set = |n| async move { theirs.call("permits", &[("n", n)]).await.is_true() };
        if java_makes_it {
            assert!(set("3").await);
        } else {
            assert!(ours.try_set_permits(3).await.unwrap());
        }
        assert!(!set("5").await && !ours.try_set_permits(5).await.unwrap());
        let two = ours.clone().permits(2).acquire().await.unwrap();
        assert_eq!(theirs.call("available", &[]).await.number(), 1);
        let id = java_permit(&theirs).await;
        assert_eq!(ours.available_permits().await.unwrap(), 0);
        assert_eq!(ours.acquired_permits().await.unwrap(), 3);
        assert!(theirs.call("tryacquire", &[]).await.value().is_null());
        assert!(!is_free(&locks, &name).await);
        two.release().await.unwrap();
        assert_eq!(theirs.call("available", &[]).await.number(), 2);
        java_release(&theirs, &id).await;
        assert_eq!(ours.available_permits().await.unwrap(), 3);
        assert!(!theirs.call("tryrelease", &[("id", &id)]).await.is_true(), "given back once");
        assert_eq!(ours.total_permits().await.unwrap(), 3);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_permit_passes_from_one_side_to_the_other_at_once() {
    let server = Shared::start();
    let (locks, java) = with_defaults(&server).await;
    let (mut to_java, mut to_rust) = (Vec::new(), Vec::new());
    // The first round loads classes and scripts.
    for round in 0..=ROUNDS {
        // A new name for each round, so that nobody listens for it yet.
        let name = format!("s{round}");
        let channel = format!("redisson_sc:{{{name}}}");
        let semaphore = java.lock("a", "semaphore", &name);
        assert!(locks.semaphore(&*name).try_set_permits(1).await.unwrap());
        let held = permit(&locks, &name).await;
        let waiting = semaphore.call("acquire", &[("lease", "60000")]).within(SLACK);
        java.is_parked("a").await;
        let released = now_nanos();
        held.release().await.unwrap();
        let entered = waiting.await;
        let id = entered.value().as_str().expect("a permit's id").to_owned();

        let waiting = tokio::spawn({
            let (locks, name) = (locks.clone(), name.clone());
            async move { (permit(&locks, &name).await, now_nanos()) }
        });
        clients_wait(&server, &channel, 1).await;
        let given_back = now_nanos();
        java_release(&semaphore, &id).await;
        let (held, entered_again) = waiting.await.unwrap();
        held.release().await.unwrap();
        if round > 0 {
            to_java.push(Duration::from_nanos(entered.end - released));
            to_rust.push(Duration::from_nanos(entered_again - given_back));
        }
    }
    judge("a permit, Rust to Java", to_java);
    judge("a permit, Java to Rust", to_rust);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn never_more_permits_are_held_than_there_are() {
    const PERMITS: i64 = 3;
    const TIME: Duration = Duration::from_secs(3);
    let server = Shared::start();
    let (locks, java) = with_defaults(&server).await;
    assert!(locks.semaphore("s").try_set_permits(PERMITS as u32).await.unwrap());
    let end = Instant::now() + TIME;
    // The times when somebody certainly had a permit: (since, until).
    let held = Arc::new(Mutex::new(Vec::new()));
    let tasks: Vec<_> = (0..5)
        .map(|_| {
            let (locks, held) = (locks.clone(), held.clone());
            tokio::spawn(async move {
                while Instant::now() < end {
                    let permit = permit(&locks, "s").await;
                    let since = now_nanos();
                    tokio::time::sleep(ms(1)).await;
                    held.lock().unwrap().push((since, now_nanos(), false));
                    permit.release().await.unwrap();
                }
            })
        })
        .collect();
    let java = Arc::new(java);
    let threads: Vec<_> = (0..4)
        .map(|number| {
            let (java, held) = (java.clone(), held.clone());
            tokio::spawn(async move {
                let thread = format!("thread-{number}");
                let semaphore = java.lock(&thread, "semaphore", "s");
                while Instant::now() < end {
                    let acquired = semaphore.call("acquire", &[("lease", "60000")]).await;
                    let id = acquired.value().as_str().expect("a permit's id").to_owned();
                    let released = semaphore.call("release", &[("id", &id)]).await;
                    released.done();
                    held.lock().unwrap().push((acquired.end, released.start, true));
                }
            })
        })
        .collect();
    for worker in tasks.into_iter().chain(threads) {
        worker.await.unwrap();
    }
    let held = std::mem::take(&mut *held.lock().unwrap());
    let of_java = held.iter().filter(|(_, _, java)| *java).count();
    println!("{of_java} permits of Java, {} of Rust", held.len() - of_java);
    assert!(of_java > 0 && of_java < held.len());
    // At equal times, those that leave come before those that enter.
    let mut changes: Vec<(u64, i64)> =
        held.iter().flat_map(|&(since, until, _)| [(since, 1), (until, -1)]).collect();
    changes.sort_unstable();
    let mut inside = 0;
    for (_, change) in changes {
        inside += change;
        assert!(inside <= PERMITS, "{inside}");
    }
    assert_eq!(locks.semaphore("s").available_permits().await.unwrap(), PERMITS);
}

/// Redisson compares leases with its own clock, which is a second ahead here: less than two thirds
/// of the lease.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rust_permit_is_kept_for_three_leases_and_that_of_a_killed_process_comes_back() {
    let server = Shared::start();
    let (locks, java) = tokio::join!(
        connect(&server, |builder| builder.lease(LEASE).prefix("lock:")),
        Java::start_with(&server, Settings::default().wall_clock_ahead(1000))
    );
    assert!(locks.semaphore("s").try_set_permits(2).await.unwrap());
    let lease = format!("lease={}", LEASE.as_millis());
    let mut helper = Helper::spawn(env!("CARGO_BIN_EXE_holder"), [server.url(), lease]);
    assert_eq!(helper.line(SLACK * 2), "ready");
    assert_eq!(helper.ask("permit s"), "permitted");
    let held = permit(&locks, "s").await;
    let semaphore = java.lock("a", "semaphore", "lock:s");
    let asking = java.lock("b", "semaphore", "lock:s");
    let mut waiting = semaphore.call("acquire", &[("lease", "60000")]).within(LEASE + SLACK);
    let start = Instant::now();
    while start.elapsed() < LEASE * 3 {
        waiting.assert_still_out();
        assert!(!held.is_lost() && asking.call("tryacquire", &[]).await.value().is_null());
        tokio::time::sleep(ms(50)).await;
    }
    helper.kill();
    let killed = Instant::now();
    let id = waiting.within(LEASE + SLACK).await.value().as_str().expect("a permit's id").to_owned();
    println!("Java in {:.2?} after Rust was killed, lease {LEASE:?}", killed.elapsed());
    assert!(!held.is_lost());
    held.release().await.unwrap();
    java_release(&semaphore, &id).await;
    assert_eq!(locks.semaphore("s").available_permits().await.unwrap(), 2);
}

/// Redisson does not renew permits: one with a lease comes back when the lease is over.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_permit_of_a_killed_java_process_comes_back_when_its_lease_is_over() {
    let server = Shared::start();
    let java = Java::start_with(&server, Settings::default().alone());
    let (locks, mut java) = tokio::join!(connect(&server, |builder| builder), java);
    assert!(locks.semaphore("s").try_set_permits(1).await.unwrap());
    let lease = LEASE.as_millis().to_string();
    let _id = java.lock("a", "semaphore", "s").call("acquire", &[("lease", &lease)]).await;
    let waiting = tokio::spawn({
        let locks = locks.clone();
        async move { permit(&locks, "s").await }
    });
    clients_wait(&server, "redisson_sc:{s}", 1).await;
    java.kill();
    let killed = Instant::now();
    waiting.await.unwrap().release().await.unwrap();
    println!("Rust in {:.2?} after Java was killed, lease {LEASE:?}", killed.elapsed());
    assert!(killed.elapsed() < LEASE + SLACK);
    assert_eq!(locks.semaphore("s").total_permits().await.unwrap(), 1);
}

/// Both sides create the latch, count it down, and wait for it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_latch_is_counted_down_by_both_sides_and_opens_for_both() {
    let server = Shared::start();
    let (locks, java) = with_defaults(&server).await;
    for java_makes_it in [true, false] {
        for java_is_last in [true, false] {
            let name = format!("made-by-java:{java_makes_it}:opened-by-java:{java_is_last}");
            let channel = format!("redisson_countdownlatch__channel__{{{name}}}");
            let (ours, theirs) = (locks.latch(&*name), java.lock("a", "latch", &name));
            let set = |n| async move { theirs.call("setcount", &[("n", n)]).await.is_true() };
            if java_makes_it {
                assert!(set("3").await);
            } else {
                assert!(ours.try_set_count(3).await.unwrap());
            }
            assert!(!set("2").await && !ours.try_set_count(2).await.unwrap());
            let mut of_java = java.lock("waiter", "latch", &name).call("await", &[]).within(SLACK);
            let of_rust = tokio::spawn({
                let ours = ours.clone();
                async move {
                    ours.wait(SLACK * 3).await.unwrap();
                    now_nanos()
                }
            });
            clients_wait(&server, &channel, 2).await;
            theirs.call("countdown", &[]).await.done();
            assert_eq!(ours.count().await.unwrap(), 2);
            assert_eq!(ours.count_down().await.unwrap(), 1);
            assert_eq!(theirs.call("count", &[]).await.number(), 1);
            of_java.assert_still_out();
            assert!(!of_rust.is_finished());
            let opened = now_nanos();
            if java_is_last {
                theirs.call("countdown", &[]).await.done();
            } else {
                assert_eq!(ours.count_down().await.unwrap(), 0);
            }
            let java_entered = of_java.await;
            java_entered.done();
            let after = |at: u64| Duration::from_nanos(at - opened);
            println!(
                "{name}: Java after {:.2?}, Rust after {:.2?}",
                after(java_entered.end),
                after(of_rust.await.unwrap())
            );
            // The latch is gone, so nobody waits.
            assert!(theirs.call("await", &[("wait", "1")]).await.is_true());
            ours.wait(ms(1)).await.unwrap();
            assert_eq!(server.ask(&name, &["EXISTS", &name]), "0");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wait_for_a_latch_ends_at_its_limit_on_both_sides() {
    let server = Shared::start();
    let (locks, java) = with_defaults(&server).await;
    let (ours, theirs) = (locks.latch("l"), java.lock("a", "latch", "l"));
    assert!(ours.try_set_count(1).await.unwrap());
    assert!(!theirs.call("await", &[("wait", "300")]).await.is_true());
    assert!(ours.wait(ms(300)).await.is_err());
}

/// Redisson's own `delete` does not notify those that wait for a latch of Redisson's.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_latch_that_rust_deletes_opens_for_those_who_wait_in_java() {
    let server = Shared::start();
    let (locks, java) = with_defaults(&server).await;
    let (ours, theirs) = (locks.latch("l"), java.lock("a", "latch", "l"));
    assert!(ours.try_set_count(1).await.unwrap());
    let mut of_java = theirs.call("await", &[]).within(SLACK);
    clients_wait(&server, "redisson_countdownlatch__channel__{l}", 1).await;
    // The waiter has subscribed, checks once more, and then goes to sleep.
    tokio::time::sleep(ms(300)).await;
    of_java.assert_still_out();
    assert!(ours.delete().await.unwrap());
    of_java.await.done();
}
