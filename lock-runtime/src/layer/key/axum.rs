//! Keys from axum: path parameters, routes, and extractors.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};

use axum::extract::rejection::RawPathParamsRejection;
use axum::extract::{FromRequestParts, MatchedPath, RawPathParams};
use axum::response::IntoResponse;
use http::request::Parts;
use http::{Request, StatusCode};

use super::{AsyncKeyExtractor, Extraction, Found, IntoRequestKeys, Rejection};

/// A path parameter, and whether a route may lack it.
#[derive(Clone, Debug)]
pub(super) struct PathParam {
    name: Cow<'static, str>,
    optional: bool,
}

impl PathParam {
    pub(super) fn new(name: Cow<'static, str>) -> Self {
        Self { name, optional: false }
    }

    pub(super) fn optional(&mut self) {
        self.optional = true;
    }

    pub(super) fn value(&self, head: &mut Parts) -> Result<Option<String>, Rejection> {
        let name = &self.name;
        let params = match at_once(RawPathParams::from_request_parts(head, &())) {
            Some(Ok(params)) => params,
            Some(Err(RawPathParamsRejection::InvalidUtf8InPathParam(_))) => {
                return Err(Rejection::new("A part of the path is not valid UTF-8 text."));
            }
            Some(Err(_)) | None => return Err(no_route(&format!("the path parameter `{name}`"))),
        };
        let mut values = params.iter().filter(|(other, _)| other == name).map(|(_, value)| value);
        let value = values.next().map(str::to_owned);
        if values.next().is_some() {
            return Err(Rejection::misconfigured(format!(
                "This route has two path parameters `{name}`; rename one of them."
            )));
        }
        if value.is_none() && !self.optional {
            return Err(Rejection::misconfigured(format!(
                "This route has no path parameter `{name}`: write `{{{name}}}` in its path, add the route after the \
                 layer if it needs no lock, or use `path_param(…).optional()`."
            )));
        }
        Ok(value)
    }
}

/// Formats the parameter as it is named in a response to the client.
impl fmt::Display for PathParam {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "path parameter `{}`", self.name)
    }
}

/// Returns the output of a future that is ready at once. `RawPathParams` only reads a map, so its
/// future is.
fn at_once<F: Future>(future: F) -> Option<F::Output> {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => Some(output),
        Poll::Pending => None,
    }
}

/// Returns the pattern of the matched route.
pub(super) fn route(head: &Parts) -> Result<&str, Rejection> {
    match head.extensions.get::<MatchedPath>() {
        Some(route) => Ok(route.as_str()),
        None => Err(no_route("the route's pattern")),
    }
}

fn no_route(wanted: &str) -> Rejection {
    Rejection::misconfigured(format!(
        "No route has matched where {wanted} is asked for: put the layer inside of the router, with \
         `Router::route_layer` or `MethodRouter::layer`."
    ))
}

/// A key that comes from an axum extractor; made by [`extractor`] and [`extractor_with_state`].
#[cfg_attr(docsrs, doc(cfg(feature = "axum")))]
pub struct ExtractorKey<T, S, F> {
    state: S,
    key: F,
    extractor: PhantomData<fn(T)>,
}

/// Returns a key that comes from any axum extractor that does not read the body. For
/// [`LockLayer::new_async`](crate::layer::LockLayer::new_async).
///
/// ```
/// use axum::extract::Path;
/// use lock_runtime::layer::extractor;
///
/// let key = extractor(|Path((shop, order)): Path<(u32, u64)>| format!("order:{shop}:{order}"));
/// ```
///
/// If the extractor rejects the request, the layer refuses it: with the same status if that is 4xx,
/// otherwise with 500. The text of the response is the layer's. Each request costs an allocation,
/// and the extractor runs again for the handler. For a key in the body, see
/// [`body`](super::body()).
#[cfg_attr(docsrs, doc(cfg(feature = "axum")))]
#[must_use]
pub fn extractor<T, F, R>(key: F) -> ExtractorKey<T, (), F>
where
    T: FromRequestParts<()>,
    F: Fn(T) -> R,
    R: IntoRequestKeys,
{
    extractor_with_state((), key)
}

/// Like [`extractor`], for extractors that need the router's state.
#[cfg_attr(docsrs, doc(cfg(feature = "axum")))]
#[must_use]
pub fn extractor_with_state<T, S, F, R>(state: S, key: F) -> ExtractorKey<T, S, F>
where
    T: FromRequestParts<S>,
    F: Fn(T) -> R,
    R: IntoRequestKeys,
{
    ExtractorKey { state, key, extractor: PhantomData }
}

impl<B, T, S, F, R> AsyncKeyExtractor<B> for ExtractorKey<T, S, F>
where
    B: Send + 'static,
    T: FromRequestParts<S> + 'static,
    S: Clone + Send + Sync + 'static,
    F: Fn(T) -> R + Clone + Send + 'static,
    R: IntoRequestKeys,
{
    type Future = Pin<Box<dyn Future<Output = (Request<B>, Found)> + Send>>;

    fn extract(&self, request: Request<B>) -> Extraction<B, Self::Future> {
        let (state, key) = (self.state.clone(), self.key.clone());
        Extraction::Pending(Box::pin(async move {
            let (mut head, body) = request.into_parts();
            let keys = match T::from_request_parts(&mut head, &state).await {
                Ok(value) => key(value).into_request_keys(),
                Err(rejection) => Err(refused(rejection.into_response().status())),
            };
            (Request::from_parts(head, body), keys)
        }))
    }
}

/// axum's own text is not passed on: it may contain type names and values.
fn refused(status: StatusCode) -> Rejection {
    if status.is_client_error() {
        Rejection::with_status(status, "The part of the request that names its resource can't be read.")
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

#[cfg(test)]
mod tests {
    use axum::Router;
    use axum::body::Body;
    use axum::extract::{Extension, Path, Request as AnyRequest, State};
    use axum::handler::Handler;
    use axum::middleware::{Next, from_fn};
    use axum::routing::{self, MethodRouter, any};
    use tower::{Layer, ServiceExt};

    use super::super::{KeyExtractor, Keys as Inner, PartKey, RequestKeys, header, path_param};
    use super::*;
    use crate::LockKey;
    use crate::layer::axum::tests::{found, get, text};

    /// Returns a layer that answers with the keys that an extractor finds, asking it as `LockLayer`
    /// does.
    macro_rules! probe {
        ($key:expr) => {{
            let key = $key;
            from_fn(move |request: AnyRequest, _: Next| {
                let extraction = AsyncKeyExtractor::extract(&key, request);
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

    /// The rows of the documentation's table in which a route has matched.
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

    /// The same table, for requests that match no route.
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

    /// A method that the route lacks is answered with 405, but inside most layers.
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

    /// Around the router, no route has matched yet. The error says so, and no request passes
    /// unlocked.
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

    /// A route without the parameter is a mistake, unless the parameter is `optional`.
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

    /// A path parameter is checked like any other value from a client.
    #[tokio::test]
    async fn a_path_parameter_is_a_clients_value() {
        let router = |key: PartKey| Router::new().route("/orders/{id}", handler()).route_layer(probe!(key));
        let plain = router(path_param("id"));
        assert_eq!(get(&plain, "/orders/%7B1%7D").await.0, 400);
        assert_eq!(get(&plain, "/orders/%FF").await.0, 400);
        assert_eq!(get(&plain, &format!("/orders/{}", "a".repeat(257))).await.0, 400);
        let number = router(path_param("id").parsed::<u64>());
        assert_eq!(get(&number, "/orders/007").await, found("7"));
        assert_eq!(
            get(&number, "/orders/x").await,
            (400, "The path parameter `id` has the wrong format.".to_owned())
        );
        let expected = KeyExtractor::expected(&path_param("id")).map(Cow::into_owned);
        assert_eq!(expected.unwrap(), "the path parameter `id`");
    }

    /// Any extractor can make a key, or several; the layer passes its refusal on.
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

    /// The key covers the complete path that the client sent, also inside `nest`; or the route's
    /// pattern.
    #[tokio::test]
    async fn a_key_may_belong_to_a_path_or_a_route() {
        let request = |uri: &str| Request::builder().uri(uri).header("x", "k1").body(Body::empty()).unwrap();
        let inner = |key: PartKey| Router::new().route("/{id}", handler()).route_layer(probe!(key));
        let router = |key: PartKey| Router::new().nest("/a", inner(key.clone())).nest("/b", inner(key));
        let by_path = router(header("x").of_method_and_path());
        for (uri, key) in [("/a/1", "GET /a/1 k1"), ("/b/1", "GET /b/1 k1"), ("/b/2", "GET /b/2 k1")] {
            assert_eq!(text(by_path.clone().oneshot(request(uri)).await.unwrap()).await, found(key));
        }
        let by_route = router(header("x").of_route());
        for (uri, key) in
            [("/a/1", "GET /a/%7Bid%7D k1"), ("/b/1", "GET /b/%7Bid%7D k1"), ("/b/2", "GET /b/%7Bid%7D k1")]
        {
            assert_eq!(text(by_route.clone().oneshot(request(uri)).await.unwrap()).await, found(key));
        }
        let around = probe!(header("x").of_route()).layer(Router::new());
        let (status, detail) = text(around.oneshot(request("/a/1")).await.unwrap()).await;
        assert_eq!((status, detail.contains("`Router::route_layer`")), (500, true), "{detail}");
    }

    /// A path parameter can be combined with other extractors.
    #[tokio::test]
    async fn a_path_parameter_may_be_one_of_several() {
        let key = super::super::joined((path_param("tenant"), path_param("id"))).prefix("order:");
        let router = Router::new().route("/{tenant}/{id}", handler()).route_layer(probe!(key));
        assert_eq!(get(&router, "/acme/42").await, found("order:acme:42"));
        let key = super::super::first_of((header("x"), path_param("id")));
        let router = Router::new().route("/{id}", handler()).route_layer(probe!(key));
        assert_eq!(get(&router, "/42").await, found("42"));
    }
}
