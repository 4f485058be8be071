//! [`Call`]: one call on a stock; [`Open`]: its transaction.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use lock_core::internal::clock::Tick;
use lock_core::store::stock::StockCall;
use lock_core::store::{ServerTime, StoreError, StoreErrorKind};
use lock_store_records::RecordStore;

use super::numbers::{micros, unsigned};
use super::place::Place;
use super::statements::Statements;
use crate::call::{self, Tries};
use crate::links::{Link, Links};
use crate::plumbing::{Arg, During, Fault, Row};
use lock_store_records::rows::time;

/// One call on a stock.
pub(super) struct Call<'a> {
    pub(super) sql: &'a Statements,
    pub(super) place: &'a Place,
    bounded: call::Call<'a>,
    /// The stock's name, with the prefix.
    pub(super) stock: Arc<str>,
    /// The deadline by the database's clock.
    latest: ServerTime,
    pub(super) retention: i64,
}

impl fmt::Debug for Call<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Call").field("stock", &self.stock).finish_non_exhaustive()
    }
}

impl<'a> Call<'a> {
    /// Begins a call. If the database's clock is not known yet, asks for it.
    pub(super) async fn new(place: &'a Place, call: &StockCall) -> Result<Self, StoreError> {
        let (sql, statements) = (&*place.sql, &place.statements);
        let bounded = call::Call::for_tables(sql, &place.links, call.timeout, &statements.tables);
        if !call.replication.is_none() {
            return Err(bounded.error(
                StoreErrorKind::Unsupported,
                "a stock in SQL cannot ask for replicas: what a commit waits for is the database's own setting \
                 (`synchronous_commit` and `synchronous_standby_names` of PostgreSQL); leave `replication` away",
            ));
        }
        let stock = call.stock.prefixed(&place.prefix);
        bounded.check_name(&stock)?;
        let latest = call.stamp(sql.time(bounded.left()).await?);
        let retention = micros(call.retention);
        Ok(Self { sql: statements, place, bounded, stock, latest, retention })
    }

    /// Records that the database reported the time `now` in answer to a statement sent at `sent`.
    pub(super) fn observe(&self, now: i64, sent: Tick) {
        self.bounded.sql.observe(time(now), sent);
    }

    pub(super) fn too_late(&self) -> StoreError {
        self.bounded.error(StoreErrorKind::TooLate, "not done in time; nothing was changed")
    }

    /// Returns an error if `now`, by the database's clock, is past the call's deadline.
    pub(super) fn in_time(&self, now: i64) -> Result<(), StoreError> {
        if time(now) <= self.latest { Ok(()) } else { Err(self.too_late()) }
    }

    pub(super) fn latest(&self) -> i64 {
        lock_store_records::rows::micros(self.latest)
    }

    pub(super) fn left(&self) -> Duration {
        self.bounded.left()
    }

    /// Returns the error for tables with unexpected content.
    pub(super) fn broken(&self, what: impl fmt::Display) -> StoreError {
        let text = format_args!("stock {}: {what}", self.stock);
        self.bounded.error(StoreErrorKind::ForeignData, text)
    }

    pub(super) fn unreadable(&self, error: &sqlx::Error) -> StoreError {
        self.bounded.unreadable(error).error(call::NO_TABLE)
    }

    /// Prepares for another attempt after `fault`, or fails if there is no time for one.
    pub(super) async fn retry(&self, tries: &mut Tries, fault: Fault) -> Result<(), StoreError> {
        self.bounded.retry(tries, fault).await
    }

    /// Begins one step of the call, if there is time.
    async fn before(&self, what: &str) -> Result<(), Fault> {
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
        let answer = self.bounded.bounded(During::Work, step).await?;
        pass("after", what).await;
        Ok(answer)
    }

    /// Runs one statement that reads, without a transaction, and returns also when it was sent. It
    /// holds one of these connections only for that time.
    pub(super) async fn rows(
        &self,
        links: &Links,
        text: &str,
        args: &[Arg<'_>],
    ) -> Result<(Tick, Vec<Row>), Fault> {
        self.before("look").await?;
        let rows = self.bounded.on(links).read(text, args).await?;
        pass("after", "look").await;
        Ok(rows)
    }

    pub(super) async fn begin(&self) -> Result<Open<'_>, Fault> {
        self.before("begin").await?;
        let link = self.bounded.begin().await?;
        pass("after", "begin").await;
        Ok(Open { call: self, link })
    }
}

/// How a transaction ends, and the answer.
pub(super) enum Done<T> {
    Commit(T),
    RollBack(T),
}

/// A transaction of a call. If it is dropped before its end, its connection is closed, and so the
/// transaction is rolled back.
pub(super) struct Open<'a> {
    pub(super) call: &'a Call<'a>,
    link: Link,
}

impl Open<'_> {
    /// Runs a statement and returns how many rows it changed.
    pub(super) async fn execute(&mut self, text: &str, args: &[Arg<'_>]) -> Result<u64, Fault> {
        self.call.step("change", self.link.execute(text, args)).await
    }

    /// Runs a statement that must change exactly this many rows.
    pub(super) async fn change(&mut self, text: &str, args: &[Arg<'_>], rows: usize) -> Result<(), Fault> {
        let changed = self.execute(text, args).await?;
        if changed == rows as u64 {
            return Ok(());
        }
        let what = format_args!("{changed} rows were changed instead of {rows}, so its counts do not add up");
        Err(self.call.broken(what).into())
    }

    pub(super) async fn rows(&mut self, text: &str, args: &[Arg<'_>]) -> Result<Vec<Row>, Fault> {
        self.call.step("read", self.link.rows(text, args)).await
    }

    /// Commits or rolls back.
    pub(super) async fn end<T>(self, done: Result<Done<T>, Fault>) -> Result<T, Fault> {
        let Self { call, link } = self;
        let answer = match done {
            Ok(Done::Commit(answer)) => match call.before("commit").await {
                Ok(()) => {
                    call.bounded.commit(link).await?;
                    pass("after", "commit").await;
                    return Ok(answer);
                }
                Err(fault) => Err(fault),
            },
            Ok(Done::RollBack(answer)) => Ok(answer),
            Err(fault) => Err(fault),
        };
        call.bounded.roll_back(link).await;
        answer
    }
}

/// Point at which a test stops a program or drops a future.
#[cfg(feature = "testing")]
async fn pass(when: &str, what: &str) {
    lock_core::internal::steps::fault_point(when, what);
    tokio::task::yield_now().await;
}

#[cfg(not(feature = "testing"))]
#[expect(clippy::unused_async, reason = "with the feature `testing` it waits")]
async fn pass(_when: &str, _what: &str) {}

/// Returns the fault of an operation that is also under way elsewhere.
pub(super) fn crossed() -> Fault {
    Fault::Again("the same operation is under way elsewhere".to_owned())
}

/// Converts a count of the tables.
pub(super) fn count(call: &Call<'_>, row: &Row, at: usize) -> Result<u64, StoreError> {
    unsigned(row.int(at).map_err(|error| call.unreadable(&error))?)
}
