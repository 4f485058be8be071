//! The load of a mutex on its store: renewals, polls, tasks. Counted, not timed. For known failures
//! elsewhere, see `docs/book/src/rivals.md`.

use std::sync::Arc;
use std::time::Duration;

use lock_runtime::testing::{leftovers, manager_on, memory_store};
use lock_runtime::{LockManager, LockManagerBuilder};
use lock_tests::RedisServer;
use lock_tests::probe::Probe;
use tokio::time::{Instant, sleep};

const SECOND: Duration = Duration::from_secs(1);
const LONG: Duration = Duration::from_secs(60);

fn manager(settings: LockManagerBuilder, probe: &Arc<Probe>) -> LockManager {
    manager_on(settings, probe.clone())
}

/// Renewals are due a third of a lease after the last one, or up to a sixtieth earlier: 30 to 31 in
/// ten leases.
#[tokio::test(start_paused = true)]
async fn a_held_lock_is_renewed_three_times_a_lease_whatever_came_before() {
    for lease in [SECOND / 10, SECOND / 5, SECOND / 2, SECOND, 30 * SECOND] {
        let probe = Probe::new(memory_store());
        let locks = manager(LockManager::builder().lease(lease), &probe);
        for _ in 0..500 {
            locks.mutex("k").acquire().await.unwrap().release().await.unwrap();
            drop(locks.mutex("k").acquire().await.unwrap());
        }
        assert_eq!(probe.keeps(), 0, "nothing was held for long");
        let guard = locks.mutex("k").acquire().await.unwrap();
        let inner = guard.reenter().unwrap();
        sleep(lease * 10).await;
        assert!(!guard.is_lost());
        let renewals = probe.keeps();
        assert!((29..=33).contains(&renewals), "{renewals} renewals in ten leases of {lease:?}");
        // One of two guards keeps it as well as both.
        drop(inner);
        sleep(lease * 10).await;
        let renewals = probe.keeps() - renewals;
        assert!((29..=33).contains(&renewals), "{renewals} renewals in ten leases of {lease:?}");
        guard.release().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn nobody_renews_what_nobody_holds() {
    let probe = Probe::new(memory_store());
    let locks = manager(LockManager::builder().lease(3 * SECOND), &probe);
    let released = locks.mutex("released").acquire().await.unwrap();
    let dropped = locks.mutex("dropped").acquire().await.unwrap();
    let fixed = locks.mutex("fixed").lease(30 * SECOND).acquire().await.unwrap();
    let limited = locks.mutex("limited").max_hold(2 * SECOND).acquire().await.unwrap();
    let forced = locks.mutex("forced").acquire().await.unwrap();
    let abandoned = tokio::time::timeout(SECOND, locks.mutex("released").acquire()).await;
    assert!(abandoned.is_err());
    released.release().await.unwrap();
    drop(dropped);
    locks.force_release("forced").await.unwrap();
    sleep(4 * SECOND).await;
    let before = probe.keeps();
    assert!(before > 0);
    sleep(20 * SECOND).await;
    assert_eq!(probe.keeps(), before);
    assert!(!fixed.is_lost() && limited.is_lost() && forced.is_lost());
    drop((fixed, limited, forced));
    sleep(SECOND).await;
    let left = leftovers(&locks);
    assert_eq!((left.keys, left.timers, left.tasks), (0, 0, 0));
}

#[tokio::test(start_paused = true)]
async fn many_held_locks_share_their_renewals_and_need_no_tasks_of_their_own() {
    const HELD: usize = 1000;
    let probe = Probe::new(memory_store());
    let locks = manager(LockManager::builder(), &probe);
    let mut guards = Vec::new();
    for i in 0..HELD {
        guards.push(locks.mutex(format!("k{i}")).acquire().await.unwrap());
    }
    sleep(300 * SECOND).await;
    assert!(guards.iter().all(|guard| !guard.is_lost()));
    // A hundred in each call.
    let calls = probe.keeps();
    assert!((29 * HELD / 100..=33 * HELD / 100).contains(&calls), "{calls}");
    assert_eq!(leftovers(&locks).tasks, 0);
    let tasks = tokio::runtime::Handle::current().metrics().num_alive_tasks();
    assert!(tasks < 10, "{tasks}");
}

/// The fallback doubles from a quarter of a second to five, less up to a quarter: at most 20
/// attempts in a minute.
#[tokio::test(start_paused = true)]
async fn waiters_ask_seldom_and_with_one_voice() {
    let (holding, waiting) = {
        let store = memory_store();
        (Probe::new(store.clone()), Probe::new(store))
    };
    let holder = manager(LockManager::builder(), &holding);
    let locks = manager(LockManager::builder(), &waiting);
    let held = holder.mutex("k").acquire().await.unwrap();
    let waiters: Vec<_> = (0..200)
        .map(|i| {
            let locks = if i % 2 == 0 { &locks } else { &holder };
            let waiter = locks.mutex("k").wait(10 * LONG).acquire();
            tokio::spawn(async move { drop(waiter.await.unwrap()) })
        })
        .collect();
    sleep(SECOND).await;
    let before = holding.acquires();
    assert_eq!(before, 1, "waiting for a lock of one's own process costs nothing");
    sleep(59 * SECOND).await;
    assert_eq!(holding.acquires(), before);
    let attempts = waiting.acquires();
    assert!((10..=22).contains(&attempts), "{attempts} attempts of a hundred waiters in a minute");
    drop(held);
    for waiter in waiters {
        waiter.await.unwrap();
    }
}

/// Returns the number of scripts that the server has run.
fn scripts(server: &RedisServer) -> usize {
    let calls = |line: &str| -> Option<usize> {
        let (name, numbers) = line.strip_prefix("cmdstat_eval")?.split_once(":calls=")?;
        assert!(["", "sha", "_ro", "sha_ro"].contains(&name), "{line}");
        numbers.split(',').next()?.parse().ok()
    };
    server.cli(&["INFO", "commandstats"]).lines().filter_map(calls).sum()
}

/// A renewal wakes neither the holder nor a waiter.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_held_lock_with_a_waiter_costs_a_redis_server_few_scripts() {
    let server = RedisServer::start();
    let lease = 2 * SECOND;
    let locks = LockManager::builder().lease(lease).connect(&server.url()).await.unwrap();
    let other = LockManager::connect(&server.url()).await.unwrap();
    for _ in 0..200 {
        locks.mutex("k").acquire().await.unwrap().release().await.unwrap();
    }
    let held = locks.mutex("k").acquire().await.unwrap();
    let waiter = tokio::spawn(other.mutex("k").wait(LONG).acquire());
    let (before, start) = (scripts(&server), Instant::now());
    sleep(lease * 3).await;
    let count = scripts(&server) - before;
    // The waiter checks again at the end of each lease that it heard of, after its fallback, and
    // four times at the start. A slow machine makes the run longer, and may repeat calls that it
    // was too slow for.
    let seconds = usize::try_from(start.elapsed().as_secs()).unwrap() + 1;
    assert!(!held.is_lost());
    assert!((3..=seconds * 10).contains(&count), "{count} scripts in {seconds} seconds");
    held.release().await.unwrap();
    waiter.await.unwrap().unwrap().release().await.unwrap();
}
