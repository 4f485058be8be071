//! The layer around a hyper service, without axum, whose bodies and key extractors differ.

use std::convert::Infallible;
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use lock_runtime::HeldLock;
use lock_runtime::layer::{HeldUntil, LockLayer, first_of, header, path_segment, query};
use lock_tests::RedisServer;
use tower::{Layer, Service, service_fn};

use crate::layer_http::client::{Client, Problem, text};
use crate::layer_http::server::{Pieces, Server, Stage, listen};
use crate::layer_http::{at_rest, manager, over_both};

/// Starts a server for both versions of HTTP.
pub(crate) async fn serve<S, T>(service: S) -> Server
where
    S: Service<Request<Incoming>, Response = Response<T>, Error = Infallible> + Clone + Send + 'static,
    S::Future: Send + 'static,
    T: http_body::Body<Data = Bytes> + Send + 'static,
    T::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let (listener, addr) = listen().await;
    let task = tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let service = TowerToHyperService::new(service.clone());
            tokio::spawn(async move {
                let builder = auto::Builder::new(TokioExecutor::new());
                drop(builder.serve_connection(TokioIo::new(stream), service).await);
            });
        }
    });
    Server::of(addr, task)
}

over_both! {
    async fn requests_are_locked_by_what_their_head_says(version: Version) {
        let redis = RedisServer::start();
        let (locks, other) = (manager(&redis).await, manager(&redis).await);
        let service = service_fn(async |request: Request<Incoming>| {
            let key = request.extensions().get::<HeldLock>().map(|held| held.key().as_str().to_owned());
            Ok::<_, Infallible>(Response::new(Full::<Bytes>::from(key.unwrap_or_default())))
        });
        let keys = first_of((
            header("x-order").prefix("order:"),
            query("order").prefix("order:"),
            path_segment(1).prefix("order:"),
        ));
        let server = serve(LockLayer::new(locks.clone(), keys).no_wait().layer(service)).await;
        let mut client = Client::connect(server.addr, version).await;
        let with_header = client.request(Method::DELETE, "/orders/3?order=2").header("x-order", "1");
        assert_eq!(text(client.send(with_header).await.unwrap()).await, "order:1");
        assert_eq!(text(client.post("/orders/3?order=%32").await).await, "order:2");
        assert_eq!(text(client.post("/orders/a%20b").await).await, "order:a b");
        assert_eq!(text(client.get("/orders/3").await).await, "", "not locked");
        let missing = Problem::of(client.post("/").await).await;
        missing.assert_is(400, "missing_key");
        assert!(missing.detail.contains("the header `x-order` or the query parameter `order` or"), "{missing:?}");

        let held = other.mutex("order:3").acquire().await.unwrap();
        Problem::of(client.post("/orders/3").await).await.assert_is(409, "busy");
        held.release().await.unwrap();
        assert_eq!(text(client.post("/orders/3").await).await, "order:3");
        at_rest(&locks, "order:3").await;
    }

    async fn bodies_of_other_types_hold_the_lock_too(version: Version) {
        let redis = RedisServer::start();
        let (locks, other) = (manager(&redis).await, manager(&redis).await);
        let stage = Stage::open();
        let (feeds, mut ends) = tokio::sync::mpsc::unbounded_channel();
        let service = service_fn(move |_: Request<Incoming>| {
            let (feed, body) = Pieces::new(&stage);
            feeds.send(feed).unwrap();
            std::future::ready(Ok::<_, Infallible>(Response::new(body)))
        });
        let layer = LockLayer::new(locks.clone(), path_segment(1).prefix("order:")).hold(HeldUntil::BodyEnd);
        let server = serve(layer.layer(service)).await;
        let mut client = Client::connect(server.addr, version).await;
        let response = client.post("/orders/1").await;
        let feed = ends.recv().await.unwrap();
        assert!(other.mutex("order:1").try_acquire().await.unwrap().is_none());
        feed.send(Ok(Bytes::from_static(b"done"))).unwrap();
        drop(feed);
        assert_eq!(text(response).await, "done");
        at_rest(&locks, "order:1").await;
    }

    /// The length is known in advance, and the body is at its end with its only frame: hyper does
    /// not ask for another.
    async fn a_body_of_known_length_frees_the_lock_with_its_last_frame(version: Version) {
        let redis = RedisServer::start();
        let locks = manager(&redis).await;
        let service = service_fn(async |_: Request<Incoming>| {
            Ok::<_, Infallible>(Response::new(Full::<Bytes>::from("whole")))
        });
        let layer = LockLayer::new(locks.clone(), path_segment(1)).hold(HeldUntil::BodyEnd);
        let server = serve(layer.max_hold(Duration::from_secs(3600)).layer(service)).await;
        let mut client = Client::connect(server.addr, version).await;
        let response = client.post("/orders/1").await;
        assert_eq!(response.headers()["content-length"], "5");
        at_rest(&locks, "1").await;
        assert_eq!(text(response).await, "whole");
    }

    /// The body of a request belongs to the handler: nobody reads it before the lock is held, and
    /// refusals leave it alone.
    async fn a_request_with_a_body_is_locked_before_it_is_read(version: Version) {
        let redis = RedisServer::start();
        let (locks, other) = (manager(&redis).await, manager(&redis).await);
        let service = service_fn(async |request: Request<Incoming>| {
            let held = request.extensions().get::<HeldLock>().cloned().unwrap();
            let read = request.into_body().collect().await.unwrap().to_bytes();
            assert!(held.is_held());
            Ok::<_, Infallible>(Response::new(Full::<Bytes>::new(read)))
        });
        let layer = LockLayer::new(locks.clone(), path_segment(1).prefix("order:")).no_wait();
        let server = serve(layer.layer(service)).await;
        let mut client = Client::connect(server.addr, version).await;
        for _ in 0..3 {
            let held = other.mutex("order:1").acquire().await.unwrap();
            let request = client.request(Method::POST, "/orders/1");
            Problem::of(client.send_with(request, "three units").await.unwrap()).await.assert_is(409, "busy");
            held.release().await.unwrap();
            // The unread body is not in the way on the same connection.
            let request = client.request(Method::POST, "/orders/1");
            assert_eq!(text(client.send_with(request, "three units").await.unwrap()).await, "three units");
            at_rest(&locks, "order:1").await;
        }
    }
}

/// hyper drops the body of an answer that may have none.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_body_that_is_never_sent_frees_the_lock() {
    let redis = RedisServer::start();
    let locks = manager(&redis).await;
    let stage = Stage::open();
    let (feeds, mut ends) = tokio::sync::mpsc::unbounded_channel();
    let service = service_fn(move |_: Request<Incoming>| {
        let (feed, body) = Pieces::new(&stage);
        feeds.send(feed).unwrap();
        std::future::ready(Ok::<_, Infallible>(Response::new(body)))
    });
    let layer = LockLayer::new(locks.clone(), path_segment(1)).skip_methods([]).hold(HeldUntil::BodyEnd);
    let server = serve(layer.max_hold(Duration::from_secs(3600)).layer(service)).await;
    let mut client = Client::connect(server.addr, crate::layer_http::client::Version::Http1).await;
    let request = client.request(Method::HEAD, "/orders/1");
    assert_eq!(client.send(request).await.unwrap().status(), StatusCode::OK);
    let feed = ends.recv().await.unwrap();
    at_rest(&locks, "1").await;
    assert!(feed.is_closed());
}
