//! [`SqlStore`]: how a database is opened.

use std::sync::Arc;
use std::time::Duration;

use lock_core::store::{Abilities, StoreError, StoreErrorKind};
use lock_store_records::Records;
use tokio::runtime::Handle;

use crate::links::{Links, Options};
use crate::records::Sql;
#[cfg(feature = "postgres")]
use crate::swap::AHEAD;

/// One manager's handle on a database.
pub type SqlStore = Records<Sql>;

/// The features of both databases.
const ABILITIES: Abilities = Abilities {
    name: "the SQL store",
    fair: true,
    read_write: true,
    downgrade: true,
    several: true,
    shortens: true,
    scan: true,
    ..Abilities::MUTEX
};

/// Maximum number of connections for the steps of a manager.
const CONNECTIONS: usize = 8;

/// Maximum number of connections for renewals and sweeping.
const STEADY: usize = 2;

/// Settings of a handle.
#[derive(Clone, Debug)]
pub struct Settings {
    /// What is put in front of every key.
    pub prefix: String,
    /// Maximum time to wait for a connection.
    pub connect_timeout: Duration,
    /// The manager's runtime.
    pub runtime: Handle,
}

/// Opens PostgreSQL. Connects on first use.
#[cfg(feature = "postgres")]
#[must_use]
pub fn postgres(options: sqlx::postgres::PgConnectOptions, settings: &Settings) -> Arc<SqlStore> {
    let options = Options::Postgres(Box::new(options.application_name("lock-runtime")));
    let links = |most| Links::new(options.clone(), most);
    let abilities = Abilities { name: "the PostgreSQL store", lease_grain: AHEAD, ..ABILITIES };
    Arc::new(Records::new(Sql::new(links(CONNECTIONS), links(STEADY), abilities), &settings.prefix))
}

/// Opens SQLite. Opens the file on first use, and creates it if it is missing.
///
/// # Errors
///
/// [`StoreErrorKind::Unsupported`] for a database in memory, which no other process can see.
#[cfg(feature = "sqlite")]
pub fn sqlite(
    options: sqlx::sqlite::SqliteConnectOptions,
    settings: &Settings,
) -> Result<Arc<SqlStore>, StoreError> {
    use sqlx::sqlite::{SqliteJournalMode, SqliteSynchronous};

    let path = options.get_filename().to_string_lossy();
    if path.is_empty()
        || path.contains(":memory:")
        || path.contains("mode=memory")
        || path.contains("sqlx-in-memory")
    {
        let text = "SQLite in memory is a database for each connection; name a file, or use `memory:`";
        return Err(StoreError::new(StoreErrorKind::Unsupported, text));
    }
    let options = options
        .create_if_missing(true)
        .journal_mode(SqliteJournalMode::Wal)
        .synchronous(SqliteSynchronous::Full)
        .busy_timeout(BUSY);
    // SQLite has one writer at a time. Those of this process queue for the connection, and are
    // woken; SQLite itself would poll.
    let links = Links::new(Options::Sqlite(Box::new(options)), 1);
    let abilities = Abilities { name: "the SQLite store", ..ABILITIES };
    let sql = Sql::new(Arc::clone(&links), links, abilities);
    Ok(Arc::new(Records::new(sql, &settings.prefix)))
}

/// Time for which SQLite itself waits for another process that writes.
#[cfg(feature = "sqlite")]
const BUSY: Duration = Duration::from_millis(500);
