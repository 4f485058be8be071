//! Operations of a stock's owner: creating it, adding units, evening them out, and changing the
//! number of segments. Each is one transaction and takes no lock of a segment: it locks the rows
//! that it counts, and changes them by differences.

use std::time::Duration;

use lock_core::LockKey;
use lock_core::internal::plan::fill;
use lock_core::store::stock::{MAX_QUANTITY, RestockAnswer, RestockRequest, StockCall};
use lock_core::store::{StoreError, StoreErrorKind};
use lock_store_sql::plumbing::{Arg, Fault};

use super::call::{Call, Open};
use super::numbers::{signed, unsigned};
use super::statements::Statements;
use super::stocks::SqlStocks;

/// Maximum time for creating tables; other processes may be creating them too.
const PATIENCE: Duration = Duration::from_secs(30);

/// The segments of a stock, with their rows locked.
struct Segments {
    /// The units of the active segments, in ascending order of the segments.
    active: Vec<u64>,
    /// The number of retired segments.
    retired: usize,
}

impl SqlStocks {
    pub(super) async fn make_tables(&self) -> Result<(), StoreError> {
        // The tables are for all stocks, but a call needs the name of one.
        let name = LockKey::new("all")
            .map_err(|error| StoreError::new(StoreErrorKind::Refused, error.to_string()))?;
        let nobody = StockCall::new(name, PATIENCE, PATIENCE);
        let call = Call::new(&self.tables, &nobody).await?;
        call.again(|| call.try_to_make_tables()).await
    }

    pub(super) async fn make(&self, call: &StockCall, units: &[u64]) -> Result<bool, StoreError> {
        let call = Call::new(&self.tables, call).await?;
        call.again(|| call.try_to_make(units)).await
    }

    pub(super) async fn put_in(&self, request: &RestockRequest) -> Result<RestockAnswer, StoreError> {
        let call = Call::new(&self.tables, &request.call).await?;
        call.again(|| call.try_to_put_in(request)).await
    }

    pub(super) async fn even_out(&self, call: &StockCall) -> Result<Option<()>, StoreError> {
        let call = Call::new(&self.tables, call).await?;
        call.again(|| call.try_to_even_out()).await
    }

    pub(super) async fn change_size(
        &self,
        call: &StockCall,
        segments: u32,
    ) -> Result<Option<()>, StoreError> {
        let call = Call::new(&self.tables, call).await?;
        call.again(|| call.try_to_change_size(segments)).await
    }
}

impl Call<'_> {
    async fn try_to_make_tables(&self) -> Result<(), Fault> {
        let mut open = self.begin().await?;
        open.run(&self.at.sql.tables).await?;
        open.commit().await
    }

    async fn try_to_make(&self, units: &[u64]) -> Result<bool, Fault> {
        let total: u64 = units.iter().sum();
        let mut open = self.begin().await?;
        let args = [self.stock.into(), (units.len() as i64).into(), signed(total).into()];
        if open.execute(self.at.sql.create, &args).await? == 0 {
            return Ok(false);
        }
        open.add(0, units).await?;
        let stock = open.stock(&self.at.sql.stock).await?;
        self.in_time(stock.map_or(i64::MAX, |stock| stock.now))?;
        open.commit().await?;
        Ok(true)
    }

    async fn try_to_even_out(&self) -> Result<Option<()>, Fault> {
        let mut open = self.begin().await?;
        let Some(stock) = open.stock(&self.at.sql.stock_locked).await? else { return Ok(None) };
        self.in_time(stock.now)?;
        let Segments { active, .. } = open.segments().await?;
        let even = fill(&vec![0; active.len()], active.iter().sum());
        open.shift_available(&active, &even).await?;
        open.commit().await?;
        Ok(Some(()))
    }

    async fn try_to_change_size(&self, segments: u32) -> Result<Option<()>, Fault> {
        let mut open = self.begin().await?;
        let Some(stock) = open.stock(&self.at.sql.stock_locked).await? else { return Ok(None) };
        self.in_time(stock.now)?;
        if stock.segments == segments {
            return Ok(Some(()));
        }
        let Segments { mut active, retired } = open.segments().await?;
        let (before, after) = (active.len() + retired, segments as usize);
        if before < after {
            open.add(before, &vec![0; after - before]).await?;
        }
        let args = [self.stock.into(), i64::from(segments).into()];
        open.change(self.at.sql.activate, &args, before.max(after)).await?;
        open.change(self.at.sql.resize, &args, 1).await?;
        // The units of retired segments go to the others.
        active.resize(before.max(after), 0);
        let left = active.iter().skip(after).sum();
        let mut new: Vec<_> = active.iter().copied().take(after).collect();
        let more = fill(&new, left);
        new.iter_mut().zip(more).for_each(|(units, more)| *units += more);
        new.resize(active.len(), 0);
        open.shift_available(&active, &new).await?;
        open.commit().await?;
        Ok(Some(()))
    }

    async fn try_to_put_in(&self, request: &RestockRequest) -> Result<RestockAnswer, Fault> {
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
        if !open.note(&request.operation, "R", request.quantity, &[], None, Some(self.retention)).await? {
            return Err(super::call::crossed());
        }
        let Some(stock) = open.stock(&self.at.sql.stock_locked).await? else {
            return Ok(RestockAnswer::Missing);
        };
        if stock.put_in > MAX_QUANTITY - request.quantity {
            return Ok(RestockAnswer::TooMany);
        }
        let Segments { active, .. } = open.segments().await?;
        let more = fill(&active, request.quantity);
        let new: Vec<_> = active.iter().zip(more).map(|(has, more)| has + more).collect();
        open.shift_available(&active, &new).await?;
        let args = [self.stock.into(), signed(request.quantity).into(), signed(MAX_QUANTITY).into()];
        open.change(self.at.sql.restock, &args, 1).await?;
        open.commit().await?;
        Ok(RestockAnswer::Done { repeated: false })
    }
}

impl Open<'_> {
    async fn segments(&mut self) -> Result<Segments, Fault> {
        let rows = self.rows(&self.call.at.sql.segments, &[self.call.stock.into()]).await?;
        let mut segments = Segments { active: Vec::with_capacity(rows.len()), retired: 0 };
        for row in &rows {
            let number = |at| row.int(at).map_err(|error| self.call.unreadable(&error));
            if number(1)? == 1 {
                segments.active.push(unsigned(number(2)?)?);
            } else {
                segments.retired += 1;
            }
        }
        Ok(segments)
    }

    /// Adds new segments, numbered from `first`.
    async fn add(&mut self, first: usize, units: &[u64]) -> Result<(), Fault> {
        let mut args: Vec<Arg<'_>> = vec![self.call.stock.into()];
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
