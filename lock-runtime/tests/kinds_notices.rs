//! Notices that come late, as they do to a process that was stopped, or over a slow connection.
#![cfg(feature = "testing")]

use std::sync::Arc;
use std::time::Duration;

use lock_runtime::store::{
    AcquireRequest, Acquired, BoxFuture, KeepRequest, Kept, LockStatus, LockStore, ReleaseRequest, Released,
    ScanRequest, Scanned, StoreError, Watch, Withdrawn,
};
use lock_runtime::{LockKey, LockManager, testing};
use tokio::sync::{mpsc, watch};
use tokio::task::AbortHandle;

const LONG: Duration = Duration::from_secs(120);

const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// A store whose notices are held back while its gate is shut.
#[derive(Debug)]
struct Slow {
    inner: Arc<dyn LockStore>,
    open: watch::Receiver<bool>,
}

/// Ends what passes the notices on.
struct Ends(AbortHandle);

impl Drop for Ends {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl LockStore for Slow {
    fn acquire(&self, request: Arc<AcquireRequest>) -> BoxFuture<Result<Acquired, StoreError>> {
        self.inner.acquire(request)
    }
    fn release(&self, request: Arc<ReleaseRequest>) -> BoxFuture<Result<Released, StoreError>> {
        self.inner.release(request)
    }
    fn keep(&self, request: Arc<KeepRequest>) -> BoxFuture<Result<Vec<Kept>, StoreError>> {
        self.inner.keep(request)
    }
    fn downgrade(&self, request: Arc<KeepRequest>) -> BoxFuture<Result<Vec<Kept>, StoreError>> {
        self.inner.downgrade(request)
    }
    fn withdraw(&self, request: Arc<AcquireRequest>) -> BoxFuture<Result<Withdrawn, StoreError>> {
        self.inner.withdraw(request)
    }
    fn watch(&self, request: Arc<AcquireRequest>) -> BoxFuture<Result<Watch, StoreError>> {
        let (watch, mut open) = (self.inner.watch(request), self.open.clone());
        Box::pin(async move {
            let mut watch = watch.await?;
            let confirmed = watch.is_confirmed();
            let (sender, notices) = mpsc::channel(8);
            let task = tokio::spawn(async move {
                loop {
                    let notice = watch.notice().await;
                    if open.wait_for(|open| *open).await.is_err() || sender.send(notice).await.is_err() {
                        return;
                    }
                }
            });
            Ok(Watch::new(notices, confirmed, Box::new(Ends(task.abort_handle()))))
        })
    }
    fn status(&self, key: LockKey) -> BoxFuture<Result<LockStatus, StoreError>> {
        self.inner.status(key)
    }
    fn force_release(&self, key: LockKey) -> BoxFuture<Result<bool, StoreError>> {
        self.inner.force_release(key)
    }
    fn scan(&self, request: ScanRequest) -> BoxFuture<Result<Scanned, StoreError>> {
        self.inner.scan(request)
    }
    fn check(&self) -> BoxFuture<Result<(), StoreError>> {
        self.inner.check()
    }
}

// A direct grant that ended before its notice came must not be taken for one of the place that the waiter has now.
#[tokio::test(start_paused = true)]
async fn a_grant_that_is_heard_of_after_it_ended_is_none() {
    let store = testing::memory_store();
    let (gate, open) = watch::channel(false);
    let on = |store: Arc<dyn LockStore>| testing::manager_on(LockManager::builder(), store);
    let (direct, slow) = (on(Arc::clone(&store)), on(Arc::new(Slow { inner: store, open })));

    let first = direct.fair("k").acquire().await.unwrap();
    let waiter = tokio::spawn(slow.fair("k").lease(ms(100)).wait(LONG).acquire());
    tokio::time::sleep(ms(100)).await;
    let next = tokio::spawn(direct.fair("k").wait(LONG).acquire());
    // It goes to the waiter, who does not hear of it, and to the next when that has ended. The waiter looks by itself a few
    // times a second at first, then rarely.
    tokio::time::sleep(ms(4930)).await;
    first.release().await.unwrap();
    let next = next.await.unwrap().unwrap();
    // Enough for it to find out and to stand in line again.
    tokio::time::sleep(ms(3000)).await;
    assert_eq!(direct.status("k").await.unwrap().waiters, 1);
    gate.send(true).unwrap();
    tokio::time::sleep(ms(100)).await;
    assert!(!next.is_lost() && !waiter.is_finished(), "two at once");
    next.release().await.unwrap();
    let guard = waiter.await.unwrap().unwrap();
    assert!(!guard.is_lost());
    guard.release().await.unwrap();
}
