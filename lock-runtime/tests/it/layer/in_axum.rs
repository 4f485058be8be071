//! The layer in every place where axum takes one, with path parameters, extractors and errors.
#![cfg(feature = "axum")]

use std::time::Duration;

use axum::body::Body;
use axum::extract::{Path, RawQuery};
use axum::http::{Method, Request, StatusCode};
use axum::response::Response;
use axum::routing::{any, get, post};
use axum::{Router, middleware};
use http_body_util::BodyExt;
use lock_runtime::layer::{HeldUntil, LockLayer, MissingKey, path_segment};
use lock_runtime::layer::{extractor, extractor_with_state, path_param};
use lock_runtime::testing::{leftovers, memory_manager};
use lock_runtime::{HeldLock, LockError, LockManager};
use tower::{ServiceBuilder, ServiceExt};

/// Returns the key under which the handler runs.
async fn key(held: Option<HeldLock>) -> String {
    held.map_or("none".to_owned(), |held| held.key().as_str().to_owned())
}

async fn sent(router: &Router, method: Method, path: &str) -> (StatusCode, String) {
    let request = Request::builder().method(method).uri(path).body(Body::empty()).unwrap();
    let response: Response = router.clone().oneshot(request).await.unwrap();
    let status = response.status();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    (status, String::from_utf8(body.to_vec()).unwrap())
}

async fn posted(router: &Router, path: &str) -> (StatusCode, String) {
    sent(router, Method::POST, path).await
}

fn is(key: &str) -> (StatusCode, String) {
    (StatusCode::OK, key.to_owned())
}

#[tokio::test(start_paused = true)]
async fn path_parameters_are_known_inside_of_the_router() {
    let locks = memory_manager();
    let layer = || LockLayer::new(locks.clone(), path_param("id").prefix("order:"));
    let routes = || Router::new().route("/orders/{id}", any(key));

    let route_layer = routes().route_layer(layer());
    assert_eq!(posted(&route_layer, "/orders/42").await, is("order:42"));
    assert_eq!(posted(&route_layer, "/orders/a%20b").await, is("order:a b"), "decoded");
    assert_eq!(sent(&route_layer, Method::GET, "/orders/42").await, is("none"));
    assert_eq!(posted(&route_layer, "/elsewhere").await.0, StatusCode::NOT_FOUND);

    let of_method = Router::new().route("/orders/{id}", post(key).layer(layer()).get(key));
    assert_eq!(posted(&of_method, "/orders/42").await, is("order:42"));
    assert_eq!(sent(&of_method, Method::GET, "/orders/42").await, is("none"));
    let of_route = Router::new().route("/orders/{id}", post(key).route_layer(layer()));
    assert_eq!(posted(&of_route, "/orders/42").await, is("order:42"));
    assert_eq!(sent(&of_route, Method::PUT, "/orders/42").await.0, StatusCode::METHOD_NOT_ALLOWED);

    // Requests that match no route pass this layer, too, and have no parameter.
    let whole = routes().layer(layer());
    assert_eq!(posted(&whole, "/orders/42").await, is("order:42"));
    assert_eq!(posted(&whole, "/elsewhere").await.0, StatusCode::INTERNAL_SERVER_ERROR);

    let nested = Router::new().nest("/shops/{shop}", route_layer.clone());
    assert_eq!(posted(&nested, "/shops/7/orders/42").await, is("order:42"));
    assert_eq!(leftovers(&locks).waiters, 0);
}

#[tokio::test(start_paused = true)]
async fn a_route_without_the_parameter_is_not_let_through() {
    let locks = memory_manager();
    let routes = || Router::new().route("/orders/{id}", post(key)).route("/sum", post(key));
    let strict = routes().route_layer(LockLayer::new(locks.clone(), path_param("id")));
    let (status, told) = posted(&strict, "/sum").await;
    assert_eq!(status, StatusCode::INTERNAL_SERVER_ERROR);
    assert!(!told.contains("optional"), "what to do about it is in the log: {told}");
    let optional = LockLayer::new(locks, path_param("id").optional()).on_missing_key(MissingKey::Skip);
    let lenient = routes().route_layer(optional);
    assert_eq!(posted(&lenient, "/sum").await, is("none"));
    assert_eq!(posted(&lenient, "/orders/42").await, is("42"));
}

#[tokio::test(start_paused = true)]
async fn around_the_router_everything_else_is_known() {
    let locks = memory_manager();
    let routes = Router::new().route("/orders/{id}", post(key));
    let around = |layer| ServiceBuilder::new().layer(layer).service(routes.clone());
    let by_segment = around(LockLayer::new(locks.clone(), path_segment(1)));
    let request = || Request::post("/orders/42").body(Body::empty()).unwrap();
    let response = by_segment.oneshot(request()).await.unwrap();
    assert_eq!(response.into_body().collect().await.unwrap().to_bytes(), "42");
    let by_parameter = LockLayer::new(locks, path_param("id"));
    let response =
        ServiceBuilder::new().layer(by_parameter).service(routes.clone()).oneshot(request()).await.unwrap();
    assert_eq!(response.status(), StatusCode::INTERNAL_SERVER_ERROR);
}

#[tokio::test(start_paused = true)]
async fn extractors_make_keys() {
    #[derive(Clone)]
    struct Shop(&'static str);
    let locks = memory_manager();
    let by_two = extractor(|Path((shop, order)): Path<(u32, u64)>| format!("{shop}:{order}"));
    let router = Router::new()
        .route("/shops/{shop}/orders/{order}", post(key))
        .route_layer(LockLayer::new_async(locks.clone(), by_two));
    assert_eq!(posted(&router, "/shops/7/orders/42").await, is("7:42"));
    let (status, told) = posted(&router, "/shops/seven/orders/42").await;
    assert_eq!(status, StatusCode::BAD_REQUEST);
    assert!(!told.contains("seven") && !told.contains("u32"), "{told}");

    let by_state =
        extractor_with_state(Shop("corner"), |axum::extract::State(shop): axum::extract::State<Shop>| {
            format!("shop:{}", shop.0)
        });
    let router =
        Router::new().route("/", post(key)).route_layer(LockLayer::new_async(locks.clone(), by_state));
    assert_eq!(posted(&router, "/").await, is("shop:corner"));

    let by_query = extractor(|RawQuery(query): RawQuery| {
        query.map(|query| query.split('&').map(str::to_owned).collect::<Vec<_>>())
    });
    let router = Router::new().route("/", post(key)).route_layer(LockLayer::new_async(locks, by_query));
    assert_eq!(posted(&router, "/?b&a").await, is("a"), "the first one of two");
    assert_eq!(posted(&router, "/").await.0, StatusCode::BAD_REQUEST);
}

#[tokio::test(start_paused = true)]
async fn a_handler_that_needs_the_lock_is_not_run_without() {
    let locks = memory_manager();
    let token = async |held: HeldLock| held.fencing_token().to_string();
    let router =
        Router::new().route("/{id}", any(token)).route_layer(LockLayer::new(locks, path_param("id")));
    assert_eq!(posted(&router, "/42").await.0, StatusCode::OK);
    let (status, told) = sent(&router, Method::GET, "/42").await;
    assert_eq!(status, StatusCode::INTERNAL_SERVER_ERROR);
    assert!(!told.contains("LockLayer"), "what to do about it is in the log: {told}");
}

/// Errors of annotated functions, returned with `?`.
#[tokio::test(start_paused = true)]
async fn errors_are_responses() {
    let locks = memory_manager();
    let _taken = locks.mutex("secret").acquire().await.unwrap();
    let handler = {
        let locks = locks.clone();
        async move || -> Result<String, LockError> {
            locks.mutex("secret").no_wait().with(async |_| "done".to_owned()).await
        }
    };
    let (status, told) = sent(&Router::new().route("/", get(handler)), Method::GET, "/").await;
    assert_eq!(status, StatusCode::CONFLICT);
    assert!(told.contains("urn:problem-type:lock:busy") && !told.contains("secret"), "{told}");
}

/// axum middleware around and inside the layer, and axum's own bodies, locked to their end.
#[tokio::test(start_paused = true)]
async fn with_middleware_and_streams() {
    async fn logs(request: axum::extract::Request, next: middleware::Next) -> Response {
        let seen = request.extensions().get::<HeldLock>().is_some();
        let response = next.run(request).await;
        assert!(response.extensions().get::<HeldLock>().is_some(), "in the response on the way out");
        assert!(!seen || response.extensions().get::<HeldLock>().unwrap().is_held());
        response
    }
    fn serve(locks: &LockManager) -> Router {
        let layer = LockLayer::new(locks.clone(), path_param("id"))
            .hold(HeldUntil::BodyEnd)
            .wait(Duration::from_secs(1));
        Router::new()
            .route(
                "/{id}",
                post(async || {
                    Body::from_stream(
                        http_body_util::BodyStream::new(Body::from("streamed")).into_data_stream(),
                    )
                }),
            )
            .route_layer(layer)
            .route_layer(middleware::from_fn(logs))
    }
    let locks = memory_manager();
    let router = serve(&locks);
    let request = Request::post("/42").body(Body::empty()).unwrap();
    let response = router.clone().oneshot(request).await.unwrap();
    assert!(locks.status("42").await.unwrap().is_locked(), "the body is to be sent yet");
    assert_eq!(response.into_body().collect().await.unwrap().to_bytes(), "streamed");
    assert_eq!(posted(&router, "/42").await, is("streamed"));
}
