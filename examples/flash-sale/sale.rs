//! The sale: its stock, the outcome of requests to this instance, and the state that the page
//! shows.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use lock_runtime::LockManager;
use lock_runtime::segmented::{Layout, SegmentedStock, Snapshot, StockError, Sweeper};
use serde::{Deserialize, Serialize};
use tokio::sync::{oneshot, watch};

use crate::args::Serve;

/// How long an order is known after its end. Nobody repeats a request later than that, nor does an
/// audit, as the README and `--help` say.
const RETENTION: Duration = Duration::from_secs(60 * 60);
/// Maximum delay before an expired reservation can be sold again.
const SWEEP: Duration = Duration::from_millis(200);
/// Interval at which the page hears of changes.
const PERIOD: Duration = Duration::from_millis(200);

/// Returns the stock of the sale; everybody who uses this name gets the same one.
pub(crate) fn stock(locks: &LockManager, name: &str, layout: Layout) -> SegmentedStock {
    locks.stock(format!("flash-sale:{name}")).retention(RETENTION).layout(layout)
}

#[derive(Debug)]
pub(crate) struct Sale {
    pub(crate) name: String,
    pub(crate) stock: SegmentedStock,
    pub(crate) hold: Duration,
    pub(crate) counters: Counters,
    sweeper: Sweeper,
}

impl Sale {
    /// Creates the stock, unless another instance has.
    pub(crate) async fn open(locks: &LockManager, name: &str, options: &Serve) -> Result<Self, StockError> {
        let stock = stock(locks, name, options.layout);
        stock.initialize(options.units, options.segments).await?;
        let sweeper = stock.sweeper(SWEEP)?;
        Ok(Self { name: name.to_owned(), stock, hold: options.hold, counters: Counters::default(), sweeper })
    }

    pub(crate) async fn state(&self) -> Result<State, StockError> {
        Ok(State::of(&self.name, &self.stock.snapshot().await?, self.counters.read(&self.sweeper)))
    }
}

/// The outcome of requests to this instance.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) requests: AtomicU64,
    pub(crate) sold: AtomicU64,
    pub(crate) refused: AtomicU64,
    pub(crate) merged: AtomicU64,
    pub(crate) repeated: AtomicU64,
    pub(crate) cancelled: AtomicU64,
    pub(crate) given_back: AtomicU64,
    /// Requests that were told to send the same again.
    pub(crate) unsettled: AtomicU64,
}

impl Counters {
    fn read(&self, sweeper: &Sweeper) -> Counts {
        Counts {
            requests: self.requests.load(Relaxed),
            sold: self.sold.load(Relaxed),
            refused: self.refused.load(Relaxed),
            merged: self.merged.load(Relaxed),
            repeated: self.repeated.load(Relaxed),
            expired: sweeper.swept().expired,
            cancelled: self.cancelled.load(Relaxed),
            given_back: self.given_back.load(Relaxed),
        }
    }
}

/// Numbers of orders, not units.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Counts {
    pub(crate) requests: u64,
    pub(crate) sold: u64,
    pub(crate) refused: u64,
    /// Orders that took units from several segments.
    pub(crate) merged: u64,
    /// Orders that were sent again, without a second effect.
    pub(crate) repeated: u64,
    /// Reservations that this instance has ended.
    pub(crate) expired: u64,
    pub(crate) cancelled: u64,
    pub(crate) given_back: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Phase {
    /// Nobody has bought anything yet.
    Open,
    Selling,
    /// Nothing is left, and nothing is reserved.
    SoldOut,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Segment {
    pub(crate) available: u64,
    pub(crate) held: u64,
    pub(crate) sold: u64,
}

/// The answer of `GET /state`, which the page shows. Units are those of the whole stock, whichever
/// instance sold them; counts are those of this instance.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct State {
    pub(crate) sale: String,
    pub(crate) phase: Phase,
    pub(crate) segments: Vec<Segment>,
    pub(crate) initial: u64,
    pub(crate) restocked: u64,
    pub(crate) available: u64,
    pub(crate) held: u64,
    pub(crate) in_transit: u64,
    pub(crate) sold: u64,
    pub(crate) balanced: bool,
    pub(crate) counts: Counts,
    /// Requests in the last second.
    pub(crate) rate: u64,
    /// Whether the store answered the last query.
    pub(crate) fresh: bool,
}

impl State {
    pub(crate) fn of(sale: &str, snapshot: &Snapshot, counts: Counts) -> Self {
        let (available, held, sold) = (snapshot.available(), snapshot.held(), snapshot.sold());
        let phase = match (available + held + snapshot.in_transit, held + sold) {
            (0, _) => Phase::SoldOut,
            (_, 0) => Phase::Open,
            _ => Phase::Selling,
        };
        let segments = snapshot.segments.iter();
        Self {
            sale: sale.to_owned(),
            phase,
            segments: segments
                .map(|of| Segment { available: of.available, held: of.held, sold: of.sold })
                .collect(),
            initial: snapshot.initial,
            restocked: snapshot.restocked,
            available,
            held,
            in_transit: snapshot.in_transit,
            sold,
            balanced: snapshot.balances(),
            counts,
            rate: 0,
            fresh: true,
        }
    }
}

/// Publishes the state of the sale to all viewers a few times a second, until `stop`, and once more
/// then.
pub(crate) async fn publish(
    sale: Arc<Sale>,
    states: watch::Sender<Arc<str>>,
    mut stop: oneshot::Receiver<()>,
) {
    let mut last: Option<State> = None;
    let mut past = VecDeque::new();
    loop {
        let stopping = tokio::select! {
            _ = &mut stop => true,
            () = tokio::time::sleep(PERIOD) => false,
        };
        last = match sale.state().await {
            Ok(state) => Some(State { rate: rate(&mut past, state.counts.requests), ..state }),
            Err(_) => last.map(|state| State { fresh: false, ..state }),
        };
        if let Some(text) = last.as_ref().and_then(|state| serde_json::to_string(state).ok()) {
            states.send_if_modified(|shown| {
                let changed = **shown != *text;
                if changed {
                    *shown = text.into();
                }
                changed
            });
        }
        if stopping {
            break;
        }
    }
}

/// Returns the number of requests in the last second, given the total so far.
fn rate(past: &mut VecDeque<(Instant, u64)>, requests: u64) -> u64 {
    let now = Instant::now();
    past.push_back((now, requests));
    while past.len() > 2 && past.get(1).is_some_and(|(at, _)| now - *at >= Duration::from_secs(1)) {
        past.pop_front();
    }
    let (since, before) = past.front().copied().unwrap_or((now, requests));
    let seconds = (now - since).as_secs_f64().max(PERIOD.as_secs_f64());
    (requests.saturating_sub(before) as f64 / seconds).round() as u64
}
