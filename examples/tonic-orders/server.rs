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

/// Time for calls in progress to finish, including streams and calls that wait for a lock.
const DRAIN: Duration = Duration::from_secs(10);
/// Time after that for calls that hold a lock.
const GRACE: Duration = Duration::from_secs(5);
/// Time after that to refuse waiting calls, and to end streams with `ABORTED`.
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

    /// Stops accepting calls, lets those in progress finish, and then takes away the locks that are
    /// still held. Other instances need not wait for leases to expire.
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
