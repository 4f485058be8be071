//! The routes, the layer around them, and the handlers.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::http::header::RETRY_AFTER;
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{Html, IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use lock_runtime::LockManager;
use lock_runtime::layer::LockLayer;
use lock_runtime::layer::path_param;
use lock_runtime::segmented::{OperationId, StockError, Taken};
use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tokio_stream::wrappers::WatchStream;
use tokio_stream::{Stream, StreamExt};

use crate::sale::{self, Sale};

#[derive(Clone, Debug)]
pub(crate) struct App {
    pub(crate) sale: Arc<Sale>,
    /// The states that the page shows: rendered once for all viewers.
    pub(crate) states: watch::Receiver<Arc<str>>,
}

pub(crate) fn router(locks: LockManager, app: App) -> Router {
    // One purchase of a buyer at a time, in all instances: a buyer who clicks twice, or sends a
    // hundred orders by a program, waits for the first one. Buyers do not wait for each other: the
    // stock needs no lock.
    let per_buyer = LockLayer::new(locks, path_param("buyer").prefix("flash-sale:buyer:"))
        .wait(Duration::from_secs(5))
        .max_hold(Duration::from_secs(10))
        .name("buyer");
    Router::new()
        .route("/buyers/{buyer}/orders/{order}/buy", post(buy))
        .route("/buyers/{buyer}/orders/{order}/reserve", post(reserve))
        .route("/buyers/{buyer}/orders/{order}/confirm", post(confirm))
        .route("/buyers/{buyer}/orders/{order}/cancel", post(cancel))
        .route("/buyers/{buyer}/orders/{order}/give-back", post(give_back))
        .route_layer(per_buyer)
        .route("/", get(|| async { Html(include_str!("page.html")) }))
        .route("/state", get(state))
        .route("/events", get(events))
        .with_state(app)
}

/// Identifies a request that is repeated, by the buyer and the number that the buyer gave the
/// order.
#[derive(Debug, Deserialize)]
struct Order {
    buyer: String,
    order: String,
}

impl Order {
    /// Returns the id in the stock. A `/` can come as `%2F`: with one in the buyer's name, the
    /// orders of two buyers could have the same id.
    fn id(&self) -> Result<OperationId, StockError> {
        if self.buyer.contains('/') {
            return Err(StockError::Misconfigured { reason: "a buyer's name can't contain a /".into() });
        }
        Ok(OperationId::new(format!("{}/{}", self.buyer, self.order))?)
    }
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Wanted {
    pub(crate) quantity: u64,
}

/// The answer to a buyer whose request was done.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Done {
    /// The units come from several segments, none of which had enough.
    pub(crate) merged: bool,
    /// It had been done before; nothing was done now.
    pub(crate) repeated: bool,
    /// Time left of the reservation.
    pub(crate) expires_in_ms: Option<u64>,
}

impl Done {
    fn of(taken: &Taken) -> Self {
        Self { merged: taken.is_merged(), repeated: taken.is_repeated(), expires_in_ms: None }
    }
}

type Answer = Result<Json<Done>, Refused>;

async fn buy(State(app): State<App>, Path(order): Path<Order>, Json(wanted): Json<Wanted>) -> Answer {
    app.sale
        .noted(async |sale, counters| {
            let taken = sale.stock.take(order.id()?, wanted.quantity).await?;
            if !taken.is_repeated() {
                add_one(&counters.sold);
            }
            Ok(Done::of(&taken))
        })
        .await
}

async fn reserve(State(app): State<App>, Path(order): Path<Order>, Json(wanted): Json<Wanted>) -> Answer {
    app.sale
        .noted(async |sale, _| {
            let reserved = sale.stock.reserve(order.id()?, wanted.quantity, sale.hold).await?;
            let expires_in_ms = reserved.remaining().and_then(|left| u64::try_from(left.as_millis()).ok());
            Ok(Done { expires_in_ms, ..Done::of(reserved.taken()) })
        })
        .await
}

async fn confirm(State(app): State<App>, Path(order): Path<Order>) -> Answer {
    app.sale
        .noted(async |sale, counters| {
            sale.stock.confirm(order.id()?).await?;
            add_one(&counters.sold);
            Ok(Done::default())
        })
        .await
}

async fn cancel(State(app): State<App>, Path(order): Path<Order>) -> Answer {
    app.sale
        .noted(async |sale, counters| {
            sale.stock.cancel(order.id()?).await?;
            add_one(&counters.cancelled);
            Ok(Done::default())
        })
        .await
}

async fn give_back(State(app): State<App>, Path(order): Path<Order>) -> Answer {
    app.sale
        .noted(async |sale, counters| {
            sale.stock.give_back(order.id()?).await?;
            add_one(&counters.given_back);
            Ok(Done::default())
        })
        .await
}

fn add_one(counter: &AtomicU64) {
    counter.fetch_add(1, Relaxed);
}

impl Sale {
    /// Does what a request asks for, and counts the outcome.
    async fn noted(
        &self,
        work: impl AsyncFnOnce(&Self, &sale::Counters) -> Result<Done, StockError>,
    ) -> Answer {
        let counters = &self.counters;
        add_one(&counters.requests);
        match work(self, counters).await {
            Ok(done) => {
                if done.merged && !done.repeated {
                    add_one(&counters.merged);
                }
                if done.repeated {
                    add_one(&counters.repeated);
                }
                Ok(Json(done))
            }
            Err(error) => {
                if error.is_sold_out() {
                    add_one(&counters.refused);
                } else if error.is_retryable() && counters.unsettled.fetch_add(1, Relaxed).is_multiple_of(100)
                {
                    // One line says as much as a hundred.
                    eprintln!("warning: {error}");
                }
                Err(Refused(error))
            }
        }
    }
}

/// Why a request was not done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Reason {
    SoldOut,
    Expired,
    /// The order is over, or differs from what the buyer thinks.
    Conflict,
    Unknown,
    BadRequest,
    /// It may have been done, or not: send the same request again.
    TryAgain,
    Broken,
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Refusal {
    pub(crate) reason: Reason,
    pub(crate) detail: String,
}

#[derive(Debug)]
pub(crate) struct Refused(StockError);

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        let Self(error) = self;
        let (status, reason) = match &error {
            StockError::SoldOut { .. } => (StatusCode::GONE, Reason::SoldOut),
            StockError::Expired { .. } => (StatusCode::GONE, Reason::Expired),
            error if error.is_retryable() => (StatusCode::SERVICE_UNAVAILABLE, Reason::TryAgain),
            StockError::UnknownOperation { .. } => (StatusCode::NOT_FOUND, Reason::Unknown),
            StockError::InvalidOperationId(_) | StockError::Misconfigured { .. } => {
                (StatusCode::BAD_REQUEST, Reason::BadRequest)
            }
            StockError::Missing { .. } | StockError::Lock(_) => {
                (StatusCode::INTERNAL_SERVER_ERROR, Reason::Broken)
            }
            _ => (StatusCode::CONFLICT, Reason::Conflict),
        };
        // The store's error is for the operator, and not for buyers.
        let detail = match reason {
            Reason::TryAgain => "the outcome is unknown, send the same request again".to_owned(),
            Reason::Broken => {
                eprintln!("error: {error}");
                "the shop has failed".to_owned()
            }
            _ => error.to_string(),
        };
        let mut response = (status, Json(Refusal { reason, detail })).into_response();
        if reason == Reason::TryAgain {
            response.headers_mut().insert(RETRY_AFTER, 1.into());
        }
        response
    }
}

async fn state(State(app): State<App>) -> Result<Json<sale::State>, Refused> {
    app.sale.state().await.map(Json).map_err(Refused)
}

/// Streams the state of the sale whenever it changes. When the service ends, tells the page not to
/// reconnect.
async fn events(State(app): State<App>) -> Sse<impl Stream<Item = Result<Event, Infallible>>> {
    let states = WatchStream::new(app.states).filter(|state| !state.is_empty());
    let states = states.map(|state| Event::default().data(&*state));
    let over = tokio_stream::once(Event::default().event("over").data("the service has ended"));
    Sse::new(states.chain(over).map(Ok)).keep_alive(KeepAlive::default())
}
