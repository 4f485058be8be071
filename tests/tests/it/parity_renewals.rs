//! Renewal of locks of all kinds in trouble: one of many calls fails, a server forgets everything,
//! clocks are wrong.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use lock_runtime::testing::{manager_on, memory_store};
use lock_runtime::{Kind, LockError, LockGuard, LockKey, LockManager};
use lock_tests::kinds::{KINDS, is_free, lock, rival_of};
use lock_tests::probe::{Probe, Renewals};
use lock_tests::redis::Data;
use lock_tests::{RedisServer, eventually};
use tokio::time::{Instant, sleep, timeout};

const LONG: Duration = Duration::from_secs(60);
const LEASE: Duration = Duration::from_secs(9);

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// Acquires `each` holds of each kind; one call renews at most a hundred of them.
async fn many(locks: &LockManager, each: usize) -> BTreeMap<String, LockGuard> {
    let mut held = BTreeMap::new();
    for n in 0..each {
        for kind in KINDS {
            let key = format!("{kind:?}:{n}");
            let guard = lock(locks, kind, &key).acquire().await.unwrap();
            held.insert(key, guard);
        }
    }
    held
}

/// A call that fails for a while costs no lock, and does not hold up the other calls.
#[tokio::test(start_paused = true)]
async fn a_renewal_that_fails_for_a_while_loses_none_of_many_locks() {
    for trouble in [Renewals::Fail, Renewals::Hang] {
        let probe = Probe::new(memory_store());
        let locks = manager_on(LockManager::builder().lease(LEASE), probe.clone());
        let held = many(&locks, 75).await;
        for round in 0..3 {
            let key = LockKey::new(format!("Write:{}", round * 30)).unwrap();
            probe.set_renewals_with(key, trouble);
            sleep(LEASE / 2).await;
            probe.set_renewals(Renewals::Work);
            sleep(LEASE).await;
            assert!(held.values().all(|guard| !guard.is_lost()), "{trouble:?}");
        }
    }
}

/// A call that fails forever costs the locks in it, at their deadlines, and no others.
#[tokio::test(start_paused = true)]
async fn a_renewal_that_fails_for_ever_loses_the_locks_of_its_call_only() {
    for trouble in [Renewals::Fail, Renewals::Hang] {
        let probe = Probe::new(memory_store());
        let locks = manager_on(LockManager::builder().lease(LEASE), probe.clone());
        let held = many(&locks, 75).await;
        let bad = "Read:40";
        probe.set_renewals_with(LockKey::new(bad).unwrap(), trouble);
        let start = Instant::now();
        timeout(LEASE, held[bad].lost()).await.expect("its deadline passes");
        assert!(start.elapsed() >= LEASE * 2 / 3, "{trouble:?}: {:?}", start.elapsed());
        sleep(LEASE * 3).await;
        let lost = held.values().filter(|guard| guard.is_lost()).count();
        assert!((1..=100).contains(&lost), "{trouble:?}: {lost} of {}", held.len());
        for (key, guard) in held {
            let was_lost = guard.is_lost();
            assert_eq!(guard.release().await.is_err(), was_lost, "{trouble:?}: {key}");
        }
    }
}

/// As after a crash without persistence: every holder learns of it, and later locks are renewed,
/// twice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn locks_of_all_kinds_are_renewed_again_after_a_server_has_forgotten_them() {
    let lease = ms(1500);
    let mut server = RedisServer::start();
    let connect = || LockManager::builder().lease(lease).connect(server.url());
    let (locks, other) = (connect().await.unwrap(), connect().await.unwrap());
    for round in 0..2 {
        let mut held = Vec::new();
        for kind in KINDS {
            held.push(lock(&locks, kind, &format!("{kind:?}")).wait(LONG).acquire().await.unwrap());
        }
        server.restart(Data::Lost);
        for guard in held {
            timeout(LONG, guard.lost()).await.expect("the server has forgotten it");
            let error = guard.release().await.unwrap_err();
            assert!(matches!(error, LockError::Lost { .. }), "{round}: {error:?}");
        }
        let mut held = Vec::new();
        for kind in KINDS {
            held.push((kind, lock(&locks, kind, &format!("{kind:?}")).wait(LONG).acquire().await.unwrap()));
        }
        let start = Instant::now();
        while start.elapsed() < lease * 3 {
            sleep(lease / 4).await;
            for (kind, guard) in &held {
                assert!(!guard.is_lost(), "{round}: {kind:?} after {:?}", start.elapsed());
            }
        }
        for (kind, guard) in held {
            let rival = other.clone();
            assert!(!is_free(lock(&rival, rival_of(kind), &format!("{kind:?}"))).await, "{round}: {kind:?}");
            guard.release().await.unwrap();
        }
    }
    assert_eq!(locks.status(format!("{:?}", Kind::Fair)).await.unwrap().waiters, 0);
}

/// A waiter of any kind outlives the restart of a server that forgets queue, intent and holder.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiters_of_all_kinds_outlive_a_server_that_forgets_them() {
    let mut server = RedisServer::start();
    let connect = || LockManager::builder().lease(LONG * 10).connect(server.url());
    let (locks, other) = (connect().await.unwrap(), connect().await.unwrap());
    let mut held = Vec::new();
    let mut waiting = Vec::new();
    for kind in KINDS {
        let key = format!("{kind:?}");
        held.push(lock(&other, rival_of(kind), &key).acquire().await.unwrap());
        waiting.push((kind, tokio::spawn(lock(&locks, kind, &key).wait(LONG).acquire())));
        eventually(async || other.status(key.as_str()).await.unwrap().waiters == 1, LONG).await;
    }
    server.restart(Data::Lost);
    for (kind, waiter) in waiting {
        let guard = waiter.await.unwrap().unwrap_or_else(|error| panic!("{kind:?}: {error}"));
        assert!(!guard.is_lost(), "{kind:?}");
        guard.release().await.unwrap();
    }
    drop(held);
}

/// No decision depends on a client's wall clock. Only the memory store reads one, for a first value
/// of its tokens.
#[test]
fn no_clients_wall_clock_is_read() {
    fn look(folder: &Path, root: &Path, found: &mut Vec<String>) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                look(&path, root, found);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let source = std::fs::read_to_string(&path).unwrap();
                let wall_clock = ["SystemTime", "UNIX_EPOCH", "CLOCK_REALTIME", "ClockId::Realtime"];
                if wall_clock.iter().any(|name| source.contains(name)) {
                    found.push(path.strip_prefix(root).unwrap().to_str().unwrap().replace('\\', "/"));
                }
            }
        }
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut found = Vec::new();
    for folder in ["lock-core/src", "lock-engine/src", "lock-runtime/src", "stores"] {
        look(&root.join(folder), root, &mut found);
    }
    assert_eq!(found, ["stores/memory/src/memory.rs"]);
}
