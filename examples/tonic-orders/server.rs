//! One instance of the service: how it starts, and how it stops without leaving a lock behind.

use std::net::SocketAddr;
use std::time::Duration;

use lock_runtime::LockManager;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tonic::transport::server::TcpIncoming;

use crate::Result;
use crate::service;
use crate::shop::Shop;

/// For how long calls that have come already may go on, streams too, and those that wait for a
/// lock.
const DRAIN: Duration = Duration::from_secs(10);
/// For how long those may go on that have a lock then.
const GRACE: Duration = Duration::from_secs(5);
/// What it takes to tell the others that they got none, and to end a stream with `ABORTED`.
const LAST_WORDS: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(crate) struct Server {
    address: SocketAddr,
    locks: LockManager,
    serving: JoinHandle<Result<(), tonic::transport::Error>>,
    stop: oneshot::Sender<()>,
}

impl Server {
    pub(crate) async fn start(shop: Shop, port: u16) -> Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", port))
            .await
            .map_err(|error| format!("can't listen on port {port}: {error}; try --port 0"))?;
        let address = listener.local_addr()?;
        let (stop, stopped) = oneshot::channel::<()>();
        let server = tonic::transport::Server::builder().add_routes(service::routes(&shop));
        let serving = server.serve_with_incoming_shutdown(TcpIncoming::from(listener), async move {
            let _ = stopped.await;
        });
        Ok(Self { address, locks: shop.locks, serving: tokio::spawn(serving), stop })
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// First no more calls, and an end to those under way; then what still holds a lock loses it,
    /// so that other instances need not wait for leases to end.
    pub(crate) async fn stop(mut self) -> Result<()> {
        let _ = self.stop.send(());
        let drained = timeout(DRAIN, &mut self.serving).await;
        let released = self.locks.shutdown(GRACE).await;
        match drained {
            Ok(served) => served??,
            Err(_late) => drop(timeout(LAST_WORDS, &mut self.serving).await),
        }
        Ok(released?)
    }
}
