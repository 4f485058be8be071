//! What makes the layer handier in axum: path parameters and extractors as keys, [`HeldLock`] as an extractor, and
//! responses made of errors.
//!
//! # Where to put the layer
//!
//! Path parameters are known once a route has matched, so that the layer has to be inside of the router:
//!
//! | | parameters | requests to no route |
//! |---|---|---|
//! | [`Router::route_layer`](axum::Router::route_layer) | yes | 404, without a lock |
//! | [`MethodRouter::layer`](axum::routing::MethodRouter::layer), `route_layer` | yes | 404, without a lock |
//! | [`Router::layer`](axum::Router::layer) | yes | pass the layer too, which finds no parameters: 500, or as [`optional`](PathParam::optional) says; those of skipped methods 404 |
//! | around the router | no: 500 | |
//!
//! `Router::route_layer` is what most programs want. A layer applies to all routes that were added before it, and so has to
//! find its parameter in all of them. A method that a route does not have is answered with 405, but inside of the layer: such
//! a request waits for the lock too, except with `MethodRouter::route_layer`.

use std::borrow::Cow;
use std::convert::Infallible;
use std::fmt;
use std::future::Ready;
use std::marker::PhantomData;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};

use axum::body::Body;
use axum::extract::rejection::RawPathParamsRejection;
use axum::extract::{FromRequestParts, OptionalFromRequestParts, RawPathParams};
use axum::response::{IntoResponse, Response};
use http::request::Parts;
use http::{Request, StatusCode};

use super::key::{
    AsyncKeyExtractor, Extraction, IntoRequestKeys, Rejection, RequestKeys, Shape, shape_methods,
};
use super::refusal::{ProblemDetails, Protocol, Reason, Refusal, Refuse};
use crate::error::{AcquireError, LockError};
use crate::guard::HeldLock;

type Keys = Result<Option<RequestKeys>, Rejection>;

/// The key is a path parameter: made by [`path_param`].
#[derive(Clone, Debug)]
pub struct PathParam {
    name: Cow<'static, str>,
    shape: Shape,
    absent: Absent,
}

/// What it means that the route has no such parameter.
#[derive(Clone, Copy, Debug)]
enum Absent {
    Mistake,
    NoKey,
}

/// The value of a path parameter, decoded: for the route `/orders/{id}` and `/orders/42`, `path_param("id")` is `42`.
///
/// ```
/// use lock_runtime::layer::axum::path_param;
///
/// let key = path_param("id").prefix("order:").parsed::<u64>();
/// ```
///
/// A request whose route has no such parameter, or that has passed no route, is answered with 500, and the log says what to
/// do about it: it is a mistake in the program, and to let it through would be to do without the lock. See
/// [`optional`](PathParam::optional) for routers that have routes of both kinds, and [the module](self) for where to put
/// the layer.
#[must_use]
pub fn path_param(name: impl Into<Cow<'static, str>>) -> PathParam {
    PathParam { name: name.into(), shape: Shape::new(), absent: Absent::Mistake }
}

impl PathParam {
    shape_methods!();

    /// A request whose route does not have the parameter, or that matches no route, is one without a key, and the layer's
    /// [policy](super::LockLayer::missing_key) for that decides.
    #[must_use]
    pub fn optional(mut self) -> Self {
        self.absent = Absent::NoKey;
        self
    }

    fn keys(&self, parts: &mut Parts) -> Keys {
        let name = &self.name;
        let params = match at_once(RawPathParams::from_request_parts(parts, &())) {
            Some(Ok(params)) => params,
            Some(Err(RawPathParamsRejection::InvalidUtf8InPathParam(_))) => {
                return Err(Rejection::new("A part of the path is not valid UTF-8 text."));
            }
            Some(Err(_)) | None => {
                return Err(Rejection::misconfigured(format!(
                    "No route has matched where the path parameter `{name}` is asked for: put the layer inside of the \
                     router, with `Router::route_layer` or `MethodRouter::layer`."
                )));
            }
        };
        let mut values = params.iter().filter(|(other, _)| other == name).map(|(_, value)| value);
        let Some(value) = values.next() else {
            return match self.absent {
                Absent::NoKey => Ok(None),
                Absent::Mistake => Err(Rejection::misconfigured(format!(
                    "This route has no path parameter `{name}`: write `{{{name}}}` in its path, add the route after the \
                     layer if it needs no lock, or use `path_param(…).optional()`."
                ))),
            };
        };
        if values.next().is_some() {
            return Err(Rejection::misconfigured(format!(
                "This route has two path parameters `{name}`: give one of them another name."
            )));
        }
        self.shape.key(&parts.method, &parts.uri, self, value.as_bytes())
    }
}

/// As it is called in an answer to the client.
impl fmt::Display for PathParam {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "path parameter `{}`", self.name)
    }
}

/// What a future has that does not wait for anything. That of `RawPathParams` looks into a map.
fn at_once<F: Future>(future: F) -> Option<F::Output> {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => Some(output),
        Poll::Pending => None,
    }
}

impl<B> AsyncKeyExtractor<Request<B>> for PathParam {
    type Future = Ready<(Request<B>, Keys)>;

    fn extract(&self, request: Request<B>) -> Extraction<Request<B>, Self::Future> {
        let (mut parts, body) = request.into_parts();
        let keys = self.keys(&mut parts);
        Extraction::Ready(Request::from_parts(parts, body), keys)
    }

    fn expected(&self) -> Option<Cow<'_, str>> {
        Some(format!("the {self}").into())
    }
}

/// The key is made of what an extractor of axum finds: made by [`extractor`] and [`extractor_with_state`].
pub struct ExtractorKey<T, S, F> {
    state: S,
    key: F,
    extractor: PhantomData<fn(T)>,
}

/// A key made of what an extractor of axum finds, which can be any that leaves the body alone.
///
/// ```
/// use axum::extract::Path;
/// use lock_runtime::layer::axum::extractor;
///
/// let key = extractor(|Path((shop, order)): Path<(u32, u64)>| format!("order:{shop}:{order}"));
/// ```
///
/// When the extractor refuses the request, so does the layer, with the same status if that is 4xx, else with 500. The text
/// is the layer's. It costs an allocation, and the extractor runs again for the handler.
#[must_use]
pub fn extractor<T, F, R>(key: F) -> ExtractorKey<T, (), F>
where
    T: FromRequestParts<()>,
    F: Fn(T) -> R,
    R: IntoRequestKeys,
{
    extractor_with_state((), key)
}

/// As [`extractor`], for extractors that need the router's state.
#[must_use]
pub fn extractor_with_state<T, S, F, R>(state: S, key: F) -> ExtractorKey<T, S, F>
where
    T: FromRequestParts<S>,
    F: Fn(T) -> R,
    R: IntoRequestKeys,
{
    ExtractorKey { state, key, extractor: PhantomData }
}

impl<B, T, S, F, R> AsyncKeyExtractor<Request<B>> for ExtractorKey<T, S, F>
where
    B: Send + 'static,
    T: FromRequestParts<S> + 'static,
    S: Clone + Send + Sync + 'static,
    F: Fn(T) -> R + Clone + Send + 'static,
    R: IntoRequestKeys,
{
    type Future = Pin<Box<dyn Future<Output = (Request<B>, Keys)> + Send>>;

    fn extract(&self, request: Request<B>) -> Extraction<Request<B>, Self::Future> {
        let (state, key) = (self.state.clone(), self.key.clone());
        Extraction::Pending(Box::pin(async move {
            let (mut parts, body) = request.into_parts();
            let keys = match T::from_request_parts(&mut parts, &state).await {
                Ok(value) => key(value).into_request_keys(),
                Err(rejection) => Err(refused(rejection.into_response().status())),
            };
            (Request::from_parts(parts, body), keys)
        }))
    }
}

/// What axum's own text says may name types and values.
fn refused(status: StatusCode) -> Rejection {
    if status.is_client_error() {
        Rejection::with_status(status, "The part of the request that says what it works on can't be read.")
    } else {
        Rejection::misconfigured("The extractor that finds the key of this request has failed.")
    }
}

impl<T, S: Clone, F: Clone> Clone for ExtractorKey<T, S, F> {
    fn clone(&self) -> Self {
        Self { state: self.state.clone(), key: self.key.clone(), extractor: PhantomData }
    }
}

impl<T, S, F> fmt::Debug for ExtractorKey<T, S, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ExtractorKey<{}>", std::any::type_name::<T>())
    }
}

/// The lock under which the request runs. `Option<HeldLock>` is for handlers that also run without: on requests of skipped
/// methods, without a key under [`MissingKey::Skip`](super::MissingKey::Skip), and while the store is down under
/// [`StoreDown::PassThrough`](super::StoreDown::PassThrough).
#[cfg_attr(docsrs, doc(cfg(feature = "axum")))]
impl<S: Send + Sync> FromRequestParts<S> for HeldLock {
    type Rejection = NotLocked;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, NotLocked> {
        parts.extensions.get::<Self>().cloned().ok_or(NotLocked(()))
    }
}

#[cfg_attr(docsrs, doc(cfg(feature = "axum")))]
impl<S: Send + Sync> OptionalFromRequestParts<S> for HeldLock {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Option<Self>, Infallible> {
        Ok(parts.extensions.get::<Self>().cloned())
    }
}

/// A handler asked for the [`HeldLock`] of a request that has none. The response is 500; what to do is in the log.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "this request runs without a lock: there is no `LockLayer` around the route, or it skips the request's method, or lets \
     requests without a key pass, or those that come while the store is down. Where that is meant, take an \
     `Option<HeldLock>`"
)]
pub struct NotLocked(());

impl IntoResponse for NotLocked {
    fn into_response(self) -> Response {
        // A mistake in the program is no matter of its clients'.
        tracing::error!(error = %self, "a handler asked for the lock of its request");
        let refusal = Refusal::new(Reason::Misconfigured, Protocol::Http);
        ProblemDetails.refuse(&refusal).map(Body::from)
    }
}

/// The `application/problem+json` of [`ProblemDetails`], so that a handler can hand on the errors of annotated functions
/// with `?`. The error itself, with its key and cause, is in the extensions of the response, for logs. What is set up
/// wrongly is an error in the log.
#[cfg_attr(docsrs, doc(cfg(feature = "axum")))]
impl IntoResponse for LockError {
    fn into_response(self) -> Response {
        let mut response = ProblemDetails.refuse(&Refusal::of_handler(&self, Protocol::Http)).map(Body::from);
        response.extensions_mut().insert(self);
        response
    }
}

/// As that of a [`LockError`].
#[cfg_attr(docsrs, doc(cfg(feature = "axum")))]
impl IntoResponse for AcquireError {
    fn into_response(self) -> Response {
        LockError::from(self).into_response()
    }
}

#[cfg(test)]
mod tests {
    use axum::Router;
    use axum::extract::{Extension, Path, Request as AnyRequest, State};
    use axum::handler::Handler;
    use axum::middleware::{Next, from_fn};
    use axum::routing::{self, MethodRouter, any};
    use tower::{Layer, ServiceExt};

    use super::super::key::Keys as Inner;
    use super::*;
    use crate::{LockKey, LockManager};

    /// A layer that answers with the keys that an extractor finds, as `LockLayer` would ask for them.
    macro_rules! probe {
        ($key:expr) => {{
            let key = $key;
            from_fn(move |request: AnyRequest, _: Next| {
                let extraction = key.extract(request);
                async move {
                    let (_, keys) = match extraction {
                        Extraction::Ready(request, keys) => (request, keys),
                        Extraction::Pending(future) => future.await,
                    };
                    match keys.map(|keys| keys.map(RequestKeys::into_inner)) {
                        Ok(Some(Inner::One(key))) => key.to_string().into_response(),
                        Ok(keys) => format!("{keys:?}").into_response(),
                        Err(rejection) => (rejection.status(), rejection.detail().to_owned()).into_response(),
                    }
                }
            })
        }};
    }

    fn handler() -> MethodRouter {
        routing::get(async || "handler")
    }

    async fn text(response: Response) -> (u16, String) {
        let status = response.status().as_u16();
        let body = axum::body::to_bytes(response.into_body(), usize::MAX).await.unwrap();
        (status, String::from_utf8(body.to_vec()).unwrap())
    }

    async fn get(router: &Router, uri: &str) -> (u16, String) {
        let request = Request::builder().uri(uri).body(Body::empty()).unwrap();
        text(router.clone().oneshot(request).await.unwrap()).await
    }

    fn found(key: &str) -> (u16, String) {
        (200, key.to_owned())
    }

    /// The places of the table in the documentation, where a route has matched.
    #[tokio::test]
    async fn path_parameters_are_known_inside_the_router() {
        let key = || path_param("id").prefix("order:");
        let routers = [
            Router::new().route("/orders/{id}", handler()).route_layer(probe!(key())),
            Router::new().route("/orders/{id}", handler().layer(probe!(key()))),
            Router::new().route("/orders/{id}", handler().route_layer(probe!(key()))),
            Router::new().route("/orders/{id}", handler()).layer(probe!(key())),
            Router::new().route("/orders/{id}", any(Handler::layer(async || "handler", probe!(key())))),
            Router::new().nest("/orders", Router::new().route("/{id}", handler()).route_layer(probe!(key()))),
            Router::new().nest("/orders", Router::new().route("/{id}", handler())).route_layer(probe!(key())),
            Router::new().nest(
                "/{id}",
                Router::new().route("/{x}", handler()).route_layer(probe!(path_param("x").prefix("order:"))),
            ),
        ];
        for (i, router) in routers.iter().enumerate() {
            assert_eq!(get(router, "/orders/42").await, found("order:42"), "router {i}");
            assert_eq!(get(router, "/orders/a%2Fb%20c").await, found("order:a/b c"), "router {i}");
        }
    }

    /// The same table, for requests to no route.
    #[tokio::test]
    async fn requests_to_no_route_are_not_found() {
        let router = || Router::new().route("/orders/{id}", handler());
        assert_eq!(get(&router().route_layer(probe!(path_param("id"))), "/carts/1").await.0, 404);
        assert_eq!(get(&router().layer(probe!(path_param("id"))), "/carts/1").await.0, 500);
        let fallback = || router().fallback(async || "fallback");
        assert_eq!(
            get(&fallback().route_layer(probe!(path_param("id"))), "/carts/1").await,
            found("fallback")
        );
    }

    /// Nor is a method that the route does not have; but most layers are around that answer too.
    #[tokio::test]
    async fn other_methods_are_not_allowed() {
        let key = || path_param("id");
        for (router, status) in [
            (Router::new().route("/{id}", handler().route_layer(probe!(key()))), 405),
            (Router::new().route("/{id}", handler().layer(probe!(key()))), 200),
            (Router::new().route("/{id}", handler()).route_layer(probe!(key())), 200),
        ] {
            let request = Request::builder().method("PUT").uri("/42").body(Body::empty()).unwrap();
            assert_eq!(router.oneshot(request).await.unwrap().status(), status);
        }
    }

    /// Around the router no route has matched yet: a mistake, which says what to do, and lets nobody in unlocked.
    #[tokio::test]
    async fn path_parameters_are_not_known_around_the_router() {
        let router = Router::new().route("/orders/{id}", handler());
        for key in [path_param("id"), path_param("id").optional()] {
            let service = probe!(key).layer(router.clone());
            let request = Request::builder().uri("/orders/42").body(Body::empty()).unwrap();
            let (status, detail) = text(service.oneshot(request).await.unwrap()).await;
            assert_eq!(status, 500);
            assert!(detail.contains("`Router::route_layer`"), "{detail}");
        }
    }

    /// A route without the parameter is a mistake unless it is said that there are such routes.
    #[tokio::test]
    async fn a_route_may_be_without_the_parameter() {
        let router = || Router::new().route("/orders", handler()).route("/orders/{id}", handler());
        let strict = router().route_layer(probe!(path_param("id")));
        let (status, detail) = get(&strict, "/orders").await;
        assert_eq!(status, 500);
        assert!(detail.contains("write `{id}` in its path"), "{detail}");
        let optional = router().route_layer(probe!(path_param("id").optional()));
        assert_eq!(get(&optional, "/orders").await, found("None"));
        assert_eq!(get(&optional, "/orders/42").await, found("42"));
        let twice = Router::new().nest("/{id}", Router::new().route("/{id}", handler()));
        assert_eq!(get(&twice.route_layer(probe!(path_param("id"))), "/1/2").await.0, 500);
    }

    /// A client's value is looked at as everywhere else.
    #[tokio::test]
    async fn a_path_parameter_is_a_clients_value() {
        let router = |key: PathParam| Router::new().route("/orders/{id}", handler()).route_layer(probe!(key));
        let plain = router(path_param("id"));
        assert_eq!(get(&plain, "/orders/%7B1%7D").await.0, 400);
        assert_eq!(get(&plain, "/orders/%FF").await.0, 400);
        assert_eq!(get(&plain, &format!("/orders/{}", "a".repeat(257))).await.0, 400);
        let number = router(path_param("id").parsed::<u64>());
        assert_eq!(get(&number, "/orders/007").await, found("7"));
        assert_eq!(
            get(&number, "/orders/x").await,
            (400, "The path parameter `id` can't be read as what is expected there.".to_owned())
        );
        let expected = AsyncKeyExtractor::<Request<Body>>::expected(&path_param("id")).map(Cow::into_owned);
        assert_eq!(expected.unwrap(), "the path parameter `id`");
    }

    /// Any extractor makes a key, also several, and its refusal is that of the layer.
    #[tokio::test]
    async fn an_extractor_makes_the_key() {
        let key = extractor(|Path((shop, order)): Path<(u32, u64)>| format!("order:{shop}:{order}"));
        let router = Router::new().route("/{shop}/{order}", handler()).route_layer(probe!(key.clone()));
        assert_eq!(get(&router, "/1/002").await, found("order:1:2"));
        let (status, detail) = get(&router, "/1/two").await;
        assert_eq!((status, detail.contains("two")), (400, false), "{detail}");

        let missing = extractor(|Extension(user): Extension<u64>| format!("user:{user}"));
        let router = Router::new().route("/", handler()).route_layer(probe!(missing.clone()));
        assert_eq!(get(&router, "/").await.0, 500);

        let both =
            extractor(|Path((a, b)): Path<(u64, u64)>| [format!("account:{a}"), format!("account:{b}")]);
        let router = Router::new().route("/{a}/{b}", handler()).route_layer(probe!(both.clone()));
        let several = Some(Inner::Several(vec![
            LockKey::new("account:2").unwrap(),
            LockKey::new("account:1").unwrap(),
        ]));
        assert_eq!(get(&router, "/2/1").await, found(&format!("{several:?}")));
    }

    /// An extractor gets the state that it needs.
    #[tokio::test]
    async fn an_extractor_may_need_state() {
        let key = extractor_with_state("eu", |State(region): State<&'static str>| format!("region:{region}"));
        let router = Router::new().route("/", handler()).route_layer(probe!(key.clone()));
        assert_eq!(get(&router, "/").await, found("region:eu"));
        assert!(format!("{key:?}").contains("State"));
    }

    /// A handler gets the lock of its request, and is told what to do if there is none.
    #[tokio::test]
    async fn a_handler_gets_its_lock() {
        let locks = LockManager::connect("memory:").await.unwrap();
        let guard = locks.mutex("order:42").acquire().await.unwrap();
        let view = guard.view();
        let router =
            Router::new().route("/strict", any(async |held: HeldLock| held.key().to_string())).route(
                "/optional",
                any(async |held: Option<HeldLock>| held.map_or("none".into(), |held| held.key().to_string())),
            );
        let locked = router.clone().layer(Extension(view));
        assert_eq!(get(&locked, "/strict").await, found("order:42"));
        assert_eq!(get(&locked, "/optional").await, found("order:42"));
        assert_eq!(get(&router, "/optional").await, found("none"));
        let (status, detail) = get(&router, "/strict").await;
        assert_eq!(status, 500);
        assert!(!detail.contains("LockLayer"), "what to do is in the log: {detail}");
        guard.release().await.unwrap();
    }

    /// A handler's error is a problem for the client, and whole for logs.
    #[tokio::test]
    async fn an_error_is_a_response() {
        let error = AcquireError::Busy { key: LockKey::new("s3cret").unwrap(), remaining: None };
        let response = error.into_response();
        assert_eq!(response.headers()["content-type"], "application/problem+json");
        assert!(response.extensions().get::<LockError>().unwrap().to_string().contains("s3cret"));
        let (status, body) = text(response).await;
        assert_eq!(status, 409);
        assert!(body.contains("urn:problem-type:lock:busy") && !body.contains("s3cret"), "{body}");
    }
}
