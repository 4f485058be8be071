//! [`Stocks`]: stocks in a database with transactions, written once for all of them.
//!
//! A [`StockDatabase`] has the statements, or commands, of one transaction. `take` has the sales,
//! `settle` the ends of operations, and `change` what a stock's owner does.

mod change;
mod numbers;
mod record;
mod settle;
mod take;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use lock_core::store::stock::{
    Audit, AuditAnswer, OperationId, Part, RestockAnswer, RestockRequest, SettleAnswer, SettleRequest,
    Snapshot, StockCall, StockStore, Swept, TakeAnswer, TakeRequest,
};
use lock_core::store::{BoxFuture, ServerTime, StoreError, StoreErrorKind};

pub use self::numbers::{signed, unsigned};
pub use self::record::{Columns, Look};
use crate::rows::{micros, spawned, time};

/// A database that keeps stocks, as one manager sees it.
pub trait StockDatabase: Send + Sync + 'static {
    /// One call on a stock.
    type Call: Calls;

    /// Begins a call. If the database's clock is not known yet, asks for it.
    fn call(
        self: &Arc<Self>,
        call: &StockCall,
    ) -> impl Future<Output = Result<Self::Call, StoreError>> + Send;
}

/// Stock and limits of a call. Times are microseconds by the database's clock.
#[derive(Clone, Debug)]
pub struct Terms {
    /// The stock's name, with the prefix.
    pub stock: Arc<str>,
    /// When the call is too late.
    pub latest: ServerTime,
    /// How long records are kept.
    pub retention: i64,
}

impl Terms {
    /// Returns the terms of a call that is stamped when the database's time is about `now`.
    #[must_use]
    pub fn new(call: &StockCall, prefix: &str, now: ServerTime) -> Self {
        let retention = numbers::micros(call.retention);
        Self { stock: call.stock.prefixed(prefix), latest: call.stamp(now), retention }
    }

    /// Returns when the call is too late, in microseconds.
    #[must_use]
    pub fn latest(&self) -> i64 {
        micros(self.latest)
    }
}

/// A new record of an operation.
#[derive(Debug)]
pub struct Note<'a> {
    /// The operation.
    pub operation: &'a OperationId,
    /// Its state, as a letter.
    pub state: &'static str,
    /// How many units.
    pub quantity: u64,
    /// The segments that they are from.
    pub parts: &'a str,
    /// How long they are reserved, for a reservation.
    pub hold: Option<i64>,
    /// How long the record is kept; `None` while units are held.
    pub kept: Option<i64>,
}

/// Units to take from one segment.
#[derive(Clone, Copy, Debug)]
pub struct Units {
    /// The segment.
    pub segment: u32,
    /// How many are taken: as many as are sold or held.
    pub quantity: i64,
    /// How many of them are sold.
    pub sold: i64,
    /// How many of them are held.
    pub held: i64,
    /// The token of the segment's lock, if the caller has it.
    pub token: Option<i64>,
}

/// A transaction's view of its stock.
#[derive(Clone, Copy, Debug)]
pub struct Stock {
    /// The time.
    pub now: i64,
    /// The number of segments that take part in sales.
    pub segments: u32,
    /// The number of units that were ever put in.
    pub put_in: u64,
}

/// A record that was deleted because its retention is over.
#[derive(Debug)]
pub struct Over {
    /// Its state, as a letter.
    pub state: String,
    /// How many units.
    pub quantity: i64,
}

/// Which of the records are to be deleted, if their retention is over.
#[derive(Clone, Copy, Debug)]
pub enum Which<'a> {
    /// That of this operation.
    Of(&'a OperationId),
    /// At most this many.
    AtMost(u32),
}

/// Changes of one segment's counts.
#[derive(Clone, Copy, Debug)]
pub struct Shift {
    /// The segment.
    pub segment: u32,
    /// The differences of available, held and sold.
    pub counts: [i64; 3],
}

/// The part of a stock that a transaction changes, as far as that is known when it begins.
#[derive(Clone, Copy, Debug)]
pub enum Scope<'a> {
    /// This segment, and the record of a sale.
    Segment(u32),
    /// This record, and the segments that its units are from or go to.
    Operation(&'a OperationId),
    /// Records, and the stock.
    Records,
    /// Anything of the stock.
    Stock,
}

/// How a transaction ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// With all its changes.
    Commit,
    /// Without changes. The caller is told what it has read, so no failover may undo that.
    Answer,
    /// Without changes.
    Undo,
}

/// One call on a stock, and the steps of its transactions. A step may depend on what an earlier one
/// of the same transaction has read. Then it is only made if that is still so at the commit, or the
/// difference does not matter.
pub trait Calls: Send + Sync + Sized {
    /// Whether a transaction sees one moment, and fails if it changes what has been changed since
    /// then.
    const SNAPSHOT: bool;

    /// Whether a look shows everything that was committed before it. If false, a look at a new
    /// primary may miss something.
    const CURRENT: bool;

    /// Why a step was not made.
    type Fault: From<StoreError> + Send;

    /// The attempts of a call.
    type Tries: Default + Send;

    /// An open transaction. If it is dropped, nothing of it is done.
    type Open: Send;

    /// Returns stock and limits of the call.
    fn terms(&self) -> &Terms;

    /// Makes an error that names the database.
    fn error(&self, kind: StoreErrorKind, text: fmt::Arguments<'_>) -> StoreError;

    /// Returns a fault after which the call is tried again.
    fn again(&self, what: &str) -> Self::Fault;

    /// Returns the time that is left.
    fn left(&self) -> Duration;

    /// Prepares for another attempt after `fault`, or fails if there is no time for one.
    fn retry(
        &self,
        tries: &mut Self::Tries,
        fault: Self::Fault,
    ) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Reads a stock and the record of an operation at one moment. Returns `None` if there is no
    /// such stock. If `current` is true, shows everything that was committed before.
    fn look(
        &self,
        operation: &OperationId,
        current: bool,
    ) -> impl Future<Output = Result<Option<Look>, Self::Fault>> + Send;

    /// Reads the counts at one moment, and the totals of the records if they are asked for. Returns
    /// `None` if there is no such stock.
    fn audit(&self, with_records: bool) -> impl Future<Output = Result<Option<Audit>, Self::Fault>> + Send;

    /// Begins a transaction.
    fn begin(&self, scope: Scope<'_>) -> impl Future<Output = Result<Self::Open, Self::Fault>> + Send;

    /// Ends a transaction. Succeeds if it has ended in this way; after a failure nothing is said.
    fn end(&self, open: Self::Open, ending: Ending) -> impl Future<Output = Result<(), Self::Fault>> + Send;

    /// Writes a record. Returns `false` if the operation has one, or it is too late.
    fn note(
        &self,
        open: &mut Self::Open,
        note: &Note<'_>,
    ) -> impl Future<Output = Result<bool, Self::Fault>> + Send;

    /// Reads and locks a record.
    fn record(
        &self,
        open: &mut Self::Open,
        operation: &OperationId,
    ) -> impl Future<Output = Result<Option<Columns>, Self::Fault>> + Send;

    /// Changes the parts in a record.
    fn set_parts(
        &self,
        open: &mut Self::Open,
        operation: &OperationId,
        parts: &str,
    ) -> impl Future<Output = Result<(), Self::Fault>> + Send;

    /// Changes the state of a record and begins its retention. Returns `false` if it is in another
    /// state, or it is too late.
    fn finish(
        &self,
        open: &mut Self::Open,
        operation: &OperationId,
        states: [&'static str; 2],
    ) -> impl Future<Output = Result<bool, Self::Fault>> + Send;

    /// Reads at most `limit` overdue reservations, the oldest first, and locks them: operation and
    /// parts of each.
    fn overdue(
        &self,
        open: &mut Self::Open,
        limit: u32,
    ) -> impl Future<Output = Result<Vec<(String, String)>, Self::Fault>> + Send;

    /// Ends these reservations, all of which were read as overdue.
    fn expire(
        &self,
        open: &mut Self::Open,
        operations: &[&str],
    ) -> impl Future<Output = Result<(), Self::Fault>> + Send;

    /// Deletes records whose retention is over.
    fn purge(
        &self,
        open: &mut Self::Open,
        which: Which<'_>,
    ) -> impl Future<Output = Result<Vec<Over>, Self::Fault>> + Send;

    /// Adds units to those that deleted records have sold.
    fn forget(
        &self,
        open: &mut Self::Open,
        units: i64,
    ) -> impl Future<Output = Result<(), Self::Fault>> + Send;

    /// Locks the stock, against resizes too; returns whether there is one.
    fn lock(&self, open: &mut Self::Open) -> impl Future<Output = Result<bool, Self::Fault>> + Send;

    /// Reads the stock and the time.
    fn stock(&self, open: &mut Self::Open)
    -> impl Future<Output = Result<Option<Stock>, Self::Fault>> + Send;

    /// Creates the stock; `false` if it exists.
    fn create(
        &self,
        open: &mut Self::Open,
        segments: u32,
        units: u64,
    ) -> impl Future<Output = Result<bool, Self::Fault>> + Send;

    /// Sets the number of segments, and raises the epoch. Of all segments, `all`, those below it
    /// become active, and the others retire.
    fn resize(
        &self,
        open: &mut Self::Open,
        segments: u32,
        all: usize,
    ) -> impl Future<Output = Result<(), Self::Fault>> + Send;

    /// Adds to the number of units that were put in.
    fn restock(
        &self,
        open: &mut Self::Open,
        units: u64,
    ) -> impl Future<Output = Result<(), Self::Fault>> + Send;

    /// Adds new segments, numbered from `first`.
    fn add(
        &self,
        open: &mut Self::Open,
        first: usize,
        units: &[u64],
    ) -> impl Future<Output = Result<(), Self::Fault>> + Send;

    /// Reads and locks all segments in ascending order: whether each is active, and its available
    /// units.
    fn segments(
        &self,
        open: &mut Self::Open,
    ) -> impl Future<Output = Result<Vec<(bool, u64)>, Self::Fault>> + Send;

    /// Reads a segment: whether it is active, its available units, and the largest token.
    fn segment(
        &self,
        open: &mut Self::Open,
        segment: u32,
    ) -> impl Future<Output = Result<Option<(bool, u64, i64)>, Self::Fault>> + Send;

    /// Takes units from a segment. Returns `false` unless it is active, has enough, and has seen no
    /// larger token.
    fn take(
        &self,
        open: &mut Self::Open,
        units: Units,
    ) -> impl Future<Output = Result<bool, Self::Fault>> + Send;

    /// Changes the counts of segments, of which none may end below zero.
    fn shift(
        &self,
        open: &mut Self::Open,
        shifts: &[Shift],
    ) -> impl Future<Output = Result<(), Self::Fault>> + Send;

    /// Returns the error of a call that was not executed in time.
    fn too_late(&self) -> StoreError {
        self.error(StoreErrorKind::TooLate, format_args!("not done in time; nothing was changed"))
    }

    /// Returns an error if `now`, by the database's clock, is past the call's deadline.
    fn in_time(&self, now: i64) -> Result<(), StoreError> {
        if time(now) <= self.terms().latest { Ok(()) } else { Err(self.too_late()) }
    }

    /// Returns the error for unexpected content.
    fn broken(&self, what: fmt::Arguments<'_>) -> StoreError {
        let stock = &self.terms().stock;
        self.error(StoreErrorKind::ForeignData, format_args!("stock {stock}: {what}"))
    }

    /// Checks that a step has changed as many entries as it should.
    fn all(&self, changed: u64, expected: usize) -> Result<(), StoreError> {
        if changed == expected as u64 {
            return Ok(());
        }
        Err(self.broken(format_args!(
            "{changed} entries were changed instead of {expected}, so its counts do not add up"
        )))
    }

    /// Converts the number of a segment, or of segments.
    fn number(&self, number: i64) -> Result<u32, StoreError> {
        u32::try_from(number).map_err(|_| self.broken(format_args!("a segment has the number {number}")))
    }

    /// Returns the fault of an operation that is also under way elsewhere.
    fn crossed(&self) -> Self::Fault {
        self.again("the same operation is under way elsewhere")
    }
}

/// Point at which a test stops a program or drops a future.
#[cfg(feature = "testing")]
pub async fn pass(when: &str, what: &str) {
    lock_core::internal::steps::fault_point(when, what);
    tokio::task::yield_now().await;
}

/// Point at which a test stops a program or drops a future.
#[cfg(not(feature = "testing"))]
#[expect(clippy::unused_async, reason = "with the feature `testing` it waits")]
pub async fn pass(_when: &str, _what: &str) {}

/// The answer of a transaction, and whether its changes are kept.
enum Done<T> {
    Commit(T),
    /// Not, and the caller is told so.
    RollBack(T),
    /// Not, and the call goes on.
    Undo(T),
}

/// An open transaction of a call.
struct Work<'a, C: Calls> {
    call: &'a C,
    open: C::Open,
}

impl<'a, C: Calls> Work<'a, C> {
    async fn begin(call: &'a C, scope: Scope<'_>) -> Result<Self, C::Fault> {
        Ok(Self { call, open: call.begin(scope).await? })
    }

    /// Commits or rolls back.
    async fn end<T>(self, done: Result<Done<T>, C::Fault>) -> Result<T, C::Fault> {
        let Self { call, open } = self;
        match done {
            Ok(Done::Commit(answer)) => call.end(open, Ending::Commit).await.map(|()| answer),
            Ok(Done::RollBack(answer)) => call.end(open, Ending::Answer).await.map(|()| answer),
            Ok(Done::Undo(answer)) => call.end(open, Ending::Undo).await.map(|()| answer),
            Err(fault) => {
                // Whether it is undone now or later makes no difference.
                let _ = call.end(open, Ending::Undo).await;
                Err(fault)
            }
        }
    }
}

/// Makes the steps of a transaction, and ends it.
macro_rules! transaction {
    ($call:expr, $scope:expr, |$work:ident| $steps:expr) => {{
        let mut $work = Work::begin($call, $scope).await?;
        let done = $steps.await;
        $work.end(done).await
    }};
}
use transaction;

/// Decides by a look, or by a current one if the caller is told the decision at once (`is_told`).
async fn decided<C: Calls, T>(
    call: &C,
    operation: &OperationId,
    decide: impl Fn(Option<Look>) -> Result<T, StoreError>,
    is_told: impl Fn(&T) -> bool,
) -> Result<T, C::Fault> {
    let decision = decide(call.look(operation, C::CURRENT).await?)?;
    if C::CURRENT || !is_told(&decision) {
        return Ok(decision);
    }
    Ok(decide(call.look(operation, true).await?)?)
}

/// Makes attempts until one succeeds or no other would.
macro_rules! attempts {
    ($call:expr, $attempt:expr) => {{
        let mut tries = Default::default();
        loop {
            match $attempt.await {
                Ok(done) => break Ok(done),
                Err(fault) => $call.retry(&mut tries, fault).await?,
            }
        }
    }};
}
use attempts;

/// One manager's access to the stocks of a database. Every operation is one transaction, which
/// changes counts by differences.
pub struct Stocks<D>(Arc<D>);

impl<D: StockDatabase> Stocks<D> {
    /// Creates the access to the stocks of a database.
    #[must_use]
    pub fn new(database: D) -> Self {
        Self(Arc::new(database))
    }
}

impl<D> fmt::Debug for Stocks<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stocks").finish_non_exhaustive()
    }
}

/// Spawns the attempts of a call on a stock.
macro_rules! call {
    ($stocks:expr, $request:expr, |$call:ident| $attempt:expr) => {{
        let database = Arc::clone(&$stocks.0);
        spawned(async move {
            let $call = database.call($request).await?;
            attempts!($call, $attempt)
        })
    }};
}

impl<D: StockDatabase> StockStore for Stocks<D> {
    fn initialize(&self, call: StockCall, segments: Vec<u64>) -> BoxFuture<Result<bool, StoreError>> {
        call!(self, &call, |call| change::make(&call, &segments))
    }

    fn take(&self, request: Arc<TakeRequest>) -> BoxFuture<Result<TakeAnswer, StoreError>> {
        let database = Arc::clone(&self.0);
        spawned(async move { take::take(&database.call(&request.call).await?, &request).await })
    }

    fn settle(&self, request: Arc<SettleRequest>) -> BoxFuture<Result<SettleAnswer, StoreError>> {
        call!(self, &request.call, |call| settle::settle(&call, &request))
    }

    fn restock(&self, request: Arc<RestockRequest>) -> BoxFuture<Result<RestockAnswer, StoreError>> {
        call!(self, &request.call, |call| change::put_in(&call, &request))
    }

    fn snapshot(&self, call: StockCall) -> BoxFuture<Result<Option<Snapshot>, StoreError>> {
        let audit: BoxFuture<Result<Option<Audit>, StoreError>> =
            call!(self, &call, |call| call.audit(false));
        Box::pin(async move { Ok(audit.await?.map(|audit| audit.counted)) })
    }

    fn rebalance(&self, call: StockCall) -> BoxFuture<Result<Option<()>, StoreError>> {
        call!(self, &call, |call| change::even_out(&call))
    }

    fn resize(&self, call: StockCall, segments: u32) -> BoxFuture<Result<Option<()>, StoreError>> {
        call!(self, &call, |call| change::change_size(&call, segments))
    }

    fn audit(&self, call: StockCall) -> BoxFuture<Result<AuditAnswer, StoreError>> {
        let audit: BoxFuture<Result<Option<Audit>, StoreError>> = call!(self, &call, |call| call.audit(true));
        Box::pin(async move { Ok(audit.await?.map_or(AuditAnswer::Missing, AuditAnswer::Audited)) })
    }

    fn sweep(&self, call: StockCall, limit: u32) -> BoxFuture<Result<Swept, StoreError>> {
        let database = Arc::clone(&self.0);
        spawned(async move { settle::sweep(&database.call(&call).await?, limit).await })
    }
}

/// Returns the units of some parts, as their sum.
fn sum(parts: &[Part]) -> u64 {
    parts.iter().map(|part| part.quantity).sum()
}
