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

/// A waiter: owner, until when it counts as alive, its lease, the retention of its counter, whether
/// a release may grant it the key, and where it listens.
#[derive(Serialize, Deserialize)]
struct WaiterText(
    String,
    u64,
    u64,
    Option<u64>,
    bool,
    #[serde(default, skip_serializing_if = "Option::is_none")] Option<String>,
);

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
                // A counter that is ahead of the clock is needed for longer.
                let expires = expires.map(|kept| time(unsigned(kept.max(self.token))));
                let counter = Counter { top: unsigned(self.token), expires };
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
            let listener = waiter.listener.as_deref().map(str::to_owned);
            WaiterText(owner, alive, micros(waiter.lease), retention, waiter.direct, listener)
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
        let waiter = |WaiterText(owner, alive, lease, retention, direct, listener): WaiterText| Waiter {
            owner: OwnerId::new(owner),
            lease: Duration::from_micros(lease),
            retention: retention
                .map_or(TokenRetention::Keep, |kept| TokenRetention::For(Duration::from_micros(kept))),
            direct,
            alive_until: time(alive),
            listener: listener.map(Into::into),
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

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::option;
    use proptest::prelude::*;

    use super::*;

    fn owner() -> impl Strategy<Value = OwnerId> {
        "[a-z\"\\\\ü:0-9]{0,8}".prop_map(OwnerId::new)
    }

    fn held() -> impl Strategy<Value = Held> {
        (owner(), any::<u64>()).prop_map(|(owner, expires)| Held { owner, expires: time(expires) })
    }

    fn waiter() -> impl Strategy<Value = Waiter> {
        (owner(), any::<u32>(), option::of(any::<u32>()), any::<bool>(), any::<u64>(), option::of("[a-z]{2}"))
            .prop_map(|(owner, lease, kept, direct, alive, listener)| Waiter {
                owner,
                lease: Duration::from_micros(lease.into()),
                retention: kept.map_or(TokenRetention::Keep, |kept| {
                    TokenRetention::For(Duration::from_micros(kept.into()))
                }),
                direct,
                alive_until: time(alive),
                listener: listener.map(Into::into),
            })
    }

    prop_compose! {
        fn lock()(
            sole in option::of(held()),
            writer in option::of(held()),
            readers in vec(held(), 0..3),
            intent in option::of(held()),
            waiters in vec(waiter(), 0..3),
            unheard in any::<bool>(),
            counter in option::of((1..i64::MAX as u64, option::of(0..i64::MAX as u64))),
        ) -> Record {
            let counter = counter
                .map(|(top, expires)| Counter { top, expires: expires.map(|kept| time(kept.max(top))) });
            let queue = Queue { waiters: waiters.into(), unheard };
            Record::Lock(Lock { sole, queue, read_write: ReadWrite { writer, readers, intent }, counter })
        }
    }

    fn semaphore() -> impl Strategy<Value = Record> {
        let held = vec((any::<[u8; 16]>(), any::<u64>()), 0..3);
        (option::of(any::<i32>()), held).prop_map(|(left, held)| {
            let held = held.into_iter().map(|(id, expires)| (PermitId::from_bytes(id), time(expires)));
            Record::Semaphore(Semaphore { left: left.map(i64::from), held: held.collect() })
        })
    }

    fn latch() -> impl Strategy<Value = Record> {
        (any::<u64>(), vec(("[a-z]{1,3}", any::<u64>()), 0..3)).prop_map(|(count, done)| {
            let done = done.into_iter().map(|(id, until)| (id, time(until)));
            Record::Latch(Latch { count, done: done.collect() })
        })
    }

    proptest! {
        #[test]
        fn a_row_has_everything_of_its_record(record in prop_oneof![lock(), semaphore(), latch()]) {
            let class = match record {
                Record::Lock(_) => Class::Lock,
                Record::Semaphore(_) => Class::Semaphore,
                Record::Latch(_) => Class::Latch,
            };
            prop_assert_eq!(record.row().record(class).unwrap(), record);
        }

        /// A blind write trusts `until`.
        #[test]
        fn nothing_counts_after_the_end_of_a_row(record in lock()) {
            let Record::Lock(lock) = &record else { unreachable!() };
            let until = time(unsigned(record.row().until));
            prop_assert!(until == time(FOREVER as u64) || (lock.ends(until).is_none() && lock.queue.head(until).is_none()));
        }

        /// A step has the same outcome for as long as nothing begins or stops to count.
        #[test]
        fn a_record_means_the_same_within_its_time(record in lock(), at in any::<u64>(), other in any::<u64>()) {
            let (at, other) = (time(at), time(other));
            let Record::Lock(lock) = &record else { unreachable!() };
            let (from, to) = record.same_around(at);
            prop_assert!(from.is_none_or(|from| from <= at) && to.is_none_or(|to| to > at));
            for then in [from, Some(other), to.map(|to| time(to.as_micros() - 1))].into_iter().flatten() {
                if from.is_none_or(|from| from <= then) && to.is_none_or(|to| to > then) {
                    prop_assert_eq!(lock.ends(at), lock.ends(then));
                    prop_assert_eq!(lock.queue.live(at).count(), lock.queue.live(then).count());
                    prop_assert_eq!(lock.counter(at), lock.counter(then));
                }
            }
        }
    }
}
