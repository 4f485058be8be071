//! [`Journal`]: a seller's notes of its questions, written before it asks, and of their answers.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;
use std::time::Duration;

use lock_runtime::segmented::{SegmentedStock, StockError};

use crate::clock::now_nanos;

/// A question about an order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ask {
    /// Sell this many units.
    Take(u64),
    /// Reserve this many units for this long.
    Reserve(u64, Duration),
    /// Turn the reservation into a sale.
    Confirm,
    /// Give up the reservation.
    Cancel,
    /// Take back the units that were sold.
    GiveBack,
}

/// An answer about an order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// It has been done, now or before.
    Done,
    /// There are not enough units.
    SoldOut,
    /// [`StockError::Cancelled`].
    Cancelled,
    /// [`StockError::Expired`].
    Expired,
    /// [`StockError::GivenBack`].
    GivenBack,
    /// [`StockError::Confirmed`].
    Confirmed,
    /// [`StockError::StillHeld`].
    StillHeld,
    /// [`StockError::NotReserved`].
    NotReserved,
    /// [`StockError::UnknownOperation`].
    Unknown,
    /// [`StockError::Missing`].
    Missing,
}

const ANSWERS: [(Answer, &str); 10] = [
    (Answer::Done, "done"),
    (Answer::SoldOut, "sold-out"),
    (Answer::Cancelled, "cancelled"),
    (Answer::Expired, "expired"),
    (Answer::GivenBack, "given-back"),
    (Answer::Confirmed, "confirmed"),
    (Answer::StillHeld, "still-held"),
    (Answer::NotReserved, "not-reserved"),
    (Answer::Unknown, "unknown"),
    (Answer::Missing, "missing"),
];

impl Answer {
    /// Converts a stock's answer. Returns the error if it tells nothing about the order.
    ///
    /// # Errors
    ///
    /// The stock's error.
    pub fn of<T>(result: Result<T, StockError>) -> Result<Self, StockError> {
        Ok(match result {
            Ok(_) => Self::Done,
            Err(StockError::SoldOut { .. }) => Self::SoldOut,
            Err(StockError::Cancelled { .. }) => Self::Cancelled,
            Err(StockError::Expired { .. }) => Self::Expired,
            Err(StockError::GivenBack { .. }) => Self::GivenBack,
            Err(StockError::Confirmed { .. }) => Self::Confirmed,
            Err(StockError::StillHeld { .. }) => Self::StillHeld,
            Err(StockError::NotReserved { .. }) => Self::NotReserved,
            Err(StockError::UnknownOperation { .. }) => Self::Unknown,
            Err(StockError::Missing { .. }) => Self::Missing,
            Err(error) => return Err(error),
        })
    }
}

impl Ask {
    /// Asks once.
    ///
    /// # Errors
    ///
    /// When the answer tells nothing about the order.
    pub async fn send(self, stock: &SegmentedStock, order: &str) -> Result<Answer, StockError> {
        match self {
            Self::Take(quantity) => Answer::of(stock.take(order, quantity).await),
            Self::Reserve(quantity, hold) => Answer::of(stock.reserve(order, quantity, hold).await),
            Self::Confirm => Answer::of(stock.confirm(order).await),
            Self::Cancel => Answer::of(stock.cancel(order).await),
            Self::GiveBack => Answer::of(stock.give_back(order).await),
        }
    }
}

/// One line of a journal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The time, on the clock that all processes share.
    pub at: u64,
    /// The order.
    pub order: String,
    /// The question that is about to be asked, or the answer.
    pub what: Result<Answer, Ask>,
}

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { at, order, what } = self;
        match what {
            Ok(answer) => {
                let word = ANSWERS.iter().find(|(one, _)| one == answer).map_or("", |(_, word)| word);
                write!(f, "{at} {order} told {word}")
            }
            Err(Ask::Take(quantity)) => write!(f, "{at} {order} take {quantity}"),
            Err(Ask::Reserve(quantity, hold)) => {
                write!(f, "{at} {order} reserve {quantity} {}", hold.as_millis())
            }
            Err(Ask::Confirm) => write!(f, "{at} {order} confirm"),
            Err(Ask::Cancel) => write!(f, "{at} {order} cancel"),
            Err(Ask::GiveBack) => write!(f, "{at} {order} give-back"),
        }
    }
}

impl Entry {
    fn parse(line: &str) -> Option<Self> {
        let words: Vec<&str> = line.split(' ').collect();
        let [at, order, what @ ..] = words.as_slice() else { return None };
        let what = match what {
            ["told", word] => Ok(ANSWERS.iter().find(|(_, one)| one == word)?.0),
            ["take", quantity] => Err(Ask::Take(quantity.parse().ok()?)),
            ["reserve", quantity, hold] => {
                Err(Ask::Reserve(quantity.parse().ok()?, Duration::from_millis(hold.parse().ok()?)))
            }
            ["confirm"] => Err(Ask::Confirm),
            ["cancel"] => Err(Ask::Cancel),
            ["give-back"] => Err(Ask::GiveBack),
            _ => return None,
        };
        Some(Self { at: at.parse().ok()?, order: (*order).to_owned(), what })
    }
}

/// A file that survives its writer, but not the machine: one `write` for each line, and no `fsync`.
#[derive(Debug)]
pub struct Journal(File);

impl Journal {
    /// Opens or creates the journal.
    ///
    /// # Errors
    ///
    /// When the file can't be opened.
    pub fn open(path: &Path) -> io::Result<Self> {
        Ok(Self(OpenOptions::new().create(true).append(true).open(path)?))
    }

    /// Writes a line.
    ///
    /// # Panics
    ///
    /// When it can't be written.
    pub fn write(&self, order: &str, what: Result<Answer, Ask>) {
        let line = format!("{}\n", Entry { at: now_nanos(), order: order.to_owned(), what });
        (&self.0).write_all(line.as_bytes()).expect("the journal can be written");
    }

    /// Returns all lines.
    ///
    /// # Errors
    ///
    /// When the file can't be read, or a line is not an entry.
    pub fn read(path: &Path) -> io::Result<Vec<Entry>> {
        let strange = |line: &str| io::Error::new(io::ErrorKind::InvalidData, format!("no entry: {line:?}"));
        let text = std::fs::read_to_string(path)?;
        text.lines().map(|line| Entry::parse(line).ok_or_else(|| strange(line))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_again() {
        let asks = [
            Ask::Take(3),
            Ask::Reserve(4, Duration::from_millis(50)),
            Ask::Confirm,
            Ask::Cancel,
            Ask::GiveBack,
        ];
        let all: Vec<_> =
            asks.into_iter().map(Err).chain(ANSWERS.into_iter().map(|(answer, _)| Ok(answer))).collect();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("journal");
        let journal = Journal::open(&path).unwrap();
        all.iter().for_each(|what| journal.write("order-1", *what));
        let read = Journal::read(&path).unwrap();
        assert!(read.iter().all(|entry| entry.order == "order-1"), "{read:?}");
        assert_eq!(read.into_iter().map(|entry| entry.what).collect::<Vec<_>>(), all);
    }
}
