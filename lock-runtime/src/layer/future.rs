//! [`ResponseFuture`]: finds a request's key, waits for its lock, and runs the handler.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use lock_core::LockKey;
use lock_core::store::Kind;
use pin_project::pin_project;
use tokio::time::Instant;
use tower_service::Service;
use tracing::Span;

use super::admission::{Admitted, Entry, Refused, without_lock};
use super::body::LockBody;
use super::key::AsyncKeyExtractor;
use super::marks::Unlocked;
use super::metrics;
use super::mode::{Handler, Handling, Mode};
use super::refusal::{Protocol, RETRY_SOON, Reason, Refusal, Refuse, retry_after, spread};
use super::settings::{Shared, StoreDown};
use crate::error::LockError;
use crate::guard::LockGuard;

/// The future that a [`LockService`](super::LockService) returns.
///
/// # Cancel safety
///
/// If it is dropped while it waits for its lock, it leaves the queue. If it is dropped later, the
/// handler is dropped where it is suspended, and the lock is then released in the background. A
/// [detached](super::LockLayer::detached) handler goes on.
#[pin_project]
pub struct ResponseFuture<S, K, R, M, B>
where
    S: Service<Request<B>, Future: Handler>,
    K: AsyncKeyExtractor<B>,
    M: Mode<S::Future>,
{
    #[pin]
    state: State<S, K, R, M, B>,
}

#[allow(
    clippy::large_enum_variant,
    reason = "a request that waits is what this is made for; a box would cost an allocation"
)]
#[pin_project(project = StateProjection, project_replace = StateReplaced)]
enum State<S, K, R, M, B>
where
    S: Service<Request<B>, Future: Handler>,
    K: AsyncKeyExtractor<B>,
    M: Mode<S::Future>,
{
    Extracting {
        #[pin]
        keys: K::Future,
        service: S,
        shared: Arc<Shared<K, R>>,
        protocol: Protocol,
        kind: Kind,
        came: Instant,
    },
    Locking {
        entry: Entry,
        request: Request<B>,
        service: S,
        shared: Arc<Shared<K, R>>,
        protocol: Protocol,
    },
    Handling {
        #[pin]
        handler: M::Future,
        shared: Arc<Shared<K, R>>,
        protocol: Protocol,
    },
    /// The request runs without a lock.
    Bare(#[pin] S::Future),
    Refused(Box<Response<Bytes>>),
    Done,
}

impl<S, K, R, M, B> ResponseFuture<S, K, R, M, B>
where
    S: Service<Request<B>, Future: Handler>,
    K: AsyncKeyExtractor<B>,
    M: Mode<S::Future>,
{
    pub(super) fn bare(handler: S::Future) -> Self {
        Self { state: State::Bare(handler) }
    }

    pub(super) fn extracting(
        shared: Arc<Shared<K, R>>,
        protocol: Protocol,
        kind: Kind,
        keys: K::Future,
        service: S,
    ) -> Self {
        Self { state: State::Extracting { keys, service, shared, protocol, kind, came: Instant::now() } }
    }

    pub(super) fn locking(
        shared: Arc<Shared<K, R>>,
        protocol: Protocol,
        entry: Entry,
        request: Request<B>,
        service: S,
    ) -> Self {
        Self { state: State::Locking { entry, request, service, shared, protocol } }
    }
}

impl<S, K, R, M, B> ResponseFuture<S, K, R, M, B>
where
    S: Service<Request<B>, Future: Handler>,
    K: AsyncKeyExtractor<B>,
    R: Refuse,
    M: Mode<S::Future>,
{
    pub(super) fn refused(shared: &Shared<K, R>, protocol: Protocol, refused: &Refused) -> Self {
        Self { state: State::Refused(Box::new(shared.refusal_of::<B>(protocol, refused))) }
    }
}

/// Records the fields of the lock that the request's span has declared.
fn record(guard: &LockGuard, waited: Duration) {
    let span = Span::current();
    span.record("lock.key", guard.key().as_str());
    span.record("lock.token", guard.fencing_token().get());
    span.record("lock.wait_ms", u64::try_from(waited.as_millis()).unwrap_or(u64::MAX));
}

impl<K, R: Refuse> Shared<K, R> {
    fn refuse(&self, refusal: &Refusal<'_>) -> Response<Bytes> {
        let reason = refusal.reason();
        metrics::refused(&self.settings.label, reason.as_str());
        let error = refusal.error().map(tracing::field::display);
        let mistake = refusal.mistake();
        let is_due = |error: Option<&LockError>| {
            let text =
                mistake.map_or_else(|| error.map(ToString::to_string).unwrap_or_default(), str::to_owned);
            self.state.mistake_told.is_due(&text)
        };
        if reason == Reason::Misconfigured && is_due(refusal.error()) {
            tracing::error!(
                mistake,
                error,
                "requests are refused because something is set up wrongly (logged once a minute)"
            );
        } else {
            tracing::debug!(%reason, mistake, error, "a request was refused");
        }
        self.refuse.refuse(refusal)
    }

    /// Returns the response to a request that was refused before it asked for its lock.
    fn refusal_of<B>(&self, protocol: Protocol, refused: &Refused) -> Response<Bytes>
    where
        K: AsyncKeyExtractor<B>,
    {
        match refused {
            Refused::BadKey(rejection) => self.refuse(&Refusal::of_rejection(rejection, protocol)),
            Refused::Full => {
                let after = spread(RETRY_SOON.min(self.settings.longest_retry_after));
                self.refuse(&Refusal::new(Reason::TooManyWaiters, protocol).with_retry_after(after))
            }
            Refused::NoKey => {
                let expected = self.keys.expected();
                self.refuse(&Refusal::missing_key(expected.as_deref(), protocol))
            }
        }
    }

    fn refusal_by(&self, protocol: Protocol, error: &LockError) -> Response<Bytes> {
        let after = retry_after(error, self.settings.longest_retry_after);
        self.refuse(&Refusal::of_error(error, protocol).with_retry_after(after))
    }

    /// Returns the key of a request that goes on although it did not get its lock. A `hurried`
    /// request never goes on: otherwise clients could choose to skip the lock with a short
    /// time-out.
    fn lets_pass(&self, error: &LockError, hurried: bool) -> Option<LockKey> {
        let (LockError::Unavailable { key, .. } | LockError::NotReplicated { key, .. }) = error else {
            return None;
        };
        if hurried || self.settings.on_store_down != StoreDown::PassThrough {
            return None;
        }
        metrics::unlocked(&self.settings.label);
        if self.state.unlocked_told.is_due("") {
            tracing::warn!(%error, "requests go on without their locks (logged once a minute, see the metric `lock_layer_unlocked_total`)");
        } else {
            tracing::debug!(%error, "a request goes on without its lock");
        }
        Some(key.clone())
    }
}

impl<S, K, R, M, B, T> Future for ResponseFuture<S, K, R, M, B>
where
    S: Service<Request<B>, Response = Response<T>>,
    S::Future: Handler<Body = T, Error = S::Error>,
    K: AsyncKeyExtractor<B>,
    R: Refuse,
    M: Mode<S::Future>,
{
    type Output = Result<Response<LockBody<T>>, S::Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.project().state;
        loop {
            let next = match state.as_mut().project() {
                StateProjection::Extracting { keys, .. } => {
                    let (request, extracted) = ready!(keys.poll(cx));
                    let StateReplaced::Extracting { mut service, shared, protocol, kind, came, .. } =
                        state.as_mut().project_replace(State::Done)
                    else {
                        lock_core::internal::sync::polled_again()
                    };
                    match shared.admit(&request, kind, protocol, came.elapsed(), extracted) {
                        Ok(Admitted::Pass) => State::Bare(service.call(without_lock(request))),
                        Ok(Admitted::Lock(entry)) => {
                            State::Locking { entry, request, service, shared, protocol }
                        }
                        Err(refused) => State::Refused(Box::new(shared.refusal_of::<B>(protocol, &refused))),
                    }
                }
                StateProjection::Locking { entry, .. } => {
                    let acquired = ready!(Pin::new(&mut entry.acquire).poll(cx));
                    let StateReplaced::Locking { entry, mut request, mut service, shared, protocol } =
                        state.as_mut().project_replace(State::Done)
                    else {
                        lock_core::internal::sync::polled_again()
                    };
                    let Entry { hurried, seat, asked, .. } = entry;
                    drop(seat);
                    let settings = &shared.settings;
                    let handling = match acquired {
                        Ok(guard) => {
                            if let Some(asked) = asked {
                                record(&guard, asked.elapsed());
                            }
                            // An outer layer may have let the request pass without its lock.
                            request.extensions_mut().remove::<Unlocked>();
                            request.extensions_mut().insert(guard.view());
                            let protocol = protocol.over(request.version());
                            Ok(Handling::locked(settings, protocol, guard, || service.call(request)))
                        }
                        Err(error) => match shared.lets_pass(&error, hurried) {
                            Some(key) => {
                                let mut request = without_lock(request);
                                request.extensions_mut().insert(Unlocked(()));
                                Ok(Handling::unlocked(settings, protocol, key, service.call(request)))
                            }
                            None => Err(error),
                        },
                    };
                    match handling {
                        Ok(handling) => {
                            let handler = M::run(handling, shared.locks.runtime());
                            State::Handling { handler, shared, protocol }
                        }
                        Err(error) => State::Refused(Box::new(shared.refusal_by(protocol, &error))),
                    }
                }
                StateProjection::Handling { handler, shared, protocol } => {
                    let response = match ready!(handler.poll(cx)) {
                        Ok(response) => response,
                        Err(lost) => Ok(shared.refusal_by(*protocol, &lost).map(LockBody::refusal)),
                    };
                    state.set(State::Done);
                    return Poll::Ready(response);
                }
                StateProjection::Bare(handler) => {
                    let response = ready!(handler.poll(cx));
                    state.set(State::Done);
                    return Poll::Ready(response.map(|response| response.map(LockBody::bare)));
                }
                StateProjection::Refused(_) => {
                    let StateReplaced::Refused(response) = state.as_mut().project_replace(State::Done) else {
                        lock_core::internal::sync::polled_again()
                    };
                    return Poll::Ready(Ok(response.map(LockBody::refusal)));
                }
                StateProjection::Done => lock_core::internal::sync::polled_again(),
            };
            state.set(next);
        }
    }
}

impl<S, K, R, M, B> fmt::Debug for ResponseFuture<S, K, R, M, B>
where
    S: Service<Request<B>, Future: Handler>,
    K: AsyncKeyExtractor<B>,
    M: Mode<S::Future>,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match &self.state {
            State::Extracting { .. } => "extracting",
            State::Locking { .. } => "locking",
            State::Handling { .. } => "handling",
            State::Bare(_) => "bare",
            State::Refused(_) => "refused",
            State::Done => "done",
        };
        f.debug_struct("ResponseFuture").field("state", &state).finish()
    }
}
