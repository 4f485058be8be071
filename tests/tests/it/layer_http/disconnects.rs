//! Clients that leave at every stage of a request, and handlers that panic.

use axum::Router;
use axum::routing::post;
use bytes::Bytes;
use http::StatusCode;
use http_body::Frame;
use lock_runtime::HeldLock;
use lock_runtime::layer::{HeldUntil, LockLayer};
use lock_tests::{RedisServer, eventually};
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tokio::task::JoinHandle;

use crate::layer_http::client::{Client, Version, answered, next, read_on};
use crate::layer_http::server::{Server, Stage, order, orders, streams};
use crate::layer_http::{LONG, SLACK, at_rest, manager, over_both, soon, waiting};

/// How a client leaves. With HTTP/1.1, both ways close the socket.
#[derive(Clone, Copy, Debug)]
enum Leaving {
    /// It closes its socket.
    HangsUp,
    /// It gives up the answer: with HTTP/2, a reset of the stream.
    LosesInterest,
}

const LEAVINGS: [Leaving; 2] = [Leaving::HangsUp, Leaving::LosesInterest];

impl Leaving {
    /// Leaves, and returns the client if its connection is still usable.
    async fn leave<T>(self, client: Client, answer: JoinHandle<T>, version: Version) -> Option<Client> {
        match self {
            Self::HangsUp => client.hang_up().await,
            Self::LosesInterest => {
                answer.abort();
                if version == Version::Http2 {
                    return Some(client);
                }
                drop(client);
            }
        }
        None
    }
}

over_both! {
    async fn who_leaves_while_it_waits_leaves_the_queue(version: Version) {
        let redis = RedisServer::start();
        let (locks, other) = (manager(&redis).await, manager(&redis).await);
        let stage = Stage::open();
        let layer = LockLayer::new(locks.clone(), order()).wait(LONG).max_waiters(1);
        let server = Server::axum(orders(&stage).route_layer(layer)).await;
        let held = other.mutex("order:1").acquire().await.unwrap();
        for leaving in LEAVINGS {
            let mut client = Client::connect(server.addr, version).await;
            // The place of the client that left before is free.
            let answer = client.start_post("/orders/1").await;
            waiting(&locks, 1).await;
            let client = leaving.leave(client, answer, version).await;
            waiting(&locks, 0).await;
            if let Some(mut client) = client {
                assert_eq!(client.post("/orders/2").await.status(), StatusCode::OK, "{leaving:?}");
            }
        }
        let entered = stage.entered();
        held.release().await.unwrap();
        at_rest(&locks, "order:1").await;
        assert_eq!((stage.entered(), stage.dropped()), (entered, 0), "nobody was left to be served");
    }

    async fn who_leaves_while_the_handler_runs_frees_the_lock_behind_the_handler(version: Version) {
        let redis = RedisServer::start();
        let (locks, other) = (manager(&redis).await, manager(&redis).await);
        for leaving in LEAVINGS {
            let stage = Stage::shut();
            let server = Server::axum(orders(&stage).route_layer(LockLayer::new(locks.clone(), order()))).await;
            let mut client = Client::connect(server.addr, version).await;
            let answer = client.start_post("/orders/1").await;
            stage.has_entered(1).await;
            assert!(other.mutex("order:1").try_acquire().await.unwrap().is_none(), "{leaving:?}");

            let client = leaving.leave(client, answer, version).await;
            let next = other.mutex("order:1").wait(LONG).acquire().await.unwrap();
            assert_eq!((stage.inside(), stage.dropped(), stage.finished()), (0, 1, 0), "{leaving:?}");
            next.release().await.unwrap();
            stage.let_through(1);
            if let Some(mut client) = client {
                assert_eq!(client.post("/orders/1").await.status(), StatusCode::OK);
            }
            at_rest(&locks, "order:1").await;
        }
    }

    async fn who_leaves_in_mid_body_frees_the_lock_behind_the_body(version: Version) {
        let redis = RedisServer::start();
        let (locks, other) = (manager(&redis).await, manager(&redis).await);
        for leaving in LEAVINGS {
            let stage = Stage::open();
            let (routes, mut feeds) = streams(&stage);
            let layer = LockLayer::new(locks.clone(), order()).hold(HeldUntil::BodyEnd).max_hold(LONG);
            let server = Server::axum(routes.route_layer(layer)).await;
            let mut client = Client::connect(server.addr, version).await;
            let mut response = client.post("/orders/1").await;
            let feed = feeds.recv().await.unwrap();
            feed.send(Ok(Bytes::from_static(b"one"))).unwrap();
            assert_eq!(next(&mut response).await.unwrap().unwrap(), "one");
            assert!(other.mutex("order:1").try_acquire().await.unwrap().is_none(), "{leaving:?}");

            // The task has the rest of the response.
            let reading = tokio::spawn(async move { next(&mut response).await });
            let client = leaving.leave(client, reading, version).await;
            let free = other.mutex("order:1").wait(LONG).acquire().await.unwrap();
            assert_eq!((stage.inside(), stage.dropped(), stage.finished()), (0, 1, 0), "{leaving:?}");
            assert!(feed.send(Ok(Bytes::from_static(b"two"))).is_err(), "nobody is there to take it");
            free.release().await.unwrap();
            if let Some(mut client) = client {
                drop(client.post("/orders/1").await);
            }
            at_rest(&locks, "order:1").await;
        }
    }

    async fn what_a_lock_protects_is_dropped_before_it_is_released(version: Version) {
        let redis = RedisServer::start();
        let locks = manager(&redis).await;
        for in_mid_body in [false, true] {
            let (ends, mut ended) = unbounded_channel();
            let (begins, mut begun) = unbounded_channel();
            let handler = async move |held: HeldLock| {
                let last = Last { held, ended: ends };
                begins.send(()).unwrap();
                if !in_mid_body {
                    std::future::pending::<()>().await;
                }
                axum::body::Body::new(last)
            };
            let layer = LockLayer::new(locks.clone(), order()).hold(HeldUntil::BodyEnd);
            let server = Server::axum(Router::new().route("/orders/{id}", post(handler)).route_layer(layer)).await;
            let mut client = Client::connect(server.addr, version).await;
            let answer = client.start_post("/orders/1").await;
            begun.recv().await.unwrap();
            let _response = if in_mid_body { Some(answered(answer).await) } else { None };
            client.hang_up().await;
            assert_eq!(soon("its end", ended.recv()).await, Some(true), "in mid-body: {in_mid_body}");
            at_rest(&locks, "order:1").await;
        }
    }

    async fn a_detached_handler_runs_to_its_end_under_its_lock(version: Version) {
        let redis = RedisServer::start();
        let (locks, other) = (manager(&redis).await, manager(&redis).await);
        for leaving in LEAVINGS {
            let stage = Stage::shut();
            let layer = LockLayer::new(locks.clone(), order()).wait(LONG).detached();
            let server = Server::axum(orders(&stage).route_layer(layer)).await;
            let mut client = Client::connect(server.addr, version).await;
            let answer = client.start_post("/orders/1").await;
            stage.has_entered(1).await;
            // Another one waits, and its client leaves too: that one is given up.
            let mut second = Client::connect(server.addr, version).await;
            let waits = second.start_post("/orders/1").await;
            waiting(&locks, 1).await;
            leaving.leave(second, waits, version).await;
            waiting(&locks, 0).await;

            leaving.leave(client, answer, version).await;
            // Time for the server to notice it, and to drop the request if it would: it has served
            // others since.
            let mut third = Client::connect(server.addr, version).await;
            let waits = third.start_post("/orders/1").await;
            waiting(&locks, 1).await;
            assert!(other.mutex("order:1").try_acquire().await.unwrap().is_none(), "{leaving:?}");
            assert_eq!((stage.inside(), stage.dropped()), (1, 0), "{leaving:?}");

            stage.let_through(2);
            assert_eq!(answered(waits).await.status(), StatusCode::OK, "{leaving:?}");
            assert_eq!((stage.entered(), stage.finished(), stage.dropped()), (2, 2, 0), "{leaving:?}");
            at_rest(&locks, "order:1").await;
        }
    }

    async fn a_panic_in_the_handler_frees_the_lock(version: Version) {
        let redis = RedisServer::start();
        let (locks, other) = (manager(&redis).await, manager(&redis).await);
        let routes = || Router::new().route("/orders/{id}", post(panics));
        let inline = Server::axum(routes().route_layer(LockLayer::new(locks.clone(), order()))).await;
        let detached = LockLayer::new(locks.clone(), order()).detached();
        let detached = Server::axum(routes().route_layer(detached)).await;
        for server in [inline, detached] {
            let mut client = Client::connect(server.addr, version).await;
            let request = client.request(http::Method::POST, "/orders/1");
            assert!(client.send(request).await.is_err(), "as without the layer");
            let free = soon("the lock", other.mutex("order:1").wait(LONG).acquire()).await.unwrap();
            free.release().await.unwrap();
            // The server goes on.
            let mut client = Client::connect(server.addr, version).await;
            assert_eq!(client.get("/orders/1").await.status(), StatusCode::METHOD_NOT_ALLOWED);
            at_rest(&locks, "order:1").await;
        }
    }

    async fn a_panic_in_the_body_frees_the_lock(version: Version) {
        let redis = RedisServer::start();
        let (locks, other) = (manager(&redis).await, manager(&redis).await);
        let handler = async || axum::body::Body::new(Panics { sent: false });
        let layer = LockLayer::new(locks.clone(), order()).hold(HeldUntil::BodyEnd);
        let server = Server::axum(Router::new().route("/orders/{id}", post(handler)).route_layer(layer)).await;
        let mut client = Client::connect(server.addr, version).await;
        let request = client.request(http::Method::POST, "/orders/1");
        // The data sent before may still be in flight when the connection ends.
        if let Ok(mut response) = client.send(request).await {
            assert!(read_on(&mut response).await.is_err(), "half a body must not look whole");
        }
        let free = soon("the lock", other.mutex("order:1").wait(LONG).acquire()).await.unwrap();
        free.release().await.unwrap();
        at_rest(&locks, "order:1").await;
    }

    /// The clients leave at any point of their request.
    async fn clients_that_leave_at_any_moment_leave_nothing(version: Version) {
        let redis = RedisServer::start();
        let (locks, other) = (manager(&redis).await, manager(&redis).await);
        let stage = Stage::open();
        let layer = LockLayer::new(locks.clone(), order()).wait(LONG).hold(HeldUntil::BodyEnd);
        let server = Server::axum(orders(&stage).route_layer(layer)).await;
        for round in 0_u64..60 {
            let mut client = Client::connect(server.addr, version).await;
            let answer = client.start_post("/orders/1").await;
            tokio::time::sleep(std::time::Duration::from_micros(round * 97 % 2000)).await;
            LEAVINGS[(round % 2) as usize].leave(client, answer, version).await;
        }
        eventually(async || stage.inside() == 0, SLACK).await;
        soon("the lock", other.mutex("order:1").wait(LONG).acquire()).await.unwrap().release().await.unwrap();
        at_rest(&locks, "order:1").await;
    }
}

async fn panics() {
    tokio::task::yield_now().await;
    panic!("a mistake in a handler");
}

/// A body that sends a piece, then panics.
struct Panics {
    sent: bool,
}

impl http_body::Body for Panics {
    type Data = Bytes;
    type Error = std::io::Error;

    fn poll_frame(
        mut self: std::pin::Pin<&mut Self>,
        cx: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<Frame<Bytes>, std::io::Error>>> {
        assert!(!self.sent, "a mistake in a body");
        self.sent = true;
        cx.waker().wake_by_ref();
        std::task::Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(b"one")))))
    }
}

/// An endless body, or a part of a handler: records whether its lock is held when it is dropped.
struct Last {
    held: HeldLock,
    ended: UnboundedSender<bool>,
}

impl Drop for Last {
    fn drop(&mut self) {
        let _ = self.ended.send(self.held.is_held());
    }
}

impl http_body::Body for Last {
    type Data = Bytes;
    type Error = std::io::Error;

    fn poll_frame(
        self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<Frame<Bytes>, std::io::Error>>> {
        std::task::Poll::Pending
    }
}
