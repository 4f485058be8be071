//! [`Record`] and [`Look`]: what a database has of an operation and its stock.

use lock_core::store::stock::{Part, State};
use lock_core::store::{Few, StoreError};

use super::Calls;
use super::numbers::unsigned;

/// The record of an operation, as a database has it.
#[derive(Clone, Debug)]
pub struct Columns {
    /// S sold, H held, C cancelled, E expired, B given back, N cancelled before it arrived, or R
    /// restocked.
    pub state: String,
    /// Whether it is a reservation.
    pub reserved: bool,
    /// How many units.
    pub quantity: i64,
    /// `<segment>:<units> …`
    pub parts: String,
    /// The deadline of a reservation.
    pub deadline: Option<i64>,
    /// When the retention is over; `None` while units are held.
    pub kept_until: Option<i64>,
}

impl Columns {
    /// Returns the segments that the units are from.
    pub fn segments(&self) -> impl Iterator<Item = u32> {
        self.parts.split_ascii_whitespace().filter_map(part).map(|part| part.segment)
    }
}

/// A stock and one of its operations at one moment.
#[derive(Debug)]
pub struct Look {
    /// The time.
    pub now: i64,
    /// The available units of each active segment, in ascending order.
    pub available: Vec<Part>,
    /// The operation's record, if there is one.
    pub record: Option<Columns>,
    /// Whether the stock has an overdue reservation.
    pub overdue: bool,
}

/// The record of an operation.
#[derive(Clone, Debug)]
pub(super) struct Record {
    /// `None` for a restock.
    pub(super) state: Option<State>,
    /// Whether the operation was cancelled before it arrived.
    pub(super) never_came: bool,
    pub(super) reserved: bool,
    pub(super) quantity: u64,
    pub(super) parts: Few<Part>,
    pub(super) deadline: i64,
}

pub(super) fn letter(state: State) -> &'static str {
    match state {
        State::Held => "H",
        State::Sold => "S",
        State::Cancelled => "C",
        State::Expired => "E",
        State::GivenBack => "B",
    }
}

pub(super) fn write_parts(parts: &[Part]) -> String {
    let words: Vec<_> = parts.iter().map(|part| format!("{}:{}", part.segment, part.quantity)).collect();
    words.join(" ")
}

/// Reads one part of an operation.
fn part(word: &str) -> Option<Part> {
    let (segment, quantity) = word.split_once(':')?;
    Some(Part { segment: segment.parse().ok()?, quantity: quantity.parse().ok()? })
}

/// Reads the parts of an operation.
pub(super) fn read_parts(call: &impl Calls, operation: &str, text: &str) -> Result<Few<Part>, StoreError> {
    text.split_ascii_whitespace().map(part).collect::<Option<_>>().ok_or_else(|| {
        call.broken(format_args!(
            "the operation {operation} has the unreadable parts {text:?}; correct its row in \
             lock_stock_operation"
        ))
    })
}

impl Record {
    /// Reads the record of an operation. Returns `None` if the operation has none, or one whose
    /// retention is over at `now`.
    pub(super) fn read(
        call: &impl Calls,
        operation: &str,
        columns: Option<Columns>,
        now: i64,
    ) -> Result<Option<Self>, StoreError> {
        let Some(Columns { state, reserved, quantity, parts, deadline, kept_until }) = columns else {
            return Ok(None);
        };
        let (never_came, state) = match state.as_str() {
            "H" => (false, Some(State::Held)),
            "S" => (false, Some(State::Sold)),
            "C" => (false, Some(State::Cancelled)),
            "E" => (false, Some(State::Expired)),
            "B" => (false, Some(State::GivenBack)),
            "N" => (true, Some(State::Cancelled)),
            "R" => (false, None),
            other => return Err(call.broken(format_args!("an operation has the unknown state {other:?}"))),
        };
        let (quantity, parts) = (unsigned(quantity)?, read_parts(call, operation, &parts)?);
        let deadline = deadline.unwrap_or_default();
        let record = Self { state, never_came, reserved, quantity, parts, deadline };
        Ok(Some(record).filter(|_| kept_until.is_none_or(|until| now < until)))
    }

    /// Whether the reservation is past its deadline. Some clocks have milliseconds, so the
    /// millisecond of the deadline still belongs to the reservation.
    pub(super) fn is_overdue(&self, now: i64) -> bool {
        self.state == Some(State::Held) && self.deadline < now
    }
}
