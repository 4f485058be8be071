//! Numbers in a database: signed 64-bit integers, and times in microseconds.

use std::time::Duration;

use lock_core::store::{StoreError, StoreErrorKind};

pub(super) fn micros(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros()).unwrap_or(i64::MAX / 4).min(i64::MAX / 4)
}

/// Converts a count.
///
/// # Errors
///
/// [`StoreErrorKind::ForeignData`] for a negative one.
pub fn unsigned(number: i64) -> Result<u64, StoreError> {
    u64::try_from(number).map_err(|_| {
        StoreError::new(
            StoreErrorKind::ForeignData,
            format!("the entries of a stock contain a negative number, {number}"),
        )
    })
}

/// Converts tokens and quantities, which are far below the limit.
#[must_use]
pub fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
