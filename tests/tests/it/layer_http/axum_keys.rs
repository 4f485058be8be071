//! Keys from path parameters and extractors, in a real router: `route_layer`,
//! `MethodRouter::layer`, nesting.

use axum::Router;
use axum::extract::{FromRef, FromRequestParts, Path, State};
use axum::routing::{get, post};
use http::request::Parts;
use http::{Method, StatusCode};
use lock_runtime::HeldLock;
use lock_runtime::layer::{LockLayer, MissingKey};
use lock_runtime::layer::{extractor, extractor_with_state, path_param};
use lock_tests::RedisServer;

use crate::layer_http::client::{Client, Problem, text};
use crate::layer_http::plain_hyper::serve;
use crate::layer_http::server::Server;
use crate::layer_http::{at_rest, manager, over_both};

async fn key_of(held: Option<HeldLock>) -> String {
    held.map_or_else(|| "none".to_owned(), |held| held.key().as_str().to_owned())
}

over_both! {
    async fn path_parameters_are_known_inside_of_the_router(version: Version) {
        let redis = RedisServer::start();
        let (locks, other) = (manager(&redis).await, manager(&redis).await);
        let layer = || LockLayer::new(locks.clone(), path_param("id").prefix("order:")).no_wait();
        let by_route_layer = Router::new()
            .route("/orders/{id}", post(key_of).get(key_of))
            .route_layer(layer())
            .route("/health", post(key_of));
        // One method of a route is locked, the other one is free.
        let by_method =
            Router::new().route("/orders/{id}", post(key_of).layer(layer()).put(key_of)).route("/health", post(key_of));
        let nested = Router::new()
            .nest("/shops/{shop}", Router::new().route("/orders/{id}", post(key_of)).route_layer(layer()));
        for (routes, path) in [(by_route_layer, ""), (by_method, ""), (nested, "/shops/7")] {
            let server = Server::axum(routes).await;
            let mut client = Client::connect(server.addr, version).await;
            assert_eq!(text(client.post(&format!("{path}/orders/42")).await).await, "order:42");
            // As the handler reads it.
            assert_eq!(text(client.post(&format!("{path}/orders/a%2Fb%20c")).await).await, "order:a/b c");
            Problem::of(client.post(&format!("{path}/orders/%7B42%7D")).await).await.assert_is(400, "bad_key");
            assert_eq!(client.post("/nowhere").await.status(), StatusCode::NOT_FOUND);

            let held = other.mutex("order:42").acquire().await.unwrap();
            Problem::of(client.post(&format!("{path}/orders/42")).await).await.assert_is(409, "busy");
            held.release().await.unwrap();
            if path.is_empty() {
                assert_eq!(text(client.post("/health").await).await, "none");
            }
        }
        at_rest(&locks, "order:42").await;
    }

    async fn methods_are_locked_one_by_one(version: Version) {
        let redis = RedisServer::start();
        let (locks, other) = (manager(&redis).await, manager(&redis).await);
        let layer = LockLayer::new(locks.clone(), path_param("id").prefix("order:")).no_wait();
        let routes = post(key_of).get(key_of).layer(layer.clone()).put(key_of);
        let server = Server::axum(Router::new().route("/orders/{id}", routes)).await;
        let all = LockLayer::new(locks.clone(), path_param("id").prefix("order:")).no_wait().skip_methods([]);
        let strict = Server::axum(Router::new().route("/orders/{id}", get(key_of).layer(all))).await;
        let held = other.mutex("order:1").acquire().await.unwrap();
        let mut client = Client::connect(server.addr, version).await;
        assert_eq!(client.post("/orders/1").await.status(), StatusCode::CONFLICT);
        // GET is skipped, and PUT was added after the layer.
        assert_eq!(text(client.get("/orders/1").await).await, "none");
        let put = client.request(Method::PUT, "/orders/1");
        assert_eq!(text(client.send(put).await.unwrap()).await, "none");
        let mut client = Client::connect(strict.addr, version).await;
        assert_eq!(client.get("/orders/1").await.status(), StatusCode::CONFLICT);
        held.release().await.unwrap();
        assert_eq!(text(client.get("/orders/1").await).await, "order:1");
        at_rest(&locks, "order:1").await;
    }

    /// If these requests passed, they would run without the lock.
    async fn a_layer_in_the_wrong_place_is_500_and_not_explained_to_clients(version: Version) {
        let redis = RedisServer::start();
        let locks = manager(&redis).await;
        let layer = || LockLayer::new(locks.clone(), path_param("id"));
        let order = || Router::new().route("/orders/{id}", post(key_of));
        let no_parameter = Router::new().route("/orders", post(key_of)).route_layer(layer());
        // It also gets requests that match no route.
        let all = order().layer(layer());
        let around = tower::Layer::layer(&layer(), order());
        for (server, path) in [
            (Server::axum(no_parameter).await, "/orders"),
            (Server::axum(all).await, "/nowhere"),
            (serve(around).await, "/orders/1"),
        ] {
            let mut client = Client::connect(server.addr, version).await;
            let problem = Problem::of(client.post(path).await).await;
            problem.assert_is(500, "misconfigured");
            assert!(!problem.detail.contains("path parameter"), "what to do is in the log: {problem:?}");
        }
        let keys = path_param("id").optional();
        let layer = LockLayer::new(locks.clone(), keys).on_missing_key(MissingKey::Skip);
        let server = Server::axum(Router::new().route("/orders", post(key_of)).route_layer(layer)).await;
        let mut client = Client::connect(server.addr, version).await;
        assert_eq!(text(client.post("/orders").await).await, "none");
    }

    async fn extractors_of_axum_make_keys(version: Version) {
        let redis = RedisServer::start();
        let (locks, other) = (manager(&redis).await, manager(&redis).await);
        let keys = extractor(|Path((shop, order)): Path<(u32, u64)>| format!("order:{shop}:{order}"));
        let routes = Router::new()
            .route("/shops/{shop}/orders/{id}", post(key_of))
            .route_layer(LockLayer::new_async(locks.clone(), keys).no_wait());
        let server = Server::axum(routes).await;
        let mut client = Client::connect(server.addr, version).await;
        assert_eq!(text(client.post("/shops/7/orders/42").await).await, "order:7:42");
        // As a number is written, and not as the client writes it.
        assert_eq!(text(client.post("/shops/07/orders/042").await).await, "order:7:42");
        let problem = Problem::of(client.post("/shops/7/orders/forty-two").await).await;
        problem.assert_is(400, "bad_key");
        assert!(!problem.detail.contains("forty-two"), "{problem:?}");
        let held = other.mutex("order:7:42").acquire().await.unwrap();
        Problem::of(client.post("/shops/7/orders/42").await).await.assert_is(409, "busy");
        held.release().await.unwrap();
        at_rest(&locks, "order:7:42").await;
    }

    async fn extractors_with_state_make_keys_and_say_who_may_not(version: Version) {
        let redis = RedisServer::start();
        let locks = manager(&redis).await;
        let app = App { users: Users(vec!["ann", "bob"]) };
        let keys = extractor_with_state(app.clone(), |User(name)| format!("cart:{name}"));
        let routes = Router::new()
            .route("/cart", post(async |State(app): State<App>, held: HeldLock| {
                format!("{} of {}", held.key().as_str(), app.users.0.len())
            }))
            .route_layer(LockLayer::new_async(locks.clone(), keys))
            .with_state(app);
        let server = Server::axum(routes).await;
        let mut client = Client::connect(server.addr, version).await;
        let request = client.request(Method::POST, "/cart").header("x-user", "ann");
        assert_eq!(text(client.send(request).await.unwrap()).await, "cart:ann of 2");
        let request = client.request(Method::POST, "/cart").header("x-user", "eve");
        Problem::of(client.send(request).await.unwrap()).await.assert_is(401, "bad_key");
        at_rest(&locks, "cart:ann").await;
    }
}

#[derive(Clone)]
struct App {
    users: Users,
}

#[derive(Clone)]
struct Users(Vec<&'static str>);

impl FromRef<App> for Users {
    fn from_ref(app: &App) -> Self {
        app.users.clone()
    }
}

/// A user that the application knows.
struct User(String);

impl FromRequestParts<App> for User {
    type Rejection = StatusCode;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, StatusCode> {
        // Stands for a lookup.
        tokio::task::yield_now().await;
        let name = parts.headers.get("x-user").and_then(|name| name.to_str().ok()).unwrap_or_default();
        let Users(known) = Users::from_ref(app);
        if known.contains(&name) { Ok(Self(name.to_owned())) } else { Err(StatusCode::UNAUTHORIZED) }
    }
}
