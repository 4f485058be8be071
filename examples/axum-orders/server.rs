//! One instance of the service: how it starts, and how it stops without leaving a lock behind.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use lock_runtime::LockManager;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::Result;
use crate::args::Journaling;
use crate::shop::Shop;
use crate::{journal, routes};

/// Time for requests in progress to finish, including those that wait for a lock.
const DRAIN: Duration = Duration::from_secs(10);
/// Time after that for requests that hold a lock.
const GRACE: Duration = Duration::from_secs(5);
/// Time after that to tell waiting requests that they get no lock.
const LAST_WORDS: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(crate) struct Server {
    address: SocketAddr,
    locks: LockManager,
    serving: JoinHandle<io::Result<()>>,
    stop: oneshot::Sender<()>,
}

impl Server {
    pub(crate) async fn start(
        locks: LockManager,
        shop: Shop,
        port: u16,
        journaling: Journaling,
    ) -> Result<Self> {
        if journaling == Journaling::On {
            journal::open(&shop.pool).await?;
        }
        let listener = TcpListener::bind(("127.0.0.1", port))
            .await
            .map_err(|error| format!("can't listen on port {port}: {error}; try --port 0"))?;
        let address = listener.local_addr()?;
        let app = routes::router(locks.clone(), shop, journaling);
        let (stop, stopped) = oneshot::channel::<()>();
        let serving = axum::serve(listener, app).with_graceful_shutdown(async move {
            let _ = stopped.await;
        });
        Ok(Self { address, locks, serving: tokio::spawn(async move { serving.await }), stop })
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Stops accepting connections, lets the requests in progress finish, and then takes away the
    /// locks that are still held. Other instances need not wait for leases to expire.
    pub(crate) async fn stop(mut self) -> Result<()> {
        let _ = self.stop.send(());
        let drained = timeout(DRAIN, &mut self.serving).await;
        let released = self.locks.shutdown(GRACE).await;
        match drained {
            Ok(served) => served??,
            // Requests that still wait are refused now, with 503 and `Retry-After`.
            Err(_late) => drop(timeout(LAST_WORDS, &mut self.serving).await),
        }
        Ok(released?)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use axum::http::{Method, StatusCode};
    use serde_json::{Value, json};

    use super::*;
    use crate::load::Client;

    const SOON: Duration = Duration::from_secs(20);

    async fn server(store: &str, work: Duration) -> (Server, Client, LockManager) {
        let shop = Shop::open(None, work).await.unwrap();
        let locks = LockManager::connect(store).await.unwrap();
        let server = Server::start(locks.clone(), shop, 0, Journaling::Off).await.unwrap();
        let client = Client::new(vec![server.url()]);
        (server, client, locks)
    }

    async fn send(client: &Client, method: Method, path: &str, body: Value) -> (StatusCode, Value) {
        let (status, body) = client.send(0, method, path, &body).await.unwrap();
        (status, serde_json::from_slice(&body).unwrap_or_default())
    }

    #[tokio::test]
    async fn an_order_is_made_paid_and_read() {
        let (server, client, _) = server("memory:", Duration::ZERO).await;
        let (status, order) = send(&client, Method::POST, "/orders/42/items", json!({"quantity": 2})).await;
        assert_eq!((status, &order["items"]), (StatusCode::OK, &json!(2)));
        // The handler holds the order's lock and calls a function that asks for it: the same token,
        // without a wait.
        let (status, paid) =
            send(&client, Method::PUT, "/orders/042/status", json!({"status": "paid"})).await;
        assert_eq!((status, &paid["status"]), (StatusCode::OK, &json!("paid")));
        assert!(paid["token"].as_i64() > order["token"].as_i64(), "{paid}");
        assert_eq!(send(&client, Method::GET, "/orders/42", json!(null)).await, (StatusCode::OK, paid));
        for (path, expected) in [("/orders/43/status", 404), ("/orders/x/status", 400), ("/orders/42/x", 404)]
        {
            let (status, _) = send(&client, Method::PUT, path, json!({"status": "paid"})).await;
            assert_eq!(status.as_u16(), expected, "{path}");
        }
        server.stop().await.unwrap();
    }

    #[tokio::test]
    async fn what_is_busy_is_said_at_once_or_after_a_short_wait() {
        let (server, client, locks) = server("memory:", Duration::ZERO).await;
        let order = locks.mutex("order:42").acquire().await.unwrap();
        let item = locks.mutex("item:console").acquire().await.unwrap();
        let (status, problem) =
            send(&client, Method::PUT, "/orders/42/status", json!({"status": "paid"})).await;
        assert_eq!((status.as_u16(), &problem["type"]), (409, &json!("urn:problem-type:lock:busy")));
        let (status, problem) = send(&client, Method::POST, "/items/console/reserve", json!(null)).await;
        assert_eq!((status.as_u16(), &problem["type"]), (429, &json!("urn:problem-type:lock:timed_out")));
        let (status, _) = send(&client, Method::GET, "/items/console", json!(null)).await;
        assert_eq!(status, StatusCode::OK, "reading needs no lock");
        order.release().await.unwrap();
        item.release().await.unwrap();
        server.stop().await.unwrap();
    }

    #[tokio::test]
    async fn a_server_that_stops_finishes_its_requests_and_leaves_no_lock() {
        let store = "memory:a-server-that-stops";
        let (server, client, locks) = server(store, Duration::from_millis(300)).await;
        let adding = tokio::spawn(async move {
            send(&client, Method::POST, "/orders/1/items", json!({"quantity": 1})).await.0
        });
        let others = LockManager::connect(store).await.unwrap();
        let asked = Instant::now();
        while !others.status("order:1").await.unwrap().is_locked() {
            assert!(asked.elapsed() < SOON, "the request never got its lock");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        server.stop().await.unwrap();
        assert_eq!(adding.await.unwrap(), StatusCode::OK);
        assert!(!others.status("order:1").await.unwrap().is_locked());
        assert!(locks.mutex("order:1").try_acquire().await.is_err(), "it has shut down");
    }
}
