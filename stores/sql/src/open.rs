//! [`SqlStore`]: how a database is opened.

use std::sync::Arc;
#[cfg(feature = "sqlite")]
use std::time::Duration;

use lock_core::store::Abilities;
#[cfg(feature = "postgres")]
use lock_core::store::Notices;
use lock_store_records::Records;
#[cfg(feature = "sqlite")]
use lock_store_records::rows::ABILITIES;
#[cfg(any(feature = "mysql", feature = "postgres"))]
use lock_store_records::rows::ON_SERVER;
use lock_store_records::rows::Settings;
#[cfg(feature = "mysql")]
use sqlx::mysql::MySqlConnectOptions;
#[cfg(feature = "postgres")]
use sqlx::postgres::PgConnectOptions;

use crate::links::Links;
use crate::options::Options;
use crate::records::Sql;
use crate::stock::stocks;

/// One manager's handle on a database.
pub type SqlStore = Records<Sql>;

/// Maximum number of connections for the steps of a manager, and for its stocks.
#[cfg(any(feature = "mysql", feature = "postgres"))]
const CONNECTIONS: usize = 4;

/// Maximum number of connections for renewals and sweeping.
#[cfg(any(feature = "mysql", feature = "postgres"))]
const STEADY: usize = 2;

/// Opens PostgreSQL. Connects on first use.
#[cfg(feature = "postgres")]
#[must_use]
pub fn postgres(options: PgConnectOptions, settings: &Settings) -> Arc<SqlStore> {
    let options = Options::Postgres(Box::new(named(options)));
    let abilities = Abilities { direct_grants: true, notices: Notices::Pushed, ..POSTGRES };
    on_server(&options, abilities, settings)
}

/// Opens PostgreSQL behind a pooler of transactions. Connects on first use.
#[cfg(feature = "postgres")]
#[must_use]
pub fn pooled_postgres(options: PgConnectOptions, settings: &Settings) -> Arc<SqlStore> {
    // PgBouncer refuses this one.
    let options = named(options).extra_float_digits(None);
    on_server(&Options::Pooled(Box::new(options)), POSTGRES, settings)
}

#[cfg(feature = "postgres")]
fn named(options: PgConnectOptions) -> PgConnectOptions {
    match options.get_application_name() {
        Some(_) => options,
        None => options.application_name("lock-runtime"),
    }
}

/// Opens MariaDB or MySQL. Connects on first use.
#[cfg(feature = "mysql")]
#[must_use]
pub fn mysql(options: MySqlConnectOptions, settings: &Settings) -> Arc<SqlStore> {
    let options = Options::MySql(Box::new(options));
    on_server(&options, Abilities { name: "the MySQL store", ..ON_SERVER }, settings)
}

/// The features of PostgreSQL, with a pooler or without.
#[cfg(feature = "postgres")]
const POSTGRES: Abilities = Abilities { name: "the PostgreSQL store", ..ON_SERVER };

#[cfg(any(feature = "mysql", feature = "postgres"))]
fn on_server(options: &Options, abilities: Abilities, settings: &Settings) -> Arc<SqlStore> {
    let links = |most| Links::new(options.clone(), most);
    let stocks = links(CONNECTIONS);
    let sql = Sql::new(links(CONNECTIONS), links(STEADY), abilities);
    handle(sql, [stocks.clone(), stocks.clone(), stocks], settings)
}

/// Makes a handle whose stocks have these connections.
fn handle(sql: Arc<Sql>, links: [Links; 3], settings: &Settings) -> Arc<SqlStore> {
    let stocks = stocks(Arc::clone(&sql), &settings.prefix, links);
    Arc::new(Records::new(sql, &settings.prefix, settings.call_timeout).with_stocks(Arc::new(stocks)))
}

/// Opens SQLite. Opens the file on first use, and creates it if it is missing. A database in memory
/// is refused then.
#[must_use]
#[cfg(feature = "sqlite")]
pub fn sqlite(options: sqlx::sqlite::SqliteConnectOptions, settings: &Settings) -> Arc<SqlStore> {
    use sqlx::sqlite::{SqliteJournalMode, SqliteSynchronous};

    let options = options
        .create_if_missing(true)
        .journal_mode(SqliteJournalMode::Wal)
        .synchronous(SqliteSynchronous::Full)
        .busy_timeout(BUSY);
    // SQLite has one writer at a time. Those of this process queue for the connection, and are
    // woken; SQLite itself would poll. Renewals go first.
    let options = Options::Sqlite(Box::new(options));
    let [steady, reads, audits] = [(); 3].map(|()| Links::new(options.clone(), 1));
    let abilities = Abilities { name: "the SQLite store", ..ABILITIES };
    let links = steady.behind();
    handle(Sql::new(links.clone(), steady, abilities), [links, reads, audits], settings)
}

/// Time for which SQLite itself waits for another process that writes.
#[cfg(feature = "sqlite")]
const BUSY: Duration = Duration::from_millis(500);
