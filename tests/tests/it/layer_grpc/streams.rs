//! Server streams that hold the lock until their end.

use lock_runtime::layer::{HeldUntil, LockLayer};
use lock_runtime::{HeldLock, LockManager};
use lock_tests::RedisServer;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tonic::{Code, Status, Streaming};

use crate::layer_grpc::service::{Feed, Orders};
use crate::layer_grpc::{LONG, Running, at_rest, manager, manager_with, ms, order, soon, waiting};

/// Returns a service whose `Watch` sends its token and hands its stream to the test. `Update`
/// returns at once.
fn fed() -> (Orders, UnboundedReceiver<Feed>) {
    let (feeds, receiver) = unbounded_channel();
    let orders = Orders::new().update(async |_| Ok("done".to_owned())).watch(move |request, feed| {
        let token = request.extensions().get::<HeldLock>().unwrap().fencing_token();
        feed.send(Ok(format!("token {token}"))).unwrap();
        feeds.send(feed).unwrap();
        async { Ok(()) }
    });
    (orders, receiver)
}

async fn next(stream: &mut Streaming<String>) -> Result<Option<String>, Status> {
    soon("a message", stream.message()).await
}

async fn is_free(other: &LockManager) -> bool {
    other.mutex("order:1").try_acquire().await.unwrap().is_some()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_holds_the_lock_until_its_end() {
    let redis = RedisServer::start();
    let (locks, other) = (manager(&redis).await, manager(&redis).await);
    let (orders, mut feeds) = fed();
    let layer = LockLayer::new(locks.clone(), order()).wait(LONG).hold(HeldUntil::BodyEnd);
    let server = Running::start(layer, orders).await;
    let mut client = server.client().await;
    let mut stream = client.watch("1").await.unwrap();
    let feed = feeds.recv().await.unwrap();
    assert!(next(&mut stream).await.unwrap().unwrap().starts_with("token "));
    // Another call for the order waits; one for another order does not.
    let waits = tokio::spawn({
        let mut client = client.clone();
        async move { client.update("1").await }
    });
    waiting(&locks, 1).await;
    for text in ["one", "two"] {
        feed.send(Ok(text.to_owned())).unwrap();
        assert_eq!(next(&mut stream).await.unwrap().unwrap(), text);
        assert_eq!(client.update("2").await.unwrap(), "done");
        assert!(!is_free(&other).await && !waits.is_finished(), "held after {text}");
    }
    drop(feed);
    assert_eq!(next(&mut stream).await.unwrap(), None);
    assert_eq!(soon("an answer", waits).await.unwrap().unwrap(), "done");
    at_rest(&locks, "order:1").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_being_told_so_a_stream_holds_nothing() {
    let redis = RedisServer::start();
    let (locks, other) = (manager(&redis).await, manager(&redis).await);
    let (orders, mut feeds) = fed();
    let server = Running::start(LockLayer::new(locks.clone(), order()), orders).await;
    let mut client = server.client().await;
    let mut stream = client.watch("1").await.unwrap();
    let feed = feeds.recv().await.unwrap();
    at_rest(&locks, "order:1").await;
    assert!(is_free(&other).await);
    feed.send(Ok("one".to_owned())).unwrap();
    assert!(next(&mut stream).await.unwrap().unwrap().starts_with("token "));
    assert_eq!(next(&mut stream).await.unwrap().unwrap(), "one");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_that_the_client_drops_frees_the_lock() {
    let redis = RedisServer::start();
    let (locks, other) = (manager(&redis).await, manager(&redis).await);
    let (orders, mut feeds) = fed();
    let layer = LockLayer::new(locks.clone(), order()).hold(HeldUntil::BodyEnd).max_hold(2 * LONG);
    let server = Running::start(layer, orders).await;
    let mut client = server.client().await;
    let mut stream = client.watch("1").await.unwrap();
    let feed = feeds.recv().await.unwrap();
    assert!(next(&mut stream).await.unwrap().is_some());
    assert!(!is_free(&other).await);
    drop(stream);
    soon("the stream's end", feed.closed()).await;
    let free = soon("the lock", other.mutex("order:1").wait(LONG).acquire()).await.unwrap();
    free.release().await.unwrap();
    // The connection still works.
    assert_eq!(client.update("1").await.unwrap(), "done");
    at_rest(&locks, "order:1").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_that_fails_frees_the_lock_and_its_status_is_its_own() {
    let redis = RedisServer::start();
    let locks = manager(&redis).await;
    let (orders, mut feeds) = fed();
    let layer = LockLayer::new(locks.clone(), order()).hold(HeldUntil::BodyEnd).max_hold(2 * LONG);
    let server = Running::start(layer, orders).await;
    let mut stream = server.client().await.watch("1").await.unwrap();
    let feed = feeds.recv().await.unwrap();
    assert!(next(&mut stream).await.unwrap().is_some());
    feed.send(Err(Status::data_loss("the disk is gone"))).unwrap();
    let status = next(&mut stream).await.unwrap_err();
    assert_eq!((status.code(), status.message()), (Code::DataLoss, "the disk is gone"));
    at_rest(&locks, "order:1").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_loss_in_mid_stream_is_aborted_behind_the_messages() {
    let redis = RedisServer::start();
    let locks = manager_with(&redis, |builder| builder.lease(ms(3000))).await;
    let other = manager(&redis).await;
    let (orders, mut feeds) = fed();
    let layer = LockLayer::new(locks.clone(), order()).hold(HeldUntil::BodyEnd);
    let server = Running::start(layer, orders).await;
    let mut client = server.client().await;
    let mut stream = client.watch("1").await.unwrap();
    let feed = feeds.recv().await.unwrap();
    assert!(next(&mut stream).await.unwrap().unwrap().starts_with("token "));
    feed.send(Ok("one".to_owned())).unwrap();
    assert_eq!(next(&mut stream).await.unwrap().unwrap(), "one");
    assert!(other.force_release("order:1").await.unwrap());
    let theirs = soon("the lock", other.mutex("order:1").wait(LONG).acquire()).await.unwrap();
    let status = next(&mut stream).await.expect_err("half a stream must not look whole");
    assert_eq!(status.code(), Code::Aborted, "{status:?}");
    assert!(status.message().contains("find out before you send it again"), "{status:?}");
    soon("the stream's end", feed.closed()).await;
    // The next owner's lock is left alone, and the connection still works.
    assert!(other.status("order:1").await.unwrap().is_locked() && !theirs.is_lost());
    theirs.release().await.unwrap();
    assert_eq!(client.update("1").await.unwrap(), "done");
    at_rest(&locks, "order:1").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_past_its_max_hold_is_aborted() {
    let redis = RedisServer::start();
    let locks = manager(&redis).await;
    let (orders, mut feeds) = fed();
    let layer = LockLayer::new(locks.clone(), order()).hold(HeldUntil::BodyEnd).max_hold(ms(1500));
    let server = Running::start(layer, orders).await;
    let mut client = server.client().await;
    let mut stream = client.watch("1").await.unwrap();
    let _feed = feeds.recv().await.unwrap();
    assert!(next(&mut stream).await.unwrap().is_some());
    assert_eq!(next(&mut stream).await.unwrap_err().code(), Code::Aborted);
    at_rest(&locks, "order:1").await;
}

/// The headers of an answer tell whether there will be a stream at all.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_that_is_refused_is_never_begun() {
    let redis = RedisServer::start();
    let (locks, other) = (manager(&redis).await, manager(&redis).await);
    let (orders, mut feeds) = fed();
    let layer = LockLayer::new(locks.clone(), order()).no_wait().hold(HeldUntil::BodyEnd);
    let server = Running::start(layer, orders).await;
    let mut client = server.client().await;
    let held = other.mutex("order:1").acquire().await.unwrap();
    assert_eq!(client.watch("1").await.unwrap_err().code(), Code::Aborted);
    assert!(feeds.try_recv().is_err());
    held.release().await.unwrap();
    at_rest(&locks, "order:1").await;
}
