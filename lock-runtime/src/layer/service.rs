//! [`LockService`]: a service inside a [`LockLayer`](super::LockLayer).

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use tower_service::Service;

use super::admission::{Admitted, without_lock};
use super::body::{BoxError, LockBody};
use super::future::ResponseFuture;
use super::key::{AsyncKeyExtractor, Extraction};
use super::mode::{Handler, Inline, Mode};
use super::refusal::{ProblemDetails, Protocol, Refuse};
use super::settings::Shared;

/// A service whose requests are locked; made by a [`LockLayer`](super::LockLayer). See the
/// [module](super).
pub struct LockService<S, K, R = ProblemDetails, M = Inline> {
    inner: S,
    shared: Arc<Shared<K, R>>,
    mode: PhantomData<fn() -> M>,
}

impl<S, K, R, M> LockService<S, K, R, M> {
    pub(super) fn new(inner: S, shared: Arc<Shared<K, R>>) -> Self {
        Self { inner, shared, mode: PhantomData }
    }

    /// Returns the inner service.
    pub fn get_ref(&self) -> &S {
        &self.inner
    }

    /// Returns the inner service.
    pub fn get_mut(&mut self) -> &mut S {
        &mut self.inner
    }

    /// Returns the inner service.
    pub fn into_inner(self) -> S {
        self.inner
    }
}

impl<S, K, R, M, B, T> Service<Request<B>> for LockService<S, K, R, M>
where
    S: Service<Request<B>, Response = Response<T>> + Clone,
    S::Future: Handler<Body = T, Error = S::Error>,
    K: AsyncKeyExtractor<B>,
    R: Refuse,
    M: Mode<S::Future>,
    T: Body,
    T::Data: From<Bytes>,
    T::Error: Into<BoxError>,
{
    type Response = Response<LockBody<T>>;
    type Error = S::Error;
    type Future = ResponseFuture<S, K, R, M, B>;

    /// Asks only the inner service: the lock that the request needs is not known yet.
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let shared = &self.shared;
        if !shared.settings.enabled {
            return ResponseFuture::bare(self.inner.call(request));
        }
        let Some(kind) = shared.settings.kind_of(request.method()) else {
            return ResponseFuture::bare(self.inner.call(without_lock(request)));
        };
        let protocol = Protocol::of(request.headers());
        let (request, extracted) = match shared.keys.extract(request) {
            Extraction::Ready(request, extracted) => (request, extracted),
            Extraction::Pending(keys) => {
                let shared = Arc::clone(shared);
                return ResponseFuture::extracting(shared, protocol, kind, keys, self.take_ready());
            }
        };
        match shared.admit(&request, kind, protocol, Duration::ZERO, extracted) {
            Ok(Admitted::Pass) => ResponseFuture::bare(self.inner.call(without_lock(request))),
            Ok(Admitted::Lock(entry)) => {
                let shared = Arc::clone(shared);
                ResponseFuture::locking(shared, protocol, entry, request, self.take_ready())
            }
            Err(refused) => {
                let refusal = ResponseFuture::refused(shared, protocol, &refused);
                // Frees what the inner service reserved for the request, such as a permit of a
                // limit.
                drop(self.take_ready());
                refusal
            }
        }
    }
}

impl<S: Clone, K, R, M> LockService<S, K, R, M> {
    /// Takes the service that was polled ready, and leaves a clone that has to be polled again.
    fn take_ready(&mut self) -> S {
        let clone = self.inner.clone();
        std::mem::replace(&mut self.inner, clone)
    }
}

impl<S: Clone, K, R, M> Clone for LockService<S, K, R, M> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone(), shared: Arc::clone(&self.shared), mode: PhantomData }
    }
}

impl<S: fmt::Debug, K, R, M> fmt::Debug for LockService<S, K, R, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockService")
            .field("inner", &self.inner)
            .field("settings", &self.shared.settings)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use http::{Method, StatusCode};
    use http_body_util::Empty;
    use tower::{Layer, ServiceExt, service_fn};

    use super::*;
    use crate::guard::HeldLock;
    use crate::layer::{LockLayer, path_segment};
    use crate::testing::memory_manager;

    /// The handler sees the lock, and so does a layer that sees the response.
    #[tokio::test(start_paused = true)]
    async fn a_request_runs_under_its_lock() {
        let locks = memory_manager();
        let inner = service_fn(|request: Request<Empty<Bytes>>| async move {
            let held = request.extensions().get::<HeldLock>().cloned();
            let held = held.ok_or("no lock").unwrap();
            assert!(held.is_held() && held.key().as_str() == "order:42");
            let body = http_body_util::Full::<Bytes>::from(held.fencing_token().to_string());
            Ok::<_, Infallible>(Response::new(body))
        });
        let service = LockLayer::new(locks.clone(), path_segment(1).prefix("order:")).layer(inner);
        let mut request = Request::new(Empty::new());
        *request.method_mut() = Method::POST;
        *request.uri_mut() = "/orders/42".parse().unwrap();
        let response = service.oneshot(request).await.unwrap();
        assert_eq!(response.status(), StatusCode::OK);
        assert!(!response.extensions().get::<HeldLock>().unwrap().is_held(), "released");
    }
}
