//! Redisson's own client and ours on the same lock: a holder keeps others of both sides out, and
//! its release lets the next one in at once.

use std::sync::Arc;
use std::time::{Duration, Instant};

use lock_runtime::{LockError, Loss};
use lock_tests::clock::now_nanos;
use lock_tests::java::{
    Java, Kind, LEASE, SLACK, Servers, Settings, Shared, connect, judge, with_defaults, with_short_lease,
    with_short_lease_and,
};
use lock_tests::overlap::{Recorder, Report};
use lock_tests::{Helper, eventually};

/// Lease on both sides. Much longer than [`SLACK`], so that a hand-off is never the end of a lease.
const DEFAULT_LEASE: Duration = Duration::from_secs(30);
const ROUNDS: usize = 15;

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// Waits until a client of either side has found the lock taken and listens.
async fn somebody_waits(kind: Kind, server: &Shared, name: &str) {
    eventually(async || kind.waiting_clients(server, name) == 1, SLACK).await;
}

fn time_left(server: &Shared, name: &str) -> i64 {
    server.ask(name, &["PTTL", name]).parse().expect("a number")
}

lock_tests::on_kinds! { [lock = Lock, fenced = Fenced, fair = Fair, write = Write]
    async fn a_java_holder_keeps_rust_out_until_it_unlocks(kind: Kind) {
        let server = Shared::start();
        let (locks, java) = with_defaults(&server).await;
        let held = kind.on(&java, "a", "k");
        let answer = held.lock().await;
        answer.done();
        assert!(answer.owner.starts_with(java.client()));
        assert!(kind.try_acquire(&locks, "k").await.is_none());
        let status = locks.status("k").await.unwrap();
        let holders: Vec<_> = status.holders.iter().map(|(owner, count)| (owner.to_string(), *count)).collect();
        assert_eq!(holders, [(answer.owner, 1)]);
        assert!(status.remaining.unwrap() > DEFAULT_LEASE - SLACK);
        held.unlock().await.done();
        let guard = kind.try_acquire(&locks, "k").await.expect("it is free");
        guard.release().await.unwrap();
        java.exit().await;
    }

    async fn a_rust_holder_keeps_java_out_until_it_releases(kind: Kind) {
        let server = Shared::start();
        let (locks, java) = with_defaults(&server).await;
        let lock = kind.on(&java, "a", "k");
        let guard = kind.acquire(&locks, "k").await.unwrap();
        assert!(!lock.try_lock().await.is_true());
        // Redisson may ask a replica, which hears of it later.
        eventually(async || lock.status().await.locked, SLACK).await;
        let status = lock.status().await;
        assert_eq!((status.locked, status.mine, status.count), (true, false, 0));
        assert!(status.remaining.unwrap() > DEFAULT_LEASE - SLACK, "{status:?}");
        // A stranger's unlock is refused and changes nothing.
        assert_eq!(lock.unlock().await.exception(), "IllegalMonitorStateException");
        assert!(!lock.try_lock().await.is_true());
        assert!(!guard.is_lost());
        guard.release().await.unwrap();
        assert!(lock.try_lock().await.is_true());
        lock.unlock().await.done();
        eventually(async || !lock.status().await.locked, SLACK).await;
    }

    async fn threads_and_tasks_of_both_sides_never_overlap(kind: Kind) {
        let server = Shared::start();
        let time = Duration::from_secs(3);
        let log = tempfile::tempdir().unwrap();
        let path = log.path().join("log");
        let java = Java::start(&server).await;
        let recorder = Arc::new(Recorder::open(&path).unwrap());
        let mut tasks = Vec::new();
        for _ in 0..2 {
            let locks = connect(&server, |builder| builder).await;
            for _ in 0..4 {
                let (locks, recorder) = (locks.clone(), recorder.clone());
                tasks.push(tokio::spawn(async move {
                    let (end, mut rounds) = (Instant::now() + time, 0);
                    while Instant::now() < end {
                        let guard = kind.acquire(&locks, "mixed").await.unwrap();
                        let section = recorder.enter("mixed", guard.fencing_token().get(), || guard.remaining());
                        tokio::time::sleep(ms(1)).await;
                        recorder.leave(section, || guard.remaining());
                        guard.release().await.unwrap();
                        rounds += 1;
                    }
                    rounds
                }));
            }
        }
        let (first, second) = (kind.on(&java, "a", "mixed"), kind.on(&java, "b", "mixed"));
        let (first, second) =
            tokio::join!(first.hammer(time, ms(1), &path), second.hammer(time, ms(1), &path));
        let mut rust = 0;
        for task in tasks {
            rust += task.await.unwrap();
        }
        let report = Report::read(&path).unwrap();
        report.assert_clean();
        println!("{kind:?}: {} sections of Java, {rust} of Rust", first.0 + second.0);
        assert_eq!(report.total() as u64, first.0 + second.0 + rust);
        assert!(first.0 > 0 && second.0 > 0 && rust > 0);
        // Only the counter of fencing tokens is left.
        eventually(async || server.keys() == ["redisson_lock_token:{mixed}"], SLACK).await;
    }

    async fn a_java_waiter_enters_at_once_when_rust_releases(kind: Kind) {
        let server = Shared::start();
        let (locks, java) = with_defaults(&server).await;
        let mut times = Vec::new();
        // The first round loads classes and scripts.
        for round in 0..=ROUNDS {
            // A new name for each round, so that nobody listens for it yet.
            let name = format!("round:{round}");
            let lock = kind.on(&java, "a", &name);
            let guard = kind.acquire(&locks, &name).await.unwrap();
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
        judge(&format!("{kind:?}, Rust to Java"), times);
    }

    async fn a_rust_waiter_enters_at_once_when_java_unlocks(kind: Kind) {
        let server = Shared::start();
        let (locks, java) = with_defaults(&server).await;
        let mut times = Vec::new();
        for round in 0..=ROUNDS {
            let name = format!("round:{round}");
            let lock = kind.on(&java, "a", &name);
            lock.lock().await.done();
            let waiting = tokio::spawn({
                let (locks, name) = (locks.clone(), name.clone());
                async move { (kind.acquire_within(&locks, &name, SLACK).await.unwrap(), now_nanos()) }
            });
            somebody_waits(kind, &server, &name).await;
            let unlocked = lock.unlock().await;
            unlocked.done();
            let (guard, entered) = waiting.await.unwrap();
            if round > 0 {
                times.push(Duration::from_nanos(entered - unlocked.start));
            }
            guard.release().await.unwrap();
        }
        judge(&format!("{kind:?}, Java to Rust"), times);
    }

    async fn waits_end_at_their_limit_on_both_sides(kind: Kind) {
        let server = Shared::start();
        let (locks, java) = with_defaults(&server).await;
        let limit = ms(500);
        let lock = kind.on(&java, "a", "k");
        let guard = kind.acquire(&locks, "k").await.unwrap();
        let answer = lock.try_lock_within(limit).await;
        assert!(!answer.is_true());
        // Redisson subtracts whole milliseconds from its wait after each step, so the wait ends a
        // little early.
        let least = limit - ms(5);
        assert!(answer.took() >= least && answer.took() < limit + SLACK, "{:?}", answer.took());
        guard.release().await.unwrap();

        lock.lock().await.done();
        let start = Instant::now();
        let error = kind.acquire_within(&locks, "k", limit).await.unwrap_err();
        assert!(matches!(error, LockError::TimedOut { .. }), "{error:?}");
        assert!(start.elapsed() >= limit && start.elapsed() < limit + SLACK, "{:?}", start.elapsed());
        lock.unlock().await.done();
        // A waiter that gave up no longer listens, and got nothing.
        eventually(async || kind.waiting_clients(&server, "k") == 0, SLACK).await;
        assert_eq!(server.ask("k", &["EXISTS", "k"]), "0");
    }

    async fn both_sides_keep_what_they_hold_for_three_leases(kind: Kind) {
        let server = Shared::start();
        let (locks, java) = with_short_lease(&server).await;
        let other = connect(&server, |builder| builder.lease(LEASE)).await;
        let held = kind.on(&java, "a", "java's");
        let start = Instant::now();
        held.lock().await.done();
        let guard = kind.acquire(&locks, "rust's").await.unwrap();
        let rust_waits = tokio::spawn(async move { kind.acquire(&other, "java's").await.unwrap() });
        let java_waiter = kind.on(&java, "b", "rust's");
        let mut java_waits = java_waiter.lock();
        let mut least = i64::MAX;
        while start.elapsed() < LEASE * 3 {
            for name in ["java's", "rust's"] {
                let left = time_left(&server, name);
                assert!(left > 0 && left <= 3000, "{name}: {left} ms after {:?}", start.elapsed());
                least = least.min(left);
            }
            assert!(!rust_waits.is_finished() && !guard.is_lost());
            java_waits.assert_still_out();
            tokio::time::sleep(ms(100)).await;
        }
        println!("{kind:?}: renewed with {least} ms left at least");
        held.unlock().await.done();
        rust_waits.await.unwrap().release().await.unwrap();
        guard.release().await.unwrap();
        java_waits.await.done();
        java_waiter.unlock().await.done();
    }

    async fn a_fixed_lease_of_one_side_ends_for_the_other(kind: Kind) {
        let server = Shared::start();
        let (locks, java) = with_defaults(&server).await;
        let lease = Duration::from_secs(1);
        let lock = kind.on(&java, "a", "k");
        let locked = lock.lock_for(lease).await;
        locked.done();
        let guard = kind.acquire(&locks, "k").await.unwrap();
        let after = Duration::from_nanos(now_nanos() - locked.start);
        assert!(after >= lease && after < lease + SLACK, "{after:?}");
        // The former holder learns of the loss, and does not disturb the next one.
        assert_eq!(lock.unlock().await.exception(), "IllegalMonitorStateException");
        assert!(!guard.is_lost());
        guard.release().await.unwrap();

        let start = now_nanos();
        let guard = kind.acquire_for(&locks, "k", lease).await.unwrap();
        let entered = lock.lock().await;
        entered.done();
        let after = Duration::from_nanos(entered.end - start);
        assert!(after >= lock_tests::validity(lease) && after < lease + SLACK, "{after:?}");
        assert!(guard.is_lost());
        assert!(matches!(guard.release().await, Err(LockError::Lost { .. })));
        assert!(lock.status().await.mine);
        lock.unlock().await.done();
    }

    async fn a_killed_java_holder_lets_rust_in_within_its_lease(kind: Kind) {
        let server = Shared::start();
        let (locks, mut java) = with_short_lease_and(&server, Settings::default().alone()).await;
        kind.on(&java, "a", "k").lock().await.done();
        let waiting = tokio::spawn(async move { kind.acquire(&locks, "k").await.unwrap() });
        somebody_waits(kind, &server, "k").await;
        java.kill();
        let killed = Instant::now();
        let guard = waiting.await.unwrap();
        println!("{kind:?}: in {:?} after Java was killed, lease {LEASE:?}", killed.elapsed());
        assert!(killed.elapsed() < LEASE + SLACK);
        guard.release().await.unwrap();
    }

    async fn a_killed_rust_holder_lets_java_in_within_its_lease(kind: Kind) {
        let server = Shared::start();
        let java = Java::start(&server).await;
        let lease = format!("lease={}", LEASE.as_millis());
        let mut holder = Helper::spawn(env!("CARGO_BIN_EXE_holder"), [server.url(), lease]);
        assert_eq!(holder.line(SLACK * 2), "ready");
        assert!(holder.ask(&format!("acquire k kind={}", kind.holder())).starts_with("acquired"));
        // The holder has the default prefix, which is a part of the name for Java.
        let lock = kind.on(&java, "a", "lock:k");
        let waiting = lock.lock();
        somebody_waits(kind, &server, "lock:k").await;
        holder.kill();
        let killed = Instant::now();
        waiting.await.done();
        println!("{kind:?}: in {:?} after Rust was killed, lease {LEASE:?}", killed.elapsed());
        assert!(killed.elapsed() < LEASE + SLACK);
        lock.unlock().await.done();
    }

    async fn a_killed_waiter_of_one_side_takes_nothing_with_it(kind: Kind) {
        let server = Shared::start();
        let locks = connect(&server, |builder| builder.lease(LEASE)).await;
        // In a fair queue, dead waiters keep their places until Redisson's wait for them is over, 5
        // minutes by default.
        let mut java =
            Java::start_with(&server, Settings::default().alone().watchdog(LEASE).fair_wait(LEASE)).await;
        let other = connect(&server, |builder| builder).await;
        let guard = kind.acquire(&locks, "k").await.unwrap();
        let _never = kind.on(&java, "a", "k").lock();
        somebody_waits(kind, &server, "k").await;
        let waiting = tokio::spawn(async move { kind.acquire(&other, "k").await.unwrap() });
        eventually(async || kind.waiting_clients(&server, "k") == 2, SLACK).await;
        java.kill();
        guard.release().await.unwrap();
        waiting.await.unwrap().release().await.unwrap();
    }

    async fn java_enters_again_and_again_and_rust_waits_for_the_last_unlock(kind: Kind) {
        let server = Shared::start();
        let (locks, java) = with_defaults(&server).await;
        let lock = kind.on(&java, "a", "k");
        for count in 1..=3 {
            lock.lock().await.done();
            assert_eq!(lock.status().await.count, count);
        }
        assert_eq!(locks.status("k").await.unwrap().holders[0].1, 3);
        let waiting = tokio::spawn({
            let locks = locks.clone();
            async move { kind.acquire(&locks, "k").await.unwrap() }
        });
        somebody_waits(kind, &server, "k").await;
        for count in [2, 1] {
            lock.unlock().await.done();
            assert_eq!(lock.status().await.count, count);
            assert!(!waiting.is_finished() && kind.try_acquire(&locks, "k").await.is_none());
        }
        // Another thread of the same program is a stranger.
        assert!(!kind.on(&java, "b", "k").try_lock().await.is_true());
        lock.unlock().await.done();
        waiting.await.unwrap().release().await.unwrap();
    }

    async fn force_unlock_by_java_takes_the_lock_from_rust(kind: Kind) {
        let server = Shared::start();
        let (locks, java) = with_short_lease(&server).await;
        let guard = kind.acquire(&locks, "k").await.unwrap();
        let next = kind.on(&java, "next", "k");
        let waiting = next.lock();
        java.is_parked("next").await;
        assert!(kind.on(&java, "admin", "k").force_unlock().await.is_true());
        waiting.await.done();
        // The holder notices it at its next renewal.
        tokio::time::timeout(LEASE + SLACK, guard.lost()).await.expect("the lock is lost");
        match guard.release().await {
            Err(LockError::Lost { why, .. }) => assert_eq!(why, Loss::TakenAway),
            other => panic!("{other:?}"),
        }
        assert!(next.status().await.mine, "the next holder is not disturbed");
        next.unlock().await.done();
        assert!(!kind.on(&java, "admin", "k").force_unlock().await.is_true(), "nobody has it");
    }

    async fn force_release_by_rust_takes_the_lock_from_java(kind: Kind) {
        let server = Shared::start();
        let (locks, java) = with_short_lease(&server).await;
        let held = kind.on(&java, "a", "k");
        held.lock().await.done();
        let waiting = kind.on(&java, "b", "k").lock();
        java.is_parked("b").await;
        assert!(locks.force_release("k").await.unwrap());
        waiting.await.done();
        assert!(locks.force_release("k").await.unwrap());
        let guard = kind.acquire(&locks, "k").await.unwrap();
        // Neither the unlocks nor the watchdogs of the former holders touch the next one's hold.
        let start = Instant::now();
        assert_eq!(held.unlock().await.exception(), "IllegalMonitorStateException");
        while start.elapsed() < LEASE * 2 {
            assert!(!guard.is_lost());
            tokio::time::sleep(ms(100)).await;
        }
        guard.release().await.unwrap();
        assert!(!locks.force_release("k").await.unwrap(), "nobody has it");
    }

    async fn a_name_with_a_hash_tag_is_the_same_on_both_sides(kind: Kind) {
        let server = Shared::start();
        let (locks, java) = with_defaults(&server).await;
        let name = "{tenant-7}:order:42";
        let lock = kind.on(&java, "a", name);
        lock.lock().await.done();
        let waiting = tokio::spawn(async move { kind.acquire(&locks, name).await.unwrap() });
        somebody_waits(kind, &server, name).await;
        let unlocked = lock.unlock().await;
        let guard = waiting.await.unwrap();
        assert!(Duration::from_nanos(now_nanos() - unlocked.start) < SLACK);
        assert!(!lock.try_lock().await.is_true());
        guard.release().await.unwrap();
    }

    async fn one_java_thread_has_its_share_beside_sixteen_rust_tasks(kind: Kind) {
        let server = Shared::start();
        let (locks, java) = with_defaults(&server).await;
        let time = Duration::from_secs(6);
        let log = tempfile::tempdir().unwrap();
        let path = log.path().join("log");
        let mut tasks = Vec::new();
        for _ in 0..16 {
            let locks = locks.clone();
            tasks.push(tokio::spawn(async move {
                let (end, mut rounds) = (Instant::now() + time, 0_u64);
                while Instant::now() < end {
                    let guard = kind.acquire(&locks, "shared").await.unwrap();
                    tokio::task::yield_now().await;
                    guard.release().await.unwrap();
                    rounds += 1;
                }
                rounds
            }));
        }
        let (java_rounds, longest) = kind.on(&java, "a", "shared").hammer(time, Duration::ZERO, &path).await;
        let mut rust = 0;
        for task in tasks {
            rust += task.await.unwrap();
        }
        println!(
            "{kind:?}: Java {java_rounds} times, Rust {rust} times in {time:?}; Java's longest wait {longest:.2?}"
        );
        // 16 tasks may keep the lock to themselves for a window of at most 250 ms, and then step
        // back. On a busy machine Java may miss its turn more than once.
        let soon = longest < time / 2;
        // Redisson's message for a freed write lock only wakes threads that already wait. A thread
        // that has checked, and does not wait yet, misses it and checks again when the lease would
        // end. See docs/book/src/interop.md.
        let missed = kind == Kind::Write && longest.abs_diff(DEFAULT_LEASE) < Duration::from_secs(1);
        assert!(soon || missed, "{longest:?}");
        assert!(java_rounds >= 10, "{java_rounds}");
    }
}
