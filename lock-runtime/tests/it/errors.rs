//! One error type: converting it into a program's own error, finding the store's error in it, and
//! the result of a health probe.

use std::error::Error as _;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lock_core::store::{BoxFuture, Forward, LockStatus, LockStore, StoreError, StoreErrorKind};
use lock_runtime::testing::{manager_on, memory_manager, memory_store};
use lock_runtime::{LockError, LockKey, LockManager};

/// A typical error type of a program.
#[derive(Debug, thiserror::Error)]
enum ShopError {
    #[error(transparent)]
    Lock(#[from] LockError),
}

/// Every call of a lock, a guard, a semaphore, a latch or a listing works with `?`.
#[tokio::test(start_paused = true)]
async fn one_from_is_enough_for_every_call() {
    async fn calls(locks: &LockManager) -> Result<(), ShopError> {
        let guard = locks.mutex("a").lease(Duration::from_secs(5)).acquire().await?;
        guard.extend(Duration::from_secs(10)).await?;
        locks.status("a").await?;
        let mut list = locks.list("");
        while let Some(page) = list.next_page().await? {
            assert_eq!(page.len(), 1);
        }
        guard.release().await?;
        locks.write("b").acquire().await?.downgrade().await?.release().await?;
        assert!(locks.mutex("a").try_acquire().await?.is_some());
        let permits = locks.semaphore("s");
        permits.try_set_permits(1).await?;
        permits.acquire().await?.release().await?;
        let latch = locks.latch("l");
        latch.try_set_count(1).await?;
        latch.count_down().await?;
        locks.force_release("a").await?;
        Ok(())
    }
    calls(&memory_manager()).await.unwrap();
}

/// A whole program can return it.
#[tokio::test(start_paused = true)]
async fn connecting_and_shutting_down_go_with_the_same_type() {
    async fn run(url: &str) -> Result<(), LockError> {
        let locks = LockManager::connect(url).await?;
        let _guard = locks.mutex("a").acquire().await?;
        locks.shutdown(Duration::from_millis(10)).await?;
        Ok(())
    }
    let error = run("memory:").await.unwrap_err();
    assert!(matches!(&error, LockError::CutOff(cut_off) if cut_off.cut_off() == 1), "{error:?}");
    assert_eq!(error.to_string(), "1 lock was still held when the grace time was over, and was cut off");
    let error = run("nowhere").await.unwrap_err();
    assert!(matches!(error, LockError::Misconfigured { .. }), "{error:?}");
}

/// A report that prints an error and its sources has the text of the store's error once.
#[test]
fn an_error_of_the_store_is_in_the_text_and_not_a_source() {
    let cause = StoreError::new(StoreErrorKind::Unreachable, "no connection");
    let key = || lock_runtime::LockKey::new("k").unwrap();
    for error in [
        LockError::Unavailable { key: key(), cause: cause.clone() },
        LockError::Unconfirmed { key: key(), cause: cause.clone() },
        LockError::NotReplicated { key: key(), cause: cause.clone() },
        LockError::from(cause.clone()),
    ] {
        let source = error.source().map(ToString::to_string).unwrap_or_default();
        assert_eq!(format!("{error} {source}").matches("no connection").count(), 1, "{error:?}");
    }
    let denied = LockError::from(StoreError::new(StoreErrorKind::Denied, "no right"));
    assert!(matches!(denied, LockError::Misconfigured { .. }), "no waiting helps");
}

/// A memory store whose `status` answers as it is told to, and counts those calls.
#[derive(Debug)]
struct Probed {
    inner: Arc<dyn LockStore>,
    fails: Mutex<Option<StoreErrorKind>>,
    calls: AtomicUsize,
}

impl Probed {
    fn fail(&self, kind: impl Into<Option<StoreErrorKind>>) {
        *self.fails.lock().unwrap() = kind.into();
    }
}

impl Forward for Probed {
    fn inner(&self) -> &dyn LockStore {
        &*self.inner
    }

    fn status(&self, key: LockKey) -> BoxFuture<Result<LockStatus, StoreError>> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        let fails = *self.fails.lock().unwrap();
        let status = self.inner.status(key);
        Box::pin(async move {
            tokio::time::sleep(Duration::from_millis(30)).await;
            fails.map_or(status.await, |kind| Err(StoreError::new(kind, "as told")))
        })
    }
}

/// A readiness probe is one call, which returns how long the store took, and the last error.
#[tokio::test(start_paused = true)]
async fn health_is_one_call() {
    let store = Probed { inner: memory_store(), fails: Mutex::default(), calls: AtomicUsize::default() };
    let store = Arc::new(store);
    let locks = manager_on(LockManager::builder(), store.clone());
    let health = locks.health().await.unwrap();
    assert_eq!((store.calls.load(Ordering::Relaxed), health.latency().as_millis()), (1, 30));
    assert!(health.store().contains("Probed") && health.last_error().is_none());

    store.fail(StoreErrorKind::Unreachable);
    let error = locks.health().await.unwrap_err();
    assert!(matches!(&error, LockError::Store { cause } if cause.is_transient()), "{error:?}");
    store.fail(StoreErrorKind::Denied);
    assert!(matches!(locks.health().await.unwrap_err(), LockError::Misconfigured { .. }));
    store.fail(None);
    tokio::time::sleep(Duration::from_secs(7)).await;
    let health = locks.health().await.unwrap();
    let (error, ago) = health.last_error().unwrap();
    assert_eq!((error.kind(), ago.as_secs()), (StoreErrorKind::Denied, 7));

    locks.shutdown(Duration::ZERO).await.unwrap();
    let error = locks.health().await.unwrap_err();
    assert!(matches!(error, LockError::ShutDown { .. }), "no more work is taken: {error:?}");
}
