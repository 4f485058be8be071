//! Timers for callers. They use the tokio runtime that polls the caller, so that they fire whatever
//! the manager's runtime is doing. Under other executors, they use the manager's runtime.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use tokio::time::Sleep;

/// Resolves after a time, or early when the runtime that counts it ends: the waiter checks the
/// clock again.
#[derive(Debug)]
#[pin_project::pin_project(project = TimerProjection, PinnedDrop)]
pub enum Timer {
    Own(#[pin] Sleep),
    /// A task of the manager's runtime. Unlike a lent [`Sleep`], it still resolves when the runtime
    /// is gone.
    Lent(JoinHandle<()>),
}

impl Future for Timer {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        match self.project() {
            TimerProjection::Own(sleep) => sleep.poll(cx),
            TimerProjection::Lent(task) => {
                // An error means that the runtime is gone.
                let _ = ready!(Pin::new(task).poll(cx));
                Poll::Ready(())
            }
        }
    }
}

#[pin_project::pinned_drop]
impl PinnedDrop for Timer {
    fn drop(self: Pin<&mut Self>) {
        if let TimerProjection::Lent(task) = self.project() {
            task.abort();
        }
    }
}

/// Creates a timer; `manager` is the manager's runtime.
pub fn sleep(manager: &Handle, duration: Duration) -> Timer {
    if Handle::try_current().is_ok() {
        Timer::Own(tokio::time::sleep(duration))
    } else {
        Timer::Lent(manager.spawn(async move { tokio::time::sleep(duration).await }))
    }
}

/// Runs `future` for at most `limit`; returns `None` on time-out.
pub async fn timeout<F: Future>(manager: &Handle, limit: Duration, future: F) -> Option<F::Output> {
    let mut timer = pin!(sleep(manager, limit));
    let mut future = pin!(future);
    std::future::poll_fn(|cx| match future.as_mut().poll(cx) {
        Poll::Ready(output) => Poll::Ready(Some(output)),
        Poll::Pending => timer.as_mut().poll(cx).map(|()| None),
    })
    .await
}

/// Whether the runtime has timers; tokio reports their absence only by a panic.
pub fn has_timers(runtime: &Handle) -> bool {
    let _entered = runtime.enter();
    catch_unwind(AssertUnwindSafe(|| drop(tokio::time::sleep(Duration::ZERO)))).is_ok()
}
