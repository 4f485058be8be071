//! The lock that handlers see, and the answers to their errors.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use axum::Router;
use axum::extract::Path;
use axum::response::Response;
use axum::routing::post;
use bytes::Bytes;
use http::StatusCode;
use http_body::Frame;
use lock_runtime::layer::{HeldUntil, LockLayer, LostLock, OnLost, RequestKeys};
use lock_runtime::{HeldLock, LockError, LockManager, distributed_lock, in_current_scope, testing};
use lock_tests::RedisServer;

use crate::layer_http::client::{Client, Problem, answered, text};
use crate::layer_http::server::{Server, Stage, order};
use crate::layer_http::{LONG, at_rest, manager, ms, over_both};

/// Charges an order; fails at once if it is in use.
#[distributed_lock(key = "order:<id>", manager = locks, wait = "none", guard = lock)]
async fn charge(locks: LockManager, id: &str) -> Result<u64, LockError> {
    tokio::task::yield_now().await;
    Ok(lock.fencing_token().get())
}

over_both! {
    /// Handler, response and log of one request show the same token.
    async fn a_handler_sees_the_lock_that_its_response_tells(version: Version) {
        let redis = RedisServer::start();
        let locks = manager(&redis).await;
        let handler = async |held: HeldLock| {
            assert!(held.is_held() && held.remaining() > ms(1));
            held.fencing_token().to_string()
        };
        let told = axum::middleware::map_response(async |response: Response| {
            let held = response.extensions().get::<HeldLock>().unwrap();
            assert!(!held.is_held(), "released before the response goes out");
            ([("x-token", held.fencing_token().to_string())], response)
        });
        let layer = LockLayer::new(locks.clone(), order());
        let server =
            Server::axum(Router::new().route("/orders/{id}", post(handler)).route_layer(layer).layer(told)).await;
        let response = Client::connect(server.addr, version).await.post("/orders/1").await;
        let token = response.headers()["x-token"].to_str().unwrap().to_owned();
        assert_eq!(text(response).await, token);
        let last = locks.status("order:1").await.unwrap().last_token.unwrap();
        assert_eq!(last.to_string(), token);
        at_rest(&locks, "order:1").await;
    }

    async fn functions_that_a_handler_calls_enter_again(version: Version) {
        let redis = RedisServer::start();
        let locks = manager(&redis).await;
        let calls = {
            let locks = locks.clone();
            async move |Path(id): Path<String>, held: HeldLock| {
                let token = held.fencing_token().get();
                let here = charge(locks.clone(), &id).await;
                let taken_along = tokio::spawn(in_current_scope({
                    let (locks, id) = (locks.clone(), id.clone());
                    async move { charge(locks, &id).await }
                }));
                let taken_along = taken_along.await.unwrap();
                let (locks, id) = (locks.clone(), id.clone());
                let stranger = tokio::spawn(async move { charge(locks, &id).await }).await.unwrap();
                let busy = matches!(stranger, Err(LockError::Busy { .. }));
                format!("{} {} {busy}", here.unwrap() == token, taken_along.unwrap() == token)
            }
        };
        let layer = LockLayer::new(locks.clone(), order());
        let inline = Router::new().route("/orders/{id}", post(calls.clone())).route_layer(layer.clone());
        let detached = Router::new().route("/orders/{id}", post(calls)).route_layer(layer.detached());
        for routes in [inline, detached] {
            let server = Server::axum(routes).await;
            let response = Client::connect(server.addr, version).await.post("/orders/1").await;
            assert_eq!(text(response).await, "true true true");
        }
        at_rest(&locks, "order:1").await;
    }

    async fn functions_that_a_streamed_body_calls_enter_again(version: Version) {
        let redis = RedisServer::start();
        let locks = manager(&redis).await;
        for (hold, expected) in [(HeldUntil::BodyEnd, "entered again"), (HeldUntil::Response, "a lock of its own")] {
            let handler = {
                let locks = locks.clone();
                async move |held: HeldLock| {
                    axum::body::Body::new(Later(Some(Box::pin(async move {
                        let token = charge(locks.clone(), "1").await.unwrap();
                        let again = token == held.fencing_token().get();
                        if again { "entered again" } else { "a lock of its own" }
                    }))))
                }
            };
            let layer = LockLayer::new(locks.clone(), order()).hold(hold);
            let server = Server::axum(Router::new().route("/orders/{id}", post(handler)).route_layer(layer)).await;
            let response = Client::connect(server.addr, version).await.post("/orders/1").await;
            assert_eq!(text(response).await, expected);
            at_rest(&locks, "order:1").await;
        }
    }

    async fn errors_of_functions_are_answers(version: Version) {
        let redis = RedisServer::start();
        let (locks, other) = (manager(&redis).await, manager(&redis).await);
        let handler = {
            let locks = locks.clone();
            async move |Path(id): Path<String>| -> Result<String, LockError> {
                Ok(charge(locks.clone(), &id).await?.to_string())
            }
        };
        let server = Server::axum(Router::new().route("/orders/{id}", post(handler))).await;
        let mut client = Client::connect(server.addr, version).await;
        let held = other.mutex("order:1").acquire().await.unwrap();
        let problem = Problem::of(client.post("/orders/1").await).await;
        problem.assert_is(409, "busy");
        // The handler may have done something before.
        assert!(!problem.detail.contains("Nothing was done"), "{problem:?}");
        held.release().await.unwrap();
        assert_eq!(client.post("/orders/1").await.status(), StatusCode::OK);
        at_rest(&locks, "order:1").await;
    }

    async fn a_handler_that_needs_a_lock_and_has_none_is_500(version: Version) {
        let redis = RedisServer::start();
        let locks = manager(&redis).await;
        let needs = async |held: HeldLock| held.fencing_token().to_string();
        let layer = LockLayer::new(locks, order());
        let routes = Router::new().route("/orders/{id}", post(needs).get(needs)).route_layer(layer);
        let server = Server::axum(routes).await;
        let mut client = Client::connect(server.addr, version).await;
        assert_eq!(client.post("/orders/1").await.status(), StatusCode::OK);
        let problem = Problem::of(client.get("/orders/1").await).await;
        problem.assert_is(500, "misconfigured");
        assert!(!problem.detail.contains("LockLayer"), "what to do is in the log: {problem:?}");
    }

    async fn a_handler_that_may_finish_does_so_and_its_response_is_marked(version: Version) {
        let redis = RedisServer::start();
        let (locks, other) = (manager(&redis).await, manager(&redis).await);
        let stage = Stage::shut();
        let marked = axum::middleware::map_response(async |response: Response| {
            let lost = response.extensions().get::<LostLock>().is_some();
            ([("x-lost", lost.to_string())], response)
        });
        let handler = {
            let stage = stage.clone();
            async move || stage.visit().await
        };
        let layer = LockLayer::new(locks.clone(), order()).on_lost(OnLost::Finish);
        let routes = Router::new().route("/orders/{id}", post(handler)).route_layer(layer).layer(marked);
        let server = Server::axum(routes).await;
        let mut client = Client::connect(server.addr, version).await;
        let answer = client.start_post("/orders/1").await;
        stage.has_entered(1).await;
        assert!(testing::lose(&locks, "order:1"));
        let theirs = other.mutex("order:1").wait(LONG).acquire().await.unwrap();
        assert_eq!((stage.inside(), answer.is_finished()), (1, false));
        stage.let_through(2);
        let response = answered(answer).await;
        assert_eq!((response.status(), &response.headers()["x-lost"]), (StatusCode::OK, &"true".parse().unwrap()));
        assert_eq!((stage.finished(), stage.dropped()), (1, 0));
        theirs.release().await.unwrap();
        assert_eq!(client.post("/orders/1").await.headers()["x-lost"], "false");
        at_rest(&locks, "order:1").await;
    }

    async fn a_request_with_several_keys_takes_all_or_none(version: Version) {
        let redis = RedisServer::start();
        let (locks, other) = (manager(&redis).await, manager(&redis).await);
        let stage = Stage::shut();
        let keys = |_: &http::request::Parts| RequestKeys::several(["account:2", "account:1"]);
        let handler = {
            let stage = stage.clone();
            async move |held: HeldLock| {
                stage.visit().await;
                held.tokens().len().to_string()
            }
        };
        let layer = LockLayer::new(locks.clone(), keys).no_wait();
        let server = Server::axum(Router::new().route("/transfers", post(handler)).route_layer(layer)).await;
        let mut client = Client::connect(server.addr, version).await;
        let held = other.mutex("account:2").acquire().await.unwrap();
        Problem::of(client.post("/transfers").await).await.assert_is(409, "busy");
        at_rest(&locks, "account:1").await;
        held.release().await.unwrap();
        let answer = client.start_post("/transfers").await;
        stage.has_entered(1).await;
        for account in ["account:1", "account:2"] {
            assert!(other.mutex(account).try_acquire().await.unwrap().is_none(), "{account}");
        }
        stage.let_through(1);
        assert_eq!(text(answered(answer).await).await, "2");
        at_rest(&locks, "account:1").await;
        at_rest(&locks, "account:2").await;
    }
}

/// A body of one piece, from a future.
struct Later(Option<Pin<Box<dyn Future<Output = &'static str> + Send>>>);

impl http_body::Body for Later {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let Some(piece) = self.0.as_mut() else { return Poll::Ready(None) };
        let piece = ready!(piece.as_mut().poll(cx));
        self.0 = None;
        Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(piece.as_bytes())))))
    }
}
