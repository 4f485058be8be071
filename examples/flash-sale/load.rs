//! The buyers: few at first, then more and more, over connections that stay open.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use axum::http::{Method, Request, StatusCode};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper_util::client::legacy::Client as Pool;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use tokio::task::JoinSet;
use tokio::time::{sleep, sleep_until, timeout};

use crate::Result;
use crate::args::Load;
use crate::journal::{Action, Answer, Entry, Journal};
use crate::routes::{Done, Reason, Refusal, Wanted};
use crate::sale::State;

/// Maximum number of orders in progress at once.
const AT_ONCE: usize = 64;
/// Time-out of a request; after it, the request is sent again.
const PATIENCE: Duration = Duration::from_secs(15);
/// Maximum time to repeat a request whose outcome is unknown.
const ASK_AGAIN: Duration = Duration::from_secs(60);
/// Maximum time for reservations to end after the last order.
const LAST_RESERVATIONS: Duration = Duration::from_secs(30);

/// The behaviour of one buyer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Plan {
    Buy,
    /// The same order twice at the same time.
    DoubleClick,
    BuyAndGiveBack,
    ReserveAndConfirm,
    ReserveAndCancel,
    ReserveAndWalkAway,
}

impl Plan {
    fn of(number: u32) -> Self {
        match number % 20 {
            0 => Self::BuyAndGiveBack,
            1 => Self::ReserveAndCancel,
            2 => Self::ReserveAndWalkAway,
            3..=5 => Self::ReserveAndConfirm,
            6 => Self::DoubleClick,
            _ => Self::Buy,
        }
    }
}

/// Returns mostly a few units; now and then more than a nearly empty segment has.
fn quantity(number: u32) -> u64 {
    if number % 60 == 59 { 25 } else { rand::random_range(1..=4) }
}

#[derive(Debug, Default)]
struct Tally {
    requests: AtomicU64,
    sold: AtomicU64,
    units: AtomicU64,
    refused: AtomicU64,
    merged: AtomicU64,
    repeated: AtomicU64,
    walked_away: AtomicU64,
    cancelled: AtomicU64,
    too_slow: AtomicU64,
    given_back: AtomicU64,
    again: AtomicU64,
}

#[derive(Debug)]
struct Buyers {
    pool: Pool<HttpConnector, Full<Bytes>>,
    target: String,
    /// Prefix of the buyers' names, so that those of two processes differ.
    tag: String,
    journal: Journal,
    tally: Tally,
}

/// The outcome of a run.
#[derive(Debug)]
pub(crate) struct Report {
    tally: Tally,
    pub(crate) journal: Journal,
    took: Duration,
    /// The last state that the service reported.
    pub(crate) state: State,
}

pub(crate) async fn run(target: &str, options: &Load) -> Result<Report> {
    let mut connector = HttpConnector::new();
    connector.set_nodelay(true);
    let buyers = Arc::new(Buyers {
        pool: Pool::builder(TokioExecutor::new()).build(connector),
        target: target.to_owned(),
        tag: format!("{:06x}", rand::random_range(0..1 << 24)),
        journal: Journal::open(options.journal.as_deref())?,
        tally: Tally::default(),
    });
    let (requests, over) = (options.requests, options.over);
    let (started, next) = (Instant::now(), Arc::new(AtomicU32::new(0)));
    let mut workers: JoinSet<Result<()>> = JoinSet::new();
    for _ in 0..AT_ONCE {
        let (buyers, next) = (Arc::clone(&buyers), Arc::clone(&next));
        workers.spawn(async move {
            loop {
                let number = next.fetch_add(1, Relaxed);
                if number >= requests {
                    return Ok(());
                }
                // Word gets round: the first eighth of the orders comes in the first half of the
                // time.
                let due = over.mul_f64((f64::from(number) / f64::from(requests)).cbrt());
                sleep_until((started + due).into()).await;
                buyers.order(number, Plan::of(number), quantity(number)).await?;
            }
        });
    }
    while let Some(done) = workers.join_next().await {
        done??;
    }
    let took = started.elapsed();
    let state = buyers.latecomers(requests).await?;
    drop(workers);
    let Buyers { tally, journal, .. } = Arc::into_inner(buyers).ok_or("a buyer still runs")?;
    Ok(Report { tally, journal, took, state })
}

impl Buyers {
    async fn order(&self, number: u32, plan: Plan, quantity: u64) -> Result<()> {
        // Some buyers order often, and more than once at a time.
        let buyer = format!("{}-{}", self.tag, rand::random_range(0..2000));
        let order = Order {
            path: format!("/buyers/{buyer}/orders/{number}"),
            id: format!("{buyer}/{number}"),
            quantity,
            given_up: AtomicBool::new(false),
        };
        let tally = &self.tally;
        match plan {
            Plan::Buy => drop(self.buy(&order).await?),
            Plan::DoubleClick => {
                let (one, other) = tokio::join!(self.buy(&order), self.buy(&order));
                // Two answers to one order, which is refused once, or not at all.
                if [one?, other?].contains(&Answer::SoldOut) {
                    self.tally.refused.fetch_sub(1, Relaxed);
                }
            }
            Plan::BuyAndGiveBack => {
                if self.buy(&order).await? == Answer::Done {
                    self.send(&order, Action::GiveBack).await?;
                    add(&tally.given_back, 1);
                }
            }
            Plan::ReserveAndConfirm | Plan::ReserveAndCancel | Plan::ReserveAndWalkAway => {
                let (answer, done) = self.send(&order, Action::Reserve).await?;
                if answer != Answer::Done {
                    add(&tally.refused, 1);
                    return Ok(());
                }
                add(&tally.merged, done.merged.into());
                if plan == Plan::ReserveAndWalkAway {
                    add(&tally.walked_away, 1);
                    return Ok(());
                }
                let left = Duration::from_millis(done.expires_in_ms.unwrap_or(0));
                sleep(left.mul_f64(rand::random_range(0.0..0.3))).await; // looks for the credit card
                if plan == Plan::ReserveAndCancel {
                    self.send(&order, Action::Cancel).await?;
                    add(&tally.cancelled, 1);
                } else if self.send(&order, Action::Confirm).await?.0 == Answer::Done {
                    add(&tally.sold, 1);
                    add(&tally.units, quantity);
                } else {
                    add(&tally.too_slow, 1);
                }
            }
        }
        Ok(())
    }

    async fn buy(&self, order: &Order) -> Result<Answer> {
        let (answer, done) = self.send(order, Action::Buy).await?;
        let tally = &self.tally;
        match answer {
            Answer::Done if done.repeated => add(&tally.repeated, 1),
            Answer::Done => {
                add(&tally.sold, 1);
                add(&tally.units, order.quantity);
                add(&tally.merged, done.merged.into());
            }
            Answer::SoldOut | Answer::Expired => add(&tally.refused, 1),
        }
        Ok(answer)
    }

    /// Sends a request until its outcome is known.
    async fn send(&self, order: &Order, action: Action) -> Result<(Answer, Done)> {
        let Order { id, quantity, .. } = order;
        let entry = Entry { order: id.clone(), action, quantity: *quantity, answer: None };
        self.journal.note(entry.clone())?;
        let (told, copies) = self.ask(order, action).await?;
        let (answer, done) = match told {
            Ok(done) => (Answer::Done, done),
            Err(Refusal { reason: Reason::Expired, .. }) => (Answer::Expired, Done::default()),
            Err(Refusal { reason: Reason::SoldOut, .. }) if copies > 1 => self.give_up(order).await?,
            Err(Refusal { reason: Reason::SoldOut, .. }) => (Answer::SoldOut, Done::default()),
            // The other request of a double click has cancelled the order.
            Err(_) if order.given_up.load(Relaxed) => (Answer::SoldOut, Done::default()),
            Err(refusal) => return Err(format!("{id}: {}", refusal.detail).into()),
        };
        self.journal.note(Entry { answer: Some(answer), ..entry })?;
        Ok((answer, done))
    }

    /// Cancels an order that is sold out although an earlier copy of its request had no answer.
    /// That copy may still arrive and find units that others return. If the cancellation succeeds,
    /// the copy will be refused; if not, the order was sold.
    async fn give_up(&self, order: &Order) -> Result<(Answer, Done)> {
        order.given_up.store(true, Relaxed);
        match self.ask(order, Action::Cancel).await?.0 {
            Ok(_) => Ok((Answer::SoldOut, Done::default())),
            Err(Refusal { reason: Reason::Conflict, .. }) => {
                Ok((Answer::Done, Done { repeated: true, ..Done::default() }))
            }
            Err(refusal) => Err(format!("{}: {}", order.id, refusal.detail).into()),
        }
    }

    /// Repeats a request until the shop gives a final answer. Returns it with the number of copies
    /// sent; all copies are the same request.
    async fn ask(&self, order: &Order, action: Action) -> Result<(Result<Done, Refusal>, u32)> {
        let path = format!("{}/{}", order.path, action.path());
        let (asked, wanted) = (Instant::now(), Wanted { quantity: order.quantity });
        let mut copies = 0;
        loop {
            add(&self.tally.requests, 1);
            copies += 1;
            let problem = match timeout(PATIENCE, self.request(Method::POST, &path, &wanted)).await {
                Ok(Ok((StatusCode::OK, body))) => return Ok((Ok(serde_json::from_slice(&body)?), copies)),
                Ok(Ok((StatusCode::GONE | StatusCode::CONFLICT, body))) => {
                    return Ok((Err(serde_json::from_slice(&body)?), copies));
                }
                // The store did not answer in time, or another request of this buyer takes long.
                Ok(Ok((status @ (StatusCode::SERVICE_UNAVAILABLE | StatusCode::TOO_MANY_REQUESTS), _))) => {
                    status.to_string()
                }
                Ok(Ok((status, body))) => {
                    return Err(format!("{path}: {status} {}", String::from_utf8_lossy(&body)).into());
                }
                Ok(Err(error)) => error.to_string(),
                Err(_late) => format!("no answer within {PATIENCE:?}"),
            };
            if asked.elapsed() > ASK_AGAIN {
                return Err(format!("{path}: the outcome is unknown: {problem}").into());
            }
            add(&self.tally.again, 1);
            sleep(Duration::from_millis(rand::random_range(20..200))).await;
        }
    }

    async fn request(&self, method: Method, path: &str, body: &Wanted) -> Result<(StatusCode, Bytes)> {
        let request = Request::builder()
            .method(method)
            .uri(format!("{}{path}", self.target))
            .header("content-type", "application/json")
            .body(Full::from(serde_json::to_vec(body)?))?;
        let response = self.pool.request(request).await?;
        let status = response.status();
        Ok((status, response.into_body().collect().await?.to_bytes()))
    }

    async fn state(&self) -> Result<State> {
        let asked = Instant::now();
        loop {
            match timeout(PATIENCE, self.request(Method::GET, "/state", &Wanted { quantity: 0 })).await {
                Ok(Ok((StatusCode::OK, body))) => return Ok(serde_json::from_slice(&body)?),
                answer if asked.elapsed() > ASK_AGAIN => {
                    return Err(format!("{}/state does not answer: {answer:?}", self.target).into());
                }
                _ => sleep(Duration::from_millis(200)).await,
            }
        }
    }

    /// Buys, one by one, the units that come back after the sale was sold out.
    async fn latecomers(&self, mut number: u32) -> Result<State> {
        let asked = Instant::now();
        loop {
            let state = self.state().await?;
            let over = state.held + state.in_transit == 0 || asked.elapsed() > LAST_RESERVATIONS;
            if over && (state.available == 0 || self.tally.refused.load(Relaxed) == 0) {
                return Ok(state);
            }
            if !over {
                sleep(Duration::from_millis(50)).await;
                continue;
            }
            for _ in 0..state.available {
                self.order(number, Plan::Buy, 1).await?;
                number += 1;
            }
        }
    }
}

#[derive(Debug)]
struct Order {
    path: String,
    /// The id in the stock.
    id: String,
    quantity: u64,
    /// Whether its buyer has sent a cancellation.
    given_up: AtomicBool,
}

impl Action {
    fn path(self) -> &'static str {
        match self {
            Self::Buy => "buy",
            Self::Reserve => "reserve",
            Self::Confirm => "confirm",
            Self::Cancel => "cancel",
            Self::GiveBack => "give-back",
        }
    }
}

fn add(counter: &AtomicU64, count: u64) {
    counter.fetch_add(count, Relaxed);
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let of = |counter: &AtomicU64| counter.load(Relaxed);
        let tally = &self.tally;
        let seconds = self.took.as_secs_f64();
        let rate = of(&tally.requests) as f64 / seconds.max(0.001);
        writeln!(f, "   sold      {} orders, {} units", of(&tally.sold), of(&tally.units))?;
        writeln!(f, "   came back {} orders", of(&tally.given_back))?;
        writeln!(f, "   refused   {} orders: sold out", of(&tally.refused))?;
        writeln!(f, "   merged    {} orders, from several segments", of(&tally.merged))?;
        writeln!(f, "   repeated  {} orders, sold once", of(&tally.repeated))?;
        write!(f, "   reserved  and not bought: {} cancelled, ", of(&tally.cancelled))?;
        writeln!(f, "{} expired", of(&tally.walked_away) + of(&tally.too_slow))?;
        let again = match of(&tally.again) {
            0 => String::new(),
            again => format!(", {again} of them again because the outcome was unknown"),
        };
        write!(f, "   {} requests in {seconds:.2} s, {rate:.0} requests/s{again}", of(&tally.requests))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::sync::Mutex;

    use axum::extract::Path;
    use axum::routing::post;
    use axum::{Json, Router};

    use super::*;
    use crate::routes::Reason::{Conflict, SoldOut, TryAgain};

    type Script = Arc<Mutex<VecDeque<(&'static str, u16, Reason)>>>;

    /// Makes buyers whose shop gives these answers, in this order.
    async fn buyers(script: &Script) -> (Buyers, Order) {
        let script = Arc::clone(script);
        let answer = async move |Path((_, _, action)): Path<(String, String, String)>| {
            let next = script.lock().unwrap().pop_front();
            let (_, status, reason) =
                next.filter(|(to, ..)| *to == action).unwrap_or(("", 500, Reason::Broken));
            let status = StatusCode::from_u16(status).unwrap();
            let body = match status {
                StatusCode::OK => serde_json::to_value(Done::default()),
                _ => serde_json::to_value(Refusal { reason, detail: action }),
            };
            (status, Json(body.unwrap()))
        };
        let shop = Router::new().route("/buyers/{buyer}/orders/{order}/{action}", post(answer));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let buyers = Buyers {
            pool: Pool::builder(TokioExecutor::new()).build_http(),
            target: format!("http://{}", listener.local_addr().unwrap()),
            tag: String::new(),
            journal: Journal::open(None).unwrap(),
            tally: Tally::default(),
        };
        tokio::spawn(async move { axum::serve(listener, shop).await });
        let (path, id, given_up) = ("/buyers/a/orders/1".into(), "a/1".into(), AtomicBool::new(false));
        (buyers, Order { path, id, quantity: 2, given_up })
    }

    /// Asserts the answer to each click, and returns the units sold by the books.
    async fn told(script: &[(&'static str, u16, Reason)], clicks: &[Answer]) -> u64 {
        let script = Arc::new(Mutex::new(script.iter().copied().collect()));
        let (buyers, order) = buyers(&script).await;
        for answer in clicks {
            assert_eq!(buyers.buy(&order).await.unwrap(), *answer);
        }
        assert!(script.lock().unwrap().is_empty(), "all that was expected was sent");
        let books = buyers.journal.books();
        assert!(books.unknown().is_empty());
        books.sold()
    }

    #[tokio::test]
    async fn sold_out_is_final_when_nothing_was_sent_before() {
        assert_eq!(told(&[("buy", 410, SoldOut)], &[Answer::SoldOut]).await, 0);
    }

    #[tokio::test]
    async fn a_request_that_may_be_on_its_way_is_cancelled_when_it_is_sold_out() {
        let script = [
            ("buy", 503, TryAgain),
            ("buy", 410, SoldOut),
            ("cancel", 503, TryAgain),
            ("cancel", 200, SoldOut),
            // The other request of the double click.
            ("buy", 409, Conflict),
        ];
        assert_eq!(told(&script, &[Answer::SoldOut, Answer::SoldOut]).await, 0);
    }

    #[tokio::test]
    async fn an_order_that_cannot_be_cancelled_was_sold_after_all() {
        let script = [("buy", 503, TryAgain), ("buy", 410, SoldOut), ("cancel", 409, Conflict)];
        assert_eq!(told(&script, &[Answer::Done]).await, 2);
    }
}
