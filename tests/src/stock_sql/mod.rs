//! Tests stocks in databases. Each database runs the same scenarios, and meets the same faults.

pub mod scenarios;
pub mod servers;

use std::path::Path;
use std::str::FromStr;
use std::sync::{Arc, Mutex};
use std::task::{Poll, Waker};
use std::time::Duration;

use lock_core::internal::steps::with_own_steps;
use lock_runtime::LockManager;
use lock_runtime::segmented::{SegmentedStock, StockError};

use crate::eventually;

/// Longer than any test takes, so only a broken test reaches it.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Returns `sqlite:<folder>/stock.db`.
#[must_use]
pub fn sqlite_in(folder: &Path) -> String {
    format!("sqlite:{}", folder.join("stock.db").display())
}

/// Returns a stock whose time-out no test reaches.
#[must_use]
pub fn stock(locks: &LockManager, name: &str) -> SegmentedStock {
    locks.stock(name).timeout(PATIENCE)
}

/// One operation of each kind, on a stock of 30 units in 3 segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deed {
    /// A sale from one segment.
    Take,
    /// A sale from all segments.
    Merge,
    /// A reservation from all segments.
    ReserveMerged,
    /// Confirms a reservation from all segments.
    Confirm,
    /// Cancels a reservation from all segments.
    Cancel,
    /// Cancels an operation that has not come yet.
    CancelEarly,
    /// Gives back a sale from all segments.
    GiveBack,
    /// Adds 10 units.
    Restock,
    /// Balances uneven segments.
    Rebalance,
    /// Resizes to 2 segments.
    Shrink,
    /// Resizes to 5 segments.
    Grow,
    /// Sweeps an expired reservation.
    Sweep,
}

impl Deed {
    /// All kinds.
    pub const ALL: [Self; 12] = [
        Self::Take,
        Self::Merge,
        Self::ReserveMerged,
        Self::Confirm,
        Self::Cancel,
        Self::CancelEarly,
        Self::GiveBack,
        Self::Restock,
        Self::Rebalance,
        Self::Shrink,
        Self::Grow,
        Self::Sweep,
    ];

    /// Returns the name that [`FromStr`] parses.
    #[must_use]
    pub fn name(self) -> String {
        format!("{self:?}")
    }

    /// Makes the starting state of the operation.
    ///
    /// # Panics
    ///
    /// When the stock refuses.
    pub async fn prepare(self, stock: &SegmentedStock) {
        assert!(stock.initialize(30, 3).await.unwrap());
        match self {
            Self::Confirm | Self::Cancel => {
                stock.reserve("op", 25, PATIENCE * 10).await.unwrap();
            }
            Self::GiveBack => {
                stock.take("op", 25).await.unwrap();
            }
            Self::Rebalance | Self::Shrink | Self::Grow => {
                stock.take("before", 9).await.unwrap();
            }
            Self::Sweep => {
                stock.reserve("over", 25, Duration::from_millis(1)).await.unwrap();
                // Until the end of the reservation on the database's clock.
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            Self::Take | Self::Merge | Self::ReserveMerged | Self::CancelEarly | Self::Restock => {}
        }
        let snapshot = stock.snapshot().await.unwrap();
        let [before, _] = self.counts();
        assert_eq!([snapshot.available(), snapshot.held(), snapshot.sold()], before, "{self:?}");
    }

    /// Carries out the operation, for the first time or again.
    ///
    /// # Errors
    ///
    /// Those of the stock.
    pub async fn act(self, stock: &SegmentedStock) -> Result<(), StockError> {
        match self {
            Self::Take => stock.take("op", 7).await.map(drop),
            Self::Merge => stock.take("op", 25).await.map(drop),
            Self::ReserveMerged => stock.reserve("op", 25, PATIENCE * 10).await.map(drop),
            Self::Confirm => stock.confirm("op").await,
            Self::Cancel | Self::CancelEarly => stock.cancel("op").await,
            Self::GiveBack => stock.give_back("op").await,
            Self::Restock => stock.restock("op", 10).await,
            Self::Rebalance => stock.rebalance().await,
            Self::Shrink => stock.resize(2).await,
            Self::Grow => stock.resize(5).await,
            Self::Sweep => stock.sweep(10).await.map(drop),
        }
    }

    /// Returns the available, held and sold units before and after the operation.
    fn counts(self) -> [[u64; 3]; 2] {
        match self {
            Self::Take => [[30, 0, 0], [23, 0, 7]],
            Self::Merge => [[30, 0, 0], [5, 0, 25]],
            Self::ReserveMerged => [[30, 0, 0], [5, 25, 0]],
            Self::Confirm => [[5, 25, 0], [5, 0, 25]],
            Self::Cancel | Self::Sweep => [[5, 25, 0], [30, 0, 0]],
            Self::CancelEarly => [[30, 0, 0]; 2],
            Self::GiveBack => [[5, 0, 25], [30, 0, 0]],
            Self::Restock => [[30, 0, 0], [40, 0, 0]],
            Self::Rebalance | Self::Shrink | Self::Grow => [[21, 0, 9]; 2],
        }
    }

    /// Checks an operation that was begun and has an unknown outcome. It must have been done
    /// completely or not at all. After it is repeated, it must have been done exactly once.
    ///
    /// # Panics
    ///
    /// When it was done by half, or twice.
    pub async fn is_settled_by_the_same_again(self, stock: &SegmentedStock, when: &str) {
        let counts = async || {
            let snapshot = stock.snapshot().await.unwrap();
            assert!(snapshot.balances(), "{self:?} {when}: {snapshot:?}");
            ([snapshot.available(), snapshot.held(), snapshot.sold()], snapshot)
        };
        let [before, after] = self.counts();
        let (found, snapshot) = counts().await;
        assert!(found == before || found == after, "{self:?} {when}: {snapshot:?}");
        if self == Self::Sweep {
            // A sweep skips reservations that another caller is just ending. A server may notice a
            // little later that this caller is dead.
            let swept = async || {
                self.act(stock).await.unwrap();
                counts().await.0 == after
            };
            eventually(swept, PATIENCE).await;
        }
        for _ in 0..2 {
            if let Err(error) = self.act(stock).await {
                panic!("{self:?} {when}: {error}");
            }
            let (found, snapshot) = counts().await;
            assert_eq!(found, after, "{self:?} {when}: {snapshot:?}");
            let active: Vec<_> = snapshot.segments.iter().filter(|segment| segment.active).collect();
            match self {
                Self::Shrink => assert_eq!(active.len(), 2, "{when}: {snapshot:?}"),
                Self::Grow => assert_eq!(active.len(), 5, "{when}: {snapshot:?}"),
                Self::Rebalance => assert!(active.iter().all(|it| it.available == 7), "{when}: {snapshot:?}"),
                _ => {}
            }
        }
    }
}

impl FromStr for Deed {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::ALL.into_iter().find(|deed| deed.name() == text).ok_or_else(|| format!("unknown deed {text}"))
    }
}

/// Polls `work`, and calls `step` for each of its steps.
pub async fn with_steps<F: Future>(step: impl FnMut(&str) + Send + 'static, work: F) -> F::Output {
    let step = Mutex::new(step);
    let step = move |name: &str| {
        // A step may itself take steps.
        if let Ok(mut step) = step.try_lock() {
            step(name);
        }
    };
    with_own_steps(Arc::new(step), work).await
}

/// Polls `work` until its step number `at`, counted from 0, and then `more` times, and drops it.
/// Returns `true` if it has fewer steps.
pub async fn drop_at<F: Future>(at: u64, more: u32, work: F) -> bool {
    let state = Arc::new(Mutex::new((0, Waker::noop().clone())));
    let counter = Arc::clone(&state);
    let step = move |_: &str| {
        let mut state = counter.lock().unwrap();
        state.0 += 1;
        if state.0 > at {
            state.1.wake_by_ref();
        }
    };
    let mut work = Box::pin(with_steps(step, work));
    let mut left = more;
    std::future::poll_fn(|cx| {
        let is_there = || state.lock().unwrap().0 > at;
        state.lock().unwrap().1 = cx.waker().clone();
        if is_there() {
            if left == 0 {
                return Poll::Ready(false);
            }
            left -= 1;
            cx.waker().wake_by_ref();
        }
        if work.as_mut().poll(cx).is_ready() {
            return Poll::Ready(!is_there());
        }
        if is_there() && left == 0 { Poll::Ready(false) } else { Poll::Pending }
    })
    .await
}
