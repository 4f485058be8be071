//! [`Run`]: a body under a lock.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use pin_project::pin_project;

use crate::error::{LockError, ReleaseError};
use crate::guard::LockGuard;
use crate::scope::Scoped;
use crate::time;

/// What happens to a body whose lock is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnLost {
    /// It is dropped where it is suspended, and the caller gets [`LockError::Lost`].
    Cancel,
    /// It runs to its end, and its value is returned.
    Finish,
}

/// Runs a body under a lock and releases the lock at its end.
///
/// Every poll looks at the clock, then at the lost signal, then polls the body. A lost body is dropped inside its
/// scope and before the guard. A body that has returned wins: its value is returned even if the lock was lost or the
/// release failed meanwhile. The release is awaited for one call time-out at most.
#[pin_project]
pub struct Run<F: Future> {
    #[pin]
    body: Body<F>,
    /// The lost signal while the body runs, then the release.
    aside: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
    guard: Option<LockGuard>,
    on_lost: OnLost,
}

/// The output lies where the body was, so that the whole is no larger than the body.
#[pin_project(project = BodyProjection, project_replace = BodyReplaced)]
enum Body<F: Future> {
    Running(#[pin] Scoped<F>),
    Finished(F::Output),
    Gone,
}

impl<F: Future> Run<F> {
    pub(crate) fn new(guard: LockGuard, on_lost: OnLost, body: F) -> Self {
        let body = Body::Running(Scoped::new(guard.inner_scope(), body));
        Self { body, aside: None, guard: Some(guard), on_lost }
    }
}

impl<F: Future> Future for Run<F> {
    type Output = Result<F::Output, LockError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        if let BodyProjection::Running(mut body) = this.body.as_mut().project() {
            if let (OnLost::Cancel, Some(guard)) = (*this.on_lost, this.guard.as_ref()) {
                let aside = this.aside.get_or_insert_with(|| {
                    let view = guard.view();
                    Box::pin(async move { view.lost().await })
                });
                if guard.is_lost() || aside.as_mut().poll(cx).is_ready() {
                    let (key, why) = (guard.key().clone(), guard.loss());
                    body.as_mut().cancel();
                    this.body.set(Body::Gone);
                    *this.aside = None;
                    // Dispatches the owner-checked release.
                    *this.guard = None;
                    return Poll::Ready(Err(LockError::Lost { key, why }));
                }
            }
            let Poll::Ready(output) = body.poll(cx) else { return Poll::Pending };
            this.body.as_mut().project_replace(Body::Finished(output));
            *this.aside = this.guard.take().map(|guard| Box::pin(release(guard)) as Pin<Box<_>>);
        }
        if let Some(release) = this.aside {
            if release.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
            *this.aside = None;
        }
        match this.body.project_replace(Body::Gone) {
            BodyReplaced::Finished(output) => Poll::Ready(Ok(output)),
            BodyReplaced::Running(_) | BodyReplaced::Gone => Poll::Pending,
        }
    }
}

/// Has no caller to tell: what goes wrong is counted and traced.
async fn release(guard: LockGuard) {
    let key = guard.key().clone();
    let (limit, runtime) = guard.call_limit();
    match time::timeout(&runtime, limit, guard.release()).await {
        Some(Ok(())) => {}
        Some(Err(ReleaseError::Lost { why, .. })) => {
            tracing::warn!(%key, %why, "the lock was lost while its body ran to its end");
        }
        Some(Err(error)) => tracing::warn!(%key, %error, "release after a finished body failed"),
        None => tracing::warn!(%key, "release after a finished body was not answered in time"),
    }
}

impl<F: Future> fmt::Debug for Run<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Run")
            .field("guard", &self.guard)
            .field("on_lost", &self.on_lost)
            .finish_non_exhaustive()
    }
}
