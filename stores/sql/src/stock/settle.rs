//! The ends of operations: confirmed, cancelled, given back, or expired. Each is one transaction.
//! The locked record says which units to move, and counts change by differences.

use std::collections::BTreeMap;

use lock_core::internal::clock::Clock;
use lock_core::internal::plan::AT_ONCE;
use lock_core::store::StoreError;
use lock_core::store::stock::{OperationId, Part, Settle, SettleAnswer, SettleRequest, State, Swept, next};

use super::call::{Call, Done, Open, count, crossed};
use super::numbers::signed;
use super::records::{Record, letter, write_parts};
use crate::call::attempts;
use crate::plumbing::{Arg, Fault};

/// Maximum number of reservations that one transaction ends.
const BATCH: u32 = 100;

/// How an operation is to end.
#[derive(Clone, Copy, Debug)]
pub(super) enum End {
    Asked(Settle),
    /// Only if the reservation is overdue.
    Expire,
}

impl End {
    fn next(self, now: Option<State>, overdue: bool) -> Option<State> {
        match self {
            Self::Asked(settle) => next(settle, now, overdue),
            Self::Expire if overdue => Some(State::Expired),
            Self::Expire => now,
        }
    }
}

/// Changes of each segment's counts: available, held and sold.
#[derive(Debug, Default)]
struct Moves(BTreeMap<u32, [i64; 3]>);

impl Moves {
    /// Moves the units of a record from one state to another, in a stock with this many segments.
    fn add(&mut self, parts: &[Part], from: State, to: State, segments: u32) {
        for part in parts {
            let units = signed(part.quantity);
            let [_, held, sold] = self.0.entry(part.segment).or_default();
            *(if from == State::Held { held } else { &mut *sold }) -= units;
            if to == State::Sold {
                *sold += units;
                continue;
            }
            // Units of a retired segment could not be taken.
            let home = if part.segment < segments { part.segment } else { part.segment % segments.max(1) };
            let [available, ..] = self.0.entry(home).or_default();
            *available += units;
        }
    }
}

/// A transaction's view of its stock.
pub(super) struct Stock {
    pub(super) now: i64,
    pub(super) segments: u32,
    /// The number of units that were ever put in.
    pub(super) put_in: u64,
}

impl Call<'_> {
    /// Ends overdue reservations, and deletes records whose retention is over.
    pub(super) async fn sweep(&self, limit: u32) -> Result<Swept, StoreError> {
        let mut swept = Swept::default();
        match self.sweep_into(limit, &mut swept).await {
            Err(error) if swept.expired == 0 => Err(error),
            // Report the part that was done. If the error persists, the next sweep returns it.
            Err(_) => Ok(Swept { more: true, ..swept }),
            Ok(()) => Ok(swept),
        }
    }

    async fn sweep_into(&self, limit: u32, swept: &mut Swept) -> Result<(), StoreError> {
        while swept.expired < u64::from(limit) {
            let batch = (u64::from(limit) - swept.expired).min(BATCH.into()) as u32;
            let expired: Result<_, StoreError> = attempts!(self, self.expire_some(batch));
            let (expired, more) = expired?;
            swept.expired += expired;
            swept.more = more;
            if !more || expired == 0 {
                break;
            }
        }
        let purged: Result<_, StoreError> = attempts!(self, self.purge(limit));
        let purged = purged?;
        swept.forgotten += purged;
        swept.more |= purged > 0 && purged >= u64::from(limit);
        Ok(())
    }

    pub(super) async fn try_to_settle(&self, request: &SettleRequest) -> Result<SettleAnswer, Fault> {
        self.try_to_end(&request.operation, End::Asked(request.settle)).await
    }

    pub(super) async fn try_to_end(&self, operation: &OperationId, end: End) -> Result<SettleAnswer, Fault> {
        let mut open = self.begin().await?;
        let done = open.settle(operation, end).await;
        open.end(done).await
    }

    async fn purge(&self, limit: u32) -> Result<u64, Fault> {
        let mut open = self.begin().await?;
        let args = [(&*self.stock).into(), i64::from(limit).into()];
        let done = open.throw_away(&self.sql.purge, &args).await.map(Done::Commit);
        open.end(done).await
    }

    /// Ends overdue reservations because too few units are left. Returns whether there were any.
    pub(super) async fn make_room(&self) -> Result<bool, Fault> {
        Ok(self.expire_some(AT_ONCE).await?.0 > 0)
    }

    /// Ends at most `limit` overdue reservations. Returns how many, and whether there are more.
    async fn expire_some(&self, limit: u32) -> Result<(u64, bool), Fault> {
        let mut open = self.begin().await?;
        let done = open.expire(limit).await;
        open.end(done).await
    }
}

impl Open<'_> {
    async fn settle(&mut self, operation: &OperationId, end: End) -> Result<Done<SettleAnswer>, Fault> {
        let call = self.call;
        let args = [(&*call.stock).into(), operation.as_str().into()];
        let rows = self.rows(&call.sql.record, &args).await?;
        // Read the time only once the record is locked: waiting for the lock may have taken long.
        let Some(mut stock) = self.stock().await? else {
            return Ok(Done::RollBack(SettleAnswer::Missing));
        };
        call.in_time(stock.now)?;
        let Some(record) = Record::of(call, operation, &rows, stock.now)? else {
            let Some(now) = end.next(None, false) else { return Ok(Done::RollBack(SettleAnswer::Unknown)) };
            if !self.note(operation, "N", 0, &[], None, Some(call.retention)).await? {
                return Err(crossed());
            }
            return Ok(Done::Commit(SettleAnswer::Known { before: None, now, quantity: 0, reserved: false }));
        };
        // A restock can't be confirmed, cancelled or given back.
        let Some(before) = record.state else { return Ok(Done::RollBack(SettleAnswer::Unknown)) };
        let (quantity, reserved) = (record.quantity, record.reserved);
        let now = end.next(Some(before), record.is_overdue(stock.now)).unwrap_or(before);
        let answer = SettleAnswer::Known { before: Some(before), now, quantity, reserved };
        if now == before {
            return Ok(Done::RollBack(answer));
        }
        if now != State::Sold {
            // Units go to segments that are active when this is committed.
            stock = self.locked().await?.unwrap_or(stock);
        }
        if !self.finish(operation, before, now).await? {
            // The row is locked and unchanged, so the reason is that the time is over.
            return Err(call.too_late().into());
        }
        let mut moves = Moves::default();
        moves.add(&record.parts, before, now, stock.segments);
        self.make(&moves).await?;
        Ok(Done::Commit(answer))
    }

    async fn expire(&mut self, limit: u32) -> Result<Done<(u64, bool)>, Fault> {
        let call = self.call;
        let args = [(&*call.stock).into(), (i64::from(limit) + 1).into()];
        let rows = self.rows(&call.sql.overdue, &args).await?;
        let more = rows.len() > limit as usize;
        let mut over = Vec::with_capacity(rows.len());
        for row in rows.iter().take(limit as usize) {
            let text = |at| row.maybe_text(at).map_err(|error| call.unreadable(&error));
            let (operation, parts) = (text(0)?.unwrap_or_default(), text(1)?.unwrap_or_default());
            let parts = call.parts(&operation, &parts)?;
            over.push((operation, parts));
        }
        if over.is_empty() {
            return Ok(Done::RollBack((0, false)));
        }
        let Some(stock) = self.locked().await? else { return Ok(Done::RollBack((0, false))) };
        call.in_time(stock.now)?;
        let mut moves = Moves::default();
        let mut args: Vec<Arg<'_>> = vec![(&*call.stock).into(), call.retention.into()];
        for (operation, parts) in &over {
            args.push(operation.as_str().into());
            moves.add(parts, State::Held, State::Expired, stock.segments);
        }
        self.change(&call.sql.expire(over.len()), &args, over.len()).await?;
        self.make(&moves).await?;
        Ok(Done::Commit((over.len() as u64, more)))
    }

    /// Locks the stock's own row; returns whether there is one.
    pub(super) async fn lock(&mut self) -> Result<bool, Fault> {
        let call = self.call;
        Ok(!self.rows(&call.sql.lock, &[(&*call.stock).into()]).await?.is_empty())
    }

    /// Locks the stock's own row, and reads it and the time. A statement that waits for a row has
    /// read the time before.
    pub(super) async fn locked(&mut self) -> Result<Option<Stock>, Fault> {
        if self.lock().await? { self.stock().await } else { Ok(None) }
    }

    /// Reads the stock's own row and the time.
    pub(super) async fn stock(&mut self) -> Result<Option<Stock>, Fault> {
        let sent = Clock::Boot.now();
        let call = self.call;
        let rows = self.rows(&call.sql.stock, &[(&*call.stock).into()]).await?;
        let Some(row) = rows.first() else { return Ok(None) };
        let number = |at| row.int(at).map_err(|error| call.unreadable(&error));
        let now = number(0)?;
        call.observe(now, sent);
        let segments = call.segment(number(1)?)?;
        Ok(Some(Stock { now, segments, put_in: count(call, row, 2)? }))
    }

    /// Deletes records whose retention is over, and adds up what they sold. Returns how many there
    /// were. Where the statement only locks them, another one deletes them.
    async fn throw_away(&mut self, statement: &str, args: &[Arg<'_>]) -> Result<u64, Fault> {
        let call = self.call;
        let rows = self.rows(statement, args).await?;
        let mut sold = 0;
        for row in &rows {
            let unreadable = |error| call.unreadable(&error);
            if row.maybe_text(0).map_err(unreadable)?.as_deref() == Some(letter(State::Sold)) {
                sold += row.int(1).map_err(unreadable)?;
            }
        }
        for some in rows.chunks(BATCH as usize) {
            let Some(discard) = call.sql.discard(some.len()) else { break };
            let operations: Result<Vec<_>, _> = some.iter().map(|row| row.maybe_text(2)).collect();
            let operations = operations.map_err(|error| call.unreadable(&error))?;
            let mut args: Vec<Arg<'_>> = vec![(&*call.stock).into()];
            args.extend(operations.iter().flatten().map(|operation| Arg::Text(operation)));
            self.change(&discard, &args, some.len()).await?;
        }
        if sold > 0 {
            self.execute(call.sql.forget, &[(&*call.stock).into(), sold.into()]).await?;
        }
        Ok(rows.len() as u64)
    }

    /// Writes the record of an operation. Returns `false` if there is one already, or it is too
    /// late.
    pub(super) async fn note(
        &mut self,
        operation: &OperationId,
        state: &str,
        quantity: u64,
        parts: &[Part],
        hold: Option<i64>,
        kept: Option<i64>,
    ) -> Result<bool, Fault> {
        let (call, parts) = (self.call, write_parts(parts));
        let args = [
            (&*call.stock).into(),
            operation.as_str().into(),
            state.into(),
            i64::from(hold.is_some()).into(),
            signed(quantity).into(),
            parts.as_str().into(),
            hold.into(),
            kept.into(),
            call.latest().into(),
        ];
        let note = &call.sql.note;
        if self.execute(note, &args).await? == 1 {
            return Ok(true);
        }
        // The retention of the record in the way may be over.
        let of = [(&*call.stock).into(), operation.as_str().into()];
        Ok(self.throw_away(&call.sql.purge_one, &of).await? == 1 && self.execute(note, &args).await? == 1)
    }

    async fn finish(&mut self, operation: &OperationId, before: State, now: State) -> Result<bool, Fault> {
        let call = self.call;
        let args = [
            (&*call.stock).into(),
            operation.as_str().into(),
            letter(before).into(),
            letter(now).into(),
            call.retention.into(),
            call.latest().into(),
        ];
        Ok(self.execute(&call.sql.end, &args).await? == 1)
    }

    async fn make(&mut self, Moves(moves): &Moves) -> Result<(), Fault> {
        let call = self.call;
        let shifts: Vec<_> = moves
            .iter()
            .map(|(&segment, &[available, held, sold])| [segment.into(), available, held, sold])
            .collect();
        if shifts.len() > 1 {
            // A single update could lock rows in any order; this statement locks them in ascending
            // order.
            self.rows(&call.sql.segments, &[(&*call.stock).into()]).await?;
        }
        self.shift(&shifts).await
    }

    pub(super) async fn shift(&mut self, shifts: &[[i64; 4]]) -> Result<(), Fault> {
        if shifts.is_empty() {
            return Ok(());
        }
        let call = self.call;
        let mut args: Vec<Arg<'_>> = vec![(&*call.stock).into()];
        args.extend(shifts.iter().flatten().map(|&number| Arg::Int(number)));
        self.change(&call.sql.shift(shifts.len()), &args, shifts.len()).await
    }
}
