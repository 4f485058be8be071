//! Both sides while servers change places: a failover by Sentinel, a slot of a cluster that moves.
#![allow(clippy::print_stdout, reason = "figures, shown with --nocapture")]

use std::time::{Duration, Instant};

use lock_runtime::{LockGuard, LockManager};
use lock_tests::eventually;
use lock_tests::java::{
    Java, Kind, SLACK, Servers, Settings, Shared, connect, nothing_is_left, with_defaults,
};
use tokio::task::JoinHandle;

/// What a change of servers may take, on both sides.
const CHANGE: Duration = Duration::from_secs(60);
/// Of both sides. The old primary takes renewals for some seconds more, and they are lost: a lease of that length may
/// be lost with them.
const LONG_LEASE: Duration = Duration::from_secs(12);

async fn both(servers: &impl Servers) -> (LockManager, Java) {
    let settings = Settings::default().watchdog(LONG_LEASE);
    tokio::join!(connect(servers, |builder| builder.lease(LONG_LEASE)), Java::start_with(servers, settings))
}

fn waiter(kind: Kind, locks: &LockManager, name: &'static str) -> JoinHandle<LockGuard> {
    let locks = locks.clone();
    tokio::spawn(async move { kind.acquire_within(&locks, name, CHANGE).await.unwrap() })
}

/// Waits until a lock has more time to live than before.
async fn is_renewed(servers: &impl Servers, name: &str) {
    let mut last = i64::MAX;
    let longer = async || {
        let left: i64 = servers.ask(name, &["PTTL", name]).parse().expect("a number");
        assert!(left > 0, "{name} is gone");
        std::mem::replace(&mut last, left) < left
    };
    eventually(longer, LONG_LEASE).await;
}

lock_tests::on_kinds! { [lock = Lock, fenced = Fenced, fair = Fair, write = Write]
    /// What both hold stays theirs, what both wait for is handed over.
    async fn holders_and_waiters_of_both_sides_outlive_a_failover(kind: Kind) {
        let Some(sentinels) = Shared::sentinel_only() else { return };
        let (locks, java) = both(&sentinels).await;
        let (of_java, of_rust) = (kind.on(&java, "a", "java"), kind.acquire(&locks, "rust").await.unwrap());
        of_java.lock().await.done();
        let java_waits = kind.on(&java, "b", "rust").lock().within(CHANGE);
        let rust_waits = waiter(kind, &locks, "java");
        for name in ["java", "rust"] {
            eventually(async || kind.waiting_clients(&sentinels, name) == 1, SLACK).await;
        }
        let start = Instant::now();
        let now = tokio::task::block_in_place(|| sentinels.failover());
        println!("{kind:?}: server {now} is the primary after {:.2?}", start.elapsed());
        // Both are renewed where they are now.
        for name in ["java", "rust"] {
            is_renewed(&sentinels, name).await;
        }
        assert!(!of_rust.is_lost() && !rust_waits.is_finished());
        let released = Instant::now();
        of_rust.release().await.unwrap();
        java_waits.await.done();
        println!("{kind:?}: Java in {:.2?} after the release", released.elapsed());
        kind.on(&java, "b", "rust").unlock().await.done();

        let unlocked = Instant::now();
        of_java.unlock().await.done();
        rust_waits.await.unwrap().release().await.unwrap();
        println!("{kind:?}: Rust in {:.2?} after the unlock", unlocked.elapsed());
        nothing_is_left(&sentinels).await;
    }
}

/// Redisson adds a WAIT to every script that changes a lock, for as many replicas as there are.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn java_waits_for_the_replicas_and_rust_does_not() {
    let Some(sentinels) = Shared::sentinel_only() else { return };
    let (locks, java) = with_defaults(&sentinels).await;
    let waits = || {
        let stats = sentinels.primary().cli(&["INFO", "commandstats"]);
        let line = stats.lines().find_map(|line| line.strip_prefix("cmdstat_wait:calls="));
        line.map_or(0, |rest| rest.split(',').next().unwrap().parse::<u64>().unwrap())
    };
    let before = waits();
    for _ in 0..10 {
        locks.mutex("k").acquire().await.unwrap().release().await.unwrap();
    }
    assert_eq!(waits(), before);
    let lock = java.lock("a", "lock", "k");
    for _ in 0..10 {
        lock.lock().await.done();
        lock.unlock().await.done();
    }
    assert!(waits() >= before + 20, "{} after {before}", waits());
}
