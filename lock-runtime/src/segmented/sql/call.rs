//! [`Call`]: one call and its deadline; [`Open`]: its transaction.

use std::fmt;
use std::time::Duration;

use lock_core::internal::clock::{Clock, Tick};
use lock_core::store::kit::Backoff;
use lock_core::store::stock::StockCall;
use lock_core::store::{ServerTime, StoreError, StoreErrorKind};
use lock_store_sql::plumbing::{Arg, During, Fault, Row, Work, fault};
use tokio::time::{Instant, timeout_at};

use super::numbers::{micros, unsigned};
use super::tables::Tables;

/// Upper bound on any call's deadline, so that adding it to an `Instant` cannot overflow.
const LONGEST: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// Advice about missing tables.
pub(super) const NO_TABLES: &str =
    "create the tables once with `SqlStocks::create_tables`, as a user with that right";

/// One call on a stock.
pub(super) struct Call<'a> {
    pub(super) at: &'a Tables,
    /// The stock's name.
    pub(super) stock: &'a str,
    timeout: Duration,
    deadline: Instant,
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
    pub(super) async fn new(at: &'a Tables, call: &'a StockCall) -> Result<Self, StoreError> {
        if !call.replication.is_none() {
            return Err(StoreError::new(
                StoreErrorKind::Unsupported,
                "a stock in SQL cannot ask for replicas: what a commit waits for is the database's own setting \
                 (`synchronous_commit` and `synchronous_standby_names` of PostgreSQL); leave `replication` away",
            ));
        }
        let mut new = Self {
            at,
            stock: call.stock.as_str(),
            timeout: call.timeout,
            deadline: Instant::now() + call.timeout.min(LONGEST),
            latest: ServerTime::from_micros(0),
            retention: micros(call.retention),
        };
        let estimate = match at.clock.estimate(Clock::Boot.now()) {
            Some(estimate) => estimate,
            None => {
                let sent = Clock::Boot.now();
                let rows = new.again(|| new.rows(&at.sql.clock, &[])).await?;
                let now = new.first(&rows)?.int(0).map_err(|error| new.unreadable(&error))?;
                new.observe(now, sent)?
            }
        };
        new.latest = call.stamp(estimate);
        Ok(new)
    }

    /// Records that the database reported the time `now` in answer to a statement sent at `sent`.
    pub(super) fn observe(&self, now: i64, sent: Tick) -> Result<ServerTime, StoreError> {
        let now = ServerTime::from_micros(unsigned(now)?);
        self.at.clock.observe(now, sent);
        Ok(now)
    }

    pub(super) fn too_late(&self) -> StoreError {
        let text =
            format!("{}: not done within {:?}; nothing was changed", self.at.database.name(), self.timeout);
        StoreError::new(StoreErrorKind::TooLate, text)
    }

    /// Returns an error if `now`, by the database's clock, is past the call's deadline.
    pub(super) fn in_time(&self, now: i64) -> Result<(), StoreError> {
        if unsigned(now)? <= self.latest.as_micros() { Ok(()) } else { Err(self.too_late()) }
    }

    pub(super) fn latest(&self) -> i64 {
        i64::try_from(self.latest.as_micros()).unwrap_or(i64::MAX)
    }

    pub(super) fn left(&self) -> Duration {
        self.deadline.saturating_duration_since(Instant::now())
    }

    pub(super) fn first<'r>(&self, rows: &'r [Row]) -> Result<&'r Row, StoreError> {
        rows.first().ok_or_else(|| self.broken("a statement returned no row"))
    }

    /// Returns the error for tables with unexpected content.
    pub(super) fn broken(&self, what: impl fmt::Display) -> StoreError {
        let (database, stock) = (self.at.database.name(), self.stock);
        StoreError::new(StoreErrorKind::ForeignData, format!("{database}: stock {stock}: {what}"))
    }

    pub(super) fn unreadable(&self, error: &sqlx::Error) -> StoreError {
        fault(self.at.database.name(), error, During::Work).error(NO_TABLES)
    }

    /// Repeats `work` while it returns [`Fault::Again`] and there is time.
    pub(super) async fn again<T, F>(&self, work: impl Fn() -> F) -> Result<T, StoreError>
    where
        F: Future<Output = Result<T, Fault>>,
    {
        let mut backoff = Backoff::default();
        loop {
            match work().await {
                Ok(done) => return Ok(done),
                Err(Fault::Again(said)) => self.pause(&mut backoff, said).await?,
                Err(fault) => return Err(fault.error(NO_TABLES)),
            }
        }
    }

    /// Waits before the next attempt, if there is time for one.
    pub(super) async fn pause(&self, backoff: &mut Backoff, said: String) -> Result<(), StoreError> {
        let pause = backoff.next_pause();
        if pause >= self.left() {
            return Err(StoreError::new(
                StoreErrorKind::NotReady,
                format!("not done within {:?}; nothing was changed: {said}", self.timeout),
            ));
        }
        tokio::time::sleep(pause).await;
        Ok(())
    }

    /// Runs one step of the call, if there is time.
    async fn step<T>(
        &self,
        what: &str,
        during: During,
        step: impl Future<Output = Result<T, sqlx::Error>>,
    ) -> Result<T, Fault> {
        pass("before", what).await;
        if self.left().is_zero() {
            return Err(self.too_late().into());
        }
        let database = self.at.database.name();
        let answer = match timeout_at(self.deadline, step).await {
            Ok(answer) => answer.map_err(|error| fault(database, &error, during)),
            Err(_) => {
                let (kind, outcome) = match during {
                    During::Work => (StoreErrorKind::NotReady, "nothing was changed"),
                    During::Commit => (
                        StoreErrorKind::Unanswered,
                        "send the same operation again to learn whether it was committed",
                    ),
                };
                let text = format!("{database}: no answer within {:?}; {outcome}", self.timeout);
                Err(StoreError::new(kind, text).into())
            }
        }?;
        pass("after", what).await;
        Ok(answer)
    }

    /// Runs one statement that reads, without a transaction. It holds a connection only for that
    /// time.
    pub(super) async fn rows(&self, text: &str, args: &[Arg<'_>]) -> Result<Vec<Row>, Fault> {
        self.step("look", During::Work, self.at.database.rows(text, args)).await
    }

    pub(super) async fn begin(&self) -> Result<Open<'_>, Fault> {
        let work = self.step("begin", During::Work, self.at.database.begin(self.left())).await?;
        Ok(Open { call: self, work })
    }
}

/// A transaction of a call. It is rolled back if it is dropped.
pub(super) struct Open<'a> {
    pub(super) call: &'a Call<'a>,
    work: Work,
}

impl Open<'_> {
    /// Runs a statement and returns how many rows it changed.
    pub(super) async fn execute(&mut self, text: &str, args: &[Arg<'_>]) -> Result<u64, Fault> {
        self.call.step("change", During::Work, self.work.execute(text, args)).await
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
        self.call.step("read", During::Work, self.work.rows(text, args)).await
    }

    pub(super) async fn run(&mut self, text: &str) -> Result<(), Fault> {
        self.call.step("tables", During::Work, self.work.run(text)).await
    }

    pub(super) async fn commit(self) -> Result<(), Fault> {
        self.call.step("commit", During::Commit, self.work.commit()).await
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
