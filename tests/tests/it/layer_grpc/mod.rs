//! The layer in `tonic::transport::Server`, called by tonic's client over real sockets, its locks on a real Redis server.
//!
//! A second manager on the same server stands for another process, which is what it is to the store.

mod refusals;
mod service;
mod streams;
mod unary;

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use lock_runtime::layer::{PartKey, grpc_metadata};
use lock_runtime::{LockManager, LockManagerBuilder, testing};
use lock_tests::{RedisServer, eventually};
use service::{Client, Orders};
use tokio::task::JoinHandle;
use tonic::body::Body;
use tonic::service::Routes;
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Endpoint, Server};
use tower::{Layer, Service};

/// What takes a moment may take so long on a busy machine.
const SLACK: Duration = Duration::from_secs(40);
/// For those who wait for something that is about to happen.
const LONG: Duration = Duration::from_secs(120);

const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// The key of all calls: what they have in the metadata.
fn order() -> PartKey {
    grpc_metadata("x-order").prefix("order:")
}

/// A server in this process. No new connections after it is dropped.
struct Running {
    addr: SocketAddr,
    task: JoinHandle<()>,
}

impl Running {
    /// As `Server::builder().layer(layer).add_service(orders)`.
    async fn start<L, T>(layer: L, orders: Orders) -> Self
    where
        L: Layer<Routes> + Clone + Send + 'static,
        L::Service: Service<http::Request<Body>, Response = http::Response<T>> + Clone + Send + 'static,
        <L::Service as Service<http::Request<Body>>>::Future: Send,
        <L::Service as Service<http::Request<Body>>>::Error:
            Into<Box<dyn std::error::Error + Send + Sync>> + Send,
        T: http_body::Body<Data = Bytes> + Send + 'static,
        T::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let addr = listener.local_addr().unwrap();
        let server = Server::builder().layer(layer).add_service(orders);
        let task = tokio::spawn(async move {
            server.serve_with_incoming(TcpIncoming::from(listener)).await.unwrap();
        });
        Self { addr, task }
    }

    /// A client with a connection of its own.
    async fn client(&self) -> Client {
        Client::new(Endpoint::from_shared(format!("http://{}", self.addr)).unwrap().connect().await.unwrap())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn manager(redis: &RedisServer) -> LockManager {
    manager_with(redis, |builder| builder).await
}

async fn manager_with(
    redis: &RedisServer,
    settings: impl FnOnce(LockManagerBuilder) -> LockManagerBuilder,
) -> LockManager {
    settings(LockManager::builder()).connect(&redis.url()).await.expect("the server is up")
}

/// What must come before long.
async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    match tokio::time::timeout(SLACK, future).await {
        Ok(it) => it,
        Err(_) => panic!("{what}: not within {SLACK:?}"),
    }
}

/// Returns once `count` calls wait for locks of `locks`.
async fn waiting(locks: &LockManager, count: usize) {
    eventually(async || testing::leftovers(locks).waiters == count, SLACK).await;
}

/// Returns once nobody has the lock, as the store sees it, and `locks` has nothing left of it.
async fn at_rest(locks: &LockManager, key: &str) {
    eventually(async || !locks.status(key).await.is_ok_and(|status| status.is_locked()), SLACK).await;
    let quiet = || {
        let left = testing::leftovers(locks);
        (left.keys, left.timers, left.tasks, left.waiters) == (0, 0, 0, 0)
    };
    eventually(async || quiet(), SLACK).await;
    assert!(!locks.status(key).await.unwrap().is_locked());
}
