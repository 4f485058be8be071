//! The meaning of a database error for the call.

use lock_core::store::{StoreError, StoreErrorKind};
use sqlx::error::DatabaseError;

use super::fault::Fault;

/// When an error happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum During {
    /// Before the commit: nothing was committed, and nothing will be.
    Work,
    /// During the commit: only an answer says whether it was committed.
    Commit,
}

/// Returns the fault of a call during which `error` happened. The transaction, if there is one, is
/// dropped. An error that no retry can fix is [`StoreErrorKind::Unsupported`], and so becomes a
/// misconfiguration.
pub(crate) fn fault(database: &str, error: &sqlx::Error, during: During) -> Fault {
    let (kind, text) = match error {
        sqlx::Error::Database(error) => match of_database(&**error) {
            Meaning::Again => return Fault::Again(format!("{database}: {error}")),
            Meaning::NoTables => return Fault::NoTables(format!("{database}: {error}")),
            Meaning::Kind(kind) => (kind, error.to_string()),
            Meaning::Pooled => (StoreErrorKind::Unsupported, format!("{error}; {POOLED}")),
            Meaning::Gone if during == During::Commit => (StoreErrorKind::Unanswered, error.to_string()),
            Meaning::Gone => (StoreErrorKind::Unreachable, error.to_string()),
        },
        sqlx::Error::Configuration(error) => (StoreErrorKind::Unsupported, error.to_string()),
        // The answer is not what this version expects.
        sqlx::Error::ColumnDecode { .. }
        | sqlx::Error::ColumnNotFound(_)
        | sqlx::Error::ColumnIndexOutOfBounds { .. }
        | sqlx::Error::Decode(_) => (
            StoreErrorKind::ForeignData,
            format!("{error}; the tables may have been created by another program"),
        ),
        error if during == During::Commit => (StoreErrorKind::Unanswered, error.to_string()),
        error => (StoreErrorKind::Unreachable, error.to_string()),
    };
    Fault::Failed(StoreError::new(kind, format!("{database}: {text}")))
}

/// Advice about sessions that are no sessions of PostgreSQL.
pub(crate) const POOLED: &str = "a pooler of transactions, such as PgBouncer, seems to be in front of the server: \
                      write `?pooler=true` in its address, and no `options`";

/// How PgBouncer refuses what sqlx wants of a session.
const STARTUP: &str = "unsupported startup parameter";

enum Meaning {
    /// Undone because of another transaction; a retry may succeed.
    Again,
    NoTables,
    /// A prepared statement is missing, or there already, or the server is a pooler.
    Pooled,
    /// The connection is closed.
    Gone,
    Kind(StoreErrorKind),
}

fn of_database(error: &dyn DatabaseError) -> Meaning {
    let code = error.code().unwrap_or_default();
    #[cfg(feature = "sqlite")]
    if error.try_downcast_ref::<sqlx::sqlite::SqliteError>().is_some() {
        return of_sqlite(code.parse().unwrap_or_default(), error.message());
    }
    #[cfg(feature = "mysql")]
    if let Some(error) = error.try_downcast_ref::<sqlx::mysql::MySqlDatabaseError>() {
        return of_mysql(error.number(), &code);
    }
    if error.message().starts_with(STARTUP) {
        return Meaning::Pooled;
    }
    of_postgres(&code)
}

/// Classifies a primary result code, the lowest byte: <https://www.sqlite.org/rescode.html>.
#[cfg(feature = "sqlite")]
fn of_sqlite(code: i32, message: &str) -> Meaning {
    match code & 0xff {
        // BUSY, LOCKED. A COMMIT that fails with these leaves the transaction open; it is then
        // rolled back.
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

/// Classifies an error number, which is more exact than the SQLSTATE:
/// <https://mariadb.com/docs/server/reference/error-codes>.
#[cfg(feature = "mysql")]
fn of_mysql(number: u16, state: &str) -> Meaning {
    match number {
        _ if state.starts_with("40") => Meaning::Again,
        // Undone because of another transaction: a duplicate key, a row or a table that was waited
        // for, a deadlock, a snapshot that is too old; or the table has just been changed.
        1020 | 1062 | 1205 | 1213 | 1412 | 1615 => Meaning::Again,
        1146 => Meaning::NoTables,
        // An access right, an account or its password.
        1044 | 1045 | 1142 | 1143 | 1227 | 1698 | 1820 | 1862 | 3118 | 4151 => {
            Meaning::Kind(StoreErrorKind::Denied)
        }
        // No such database, or none is named; a column is too short, or the index; a setting of the
        // binary log. A server that is too old does not know the words.
        1046 | 1049 | 1064 | 1071 | 1406 | 1665 | 1709 => Meaning::Kind(StoreErrorKind::Unsupported),
        1290 | 1792 | 1836 => Meaning::Kind(StoreErrorKind::ReadOnly),
        // Too many connections, or a node of a cluster that has not joined it.
        1040 | 1047 | 1203 | 1226 => Meaning::Kind(StoreErrorKind::NotReady),
        // No disk, no memory, no thread.
        1021 | 1037 | 1038 | 1041 | 1114 | 1135 => Meaning::Kind(StoreErrorKind::Full),
        // A column is missing or has another type.
        1054 | 1136 | 1364 | 1366 => Meaning::Kind(StoreErrorKind::ForeignData),
        // The server shuts down, or the connection or the statement was killed. Or a commit, or its
        // way to the binary log or to a cluster, has failed: it may be done nevertheless.
        1023 | 1026 | 1105 | 1180 | 1197 | 1598 | 3100 => Meaning::Gone,
        1053 | 1077 | 1079 | 1152..=1161 | 1317 | 1927 | 1969 | 3024 | 4031 => Meaning::Gone,
        _ => Meaning::Kind(StoreErrorKind::Refused),
    }
}

/// Classifies an SQLSTATE: <https://www.postgresql.org/docs/current/errcodes-appendix.html>.
fn of_postgres(code: &str) -> Meaning {
    match code {
        // It is unknown whether the statement was completed.
        "40003" => Meaning::Gone,
        // Undone because of another transaction (40001, 40P01), or `lock_timeout` expired (55P03).
        "55P03" => Meaning::Again,
        _ if code.starts_with("40") => Meaning::Again,
        "42P01" => Meaning::NoTables,
        "26000" | "42P05" => Meaning::Pooled,
        // No such database.
        "3D000" => Meaning::Kind(StoreErrorKind::Unsupported),
        "25006" => Meaning::Kind(StoreErrorKind::ReadOnly),
        // `idle_in_transaction_session_timeout` or `transaction_timeout` expired: rolled back, even
        // if this answers a COMMIT.
        "25P03" | "25P04" => Meaning::Kind(StoreErrorKind::TooLate),
        // Too many connections, starting up.
        "53300" | "57P03" => Meaning::Kind(StoreErrorKind::NotReady),
        _ if code.starts_with("53") => Meaning::Kind(StoreErrorKind::Full),
        "42501" => Meaning::Kind(StoreErrorKind::Denied),
        _ if code.starts_with("28") => Meaning::Kind(StoreErrorKind::Denied),
        // The connection, the operator or the system interrupted it.
        _ if ["08", "57", "58", "XX"].iter().any(|class| code.starts_with(class)) => Meaning::Gone,
        _ => Meaning::Kind(StoreErrorKind::Refused),
    }
}
