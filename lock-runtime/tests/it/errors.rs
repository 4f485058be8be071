//! One error type: what a program's own error needs, and where the store's error is.

use std::error::Error as _;
use std::time::Duration;

use lock_runtime::store::{StoreError, StoreErrorKind};
use lock_runtime::testing::memory_manager;
use lock_runtime::{LockError, LockManager};

/// As a program has it.
#[derive(Debug, thiserror::Error)]
enum ShopError {
    #[error(transparent)]
    Lock(#[from] LockError),
}

/// Every call of a lock, a guard, a semaphore, a latch or a listing goes with `?`.
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

/// A whole program may return it.
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

/// Whatever carries the store's error says so, and its kind can be asked for.
#[test]
fn the_source_is_the_stores_error() {
    let cause = StoreError::new(StoreErrorKind::Unreachable, "no connection");
    let key = || lock_runtime::LockKey::new("k").unwrap();
    for error in [
        LockError::Unavailable { key: key(), cause: cause.clone() },
        LockError::Unconfirmed { key: key(), cause: cause.clone() },
        LockError::NotReplicated { key: key(), cause: cause.clone() },
        LockError::from(cause.clone()),
    ] {
        let source = error.source().and_then(|source| source.downcast_ref::<StoreError>());
        assert_eq!(source.map(StoreError::kind), Some(StoreErrorKind::Unreachable), "{error}");
    }
    let denied = LockError::from(StoreError::new(StoreErrorKind::Denied, "no right"));
    assert!(matches!(denied, LockError::Misconfigured { .. }), "no waiting helps");
}
