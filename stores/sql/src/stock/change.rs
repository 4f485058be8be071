//! Operations of a stock's owner: creating it, adding units, evening them out, and changing the
//! number of segments. Each is one transaction: it locks the rows that it counts, and
//! changes them by differences.

use lock_core::internal::plan::fill;
use lock_core::store::stock::{MAX_QUANTITY, RestockAnswer, RestockRequest};

use super::call::{Call, Done, Open, count, crossed};
use super::numbers::signed;
use super::statements::Statements;
use crate::plumbing::{Arg, Fault};

/// The segments of a stock, with their rows locked.
pub(super) struct Segments {
    /// The units of the active segments, in ascending order of the segments.
    pub(super) active: Vec<u64>,
    /// The number of retired segments.
    retired: usize,
}

impl Call<'_> {
    pub(super) async fn try_to_make(&self, units: &[u64]) -> Result<bool, Fault> {
        let mut open = self.begin().await?;
        let done = open.create(units).await;
        open.end(done).await
    }

    pub(super) async fn try_to_even_out(&self) -> Result<Option<()>, Fault> {
        let mut open = self.begin().await?;
        let done = open.even_out().await;
        open.end(done).await
    }

    pub(super) async fn try_to_change_size(&self, segments: u32) -> Result<Option<()>, Fault> {
        let mut open = self.begin().await?;
        let done = open.change_size(segments).await;
        open.end(done).await
    }

    pub(super) async fn try_to_put_in(&self, request: &RestockRequest) -> Result<RestockAnswer, Fault> {
        let Some(look) = self.look(&request.operation).await? else {
            return Ok(RestockAnswer::Missing);
        };
        if let Some(record) = look.record {
            let is_same = record.state.is_none() && record.quantity == request.quantity;
            return Ok(if is_same {
                RestockAnswer::Done { repeated: true }
            } else {
                RestockAnswer::Different { quantity: record.quantity }
            });
        }
        self.in_time(look.now)?;
        let mut open = self.begin().await?;
        let done = open.put_in(request).await;
        open.end(done).await
    }
}

impl Open<'_> {
    async fn create(&mut self, units: &[u64]) -> Result<Done<bool>, Fault> {
        let (call, total) = (self.call, units.iter().sum());
        let args = [(&*call.stock).into(), (units.len() as i64).into(), signed(total).into()];
        if self.execute(call.sql.create, &args).await? == 0 {
            return Ok(Done::RollBack(false));
        }
        self.add(0, units).await?;
        let stock = self.stock().await?;
        call.in_time(stock.map_or(i64::MAX, |stock| stock.now))?;
        Ok(Done::Commit(true))
    }

    async fn even_out(&mut self) -> Result<Done<Option<()>>, Fault> {
        let call = self.call;
        let Some(stock) = self.locked().await? else { return Ok(Done::RollBack(None)) };
        call.in_time(stock.now)?;
        let Segments { active, .. } = self.segments().await?;
        let even = fill(&vec![0; active.len()], active.iter().sum());
        self.shift_available(&active, &even).await?;
        Ok(Done::Commit(Some(())))
    }

    async fn change_size(&mut self, segments: u32) -> Result<Done<Option<()>>, Fault> {
        let call = self.call;
        let Some(stock) = self.locked().await? else { return Ok(Done::RollBack(None)) };
        call.in_time(stock.now)?;
        if stock.segments == segments {
            return Ok(Done::RollBack(Some(())));
        }
        let Segments { mut active, retired } = self.segments().await?;
        let (before, after) = (active.len() + retired, segments as usize);
        if before < after {
            self.add(before, &vec![0; after - before]).await?;
        }
        let args = [(&*call.stock).into(), i64::from(segments).into()];
        self.change(&call.sql.activate, &args, before.max(after)).await?;
        self.change(call.sql.resize, &args, 1).await?;
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

    async fn put_in(&mut self, request: &RestockRequest) -> Result<Done<RestockAnswer>, Fault> {
        let call = self.call;
        if !self.note(&request.operation, "R", request.quantity, &[], None, Some(call.retention)).await? {
            return Err(crossed());
        }
        let Some(stock) = self.locked().await? else {
            return Ok(Done::RollBack(RestockAnswer::Missing));
        };
        if stock.put_in > MAX_QUANTITY - request.quantity {
            return Ok(Done::RollBack(RestockAnswer::TooMany));
        }
        let Segments { active, .. } = self.segments().await?;
        let more = fill(&active, request.quantity);
        let new: Vec<_> = active.iter().zip(more).map(|(has, more)| has + more).collect();
        self.shift_available(&active, &new).await?;
        let args = [(&*call.stock).into(), signed(request.quantity).into(), signed(MAX_QUANTITY).into()];
        self.change(call.sql.restock, &args, 1).await?;
        Ok(Done::Commit(RestockAnswer::Done { repeated: false }))
    }

    /// Locks the rows of all segments, in ascending order.
    pub(super) async fn segments(&mut self) -> Result<Segments, Fault> {
        let call = self.call;
        let rows = self.rows(&call.sql.segments, &[(&*call.stock).into()]).await?;
        let mut segments = Segments { active: Vec::with_capacity(rows.len()), retired: 0 };
        for row in &rows {
            if count(call, row, 1)? == 1 {
                segments.active.push(count(call, row, 2)?);
            } else {
                segments.retired += 1;
            }
        }
        Ok(segments)
    }

    /// Adds new segments, numbered from `first`.
    async fn add(&mut self, first: usize, units: &[u64]) -> Result<(), Fault> {
        let call = self.call;
        let mut args: Vec<Arg<'_>> = vec![(&*call.stock).into()];
        for (segment, &units) in (first as i64..).zip(units) {
            args.extend([Arg::Int(segment), Arg::Int(signed(units))]);
        }
        self.change(&Statements::add(units.len()), &args, units.len()).await
    }

    /// Changes the units of segments 0 and up from `old` to `new`.
    async fn shift_available(&mut self, old: &[u64], new: &[u64]) -> Result<(), Fault> {
        let each = (0..).zip(old.iter().zip(new));
        let each = each.map(|(segment, (&old, &new))| [segment, signed(new) - signed(old), 0, 0]);
        let shifts: Vec<_> = each.filter(|[_, available, ..]| *available != 0).collect();
        self.shift(&shifts).await
    }
}
