//! [`Seller`]: takes, reserves, confirms, cancels and gives back at random, and notes the answers.

use std::sync::Arc;
use std::time::Duration;

use lock_runtime::segmented::{SegmentedStock, StockError};
use tokio::task::JoinSet;

use super::journal::{Answer, Ask, Journal};
use crate::dice::Dice;

/// How a seller sells.
#[derive(Clone, Copy, Debug)]
pub struct Habits {
    /// Number of orders that it works on at the same time.
    pub tasks: u64,
    /// Maximum quantity of an order.
    pub most: u64,
    /// Minimum and maximum duration of its reservations.
    pub hold: (Duration, Duration),
}

impl Default for Habits {
    /// Returns habits with such long reservations that they do not expire.
    fn default() -> Self {
        let long = Duration::from_secs(600);
        Self { tasks: 4, most: 25, hold: (long, long * 2) }
    }
}

/// A seller, which sells until it is told to stop.
#[derive(Clone, Debug)]
pub struct Seller {
    /// The stock that it sells from.
    pub stock: SegmentedStock,
    /// Prefix of the numbers of its orders.
    pub name: String,
    /// How it sells.
    pub habits: Habits,
    /// The journal that it writes.
    pub journal: Arc<Journal>,
}

/// Asks until there is an answer, and returns it with its question. A sold-out take is cancelled if
/// an earlier copy of it may be under way. The copy either has been carried out before, or never
/// will be.
///
/// # Panics
///
/// When the error tells nothing about the order and does not go away by asking again.
pub(super) async fn ask(stock: &SegmentedStock, order: &str, what: Ask, doubtful: bool) -> (Ask, Answer) {
    let (mut what, mut doubtful) = (what, doubtful);
    loop {
        match what.send(stock, order).await {
            Ok(Answer::SoldOut) if doubtful => {
                what = Ask::Cancel;
            }
            Ok(answer) => return (what, answer),
            Err(error) => {
                again(order, what, &error);
                doubtful = true;
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
    }
}

/// Fails for errors that do not allow another attempt.
fn again(order: &str, what: Ask, error: &StockError) {
    assert!(error.is_retryable(), "{order}: {what:?}: {error}");
}

impl Seller {
    /// Sells while `go_on` returns true. Returns how many orders were completed.
    ///
    /// # Panics
    ///
    /// When an answer makes no sense.
    pub async fn sell(&self, dice: &Dice, go_on: impl Fn() -> bool + Clone + Send + Sync + 'static) -> u64 {
        let mut tasks = JoinSet::new();
        for task in 0..self.habits.tasks {
            let (seller, dice, go_on) = (self.clone(), dice.fork(task), go_on.clone());
            tasks.spawn(async move {
                let (mut dice, mut orders) = (dice, 0);
                while go_on() {
                    let order = format!("{}-{task}-{orders}", seller.name);
                    if seller.order(&order, &mut dice, &go_on).await.is_none() {
                        break;
                    }
                    orders += 1;
                    if dice.once_in(20) {
                        // Any caller may sweep, and none has to.
                        let _ = seller.stock.sweep(10).await;
                    }
                }
                orders
            });
        }
        tasks.join_all().await.into_iter().sum()
    }

    /// Processes one order from beginning to end. Returns `None` when it was told to stop, or when
    /// the stock is gone.
    async fn order(&self, order: &str, dice: &mut Dice, go_on: &impl Fn() -> bool) -> Option<()> {
        // Small ones mostly.
        let most = if dice.once_in(4) { self.habits.most } else { 3.min(self.habits.most) };
        let quantity = 1 + dice.below(most);
        let hold = dice.between(self.habits.hold.0, self.habits.hold.1);
        let (take, reserve) = (Ask::Take(quantity), Ask::Reserve(quantity, hold));
        let script: &[Ask] = match dice.below(12) {
            0 | 1 => &[take],
            2 => &[take, Ask::GiveBack],
            3 => &[take, take, Ask::GiveBack, Ask::GiveBack, take],
            4 | 5 => &[reserve, Ask::Confirm],
            6 => &[reserve, reserve, Ask::Confirm, Ask::Confirm, Ask::Cancel],
            7 => &[reserve, Ask::Confirm, Ask::GiveBack],
            8 => &[reserve, Ask::Cancel],
            9 => &[reserve],
            10 => &[Ask::Cancel, reserve],
            _ => &[Ask::Cancel, take],
        };
        for what in script {
            match self.told(order, *what, go_on).await? {
                Answer::Missing => return None,
                // There is nothing to confirm or to give back.
                Answer::SoldOut => break,
                Answer::Expired | Answer::Cancelled if !matches!(what, Ask::Cancel) => break,
                _ => {}
            }
        }
        Some(())
    }

    async fn told(&self, order: &str, what: Ask, go_on: &impl Fn() -> bool) -> Option<Answer> {
        let (mut what, mut doubtful) = (what, false);
        self.journal.write(order, Err(what));
        loop {
            match what.send(&self.stock, order).await {
                // As in `ask`.
                Ok(Answer::SoldOut) if doubtful => {
                    what = Ask::Cancel;
                    self.journal.write(order, Err(what));
                }
                Ok(Answer::Missing) => return Some(Answer::Missing),
                Ok(answer) => {
                    self.journal.write(order, Ok(answer));
                    // An order that had to be cancelled is over.
                    return Some(if what == Ask::Cancel && doubtful { Answer::SoldOut } else { answer });
                }
                Err(error) => {
                    again(order, what, &error);
                    doubtful |= !matches!(error, StockError::Contended { .. });
                    if !go_on() {
                        return None;
                    }
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
            }
        }
    }
}
