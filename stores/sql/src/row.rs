//! [`Found`]: a row as it was read, and what its columns mean.

use lock_core::internal::chance::random_bytes;
use lock_core::store::ServerTime;
use lock_store_records::{Class, Row as RecordRow};

use crate::plumbing::Row;

/// A row as it was read.
#[derive(Clone, Debug)]
pub(crate) struct Found {
    pub(crate) version: String,
    pub(crate) row: RecordRow,
}

impl Found {
    /// Reads a row from the column `at` on. Returns `None` if the row is absent or must not be
    /// read.
    pub(crate) fn read(row: &Row, at: usize) -> Result<Option<Self>, sqlx::Error> {
        let Some(version) = row.maybe_text(at)? else { return Ok(None) };
        let text = row.maybe_text(at + 4)?.unwrap_or_default();
        let row = RecordRow {
            token: row.int(at + 1)?,
            until: row.int(at + 2)?,
            kept_until: row.int(at + 3)?,
            text,
        };
        Ok(Some(Self { version, row }))
    }
}

/// Returns the class as the table has it.
pub(crate) fn text_of(class: Class) -> &'static str {
    match class {
        Class::Lock => "lock",
        Class::Semaphore => "semaphore",
        Class::Latch => "latch",
    }
}

/// Returns the class that the table calls so.
#[cfg(feature = "postgres")]
pub(crate) fn class_named(text: &str) -> Option<Class> {
    [Class::Lock, Class::Semaphore, Class::Latch].into_iter().find(|class| text_of(*class) == text)
}

/// Makes the version of a change: a random number that no other change has.
pub(crate) fn new_version() -> String {
    format!("{:032x}", u128::from_be_bytes(random_bytes()))
}

pub(crate) fn time(micros: i64) -> ServerTime {
    ServerTime::from_micros(u64::try_from(micros).unwrap_or(0))
}

pub(crate) fn micros(time: ServerTime) -> i64 {
    i64::try_from(time.as_micros()).unwrap_or(i64::MAX)
}
