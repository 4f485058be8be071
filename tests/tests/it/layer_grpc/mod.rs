//! The layer in `tonic::transport::Server`, called by tonic's client over real sockets, with its
//! locks on a real Redis server.
//!
//! A second manager on the same server stands for another process: to the store it is one.

mod refusals;
mod service;
mod streams;
mod unary;

use std::convert::Infallible;
use std::net::SocketAddr;

use bytes::Bytes;
use lock_runtime::layer::{PartKey, grpc_metadata};
use service::Client;
use tokio::task::JoinHandle;
use tonic::body::Body;
use tonic::server::NamedService;
use tonic::service::Routes;
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Endpoint, Server};
use tower::{Layer, Service};

use crate::layer_rig::{LONG, SLACK, at_rest, manager, manager_with, ms, soon, waiting};

/// Returns the key of all calls, from the metadata.
fn order() -> PartKey {
    grpc_metadata("x-order").prefix("order:")
}

/// A server in this process. It accepts no new connections after it is dropped.
struct Running {
    addr: SocketAddr,
    task: JoinHandle<()>,
}

impl Running {
    /// Starts a server as `Server::builder().layer(layer).add_service(orders)` makes it.
    async fn start<L, S, T>(layer: L, orders: S) -> Self
    where
        S: Service<http::Request<Body>, Response = http::Response<Body>, Error = Infallible>,
        S: NamedService + Clone + Send + Sync + 'static,
        S::Future: Send + 'static,
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

    /// Returns a client with a new connection.
    async fn client(&self) -> Client {
        Client::new(Endpoint::from_shared(format!("http://{}", self.addr)).unwrap().connect().await.unwrap())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.task.abort();
    }
}
