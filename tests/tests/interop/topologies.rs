//! Both sides while servers change roles: a failover by Sentinel, a slot of a cluster that moves.

use std::time::{Duration, Instant};

use lock_runtime::{LockGuard, LockManager};
use lock_tests::cluster::{self, slot_of};
use lock_tests::java::{
    Java, Kind, SLACK, Servers, Settings, Shared, connect, nothing_is_left, with_defaults,
};
use lock_tests::{Cluster, RedisServer, eventually};
use tokio::task::JoinHandle;

/// Maximum time for a change of servers, on both sides.
const CHANGE: Duration = Duration::from_secs(60);
/// Lease on both sides, the default. For some seconds the old primary still takes renewals, which
/// are lost. A Redisson renewal during the change fails after some seconds, and the next comes a
/// third of the lease later. A much shorter lease may end before that.
const LONG_LEASE: Duration = Duration::from_secs(30);

async fn both(servers: &impl Servers) -> (LockManager, Java) {
    let settings = Settings::default().watchdog(LONG_LEASE);
    tokio::join!(connect(servers, |builder| builder.lease(LONG_LEASE)), Java::start_with(servers, settings))
}

fn waiter(kind: Kind, locks: &LockManager, name: &'static str) -> JoinHandle<LockGuard> {
    let locks = locks.clone();
    tokio::spawn(async move { kind.acquire_within(&locks, name, CHANGE).await.unwrap() })
}

/// Waits until a lock's time to live has grown.
async fn is_renewed(servers: &impl Servers, name: &str) {
    let mut last = i64::MAX;
    let longer = async || {
        let left: i64 = servers.ask(name, &["PTTL", name]).parse().expect("a number");
        assert!(left > 0, "{name} is gone");
        std::mem::replace(&mut last, left) < left
    };
    eventually(longer, LONG_LEASE).await;
}

/// Checks that holders keep their locks and waiters get theirs while the servers `change`.
async fn holders_and_waiters_outlive(kind: Kind, servers: &impl Servers, change: impl FnOnce()) {
    let (locks, java) = both(servers).await;
    let (of_java, of_rust) = (kind.on(&java, "a", "java"), kind.acquire(&locks, "rust").await.unwrap());
    of_java.lock().await.done();
    let java_waits = kind.on(&java, "b", "rust").lock().within(CHANGE);
    let rust_waits = waiter(kind, &locks, "java");
    for name in ["java", "rust"] {
        eventually(async || kind.waiting_clients(servers, name) == 1, SLACK).await;
    }
    let start = Instant::now();
    tokio::task::block_in_place(change);
    println!("{kind:?}: changed after {:.2?}", start.elapsed());
    // Both are renewed on the servers where they are now.
    for name in ["java", "rust"] {
        is_renewed(servers, name).await;
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
    nothing_is_left(servers).await;
}

fn move_slots(cluster: &Cluster) {
    for name in ["java", "rust"] {
        cluster.move_slot(slot_of(name), (cluster.node_of(name) + 1) % 3);
    }
}

lock_tests::on_kinds! { [lock = Lock, fenced = Fenced, fair = Fair, write = Write]
    async fn holders_and_waiters_of_both_sides_outlive_a_failover(kind: Kind) {
        let Some(sentinels) = Shared::sentinel_only() else { return };
        holders_and_waiters_outlive(kind, &sentinels, || {
            sentinels.primary().wait_for_replicas(2);
            sentinels.failover();
        })
        .await;
    }

    async fn holders_and_waiters_of_both_sides_outlive_a_failover_in_a_cluster(kind: Kind) {
        let Some(cluster) = Shared::cluster_only(cluster::Options::default().replicas(1)) else { return };
        holders_and_waiters_outlive(kind, &cluster, || {
            for name in ["java", "rust"] {
                cluster.failover(cluster.node_of(name));
            }
        })
        .await;
    }

    /// Later callers succeed too. Java threads that wait meanwhile are in the next test.
    async fn holders_of_both_sides_and_rust_waiters_outlive_the_move_of_their_slots(kind: Kind) {
        let Some(cluster) = Shared::cluster_only(cluster::Options::default()) else { return };
        let (locks, java) = both(&cluster).await;
        let (of_java, of_rust) = (kind.on(&java, "a", "java"), kind.acquire(&locks, "rust").await.unwrap());
        of_java.lock().await.done();
        let rust_waits = waiter(kind, &locks, "java");
        eventually(async || kind.waiting_clients(&cluster, "java") == 1, SLACK).await;
        tokio::task::block_in_place(|| move_slots(&cluster));
        for name in ["java", "rust"] {
            is_renewed(&cluster, name).await;
        }
        assert!(!of_rust.is_lost() && !rust_waits.is_finished());
        let java_waits = kind.on(&java, "b", "rust").lock().within(SLACK);
        eventually(async || kind.waiting_clients(&cluster, "rust") == 1, SLACK).await;
        let released = Instant::now();
        of_rust.release().await.unwrap();
        java_waits.await.done();
        println!("{kind:?}: Java in {:.2?} after the release", released.elapsed());
        kind.on(&java, "b", "rust").unlock().await.done();

        let unlocked = Instant::now();
        of_java.unlock().await.done();
        rust_waits.await.unwrap().release().await.unwrap();
        println!("{kind:?}: Rust in {:.2?} after the unlock", unlocked.elapsed());
        nothing_is_left(&cluster).await;
    }
}

/// Redisson does not listen on the slot's new server. A waiting thread sleeps for the rest of the
/// lease that it last saw, or fails. Other programs are not disturbed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_java_thread_that_waits_while_its_slot_moves_misses_the_release_and_rust_goes_on() {
    let Some(cluster) = Shared::cluster_only(cluster::Options::default()) else { return };
    let (locks, java) = both(&cluster).await;
    let guard = locks.mutex("rust").acquire().await.unwrap();
    let waiting = java.lock("a", "lock", "rust").lock().within(LONG_LEASE + CHANGE);
    eventually(async || Kind::Lock.waiting_clients(&cluster, "rust") == 1, SLACK).await;
    tokio::task::block_in_place(|| move_slots(&cluster));
    guard.release().await.unwrap();
    let released = Instant::now();
    let entered = waiting.await;
    println!("after {:.2?}: {:?}", released.elapsed(), entered.result);
    match &entered.result {
        Ok(_) => java.lock("a", "lock", "rust").unlock().await.done(),
        Err(error) => assert!(error.class.ends_with(".RedisTimeoutException"), "{error:?}"),
    }
    locks.mutex("rust").acquire().await.unwrap().release().await.unwrap();
    nothing_is_left(&cluster).await;
}

/// Only clients that subscribe at the server of the slot get the messages: a plain `SUBSCRIBE` to
/// the same name is another channel.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn both_sides_listen_on_the_sharded_channel() {
    let Some(cluster) = Shared::cluster_only(cluster::Options::default()) else { return };
    let (locks, java) = with_defaults(&cluster).await;
    let listeners = |command: &str| -> Vec<usize> {
        let count = |node: &RedisServer| {
            let answer = node.cli(&["PUBSUB", command, "redisson_lock__channel:{k}"]);
            answer.lines().nth(1).unwrap().parse().unwrap()
        };
        cluster.nodes().iter().map(count).collect()
    };
    let mut only_there = vec![0; 3];
    only_there[cluster.node_of("k")] = 1;
    let guard = locks.mutex("k").acquire().await.unwrap();
    let lock = java.lock("a", "lock", "k");
    let waiting = lock.lock();
    eventually(async || listeners("SHARDNUMSUB") == only_there, SLACK).await;
    assert_eq!(listeners("NUMSUB"), [0; 3]);
    guard.release().await.unwrap();
    waiting.await.done();

    let waiting = waiter(Kind::Lock, &locks, "k");
    eventually(async || listeners("SHARDNUMSUB") == only_there, SLACK).await;
    assert_eq!(listeners("NUMSUB"), [0; 3]);
    lock.unlock().await.done();
    waiting.await.unwrap().release().await.unwrap();
}

/// Returns how often a server has run a command.
fn calls(server: &RedisServer, command: &str) -> u64 {
    let stats = server.cli(&["INFO", "commandstats"]);
    let start = format!("cmdstat_{command}:calls=");
    let line = stats.lines().find_map(|line| line.strip_prefix(&start));
    line.map_or(0, |rest| rest.split(',').next().unwrap().parse().unwrap())
}

/// Redisson adds a WAIT for all replicas to every script that changes a lock.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn java_waits_for_the_replicas_and_rust_does_not() {
    let Some(sentinels) = Shared::sentinel_only() else { return };
    let (locks, java) = with_defaults(&sentinels).await;
    let waits = || calls(sentinels.primary(), "wait");
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

/// `isLocked()` and `remainTimeToLive()` ask a replica; `isHeldByCurrentThread()` and
/// `getHoldCount()` do not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn java_asks_a_replica_whether_a_lock_is_held_and_the_primary_whether_it_is_its_own() {
    let Some(sentinels) = Shared::sentinel_only() else { return };
    let (locks, java) = with_defaults(&sentinels).await;
    let guard = locks.mutex("k").acquire().await.unwrap();
    let lock = java.lock("a", "lock", "k");
    const COMMANDS: [(&str, bool); 3] = [("exists", false), ("hexists", true), ("hget", true)];
    let asked = |server: &RedisServer| COMMANDS.map(|(command, _)| calls(server, command));
    let before = asked(sentinels.primary());
    // The replica may not know yet.
    eventually(async || lock.status().await.locked, SLACK).await;
    let after = asked(sentinels.primary());
    for (at, (command, by_primary)) in COMMANDS.into_iter().enumerate() {
        assert_eq!(after[at] > before[at], by_primary, "{command}");
        let by_replicas = sentinels.replicas().into_iter().any(|server| asked(server)[at] > 0);
        assert_eq!(by_replicas, !by_primary, "{command}");
    }
    guard.release().await.unwrap();
}
