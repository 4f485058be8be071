//! [`Found`]: a row as it was read.

use lock_core::internal::chance::random_bytes;
use lock_core::store::ServerTime;

use crate::record::Class;
use crate::text::Row;

/// A row as it was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// The random number of the change that wrote it.
    pub version: String,
    /// Its content.
    pub row: Row,
}

/// Returns the class as a database has it.
#[must_use]
pub fn text_of(class: Class) -> &'static str {
    match class {
        Class::Lock => "lock",
        Class::Semaphore => "semaphore",
        Class::Latch => "latch",
    }
}

/// Returns the class that a database calls so.
#[must_use]
pub fn class_named(text: &str) -> Option<Class> {
    [Class::Lock, Class::Semaphore, Class::Latch].into_iter().find(|class| text_of(*class) == text)
}

/// Makes the version of a change: a random number that no other change has, as 32 hexadecimal
/// digits.
#[must_use]
pub fn new_version() -> String {
    format!("{:032x}", u128::from_be_bytes(random_bytes()))
}

/// Returns the time of a number of microseconds.
#[must_use]
pub fn time(micros: i64) -> ServerTime {
    ServerTime::from_micros(u64::try_from(micros).unwrap_or(0))
}

/// Returns the microseconds of a time.
#[must_use]
pub fn micros(time: ServerTime) -> i64 {
    i64::try_from(time.as_micros()).unwrap_or(i64::MAX)
}
