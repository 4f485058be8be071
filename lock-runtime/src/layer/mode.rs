//! Where handlers run: inside the response future, or in their own tasks.

use std::fmt;
use std::future::Future;
use std::panic::resume_unwind;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use http::Response;
use http_body::Body;
use lock_core::LockKey;
use lock_engine::failure::Loss;
use pin_project::pin_project;
use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use tracing::Instrument;

use super::body::LockBody;
use super::marks::{LostLock, Unlocked};
use super::refusal::Protocol;
use super::settings::{HeldUntil, Settings};
use crate::error::LockError;
use crate::guard::{HeldLock, LockGuard};
use crate::guarded::{Guarded, OnLost};

/// The mode in which handlers run inside the response future: they end with it when the client
/// leaves.
#[derive(Clone, Copy, Debug)]
pub enum Inline {}

/// The mode in which handlers run in their own tasks, to their end. See
/// [`LockLayer::detached`](super::LockLayer::detached).
#[derive(Clone, Copy, Debug)]
pub enum Detached {}

/// How the future of a handler is run. Sealed: implemented by [`Inline`] and [`Detached`] only.
pub trait Mode<F: Handler>: Run<F> {}

impl<F: Handler, M: Run<F>> Mode<F> for M {}

/// The future of a service from requests to responses. Sealed: implemented for every such future.
pub trait Handler: Future<Output = Result<Response<Self::Body>, Self::Error>> {
    /// The body of the response.
    type Body;
    /// The error of the service.
    type Error;
}

impl<F, T, E> Handler for F
where
    F: Future<Output = Result<Response<T>, E>>,
{
    type Body = T;
    type Error = E;
}

/// The result of the service, or why the handler was dropped.
pub(super) type Handled<F> =
    Result<Result<Response<LockBody<<F as Handler>::Body>>, <F as Handler>::Error>, LockError>;

/// The hidden part of [`Mode`].
pub trait Run<F: Handler> {
    /// Resolves when the handler ends.
    type Future: Future<Output = Handled<F>>;

    /// Runs a handler. `runtime` is the manager's, for a task that is spawned outside any runtime.
    fn run(handling: Handling<F>, runtime: &Handle) -> Self::Future;
}

/// A handler with its lock. When the handler returns, `ending` is applied to the response and the
/// lock.
#[pin_project]
pub struct Handling<F> {
    #[pin]
    handler: Kind<F>,
    ending: Ending,
    /// The key of the lock that the handler has, or should have.
    key: LockKey,
}

#[pin_project(project = KindProjection)]
enum Kind<F> {
    Locked(#[pin] Guarded<F>),
    /// The store is down, and the layer lets requests pass.
    Unlocked(#[pin] F),
}

/// How long a lock is held once its handler has returned.
#[derive(Clone, Copy, Debug)]
struct Ending {
    hold: HeldUntil,
    on_lost: OnLost,
    /// [`Protocol::Grpc`] if a body can end with trailers.
    protocol: Protocol,
}

impl Ending {
    fn new(settings: &Settings, protocol: Protocol) -> Self {
        Self { hold: settings.hold, on_lost: settings.on_lost, protocol }
    }

    /// Releases the lock, or passes it on to the response's body.
    fn apply<T: Body>(
        self,
        // The first parameter, so that it is dropped last if something here panics.
        guard: LockGuard,
        mut response: Response<T>,
    ) -> Result<Response<LockBody<T>>, LockError> {
        let extensions = response.extensions_mut();
        // A lock of an inner layer is already there; it is the one that the handler saw.
        if extensions.get::<HeldLock>().is_none() && extensions.get::<Unlocked>().is_none() {
            extensions.insert(guard.view());
        }
        let lost = guard.is_lost().then(|| guard.loss());
        if let Some(why) = lost {
            extensions.insert(LostLock(why));
        }
        if self.hold == HeldUntil::Response || response.body().is_end_stream() {
            // Dispatched before the response goes out: the next request in this process queues
            // behind the release.
            drop(guard);
            return Ok(response.map(LockBody::bare));
        }
        match lost {
            // The rest of the body was to be sent under the lock, and the client can still be told.
            Some(why) if self.on_lost == OnLost::Cancel => {
                guard.inner_scope().enter(|| drop(response));
                Err(LockError::Lost { key: guard.key().clone(), why })
            }
            _ => {
                let answered = Protocol::of(response.headers());
                let protocol = if answered == Protocol::Grpc { self.protocol } else { answered };
                Ok(response.map(|body| LockBody::holding(guard, self.on_lost, protocol, body)))
            }
        }
    }
}

impl<F> Handling<F> {
    /// Calls a handler that has its lock.
    pub(super) fn locked(
        settings: &Settings,
        protocol: Protocol,
        guard: LockGuard,
        call: impl FnOnce() -> F,
    ) -> Self {
        let key = guard.key().clone();
        let handler = Kind::Locked(Guarded::begin(guard, settings.on_lost, call));
        Self { handler, ending: Ending::new(settings, protocol), key }
    }

    /// Returns the future of a handler that goes on without the lock of `key`.
    pub(super) fn unlocked(settings: &Settings, protocol: Protocol, key: LockKey, handler: F) -> Self {
        Self { handler: Kind::Unlocked(handler), ending: Ending::new(settings, protocol), key }
    }

    fn guard(&self) -> Option<&LockGuard> {
        match &self.handler {
            Kind::Locked(handler) => handler.guard(),
            Kind::Unlocked(_) => None,
        }
    }
}

impl<F> Future for Handling<F>
where
    F: Handler,
    F::Body: Body,
{
    type Output = Handled<F>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        Poll::Ready(match this.handler.project() {
            KindProjection::Locked(handler) => match ready!(handler.poll(cx)) {
                Ok((Ok(response), guard)) => this.ending.apply(guard, response).map(Ok),
                Ok((Err(error), guard)) => {
                    drop(guard);
                    Ok(Err(error))
                }
                Err(lost) => Err(lost),
            },
            KindProjection::Unlocked(handler) => {
                let response = ready!(handler.poll(cx));
                Ok(response.map(|mut response| {
                    response.extensions_mut().insert(Unlocked(()));
                    response.map(LockBody::bare)
                }))
            }
        })
    }
}

impl<F> Run<F> for Inline
where
    F: Handler,
    F::Body: Body,
{
    type Future = Handling<F>;

    fn run(handling: Handling<F>, _: &Handle) -> Self::Future {
        handling
    }
}

impl<F> Run<F> for Detached
where
    F: Handler + Send + 'static,
    F::Body: Body + Send,
    F::Error: Send,
{
    type Future = Task<F>;

    fn run(handling: Handling<F>, runtime: &Handle) -> Self::Future {
        let key = handling.key.clone();
        let here = Handle::try_current();
        let task = here.as_ref().unwrap_or(runtime).spawn(handling.in_current_span());
        Task { task, key }
    }
}

/// A handler in its own task, which goes on if this is dropped.
pub struct Task<F: Handler> {
    task: JoinHandle<Handled<F>>,
    key: LockKey,
}

impl<F: Handler> Future for Task<F> {
    type Output = Handled<F>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match ready!(Pin::new(&mut self.task).poll(cx)) {
            Ok(handled) => Poll::Ready(handled),
            Err(error) => match error.try_into_panic() {
                // As if the handler had run in this future.
                Ok(panic) => resume_unwind(panic),
                // The task's runtime has ended, and the handler with it. It may have done part of
                // its work.
                Err(_) => Poll::Ready(Err(LockError::Lost { key: self.key.clone(), why: Loss::ShutDown })),
            },
        }
    }
}

impl<F> fmt::Debug for Handling<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handling")
            .field("guard", &self.guard())
            .field("ending", &self.ending)
            .finish_non_exhaustive()
    }
}

impl<F: Handler> fmt::Debug for Task<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Task").field("key", &self.key).finish_non_exhaustive()
    }
}
