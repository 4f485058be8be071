//! The load run: many clients, several servers, and a check that no update is lost.

use std::collections::BTreeMap;
use std::fmt::{self, Write};
use std::time::{Duration, Instant};

use axum::http::{Method, Request, StatusCode};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper_util::client::legacy::Client as Pool;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::task::JoinSet;

use crate::Result;
use crate::journal::Peaks;
use crate::routes::{AddItems, SetStatus};
use crate::shop::{Order, Stock};

const ORDERS: u32 = 8;
/// An order that nobody adds anything to, so that it can be paid for.
const QUIET: u32 = ORDERS + 1;
const HOT: &str = "console";
/// Time-out of a request, longer than one takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// A client of all servers, which uses them in turn.
#[derive(Clone, Debug)]
pub(crate) struct Client {
    pool: Pool<HttpConnector, Full<Bytes>>,
    targets: Vec<String>,
}

impl Client {
    pub(crate) fn new(targets: Vec<String>) -> Self {
        Self { pool: Pool::builder(TokioExecutor::new()).build_http(), targets }
    }

    /// Sends a request; `number` selects the server.
    pub(crate) async fn send<T: Serialize>(
        &self,
        number: u32,
        method: Method,
        path: &str,
        body: &T,
    ) -> Result<(StatusCode, Bytes)> {
        let at = usize::try_from(number)? % self.targets.len().max(1);
        let target = self.targets.get(at).ok_or("there is no server")?;
        let request = Request::builder()
            .method(method)
            .uri(format!("{target}{path}"))
            .header("content-type", "application/json")
            .body(Full::from(serde_json::to_vec(body)?))?;
        let answer = async {
            let response = self.pool.request(request).await?;
            let status = response.status();
            Ok::<_, Box<dyn std::error::Error + Send + Sync>>((
                status,
                response.into_body().collect().await?.to_bytes(),
            ))
        };
        tokio::time::timeout(PATIENCE, answer).await?
    }

    async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<Option<T>> {
        match self.send(0, Method::GET, path, &()).await? {
            (StatusCode::OK, body) => Ok(Some(serde_json::from_slice(&body)?)),
            (StatusCode::NOT_FOUND, _) => Ok(None),
            (status, body) => Err(format!("GET {path}: {status} {}", String::from_utf8_lossy(&body)).into()),
        }
    }

    /// Returns the items in each order, and the reservations of the hot item.
    async fn counts(&self) -> Result<(Vec<u32>, u32)> {
        let mut items = Vec::new();
        for id in 1..=ORDERS {
            items.push(self.get::<Order>(&format!("/orders/{id}")).await?.map_or(0, |order| order.items));
        }
        let stock = self.get::<Stock>(&format!("/items/{HOT}")).await?;
        Ok((items, stock.ok_or("there is no stock")?.available))
    }
}

/// The purpose of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum What {
    Add { order: u32 },
    Status { order: u32 },
    Reserve,
}

impl What {
    async fn send(self, client: &Client, number: u32) -> Result<StatusCode> {
        let (status, _) = match self {
            Self::Add { order } => {
                let (path, add) = (format!("/orders/{order}/items"), AddItems { quantity: 1 });
                client.send(number, Method::POST, &path, &add).await?
            }
            Self::Status { order } => {
                let (path, set) =
                    (format!("/orders/{order}/status"), SetStatus { status: "paid".to_owned() });
                client.send(number, Method::PUT, &path, &set).await?
            }
            Self::Reserve => client.send(number, Method::POST, &format!("/items/{HOT}/reserve"), &()).await?,
        };
        Ok(status)
    }

    fn name(self) -> &'static str {
        match self {
            Self::Add { .. } => "POST /orders/{id}/items",
            Self::Status { .. } => "PUT  /orders/{id}/status",
            Self::Reserve => "POST /items/{id}/reserve",
        }
    }
}

/// The outcome of a load run.
#[derive(Debug)]
pub(crate) struct Report {
    statuses: BTreeMap<&'static str, BTreeMap<u16, u32>>,
    took: Duration,
    peaks: Option<Peaks>,
    pub(crate) problems: Vec<String>,
}

/// Sends `requests` additions to a few orders, half as many reservations of one item, and some
/// changes of status, all at once. Then compares the confirmed updates with the orders and the
/// stock.
pub(crate) async fn run(client: &Client, requests: u32) -> Result<Report> {
    // An order must exist before it can be paid for.
    for order in 1..=QUIET {
        let mut status = What::Add { order }.send(client, order).await?;
        let mut tries = 1;
        // Other clients do the same.
        while status == StatusCode::TOO_MANY_REQUESTS && tries < 20 {
            status = What::Add { order }.send(client, order).await?;
            tries += 1;
        }
        if status != StatusCode::OK {
            return Err(format!("the first item of order {order}: {status}").into());
        }
    }
    let (items_before, stock_before) = client.counts().await?;
    let started = Instant::now();
    let mut senders = JoinSet::new();
    for number in 0..requests {
        let order = number % ORDERS + 1;
        senders.spawn(send(client.clone(), What::Add { order }, number / ORDERS));
        if number % 2 == 0 {
            senders.spawn(send(client.clone(), What::Reserve, number / 2));
        }
        if number % 10 == 0 {
            let order = if number % 20 == 0 { order } else { QUIET };
            senders.spawn(send(client.clone(), What::Status { order }, number / 10));
        }
    }
    let mut answers: BTreeMap<(What, u16), u32> = BTreeMap::new();
    while let Some(sent) = senders.join_next().await {
        let (what, status) = sent??;
        *answers.entry((what, status.as_u16())).or_default() += 1;
    }
    let took = started.elapsed();
    let (items_after, stock_after) = client.counts().await?;
    let peaks = client.get::<Peaks>("/journal").await?;

    let done = |what| answers.get(&(what, 200)).copied().unwrap_or(0);
    let mut problems = Vec::new();
    for (order, (before, after)) in (1..).zip(items_before.iter().zip(&items_after)) {
        let (arrived, sent) = (after.saturating_sub(*before), done(What::Add { order }));
        if arrived != sent {
            problems.push(format!("order {order}: {sent} updates were confirmed, {arrived} are there"));
        }
    }
    let (gone, sold) = (stock_before.saturating_sub(stock_after), done(What::Reserve));
    if gone != sold {
        problems.push(format!("{HOT}: {sold} reservations were confirmed, {gone} are gone"));
    }
    if let Some(Peaks { of_one_order, of_all }) = peaks {
        if of_one_order > 1 {
            problems.push(format!("{of_one_order} requests at a time were in the handlers of one order"));
        }
        if of_all < 2 {
            problems.push("requests for different orders have waited for each other".to_owned());
        }
    }
    let mut statuses: BTreeMap<_, BTreeMap<u16, u32>> = BTreeMap::new();
    for ((what, status), count) in &answers {
        *statuses.entry(what.name()).or_default().entry(*status).or_default() += count;
        // 503: the store did not answer in time, so nothing was done. If something was, the
        // comparison above finds it.
        if ![200, 409, 429, 503].contains(status) {
            problems.push(format!("{}: {count} times {status}", what.name()));
        }
    }
    if answers.keys().all(|(_, status)| *status != 200) {
        problems.push("no request succeeded".to_owned());
    }
    Ok(Report { statuses, took, peaks, problems })
}

async fn send(client: Client, what: What, number: u32) -> Result<(What, StatusCode)> {
    Ok((what, what.send(&client, number).await?))
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut counts = String::new();
        for (name, statuses) in &self.statuses {
            let list: Vec<String> =
                statuses.iter().map(|(status, count)| format!("{count} × {status}")).collect();
            writeln!(counts, "   {name:26}{}", list.join(", "))?;
        }
        writeln!(f, "{counts}   done after {:.2} s", self.took.as_secs_f64())?;
        match self.peaks {
            Some(Peaks { of_one_order, of_all }) => {
                writeln!(f, "   at most {of_one_order} at a time in one order, {of_all} in all orders")?;
            }
            None => writeln!(f, "   the handlers were not watched: the servers run without --journal")?,
        }
        for problem in &self.problems {
            writeln!(f, "WRONG  {problem}")?;
        }
        f.write_str(if self.problems.is_empty() {
            "Every update that was confirmed is there."
        } else {
            "Something is wrong."
        })
    }
}

#[cfg(test)]
mod tests {
    use lock_runtime::LockManager;

    use super::*;
    use crate::args::Journaling;
    use crate::server::Server;
    use crate::shop::Shop;

    /// Runs the load on two instances with one database.
    async fn run_on(stores: [&str; 2]) -> Report {
        let folder = tempfile::tempdir().unwrap();
        let (mut servers, mut targets) = (Vec::new(), Vec::new());
        for store in stores {
            let locks = LockManager::connect(store).await.unwrap();
            let shop =
                Shop::open(Some(&folder.path().join("orders")), Duration::from_millis(10)).await.unwrap();
            let server = Server::start(locks, shop, 0, Journaling::On).await.unwrap();
            targets.push(server.url());
            servers.push(server);
        }
        let report = run(&Client::new(targets), 80).await.unwrap();
        for server in servers {
            server.stop().await.unwrap();
        }
        report
    }

    #[tokio::test]
    async fn no_update_is_lost_between_two_instances() {
        let report = run_on(["memory:no-update-is-lost"; 2]).await;
        assert_eq!(report.problems, [""; 0]);
    }

    #[tokio::test]
    async fn instances_that_do_not_share_their_locks_are_found_out() {
        let report = run_on(["memory:"; 2]).await;
        assert!(report.problems.iter().any(|problem| problem.contains("at a time")), "{report}");
    }
}
