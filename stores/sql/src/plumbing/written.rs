//! [`Written`]: a row as it is written, and lists as JSON.

use lock_store_records::Row as RecordRow;

/// A row as it is written.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Written<'a> {
    pub(crate) name: &'a str,
    pub(crate) version: &'a str,
    pub(crate) row: &'a RecordRow,
}

/// Returns the list of names for PostgreSQL and SQLite, which take no other lists.
#[cfg(any(feature = "postgres", feature = "sqlite"))]
pub(crate) fn names_as_json(names: &[&str]) -> String {
    serde_json::to_string(names).unwrap_or_default()
}

/// Returns the list of rows for PostgreSQL and SQLite.
#[cfg(any(feature = "postgres", feature = "sqlite"))]
pub(crate) fn rows_as_json(rows: &[Written<'_>]) -> String {
    let rows = rows.iter().map(|Written { name, version, row }| {
        serde_json::json!({
            "name": name,
            "version": version,
            "token": row.token,
            "until": row.until,
            "kept_until": row.kept_until,
            "record": row.text,
        })
    });
    serde_json::Value::from_iter(rows).to_string()
}
