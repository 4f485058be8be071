//! [`Ledger`]: what sellers' journals come to, to be compared with the stock.

use std::collections::BTreeMap;
use std::path::Path;

use lock_runtime::segmented::SegmentedStock;

use super::journal::{Answer, Ask, Entry, Journal};
use super::seller::ask;

/// Where an order stands as far as its seller was told.
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
    /// Asked, and not told.
    open: Option<Ask>,
    /// When what is open, or was told last, was asked.
    asked: u64,
    /// When that was asked, and told, which has brought it to where it stands.
    changed: (u64, u64),
}

/// What all orders come to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sum {
    /// Units.
    pub sold: u64,
    /// Units.
    pub held: u64,
    /// Orders whose sellers do not know what came of what they asked last.
    pub open: usize,
    /// Orders.
    pub orders: usize,
}

/// What a store has forgotten of what it had told.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Loss {
    /// Orders that stand otherwise than their sellers were told.
    pub orders: usize,
    /// Their units.
    pub units: u64,
    /// When the first of them was told.
    pub first: Option<u64>,
    /// When the last of those was asked for that stand as they were told.
    pub kept: Option<u64>,
}

/// What sellers' journals come to.
#[derive(Clone, Debug, Default)]
pub struct Ledger {
    orders: BTreeMap<String, Order>,
}

impl Ledger {
    /// Reads journals.
    ///
    /// # Panics
    ///
    /// When one can't be read, or what a seller was told does not fit together.
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

    /// One entry after the other.
    ///
    /// # Panics
    ///
    /// When it contradicts those before it.
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
                let Some(ask) = order.open.take() else { panic!("nobody has asked: {entry}") };
                let before = order.standing;
                order.told(&entry.order, ask, answer);
                if order.standing != before {
                    order.changed = (order.asked, entry.at);
                }
            }
        }
    }

    /// What it comes to.
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

    /// Sends again whatever was not told, until it is.
    ///
    /// # Panics
    ///
    /// When an answer contradicts what was told before.
    pub async fn settle(&mut self, stock: &SegmentedStock) {
        for (name, order) in &mut self.orders {
            if let Some(open) = order.open.take() {
                let doubtful = matches!(open, Ask::Take(_) | Ask::Reserve(..));
                let (asked, answer) = ask(stock, name, open, doubtful).await;
                order.told(name, asked, answer);
            }
        }
    }

    /// Confirms what is reserved still; what is too late for that is over.
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

    /// Compares what sellers were told with the records of a store, which are `S`, `T`, `H`, `C`,
    /// `E`, `B`, `N`, or nothing. What is open is left out, and so are reservations that may have
    /// expired.
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
                // Who was told that there is nothing was told nothing that could be forgotten.
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
            // A take that nobody was told of had come after all; a reservation is cancelled.
            (Ask::Cancel, Answer::NotReserved, Nothing | Sold) => Sold,
            (Ask::GiveBack, Answer::Done, Sold | GivenBack) => GivenBack,
            (Ask::GiveBack, Answer::StillHeld, Held) => Held,
            (ask, answer, standing) => panic!("{name} was {standing:?}, asked for {ask:?}: {answer:?}"),
        };
        self.standing = next;
    }
}
