//! The ends of operations: confirmed, cancelled, given back, or expired. Each is one transaction.
//! The locked record says which units to move, and counts change by differences.

use std::collections::BTreeMap;

use lock_core::internal::plan::AT_ONCE;
use lock_core::store::StoreError;
use lock_core::store::stock::{OperationId, Part, Settle, SettleAnswer, SettleRequest, State, Swept, next};

use super::numbers::signed;
use super::record::{Record, letter, read_parts};
use super::{Calls, Done, Note, Over, Scope, Shift, Stock, Which, Work, attempts, transaction};

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

/// Ends overdue reservations, and deletes records whose retention is over.
pub(super) async fn sweep<C: Calls>(call: &C, limit: u32) -> Result<Swept, StoreError> {
    let mut swept = Swept::default();
    match sweep_into(call, limit, &mut swept).await {
        Err(error) if swept.expired == 0 => Err(error),
        // Report the part that was done. If the error persists, the next sweep returns it.
        Err(_) => Ok(Swept { more: true, ..swept }),
        Ok(()) => Ok(swept),
    }
}

async fn sweep_into<C: Calls>(call: &C, limit: u32, swept: &mut Swept) -> Result<(), StoreError> {
    while swept.expired < u64::from(limit) {
        let batch = (u64::from(limit) - swept.expired).min(BATCH.into()) as u32;
        let expired: Result<_, StoreError> = attempts!(call, expire_some(call, batch));
        let (expired, more) = expired?;
        swept.expired += expired;
        swept.more = more;
        if !more || expired == 0 {
            break;
        }
    }
    let purged: Result<_, StoreError> = attempts!(call, purge(call, limit));
    let purged = purged?;
    swept.forgotten += purged;
    swept.more |= purged > 0 && purged >= u64::from(limit);
    Ok(())
}

pub(super) async fn settle<C: Calls>(call: &C, request: &SettleRequest) -> Result<SettleAnswer, C::Fault> {
    end(call, &request.operation, End::Asked(request.settle)).await
}

pub(super) async fn end<C: Calls>(
    call: &C,
    operation: &OperationId,
    end: End,
) -> Result<SettleAnswer, C::Fault> {
    transaction!(call, Scope::Operation(operation), |work| work.settle(operation, end))
}

async fn purge<C: Calls>(call: &C, limit: u32) -> Result<u64, C::Fault> {
    transaction!(call, Scope::Records, |work| work.purge(limit))
}

/// Ends overdue reservations because too few units are left. Returns whether there were any.
pub(super) async fn make_room<C: Calls>(call: &C) -> Result<bool, C::Fault> {
    Ok(expire_some(call, AT_ONCE).await?.0 > 0)
}

/// Ends at most `limit` overdue reservations. Returns how many, and whether there are more.
async fn expire_some<C: Calls>(call: &C, limit: u32) -> Result<(u64, bool), C::Fault> {
    transaction!(call, Scope::Stock, |work| work.expire(limit))
}

impl<C: Calls> Work<'_, C> {
    async fn settle(&mut self, operation: &OperationId, end: End) -> Result<Done<SettleAnswer>, C::Fault> {
        let call = self.call;
        let found = call.record(&mut self.open, operation).await?;
        // Read the time only once the record is locked: waiting for the lock may have taken long.
        let Some(mut stock) = call.stock(&mut self.open).await? else {
            return Ok(Done::RollBack(SettleAnswer::Missing));
        };
        call.in_time(stock.now)?;
        let Some(record) = Record::read(call, operation.as_str(), found, stock.now)? else {
            let Some(now) = end.next(None, false) else { return Ok(Done::RollBack(SettleAnswer::Unknown)) };
            let kept = Some(call.terms().retention);
            if !self.note(&Note { operation, state: "N", quantity: 0, parts: "", hold: None, kept }).await? {
                return Err(call.crossed());
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
        // Units go to segments that are active when this is committed. In a snapshot, a resize that
        // retires one has changed it, so this transaction fails.
        if now != State::Sold && !C::SNAPSHOT {
            stock = self.locked().await?.unwrap_or(stock);
        }
        if !call.finish(&mut self.open, operation, [letter(before), letter(now)]).await? {
            // The record is locked and unchanged, so the reason is that the time is over.
            return Err(call.too_late().into());
        }
        let mut moves = Moves::default();
        moves.add(&record.parts, before, now, stock.segments);
        self.make(&moves).await?;
        Ok(Done::Commit(answer))
    }

    async fn expire(&mut self, limit: u32) -> Result<Done<(u64, bool)>, C::Fault> {
        let call = self.call;
        let found = call.overdue(&mut self.open, limit.saturating_add(1)).await?;
        let more = found.len() > limit as usize;
        let mut over = Vec::with_capacity(found.len());
        for (operation, parts) in found.iter().take(limit as usize) {
            over.push((operation.as_str(), read_parts(call, operation, parts)?));
        }
        if over.is_empty() {
            return Ok(Done::Undo((0, false)));
        }
        let stock = if C::SNAPSHOT { call.stock(&mut self.open).await? } else { self.locked().await? };
        let Some(stock) = stock else { return Ok(Done::Undo((0, false))) };
        call.in_time(stock.now)?;
        let mut moves = Moves::default();
        for (_, parts) in &over {
            moves.add(parts, State::Held, State::Expired, stock.segments);
        }
        let operations: Vec<_> = over.iter().map(|(operation, _)| *operation).collect();
        call.expire(&mut self.open, &operations).await?;
        self.make(&moves).await?;
        Ok(Done::Commit((over.len() as u64, more)))
    }

    /// Locks the stock, and reads it and the time. A step that waits for a lock has read the time
    /// before.
    pub(super) async fn locked(&mut self) -> Result<Option<Stock>, C::Fault> {
        if self.call.lock(&mut self.open).await? { self.call.stock(&mut self.open).await } else { Ok(None) }
    }

    /// Deletes records whose retention is over.
    async fn purge(&mut self, limit: u32) -> Result<Done<u64>, C::Fault> {
        let over = self.call.purge(&mut self.open, Which::AtMost(limit)).await?;
        self.forget(&over).await?;
        Ok(Done::Commit(over.len() as u64))
    }

    /// Adds up what deleted records have sold.
    async fn forget(&mut self, over: &[Over]) -> Result<(), C::Fault> {
        let sold = over.iter().filter(|over| over.state == letter(State::Sold));
        let sold: i64 = sold.map(|over| over.quantity).sum();
        if sold > 0 {
            self.call.forget(&mut self.open, sold).await?;
        }
        Ok(())
    }

    /// Writes the record of an operation. Returns `false` if there is one already, or it is too
    /// late.
    pub(super) async fn note(&mut self, note: &Note<'_>) -> Result<bool, C::Fault> {
        let call = self.call;
        if call.note(&mut self.open, note).await? {
            return Ok(true);
        }
        // The retention of the record in the way may be over.
        let over = call.purge(&mut self.open, Which::Of(note.operation)).await?;
        self.forget(&over).await?;
        Ok(over.len() == 1 && call.note(&mut self.open, note).await?)
    }

    async fn make(&mut self, Moves(moves): &Moves) -> Result<(), C::Fault> {
        let shifts: Vec<_> = moves.iter().map(|(&segment, &counts)| Shift { segment, counts }).collect();
        if shifts.len() > 1 && !C::SNAPSHOT {
            // A single update could lock them in any order; this step locks them in ascending
            // order.
            self.call.segments(&mut self.open).await?;
        }
        self.shift(&shifts).await
    }

    pub(super) async fn shift(&mut self, shifts: &[Shift]) -> Result<(), C::Fault> {
        if shifts.is_empty() { Ok(()) } else { self.call.shift(&mut self.open, shifts).await }
    }
}
