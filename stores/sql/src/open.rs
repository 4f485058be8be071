//! [`SqlStore`]: how a database is opened.

use std::sync::Arc;
use std::time::Duration;

use lock_core::store::{Abilities, StoreError, StoreErrorKind};
use lock_store_records::Records;
use tokio::runtime::Handle;

use crate::plumbing::Database;
use crate::records::Sql;

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
const CONNECTIONS: u32 = 8;

/// Maximum number of connections for renewals and sweeping.
const STEADY: u32 = 2;

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
    use sqlx::postgres::PgPoolOptions;

    let _entered = settings.runtime.enter();
    let options = options.application_name("lock-runtime");
    let pool = |connections| {
        let pool = PgPoolOptions::new().max_connections(connections);
        let pool = pool.acquire_timeout(settings.connect_timeout).after_connect(|connection, _| {
            // A grant that is lost with a crash would let two in.
            let wait = "SELECT set_config('synchronous_commit', CASE current_setting('synchronous_commit') \
                        WHEN 'off' THEN 'on' ELSE current_setting('synchronous_commit') END, false)";
            Box::pin(async move { sqlx::Executor::execute(connection, wait).await.map(drop) })
        });
        Database::Postgres(pool.connect_lazy_with(options.clone()))
    };
    let sql = Sql::new(
        pool(CONNECTIONS),
        pool(STEADY),
        Abilities { name: "the PostgreSQL store", ..ABILITIES },
    );
    Arc::new(Records::new(sql, &settings.prefix))
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
    use sqlx::sqlite::{SqliteJournalMode, SqlitePoolOptions, SqliteSynchronous};

    let path = options.get_filename().to_string_lossy();
    if path.is_empty() || path.contains(":memory:") || path.contains("mode=memory") || path.contains("sqlx-in-memory") {
        let text = "SQLite in memory is a database for each connection; name a file, or use `memory:`";
        return Err(StoreError::new(StoreErrorKind::Unsupported, text));
    }
    let _entered = settings.runtime.enter();
    let options = options
        .create_if_missing(true)
        .journal_mode(SqliteJournalMode::Wal)
        .synchronous(SqliteSynchronous::Full)
        .busy_timeout(BUSY);
    let pool = SqlitePoolOptions::new().max_connections(STEADY).acquire_timeout(settings.connect_timeout);
    let database = Database::Sqlite((pool.connect_lazy_with(options), Arc::default()));
    let sql = Sql::new(database.clone(), database, Abilities { name: "the SQLite store", ..ABILITIES });
    Ok(Arc::new(Records::new(sql, &settings.prefix)))
}

/// Time for which SQLite itself waits for another process that writes.
#[cfg(feature = "sqlite")]
const BUSY: Duration = Duration::from_millis(500);
