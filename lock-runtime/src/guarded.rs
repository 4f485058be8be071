//! [`Guarded`]: a future that runs inside a lock, and ends with it.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use lock_engine::scope::Scoped;
use pin_project::pin_project;

use crate::error::LockError;
use crate::guard::LockGuard;

/// Policy for a body, or a handler, whose lock is lost while it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum OnLost {
    /// The body is dropped at the await where it is suspended, before it runs on without the lock,
    /// and the caller is told. The work that it did until then stays done.
    Cancel,
    /// The body runs to its end without the lock, and its value is returned. The fencing token has
    /// to protect its writes.
    Finish,
}

/// A signal of the loss of one lock; made when a task first has to wait for it.
#[derive(Default)]
pub(crate) struct LostSignal(Option<Pin<Box<dyn Future<Output = ()> + Send + Sync>>>);

impl LostSignal {
    /// Whether the lock of `guard` is lost; if not, the task is woken when it is.
    pub(crate) fn poll(&mut self, guard: &LockGuard, cx: &mut Context<'_>) -> bool {
        let signal = self.0.get_or_insert_with(|| {
            let view = guard.view();
            Box::pin(async move { view.lost().await })
        });
        signal.as_mut().poll(cx).is_ready()
    }
}

impl fmt::Debug for LostSignal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LostSignal").field("listening", &self.0.is_some()).finish()
    }
}

/// A future that runs another one in the scope of a lock, and returns its output together with the
/// guard.
///
/// With [`OnLost::Cancel`], each poll looks at the clock, then polls the future and, if that is
/// pending, listens for the loss. When the lock is lost, the future is dropped inside its scope and
/// before the guard. A future that has returned wins: its output is returned even if the lock was
/// lost meanwhile.
#[pin_project]
pub(crate) struct Guarded<F> {
    #[pin]
    future: Scoped<F>,
    lost: LostSignal,
    guard: Option<LockGuard>,
    on_lost: OnLost,
}

impl<F> Guarded<F> {
    pub(crate) fn new(guard: LockGuard, on_lost: OnLost, future: F) -> Self {
        Self::begin(guard, on_lost, || future)
    }

    /// As `new`, but makes the future in the scope of the lock, too.
    pub(crate) fn begin(guard: LockGuard, on_lost: OnLost, future: impl FnOnce() -> F) -> Self {
        let scope = guard.inner_scope();
        let future = scope.enter(future);
        let future = Scoped::new(scope, future);
        Self { future, lost: LostSignal::default(), guard: Some(guard), on_lost }
    }

    #[cfg(feature = "layer")]
    pub(crate) fn guard(&self) -> Option<&LockGuard> {
        self.guard.as_ref()
    }
}

impl<F: Future> Future for Guarded<F> {
    type Output = Result<(F::Output, LockGuard), LockError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        let Some(guard) = this.guard.as_ref() else { lock_core::internal::sync::polled_again() };
        let cancels = *this.on_lost == OnLost::Cancel;
        if !(cancels && guard.is_lost()) {
            if let Poll::Ready(output) = this.future.as_mut().poll(cx) {
                *this.lost = LostSignal::default();
                return match this.guard.take() {
                    Some(guard) => Poll::Ready(Ok((output, guard))),
                    None => lock_core::internal::sync::polled_again(),
                };
            }
            if !cancels || !this.lost.poll(guard, cx) {
                return Poll::Pending;
            }
        }
        let lost = LockError::Lost { key: guard.key().clone(), why: guard.loss() };
        this.future.cancel();
        *this.lost = LostSignal::default();
        // Dispatches the owner-checked release.
        *this.guard = None;
        Poll::Ready(Err(lost))
    }
}

impl<F> fmt::Debug for Guarded<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guarded")
            .field("guard", &self.guard)
            .field("on_lost", &self.on_lost)
            .finish_non_exhaustive()
    }
}
