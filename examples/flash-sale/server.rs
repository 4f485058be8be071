//! The service: how it starts, and how it stops without leaving a lock behind.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::serve::ListenerExt;
use lock_runtime::LockManager;
use tokio::net::TcpListener;
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::Result;
use crate::routes::{self, App};
use crate::sale::{self, Sale};

/// Time for requests in progress to finish.
const DRAIN: Duration = Duration::from_secs(10);
/// Time after that for requests that hold a lock.
const GRACE: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub(crate) struct Server {
    address: SocketAddr,
    locks: LockManager,
    serving: JoinHandle<io::Result<()>>,
    stop: oneshot::Sender<()>,
    stop_publishing: oneshot::Sender<()>,
}

impl Server {
    pub(crate) async fn start(locks: LockManager, sale: Sale, port: u16) -> Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", port))
            .await
            .map_err(|error| format!("can't listen on port {port}: {error}; try --port 0"))?;
        let address = listener.local_addr()?;
        // An answer is several small writes, which should not wait for each other's
        // acknowledgements.
        let listener = listener.tap_io(|stream| drop(stream.set_nodelay(true)));
        let sale = Arc::new(sale);
        let (states_sender, states) = watch::channel("".into());
        let (stop_publishing, publishing_stopped) = oneshot::channel();
        tokio::spawn(sale::publish(Arc::clone(&sale), states_sender, publishing_stopped));
        let app = routes::router(locks.clone(), App { sale, states });
        let (stop, stopped) = oneshot::channel::<()>();
        let serving = axum::serve(listener, app).with_graceful_shutdown(async move {
            let _ = stopped.await;
        });
        let serving = tokio::spawn(async move { serving.await });
        Ok(Self { address, locks, serving, stop, stop_publishing })
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Stops accepting connections, lets requests in progress finish, ends the page's streams, and
    /// releases all locks.
    pub(crate) async fn stop(mut self) -> Result<()> {
        let _ = self.stop.send(());
        let _ = self.stop_publishing.send(());
        let drained = timeout(DRAIN, &mut self.serving).await;
        self.locks.shutdown(GRACE).await?;
        match drained {
            Ok(served) => Ok(served??),
            // A client keeps a connection open and sends nothing.
            Err(_late) => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use axum::http::{Request, StatusCode};
    use bytes::Bytes;
    use http_body_util::{BodyExt, Full};
    use hyper_util::client::legacy::Client as Pool;
    use hyper_util::client::legacy::connect::HttpConnector;
    use hyper_util::rt::TokioExecutor;
    use lock_runtime::segmented::Layout;
    use serde_json::{Value, json};

    use super::*;
    use crate::args::{Load, Serve};
    use crate::audit::{self, Sellers};
    use crate::load;

    const HOUR: Duration = Duration::from_secs(3600);

    async fn server(store: &str, units: u64, hold: Duration) -> (Server, LockManager) {
        let options = Serve { port: 0, sale: None, units, segments: 10, layout: Layout::OneSlot, hold };
        let locks = LockManager::connect(store).await.unwrap();
        let sale = Sale::open(&locks, "test", &options).await.unwrap();
        (Server::start(locks.clone(), sale, 0).await.unwrap(), locks)
    }

    #[derive(Clone)]
    struct Client {
        pool: Pool<HttpConnector, Full<Bytes>>,
        url: String,
    }

    impl Client {
        fn of(server: &Server) -> Self {
            Self { pool: Pool::builder(TokioExecutor::new()).build_http(), url: server.url() }
        }

        async fn post(&self, path: &str, quantity: u64) -> (StatusCode, Value) {
            let body = Full::from(json!({ "quantity": quantity }).to_string());
            let uri = format!("{}/buyers/{path}", self.url);
            let request = Request::post(uri).header("content-type", "application/json").body(body).unwrap();
            let response = self.pool.request(request).await.unwrap();
            let (status, body) =
                (response.status(), response.into_body().collect().await.unwrap().to_bytes());
            (status, serde_json::from_slice(&body).unwrap_or_default())
        }

        async fn get(&self, path: &str) -> Bytes {
            let response = self.pool.get(format!("{}{path}", self.url).parse().unwrap()).await.unwrap();
            response.into_body().collect().await.unwrap().to_bytes()
        }

        async fn state(&self) -> Value {
            serde_json::from_slice(&self.get("/state").await).unwrap()
        }
    }

    #[tokio::test]
    async fn an_order_is_sold_once_however_often_it_is_sent() {
        let (server, _) = server("memory:", 10, HOUR / 2).await;
        let client = Client::of(&server);
        let (status, sold) = client.post("ann/orders/1/buy", 2).await;
        assert_eq!(
            (status, &sold["repeated"], &sold["merged"]),
            (StatusCode::OK, &false.into(), &true.into())
        );
        let (status, again) = client.post("ann/orders/1/buy", 2).await;
        assert_eq!((status, &again["repeated"]), (StatusCode::OK, &true.into()));
        // Each buyer has separate order numbers.
        assert_eq!(client.post("bob/orders/1/buy", 3).await.0, StatusCode::OK);
        assert_eq!(client.post("ann/orders/1/buy", 3).await.0, StatusCode::CONFLICT);
        let (status, refused) = client.post("ann/orders/2/buy", 6).await;
        assert_eq!((status, &refused["reason"]), (StatusCode::GONE, &"sold_out".into()));
        // A buyer that repeats an order gives it up, and is told whether it was sold.
        assert_eq!(client.post("ann/orders/2/cancel", 0).await.0, StatusCode::OK);
        assert_eq!(client.post("ann/orders/2/buy", 6).await.0, StatusCode::CONFLICT);
        assert_eq!(client.post("ann/orders/1/cancel", 0).await.0, StatusCode::CONFLICT);
        assert_eq!(client.post("ann/orders/1/give-back", 0).await.0, StatusCode::OK);
        assert_eq!(client.post("ann/orders/3/give-back", 0).await.0, StatusCode::NOT_FOUND);
        assert_eq!(client.post("ann/orders/4/buy", 0).await.0, StatusCode::BAD_REQUEST);
        let state = client.state().await;
        assert_eq!((&state["available"], &state["sold"]), (&7.into(), &3.into()), "{state}");
        assert_eq!(state["counts"]["repeated"], 1);
        server.stop().await.unwrap();
    }

    #[tokio::test]
    async fn no_buyer_can_order_in_the_name_of_another() {
        let (server, _) = server("memory:", 10, HOUR / 2).await;
        let client = Client::of(&server);
        // Both would be the order ann/smith/1.
        assert_eq!(client.post("ann/orders/smith%2F1/buy", 2).await.0, StatusCode::OK);
        let (status, refused) = client.post("ann%2Fsmith/orders/1/give-back", 0).await;
        assert_eq!((status, &refused["reason"]), (StatusCode::BAD_REQUEST, &"bad_request".into()));
        assert_eq!(client.state().await["sold"], 2);
        server.stop().await.unwrap();
    }

    #[tokio::test]
    async fn a_reservation_is_confirmed_or_cancelled_or_ends() {
        // A store with a name lives as long as one of its managers.
        let (server, _locks) = server("memory:a-reservation", 10, HOUR / 2).await;
        let client = Client::of(&server);
        let (status, reserved) = client.post("ann/orders/1/reserve", 4).await;
        assert!(status == 200 && reserved["expires_in_ms"].as_u64() > Some(0), "{reserved}");
        assert_eq!(client.state().await["held"], 4);
        assert_eq!(client.post("ann/orders/1/confirm", 0).await.0, StatusCode::OK);
        assert_eq!(client.post("ann/orders/1/cancel", 0).await.0, StatusCode::CONFLICT);
        client.post("ann/orders/2/reserve", 4).await;
        assert_eq!(client.post("ann/orders/2/cancel", 0).await.0, StatusCode::OK);
        server.stop().await.unwrap();

        let (server, _) = self::server("memory:a-reservation", 0, Duration::from_millis(1)).await;
        let client = Client::of(&server);
        client.post("ann/orders/3/reserve", 4).await;
        // The sweeper ends it soon.
        while client.state().await["held"] != 0 {
            tokio::task::yield_now().await;
        }
        let (status, refused) = client.post("ann/orders/3/confirm", 0).await;
        assert_eq!((status, &refused["reason"]), (StatusCode::GONE, &"expired".into()));
        let state = client.state().await;
        assert_eq!((&state["available"], &state["sold"]), (&6.into(), &4.into()), "one name is one sale");
        server.stop().await.unwrap();
    }

    #[tokio::test]
    async fn a_buyer_waits_for_himself_and_for_nobody_else() {
        let (server, locks) = server("memory:", 10, HOUR / 2).await;
        let client = Client::of(&server);
        let purchase = locks.mutex("flash-sale:buyer:ann").acquire().await.unwrap();
        let waits = tokio::spawn({
            let client = client.clone();
            async move { client.post("ann/orders/1/buy", 1).await.0 }
        });
        assert_eq!(client.post("bob/orders/1/buy", 1).await.0, StatusCode::OK);
        assert_eq!(client.state().await["sold"], 1);
        purchase.release().await.unwrap();
        assert_eq!(waits.await.unwrap(), StatusCode::OK);
        server.stop().await.unwrap();
    }

    #[tokio::test]
    async fn a_page_that_looks_on_is_told_the_end_and_keeps_nobody() {
        let (server, _) = server("memory:", 10, HOUR / 2).await;
        let client = Client::of(&server);
        let events = format!("{}/events", client.url).parse().unwrap();
        let looking = client.pool.get(events).await.unwrap();
        client.post("ann/orders/1/buy", 3).await;
        timeout(DRAIN / 2, server.stop()).await.expect("an open page does not delay the end").unwrap();
        let told =
            String::from_utf8(looking.into_body().collect().await.unwrap().to_bytes().to_vec()).unwrap();
        assert!(told.contains(r#""sold":3,"balanced":true"#) && told.contains("event: over"), "{told}");
    }

    #[tokio::test]
    async fn a_sale_under_load_balances() {
        let (server, _) = server("memory:", 100, Duration::from_millis(100)).await;
        let options = Load { requests: 400, over: Duration::ZERO, journal: None };
        let report = load::run(&server.url(), &options).await.unwrap();
        let (text, problems) = audit::check(&report.state, &report.journal.books(), Sellers::Alone);
        assert_eq!(problems, [""; 0], "{report}\n{text}");
        assert_eq!(report.state.sold, 100, "{report}");
        server.stop().await.unwrap();
    }
}
