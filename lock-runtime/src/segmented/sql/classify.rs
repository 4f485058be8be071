//! What an error of the database means for the call.

use lock_core::store::{StoreError, StoreErrorKind};
use sqlx::error::DatabaseError;

use super::fault::Fault;

/// Where it happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum During {
    /// Nothing was committed, and nothing will be.
    Work,
    /// Only an answer says whether it was.
    Commit,
}

/// The fault of a call during which `error` happened. The transaction, if there is one, is dropped.
/// What no retry can mend is [`StoreErrorKind::Unsupported`], and so a misconfiguration.
pub(super) fn fault(database: &str, error: &sqlx::Error, during: During) -> Fault {
    let (kind, text) = match error {
        sqlx::Error::Database(error) => match of_database(&**error) {
            Meaning::Again => return Fault::Again(format!("{database}: {error}")),
            Meaning::NoTables => (
                StoreErrorKind::Unsupported,
                format!(
                    "{error}; the tables are made by `SqlStocks::create_tables`, once, by a user who may"
                ),
            ),
            Meaning::Kind(kind) => (kind, error.to_string()),
            Meaning::Gone if during == During::Commit => (StoreErrorKind::Unanswered, error.to_string()),
            Meaning::Gone => (StoreErrorKind::Unreachable, error.to_string()),
        },
        sqlx::Error::PoolTimedOut => {
            (StoreErrorKind::NotReady, "no connection of the pool became free in time".to_owned())
        }
        sqlx::Error::PoolClosed => (StoreErrorKind::Unsupported, "the pool is closed".to_owned()),
        // What a statement answers is not what this version reads.
        sqlx::Error::ColumnDecode { .. }
        | sqlx::Error::ColumnNotFound(_)
        | sqlx::Error::ColumnIndexOutOfBounds { .. }
        | sqlx::Error::Decode(_) => (
            StoreErrorKind::ForeignData,
            format!("{error}; were the tables lock_stock* made by something else?"),
        ),
        error if during == During::Commit => (StoreErrorKind::Unanswered, error.to_string()),
        error => (StoreErrorKind::Unreachable, error.to_string()),
    };
    Fault::Failed(StoreError::new(kind, format!("{database}: {text}")))
}

enum Meaning {
    /// Undone because of others; the same may be done now.
    Again,
    NoTables,
    /// The connection ends.
    Gone,
    Kind(StoreErrorKind),
}

fn of_database(error: &dyn DatabaseError) -> Meaning {
    let code = error.code().unwrap_or_default();
    #[cfg(feature = "sqlite")]
    if error.try_downcast_ref::<sqlx::sqlite::SqliteError>().is_some() {
        return of_sqlite(code.parse().unwrap_or_default(), error.message());
    }
    of_postgres(&code)
}

/// By the primary result code, the lowest byte: <https://www.sqlite.org/rescode.html>.
#[cfg(feature = "sqlite")]
fn of_sqlite(code: i32, message: &str) -> Meaning {
    match code & 0xff {
        // BUSY, LOCKED. A COMMIT that is refused so leaves the transaction open, to be rolled back.
        5 | 6 => Meaning::Again,
        8 => Meaning::Kind(StoreErrorKind::ReadOnly),
        // NOMEM, FULL: rolled back.
        7 | 13 => Meaning::Kind(StoreErrorKind::Full),
        // PERM, AUTH
        3 | 23 => Meaning::Kind(StoreErrorKind::Denied),
        // IOERR, CANTOPEN
        10 | 14 => Meaning::Gone,
        // CORRUPT, NOTADB
        11 | 26 => Meaning::Kind(StoreErrorKind::ForeignData),
        _ if message.starts_with("no such table") => Meaning::NoTables,
        _ => Meaning::Kind(StoreErrorKind::Refused),
    }
}

/// By SQLSTATE: <https://www.postgresql.org/docs/current/errcodes-appendix.html>.
fn of_postgres(code: &str) -> Meaning {
    match code {
        // Who ended the statement does not say what became of it.
        "40003" => Meaning::Gone,
        // Undone for others (40001, 40P01), or a lock was not to be had until its time-out (55P03).
        "55P03" => Meaning::Again,
        _ if code.starts_with("40") => Meaning::Again,
        "42P01" => Meaning::NoTables,
        "25006" => Meaning::Kind(StoreErrorKind::ReadOnly),
        // Ended by the server because nothing came: rolled back, at a COMMIT too.
        "25P03" => Meaning::Kind(StoreErrorKind::TooLate),
        // Too many connections, starting up.
        "53300" | "57P03" => Meaning::Kind(StoreErrorKind::NotReady),
        _ if code.starts_with("53") => Meaning::Kind(StoreErrorKind::Full),
        "42501" => Meaning::Kind(StoreErrorKind::Denied),
        _ if code.starts_with("28") => Meaning::Kind(StoreErrorKind::Denied),
        // The connection, the operator or the system comes in between.
        _ if ["08", "57", "58", "XX"].iter().any(|class| code.starts_with(class)) => Meaning::Gone,
        _ => Meaning::Kind(StoreErrorKind::Refused),
    }
}
