//! [`Sql`]: records in a database, each step a transaction.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use lock_core::internal::chance::random_bytes;
use lock_core::internal::clock::Clock;
use lock_core::internal::sync::{Mutex, lock};
use lock_core::store::kit::{Backoff, ServerClock};
use lock_core::store::{Abilities, Cursor, ServerTime, StoreError, StoreErrorKind};
use lock_store_records::{
    Access, Change, Changed, Class, Listeners, Name, Page, Record, RecordStore, Row as RecordRow, Work as Step,
};
use tokio::time::{Instant, timeout_at};

use crate::plumbing::{Arg, Database, During, Fault, Row, Work, fault};
use crate::statements::{Statements, TABLE};
use crate::sweep::Sweeper;

/// Upper bound on any call's deadline, so that adding it to an `Instant` cannot overflow.
const LONGEST: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// Maximum length of a record's text in bytes. Each change writes all of it.
const LARGEST: usize = 256 * 1024;

/// Number of rows in a page of a scan.
const PAGE: i64 = 500;

/// Time that may pass between reading the clock and inserting a row. If it was more, the insert has
/// waited for another program's, and the step is made again.
const SAME_TIME: i64 = 100_000;

/// A database that keeps records.
pub struct Sql {
    /// For steps.
    database: Database,
    /// For renewals, so that no queue of steps delays them.
    steady: Database,
    statements: Statements,
    abilities: Abilities,
    /// The estimate of the database's clock.
    clock: ServerClock,
    listeners: Mutex<Listeners>,
    sweeper: Arc<Sweeper>,
}

impl Sql {
    pub(crate) fn new(database: Database, steady: Database, abilities: Abilities) -> Arc<Self> {
        let statements = Statements::of(&database);
        Arc::new(Self {
            sweeper: Arc::new(Sweeper::new(steady.clone(), statements.clone())),
            database,
            steady,
            statements,
            abilities,
            clock: ServerClock::default(),
            listeners: Mutex::default(),
        })
    }

    fn call(&self, database: &Database, timeout: Duration) -> Call<'_> {
        let deadline = Instant::now() + timeout.min(LONGEST);
        Call { sql: self, database: database.clone(), timeout, deadline }
    }
}

impl fmt::Debug for Sql {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sql").field("database", &self.database.name()).finish_non_exhaustive()
    }
}

/// One call and its deadline.
struct Call<'a> {
    sql: &'a Sql,
    database: Database,
    timeout: Duration,
    deadline: Instant,
}

/// The attempts of a call.
#[derive(Default)]
struct Tries {
    backoff: Backoff,
    /// Whether the table was created.
    created: bool,
}

/// Makes attempts until one succeeds or no other would.
macro_rules! attempts {
    ($call:expr, $attempt:expr) => {{
        let mut tries = Tries::default();
        loop {
            match $attempt.await {
                Ok(done) => break Ok(done),
                Err(fault) => $call.retry(&mut tries, fault).await?,
            }
        }
    }};
}

/// The rows of a step, as they were read.
struct Rows {
    now: i64,
    /// In the order of the names: `None` for an absent row.
    found: Vec<Option<RecordRow>>,
    /// Indexes of rows that others have locked.
    skipped: Vec<usize>,
}

/// Returns the class as the table has it.
pub(crate) fn text_of(class: Class) -> &'static str {
    match class {
        Class::Lock => "lock",
        Class::Semaphore => "semaphore",
        Class::Latch => "latch",
    }
}

impl Call<'_> {
    fn left(&self) -> Duration {
        self.deadline.saturating_duration_since(Instant::now())
    }

    fn error(&self, kind: StoreErrorKind, text: impl fmt::Display) -> StoreError {
        StoreError::new(kind, format!("{}: {text}", self.database.name()))
    }

    /// Waits for an answer of the database until the deadline.
    async fn bounded<T>(
        &self,
        during: During,
        step: impl Future<Output = Result<T, sqlx::Error>>,
    ) -> Result<T, Fault> {
        match timeout_at(self.deadline, step).await {
            Ok(answer) => answer.map_err(|error| fault(self.database.name(), &error, during)),
            Err(_) => {
                let kind = match during {
                    During::Work => StoreErrorKind::NotReady,
                    During::Commit => StoreErrorKind::Unanswered,
                };
                Err(Fault::Failed(self.error(kind, format_args!("no answer within {:?}", self.timeout))))
            }
        }
    }

    /// Prepares for another attempt after `fault`: waits for others that were in the way, or creates
    /// the missing table. Fails if there is no time, or if another attempt would not help.
    async fn retry(&self, tries: &mut Tries, fault: Fault) -> Result<(), StoreError> {
        match fault {
            Fault::NoTables(_) if !tries.created => {
                tries.created = true;
                self.create().await.map_err(|fault| fault.error(NO_TABLE))
            }
            Fault::Again(said) => {
                let pause = tries.backoff.next_pause();
                if pause >= self.left() {
                    let text =
                        format_args!("not done within {:?}, nothing was changed: {said}", self.timeout);
                    return Err(self.error(StoreErrorKind::NotReady, text));
                }
                tokio::time::sleep(pause).await;
                Ok(())
            }
            fault => Err(fault.error(NO_TABLE)),
        }
    }

    async fn create(&self) -> Result<(), Fault> {
        let mut work = self.begin().await?;
        self.bounded(During::Work, work.run(&self.sql.statements.create)).await?;
        self.bounded(During::Commit, work.commit()).await
    }

    async fn begin(&self) -> Result<Work, Fault> {
        self.bounded(During::Work, self.database.begin(self.left())).await
    }

    /// Asks for the database's time.
    async fn time(&self) -> Result<ServerTime, Fault> {
        let sent = Clock::Boot.now();
        let rows =
            self.bounded(During::Work, self.database.rows(&self.sql.statements.clock, &[])).await?;
        let now = rows.first().map(|row| row.int(0)).transpose();
        let now = now.map_err(|error| fault(self.database.name(), &error, During::Work))?;
        let time = time(now.unwrap_or_default());
        self.sql.clock.observe(time, sent);
        Ok(time)
    }

    /// Makes every kind of change to no row. A standby, a read-only file, or a database that does not
    /// let the user do so refuses that.
    async fn check(&self) -> Result<(), Fault> {
        self.time().await?;
        let mut work = self.begin().await?;
        let args = [Arg::Text("lock"), Arg::Text("[]")];
        let Statements { lock, insert, update, remove, .. } = &self.sql.statements;
        for text in [lock, insert, update, remove] {
            self.bounded(During::Work, work.execute(text, &args)).await?;
        }
        Ok(())
    }

    /// Makes one attempt of a step.
    async fn attempt<T>(
        &self,
        change: &Change,
        step: &mut (dyn FnMut(&mut Step<'_>) -> T + Send),
    ) -> Result<Changed<T>, Fault> {
        let class = change.names.first().map_or(Class::Lock, |name| name.class);
        let names: Vec<&str> = change.names.iter().map(|name| &*name.text).collect();
        let names = serde_json::to_string(&names).unwrap_or_default();
        let args = [Arg::Text(text_of(class)), Arg::Text(&names)];
        let statements = &self.sql.statements;
        let sent = Clock::Boot.now();
        if change.access == Access::Look {
            let rows = self.bounded(During::Work, self.database.rows(&statements.look, &args)).await?;
            let rows = self.read(change, &rows)?;
            self.sql.clock.observe(time(rows.now), sent);
            let mut records = self.records(change, &rows)?.0;
            let (answer, _) = self.run(change, &rows, &mut records, &[], step);
            return Ok(Changed { answer, now: time(rows.now), heard: lock_store_records::Heard(false) });
        }
        let mut work = self.begin().await?;
        let text = if change.access == Access::Each { &statements.lock_free } else { &statements.lock };
        let found = self.bounded(During::Work, work.rows(text, &args)).await?;
        let rows = self.read(change, &found)?;
        self.sql.clock.observe(time(rows.now), sent);
        let (mut records, skipped) = self.records(change, &rows)?;
        let (answer, bell) = self.run(change, &rows, &mut records, &skipped, step);
        let written = self.write(&mut work, change, class, &rows, &records).await?;
        if written {
            self.bounded(During::Commit, work.commit()).await?;
        } else {
            // Nothing was changed: it need not be waited for.
            drop(work);
        }
        self.sql.sweeper.go_on();
        Ok(Changed { answer, now: time(rows.now), heard: bell.ring(change.handle) })
    }

    /// Runs the step on the records.
    fn run<T>(
        &self,
        change: &Change,
        rows: &Rows,
        records: &mut [Record],
        skipped: &[usize],
        step: &mut (dyn FnMut(&mut Step<'_>) -> T + Send),
    ) -> (T, lock_store_records::Bell) {
        let listeners = lock(&self.sql.listeners);
        let mut work = Step::new(records, &change.names, time(rows.now), &listeners);
        work.skipped = skipped;
        let answer = step(&mut work);
        let bell = work.bell();
        (answer, bell)
    }

    /// Puts the rows in the order of the names.
    fn read(&self, change: &Change, rows: &[Row]) -> Result<Rows, Fault> {
        let read = || {
            let now = rows.first().map_or(Ok(0), |row| row.int(0))?;
            let indexes: HashMap<&str, usize> =
                change.names.iter().enumerate().map(|(index, name)| (&*name.text, index)).collect();
            let mut found = vec![None; change.names.len()];
            let mut skipped = Vec::new();
            for row in rows {
                let Some(name) = row.maybe_text(1)? else { continue };
                let Some(index) = indexes.get(name.as_str()) else { continue };
                match row_of(row, 2)? {
                    Some(row) => {
                        if let Some(place) = found.get_mut(*index) {
                            *place = Some(row);
                        }
                    }
                    None => skipped.push(*index),
                }
            }
            Ok(Rows { now, found, skipped })
        };
        read().map_err(|error| fault(self.database.name(), &error, During::Work))
    }

    /// Returns the records, and the indexes of those that could not be had.
    fn records(&self, change: &Change, rows: &Rows) -> Result<(Vec<Record>, Vec<usize>), Fault> {
        let mut skipped = rows.skipped.clone();
        let mut records = Vec::with_capacity(change.names.len());
        for (index, (name, row)) in change.names.iter().zip(&rows.found).enumerate() {
            records.push(match row.as_ref().map(|row| row.record(name.class)) {
                None => Record::empty(name.class),
                Some(Ok(record)) => record,
                Some(Err(_)) if change.access == Access::Each => {
                    skipped.push(index);
                    Record::empty(name.class)
                }
                Some(Err(error)) => {
                    let text = format_args!("{name:?} in {TABLE}: {error}");
                    return Err(self.error(StoreErrorKind::ForeignData, text).into());
                }
            });
        }
        Ok((records, skipped))
    }

    /// Writes the records that are different; returns whether there are any.
    async fn write(
        &self,
        work: &mut Work,
        change: &Change,
        class: Class,
        rows: &Rows,
        records: &[Record],
    ) -> Result<bool, Fault> {
        let version: String = random_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
        let (mut changed, mut missing) = (Vec::new(), Vec::new());
        for ((name, before), record) in change.names.iter().zip(&rows.found).zip(records) {
            let after = record.row();
            let settles = change.access == Access::Settle;
            let is_new = match before {
                Some(before) => *before != after,
                None => !record.is_empty(),
            };
            if !settles && !is_new {
                continue;
            }
            if after.text.len() > LARGEST && before.as_ref().is_none_or(|it| it.text.len() < after.text.len()) {
                let text = format_args!(
                    "the record of {name:?} would be longer than {LARGEST} bytes: it has too many waiters or holders"
                );
                return Err(self.error(StoreErrorKind::Refused, text).into());
            }
            let row = serde_json::json!({
                "name": &*name.text,
                "version": version,
                "token": after.token.max(before.as_ref().map_or(0, |before| before.token)),
                "until": after.until,
                "kept_until": after.kept_until,
                "record": after.text,
            });
            if before.is_some() { changed.push(row) } else { missing.push(row) }
        }
        let any = !changed.is_empty() || !missing.is_empty();
        let statements = &self.sql.statements;
        if !changed.is_empty() {
            let list = serde_json::Value::from(changed).to_string();
            let args = [Arg::Text(text_of(class)), Arg::Text(&list)];
            self.bounded(During::Work, work.execute(&statements.update, &args)).await?;
        }
        if missing.is_empty() {
            return Ok(any);
        }
        let wanted = missing.len();
        let list = serde_json::Value::from(missing).to_string();
        let args = [Arg::Text(text_of(class)), Arg::Text(&list)];
        let inserted = self.bounded(During::Work, work.rows(&statements.insert, &args)).await?;
        let in_time = |row: &Row| row.int(0).is_ok_and(|now| now - rows.now <= SAME_TIME);
        if inserted.len() < wanted || !inserted.iter().all(in_time) {
            return Err(Fault::Again("another program has just made the same lock".to_owned()));
        }
        Ok(true)
    }
}

/// What to do about a missing table.
const NO_TABLE: &str = "connect once as a user who may create it";

fn time(micros: i64) -> ServerTime {
    ServerTime::from_micros(u64::try_from(micros).unwrap_or(0))
}

/// Reads a row from the column `at` on; `None` if it was locked by others.
fn row_of(row: &Row, at: usize) -> Result<Option<RecordRow>, sqlx::Error> {
    let Some(token) = row.maybe_int(at)? else { return Ok(None) };
    let text = row.maybe_text(at + 3)?.unwrap_or_default();
    Ok(Some(RecordRow { token, until: row.int(at + 1)?, kept_until: row.int(at + 2)?, text }))
}

impl RecordStore for Sql {
    fn abilities(&self) -> &Abilities {
        &self.abilities
    }

    async fn time(&self, timeout: Duration) -> Result<ServerTime, StoreError> {
        if let Some(estimate) = self.clock.estimate(Clock::Boot.now()) {
            return Ok(estimate);
        }
        let call = self.call(&self.database, timeout);
        attempts!(call, call.time())
    }

    async fn change<T, F>(&self, change: Change, mut step: F) -> Result<Changed<T>, StoreError>
    where
        T: Send + 'static,
        F: FnMut(&mut Step<'_>) -> T + Send + 'static,
    {
        let database = if change.access == Access::Each { &self.steady } else { &self.database };
        let call = self.call(database, change.timeout);
        attempts!(call, call.attempt(&change, &mut step))
    }

    async fn page(
        &self,
        prefix: &str,
        cursor: Option<Cursor>,
        timeout: Duration,
    ) -> Result<Page, StoreError> {
        let after = cursor.as_ref().map(|cursor| std::str::from_utf8(cursor.as_bytes()));
        let after = after.transpose().map_err(|_| Cursor::refusal())?.unwrap_or_default();
        // No key has a larger character behind the prefix.
        let last = format!("{prefix}{}", char::MAX);
        let args = [Arg::Text(after), Arg::Text(prefix), Arg::Text(&last), Arg::Int(PAGE)];
        let call = self.call(&self.database, timeout);
        let page = &self.statements.page;
        let rows: Result<_, StoreError> =
            attempts!(call, call.bounded(During::Work, call.database.rows(page, &args)));
        let rows = rows?;
        let read = || {
            let mut page = Page { locks: Vec::new(), next: None, now: time(0) };
            for row in &rows {
                page.now = page.now.max(time(row.int(0)?));
                let name = row.maybe_text(1)?.unwrap_or_default();
                page.next = Some(Cursor::new(name.as_bytes()));
                let name = Name { class: Class::Lock, text: name.into() };
                // Somebody else's data is no lock.
                let record = row_of(row, 2)?.and_then(|row| row.record(Class::Lock).ok());
                page.locks.extend(record.map(|record| (name, record)));
            }
            page.next = page.next.filter(|_| rows.len() as i64 == PAGE);
            Ok(page)
        };
        read().map_err(|error| fault(call.database.name(), &error, During::Work).error(NO_TABLE))
    }

    async fn check(&self) -> Result<(), StoreError> {
        let call = self.call(&self.database, CHECK);
        attempts!(call, call.check())
    }

    fn listeners<T>(&self, access: impl FnOnce(&mut Listeners) -> T) -> T {
        access(&mut lock(&self.listeners))
    }
}

/// Maximum time of a check. Its caller has a shorter one.
const CHECK: Duration = Duration::from_secs(60);
