//! [`Run`]: the future of a body under a lock.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use lock_core::internal::time;
use pin_project::pin_project;

use crate::error::LockError;
use crate::guard::LockGuard;
use crate::guarded::Guarded;
pub use crate::guarded::OnLost;

/// A future that runs a body under a lock and releases the lock at its end.
///
/// A body that has returned wins: its value is returned even if the lock was lost or the release
/// failed meanwhile. The release is awaited for one call time-out at most.
#[pin_project]
pub struct Run<F: Future> {
    #[pin]
    body: Body<F>,
}

/// The output takes the place of the body, so that the future is no larger than the body.
#[pin_project(project = BodyProjection)]
enum Body<F: Future> {
    Running(#[pin] Guarded<F>),
    Releasing(Option<F::Output>, Pin<Box<dyn Future<Output = ()> + Send>>),
    Gone,
}

impl<F: Future> Run<F> {
    pub(crate) fn new(guard: LockGuard, on_lost: OnLost, body: F) -> Self {
        Self { body: Body::Running(Guarded::new(guard, on_lost, body)) }
    }
}

impl<F: Future> Future for Run<F> {
    type Output = Result<F::Output, LockError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut body = self.project().body;
        if let BodyProjection::Running(running) = body.as_mut().project() {
            let ended = ready!(running.poll(cx));
            match ended {
                Ok((output, guard)) => body.set(Body::Releasing(Some(output), Box::pin(release(guard)))),
                Err(lost) => {
                    body.set(Body::Gone);
                    return Poll::Ready(Err(lost));
                }
            }
        }
        match body.as_mut().project() {
            BodyProjection::Releasing(output, release) => {
                ready!(release.as_mut().poll(cx));
                let output = output.take();
                body.set(Body::Gone);
                Poll::Ready(Ok(output.unwrap_or_else(|| lock_core::internal::sync::polled_again())))
            }
            BodyProjection::Running(_) | BodyProjection::Gone => lock_core::internal::sync::polled_again(),
        }
    }
}

/// Releases the lock after its body. There is no caller to tell, so a failure is logged.
async fn release(guard: LockGuard) {
    let key = guard.key().clone();
    let (limit, runtime) = guard.call_limit();
    match time::timeout(&runtime, limit, guard.release()).await {
        Some(Ok(())) => {}
        Some(Err(LockError::Lost { why, .. })) => {
            tracing::warn!(%key, %why, "the lock was lost while its body ran to its end");
        }
        Some(Err(error)) => tracing::warn!(%key, %error, "the release after a finished body failed"),
        None => tracing::warn!(%key, "the store did not answer the release after a finished body in time"),
    }
}

impl<F: Future> fmt::Debug for Run<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let guarded = match &self.body {
            Body::Running(running) => Some(running),
            Body::Releasing(..) | Body::Gone => None,
        };
        f.debug_struct("Run").field("body", &guarded).finish_non_exhaustive()
    }
}
