//! The table of refusals in the module's documentation, row by row, as a client sees it.

use std::time::Duration;

use http::request::Parts;
use http::{Method, StatusCode};
use lock_runtime::layer::{LockLayer, Rejection, StoreDown, Unlocked, header};
use lock_runtime::{LockKey, testing};
use lock_tests::{Helper, RedisServer};

use crate::layer_http::client::{Client, Problem, answered};
use crate::layer_http::server::{Server, Stage, order, orders};

use crate::layer_http::{LONG, SLACK, at_rest, manager, manager_with, ms, over_both, queued, waiting};

over_both! {
    async fn busy_is_409(version: Version) {
        let redis = RedisServer::start();
        let locks = manager(&redis).await;
        let stage = Stage::open();
        let server = Server::axum(orders(&stage).route_layer(LockLayer::new(locks.clone(), order()).no_wait())).await;
        let mut client = Client::connect(server.addr, version).await;

        // Another process holds it, with a lease that is renewed: it says little about when the
        // lock will be free.
        let mut holder = Helper::spawn(env!("CARGO_BIN_EXE_holder"), [redis.url()]);
        assert_eq!(holder.line(SLACK), "ready");
        assert!(holder.ask("acquire order:1").starts_with("acquired"));
        let problem = Problem::of(client.post("/orders/1").await).await;
        problem.assert_is(409, "busy");
        assert!(matches!(problem.retry_after, Some(3..=5)), "{problem:?}");
        assert!(problem.detail.contains("Nothing was done"), "{problem:?}");

        // Another order is free, and so is this one after the release.
        assert_eq!(client.post("/orders/2").await.status(), StatusCode::OK);
        assert_eq!(holder.ask("release order:1"), "released");
        assert_eq!(client.post("/orders/1").await.status(), StatusCode::OK);
        assert_eq!((stage.entered(), stage.finished()), (2, 2));

        // A short lease has less time left than that.
        assert!(holder.ask("acquire order:1 lease=3000").starts_with("acquired"));
        let problem = Problem::of(client.post("/orders/1").await).await;
        problem.assert_is(409, "busy");
        assert!(matches!(problem.retry_after, Some(1..=3)), "{problem:?}");
        holder.kill();
        at_rest(&locks, "order:1").await;
    }

    async fn the_longest_retry_after_can_be_set(version: Version) {
        let redis = RedisServer::start();
        let (locks, other) = (manager(&redis).await, manager(&redis).await);
        let held = other.mutex("order:1").lease(Duration::from_secs(3600)).acquire().await.unwrap();
        let layer = LockLayer::new(locks, order()).no_wait().longest_retry_after(2 * held.remaining());
        let server = Server::axum(orders(&Stage::open()).route_layer(layer)).await;
        let mut client = Client::connect(server.addr, version).await;
        let problem = Problem::of(client.post("/orders/1").await).await;
        problem.assert_is(409, "busy");
        assert!(matches!(problem.retry_after, Some(1500..=3600)), "{problem:?}");
    }

    async fn timed_out_is_429(version: Version) {
        let redis = RedisServer::start();
        let (locks, other) = (manager(&redis).await, manager(&redis).await);
        let stage = Stage::open();
        let server = Server::axum(orders(&stage).route_layer(LockLayer::new(locks.clone(), order()).wait(ms(300)))).await;
        let mut client = Client::connect(server.addr, version).await;
        let held = other.mutex("order:1").acquire().await.unwrap();
        let start = tokio::time::Instant::now();
        let problem = Problem::of(client.post("/orders/1").await).await;
        assert!(start.elapsed() >= ms(300), "{:?}", start.elapsed());
        problem.assert_is(429, "timed_out");
        assert!(matches!(problem.retry_after, Some(3..=5)), "{problem:?}");
        assert_eq!(stage.entered(), 0);
        held.release().await.unwrap();
        at_rest(&locks, "order:1").await;
    }

    async fn one_waiter_too_many_is_429(version: Version) {
        let redis = RedisServer::start();
        let other = manager(&redis).await;
        let layers = [
            ("of the layer", manager(&redis).await, Some(1), None),
            ("of the layer for a key", manager(&redis).await, None, Some(1)),
            ("of the manager", manager_with(&redis, |builder| builder.max_waiters(1)).await, None, None),
            (
                "of the manager for a key",
                manager_with(&redis, |builder| builder.max_waiters_per_key(1)).await,
                None,
                None,
            ),
        ];
        for (cap, locks, all, per_key) in layers {
            let held = other.mutex("order:1").wait(LONG).acquire().await.unwrap();
            let mut layer = LockLayer::new(locks.clone(), order()).wait(LONG);
            if let Some(cap) = all {
                layer = layer.max_waiters(cap);
            }
            if let Some(cap) = per_key {
                layer = layer.max_waiters_per_key(cap);
            }
            let stage = Stage::open();
            let server = Server::axum(orders(&stage).route_layer(layer)).await;
            let mut first = Client::connect(server.addr, version).await;
            let mut second = Client::connect(server.addr, version).await;
            let waits = first.start_post("/orders/1").await;
            queued(&locks).await;

            let problem = Problem::of(second.post("/orders/1").await).await;
            problem.assert_is(429, "too_many_waiters");
            assert!(matches!(problem.retry_after, Some(1..=5)), "{cap}: {problem:?}");
            assert_eq!((stage.entered(), waits.is_finished()), (0, false), "{cap}");

            held.release().await.unwrap();
            assert_eq!(answered(waits).await.status(), StatusCode::OK, "{cap}");
            // The place is free again.
            assert_eq!(second.post("/orders/1").await.status(), StatusCode::OK, "{cap}");
            at_rest(&locks, "order:1").await;
        }
    }

    async fn store_down_is_503(version: Version) {
        let mut redis = RedisServer::start();
        let locks = manager(&redis).await;
        let stage = Stage::open();
        let at_once = Server::axum(orders(&stage).route_layer(LockLayer::new(locks.clone(), order()).no_wait())).await;
        let waits = Server::axum(orders(&stage).route_layer(LockLayer::new(locks.clone(), order()).wait(ms(300)))).await;
        for server in [&at_once, &waits] {
            assert_eq!(Client::connect(server.addr, version).await.post("/orders/1").await.status(), StatusCode::OK);
        }
        redis.kill();
        for server in [&at_once, &waits] {
            let mut client = Client::connect(server.addr, version).await;
            let problem = Problem::of(client.post("/orders/1").await).await;
            problem.assert_is(503, "store_down");
            assert!(matches!(problem.retry_after, Some(2..=3)), "{problem:?}");
            // A request that needs no lock is served.
            assert_eq!(client.get("/orders/1").await.status(), StatusCode::OK);
        }
        assert_eq!(stage.entered(), 4);
    }

    async fn store_down_lets_pass_if_told_so_and_says_it(version: Version) {
        let mut redis = RedisServer::start();
        let locks = manager(&redis).await;
        let handler = async |request: axum::extract::Request| {
            let extensions = request.extensions();
            let unlocked = extensions.get::<Unlocked>().is_some();
            format!("unlocked {unlocked}, held {}", extensions.get::<lock_runtime::HeldLock>().is_some())
        };
        // Outside of the layer, to see its mark in the extensions of the response.
        let marked = axum::middleware::map_response(async |response: axum::response::Response| {
            let marked = response.extensions().get::<Unlocked>().is_some();
            ([("x-unlocked", marked.to_string())], response)
        });
        let layer = LockLayer::new(locks, order()).no_wait().on_store_down(StoreDown::PassThrough);
        let routes = axum::Router::new()
            .route("/orders/{id}", axum::routing::post(handler))
            .route_layer(layer)
            .layer(marked);
        let server = Server::axum(routes).await;
        let mut client = Client::connect(server.addr, version).await;
        let locked = client.post("/orders/1").await;
        assert_eq!((locked.status(), &locked.headers()["x-unlocked"]), (StatusCode::OK, &"false".parse().unwrap()));
        assert_eq!(crate::layer_http::client::text(locked).await, "unlocked false, held true");
        redis.kill();
        let passed = client.post("/orders/1").await;
        assert_eq!((passed.status(), &passed.headers()["x-unlocked"]), (StatusCode::OK, &"true".parse().unwrap()));
        assert_eq!(crate::layer_http::client::text(passed).await, "unlocked true, held false");
    }

    async fn shut_down_is_503(version: Version) {
        let redis = RedisServer::start();
        let (locks, other) = (manager(&redis).await, manager(&redis).await);
        let stage = Stage::open();
        let layer = LockLayer::new(locks.clone(), order()).wait(LONG);
        let server = Server::axum(orders(&stage).route_layer(layer)).await;
        let mut client = Client::connect(server.addr, version).await;
        let mut waiter = Client::connect(server.addr, version).await;
        let held = other.mutex("order:1").acquire().await.unwrap();
        let waits = waiter.start_post("/orders/1").await;
        waiting(&locks, 1).await;
        locks.shutdown(SLACK).await.unwrap();
        // The request that waited, and a new one.
        for answer in [answered(waits).await, client.post("/orders/2").await] {
            let problem = Problem::of(answer).await;
            problem.assert_is(503, "shut_down");
            assert!(matches!(problem.retry_after, Some(2..=3)), "{problem:?}");
        }
        assert_eq!(stage.entered(), 0);
        held.release().await.unwrap();
        at_rest(&other, "order:1").await;
        let left = testing::leftovers(&locks);
        assert_eq!((left.keys, left.waiters), (0, 0));
    }

    async fn lost_is_500(version: Version) {
        let redis = RedisServer::start();
        // Renewed every second, so the loss is noticed then.
        let locks = manager_with(&redis, |builder| builder.lease(ms(3000))).await;
        let other = manager(&redis).await;
        let stage = Stage::shut();
        let server = Server::axum(orders(&stage).route_layer(LockLayer::new(locks.clone(), order()))).await;
        let mut client = Client::connect(server.addr, version).await;
        let answer = client.start_post("/orders/1").await;
        stage.has_entered(1).await;
        assert!(other.force_release("order:1").await.unwrap());
        let theirs = other.mutex("order:1").wait(LONG).acquire().await.unwrap();
        let problem = Problem::of(answered(answer).await).await;
        problem.assert_is(500, "lost");
        // It may have been done.
        assert_eq!(problem.retry_after, None);
        assert_eq!((stage.dropped(), stage.finished()), (1, 0));
        // The next owner's lock is left alone.
        assert!(other.status("order:1").await.unwrap().is_locked() && !theirs.is_lost());
        theirs.release().await.unwrap();
        stage.let_through(1);
        assert_eq!(client.post("/orders/1").await.status(), StatusCode::OK);
        at_rest(&locks, "order:1").await;
    }

    async fn a_bad_or_missing_key_is_400(version: Version) {
        let redis = RedisServer::start();
        let locks = manager(&redis).await;
        let stage = Stage::open();
        let by_header = header("x-order").prefix("order:").parsed::<u64>();
        let server = Server::axum(orders(&stage).route_layer(LockLayer::new(locks.clone(), by_header))).await;
        let mut client = Client::connect(server.addr, version).await;
        let missing = Problem::of(client.post("/orders/1").await).await;
        missing.assert_is(400, "missing_key");
        assert_eq!(missing.detail, "This request needs the header `x-order`.");
        for (value, hint) in [("seven", "wrong format"), ("{7}", "wrong format"), (&"7".repeat(300), "longer than 256")] {
            let request = client.request(Method::POST, "/orders/1").header("x-order", value);
            let bad = Problem::of(client.send(request).await.unwrap()).await;
            bad.assert_is(400, "bad_key");
            assert!(bad.detail.contains("he header `x-order`") && bad.detail.contains(hint), "{bad:?}");
            assert_eq!((missing.retry_after, bad.retry_after), (None, None));
        }
        // Twice: the handler may read the other one.
        let request = client.request(Method::POST, "/orders/1").header("x-order", "7").header("x-order", "8");
        Problem::of(client.send(request).await.unwrap()).await.assert_is(400, "bad_key");
        assert_eq!(stage.entered(), 0);
        let request = client.request(Method::POST, "/orders/1").header("x-order", "7");
        assert_eq!(client.send(request).await.unwrap().status(), StatusCode::OK);

        // A closure of the user's, with a custom status.
        let closure = |_: &http::request::Parts| -> Result<String, Rejection> {
            Err(Rejection::with_status(StatusCode::FORBIDDEN, "this order is not \"yours\""))
        };
        let server = Server::axum(orders(&stage).route_layer(LockLayer::new(locks.clone(), closure))).await;
        let problem = Problem::of(Client::connect(server.addr, version).await.post("/orders/1").await).await;
        problem.assert_is(403, "bad_key");
        assert_eq!(problem.detail, "this order is not \"yours\"");
        at_rest(&locks, "order:7").await;
    }

    async fn misconfigured_is_500(version: Version) {
        let redis = RedisServer::start();
        let locks = manager(&redis).await;
        let stage = Stage::open();
        // Foreign data in place of a lock: never waited for, never deleted.
        redis.cli(&["SET", "lock:order:1", "theirs"]);
        let server = Server::axum(orders(&stage).route_layer(LockLayer::new(locks.clone(), order()).wait(LONG))).await;
        let mut client = Client::connect(server.addr, version).await;
        let problem = Problem::of(client.post("/orders/1").await).await;
        problem.assert_is(500, "misconfigured");
        assert_eq!(problem.retry_after, None);
        assert_eq!(redis.cli(&["GET", "lock:order:1"]), "theirs");
        assert_eq!(client.post("/orders/2").await.status(), StatusCode::OK);

        // A mistake that only shows with a request.
        let mistake = |_: &Parts| Err::<LockKey, _>(Rejection::with_status(StatusCode::INTERNAL_SERVER_ERROR, "No."));
        let server = Server::axum(orders(&stage).route_layer(LockLayer::new(locks.clone(), mistake))).await;
        Problem::of(Client::connect(server.addr, version).await.post("/orders/1").await)
            .await
            .assert_is(500, "misconfigured");
        assert_eq!(stage.entered(), 1);
    }
}
