//! [`Rows`]: what a process knows of a database whose records are rows, and how it makes steps.
//!
//! `group` lets the steps of one process on one row travel together, and `swap` makes a step on one
//! row in one round trip.

mod found;
mod group;
mod known;
mod message;
mod pace;
mod spawned;
mod station;
mod swap;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use lock_core::internal::clock::{Clock, Tick};
use lock_core::internal::sync::{Mutex, lock};
use lock_core::store::kit::ServerClock;
use lock_core::store::{Abilities, ServerTime, StoreError, StoreErrorKind};

pub use self::found::{Found, class_named, micros, new_version, text_of, time};
pub use self::group::{Grouped, Groups, travel};
use self::known::Known;
pub use self::message::{message, read_message};
pub use self::pace::Pace;
pub use self::spawned::spawned;
pub use self::station::{Arrived, LIFE, Station, Wire};
pub use self::swap::{AHEAD, Shared, Swap, Swapped, Swaps, Tried, Was, swap};
use crate::listeners::{Bell, Event, Listeners};
use crate::record::{Name, Record};
use crate::store::Work;
use crate::text::Row;

/// Upper bound on any call's deadline, so that adding it to an `Instant` cannot overflow.
pub const LONGEST: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// Time for which a row is kept that a withdrawal has made, so that a late insert of the withdrawn
/// request finds it.
pub const MARK: Duration = Duration::from_secs(60);

/// Maximum length of a record's text in bytes. Each change writes all of it.
const LARGEST: usize = 256 * 1024;

/// Time for which an estimate of the clock is good enough to count a lease from it.
const FRESH: Duration = Duration::from_secs(3);

/// Time for which it is good enough to limit a request.
const STAMPS: Duration = Duration::from_secs(60);

/// Resolution of clocks, by which an estimate may be behind at once.
const GRAIN: Duration = Duration::from_millis(2);

/// The features of records in any database.
pub const ABILITIES: Abilities = Abilities {
    name: "the store",
    fair: true,
    read_write: true,
    downgrade: true,
    several: true,
    shortens: true,
    scan: true,
    ..Abilities::MUTEX
};

/// The features of records on a server, which is asked over a network.
pub const ON_SERVER: Abilities = Abilities {
    lease_grain: AHEAD,
    queues_mutexes: true,
    takeovers: true,
    // A hundred processes that wait are fifty messages a second.
    waiter_life: Duration::from_secs(10),
    direct_lease: Duration::from_secs(15),
    intent_life: Duration::from_secs(3),
    ..ABILITIES
};

/// Settings of a handle.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Prefix of every key.
    pub prefix: String,
    /// Time-out of calls for operators. Others bring their own.
    pub call_timeout: Duration,
}

/// A step, as it is made in an attempt.
pub type Steps<'a, T> = &'a mut (dyn FnMut(&mut Work<'_>) -> T + Send);

/// The knowledge that a process has of a database whose records are rows.
pub struct Rows {
    /// The name of the database in errors.
    pub database: &'static str,
    /// The name of the table in errors.
    pub table: &'static str,
    /// The features and limits of the store.
    pub abilities: Abilities,
    /// The listeners of this process.
    pub listeners: Arc<Mutex<Listeners>>,
    /// The estimate of the database's clock.
    clock: ServerClock,
    /// When the database has last said its time.
    heard: Mutex<Option<Tick>>,
    known: Known,
}

impl fmt::Debug for Rows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rows").field("database", &self.database).finish_non_exhaustive()
    }
}

impl Rows {
    /// Creates what is known of a database before it is asked.
    #[must_use]
    pub fn new(database: &'static str, table: &'static str, abilities: Abilities) -> Self {
        Self {
            database,
            table,
            abilities,
            listeners: Arc::default(),
            clock: ServerClock::default(),
            heard: Mutex::default(),
            known: Known::default(),
        }
    }

    /// Makes an error that names the database.
    pub fn error(&self, kind: StoreErrorKind, text: impl fmt::Display) -> StoreError {
        StoreError::new(kind, format!("{}: {text}", self.database))
    }

    /// Records that the database said its time in answer to a message sent at `sent`. An answer
    /// that had to wait for others says less than what is known already.
    pub fn observe(&self, now: ServerTime, sent: Tick) {
        let waited = Clock::Boot.now().since(sent);
        let says_less = |(known, _): (ServerTime, Duration)| (now..now + waited).contains(&known);
        if waited > AHEAD / 2 && self.estimate(FRESH / 2).is_some_and(says_less) {
            return;
        }
        self.clock.observe(now, sent);
        let mut heard = lock(&self.heard);
        *heard = (*heard).max(Some(sent));
    }

    /// Returns an upper bound of the database's time, if it is known well enough to limit a
    /// request.
    pub fn stamp(&self) -> Option<ServerTime> {
        self.estimate(STAMPS).map(|(estimate, _)| estimate)
    }

    /// Returns an upper bound of the database's time, if it is known well enough to count a lease
    /// from it. The rates of the two clocks may differ by 1 % (P1).
    pub fn fresh_time(&self) -> Option<ServerTime> {
        let (estimate, age) = self.estimate(FRESH)?;
        Some(estimate + age / 100 + GRAIN)
    }

    /// Returns the estimated time, and the age of the answer that it comes from.
    fn estimate(&self, oldest: Duration) -> Option<(ServerTime, Duration)> {
        let now = Clock::Boot.now();
        let age = now.since((*lock(&self.heard))?);
        Some((self.clock.estimate(now)?, age)).filter(|_| age < oldest)
    }

    /// Remembers the row as it is now, so that the next step knows whether it has to write.
    pub fn see(&self, name: &Name, found: Option<Found>) {
        match found {
            Some(found) => self.known.put(name, found),
            None => self.known.forget(name),
        }
    }

    /// Returns the record of a row, or an empty one if it is absent.
    ///
    /// # Errors
    ///
    /// [`StoreErrorKind::ForeignData`] for one that can't be read.
    pub fn record(&self, name: &Name, row: Option<&Row>) -> Result<Record, StoreError> {
        let record = row.map_or(Ok(Record::empty(name.class)), |row| row.record(name.class));
        record.map_err(|error| {
            let advice = "correct the row, or delete it if nobody holds the lock";
            let table = self.table;
            self.error(StoreErrorKind::ForeignData, format_args!("{name:?} in {table}: {error}; {advice}"))
        })
    }

    /// Returns the row of a changed record.
    ///
    /// # Errors
    ///
    /// [`StoreErrorKind::TooManyWaiters`] for one that has become too long.
    pub fn row(&self, name: &Name, before: Option<&Row>, record: &Record) -> Result<Row, StoreError> {
        let mut row = record.row();
        row.token = row.token.max(before.map_or(0, |before| before.token));
        if row.text.len() > LARGEST && before.is_none_or(|before| before.text.len() < row.text.len()) {
            let text = format_args!(
                "the record of {name:?} would be longer than {LARGEST} bytes: it has too many waiters or holders"
            );
            return Err(self.error(StoreErrorKind::TooManyWaiters, text));
        }
        Ok(row)
    }

    /// Runs a step on the records.
    pub fn run<T>(
        &self,
        names: &[Name],
        now: ServerTime,
        records: &mut [Record],
        skipped: &[usize],
        step: Steps<'_, T>,
    ) -> (T, Bell, Vec<Event>) {
        let listeners = lock(&self.listeners);
        let mut work = Work::new(records, names, now, &listeners, &self.abilities);
        work.skipped = skipped;
        let answer = step(&mut work);
        let bell = work.bell();
        (answer, bell, work.events)
    }
}
