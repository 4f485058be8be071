//! Places of a test's stocks ([`Place`], [`on_every_stock!`](crate::on_every_stock)), sellers
//! ([`Seller`]), their notes ([`Journal`]), and the sum of these ([`Ledger`]).

mod journal;
mod ledger;
mod place;
mod seller;

use std::pin::pin;
use std::task::Poll;

use lock_runtime::segmented::{SegmentedStock, StockError};

use crate::dice::Dice;

pub use journal::{Answer, Ask, Entry, Journal};
pub use ledger::{Ledger, Loss, Sum};
pub use place::{Client, Kept, Place};
pub use seller::{Habits, Seller};

/// Dice that print their seed when the test fails. `LOCK_STOCK_SEED` repeats a run.
#[derive(Debug)]
pub struct Chance {
    seed: u64,
    dice: Dice,
}

impl Chance {
    /// Draws a seed, or takes the one in `LOCK_STOCK_SEED`.
    ///
    /// # Panics
    ///
    /// When that is not a number.
    #[must_use]
    pub fn new() -> Self {
        let seed = std::env::var("LOCK_STOCK_SEED").map_or_else(
            |_| Dice::draw_seed(),
            |text| text.parse().unwrap_or_else(|_| panic!("LOCK_STOCK_SEED={text}")),
        );
        Self { seed, dice: Dice::new(seed) }
    }

    /// Returns dice for the `n`th user.
    #[must_use]
    pub fn fork(&self, n: u64) -> Dice {
        self.dice.fork(n)
    }
}

impl Default for Chance {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Chance {
    #[allow(clippy::print_stderr, reason = "beside the panic that it belongs to")]
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("LOCK_STOCK_SEED={}", self.seed);
        }
    }
}

/// Shuffles a list.
pub fn shuffle<T>(list: &mut [T], dice: &mut Dice) {
    for last in (1..list.len()).rev() {
        list.swap(last, dice.below(last as u64 + 1) as usize);
    }
}

/// Asks again for as long as the answer is that others interfered.
///
/// # Errors
///
/// Any other error of the stock.
///
/// # Panics
///
/// When others interfere again and again.
pub async fn insist<T, F>(mut ask: impl FnMut() -> F) -> Result<T, StockError>
where
    F: Future<Output = Result<T, StockError>>,
{
    for _ in 0..10_000 {
        match ask().await {
            Err(StockError::Contended { .. }) => tokio::task::yield_now().await,
            answer => return answer,
        }
    }
    panic!("contended in every attempt");
}

/// Takes several times under one id at once, while other callers give it back. Of the callers that
/// are told that it is sold, exactly one must be told that it is new.
///
/// # Panics
///
/// When more than one is told so, or none.
pub async fn one_is_new(stock: &SegmentedStock, order: u64) {
    let mut callers = tokio::task::JoinSet::new();
    for caller in 0..6 {
        let stock = stock.clone();
        callers.spawn(async move {
            if caller % 2 == 1 {
                let back = stock.give_back(order).await;
                assert!(matches!(back, Ok(()) | Err(StockError::UnknownOperation { .. })), "{back:?}");
                return None;
            }
            match insist(|| stock.take(order, 2)).await {
                Ok(taken) => Some(taken.is_repeated()),
                Err(error) => {
                    assert!(matches!(error, StockError::GivenBack { .. }), "{error}");
                    None
                }
            }
        });
    }
    let told: Vec<bool> = callers.join_all().await.into_iter().flatten().collect();
    assert_eq!(told.iter().filter(|repeated| !**repeated).count(), 1, "{told:?}");
}

/// Polls `future` at most `polls` times, each time when it is woken, and drops it. Returns its
/// output if it completed.
pub async fn poll_at_most<F: Future>(future: F, polls: usize) -> Option<F::Output> {
    let mut future = pin!(future);
    let mut left = polls;
    std::future::poll_fn(|cx| {
        if left == 0 {
            return Poll::Ready(None);
        }
        left -= 1;
        match future.as_mut().poll(cx) {
            Poll::Ready(output) => Poll::Ready(Some(output)),
            Poll::Pending if left == 0 => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}

/// Returns the units available, held and sold. The stock must be at rest, balance, and agree with
/// its records.
///
/// # Panics
///
/// When the stock does not balance or agree, or does not answer.
#[track_caller]
pub fn counts(stock: &SegmentedStock) -> impl Future<Output = (u64, u64, u64)> {
    let caller = std::panic::Location::caller();
    let stock = stock.clone();
    async move {
        let snapshot = insist(|| stock.snapshot()).await.unwrap_or_else(|error| panic!("{caller}: {error}"));
        assert!(snapshot.balances(), "{caller}: {snapshot:?}");
        match insist(|| stock.audit()).await {
            Ok(audit) => assert!(audit.agrees() && audit.counted == snapshot, "{caller}: {audit:?}"),
            Err(StockError::Misconfigured { .. }) => {} // It is spread.
            Err(error) => panic!("{caller}: {error}"),
        }
        assert_eq!(snapshot.in_transit, 0, "{caller}: no units are in transit: {snapshot:?}");
        (snapshot.available(), snapshot.held(), snapshot.sold())
    }
}
