//! The steps of a call on a stock, as statements.

use std::fmt;
use std::time::Duration;

use lock_core::internal::clock::Clock;
use lock_core::store::stock::{Audit, MAX_QUANTITY, OperationId, Part, SegmentCounts, Snapshot};
use lock_core::store::{StoreError, StoreErrorKind};
use lock_store_records::stock::{
    Calls, Columns, Ending, Look, Note, Over, Scope, Shift, Stock, Terms, Units, Which, pass, signed,
    unsigned,
};

use super::call::Call;
use super::statements::Statements;
use crate::call::Tries;
use crate::links::Link;
use crate::plumbing::{Arg, Fault, Row};

/// Maximum number of records that one statement deletes by name.
const BATCH: usize = 100;

impl Call {
    /// Reads a record from the six columns from `at` on.
    fn columns(&self, row: &Row, at: usize) -> Result<Option<Columns>, StoreError> {
        let Some(state) = self.text(row, at)? else { return Ok(None) };
        Ok(Some(Columns {
            state,
            reserved: self.int(row, at + 1)? == 1,
            quantity: self.int(row, at + 2)?,
            parts: self.text(row, at + 3)?.unwrap_or_default(),
            deadline: self.maybe_int(row, at + 4)?,
            kept_until: self.maybe_int(row, at + 5)?,
        }))
    }
}

impl Calls for Call {
    // A statement sees what was committed before it, and locks what it relies on.
    const SNAPSHOT: bool = false;

    const CURRENT: bool = true;

    type Fault = Fault;
    type Tries = Tries;
    type Open = Link;

    fn terms(&self) -> &Terms {
        &self.terms
    }

    fn error(&self, kind: StoreErrorKind, text: fmt::Arguments<'_>) -> StoreError {
        self.bounded().error(kind, text)
    }

    fn again(&self, what: &str) -> Fault {
        Fault::Again(what.to_owned())
    }

    fn left(&self) -> Duration {
        self.bounded().left()
    }

    async fn retry(&self, tries: &mut Tries, fault: Fault) -> Result<(), StoreError> {
        self.bounded().retry(tries, fault).await
    }

    async fn look(&self, operation: &OperationId, _: bool) -> Result<Option<Look>, Fault> {
        let args = [self.name(), operation.as_str().into()];
        let (sent, rows) = self.look_up(&self.place.reads, &self.sql().look, &args).await?;
        let Some(first) = rows.first() else { return Ok(None) };
        let now = self.int(first, 0)?;
        self.observe(now, sent);
        let each = rows.iter().map(|row| {
            let segment = self.number(self.int(row, 1)?)?;
            Ok(Part { segment, quantity: unsigned(self.int(row, 2)?)? })
        });
        let available = each.collect::<Result<_, StoreError>>()?;
        let (record, overdue) = (self.columns(first, 3)?, self.int(first, 9)? == 1);
        Ok(Some(Look { now, available, record, overdue }))
    }

    async fn audit(&self, with_records: bool) -> Result<Option<Audit>, Fault> {
        let (place, sql) = (&*self.place, self.sql());
        let (links, text) =
            if with_records { (&place.audits, &sql.audit) } else { (&place.reads, &sql.snapshot) };
        let (_, rows) = self.look_up(links, text, &[self.name()]).await?;
        let Some(first) = rows.first() else { return Ok(None) };
        let number = |row, at| unsigned(self.int(row, at)?);
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

    async fn begin(&self, _: Scope<'_>) -> Result<Link, Fault> {
        self.before("begin").await?;
        let link = self.bounded().begin().await?;
        pass("after", "begin").await;
        Ok(link)
    }

    async fn end(&self, link: Link, ending: Ending) -> Result<(), Fault> {
        if ending != Ending::Commit {
            self.bounded().roll_back(link).await;
            return Ok(());
        }
        if let Err(fault) = self.before("commit").await {
            self.bounded().roll_back(link).await;
            return Err(fault);
        }
        self.bounded().commit(link).await?;
        pass("after", "commit").await;
        Ok(())
    }

    async fn note(&self, link: &mut Link, note: &Note<'_>) -> Result<bool, Fault> {
        let args = [
            self.name(),
            note.operation.as_str().into(),
            note.state.into(),
            i64::from(note.hold.is_some()).into(),
            signed(note.quantity).into(),
            note.parts.into(),
            note.hold.into(),
            note.kept.into(),
            self.terms.latest().into(),
        ];
        Ok(self.execute(link, &self.sql().note, &args).await? == 1)
    }

    async fn record(&self, link: &mut Link, operation: &OperationId) -> Result<Option<Columns>, Fault> {
        let args = [self.name(), operation.as_str().into()];
        let rows = self.rows(link, &self.sql().record, &args).await?;
        let Some(row) = rows.first() else { return Ok(None) };
        Ok(self.columns(row, 0)?)
    }

    async fn set_parts(&self, link: &mut Link, operation: &OperationId, parts: &str) -> Result<(), Fault> {
        let args = [self.name(), operation.as_str().into(), parts.into()];
        self.change(link, self.sql().set_parts, &args, 1).await
    }

    async fn finish(
        &self,
        link: &mut Link,
        operation: &OperationId,
        [before, now]: [&'static str; 2],
    ) -> Result<bool, Fault> {
        let (retention, latest) = (self.terms.retention.into(), self.terms.latest().into());
        let args = [self.name(), operation.as_str().into(), before.into(), now.into(), retention, latest];
        Ok(self.execute(link, &self.sql().end, &args).await? == 1)
    }

    async fn overdue(&self, link: &mut Link, limit: u32) -> Result<Vec<(String, String)>, Fault> {
        let rows = self.rows(link, &self.sql().overdue, &[self.name(), i64::from(limit).into()]).await?;
        let text = |row, at| self.text(row, at).map(Option::unwrap_or_default);
        rows.iter().map(|row| Ok((text(row, 0)?, text(row, 1)?))).collect()
    }

    async fn expire(&self, link: &mut Link, operations: &[&str]) -> Result<(), Fault> {
        let mut args = vec![self.name(), self.terms.retention.into()];
        args.extend(operations.iter().map(|operation| Arg::Text(operation)));
        self.change(link, &self.sql().expire(operations.len()), &args, operations.len()).await
    }

    async fn purge(&self, link: &mut Link, which: Which<'_>) -> Result<Vec<Over>, Fault> {
        let (text, of) = match which {
            Which::Of(operation) => (&self.sql().purge_one, operation.as_str().into()),
            Which::AtMost(limit) => (&self.sql().purge, i64::from(limit).into()),
        };
        let rows = self.rows(link, text, &[self.name(), of]).await?;
        // Where the statement only locks them, another one deletes them.
        for some in rows.chunks(BATCH) {
            let Some(discard) = self.sql().discard(some.len()) else { break };
            let operations = some.iter().map(|row| self.text(row, 2)).collect::<Result<Vec<_>, _>>()?;
            let mut args = vec![self.name()];
            args.extend(operations.iter().flatten().map(|operation| Arg::Text(operation)));
            self.change(link, &discard, &args, some.len()).await?;
        }
        let over =
            |row| Ok(Over { state: self.text(row, 0)?.unwrap_or_default(), quantity: self.int(row, 1)? });
        rows.iter().map(over).collect()
    }

    async fn forget(&self, link: &mut Link, units: i64) -> Result<(), Fault> {
        self.execute(link, self.sql().forget, &[self.name(), units.into()]).await.map(drop)
    }

    async fn lock(&self, link: &mut Link) -> Result<bool, Fault> {
        Ok(!self.rows(link, &self.sql().lock, &[self.name()]).await?.is_empty())
    }

    async fn stock(&self, link: &mut Link) -> Result<Option<Stock>, Fault> {
        let sent = Clock::Boot.now();
        let rows = self.rows(link, &self.sql().stock, &[self.name()]).await?;
        let Some(row) = rows.first() else { return Ok(None) };
        let now = self.int(row, 0)?;
        self.observe(now, sent);
        let (segments, put_in) = (self.number(self.int(row, 1)?)?, unsigned(self.int(row, 2)?)?);
        Ok(Some(Stock { now, segments, put_in }))
    }

    async fn create(&self, link: &mut Link, segments: u32, units: u64) -> Result<bool, Fault> {
        let args = [self.name(), i64::from(segments).into(), signed(units).into()];
        Ok(self.execute(link, self.sql().create, &args).await? == 1)
    }

    async fn resize(&self, link: &mut Link, segments: u32, all: usize) -> Result<(), Fault> {
        let args = [self.name(), i64::from(segments).into()];
        self.change(link, &self.sql().activate, &args, all).await?;
        self.change(link, self.sql().resize, &args, 1).await
    }

    async fn restock(&self, link: &mut Link, units: u64) -> Result<(), Fault> {
        let args = [self.name(), signed(units).into(), signed(MAX_QUANTITY).into()];
        self.change(link, self.sql().restock, &args, 1).await
    }

    async fn add(&self, link: &mut Link, first: usize, units: &[u64]) -> Result<(), Fault> {
        let mut args = vec![self.name()];
        for (segment, &units) in (first as i64..).zip(units) {
            args.extend([Arg::Int(segment), Arg::Int(signed(units))]);
        }
        self.change(link, &Statements::add(units.len()), &args, units.len()).await
    }

    async fn segments(&self, link: &mut Link) -> Result<Vec<(bool, u64)>, Fault> {
        let rows = self.rows(link, &self.sql().segments, &[self.name()]).await?;
        rows.iter().map(|row| Ok((self.int(row, 1)? == 1, unsigned(self.int(row, 2)?)?))).collect()
    }

    async fn segment(&self, link: &mut Link, segment: u32) -> Result<Option<(bool, u64, i64)>, Fault> {
        let rows = self.rows(link, self.sql().segment, &[self.name(), i64::from(segment).into()]).await?;
        let Some(row) = rows.first() else { return Ok(None) };
        Ok(Some((self.int(row, 0)? == 1, unsigned(self.int(row, 1)?)?, self.int(row, 2)?)))
    }

    async fn take(&self, link: &mut Link, units: Units) -> Result<bool, Fault> {
        let Units { segment, quantity, sold, held, token } = units;
        let args =
            [self.name(), i64::from(segment).into(), quantity.into(), sold.into(), held.into(), token.into()];
        Ok(self.execute(link, self.sql().take, &args).await? == 1)
    }

    async fn shift(&self, link: &mut Link, shifts: &[Shift]) -> Result<(), Fault> {
        let mut args = vec![self.name()];
        for Shift { segment, counts } in shifts {
            args.push(i64::from(*segment).into());
            args.extend(counts.map(Arg::Int));
        }
        self.change(link, &self.sql().shift(shifts.len()), &args, shifts.len()).await
    }
}
