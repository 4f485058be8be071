//! [`Row`]: a record as a database keeps it, with JSON in it.
//!
//! All times are microseconds since the Unix epoch. An entry is a list whose first element is an
//! owner or an id, so that a row with a thousand of them stays short.

use std::collections::VecDeque;
use std::fmt;
use std::time::Duration;

use lock_core::store::{PermitId, ServerTime};
use lock_core::{OwnerId, TokenRetention};
use serde::{Deserialize, Serialize};

use crate::latch::Latch;
use crate::lock::{Counter, Held, Lock};
use crate::queue::{Queue, Waiter};
use crate::read_write::ReadWrite;
use crate::record::{Class, Record};
use crate::semaphore::Semaphore;

/// The time at which nothing ends: a database has signed numbers.
const FOREVER: i64 = i64::MAX;

/// A record as a database keeps it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Row {
    /// The largest token that was granted; zero if none was.
    pub token: i64,
    /// When everything in the record is over, but for the counter of tokens.
    pub until: i64,
    /// Until when the row is kept for its counter.
    pub kept_until: i64,
    /// Everything else, as JSON.
    pub text: String,
}

/// A row that this version can't read.
#[derive(Debug)]
pub struct Unreadable(serde_json::Error);

impl fmt::Display for Unreadable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the record can't be read, it may be of a newer version or of another program: {}", self.0)
    }
}

impl std::error::Error for Unreadable {}

/// Owner and end of a hold.
type Entry = (String, u64);

#[derive(Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct LockText {
    /// The holder of a mutex or a fair lock.
    #[serde(skip_serializing_if = "Option::is_none")]
    held: Option<Entry>,
    #[serde(skip_serializing_if = "Option::is_none")]
    writer: Option<Entry>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    readers: Vec<Entry>,
    /// A writer that waits for readers.
    #[serde(skip_serializing_if = "Option::is_none")]
    intent: Option<Entry>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    queue: Vec<WaiterText>,
    /// Whether the first of the queue has still to be told.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    untold: bool,
}

/// A waiter: owner, until when it counts as alive, its lease, the retention of its counter, and
/// whether a release may grant it the key.
#[derive(Serialize, Deserialize)]
struct WaiterText(String, u64, u64, Option<u64>, bool);

#[derive(Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct SemaphoreText {
    #[serde(skip_serializing_if = "Option::is_none")]
    left: Option<i64>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    held: Vec<Entry>,
}

#[derive(Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct LatchText {
    count: u64,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    done: Vec<Entry>,
}

fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(FOREVER)
}

fn unsigned(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
}

fn time(micros: u64) -> ServerTime {
    ServerTime::from_micros(micros)
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

fn entry(hold: &Held) -> Entry {
    (hold.owner.as_str().to_owned(), hold.expires.as_micros())
}

fn hold((owner, expires): Entry) -> Held {
    Held { owner: OwnerId::new(owner), expires: time(expires) }
}

impl Record {
    /// Returns the row of the record.
    #[must_use]
    pub fn row(&self) -> Row {
        let json = |value: serde_json::Result<String>| value.unwrap_or_default();
        match self {
            Self::Lock(lock) => {
                let Counter { top, expires } =
                    lock.counter.unwrap_or(Counter { top: 0, expires: Some(time(0)) });
                Row {
                    token: signed(top),
                    until: lock.over().map_or(0, |over| signed(over.as_micros())),
                    kept_until: expires.map_or(FOREVER, |expires| signed(expires.as_micros())),
                    text: json(serde_json::to_string(&LockText::of(lock))),
                }
            }
            Self::Semaphore(semaphore) => {
                let held = semaphore.held.iter().map(|(id, expires)| (id.to_string(), expires.as_micros()));
                let text = SemaphoreText { left: semaphore.left, held: held.collect() };
                let until = if semaphore.left.is_some() { FOREVER } else { 0 };
                Row { until, text: json(serde_json::to_string(&text)), ..Row::default() }
            }
            Self::Latch(latch) => {
                let done = latch.done.iter().map(|(id, until)| (id.clone(), until.as_micros()));
                let text = LatchText { count: latch.count, done: done.collect() };
                let over = latch.done.values().max().map_or(0, |until| signed(until.as_micros()));
                let until = if latch.count > 0 { FOREVER } else { over };
                Row { until, text: json(serde_json::to_string(&text)), ..Row::default() }
            }
        }
    }
}

impl Row {
    /// Returns the record of the row.
    ///
    /// # Errors
    ///
    /// [`Unreadable`].
    pub fn record(&self, class: Class) -> Result<Record, Unreadable> {
        let text = self.text.as_str();
        Ok(match class {
            Class::Lock => {
                let text: LockText = serde_json::from_str(text).map_err(Unreadable)?;
                let expires = Some(self.kept_until).filter(|kept| *kept != FOREVER);
                let counter =
                    Counter { top: unsigned(self.token), expires: expires.map(|kept| time(unsigned(kept))) };
                Record::Lock(text.lock(Some(counter).filter(|counter| counter.top > 0)))
            }
            Class::Semaphore => {
                let text: SemaphoreText = serde_json::from_str(text).map_err(Unreadable)?;
                let held = text.held.into_iter().map(|(id, expires)| {
                    let id = u128::from_str_radix(&id, 16).map_err(serde::de::Error::custom)?;
                    Ok((PermitId::from_bytes(id.to_be_bytes()), time(expires)))
                });
                let held = held.collect::<Result<_, serde_json::Error>>().map_err(Unreadable)?;
                Record::Semaphore(Semaphore { left: text.left, held })
            }
            Class::Latch => {
                let text: LatchText = serde_json::from_str(text).map_err(Unreadable)?;
                let done = text.done.into_iter().map(|(id, until)| (id, time(until)));
                Record::Latch(Latch { count: text.count, done: done.collect() })
            }
        })
    }
}

impl LockText {
    fn of(lock: &Lock) -> Self {
        let ReadWrite { writer, readers, intent } = &lock.read_write;
        let waiter = |waiter: &Waiter| {
            let retention = match waiter.retention {
                TokenRetention::For(time) => Some(micros(time)),
                TokenRetention::Keep => None,
            };
            let (owner, alive) = (waiter.owner.as_str().to_owned(), waiter.alive_until.as_micros());
            WaiterText(owner, alive, micros(waiter.lease), retention, waiter.direct)
        };
        Self {
            held: lock.sole.as_ref().map(entry),
            writer: writer.as_ref().map(entry),
            readers: readers.iter().map(entry).collect(),
            intent: intent.as_ref().map(entry),
            queue: lock.queue.waiters.iter().map(waiter).collect(),
            untold: lock.queue.unheard,
        }
    }

    fn lock(self, counter: Option<Counter>) -> Lock {
        let waiter = |WaiterText(owner, alive, lease, retention, direct): WaiterText| Waiter {
            owner: OwnerId::new(owner),
            lease: Duration::from_micros(lease),
            retention: retention
                .map_or(TokenRetention::Keep, |kept| TokenRetention::For(Duration::from_micros(kept))),
            direct,
            alive_until: time(alive),
        };
        Lock {
            sole: self.held.map(hold),
            queue: Queue {
                waiters: self.queue.into_iter().map(waiter).collect::<VecDeque<_>>(),
                unheard: self.untold,
            },
            read_write: ReadWrite {
                writer: self.writer.map(hold),
                readers: self.readers.into_iter().map(hold).collect(),
                intent: self.intent.map(hold),
            },
            counter,
        }
    }
}
