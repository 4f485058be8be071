//! The columns of a row.

use lock_store_records::Row as RecordRow;
use lock_store_records::rows::Found;

use crate::plumbing::Row;

/// Reads a row from the column `at` on. Returns `None` if the row is absent or must not be read.
pub(crate) fn read_row(row: &Row, at: usize) -> Result<Option<Found>, sqlx::Error> {
    let Some(version) = row.maybe_text(at)? else { return Ok(None) };
    let text = row.maybe_text(at + 4)?.unwrap_or_default();
    let row =
        RecordRow { token: row.int(at + 1)?, until: row.int(at + 2)?, kept_until: row.int(at + 3)?, text };
    Ok(Some(Found { version, row }))
}
