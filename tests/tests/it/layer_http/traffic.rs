//! Many requests: one at a time for each key, whichever server they reach; in parallel for
//! different keys.

use axum::Router;
use axum::extract::Path;
use axum::routing::post;
use http::StatusCode;
use lock_runtime::layer::{HeldUntil, LockLayer};
use lock_runtime::{HeldLock, Kind, LockManager, testing};
use lock_tests::overlap::Report;
use lock_tests::{RedisServer, eventually};
use tokio::task::JoinSet;

use crate::layer_http::client::{Client, Problem, answered, text};
use crate::layer_http::recorded::Recorded;
use crate::layer_http::server::{Pieces, Server, Stage, order, orders};
use crate::layer_http::{LONG, SLACK, at_rest, manager, ms, over_both, soon, waiting};

over_both! {
    async fn requests_for_one_key_run_one_at_a_time_on_all_servers(version: Version) {
        const CLIENTS: usize = 4;
        const ROUNDS: usize = 15;
        let redis = RedisServer::start();
        let recorded = Recorded::new();
        let (mut managers, mut servers, mut clients) = (Vec::new(), Vec::new(), JoinSet::new());
        for _ in 0..2 {
            let locks = manager(&redis).await;
            let layer = LockLayer::new(locks.clone(), order()).wait(LONG);
            let server = Server::axum(recorded.routes().route_layer(layer)).await;
            for _ in 0..CLIENTS {
                let mut client = Client::connect(server.addr, version).await;
                clients.spawn(async move {
                    for round in 0..ROUNDS {
                        let path = format!("/orders/{}", round % 2);
                        assert_eq!(client.post(&path).await.status(), StatusCode::OK);
                    }
                });
            }
            managers.push(locks);
            servers.push(server);
        }
        while let Some(done) = soon("a client", clients.join_next()).await {
            done.unwrap();
        }
        let report = recorded.report();
        assert_eq!(report.total(), 2 * CLIENTS * ROUNDS);
        report.assert_clean();
        for locks in &managers {
            at_rest(locks, "order:0").await;
            at_rest(locks, "order:1").await;
        }
    }

    /// Shows that the checker of the tests above notices it when nothing is locked.
    async fn requests_that_are_not_locked_are_seen_to_overlap(version: Version) {
        let recorded = Recorded::slow(ms(200));
        let server = Server::axum(recorded.routes()).await;
        let mut clients = JoinSet::new();
        for _ in 0..6 {
            let mut client = Client::connect(server.addr, version).await;
            clients.spawn(async move { client.post("/orders/1").await });
        }
        while let Some(done) = soon("a client", clients.join_next()).await {
            assert_eq!(done.unwrap().status(), StatusCode::OK);
        }
        let Report { overlaps, .. } = recorded.report();
        assert!(!overlaps.is_empty());
    }

    async fn requests_for_different_keys_run_side_by_side(version: Version) {
        const KEYS: usize = 6;
        let redis = RedisServer::start();
        let stage = Stage::shut();
        let (mut managers, mut servers, mut clients, mut answers) = (vec![], vec![], vec![], vec![]);
        for of in 0..2 {
            let locks = manager(&redis).await;
            let server = Server::axum(orders(&stage).route_layer(LockLayer::new(locks.clone(), order()))).await;
            for key in (0..KEYS).filter(|key| key % 2 == of) {
                let mut client = Client::connect(server.addr, version).await;
                answers.push(client.start_post(&format!("/orders/{key}")).await);
                clients.push(client);
            }
            managers.push(locks);
            servers.push(server);
        }
        // All of them are inside at the same time: none can go on before.
        stage.has_entered(KEYS).await;
        assert_eq!(stage.inside(), KEYS);
        stage.let_through(KEYS);
        for answer in answers {
            assert_eq!(answered(answer).await.status(), StatusCode::OK);
        }
        for locks in &managers {
            at_rest(locks, "order:0").await;
        }
    }

    /// The release is in flight when the response goes out, and the next request queues behind it.
    async fn a_client_that_repeats_at_once_is_not_refused_by_its_own_request(version: Version) {
        const ROUNDS: usize = 200;
        let redis = RedisServer::start();
        let locks = manager(&redis).await;
        let whole = Router::new().route("/orders/{id}", post(async |Path(id): Path<String>| id));
        let stage = Stage::open();
        let pieces = Router::new().route(
            "/orders/{id}",
            post(async move |Path(id): Path<String>| {
                let (feed, body) = Pieces::new(&stage);
                feed.send(Ok(id.into())).unwrap();
                axum::body::Body::new(body)
            }),
        );
        let layer = || LockLayer::new(locks.clone(), order()).no_wait();
        let until_end = || layer().hold(HeldUntil::BodyEnd);
        let servers = [
            ("inline", Server::axum(whole.clone().route_layer(layer())).await),
            ("detached", Server::axum(whole.clone().route_layer(layer().detached())).await),
            ("until the end of a body", Server::axum(whole.route_layer(until_end())).await),
            ("until the end of a stream", Server::axum(pieces.clone().route_layer(until_end())).await),
            ("not until the end of a stream", Server::axum(pieces.route_layer(layer())).await),
        ];
        for (how, server) in servers {
            let mut client = Client::connect(server.addr, version).await;
            for round in 0..ROUNDS {
                let response = client.post("/orders/1").await;
                assert_eq!(response.status(), StatusCode::OK, "{how}, round {round}");
                assert_eq!(text(response).await, "1", "{how}, round {round}");
            }
        }
        at_rest(&locks, "order:1").await;
    }

    async fn readers_run_side_by_side_and_writers_alone(version: Version) {
        let redis = RedisServer::start();
        let (reading, writing) = (manager(&redis).await, manager(&redis).await);
        let (readers, writers) = (Stage::shut(), Stage::shut());
        let layer = |locks: &LockManager| LockLayer::new(locks.clone(), order()).wait(LONG).skip_methods([]);
        let reads = layer(&reading).kind(Kind::Read);
        let reads = Server::axum(orders(&readers).route_layer(reads)).await;
        let writes = layer(&writing).kind(Kind::Write);
        let writes = Server::axum(orders(&writers).route_layer(writes)).await;
        let (mut clients, mut answers) = (Vec::new(), Vec::new());
        for server in [&reads, &reads, &writes] {
            let mut client = Client::connect(server.addr, version).await;
            answers.push(client.start_post("/orders/1").await);
            clients.push(client);
            if answers.len() == 2 {
                readers.has_entered(2).await;
            }
        }
        waiting(&writing, 1).await;
        assert_eq!((readers.inside(), writers.entered()), (2, 0));
        readers.let_through(1);
        eventually(async || readers.finished() == 1, SLACK).await;
        assert_eq!(writers.entered(), 0, "one reader is still there");
        readers.let_through(1);
        writers.has_entered(1).await;
        assert_eq!(readers.inside(), 0);
        writers.let_through(1);
        for answer in answers {
            assert_eq!(answered(answer).await.status(), StatusCode::OK);
        }
        at_rest(&reading, "order:1").await;
        at_rest(&writing, "order:1").await;
    }

    async fn tokens_of_one_key_grow(version: Version) {
        let redis = RedisServer::start();
        let (locks, other) = (manager(&redis).await, manager(&redis).await);
        let handler = async |held: HeldLock| held.fencing_token().to_string();
        let routes = |locks| {
            Router::new().route("/orders/{id}", post(handler)).route_layer(LockLayer::new(locks, order()))
        };
        let servers = [Server::axum(routes(locks.clone())).await, Server::axum(routes(other.clone())).await];
        let mut last = 0;
        for round in 0..20 {
            let mut client = Client::connect(servers[round % 2].addr, version).await;
            let token: u64 = text(client.post("/orders/1").await).await.parse().unwrap();
            assert!(token > last, "{token} after {last}");
            last = token;
        }
        at_rest(&locks, "order:1").await;
        at_rest(&other, "order:1").await;
    }
}

/// They reach the server all at once, and go through the one service of their connection.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_of_one_connection_exclude_each_other() {
    const REQUESTS: usize = 20;
    let redis = RedisServer::start();
    let locks = manager(&redis).await;
    let recorded = Recorded::new();
    let layer = LockLayer::new(locks.clone(), order()).wait(LONG);
    let server = Server::axum(recorded.routes().route_layer(layer)).await;
    let mut client = Client::connect(server.addr, crate::layer_http::client::Version::Http2).await;
    let mut answers = Vec::new();
    for _ in 0..REQUESTS {
        answers.push(client.start_post("/orders/1").await);
    }
    for answer in answers {
        assert_eq!(answered(answer).await.status(), StatusCode::OK);
    }
    let report = recorded.report();
    assert_eq!(report.total(), REQUESTS);
    report.assert_clean();
    at_rest(&locks, "order:1").await;
}

/// Requests beyond the limit of waiters are refused while the lock is taken; all others get it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_a_thousand_requests_for_one_key_as_many_wait_as_may() {
    const CONNECTIONS: usize = 10;
    const REQUESTS: usize = 1000;
    const PLACES: usize = 50;
    let redis = RedisServer::start();
    let (locks, other) = (manager(&redis).await, manager(&redis).await);
    let stage = Stage::open();
    let layer = LockLayer::new(locks.clone(), order()).wait(LONG).max_waiters(PLACES);
    let server = Server::axum(orders(&stage).route_layer(layer)).await;
    let held = other.mutex("order:1").acquire().await.unwrap();
    let (mut clients, mut answers) = (Vec::new(), JoinSet::new());
    for _ in 0..CONNECTIONS {
        let mut client = Client::connect(server.addr, crate::layer_http::client::Version::Http2).await;
        for _ in 0..REQUESTS / CONNECTIONS {
            let answer = client.start_post("/orders/1").await;
            answers.spawn(async move { answered(answer).await });
        }
        clients.push(client);
    }
    for _ in 0..REQUESTS - PLACES {
        let refused = soon("a refusal", answers.join_next()).await.unwrap().unwrap();
        Problem::of(refused).await.assert_is(429, "too_many_waiters");
    }
    assert_eq!((stage.entered(), testing::leftovers(&locks).waiters), (0, PLACES));
    held.release().await.unwrap();
    while let Some(served) = soon("an answer", answers.join_next()).await {
        assert_eq!(served.unwrap().status(), StatusCode::OK);
    }
    assert_eq!(stage.finished(), PLACES);
    at_rest(&locks, "order:1").await;
}
