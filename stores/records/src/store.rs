//! [`RecordStore`]: what a database has to do.

use std::fmt;
use std::future::Future;
use std::time::Duration;

use lock_core::store::{Abilities, Cursor, Few, ServerTime, StoreError};

use crate::listeners::{Bell, Event, HandleId, Heard, Listeners};
use crate::record::{Name, Record};

/// A database that keeps records and changes them in atomic steps.
pub trait RecordStore: Send + Sync + fmt::Debug + 'static {
    /// Returns what [`Records`](crate::Records) on this database can do.
    fn abilities(&self) -> &Abilities;

    /// Returns an upper bound of the database's time, and asks for it if it is not known yet.
    fn time(&self, timeout: Duration) -> impl Future<Output = Result<ServerTime, StoreError>> + Send;

    /// Makes one atomic step: reads the records, lets `step` change them, and writes those that
    /// are different afterwards. Listeners hear of the step's events once it is done.
    ///
    /// `step` may run more than once, on fresh records each time; only its last run counts. The
    /// time it gets is not before the records were locked or read. The records come and go as the
    /// step says: an absent one is [empty](Record::empty), an empty one need not be kept.
    fn change<T, F>(
        &self,
        change: Change,
        step: F,
    ) -> impl Future<Output = Result<Changed<T>, StoreError>> + Send
    where
        T: Send + 'static,
        F: FnMut(&mut Work<'_>) -> T + Send + 'static;

    /// Returns the next locks in the order of their names: those whose name begins with `prefix`,
    /// after `cursor`. A page may be empty although there is a next one.
    fn page(
        &self,
        prefix: &str,
        cursor: Option<Cursor>,
        timeout: Duration,
    ) -> impl Future<Output = Result<Page, StoreError>> + Send;

    /// Checks that the database is usable.
    fn check(&self) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Lets the listeners of this process hear of every change of these records from now on, also
    /// of those that other processes make; and waiters in queues of their grants. Returns `false`
    /// if this database can't do that: they look by themselves. Called only if notices are pushed.
    fn listen(
        &self,
        names: Vec<Name>,
        timeout: Duration,
    ) -> impl Future<Output = Result<bool, StoreError>> + Send;

    /// Gives access to the listeners of this process. Wakes nobody.
    fn listeners<T>(&self, access: impl FnOnce(&mut Listeners) -> T) -> T;
}

/// An atomic step on records.
#[derive(Clone, Debug)]
pub struct Change {
    /// The records, all different.
    pub names: Few<Name>,
    /// The rights of the step.
    pub access: Access,
    /// The handle that makes the step.
    pub handle: HandleId,
    /// A step that is made later has another answer, which it gives itself. For databases that run
    /// a step first, and then write only what it made.
    pub latest: Option<ServerTime>,
    /// The call resolves within about this time.
    pub timeout: Duration,
}

impl Change {
    /// Returns the name of a step that may change one record only.
    #[must_use]
    pub fn alone(&self) -> Option<&Name> {
        match &*self.names {
            [name] if self.access != Access::Look => Some(name),
            _ => None,
        }
    }
}

/// The rights of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Access {
    /// It only looks. Nothing is written or locked.
    Look,
    /// It may change the records.
    Change,
    /// It may change the records, each independently of the others. Those of several that can't be
    /// had at once are [skipped](Work::skipped).
    Each,
    /// It waits for every step that is under way on these names, also on absent ones. Later ones
    /// see that it was made.
    Settle,
}

/// The data of a step.
#[derive(Debug)]
pub struct Work<'a> {
    /// The records, in the order of the names.
    pub records: &'a mut [Record],
    /// The names, as in the [`Change`].
    pub names: &'a [Name],
    /// Indexes of records that could not be had, only for [`Access::Each`]. They are empty.
    pub skipped: &'a [usize],
    /// The time of the step.
    pub now: ServerTime,
    /// The listeners of this process.
    pub listeners: &'a Listeners,
    /// The abilities of the store.
    pub abilities: &'a Abilities,
    /// The events that listeners have to hear.
    pub events: Vec<Event>,
}

impl<'a> Work<'a> {
    /// Creates the data of a step that has all its records.
    #[must_use]
    pub fn new(
        records: &'a mut [Record],
        names: &'a [Name],
        now: ServerTime,
        listeners: &'a Listeners,
        abilities: &'a Abilities,
    ) -> Self {
        Self { records, names, skipped: &[], now, listeners, abilities, events: Vec::new() }
    }

    /// Returns the watches of this process that have to hear of the step.
    pub fn bell(&self) -> Bell {
        self.listeners.bell(self.names, &self.events, self.now)
    }
}

/// The outcome of a step.
#[derive(Debug)]
pub struct Changed<T> {
    /// The answer of the step.
    pub answer: T,
    /// When the step was made. Not earlier than that of any step before it on the same records,
    /// unless the database's clock was set back.
    pub now: ServerTime,
    /// Whether a watch of the handle that made the step has heard of it.
    pub heard: Heard,
}

/// A page of locks.
#[derive(Debug)]
pub struct Page {
    /// Prefix and key, and the record.
    pub locks: Vec<(Name, Record)>,
    /// Cursor of the next page; `None` after the last.
    pub next: Option<Cursor>,
    /// When the database looked.
    pub now: ServerTime,
}
