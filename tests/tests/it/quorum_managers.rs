//! Managers on a quorum, by URL: every kind of lock on stores in memory, and Redis servers that die
//! and come back.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use lock_runtime::{LockError, LockManager};
use lock_tests::redis::Data;
use lock_tests::{Layout, Quorum};

const SECOND: Duration = Duration::from_secs(1);

async fn managers(name: &str) -> [LockManager; 2] {
    let url = format!("quorum:memory:{name}-1|memory:{name}-2|memory:{name}-3");
    [LockManager::connect(&url).await.unwrap(), LockManager::connect(&url).await.unwrap()]
}

#[tokio::test(start_paused = true)]
async fn managers_exclude_each_other_in_every_kind() {
    for kind in ["mutex", "fair", "write", "multi"] {
        let managers = managers(kind).await;
        let (inside, highest) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let mut tasks = tokio::task::JoinSet::new();
        for number in 0..12 {
            let (locks, inside, highest) =
                (managers[number % 2].clone(), Arc::clone(&inside), Arc::clone(&highest));
            tasks.spawn(async move {
                for _ in 0..10 {
                    let lock = match kind {
                        "mutex" => locks.mutex("a"),
                        "fair" => locks.fair("a"),
                        "write" => locks.write("a"),
                        _ => locks.multi(["a", "b"]),
                    };
                    let guard = lock.wait(SECOND * 300).acquire().await.unwrap();
                    assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "{kind}");
                    let token = guard.fencing_token().get();
                    assert!(highest.swap(token, Ordering::SeqCst) < token, "{kind}");
                    tokio::time::sleep(Duration::from_millis(3)).await;
                    assert_eq!(inside.fetch_sub(1, Ordering::SeqCst), 1, "{kind}");
                    guard.release().await.unwrap();
                }
            });
        }
        while let Some(ended) = tasks.join_next().await {
            ended.unwrap();
        }
    }
}

#[tokio::test(start_paused = true)]
async fn readers_share_and_writers_wait() {
    let [one, other] = managers("rw").await;
    let (first, second) = (one.read("a").acquire().await.unwrap(), other.read("a").acquire().await.unwrap());
    assert_ne!(first.fencing_token(), second.fencing_token());
    assert!(other.write("a").try_acquire().await.unwrap().is_none());
    let writer = tokio::spawn(async move { other.write("a").wait(SECOND * 10).acquire().await });
    tokio::time::sleep(SECOND / 10).await;
    let highest = first.fencing_token().max(second.fencing_token());
    first.release().await.unwrap();
    second.release().await.unwrap();
    assert!(writer.await.unwrap().unwrap().fencing_token() > highest);
}

#[tokio::test(start_paused = true)]
async fn a_hold_is_renewed_for_as_long_as_its_guard_lives() {
    let [one, other] = managers("renewed").await;
    let guard = one.mutex("a").acquire().await.unwrap();
    tokio::time::sleep(SECOND * 600).await;
    assert!(!guard.is_lost());
    assert!(other.mutex("a").try_acquire().await.unwrap().is_none());
    assert_eq!(other.status("a").await.unwrap().holders.len(), 1);
    drop(guard);
    other.mutex("a").acquire().await.unwrap().release().await.unwrap();
    assert!(!other.status("a").await.unwrap().is_locked());
}

#[tokio::test(start_paused = true)]
async fn a_waiter_is_served_within_a_moment_of_the_release() {
    let [one, other] = managers("woken").await;
    for kind in ["mutex", "fair"] {
        let lock = |locks: &LockManager| if kind == "fair" { locks.fair("a") } else { locks.mutex("a") };
        let guard = lock(&one).acquire().await.unwrap();
        let waiter = lock(&other).wait(SECOND * 60);
        let waiter =
            tokio::spawn(
                async move { waiter.acquire().await.map(|guard| (guard, tokio::time::Instant::now())) },
            );
        tokio::time::sleep(SECOND * 7).await;
        let released = tokio::time::Instant::now();
        guard.release().await.unwrap();
        let (guard, granted) = waiter.await.unwrap().unwrap();
        let wait = granted - released;
        assert!(wait < Duration::from_millis(50), "{kind}: {wait:?}");
        guard.release().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn what_a_quorum_cannot_do_is_said_clearly() {
    let [locks, _] = managers("limits").await;
    let error = locks.mutex("a").lease(SECOND * 90).acquire().await.unwrap_err();
    assert!(error.to_string().contains("exceeds the maximum of this store, 60s"), "{error}");
    let error: LockError = locks.semaphore("s").try_acquire().await.unwrap_err();
    assert!(matches!(error, LockError::Misconfigured { .. }), "{error:?}");
    assert!(error.to_string().contains("has no semaphores"), "{error}");
    let error = locks.mutex("a").min_hold(SECOND * 90).acquire().await.unwrap_err();
    assert!(
        !matches!(error, LockError::TimedOut { .. }) && error.to_string().contains("min_hold"),
        "{error}"
    );
    for (url, hint) in [
        ("quorum:memory:|memory:", "use 3"),
        ("quorum:memory:", "no safer than that store"),
        ("quorum:", "url1|url2|url3"),
        ("quorum:memory:a|memory:a|memory:b", "twice"),
        ("quorum:memory:|quorum:memory:|memory:", "can't contain another quorum"),
        ("quorum:memory:|memory:|etcd://user:secret@host", "etcd"),
    ] {
        let error = LockManager::connect(url).await.unwrap_err().to_string();
        assert!(error.contains(hint) && !error.contains("secret"), "{url}: {error}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_re_entry_that_would_renew_for_too_long_is_refused() {
    let [locks, _] = managers("re-entry").await;
    let outer = locks.mutex("a").acquire().await.unwrap();
    let again = outer.scope(async { locks.mutex("a").min_hold(SECOND * 90).acquire().await }).await;
    let error = again.map(drop).unwrap_err();
    assert!(matches!(error, LockError::Misconfigured { .. }), "{error:?}");
    tokio::time::sleep(SECOND * 120).await;
    assert!(!outer.is_lost());
}

async fn managers_exclude_each_other_while_servers_die_and_come_back(layout: Layout) {
    let mut quorum = Quorum::start();
    let inside = Arc::new(AtomicU64::new(0));
    let highest = Arc::new(AtomicU64::new(0));
    let mut workers = tokio::task::JoinSet::new();
    for _ in 0..3 {
        let locks = LockManager::connect(layout.url(&quorum.url())).await.unwrap();
        let (inside, highest) = (Arc::clone(&inside), Arc::clone(&highest));
        workers.spawn(async move {
            for _ in 0..15 {
                let guard = locks.mutex("a").wait(Duration::from_secs(60)).acquire().await.unwrap();
                assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "somebody else is inside");
                let token = guard.fencing_token().get();
                assert!(highest.swap(token, Ordering::SeqCst) < token, "tokens grow");
                tokio::time::sleep(Duration::from_millis(10)).await;
                assert_eq!(inside.fetch_sub(1, Ordering::SeqCst), 1);
                guard.release().await.unwrap();
            }
            locks.shutdown(Duration::from_secs(10)).await
        });
    }
    let servers = quorum.servers_mut();
    // The gate loses its data; then the last server is paused for a while. The first has no vote
    // until the end.
    tokio::time::sleep(Duration::from_millis(300)).await;
    servers[0].restart(Data::Lost);
    tokio::time::sleep(Duration::from_secs(1)).await;
    servers[2].stop();
    tokio::time::sleep(Duration::from_millis(500)).await;
    servers[2].cont();
    while let Some(ended) = workers.join_next().await {
        ended.unwrap().unwrap();
    }
}

async fn a_guard_is_lost_when_a_majority_is(layout: Layout) {
    let mut quorum = Quorum::start();
    let builder = LockManager::builder().lease(Duration::from_secs(3));
    let locks = builder.connect(layout.url(&quorum.url())).await.unwrap();
    let servers = quorum.servers_mut();
    let guard = locks.mutex("a").acquire().await.unwrap();
    servers[0].kill();
    // For longer than a lease.
    tokio::time::sleep(Duration::from_secs(4)).await;
    assert!(!guard.is_lost(), "two of three are enough");
    servers[2].kill();
    tokio::time::timeout(Duration::from_secs(20), guard.lost()).await.unwrap();
    assert!(locks.mutex("b").try_acquire().await.is_err());
}

lock_tests::on_every_layout! {
    async:
    managers_exclude_each_other_while_servers_die_and_come_back,
    a_guard_is_lost_when_a_majority_is,
}
