//! Notices that arrive late, as in a process that was stopped, or over a slow connection.
#![cfg(feature = "testing")]

use std::sync::Arc;
use std::time::Duration;

use lock_core::store::{
    AcquireRequest, Acquired, BoxFuture, Forward, LockStore, RenewRequest, Renewed, StoreError, Watch,
};
use lock_runtime::{LockManager, testing};
use tokio::sync::{mpsc, watch};
use tokio::task::AbortHandle;

const LONG: Duration = Duration::from_secs(120);

const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// A store whose calls and notices are held back while their gates are shut.
#[derive(Debug)]
struct Slow {
    inner: Arc<dyn LockStore>,
    calls: watch::Receiver<bool>,
    notices: watch::Receiver<bool>,
}

impl Slow {
    fn later<T: Send + 'static>(&self, call: BoxFuture<T>) -> BoxFuture<T> {
        let mut open = self.calls.clone();
        Box::pin(async move {
            let _ = open.wait_for(|open| *open).await;
            call.await
        })
    }
}

/// Ends the task that forwards the notices.
struct Ends(AbortHandle);

impl Drop for Ends {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Forward for Slow {
    fn inner(&self) -> &dyn LockStore {
        &*self.inner
    }

    fn acquire(&self, request: Arc<AcquireRequest>) -> BoxFuture<Result<Acquired, StoreError>> {
        self.later(self.inner.acquire(request))
    }
    fn renew(&self, request: Arc<RenewRequest>) -> BoxFuture<Result<Vec<Renewed>, StoreError>> {
        self.later(self.inner.renew(request))
    }
    fn watch(&self, request: Arc<AcquireRequest>) -> BoxFuture<Result<Watch, StoreError>> {
        let (watch, mut open) = (self.inner.watch(request), self.notices.clone());
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
}

// A direct grant that ended before its notice arrived must not be taken for one to the waiter's
// current place in the queue.
#[tokio::test(start_paused = true)]
async fn a_grant_that_is_heard_of_after_it_ended_is_none() {
    lock_core::internal::chance::set_jitter(0.5);
    let store = testing::memory_store();
    let ((call_gate, calls), (notice_gate, notices)) = (watch::channel(true), watch::channel(false));
    let on = |store: Arc<dyn LockStore>| testing::manager_on(LockManager::builder(), store);
    let direct = on(Arc::clone(&store));
    let slow = on(Arc::new(Slow { inner: store, calls, notices }));

    let first = direct.fair("k").acquire().await.unwrap();
    let waiter = tokio::spawn(slow.fair("k").lease(ms(2000)).wait(LONG).acquire());
    tokio::time::sleep(ms(100)).await;
    let next = tokio::spawn(direct.fair("k").wait(LONG).acquire());
    tokio::time::sleep(ms(100)).await;
    // The key goes to the waiter, which for a while hears and asks nothing. When that grant has
    // ended, the key goes to the next caller.
    call_gate.send(false).unwrap();
    first.release().await.unwrap();
    let next = next.await.unwrap().unwrap();

    // The waiter asks before it hears of the grant, and queues again.
    call_gate.send(true).unwrap();
    while direct.status("k").await.unwrap().waiters == 0 {
        assert!(!next.is_lost() && !waiter.is_finished(), "two at once");
        tokio::time::sleep(ms(1)).await;
    }
    notice_gate.send(true).unwrap();
    tokio::time::sleep(ms(100)).await;
    assert!(!next.is_lost() && !waiter.is_finished(), "two at once");
    next.release().await.unwrap();
    let guard = waiter.await.unwrap().unwrap();
    assert!(!guard.is_lost());
    guard.release().await.unwrap();
}
