//! Unusual callers: odd names, odd waits, dropped futures, managers that end, crowds.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::task::Poll;
use std::time::Duration;

use lock_runtime::{LockError, LockGuard, LockManager, MultiKey};
use lock_tests::{RedisServer, eventually, first_poll};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::{KINDS, LONG, SLACK, all_is_quiet, each, lock_of, managers, ms, section, soon, waiters};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_kind_of_key_text_works_in_every_kind() {
    let server = RedisServer::start();
    let [a, b] = managers(&server).await;
    for key in [
        "a{b}c",
        "{}",
        "{x",
        "x}",
        "}{",
        "{{x}}",
        "ключ:🔒",
        "a b",
        "%s%d",
        "a:write",
        "mode",
        "a'\"\\",
        "1:2:write",
        "[*?]",
    ] {
        for kind in KINDS {
            for fixed in [false, true] {
                let name = format!("{key}/{kind}");
                let lock = |locks: &LockManager| {
                    let lock = lock_of(locks, kind, &name);
                    if fixed { lock.lease(LONG) } else { lock }
                };
                let guard = match lock(&a).acquire().await {
                    Ok(guard) => guard,
                    Err(error) => {
                        assert!(matches!(error, LockError::InvalidKey(_)), "{name}: {error}");
                        continue;
                    }
                };
                let waiter = first_poll(
                    lock_of(&b, if kind == "read" { "write" } else { kind }, &name).wait(LONG).acquire(),
                )
                .await;
                let waiter = tokio::spawn(waiter);
                tokio::time::sleep(ms(20)).await;
                assert!(!guard.is_lost());
                guard.release().await.unwrap();
                let guard = soon(&name, waiter).await.unwrap().unwrap();
                guard.release().await.unwrap();
            }
        }
    }
    all_is_quiet(&server, &[a, b]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn short_waits_and_none_leave_nothing_in_any_kind() {
    let server = RedisServer::start();
    let [a, b] = managers(&server).await;
    let guard = a.write("k").acquire().await.unwrap();
    for kind in KINDS {
        for wait in [Duration::ZERO, Duration::from_nanos(1), ms(1), ms(5), ms(50)] {
            for _ in 0..5 {
                let start = Instant::now();
                let error = lock_of(&b, kind, "k").wait(wait).acquire().await.unwrap_err();
                assert!(error.is_busy(), "{kind} {wait:?}: {error}");
                assert!(start.elapsed() < wait + SLACK);
            }
        }
    }
    guard.release().await.unwrap();
    for kind in KINDS {
        for wait in [Duration::ZERO, Duration::from_nanos(1), ms(1)] {
            lock_of(&b, kind, "k").wait(wait).acquire().await.unwrap().release().await.unwrap();
        }
        lock_of(&b, kind, "k").wait(Duration::MAX).acquire().await.unwrap().release().await.unwrap();
        lock_of(&b, kind, "k").wait_forever().acquire().await.unwrap().release().await.unwrap();
        let guard = a.write("k").acquire().await.unwrap();
        let waits = [lock_of(&b, kind, "k").wait_forever(), lock_of(&b, kind, "k").wait(Duration::MAX)];
        let waiting = waits.map(|lock| {
            tokio::spawn(async move {
                // Awaited, since the next kind asks with no wait at all.
                lock.acquire().await?.release().await.unwrap();
                Ok::<_, LockError>(())
            })
        });
        tokio::time::sleep(ms(100)).await;
        guard.release().await.unwrap();
        for waiter in waiting {
            soon(kind, waiter).await.unwrap().unwrap();
        }
    }
    all_is_quiet(&server, &[a, b]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn releases_and_downgrades_may_be_dropped_at_every_await() {
    let server = RedisServer::start();
    let [a, b] = managers(&server).await;
    for kind in ["mutex", "fair", "read", "write", "multi", "downgrade", "scope"] {
        for polls in 0..12 {
            let write = if kind == "downgrade" || kind == "scope" { "write" } else { kind };
            let guard = lock_of(&a, write, "k").lease(LONG).wait(SLACK).acquire().await.unwrap();
            let waiter = tokio::spawn(lock_of(&b, "multi", "k").wait(LONG).acquire());
            let inner = match kind {
                "scope" => Some(guard.scope(a.read("k").acquire()).await.unwrap()),
                _ => None,
            };
            let mut future: Pin<Box<dyn Future<Output = ()> + Send>> = match kind {
                "downgrade" => Box::pin(async { drop(guard.downgrade().await) }),
                _ => Box::pin(async { drop(guard.release().await) }),
            };
            for _ in 0..polls {
                let done = std::future::poll_fn(|cx| Poll::Ready(future.as_mut().poll(cx).is_ready())).await;
                if done {
                    break;
                }
                tokio::time::sleep(Duration::from_micros(300)).await;
            }
            drop(future);
            drop(inner);
            let guard = soon(format!("{kind} {polls}"), waiter).await.unwrap().unwrap();
            guard.release().await.unwrap();
        }
    }
    all_is_quiet(&server, &[a, b]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shutdown_tells_waiters_of_every_kind_and_empties_the_queues() {
    let server = RedisServer::start();
    let [a, b] = managers(&server).await;
    let holder = a.write("k").acquire().await.unwrap();
    let (_f, _w) = (a.fair("k:f").acquire().await.unwrap(), a.write("k:w").acquire().await.unwrap());
    let reader = a.read("r").acquire().await.unwrap();
    let mut all = JoinSet::new();
    for kind in KINDS {
        for _ in 0..20 {
            all.spawn(lock_of(&b, kind, "k").wait(LONG).acquire());
        }
    }
    for _ in 0..20 {
        all.spawn(b.write("r").wait(LONG).acquire());
    }
    waiters(&server, "k", 20).await;
    eventually(async || server.cli(&["EXISTS", "lock_rw_intent:{lock:r}"]) == "1", SLACK).await;
    b.shutdown(SLACK).await.unwrap();
    each("waiters", all, async |done| {
        let error = done.unwrap_err();
        assert!(matches!(error, LockError::ShutDown { .. }), "{error}");
    })
    .await;
    assert_eq!(server.cli(&["EXISTS", "redisson_lock_queue:{lock:k}", "lock_rw_intent:{lock:r}"]), "0");
    for guard in [holder, reader] {
        assert!(!guard.is_lost());
        guard.release().await.unwrap();
    }
}

#[test]
fn waiters_of_a_runtime_that_is_gone_do_not_hold_the_others_up() {
    let server = RedisServer::start();
    let own = || tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let (here, doomed) = (own(), own());
    here.block_on(async {
        let handle = doomed.handle().clone();
        let [a, b] = managers(&server).await;
        let dead = LockManager::builder().runtime(handle).connect(server.url()).await.unwrap();
        let holder = a.fair("k").acquire().await.unwrap();
        let inside = Arc::new(AtomicBool::new(false));
        let (mut all, mut orphans) = (JoinSet::new(), JoinSet::new());
        for _ in 0..100 {
            all.spawn(section(a.fair("k"), Arc::clone(&inside)));
            orphans.spawn(dead.fair("k").wait(LONG).acquire());
            all.spawn(section(b.fair("k"), Arc::clone(&inside)));
        }
        waiters(&server, "k", 300).await;
        doomed.shutdown_background();
        holder.release().await.unwrap();
        each("the others", all, async |done| assert!(done.is_ok(), "{done:?}")).await;
        each("orphans", orphans, async |done| {
            let error = done.unwrap_err();
            assert!(matches!(error, LockError::ShutDown { .. }), "{error}");
        })
        .await;
        all_is_quiet(&server, &[a, b]).await;
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_thousand_readers_share_and_a_writer_gets_in() {
    let server = RedisServer::start();
    let managers: [_; 4] = managers(&server).await;
    let mut all = JoinSet::new();
    for n in 0..2000 {
        let lock = managers[n % 4].read("k");
        let lock = if n % 8 < 4 { lock.lease(LONG) } else { lock };
        all.spawn(async move { lock.wait(LONG).acquire().await });
    }
    let mut guards: Vec<LockGuard> = Vec::new();
    each("readers", all, async |done| guards.push(done.unwrap())).await;
    let writer = tokio::spawn(managers[0].write("k").wait(LONG).acquire());
    tokio::time::sleep(ms(200)).await;
    assert!(!writer.is_finished());
    drop(guards);
    let writer = tokio::time::timeout(SLACK * 2, writer).await.unwrap().unwrap().unwrap();
    writer.release().await.unwrap();
    all_is_quiet(&server, &managers).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn locks_of_two_hundred_keys_exclude() {
    let server = RedisServer::start();
    let managers: [_; 3] = managers(&server).await;
    let keys = |from: usize| {
        (from..from + 200).map(|n| match n % 4 {
            0 => MultiKey::mutex(format!("k{n}")),
            1 => MultiKey::fair(format!("k{n}")),
            2 => MultiKey::read(format!("k{n}")),
            _ => MultiKey::write(format!("k{n}")),
        })
    };
    let inside = Arc::new(AtomicBool::new(false));
    let mut all = JoinSet::new();
    for n in 0..12 {
        all.spawn(section(managers[n % 3].multi(keys(n * 10)), Arc::clone(&inside)));
    }
    while let Some(done) = tokio::time::timeout(LONG, all.join_next()).await.unwrap() {
        done.unwrap().unwrap();
    }
    all_is_quiet(&server, &managers).await;
}
