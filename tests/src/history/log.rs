//! [`Log`]: the log to which a process writes its events.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::event::Event;
use super::text::{from_text, to_text};
use crate::clock::now_nanos;

/// An event and its time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// The number of the request in its process; 0 for an event of the process, a server or the
    /// run.
    pub id: u64,
    /// The time on the clock of the history, in nanoseconds.
    pub at: u64,
    /// Until when the request's lock was known to be valid at that time. `at` if it was not valid,
    /// or if there is no lock.
    pub until: u64,
    /// The event.
    pub event: Event,
}

impl Record {
    /// Returns the record as a line of a log.
    #[must_use]
    pub fn to_line(&self) -> String {
        let Self { id, at, until, event } = self;
        format!("{id} {at} {until} {}\n", to_text(event))
    }

    /// Parses a line of a log, without its line end.
    #[must_use]
    pub fn from_line(line: &str) -> Option<Self> {
        let mut words = line.splitn(4, ' ');
        let mut number = || words.next()?.parse::<u64>().ok();
        let (id, at, until) = (number()?, number()?, number()?);
        Some(Self { id, at, until, event: from_text(words.next()?)? })
    }
}

/// The log of one process, or of another participant. Clones write to the same log.
#[derive(Clone)]
pub struct Log(Arc<Inner>);

enum Inner {
    File(File),
    Memory { clock: Box<dyn Fn() -> u64 + Send + Sync>, text: Mutex<String> },
}

impl Log {
    /// Opens a file for appending, and creates it if necessary. Times are the machine's.
    ///
    /// # Errors
    ///
    /// When the file can't be opened.
    pub fn open(path: &Path) -> io::Result<Self> {
        let file = OpenOptions::new().create(true).append(true).open(path)?;
        Ok(Self(Arc::new(Inner::File(file))))
    }

    /// Creates a log in memory, with times in nanoseconds from `clock`.
    #[must_use]
    pub fn in_memory(clock: impl Fn() -> u64 + Send + Sync + 'static) -> Self {
        Self(Arc::new(Inner::Memory { clock: Box::new(clock), text: Mutex::default() }))
    }

    /// Notes that `event` happens now to request `id`. `remaining` returns how long its lock is
    /// still known to be valid.
    ///
    /// # Panics
    ///
    /// When the log can't be written.
    pub fn note(&self, id: u64, event: &Event, remaining: impl FnOnce() -> Duration) {
        // The clock first: then the computed deadline is never later than the real one.
        let at = match &*self.0 {
            Inner::File(_) => now_nanos(),
            Inner::Memory { clock, .. } => clock(),
        };
        let until = at.saturating_add(u64::try_from(remaining().as_nanos()).unwrap_or(u64::MAX));
        let line = Record { id, at, until, event: event.clone() }.to_line();
        match &*self.0 {
            Inner::File(file) => { file }.write_all(line.as_bytes()).expect("the log can be written"),
            Inner::Memory { text, .. } => {
                text.lock().unwrap_or_else(PoisonError::into_inner).push_str(&line);
            }
        }
    }

    /// Notes an event without a held lock: of the process, a server, or the run.
    ///
    /// # Panics
    ///
    /// When the log can't be written.
    pub fn say(&self, event: &Event) {
        self.note(0, event, || Duration::ZERO);
    }

    /// Returns the content of a log in memory; empty for a file.
    #[must_use]
    pub fn text(&self) -> String {
        match &*self.0 {
            Inner::File(_) => String::new(),
            Inner::Memory { text, .. } => text.lock().unwrap_or_else(PoisonError::into_inner).clone(),
        }
    }
}

impl fmt::Debug for Log {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &*self.0 {
            Inner::File(file) => f.debug_tuple("Log").field(file).finish(),
            Inner::Memory { .. } => f.debug_struct("Log").finish_non_exhaustive(),
        }
    }
}
