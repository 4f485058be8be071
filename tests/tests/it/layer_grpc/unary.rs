//! Unary calls: their keys, the lock that methods see, clients that leave, and the errors of
//! annotated functions.

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use lock_runtime::layer::{LockLayer, path_segment};
use lock_runtime::{HeldLock, LockError, LockManager, distributed_lock};
use lock_tests::{RedisServer, eventually, poll_once_and_drop};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tonic::service::LayerExt;
use tonic::{Code, Request, Status};
use tower::ServiceBuilder;
use tower::limit::GlobalConcurrencyLimitLayer;

use crate::layer_grpc::service::Orders;
use crate::layer_grpc::{LONG, Running, SLACK, at_rest, manager, ms, order, soon, waiting};

/// Charges an order; fails at once if it is in use.
#[distributed_lock(key = "order:<id>", manager = locks, wait = "none", guard = lock)]
async fn charge(locks: LockManager, id: &str) -> Result<u64, LockError> {
    tokio::task::yield_now().await;
    Ok(lock.fencing_token().get())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_for_one_key_run_one_at_a_time_on_all_servers() {
    const CLIENTS: usize = 4;
    const ROUNDS: usize = 10;
    let redis = RedisServer::start();
    let inside = Arc::<AtomicUsize>::default();
    let orders = Orders::new().update({
        let inside = inside.clone();
        move |request| {
            let inside = inside.clone();
            async move {
                let token = request.extensions().get::<HeldLock>().unwrap().fencing_token();
                assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two at once");
                tokio::time::sleep(ms(1)).await;
                inside.fetch_sub(1, Ordering::SeqCst);
                Ok(token.to_string())
            }
        }
    });
    let (mut managers, mut servers, mut clients) = (Vec::new(), Vec::new(), JoinSet::new());
    for _ in 0..2 {
        let locks = manager(&redis).await;
        let layer = LockLayer::new(locks.clone(), order()).wait(LONG);
        let server = Running::start(layer, orders.clone()).await;
        for _ in 0..CLIENTS {
            let mut client = server.client().await;
            clients.spawn(async move {
                let mut tokens: Vec<u64> = Vec::new();
                for _ in 0..ROUNDS {
                    tokens.push(client.update("1").await.unwrap().parse().unwrap());
                }
                tokens
            });
        }
        managers.push(locks);
        servers.push(server);
    }
    let mut tokens = Vec::new();
    while let Some(of_one) = soon("a client", clients.join_next()).await {
        let of_one = of_one.unwrap();
        assert!(of_one.is_sorted_by(|one, next| one < next), "{of_one:?}");
        tokens.extend(of_one);
    }
    tokens.sort_unstable();
    tokens.dedup();
    assert_eq!(tokens.len(), 2 * CLIENTS * ROUNDS);
    for locks in &managers {
        at_rest(locks, "order:1").await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_for_different_keys_run_side_by_side() {
    const KEYS: usize = 5;
    let redis = RedisServer::start();
    let locks = manager(&redis).await;
    // Nobody passes the barrier before all have reached it.
    let barrier = Arc::new(tokio::sync::Barrier::new(KEYS));
    let orders = Orders::new().update(move |_| {
        let barrier = barrier.clone();
        async move {
            barrier.wait().await;
            Ok(String::new())
        }
    });
    let server = Running::start(LockLayer::new(locks.clone(), order()), orders).await;
    let client = server.client().await;
    let mut calls = JoinSet::new();
    for key in 0..KEYS {
        let mut client = client.clone();
        calls.spawn(async move { client.update(&key.to_string()).await });
    }
    while let Some(done) = soon("a call", calls.join_next()).await {
        done.unwrap().unwrap();
    }
    at_rest(&locks, "order:0").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_method_sees_its_lock_and_enters_it_again() {
    let redis = RedisServer::start();
    let locks = manager(&redis).await;
    let orders = Orders::new().update({
        let locks = locks.clone();
        move |request: Request<String>| {
            let locks = locks.clone();
            async move {
                let held = request.extensions().get::<HeldLock>().cloned().unwrap();
                assert!(held.is_held() && held.key().as_str() == "order:1");
                let token = charge(locks, request.get_ref()).await?;
                assert_eq!(token, held.fencing_token().get());
                Ok(token.to_string())
            }
        }
    });
    for detached in [false, true] {
        let layer = LockLayer::new(locks.clone(), order());
        let server = if detached {
            Running::start(layer.detached(), orders.clone()).await
        } else {
            Running::start(layer, orders.clone()).await
        };
        let token = server.client().await.update("1").await.unwrap();
        let last = locks.status("order:1").await.unwrap().last_token.unwrap();
        assert_eq!(last.to_string(), token);
        at_rest(&locks, "order:1").await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn service_and_method_are_segments_of_the_path() {
    let redis = RedisServer::start();
    let (locks, other) = (manager(&redis).await, manager(&redis).await);
    let orders = Orders::new().update(async |request: Request<String>| {
        Ok(request.extensions().get::<HeldLock>().unwrap().key().as_str().to_owned())
    });
    for (segment, key) in [(0, "grpc:test.Orders"), (1, "grpc:Update")] {
        let layer = LockLayer::new(locks.clone(), path_segment(segment).prefix("grpc:")).no_wait();
        let server = Running::start(layer, orders.clone()).await;
        let mut client = server.client().await;
        assert_eq!(client.update("1").await.unwrap(), key);
        let held = other.mutex(key).acquire().await.unwrap();
        assert_eq!(client.update("1").await.unwrap_err().code(), Code::Aborted);
        held.release().await.unwrap();
        at_rest(&locks, key).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_errors_of_functions_are_statuses() {
    let mut redis = RedisServer::start();
    let (locks, other) = (manager(&redis).await, manager(&redis).await);
    let source = Arc::<AtomicBool>::default();
    let orders = Orders::new().update({
        let (locks, source) = (locks.clone(), source.clone());
        move |request: Request<String>| {
            let (locks, source) = (locks.clone(), source.clone());
            async move {
                let charged: Result<u64, Status> =
                    charge(locks, request.get_ref()).await.map_err(Status::from);
                if let Err(status) = &charged {
                    let error = status.source().and_then(|error| error.downcast_ref::<LockError>());
                    // The server's log gets the key, but the client does not.
                    source.store(
                        error.is_some_and(|error| error.to_string().contains("order:")),
                        Ordering::SeqCst,
                    );
                }
                Ok(charged?.to_string())
            }
        }
    });
    let server = Running::start(tower::layer::util::Identity::new(), orders).await;
    let mut client = server.client().await;
    let held = other.mutex("order:1").acquire().await.unwrap();
    let status = client.update("1").await.unwrap_err();
    assert_eq!(status.code(), Code::Aborted);
    let told = "Another request is using the same resource. This one may be done in part: find out before you send it \
                again.";
    assert_eq!(status.message(), told);
    assert!(source.load(Ordering::SeqCst));
    held.release().await.unwrap();
    assert!(client.update("1").await.is_ok());

    // The value of an argument came from the client.
    let status = client.update("{1}").await.unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument);
    redis.cli(&["SET", "lock:order:2", "theirs"]);
    let status = client.update("2").await.unwrap_err();
    assert_eq!(status.code(), Code::Internal);
    assert!(!status.message().contains("order:"), "{status:?}");
    at_rest(&locks, "order:1").await;
    redis.kill();
    let status = client.update("1").await.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable);
    assert!(!status.message().contains("127.0.0.1"), "{status:?}");
    assert!(status.message().contains("not available"), "{status:?}");
    // It would wait for the store.
    poll_once_and_drop(locks.shutdown(ms(1))).await;
    let status = client.update("1").await.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable);
    assert!(status.message().contains("shutting down"), "{status:?}");
}

/// Records when it is dropped.
struct Dropped(Arc<AtomicBool>);

impl Drop for Dropped {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_that_is_given_up_leaves_the_queue_or_frees_the_lock() {
    let redis = RedisServer::start();
    let (locks, other) = (manager(&redis).await, manager(&redis).await);
    let dropped = Arc::<AtomicBool>::default();
    let (entered, mut has_entered) = tokio::sync::mpsc::unbounded_channel();
    let orders = Orders::new().update({
        let dropped = dropped.clone();
        move |_| {
            entered.send(()).unwrap();
            let dropped = Dropped(dropped.clone());
            async move {
                let _dropped = dropped;
                std::future::pending().await
            }
        }
    });
    let server = Running::start(LockLayer::new(locks.clone(), order()).wait(LONG), orders).await;
    let client = server.client().await;
    let start = || {
        let mut client = client.clone();
        tokio::spawn(async move { client.update("1").await })
    };
    let runs = start();
    has_entered.recv().await.unwrap();
    let waits = start();
    waiting(&locks, 1).await;
    waits.abort();
    waiting(&locks, 0).await;
    assert!(!dropped.load(Ordering::SeqCst) && !runs.is_finished());

    runs.abort();
    let free = soon("the lock", other.mutex("order:1").wait(LONG).acquire()).await.unwrap();
    assert!(dropped.load(Ordering::SeqCst), "the handler goes before its lock does");
    free.release().await.unwrap();
    assert!(has_entered.try_recv().is_err(), "nobody else was served");
    at_rest(&locks, "order:1").await;
}

/// The server also keeps the client's deadline.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deadline_ends_the_wait_for_the_lock() {
    let redis = RedisServer::start();
    let (locks, other) = (manager(&redis).await, manager(&redis).await);
    let orders = Orders::new().update(async |_| Ok(String::new()));
    let server = Running::start(LockLayer::new(locks.clone(), order()).wait(LONG), orders).await;
    let mut client = server.client().await;
    let held = other.mutex("order:1").acquire().await.unwrap();
    let mut request = Request::new(String::new());
    request.metadata_mut().insert("x-order", "1".parse().unwrap());
    request.set_timeout(ms(300));
    let status = soon("an answer", client.update_with(request)).await.unwrap_err();
    // Client and layer both use the deadline, and either may notice it first.
    let codes = [Code::Cancelled, Code::DeadlineExceeded, Code::ResourceExhausted];
    assert!(codes.contains(&status.code()), "{status:?}");
    waiting(&locks, 0).await;
    held.release().await.unwrap();
    assert!(client.update("1").await.is_ok());
    at_rest(&locks, "order:1").await;
}

/// A limit around a service, as below any router, applies after the lock is acquired: a call waits
/// for its permit under the lock. A limit around the server applies before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_limit_around_a_service_is_waited_for_under_the_lock() {
    let redis = RedisServer::start();
    let locks = manager(&redis).await;
    let (entered, open) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
    let orders = Orders::new().update({
        let (entered, open) = (entered.clone(), open.clone());
        move |_| {
            let (entered, open) = (entered.clone(), open.clone());
            async move {
                entered.add_permits(1);
                open.acquire().await.unwrap().forget();
                Ok(String::new())
            }
        }
    });
    let lock = LockLayer::new(locks.clone(), order()).wait(LONG);
    let limit = GlobalConcurrencyLimitLayer::new(1);
    let inside = Running::start(lock.clone(), limit.named_layer(orders.clone())).await;
    let outside = ServiceBuilder::new().layer(GlobalConcurrencyLimitLayer::new(1)).layer(lock);
    let outside = Running::start(outside, orders).await;
    for (server, under_the_lock) in [(&inside, true), (&outside, false)] {
        let client = server.client().await;
        let update = |order: &'static str| {
            let mut client = client.clone();
            tokio::spawn(async move { client.update(order).await })
        };
        let first = update("1");
        soon("the first call", entered.acquire()).await.unwrap().forget();
        let second = update("2");
        let locked = async || locks.status("order:2").await.unwrap().is_locked();
        if under_the_lock {
            eventually(locked, SLACK).await;
            assert_eq!(entered.available_permits(), 0, "it has its lock, and waits for its permit");
        } else {
            tokio::time::sleep(ms(100)).await;
            assert!(!locked().await);
        }
        open.add_permits(1);
        soon("the first call", first).await.unwrap().unwrap();
        soon("the second call", entered.acquire()).await.unwrap().forget();
        open.add_permits(1);
        soon("the second call", second).await.unwrap().unwrap();
        at_rest(&locks, "order:2").await;
    }
}
