//! [`Ledger`]: the sum of sellers' journals, to be compared with the stock.

use std::collections::BTreeMap;
use std::path::Path;

use lock_runtime::segmented::SegmentedStock;

use super::journal::{Answer, Ask, Entry, Journal};
use super::seller::ask;

/// The state of an order, according to its seller's answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Standing {
    #[default]
    Nothing,
    Held,
    Sold,
    /// Cancelled or expired: its units are back.
    Over,
    GivenBack,
}

#[derive(Clone, Debug, Default)]
struct Order {
    quantity: u64,
    standing: Standing,
    /// The question that has no answer.
    open: Option<Ask>,
    /// When the open question, or the last answered one, was asked.
    asked: u64,
    /// When the question that led to the present state was asked, and when it was answered.
    changed: (u64, u64),
}

/// The sum of all orders.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sum {
    /// Number of units sold.
    pub sold: u64,
    /// Number of units held.
    pub held: u64,
    /// Number of orders whose last question has no answer.
    pub open: usize,
    /// Number of orders.
    pub orders: usize,
}

/// The answers that a store has forgotten.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Loss {
    /// Number of orders whose records differ from their answers.
    pub orders: usize,
    /// The units of these orders.
    pub units: u64,
    /// When the first of them was answered.
    pub first: Option<u64>,
    /// When the last order that agrees with its answers was asked for.
    pub kept: Option<u64>,
}

/// The sum of sellers' journals.
#[derive(Clone, Debug, Default)]
pub struct Ledger {
    orders: BTreeMap<String, Order>,
}

impl Ledger {
    /// Reads journals.
    ///
    /// # Panics
    ///
    /// When a journal can't be read, or its answers contradict each other.
    #[track_caller]
    pub fn read<P: AsRef<Path>>(journals: impl IntoIterator<Item = P>) -> Self {
        let mut ledger = Self::default();
        for path in journals {
            let path = path.as_ref();
            let entries = Journal::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            entries.iter().for_each(|entry| ledger.enter(entry));
        }
        ledger
    }

    /// Adds one entry.
    ///
    /// # Panics
    ///
    /// When it contradicts the entries before it.
    pub fn enter(&mut self, entry: &Entry) {
        let order = self.orders.entry(entry.order.clone()).or_default();
        match entry.what {
            Err(ask) => {
                if let Ask::Take(quantity) | Ask::Reserve(quantity, _) = ask {
                    order.quantity = quantity;
                }
                (order.open, order.asked) = (Some(ask), entry.at);
            }
            Ok(answer) => {
                let Some(ask) = order.open.take() else { panic!("an answer without a request: {entry}") };
                let before = order.standing;
                order.told(&entry.order, ask, answer);
                if order.standing != before {
                    order.changed = (order.asked, entry.at);
                }
            }
        }
    }

    /// Returns the sum of all orders.
    #[must_use]
    pub fn sum(&self) -> Sum {
        let mut sum = Sum { orders: self.orders.len(), ..Sum::default() };
        for order in self.orders.values() {
            match order.standing {
                Standing::Sold => sum.sold += order.quantity,
                Standing::Held => sum.held += order.quantity,
                Standing::Nothing | Standing::Over | Standing::GivenBack => {}
            }
            sum.open += usize::from(order.open.is_some());
        }
        sum
    }

    /// Repeats every question without an answer, until it is answered.
    ///
    /// # Panics
    ///
    /// When an answer contradicts an earlier one.
    pub async fn settle(&mut self, stock: &SegmentedStock) {
        for (name, order) in &mut self.orders {
            if let Some(open) = order.open.take() {
                let doubtful = matches!(open, Ask::Take(_) | Ask::Reserve(..));
                let (asked, answer) = ask(stock, name, open, doubtful).await;
                order.told(name, asked, answer);
            }
        }
    }

    /// Confirms all remaining reservations; some may have expired.
    ///
    /// # Panics
    ///
    /// As [`settle`](Self::settle).
    pub async fn close(&mut self, stock: &SegmentedStock) {
        for (name, order) in &mut self.orders {
            if order.standing == Standing::Held {
                let (asked, answer) = ask(stock, name, Ask::Confirm, false).await;
                order.told(name, asked, answer);
            }
        }
    }

    /// Compares the answers with a store's records, which are `S`, `T`, `H`, `C`, `E`, `B`, `N`, or
    /// nothing. Open questions are left out, and so are reservations that may have expired.
    pub fn loss(&self, mut record: impl FnMut(&str) -> Option<char>) -> Loss {
        let mut loss = Loss::default();
        for (name, order) in self.orders.iter().filter(|(_, order)| order.open.is_none()) {
            let record = record(name);
            let same = match order.standing {
                Standing::Nothing => record.is_none(),
                Standing::Held => matches!(record, Some('H' | 'E')),
                Standing::Sold => matches!(record, Some('S' | 'T')),
                Standing::Over => matches!(record, Some('C' | 'E' | 'N')),
                Standing::GivenBack => record == Some('B'),
            };
            if same {
                // An order that was never sold or reserved has nothing that could be forgotten.
                if order.standing != Standing::Nothing {
                    loss.kept = loss.kept.max(Some(order.changed.0));
                }
            } else {
                loss.orders += 1;
                loss.units += order.quantity;
                loss.first = Some(loss.first.map_or(order.changed.1, |first| first.min(order.changed.1)));
            }
        }
        loss
    }
}

impl Order {
    fn told(&mut self, name: &str, ask: Ask, answer: Answer) {
        use Standing::{GivenBack, Held, Nothing, Over, Sold};

        let next = match (ask, answer, self.standing) {
            (Ask::Take(_), Answer::Done, Nothing | Sold) => Sold,
            (Ask::Reserve(..), Answer::Done, Nothing | Held) => Held,
            (Ask::Reserve(..), Answer::Done, Sold) => Sold,
            (Ask::Take(_) | Ask::Reserve(..), Answer::SoldOut, Nothing) => Nothing,
            (Ask::Take(_) | Ask::Reserve(..), Answer::Cancelled, Over) => Over,
            (Ask::Take(_) | Ask::Reserve(..), Answer::GivenBack, GivenBack) => GivenBack,
            (Ask::Reserve(..), Answer::Expired, Nothing | Held | Over) => Over,
            (Ask::Confirm, Answer::Done, Held | Sold) => Sold,
            (Ask::Confirm, Answer::Expired, Held | Over) => Over,
            (Ask::Confirm, Answer::Cancelled, Over) => Over,
            (Ask::Cancel, Answer::Done, Nothing | Held | Over) => Over,
            (Ask::Cancel, Answer::Confirmed, Sold) => Sold,
            // A take without an answer had been carried out after all; a reservation would be
            // cancelled.
            (Ask::Cancel, Answer::NotReserved, Nothing | Sold) => Sold,
            (Ask::GiveBack, Answer::Done, Sold | GivenBack) => GivenBack,
            (Ask::GiveBack, Answer::StillHeld, Held) => Held,
            (ask, answer, standing) => panic!("{name} was {standing:?}, asked for {ask:?}: {answer:?}"),
        };
        self.standing = next;
    }
}
