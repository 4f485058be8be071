//! The table of refusals in the module's documentation, row by row, as a gRPC client sees it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use http::StatusCode;
use http::request::Parts;
use lock_runtime::layer::{LockLayer, MissingKey, Rejection, StoreDown, Unlocked};
use lock_runtime::{HeldLock, LockKey};
use lock_tests::RedisServer;
use tonic::{Code, Request, Status};

use crate::layer_grpc::service::Orders;
use crate::layer_grpc::{LONG, Running, SLACK, at_rest, manager, manager_with, ms, order, soon, waiting};

/// Returns methods that count their calls and return at once.
fn counted() -> (Orders, Arc<AtomicUsize>) {
    let calls = Arc::<AtomicUsize>::default();
    let counting = calls.clone();
    let orders = Orders::new().update(move |_| {
        counting.fetch_add(1, Ordering::SeqCst);
        async { Ok("done".to_owned()) }
    });
    (orders, calls)
}

/// Asserts the common properties of refusals: a code, a text for the client, and no word about the
/// key or the store.
#[track_caller]
fn assert_refused(status: &Status, code: Code, text: &str) {
    assert_eq!(status.code(), code, "{status:?}");
    assert!(status.message().contains(text), "{status:?}");
    assert_eq!(status.metadata().get("content-length"), None);
    for secret in ["order:", "127.0.0.1", "redis", "Redis"] {
        assert!(!status.message().contains(secret), "{status:?}");
    }
}

/// Returns the suggested delay before a retry, in milliseconds.
fn pushback(status: &Status) -> Option<i64> {
    status.metadata().get("grpc-retry-pushback-ms").map(|millis| millis.to_str().unwrap().parse().unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn busy_is_aborted() {
    let redis = RedisServer::start();
    let (locks, other) = (manager(&redis).await, manager(&redis).await);
    let (orders, calls) = counted();
    let server = Running::start(LockLayer::new(locks.clone(), order()).no_wait(), orders).await;
    let mut client = server.client().await;
    let held = other.mutex("order:1").acquire().await.unwrap();
    let status = client.update("1").await.unwrap_err();
    assert_refused(&status, Code::Aborted, "Nothing was done for this one; send it again later.");
    assert!(matches!(pushback(&status), Some(2500..=5000)), "{status:?}");
    assert_eq!(calls.load(Ordering::SeqCst), 0);
    assert_eq!(client.update("2").await.unwrap(), "done");
    held.release().await.unwrap();
    assert_eq!(client.update("1").await.unwrap(), "done");

    // A short lease has less time left than that.
    let held = other.mutex("order:1").lease(ms(3000)).acquire().await.unwrap();
    let status = client.update("1").await.unwrap_err();
    assert!(matches!(pushback(&status), Some(1..=3000)), "{status:?}");
    held.release().await.unwrap();
    at_rest(&locks, "order:1").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn timed_out_and_too_many_waiters_are_resource_exhausted() {
    let redis = RedisServer::start();
    let (locks, other) = (manager(&redis).await, manager(&redis).await);
    let (orders, calls) = counted();
    let impatient = LockLayer::new(locks.clone(), order()).wait(ms(300));
    let impatient = Running::start(impatient, orders.clone()).await;
    let capped = LockLayer::new(locks.clone(), order()).wait(LONG).max_waiters(1);
    let capped = Running::start(capped, orders).await;
    let held = other.mutex("order:1").acquire().await.unwrap();
    let status = impatient.client().await.update("1").await.unwrap_err();
    assert_refused(&status, Code::ResourceExhausted, "took too long");
    assert!(matches!(pushback(&status), Some(2500..=5000)), "{status:?}");

    let mut client = capped.client().await;
    let waits = tokio::spawn({
        let mut client = client.clone();
        async move { client.update("1").await }
    });
    waiting(&locks, 1).await;
    let status = client.update("1").await.unwrap_err();
    assert_refused(&status, Code::ResourceExhausted, "Too many requests wait already");
    assert!(matches!(pushback(&status), Some(1500..=3000)), "{status:?}");
    assert_eq!((calls.load(Ordering::SeqCst), waits.is_finished()), (0, false));
    held.release().await.unwrap();
    assert_eq!(soon("an answer", waits).await.unwrap().unwrap(), "done");
    at_rest(&locks, "order:1").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn store_down_is_unavailable_or_passes_and_says_so() {
    let mut redis = RedisServer::start();
    let locks = manager(&redis).await;
    let orders = Orders::new().update(async |request: Request<String>| {
        let extensions = request.extensions();
        let held = extensions.get::<HeldLock>().is_some();
        Ok(format!("unlocked {}, held {held}", extensions.get::<Unlocked>().is_some()))
    });
    let layer = LockLayer::new(locks, order()).wait(ms(300));
    let rejects = Running::start(layer.clone(), orders.clone()).await;
    let passes = Running::start(layer.on_store_down(StoreDown::PassThrough), orders).await;
    let (mut rejected, mut passed) = (rejects.client().await, passes.client().await);
    assert_eq!(rejected.update("1").await.unwrap(), "unlocked false, held true");
    assert_eq!(passed.update("1").await.unwrap(), "unlocked false, held true");
    redis.kill();
    let status = rejected.update("1").await.unwrap_err();
    assert_refused(&status, Code::Unavailable, "The lock service is not available");
    assert!(matches!(pushback(&status), Some(1500..=3000)), "{status:?}");
    assert_eq!(passed.update("1").await.unwrap(), "unlocked true, held false");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shut_down_is_unavailable() {
    let redis = RedisServer::start();
    let locks = manager(&redis).await;
    let (orders, calls) = counted();
    let server = Running::start(LockLayer::new(locks.clone(), order()), orders).await;
    let mut client = server.client().await;
    locks.shutdown(SLACK).await.unwrap();
    let status = client.update("1").await.unwrap_err();
    assert_refused(&status, Code::Unavailable, "shutting down");
    assert!(matches!(pushback(&status), Some(1500..=3000)), "{status:?}");
    assert_eq!(calls.load(Ordering::SeqCst), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lost_is_aborted_and_not_to_be_repeated_blindly() {
    let redis = RedisServer::start();
    // Renewed every second, so the loss is noticed then.
    let locks = manager_with(&redis, |builder| builder.lease(ms(3000))).await;
    let other = manager(&redis).await;
    let (entered, mut has_entered) = tokio::sync::mpsc::unbounded_channel();
    let orders = Orders::new().update(move |_| {
        entered.send(()).unwrap();
        std::future::pending()
    });
    let server = Running::start(LockLayer::new(locks.clone(), order()), orders).await;
    let mut client = server.client().await;
    let call = tokio::spawn(async move { client.update("1").await });
    has_entered.recv().await.unwrap();
    assert!(other.force_release("order:1").await.unwrap());
    let status = soon("an answer", call).await.unwrap().unwrap_err();
    assert_refused(&status, Code::Aborted, "find out before you send it again");
    assert_eq!(pushback(&status), Some(-1), "clients that repeat what was aborted don't repeat this");
    at_rest(&locks, "order:1").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bad_or_missing_key_is_an_invalid_argument() {
    let redis = RedisServer::start();
    let locks = manager(&redis).await;
    let (orders, calls) = counted();
    let server = Running::start(LockLayer::new(locks.clone(), order()), orders.clone()).await;
    let mut client = server.client().await;
    let status = client.update_with(Request::new("1".to_owned())).await.unwrap_err();
    assert_refused(&status, Code::InvalidArgument, "This request needs the metadata `x-order`.");
    for bad in ["{1}", &"1".repeat(300)] {
        let status = client.update(bad).await.unwrap_err();
        assert_refused(&status, Code::InvalidArgument, "he metadata `x-order`");
        assert_eq!(pushback(&status), None);
    }
    assert_eq!(calls.load(Ordering::SeqCst), 0);

    // Without a key in the metadata, but not refused.
    let fixed = LockKey::new("order:any").unwrap();
    for policy in [MissingKey::Skip, MissingKey::Fixed(fixed)] {
        let layer = LockLayer::new(locks.clone(), order()).on_missing_key(policy).no_wait();
        let server = Running::start(layer, orders.clone()).await;
        let mut client = server.client().await;
        assert_eq!(client.update_with(Request::new(String::new())).await.unwrap(), "done");
    }
    at_rest(&locks, "order:any").await;
    assert!(locks.status("order:any").await.unwrap().last_token.is_some(), "it was taken");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn misconfigured_is_internal() {
    let redis = RedisServer::start();
    let locks = manager(&redis).await;
    let (orders, calls) = counted();
    redis.cli(&["SET", "lock:order:1", "theirs"]);
    let layer = LockLayer::new(locks.clone(), order()).wait(Duration::from_secs(3600));
    let server = Running::start(layer, orders.clone()).await;
    let status = server.client().await.update("1").await.unwrap_err();
    assert_refused(&status, Code::Internal, "misconfigured");
    assert_eq!(redis.cli(&["GET", "lock:order:1"]), "theirs");
    // A mistake that only shows with a request.
    let mistake =
        |_: &Parts| Err::<LockKey, _>(Rejection::with_status(StatusCode::INTERNAL_SERVER_ERROR, "No."));
    let server = Running::start(LockLayer::new(locks, mistake), orders).await;
    assert_refused(&server.client().await.update("1").await.unwrap_err(), Code::Internal, "misconfigured");
    assert_eq!(calls.load(Ordering::SeqCst), 0);
}
