//! [`Call`]: one call on a stock.

use std::sync::Arc;

use lock_core::internal::clock::Tick;
use lock_core::store::StoreError;
use lock_store_records::rows::time;
use lock_store_records::stock::{Calls, Terms, pass};

use super::place::Place;
use super::statements::Statements;
use crate::call::{self, Limits};
use crate::links::{Link, Links};
use crate::plumbing::{Arg, During, Fault, Row};

/// One call on a stock.
pub(crate) struct Call {
    pub(super) place: Arc<Place>,
    pub(super) limits: Limits,
    pub(super) terms: Terms,
}

impl Call {
    pub(super) fn sql(&self) -> &Statements {
        &self.place.statements
    }

    /// Returns the stock's name, with the prefix, as an argument.
    pub(super) fn name(&self) -> Arg<'_> {
        Arg::Text(&self.terms.stock)
    }

    /// Returns the call on connections for transactions.
    pub(super) fn bounded(&self) -> call::Call<'_> {
        let Place { sql, links, statements, .. } = &*self.place;
        call::Call::for_tables(sql, links, self.limits, &statements.tables)
    }

    /// Records that the database reported the time `now` in answer to a statement sent at `sent`.
    pub(super) fn observe(&self, now: i64, sent: Tick) {
        self.place.sql.observe(time(now), sent);
    }

    pub(super) fn unreadable(&self, error: &sqlx::Error) -> StoreError {
        self.bounded().unreadable(error).error(call::NO_TABLE)
    }

    /// Begins one step of the call, if there is time.
    pub(super) async fn before(&self, what: &str) -> Result<(), Fault> {
        pass("before", what).await;
        if self.left().is_zero() { Err(self.too_late().into()) } else { Ok(()) }
    }

    /// Runs one step of the call, if there is time.
    async fn step<T>(
        &self,
        what: &str,
        step: impl Future<Output = Result<T, sqlx::Error>>,
    ) -> Result<T, Fault> {
        self.before(what).await?;
        let answer = self.bounded().bounded(During::Work, step).await?;
        pass("after", what).await;
        Ok(answer)
    }

    /// Runs one statement that reads, without a transaction, and returns also when it was sent. It
    /// holds one of these connections only for that time.
    pub(super) async fn look_up(
        &self,
        links: &Links,
        text: &str,
        args: &[Arg<'_>],
    ) -> Result<(Tick, Vec<Row>), Fault> {
        self.before("look").await?;
        let rows = self.bounded().on(links).read(text, args).await?;
        pass("after", "look").await;
        Ok(rows)
    }

    /// Runs a statement and returns how many rows it changed.
    pub(super) async fn execute(&self, link: &mut Link, text: &str, args: &[Arg<'_>]) -> Result<u64, Fault> {
        self.step("change", link.execute(text, args)).await
    }

    /// Runs a statement that must change exactly this many rows.
    pub(super) async fn change(
        &self,
        link: &mut Link,
        text: &str,
        args: &[Arg<'_>],
        rows: usize,
    ) -> Result<(), Fault> {
        let changed = self.execute(link, text, args).await?;
        Ok(self.all(changed, rows)?)
    }

    pub(super) async fn rows(
        &self,
        link: &mut Link,
        text: &str,
        args: &[Arg<'_>],
    ) -> Result<Vec<Row>, Fault> {
        self.step("read", link.rows(text, args)).await
    }

    pub(super) fn int(&self, row: &Row, at: usize) -> Result<i64, StoreError> {
        row.int(at).map_err(|error| self.unreadable(&error))
    }

    pub(super) fn maybe_int(&self, row: &Row, at: usize) -> Result<Option<i64>, StoreError> {
        row.maybe_int(at).map_err(|error| self.unreadable(&error))
    }

    pub(super) fn text(&self, row: &Row, at: usize) -> Result<Option<String>, StoreError> {
        row.maybe_text(at).map_err(|error| self.unreadable(&error))
    }
}
