//! [`Record`] and [`Look`]: the content of the tables as Rust values.

use super::call::{Call, count};
use super::numbers::unsigned;
use crate::links::Links;
use crate::plumbing::{Fault, Row};
use lock_core::store::stock::{Audit, AuditAnswer, OperationId, Part, SegmentCounts, Snapshot, State};
use lock_core::store::{Few, StoreError};

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
    kept_until: Option<i64>,
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

fn write_part(text: &mut String, part: Part) {
    if !text.is_empty() {
        text.push(' ');
    }
    text.push_str(&format!("{}:{}", part.segment, part.quantity));
}

pub(super) fn write_parts(parts: &[Part]) -> String {
    parts.iter().fold(String::new(), |mut text, &part| {
        write_part(&mut text, part);
        text
    })
}

fn read_parts(text: &str) -> Option<Few<Part>> {
    let part = |word: &str| {
        let (segment, quantity) = word.split_once(':')?;
        Some(Part { segment: segment.parse().ok()?, quantity: quantity.parse().ok()? })
    };
    text.split_ascii_whitespace().map(part).collect()
}

impl Record {
    /// Reads a record from the six columns from `at` on. Returns `None` if there is no record, or
    /// its retention is over at `now`.
    fn read(
        call: &Call<'_>,
        operation: &OperationId,
        row: &Row,
        at: usize,
        now: i64,
    ) -> Result<Option<Self>, StoreError> {
        let unreadable = |error| call.unreadable(&error);
        let Some(state) = row.maybe_text(at).map_err(unreadable)? else { return Ok(None) };
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
        let parts = row.maybe_text(at + 3).map_err(unreadable)?.unwrap_or_default();
        let record = Self {
            state,
            never_came,
            reserved: row.int(at + 1).map_err(unreadable)? == 1,
            quantity: unsigned(row.int(at + 2).map_err(unreadable)?)?,
            parts: call.parts(operation.as_str(), &parts)?,
            deadline: row.maybe_int(at + 4).map_err(unreadable)?.unwrap_or_default(),
            kept_until: row.maybe_int(at + 5).map_err(unreadable)?,
        };
        Ok(Some(record).filter(|record| record.kept_until.is_none_or(|until| now < until)))
    }

    /// Reads the record that a statement for one operation returned.
    pub(super) fn of(
        call: &Call<'_>,
        operation: &OperationId,
        rows: &[Row],
        now: i64,
    ) -> Result<Option<Self>, StoreError> {
        rows.first().map_or(Ok(None), |row| Self::read(call, operation, row, 0, now))
    }

    /// Whether the reservation is past its deadline. SQLite's clock has milliseconds, so the
    /// millisecond of the deadline still belongs to the reservation.
    pub(super) fn is_overdue(&self, now: i64) -> bool {
        self.state == Some(State::Held) && self.deadline < now
    }
}

/// A stock and one of its operations at one moment.
#[derive(Debug)]
pub(super) struct Look {
    pub(super) now: i64,
    /// The available units of each active segment.
    pub(super) available: Vec<Part>,
    pub(super) record: Option<Record>,
    pub(super) overdue: bool,
}

impl Call<'_> {
    /// Reads the parts of an operation.
    pub(super) fn parts(&self, operation: &str, text: &str) -> Result<Few<Part>, StoreError> {
        read_parts(text).ok_or_else(|| {
            self.broken(format_args!(
                "the operation {operation} has the unreadable parts {text:?}; correct its row in \
                 lock_stock_operation"
            ))
        })
    }

    /// Reads a stock with one statement, and so at one moment. Returns `None` if there is no such
    /// stock.
    pub(super) async fn look(&self, operation: &OperationId) -> Result<Option<Look>, Fault> {
        let args = [(&*self.stock).into(), operation.as_str().into()];
        let (sent, rows) = self.rows(&self.place.reads, &self.sql.look, &args).await?;
        let Some(first) = rows.first() else { return Ok(None) };
        let unreadable = |error| self.unreadable(&error);
        let now = first.int(0).map_err(unreadable)?;
        self.observe(now, sent);
        let each = rows.iter().map(|row| {
            let segment = self.segment(row.int(1).map_err(unreadable)?)?;
            Ok(Part { segment, quantity: unsigned(row.int(2).map_err(unreadable)?)? })
        });
        let available = each.collect::<Result<_, StoreError>>()?;
        let overdue = first.int(9).map_err(unreadable)? == 1;
        Ok(Some(Look { now, available, record: Record::read(self, operation, first, 3, now)?, overdue }))
    }

    pub(super) fn segment(&self, number: i64) -> Result<u32, StoreError> {
        u32::try_from(number).map_err(|_| self.broken(format_args!("a segment has the number {number}")))
    }

    /// Reads the counts, and the totals of the records if the statement selects them. It is one
    /// statement, and so one moment. Returns `None` if there is no such stock.
    async fn look_at(&self, links: &Links, statement: &str) -> Result<Option<Audit>, Fault> {
        let (_, rows) = self.rows(links, statement, &[(&*self.stock).into()]).await?;
        let Some(first) = rows.first() else { return Ok(None) };
        let number = |row, at| count(self, row, at);
        let each = rows.iter().map(|row| {
            let active = number(row, 5)? == 1;
            let (available, held, sold) = (number(row, 6)?, number(row, 7)?, number(row, 8)?);
            Ok(SegmentCounts { available, held, sold, active })
        });
        let counted = Snapshot {
            segments: each.collect::<Result<_, StoreError>>()?,
            in_transit: 0,
            epoch: number(first, 1)?,
            initial: number(first, 2)?,
            restocked: number(first, 3)?,
        };
        let (held, sold, forgotten) = (number(first, 9)?, number(first, 10)?, number(first, 11)?);
        Ok(Some(Audit { counted, held, sold, forgotten }))
    }

    pub(super) async fn try_to_count(&self) -> Result<Option<Snapshot>, Fault> {
        Ok(self.look_at(&self.place.reads, &self.sql.snapshot).await?.map(|audit| audit.counted))
    }

    pub(super) async fn try_to_audit(&self) -> Result<AuditAnswer, Fault> {
        let audit = self.look_at(&self.place.audits, &self.sql.audit).await?;
        Ok(audit.map_or(AuditAnswer::Missing, AuditAnswer::Audited))
    }
}
