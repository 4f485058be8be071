//! [`LockBody`]: a response body that may hold the lock until its end.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http_body::{Body, Frame, SizeHint};
use lock_engine::scope::Scoped;
use pin_project::pin_project;

use super::refusal::{ProblemDetails, Protocol, Refusal, Refuse};
use crate::error::LockError;
use crate::guard::LockGuard;
use crate::guarded::{LostSignal, OnLost};

/// An error while a body is sent: the inner body's error, or [`LockError::Lost`].
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// The body of the responses of a [`LockService`](super::LockService).
///
/// The body of a locked request may hold the lock until its end: see
/// [`HeldUntil::BodyEnd`](super::HeldUntil::BodyEnd). The inner body is polled and dropped inside
/// the lock's scope, so that functions that it calls re-enter the lock. The lock is released with
/// the last frame, with an error, or when the body is dropped, whichever comes first.
///
/// If the lock is lost before that, the body ends with [`LockError::Lost`], so that half a response
/// does not look complete. A gRPC response over HTTP/2 instead ends with the `ABORTED` trailers of
/// [`ProblemDetails`]. If the client does not read, the body is not polled and can't end by itself:
/// it is dropped with its connection.
///
/// [`ProblemDetails`]: super::ProblemDetails
#[pin_project]
pub struct LockBody<B> {
    #[pin]
    kind: Kind<B>,
}

#[pin_project(project = KindProjection)]
enum Kind<B> {
    /// The response to a refused request; empty once it is sent.
    Refusal(Bytes),
    Bare(#[pin] B),
    Holding(#[pin] Holding<B>),
}

#[pin_project]
struct Holding<B> {
    #[pin]
    body: Scoped<B>,
    lost: LostSignal,
    /// `None` once the lock is released.
    guard: Option<LockGuard>,
    on_lost: OnLost,
    protocol: Protocol,
}

impl<B> LockBody<B> {
    pub(super) fn refusal(content: Bytes) -> Self {
        Self { kind: Kind::Refusal(content) }
    }

    pub(super) fn bare(body: B) -> Self {
        Self { kind: Kind::Bare(body) }
    }

    pub(super) fn holding(guard: LockGuard, on_lost: OnLost, protocol: Protocol, body: B) -> Self {
        let body = Scoped::new(guard.inner_scope(), body);
        let holding = Holding { body, lost: LostSignal::default(), guard: Some(guard), on_lost, protocol };
        Self { kind: Kind::Holding(holding) }
    }
}

type Polled<B> = Poll<Option<Result<Frame<<B as Body>::Data>, BoxError>>>;

impl<B> Body for LockBody<B>
where
    B: Body,
    B::Data: From<Bytes>,
    B::Error: Into<BoxError>,
{
    type Data = B::Data;
    type Error = BoxError;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Polled<B> {
        match self.project().kind.project() {
            KindProjection::Refusal(content) if content.is_empty() => Poll::Ready(None),
            KindProjection::Refusal(content) => {
                let content = std::mem::take(content);
                Poll::Ready(Some(Ok(Frame::data(content.into()))))
            }
            KindProjection::Bare(body) => {
                body.poll_frame(cx).map(|frame| frame.map(|frame| frame.map_err(Into::into)))
            }
            KindProjection::Holding(holding) => holding.poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.kind {
            Kind::Refusal(content) => content.is_empty(),
            Kind::Bare(body) => body.is_end_stream(),
            // A body that was dropped because its lock was lost has no more frames.
            Kind::Holding(holding) => holding.body.get().is_none_or(Body::is_end_stream),
        }
    }

    fn size_hint(&self) -> SizeHint {
        let ended = SizeHint::with_exact(0);
        match &self.kind {
            Kind::Refusal(content) => SizeHint::with_exact(content.len() as u64),
            Kind::Bare(body) => body.size_hint(),
            Kind::Holding(holding) => holding.body.get().map_or(ended, Body::size_hint),
        }
    }
}

impl<B> Holding<B>
where
    B: Body,
    B::Error: Into<BoxError>,
{
    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Polled<B> {
        let mut this = self.project();
        let cancels = *this.on_lost == OnLost::Cancel;
        let lost = |guard: &Option<LockGuard>| cancels && guard.as_ref().is_some_and(LockGuard::is_lost);
        'lost: {
            if lost(this.guard) {
                break 'lost;
            }
            let Some(polled) = this.body.as_mut().with(|body| body.poll_frame(cx)) else {
                return Poll::Ready(None);
            };
            let frame = match polled {
                Poll::Ready(frame) => frame,
                Poll::Pending => {
                    let Some(guard) = this.guard.as_ref().filter(|_| cancels) else { return Poll::Pending };
                    if !this.lost.poll(guard, cx) {
                        return Poll::Pending;
                    }
                    break 'lost;
                }
            };
            // Release now: a reader that knows this is the last frame may never poll again.
            let ended = match &frame {
                Some(Ok(frame)) => frame.is_trailers() || this.body.get().is_none_or(Body::is_end_stream),
                Some(Err(_)) | None => true,
            };
            if ended {
                end(this.body, this.lost, this.guard);
            }
            return Poll::Ready(frame.map(|frame| frame.map_err(Into::into)));
        }
        let Some(guard) = this.guard.as_ref() else { return Poll::Ready(None) };
        let error = LockError::Lost { key: guard.key().clone(), why: guard.loss() };
        end(this.body, this.lost, this.guard);
        tracing::warn!(%error, "the lock was lost while the body of a response was being sent");
        Poll::Ready(Some(match this.protocol {
            Protocol::Http => Err(error.into()),
            Protocol::Grpc => {
                let (mut head, _) =
                    ProblemDetails.refuse(&Refusal::of_error(&error, Protocol::Grpc)).into_parts();
                head.headers.remove(CONTENT_TYPE);
                Ok(Frame::trailers(head.headers))
            }
        }))
    }
}

/// Drops the inner body, then releases the lock. The body is dropped inside the scope, so its
/// `Drop` still runs under the lock.
fn end<B>(body: Pin<&mut Scoped<B>>, lost: &mut LostSignal, guard: &mut Option<LockGuard>) {
    body.cancel();
    *lost = LostSignal::default();
    *guard = None;
}

impl<B> fmt::Debug for LockBody<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (kind, guard) = match &self.kind {
            Kind::Refusal(_) => ("refusal", None),
            Kind::Bare(_) => ("bare", None),
            Kind::Holding(holding) => ("holding", holding.guard.as_ref()),
        };
        f.debug_struct("LockBody").field("kind", &kind).field("guard", &guard).finish_non_exhaustive()
    }
}

/// Returns a default body that holds no lock, for services that need one.
impl<B: Default> Default for LockBody<B> {
    fn default() -> Self {
        Self::bare(B::default())
    }
}
