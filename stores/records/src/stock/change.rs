//! Operations of a stock's owner: creating it, adding units, evening them out, and changing the
//! number of segments. Each is one transaction: it locks what it counts, and changes it by
//! differences.

use lock_core::internal::plan::fill;
use lock_core::store::stock::{MAX_QUANTITY, RestockAnswer, RestockRequest};

use super::numbers::signed;
use super::record::{Look, Record};
use super::{Calls, Done, Note, Scope, Shift, Work, decided, transaction};

/// The segments of a stock, locked.
pub(super) struct Segments {
    /// The units of the active segments, in ascending order of the segments.
    pub(super) active: Vec<u64>,
    /// The number of retired segments.
    retired: usize,
}

pub(super) async fn make<C: Calls>(call: &C, units: &[u64]) -> Result<bool, C::Fault> {
    transaction!(call, Scope::Stock, |work| work.create(units))
}

pub(super) async fn even_out<C: Calls>(call: &C) -> Result<Option<()>, C::Fault> {
    transaction!(call, Scope::Stock, |work| work.even_out())
}

pub(super) async fn change_size<C: Calls>(call: &C, segments: u32) -> Result<Option<()>, C::Fault> {
    transaction!(call, Scope::Stock, |work| work.change_size(segments))
}

pub(super) async fn put_in<C: Calls>(call: &C, request: &RestockRequest) -> Result<RestockAnswer, C::Fault> {
    // What is known already.
    let known = |look: Option<Look>| {
        let Some(look) = look else { return Ok(Some(RestockAnswer::Missing)) };
        let Some(record) = Record::read(call, request.operation.as_str(), look.record, look.now)? else {
            call.in_time(look.now)?;
            return Ok(None);
        };
        let is_same = record.state.is_none() && record.quantity == request.quantity;
        Ok(Some(if is_same {
            RestockAnswer::Done { repeated: true }
        } else {
            RestockAnswer::Different { quantity: record.quantity }
        }))
    };
    if let Some(answer) = decided(call, &request.operation, known, Option::is_some).await? {
        return Ok(answer);
    }
    transaction!(call, Scope::Stock, |work| work.put_in(request))
}

impl<C: Calls> Work<'_, C> {
    async fn create(&mut self, units: &[u64]) -> Result<Done<bool>, C::Fault> {
        let (call, segments) = (self.call, units.len() as u32);
        if !call.create(&mut self.open, segments, units.iter().sum()).await? {
            return Ok(Done::RollBack(false));
        }
        call.add(&mut self.open, 0, units).await?;
        let stock = call.stock(&mut self.open).await?;
        call.in_time(stock.map_or(i64::MAX, |stock| stock.now))?;
        Ok(Done::Commit(true))
    }

    async fn even_out(&mut self) -> Result<Done<Option<()>>, C::Fault> {
        let call = self.call;
        let Some(stock) = self.locked().await? else { return Ok(Done::RollBack(None)) };
        call.in_time(stock.now)?;
        let Segments { active, .. } = self.segments().await?;
        let even = fill(&vec![0; active.len()], active.iter().sum());
        self.shift_available(&active, &even).await?;
        Ok(Done::Commit(Some(())))
    }

    async fn change_size(&mut self, segments: u32) -> Result<Done<Option<()>>, C::Fault> {
        let call = self.call;
        let Some(stock) = self.locked().await? else { return Ok(Done::RollBack(None)) };
        call.in_time(stock.now)?;
        if stock.segments == segments {
            return Ok(Done::RollBack(Some(())));
        }
        let Segments { mut active, retired } = self.segments().await?;
        let (before, after) = (active.len() + retired, segments as usize);
        if before < after {
            call.add(&mut self.open, before, &vec![0; after - before]).await?;
        }
        call.resize(&mut self.open, segments, before.max(after)).await?;
        // The units of retired segments go to the others.
        active.resize(before.max(after), 0);
        let left = active.iter().skip(after).sum();
        let mut new: Vec<_> = active.iter().copied().take(after).collect();
        let more = fill(&new, left);
        new.iter_mut().zip(more).for_each(|(units, more)| *units += more);
        new.resize(active.len(), 0);
        self.shift_available(&active, &new).await?;
        Ok(Done::Commit(Some(())))
    }

    async fn put_in(&mut self, request: &RestockRequest) -> Result<Done<RestockAnswer>, C::Fault> {
        let (call, operation, quantity) = (self.call, &request.operation, request.quantity);
        let kept = Some(call.terms().retention);
        if !self.note(&Note { operation, state: "R", quantity, parts: "", hold: None, kept }).await? {
            return Err(call.crossed());
        }
        let Some(stock) = self.locked().await? else {
            return Ok(Done::RollBack(RestockAnswer::Missing));
        };
        if stock.put_in > MAX_QUANTITY - quantity {
            return Ok(Done::RollBack(RestockAnswer::TooMany));
        }
        let Segments { active, .. } = self.segments().await?;
        let more = fill(&active, quantity);
        let new: Vec<_> = active.iter().zip(more).map(|(has, more)| has + more).collect();
        self.shift_available(&active, &new).await?;
        call.restock(&mut self.open, quantity).await?;
        Ok(Done::Commit(RestockAnswer::Done { repeated: false }))
    }

    /// Locks all segments, in ascending order.
    pub(super) async fn segments(&mut self) -> Result<Segments, C::Fault> {
        let all = self.call.segments(&mut self.open).await?;
        let active: Vec<u64> = all.iter().filter(|(active, _)| *active).map(|(_, units)| *units).collect();
        let retired = all.len() - active.len();
        Ok(Segments { active, retired })
    }

    /// Changes the units of segments 0 and up from `old` to `new`.
    async fn shift_available(&mut self, old: &[u64], new: &[u64]) -> Result<(), C::Fault> {
        let each = (0..).zip(old.iter().zip(new)).filter(|(_, (old, new))| old != new);
        let shift = |(segment, (&old, &new))| Shift { segment, counts: [signed(new) - signed(old), 0, 0] };
        self.shift(&each.map(shift).collect::<Vec<_>>()).await
    }
}
