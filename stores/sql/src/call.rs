//! [`Call`]: one call, its deadline, and its transactions.

use std::collections::HashMap;
use std::fmt;
use std::time::Duration;

use lock_core::internal::clock::{Clock, Tick};
use lock_core::store::kit::Backoff;
use lock_core::store::{ServerTime, StoreError, StoreErrorKind};
use lock_store_records::rows::{
    Found, LONGEST, MARK, Steps, Tried, micros, new_version, swap, text_of, time,
};
use lock_store_records::{
    Access, Bell, Change, Changed, Class, Event, Heard, Name, Record, Row as RecordRow,
};
use tokio::time::{Instant, timeout_at};

use crate::links::{Link, Links};
use crate::notices::Whom;
#[cfg(feature = "postgres")]
use crate::plumbing::POOLED;
use crate::plumbing::{Arg, During, Fault, Row, Written, fault};
use crate::records::Sql;
use crate::row::read_row;
use crate::statements::Statements;
use crate::swap::Swapping;

/// Time in microseconds that may pass between reading the clock and inserting a row. If it was
/// more, the insert has waited for another program's, and the step is made again.
const SAME_TIME: i64 = 100_000;

/// Maximum time for which a step waits before it waits for a row. Other rows need its connection.
const GATE: Duration = Duration::from_secs(1);

/// Maximum length in bytes of a name at a server, whose index has no room for more.
const LONGEST_NAME: usize = 2500;

/// Advice about missing tables, which the first call makes.
pub(crate) const NO_TABLE: &str =
    "a user who may create tables has to do the same once, or grant the right to";

/// The time of a call.
#[derive(Clone, Copy)]
pub(crate) struct Limits {
    timeout: Duration,
    deadline: Instant,
}

/// One call and its deadline.
#[derive(Clone, Copy)]
pub(crate) struct Call<'a> {
    pub(crate) sql: &'a Sql,
    links: &'a Links,
    pub(crate) limits: Limits,
    /// The statement that makes missing tables.
    create: &'a str,
}

/// The attempts of a call.
#[derive(Default)]
pub(crate) struct Tries {
    backoff: Backoff,
    /// Whether the table was created.
    created: bool,
}

/// Makes attempts until one succeeds or no other would.
macro_rules! attempts {
    ($call:expr, $attempt:expr) => {{
        let mut tries = crate::call::Tries::default();
        loop {
            match $attempt.await {
                Ok(done) => break Ok(done),
                Err(fault) => $call.retry(&mut tries, fault).await?,
            }
        }
    }};
}
pub(crate) use attempts;

/// The rows of a step, as they were read.
struct Rows {
    now: i64,
    /// In the order of the names: `None` for an absent row.
    found: Vec<Option<Found>>,
    /// The processes that listen to each.
    listeners: Vec<Option<String>>,
    /// Indexes of rows that others have locked.
    skipped: Vec<usize>,
}

/// Returns the class of a step's records, which is the same for all.
fn class_of(change: &Change) -> Class {
    change.names.first().map_or(Class::Lock, |name| name.class)
}

impl<'a> Call<'a> {
    pub(crate) fn new(sql: &'a Sql, links: &'a Links, timeout: Duration) -> Self {
        let limits = Limits { timeout, deadline: Instant::now() + timeout.min(LONGEST) };
        Self::for_tables(sql, links, limits, &sql.statements.create)
    }

    /// Returns a call on other tables than that of the locks, which `create` makes.
    pub(crate) fn for_tables(sql: &'a Sql, links: &'a Links, limits: Limits, create: &'a str) -> Self {
        Self { sql, links, limits, create }
    }

    /// Returns the same call on these connections.
    pub(crate) fn on(self, links: &'a Links) -> Self {
        Self { links, ..self }
    }

    pub(crate) fn left(&self) -> Duration {
        self.limits.deadline.saturating_duration_since(Instant::now())
    }

    pub(crate) fn error(&self, kind: StoreErrorKind, text: impl fmt::Display) -> StoreError {
        StoreError::new(kind, format!("{}: {text}", self.links.options.name()))
    }

    /// Returns the fault of an answer that can't be read.
    pub(crate) fn unreadable(&self, error: &sqlx::Error) -> Fault {
        fault(self.links.options.name(), error, During::Work)
    }

    /// Waits for an answer of the database until the deadline.
    pub(crate) async fn bounded<T>(
        &self,
        during: During,
        step: impl Future<Output = Result<T, sqlx::Error>>,
    ) -> Result<T, Fault> {
        match timeout_at(self.limits.deadline, step).await {
            Ok(answer) => answer.map_err(|error| fault(self.links.options.name(), &error, during)),
            Err(_) => Err(self.silence(self.links.options.name(), during)),
        }
    }

    /// Returns the fault of a database that has not answered before the deadline.
    fn silence(&self, database: &str, during: During) -> Fault {
        let kind = match during {
            During::Work => StoreErrorKind::NotReady,
            During::Commit => StoreErrorKind::Unanswered,
        };
        let why = if self.links.options.is_server() { "" } else { "; another process may be writing" };
        StoreError::new(kind, format!("{database}: no answer within {:?}{why}", self.limits.timeout)).into()
    }

    /// Prepares for another attempt after `fault`: waits for others that were in the way, or
    /// creates the missing table. Fails if there is no time, or if another attempt would not help.
    pub(crate) async fn retry(&self, tries: &mut Tries, fault: Fault) -> Result<(), StoreError> {
        match fault {
            Fault::NoTables(_) if !tries.created => match self.create().await {
                // Another program creates it.
                Err(Fault::Again(_)) => Ok(()),
                Err(Fault::Failed(error)) if error.kind() == StoreErrorKind::Denied => {
                    Err(StoreError::new(StoreErrorKind::Denied, format!("{error}; {NO_TABLE}")))
                }
                Err(fault) => Err(fault.error(NO_TABLE)),
                Ok(()) => {
                    tries.created = true;
                    Ok(())
                }
            },
            Fault::Again(said) => {
                let pause = tries.backoff.next_pause();
                if pause >= self.left() {
                    let text = format_args!(
                        "not done within {:?}, nothing was changed: {said}",
                        self.limits.timeout
                    );
                    return Err(self.error(StoreErrorKind::NotReady, text));
                }
                tokio::time::sleep(pause).await;
                Ok(())
            }
            fault => Err(fault.error(NO_TABLE)),
        }
    }

    /// Refuses names that the table can't have.
    pub(crate) fn check_names(&self, names: &[Name]) -> Result<(), StoreError> {
        names.iter().try_for_each(|name| self.check_name(&name.text))
    }

    pub(crate) fn check_name(&self, name: &str) -> Result<(), StoreError> {
        if name.len() <= LONGEST_NAME || !self.links.options.is_server() {
            return Ok(());
        }
        let text = format_args!(
            "a key has at most {LONGEST_NAME} bytes with its prefix, and this one has {}; use a shorter one",
            name.len()
        );
        Err(self.error(StoreErrorKind::Unsupported, text))
    }

    pub(crate) async fn link(&self) -> Result<Link, Fault> {
        let (place, during) = (|| self.links.options.place(), During::Work);
        let taken = timeout_at(self.limits.deadline, self.links.take()).await;
        let taken = taken.map_err(|_| self.silence(&place(), during))?;
        let link = taken.map_err(|error| fault(&place(), &error, during))?;
        if self.left() < self.limits.timeout / 10 {
            // It would hardly end in time, and its connection would be closed. When many wait, the
            // others would have to log in anew, and would be late as well.
            link.give_back();
            return Err(self.silence(&place(), during));
        }
        Ok(link)
    }

    /// Runs one statement that changes nothing. Returns also when it was sent, which may be long
    /// after the call if all connections are in use.
    pub(crate) async fn read(&self, text: &str, args: &[Arg<'_>]) -> Result<(Tick, Vec<Row>), Fault> {
        let mut link = self.link().await?;
        let sent = Clock::Boot.now();
        let rows = self.bounded(During::Work, link.rows(text, args)).await;
        link.give_back();
        Ok((sent, rows?))
    }

    pub(crate) async fn begin(&self) -> Result<Link, Fault> {
        let mut link = self.link().await?;
        self.bounded(During::Work, link.begin(self.links.options.begin())).await?;
        Ok(link)
    }

    pub(crate) async fn commit(&self, mut link: Link) -> Result<(), Fault> {
        self.bounded(During::Commit, link.run(self.links.options.commit())).await?;
        link.give_back();
        Ok(())
    }

    /// Ends a transaction that did not do what it should.
    pub(crate) async fn roll_back(&self, mut link: Link) {
        let undo = self.links.options.roll_back();
        if link.is_clean() && self.bounded(During::Work, link.run(undo)).await.is_ok() {
            link.give_back();
        }
    }

    async fn create(&self) -> Result<(), Fault> {
        let mut link = self.begin().await?;
        match self.bounded(During::Work, link.run(self.create)).await {
            Ok(()) => self.commit(link).await,
            Err(fault) => {
                self.roll_back(link).await;
                Err(fault)
            }
        }
    }

    /// Asks for the database's time.
    pub(crate) async fn time(&self) -> Result<ServerTime, Fault> {
        let (sent, rows) = self.read(&self.sql.statements.clock, &[]).await?;
        let time = time(self.number(&rows)?.unwrap_or_default());
        self.sql.observe(time, sent);
        Ok(time)
    }

    /// Makes every kind of change to no row. A standby, a read-only file, or a database that does
    /// not let the user do so refuses that.
    pub(crate) async fn check(&self) -> Result<(), Fault> {
        self.time().await?;
        #[cfg(feature = "postgres")]
        if self.links.options.sessions().is_some() {
            self.check_sessions().await?;
        }
        let Statements { lock, lock_one, lock_free, insert, update, remove, .. } = &self.sql.statements;
        let class = Arg::Text("lock");
        let (names, rows) = (&[class, Arg::Names(&[]), Arg::Int(0)], &[class, Arg::Rows(&[])]);
        let options = &self.links.options;
        let all: [(_, &[Arg<'_>]); 6] = [
            (lock, names),
            (lock_one, names),
            (lock_free, names),
            (insert, rows),
            (update, rows),
            (remove, names),
        ];
        let all = all.iter().filter(|(text, _)| !text.is_empty());
        let all = all.map(|(text, args)| options.filled(text, args)).collect::<Vec<_>>().join("; ");
        let all = format!("{}; {all}; {}", options.begin(), options.commit());
        let mut link = self.link().await?;
        // One message: a server that is slow would end a transaction that waits for the next one.
        match self.bounded(During::Work, link.run(&all)).await {
            Ok(()) => link.give_back(),
            Err(fault) => {
                self.roll_back(link).await;
                return Err(fault);
            }
        }
        Ok(())
    }

    /// Fails if connections are no sessions. A pooler of transactions gives a session to others
    /// while its last user is idle.
    #[cfg(feature = "postgres")]
    async fn check_sessions(&self) -> Result<(), Fault> {
        let mut one = self.link().await?;
        let before = self.session(&mut one).await?;
        let mut other = self.begin().await?;
        let taken = self.session(&mut other).await?;
        let after = self.session(&mut one).await?;
        self.roll_back(other).await;
        one.give_back();
        if before == after && before != taken {
            return Ok(());
        }
        Err(self.error(StoreErrorKind::Unsupported, POOLED).into())
    }

    /// Returns the number of the session that a connection has at the server.
    #[cfg(feature = "postgres")]
    async fn session(&self, link: &mut Link) -> Result<Option<i64>, Fault> {
        let ask = link.rows("SELECT pg_backend_pid()::bigint", &[]);
        self.number(&self.bounded(During::Work, ask).await?)
    }

    /// Returns the number that an answer begins with.
    fn number(&self, rows: &[Row]) -> Result<Option<i64>, Fault> {
        rows.first().map(|row| row.int(0)).transpose().map_err(|error| self.unreadable(&error))
    }

    /// Makes a step on one row as one statement, if it is what this process knows of it.
    pub(crate) async fn swap<T>(
        &self,
        change: &Change,
        name: &Name,
        step: Steps<'_, T>,
    ) -> Result<Tried<T>, Fault> {
        let mut swapping = Swapping::begin(*self).await?;
        let tried = swap(&mut swapping, change, name, step).await;
        swapping.link.give_back();
        tried
    }

    /// Makes one attempt of a step, in a transaction that locks the rows.
    pub(crate) async fn attempt<T>(&self, change: &Change, step: Steps<'_, T>) -> Result<Changed<T>, Fault> {
        let class = class_of(change);
        let names: Vec<&str> = change.names.iter().map(|name| &*name.text).collect();
        let args = [Arg::Text(text_of(class)), Arg::Names(&names)];
        let statements = &self.sql.statements;
        if change.access == Access::Look {
            let (sent, rows) = self.read(&statements.look, &args).await?;
            let rows = self.rows(change, &rows)?;
            self.sql.observe(time(rows.now), sent);
            let (mut records, _) = self.records(change, &rows)?;
            let (answer, ..) = self.sql.rows.run(&change.names, time(rows.now), &mut records, &[], step);
            return Ok(Changed { answer, now: time(rows.now), heard: Heard(false) });
        }
        let mut link = self.link().await?;
        match self.locked(&mut link, change, &args, step).await {
            Ok((answer, now, bell)) => {
                link.give_back();
                Ok(Changed { answer, now, heard: bell.ring(change.handle) })
            }
            Err(fault) => {
                self.roll_back(link).await;
                Err(fault)
            }
        }
    }

    /// Locks the rows, makes the step, writes them, and commits.
    async fn locked<T>(
        &self,
        link: &mut Link,
        change: &Change,
        args: &[Arg<'_>],
        step: Steps<'_, T>,
    ) -> Result<(T, ServerTime, Bell), Fault> {
        let statements = &self.sql.statements;
        // One row is waited for: there are no others that it could keep waiting.
        let skips = change.access == Access::Each && change.names.len() > 1;
        let (text, args) = match args {
            [class, name] if change.alone().is_some() && !statements.lock_one.is_empty() => {
                let most = i64::try_from(GATE.min(self.left() * 3 / 4).as_millis()).unwrap_or(0);
                (&statements.lock_one, &[*class, *name, Arg::Int(most)][..])
            }
            _ if skips => (&statements.lock_free, args),
            _ => (&statements.lock, args),
        };
        let begin = self.links.options.begin();
        let (sent, found) = self.bounded(During::Work, link.begin_with(begin, text, args)).await?;
        let rows = self.rows(change, &found)?;
        if rows.now == 0 {
            return Err(Fault::Again("other processes were first".to_owned()));
        }
        let now = time(rows.now);
        self.sql.observe(now, sent);
        let (before, mut skipped) = self.records(change, &rows)?;
        // Otherwise the next step on an outdated row would lock it again.
        if let (Some(name), [found]) = (change.alone(), &*rows.found) {
            self.sql.rows.see(name, found.clone());
        }
        loop {
            let mut records = before.clone();
            let (answer, bell, events) = self.sql.rows.run(&change.names, now, &mut records, &skipped, step);
            match self.texts(change, &rows, &records, &skipped) {
                Ok(texts) => {
                    if let Err(fault) = self.write(link, change, &rows, texts, &events).await {
                        bell.doubt(change.handle);
                        return Err(fault);
                    }
                    return Ok((answer, now, bell));
                }
                // One record that has grown too long costs no other.
                Err((index, _)) if skips => skipped.push(index),
                Err((_, error)) => return Err(error.into()),
            }
        }
    }

    /// Puts the rows in the order of the names.
    fn rows(&self, change: &Change, rows: &[Row]) -> Result<Rows, Fault> {
        let read = || {
            let now = rows.last().map_or(Ok(0), |row| row.int(0))?;
            let indexes: HashMap<&str, usize> =
                change.names.iter().enumerate().map(|(index, name)| (&*name.text, index)).collect();
            let (mut found, mut listeners) = (vec![None; change.names.len()], vec![None; change.names.len()]);
            let mut skipped = Vec::new();
            for row in rows {
                let Some(name) = row.maybe_text(1)? else { continue };
                let Some(index) = indexes.get(name.as_str()) else { continue };
                match (read_row(row, 2)?, found.get_mut(*index)) {
                    (Some(row), Some(place)) => *place = Some(row),
                    (None, Some(Some(_))) => {}
                    _ => skipped.push(*index),
                }
                if let Some(place) = listeners.get_mut(*index) {
                    *place = row.maybe_text(7)?;
                }
            }
            Ok(Rows { now, found, listeners, skipped })
        };
        read().map_err(|error| self.unreadable(&error))
    }

    /// Returns the records, and the indexes of those that could not be had.
    fn records(&self, change: &Change, rows: &Rows) -> Result<(Vec<Record>, Vec<usize>), Fault> {
        let mut skipped = rows.skipped.clone();
        let mut records = Vec::with_capacity(change.names.len());
        for (index, (name, found)) in change.names.iter().zip(&rows.found).enumerate() {
            records.push(match self.sql.rows.record(name, found.as_ref().map(|found| &found.row)) {
                Err(_) if change.access == Access::Each => {
                    skipped.push(index);
                    Record::empty(name.class)
                }
                record => record?,
            });
        }
        Ok((records, skipped))
    }

    /// Returns the rows of the records that are different, or the first that is too long.
    fn texts(
        &self,
        change: &Change,
        rows: &Rows,
        records: &[Record],
        skipped: &[usize],
    ) -> Result<Vec<(usize, RecordRow)>, (usize, StoreError)> {
        let mut texts = Vec::new();
        let all = change.names.iter().zip(&rows.found).zip(records).enumerate();
        for (index, ((name, found), record)) in all.filter(|(index, _)| !skipped.contains(index)) {
            let before = found.as_ref().map(|found| &found.row);
            let mut after = self.sql.rows.row(name, before, record).map_err(|error| (index, error))?;
            after.kept_until = after.kept_until.max(before.map_or(0, |before| before.kept_until));
            let is_same = before.map_or(record.is_empty(), |before| *before == after);
            let settles = change.access == Access::Settle;
            if settles {
                after.kept_until = after.kept_until.max(micros(time(rows.now) + MARK));
            }
            if settles || !is_same {
                texts.push((index, after));
            }
        }
        Ok(texts)
    }

    /// Writes rows, notifies other processes, and commits. Also if there are no rows to write:
    /// others would find the rows locked for a while.
    async fn write(
        &self,
        link: &mut Link,
        change: &Change,
        rows: &Rows,
        texts: Vec<(usize, RecordRow)>,
        events: &[Event],
    ) -> Result<(), Fault> {
        let options = &self.links.options;
        let commit = format!(
            "{}{}",
            self.sql.notices.statements(&change.names, &rows.listeners, events, Whom::All, rows.now),
            options.commit()
        );
        let class = class_of(change);
        let version = new_version();
        let (mut changed, mut missing) = (Vec::new(), Vec::new());
        for (index, row) in &texts {
            let Some(name) = change.names.get(*index) else { continue };
            let written = Written { name: &name.text, version: &version, row };
            let is_there = rows.found.get(*index).is_some_and(Option::is_some);
            if is_there {
                changed.push(written);
            } else {
                missing.push(written);
            }
            self.sql.rows.see(name, Some(Found { version: version.clone(), row: row.clone() }));
        }
        let update = &self.sql.statements.update;
        let class = Arg::Text(text_of(class));
        let args = [class, Arg::Rows(&changed)];
        match (changed.is_empty(), options.is_server()) {
            (true, _) => {}
            // Rows are locked until the commit, so it goes with the update.
            (_, true) if missing.is_empty() => {
                let both = format!("{}; {commit}", options.filled(update, &args));
                return self.bounded(During::Commit, link.run(&both)).await;
            }
            _ => drop(self.bounded(During::Work, link.rows(update, &args)).await?),
        }
        if !missing.is_empty() {
            self.insert(link, rows, class, &missing).await?;
        }
        self.bounded(During::Commit, link.run(&commit)).await
    }

    /// Inserts rows that were missing.
    async fn insert(
        &self,
        link: &mut Link,
        rows: &Rows,
        class: Arg<'_>,
        missing: &[Written<'_>],
    ) -> Result<(), Fault> {
        let args = [class, Arg::Rows(missing)];
        let inserted = self.bounded(During::Work, link.rows(&self.sql.statements.insert, &args)).await?;
        let in_time = |row: &Row| row.int(0).is_ok_and(|now| now - rows.now <= SAME_TIME);
        if inserted.len() < missing.len() || !inserted.iter().all(in_time) {
            return Err(Fault::Again("another program has just made the same lock".to_owned()));
        }
        Ok(())
    }
}
