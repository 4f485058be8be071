//! [`spawned`]: calls that go on while their caller is not polled. It would keep a connection
//! meanwhile, and rows or the file locked.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll};

use lock_core::internal::steps::carried;
use lock_core::internal::sync::{Mutex, lock};
use lock_core::store::{BoxFuture, StoreError, StoreErrorKind};
use tokio::task::JoinHandle;

/// A call that a task makes. Its caller can drop it at once, also if the task is not polled.
struct Slot<T>(Mutex<Option<BoxFuture<T>>>);

impl<T> Slot<T> {
    fn poll(&self, cx: &mut Context<'_>) -> Poll<T> {
        match &mut *lock(&self.0) {
            Some(call) => call.as_mut().poll(cx),
            None => Poll::Pending,
        }
    }
}

/// Drops a call that nobody waits for any more, and ends its task.
struct Ends<T> {
    slot: Arc<Slot<T>>,
    task: JoinHandle<T>,
}

impl<T> Drop for Ends<T> {
    fn drop(&mut self) {
        self.task.abort();
        let call = lock(&self.slot.0).take();
        drop(call);
    }
}

/// Runs a call in a task of its own, until it is dropped.
pub fn spawned<T: Send + 'static>(
    call: impl Future<Output = Result<T, StoreError>> + Send + 'static,
) -> BoxFuture<Result<T, StoreError>> {
    Box::pin(async move {
        let slot = Arc::new(Slot(Mutex::new(Some(Box::pin(carried(call)) as BoxFuture<_>))));
        let polled = Arc::clone(&slot);
        let task = tokio::spawn(poll_fn(move |cx| polled.poll(cx)));
        let mut ends = Ends { slot, task };
        (&mut ends.task).await.unwrap_or_else(|error| {
            Err(StoreError::new(StoreErrorKind::Unanswered, format!("the call was not finished: {error}")))
        })
    })
}
