//! Bodies that do not run, change their arguments, or take a second lock. For known failures
//! elsewhere, see `docs/book/src/rivals.md`.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use lock_runtime::{LockError, LockManager, distributed_lock};
use lock_tests::kinds::is_locked;
use lock_tests::{first_poll, on_every_store};
use tokio::time::Instant;

const LONG: Duration = Duration::from_secs(60);

struct Order {
    id: String,
}

#[distributed_lock(key = "order:<order.id>", manager = locks, wait = "none", guard = lock)]
async fn rename(locks: &LockManager, order: &mut Order, id: &str) -> Result<String, LockError> {
    order.id = id.to_owned();
    tokio::task::yield_now().await;
    Ok(lock.key().to_string())
}

#[distributed_lock(key = format!("order:{}", order.id), manager = locks, wait = "none")]
async fn consume(locks: LockManager, mut order: Order) -> Result<(), LockError> {
    order.id.push_str(" and more");
    tokio::task::yield_now().await;
    drop(order);
    Ok(())
}

#[distributed_lock(key = "waited for", manager = locks, wait = "300ms")]
async fn counted(locks: &LockManager, calls: &AtomicU32) -> Result<(), LockError> {
    calls.fetch_add(1, Ordering::SeqCst);
    Ok(())
}

#[distributed_lock(key = "waited for", manager = locks, wait = "60s")]
async fn patient(locks: &LockManager, calls: &AtomicU32) -> Result<(), LockError> {
    calls.fetch_add(1, Ordering::SeqCst);
    Ok(())
}

#[distributed_lock(key = "outer:<id>", manager = locks)]
async fn outer(locks: &LockManager, id: u32) -> Result<u32, LockError> {
    let made = inner(locks, id).await?;
    assert!(is_locked(locks, &format!("outer:{id}")).await, "the inner call has freed its own lock only");
    assert!(!is_locked(locks, &format!("inner:{id}")).await);
    Ok(made)
}

#[distributed_lock(key = "inner:<id>", manager = locks)]
async fn inner(locks: &LockManager, id: u32) -> Result<u32, LockError> {
    for key in ["outer", "inner"] {
        assert!(is_locked(locks, &format!("{key}:{id}")).await, "{key}");
    }
    Ok(id)
}

on_every_store! {
    async fn a_body_that_changes_its_arguments_frees_the_key_it_took(site: Site) {
        let (locks, other) = (site.manager().await, site.manager().await);
        // The key that the arguments would have now belongs to another holder.
        let held = other.mutex("order:b").acquire().await.unwrap();
        let mut order = Order { id: "a".to_owned() };
        assert_eq!(rename(&locks, &mut order, "b").await.unwrap(), "order:a");
        assert_eq!(order.id, "b");
        assert!(!is_locked(&other, "order:a").await);
        assert!(is_locked(&other, "order:b").await);
        assert!(rename(&locks, &mut order, "c").await.unwrap_err().is_busy());
        held.release().await.unwrap();
        consume(locks.clone(), order).await.unwrap();
        assert!(!is_locked(&other, "order:b").await);
    }

    async fn no_body_runs_when_the_wait_ends(site: Site) {
        let (locks, other) = (site.manager().await, site.manager().await);
        let held = other.mutex("waited for").acquire().await.unwrap();
        let calls = AtomicU32::new(0);
        let start = Instant::now();
        let error = counted(&locks, &calls).await.unwrap_err();
        assert!(matches!(error, LockError::TimedOut { .. }), "{error:?}");
        assert!(!error.body_started() && error.is_busy());
        assert!(start.elapsed() >= Duration::from_millis(300), "{:?}", start.elapsed());
        let body = async |_| calls.fetch_add(1, Ordering::SeqCst);
        let error = locks.mutex("waited for").no_wait().with(body).await.unwrap_err();
        assert!(matches!(error, LockError::Busy { .. }), "{error:?}");
        // Not even if the caller leaves while it waits.
        drop(first_poll(patient(&locks, &calls)).await);
        held.release().await.unwrap();
        other.mutex("waited for").wait(LONG).acquire().await.unwrap().release().await.unwrap();
        assert_eq!(calls.load(Ordering::SeqCst), 0);
        patient(&locks, &calls).await.unwrap();
        assert_eq!(calls.load(Ordering::SeqCst), 1);
    }

    async fn a_body_that_takes_another_lock_frees_both(site: Site) {
        let locks = site.manager().await;
        assert_eq!(outer(&locks, 7).await.unwrap(), 7);
        for key in ["outer:7", "inner:7"] {
            assert!(!is_locked(&locks, key).await, "{key}");
        }
    }
}
