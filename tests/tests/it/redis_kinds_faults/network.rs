//! Messages are lost, connections break in every step, and a grant comes to a thread that is
//! blocked.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use lock_runtime::LockManager;
use lock_tests::proxy::{Fault, Line, Proxy, Way};
use lock_tests::{RedisServer, eventually, first_poll};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::{
    LONG, SLACK, all_is_quiet, assert_idle, assert_nothing_is_left, lock_of, manager, managers, ms, section,
    soon, waiters,
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn grants_whose_messages_are_lost_are_found() {
    let server = RedisServer::start();
    let managers: [_; 3] = managers(&server).await;
    let inside = Arc::new(AtomicBool::new(false));
    let holder = managers[0].fair("k").wait(LONG).acquire().await.unwrap();
    let mut all = JoinSet::new();
    for n in 0..12 {
        all.spawn(section(managers[n % 3].fair("k"), Arc::clone(&inside)));
        waiters(&server, "k", n + 1).await;
    }
    let start = Instant::now();
    server.cli(&["CLIENT", "KILL", "TYPE", "pubsub"]);
    holder.release().await.unwrap();
    let mut tokens = Vec::new();
    loop {
        server.cli(&["CLIENT", "KILL", "TYPE", "pubsub"]);
        match tokio::time::timeout(ms(10), all.join_next()).await {
            Ok(None) => break,
            Ok(Some(done)) => {
                tokens.push(done.unwrap().unwrap());
            }
            Err(_) => assert!(start.elapsed() < SLACK * 2, "{} got in", tokens.len()),
        }
    }
    assert!(tokens.is_sorted());
    all_is_quiet(&server, &managers).await;
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Acquire,
    Queued,
    Keep,
    Release,
    Downgrade,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_kind_survives_every_fault_of_the_network_in_every_step() {
    let server = Arc::new(RedisServer::start());
    let faults = [Fault::Delay(ms(1500)), Fault::BlackHole, Fault::Close, Fault::HalfClose, Fault::Reset];
    let here = tokio::task::LocalSet::new();
    let mut all = JoinSet::new();
    for kind in ["fair", "read", "write", "multi"] {
        for step in [Step::Acquire, Step::Queued, Step::Keep, Step::Release, Step::Downgrade] {
            if matches!(step, Step::Downgrade) && kind != "write" {
                continue;
            }
            for fault in faults {
                for way in [Way::ToServer, Way::ToClient] {
                    all.spawn_local_on(survives(Arc::clone(&server), kind, step, way, fault), &here);
                }
            }
        }
    }
    here.await;
    while let Some(done) = all.join_next().await {
        done.unwrap();
    }
    assert_nothing_is_left(&server).await;
}

/// Asserts that a lock of this kind works although a connection fails in this step, and that others
/// get it afterwards.
async fn survives(server: Arc<RedisServer>, kind: &str, step: Step, way: Way, fault: Fault) {
    let name = format!("{kind}/{step:?}/{fault:?}/{way:?}");
    let key = name.replace(' ', "");
    let proxy = Proxy::start(server.addr()).await;
    let settings = LockManager::builder()
        .call_timeout(ms(500))
        .fallback_poll(ms(300))
        .lease(ms(6000))
        .connect_timeout(SLACK);
    let locks = settings.connect(proxy.url()).await.unwrap();
    let direct = manager(&server.url()).await;
    for lock in [lock_of(&locks, kind, &key), lock_of(&locks, "write", &key)] {
        let _ = lock.wait(LONG).acquire().await.unwrap().release().await;
    }
    let acquire = || lock_of(&locks, kind, &key).wait(LONG).acquire();
    let fail = |number| proxy.next(number, Line::Commands, way, fault);
    match step {
        Step::Acquire => {
            let injection = fail(1);
            let guard = acquire().await.unwrap();
            assert!(injection.hits() > 0);
            let _ = guard.release().await;
        }
        Step::Queued => {
            let holder = direct.write(&key).acquire().await.unwrap();
            let waiter = tokio::spawn(acquire());
            tokio::time::sleep(ms(100)).await;
            let _one = fail(2);
            tokio::time::sleep(ms(1500)).await;
            holder.release().await.unwrap();
            let guard = tokio::time::timeout(LONG, waiter).await.unwrap_or_else(|_| panic!("{name}"));
            let _ = guard.unwrap().unwrap().release().await;
        }
        Step::Keep => {
            let guard = acquire().await.unwrap();
            let injection = fail(1);
            eventually(async || injection.hits() > 0, SLACK).await;
            tokio::time::sleep(ms(6500)).await;
            assert!(!guard.is_lost(), "{name}");
            let _ = guard.release().await;
        }
        Step::Release => {
            let guard = acquire().await.unwrap();
            let _injection = fail(1);
            let _ = guard.release().await;
        }
        Step::Downgrade => {
            let guard = acquire().await.unwrap();
            let _injection = fail(1);
            let _ = guard.downgrade().await;
        }
    }
    for rival in ["multi", "write", "fair"] {
        let waiter = lock_of(&direct, rival, &key).wait(LONG).acquire();
        let guard = soon(format!("{name}: {rival}"), waiter).await.unwrap();
        guard.release().await.unwrap();
    }
    assert_idle(&locks).await;
}

#[test]
fn a_direct_grant_that_comes_to_a_blocked_thread_is_not_believed_too_late() {
    let server = RedisServer::start();
    let other = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let blocked = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (a, b) = other.block_on(async { (manager(&server.url()).await, manager(&server.url()).await) });
    let c = blocked.block_on(manager(&server.url()));
    let holder = other.block_on(a.fair("k").acquire()).unwrap();
    let mut waiter = blocked.block_on(first_poll(c.fair("k").wait(LONG).acquire()));
    blocked.block_on(waiters(&server, "k", 1));
    // The key is granted to a blocked thread, for longer than that grant lasts.
    other.block_on(holder.release()).unwrap();
    let next = other.spawn(b.fair("k").wait(LONG).acquire());
    std::thread::sleep(ms(6000));
    let guard = other.block_on(next).unwrap().unwrap();
    let early = blocked.block_on(async { tokio::time::timeout(ms(500), &mut waiter).await });
    assert!(early.is_err(), "{early:?} while {guard:?}");
    other.block_on(guard.release()).unwrap();
    let guard = blocked.block_on(async { tokio::time::timeout(SLACK, waiter).await }).unwrap().unwrap();
    assert!(!guard.is_lost());
    blocked.block_on(guard.release()).unwrap();
}
