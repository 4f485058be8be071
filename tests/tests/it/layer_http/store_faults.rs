//! A store that goes away and comes back in the middle of traffic.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use http::StatusCode;
use lock_runtime::layer::{LockLayer, StoreDown};
use lock_runtime::{LockManager, testing};
use lock_tests::redis::Data;
use lock_tests::{RedisServer, eventually};
use tokio::task::JoinSet;

use crate::layer_http::client::{Client, Problem, Version, answered};
use crate::layer_http::recorded::Recorded;
use crate::layer_http::server::{Server, Stage, order, orders};
use crate::layer_http::{LONG, SLACK, at_rest, manager, manager_with, ms, over_both, soon, waiting};

/// Options with which every acknowledged write is on disk, so the server may be killed.
const WRITTEN_DOWN: [&str; 4] = ["--appendonly", "yes", "--appendfsync", "always"];

/// Clients that repeat their requests until they are told to stop.
struct Traffic {
    clients: JoinSet<()>,
    counts: Arc<Counts>,
}

#[derive(Default)]
struct Counts {
    stop: AtomicBool,
    served: AtomicUsize,
    refused: AtomicUsize,
}

impl Traffic {
    async fn start(servers: &[Server], version: Version, clients_each: usize) -> Self {
        let counts = Arc::<Counts>::default();
        let mut clients = JoinSet::new();
        for (at, server) in servers.iter().cycle().take(servers.len() * clients_each).enumerate() {
            let client = Client::connect(server.addr, version).await;
            clients.spawn(repeat(client, format!("/orders/{}", at / servers.len() % 2), counts.clone()));
        }
        Self { clients, counts }
    }

    fn served(&self) -> usize {
        self.counts.served.load(Ordering::SeqCst)
    }

    fn refused(&self) -> usize {
        self.counts.refused.load(Ordering::SeqCst)
    }

    async fn serves(&self, more: usize) {
        let count = self.served() + more;
        eventually(async || self.served() >= count, SLACK).await;
    }

    async fn refuses(&self, more: usize) {
        let count = self.refused() + more;
        eventually(async || self.refused() >= count, SLACK).await;
    }

    /// Stops when every client has an answer to its last request.
    async fn stop(mut self) {
        self.counts.stop.store(true, Ordering::SeqCst);
        while let Some(client) = soon("a client", self.clients.join_next()).await {
            client.unwrap();
        }
    }
}

async fn repeat(mut client: Client, path: String, counts: Arc<Counts>) {
    while !counts.stop.load(Ordering::SeqCst) {
        let response = client.post(&path).await;
        if response.status() == StatusCode::OK {
            counts.served.fetch_add(1, Ordering::SeqCst);
            continue;
        }
        let problem = Problem::of(response).await;
        match (problem.status.as_u16(), problem.reason.as_str()) {
            (503, "store_down") | (500, "lost") => {
                counts.refused.fetch_add(1, Ordering::SeqCst);
            }
            // A lock outlived the server, and could not be released while the server was away.
            (429, "timed_out") => {}
            _ => panic!("{problem:?}"),
        }
        tokio::time::sleep(ms(5)).await;
    }
}

async fn two_servers(redis: &RedisServer, recorded: &Recorded) -> (Vec<LockManager>, Vec<Server>) {
    let (mut managers, mut servers) = (Vec::new(), Vec::new());
    for _ in 0..2 {
        let locks = manager_with(redis, |builder| builder.lease(ms(2000)).call_timeout(ms(500))).await;
        let layer = LockLayer::new(locks.clone(), order()).wait(ms(1000));
        servers.push(Server::axum(recorded.routes().route_layer(layer)).await);
        managers.push(locks);
    }
    (managers, servers)
}

over_both! {
    async fn requests_go_on_after_the_store_was_killed_and_restarted(version: Version) {
        let mut redis = RedisServer::start_with(&WRITTEN_DOWN);
        let recorded = Recorded::new();
        let (managers, servers) = two_servers(&redis, &recorded).await;
        // One client for each key and server: nobody waits long while the store is up.
        let traffic = Traffic::start(&servers, version, 2).await;
        traffic.serves(20).await;
        for _ in 0..2 {
            redis.kill();
            traffic.refuses(6).await;
            redis.restart(Data::Kept);
            traffic.serves(20).await;
        }
        traffic.stop().await;
        recorded.report().assert_clean();
        for locks in &managers {
            at_rest(locks, "order:0").await;
            at_rest(locks, "order:1").await;
        }
    }

    async fn requests_go_on_after_the_store_was_silent(version: Version) {
        let mut redis = RedisServer::start();
        let recorded = Recorded::new();
        let (managers, servers) = two_servers(&redis, &recorded).await;
        let traffic = Traffic::start(&servers, version, 2).await;
        traffic.serves(20).await;
        redis.stop();
        traffic.refuses(6).await;
        redis.cont();
        traffic.serves(20).await;
        traffic.stop().await;
        recorded.report().assert_clean();
        for locks in &managers {
            at_rest(locks, "order:0").await;
            at_rest(locks, "order:1").await;
        }
    }

    /// The waits are shorter than a call's time-out, so no call has failed when they end.
    async fn a_silent_store_is_down_however_short_the_wait_is(version: Version) {
        let mut redis = RedisServer::start();
        let locks = manager(&redis).await;
        let layer = LockLayer::new(locks.clone(), order()).wait(ms(200));
        let strict = Stage::open();
        let refusing = Server::axum(orders(&strict).route_layer(layer.clone())).await;
        let lenient = Stage::open();
        let layer = layer.on_store_down(StoreDown::PassThrough);
        let passing = Server::axum(orders(&lenient).route_layer(layer)).await;
        let mut refused = Client::connect(refusing.addr, version).await;
        let mut passed = Client::connect(passing.addr, version).await;
        assert_eq!(refused.post("/orders/0").await.status(), StatusCode::OK);
        redis.stop();
        for id in 1..4 {
            let problem = Problem::of(refused.post(&format!("/orders/{id}")).await).await;
            problem.assert_is(503, "store_down");
            assert_eq!(passed.post(&format!("/orders/{id}")).await.status(), StatusCode::OK);
        }
        assert_eq!((strict.entered(), lenient.entered()), (1, 3));
        redis.cont();
        at_rest(&locks, "order:3").await;
    }

    async fn a_request_that_waits_outlives_a_restart_of_the_store(version: Version) {
        let mut redis = RedisServer::start_with(&WRITTEN_DOWN);
        let (locks, other) = (manager(&redis).await, manager(&redis).await);
        let stage = Stage::open();
        let layer = LockLayer::new(locks.clone(), order()).wait_forever();
        let server = Server::axum(orders(&stage).route_layer(layer)).await;
        let held = other.mutex("order:1").acquire().await.unwrap();
        let mut client = Client::connect(server.addr, version).await;
        let answer = client.start_post("/orders/1").await;
        waiting(&locks, 1).await;
        redis.kill();
        // One more comes while the store is down; it waits too.
        let mut second = Client::connect(server.addr, version).await;
        let second_answer = second.start_post("/orders/2").await;
        waiting(&locks, 2).await;
        redis.restart(Data::Kept);
        assert_eq!(answered(second_answer).await.status(), StatusCode::OK);
        assert_eq!((stage.entered(), answer.is_finished()), (1, false), "the other one is held by somebody else");
        held.release().await.unwrap();
        assert_eq!(answered(answer).await.status(), StatusCode::OK);
        at_rest(&locks, "order:1").await;
        assert_eq!(testing::leftovers(&other).keys, 0);
    }

    /// Without a store no lease is renewed: the handler is dropped no later than its lease ends.
    async fn a_handler_does_not_outlive_its_lease_when_the_store_is_gone(version: Version) {
        let mut redis = RedisServer::start();
        let locks = manager_with(&redis, |builder| builder.lease(ms(2000))).await;
        let stage = Stage::shut();
        let server = Server::axum(orders(&stage).route_layer(LockLayer::new(locks.clone(), order()))).await;
        let mut client = Client::connect(server.addr, version).await;
        let answer = client.start_post("/orders/1").await;
        stage.has_entered(1).await;
        redis.kill();
        let problem = Problem::of(answered(answer).await).await;
        problem.assert_is(500, "lost");
        assert_eq!(problem.retry_after, None);
        assert_eq!((stage.dropped(), stage.finished()), (1, 0));
        redis.restart(Data::Lost);
        stage.let_through(1);
        let mut again = client.post("/orders/1").await.status();
        // Until the connections are made again.
        for _ in 0..100 {
            if again == StatusCode::OK {
                break;
            }
            tokio::time::sleep(ms(100)).await;
            again = client.post("/orders/1").await.status();
        }
        assert_eq!(again, StatusCode::OK);
        at_rest(&locks, "order:1").await;
    }

    /// The store forgets everything: the handler that had the lock is told, and the next request
    /// gets it.
    async fn a_store_that_forgets_costs_the_handler_its_lock(version: Version) {
        let mut redis = RedisServer::start();
        let locks = manager_with(&redis, |builder| builder.lease(ms(2000))).await;
        let stage = Stage::shut();
        let server =
            Server::axum(orders(&stage).route_layer(LockLayer::new(locks.clone(), order()).wait(LONG))).await;
        let mut client = Client::connect(server.addr, version).await;
        let answer = client.start_post("/orders/1").await;
        stage.has_entered(1).await;
        let mut second = Client::connect(server.addr, version).await;
        let second_answer = second.start_post("/orders/1").await;
        waiting(&locks, 1).await;
        redis.restart(Data::Lost);
        Problem::of(answered(answer).await).await.assert_is(500, "lost");
        stage.has_entered(2).await;
        assert_eq!((stage.inside(), stage.dropped()), (1, 1));
        stage.let_through(1);
        assert_eq!(answered(second_answer).await.status(), StatusCode::OK);
        at_rest(&locks, "order:1").await;
    }
}
