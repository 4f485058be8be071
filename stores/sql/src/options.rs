//! [`Options`]: how to connect to a database, and the settings of a session there.

use sqlx::ConnectOptions;
#[cfg(feature = "mysql")]
use sqlx::mysql::{MySqlConnectOptions, MySqlConnection};
#[cfg(feature = "postgres")]
use sqlx::postgres::{PgConnectOptions, PgConnection};
#[cfg(feature = "sqlite")]
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};

#[cfg(any(feature = "postgres", feature = "sqlite"))]
use crate::plumbing::literal;
use crate::plumbing::{Arg, filled};
#[cfg(feature = "mysql")]
use crate::plumbing::{Row, mysql_literal};

/// How to connect.
#[derive(Clone, Debug)]
pub(crate) enum Options {
    #[cfg(feature = "sqlite")]
    Sqlite(Box<SqliteConnectOptions>),
    #[cfg(feature = "postgres")]
    Postgres(Box<PgConnectOptions>),
    /// PostgreSQL behind a pooler, where each transaction may be in another session. So settings
    /// are those of a transaction, no statement is prepared, and nobody listens.
    #[cfg(feature = "postgres")]
    Pooled(Box<PgConnectOptions>),
    /// MariaDB or MySQL. Only an update that is alone in its message is prepared there. A message
    /// of several statements has to be text, and round trips take longer than reading it.
    #[cfg(feature = "mysql")]
    MySql(Box<MySqlConnectOptions>),
}

impl Options {
    /// Returns the name of the database in errors.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            #[cfg(feature = "sqlite")]
            Self::Sqlite(_) => "SQLite",
            #[cfg(feature = "postgres")]
            Self::Postgres(_) | Self::Pooled(_) => "PostgreSQL",
            #[cfg(feature = "mysql")]
            Self::MySql(_) => "MySQL",
        }
    }

    /// Returns the name and the place of the database, in errors about connections.
    pub(crate) fn place(&self) -> String {
        let place = match self {
            #[cfg(feature = "sqlite")]
            Self::Sqlite(options) => options.get_filename().display().to_string(),
            #[cfg(feature = "postgres")]
            Self::Postgres(options) | Self::Pooled(options) => {
                let socket = options.get_socket().map(|folder| folder.display().to_string());
                let host = socket.unwrap_or_else(|| options.get_host().to_owned());
                format!("{host}:{}", options.get_port())
            }
            #[cfg(feature = "mysql")]
            Self::MySql(options) => {
                let socket = options.get_socket().map(|file| file.display().to_string());
                socket.unwrap_or_else(|| format!("{}:{}", options.get_host(), options.get_port()))
            }
        };
        format!("{} at {place}", self.name())
    }

    /// Returns the statement that begins a transaction that writes.
    pub(crate) fn begin(&self) -> &'static str {
        match self {
            #[cfg(feature = "sqlite")]
            Self::Sqlite(_) => "BEGIN IMMEDIATE",
            #[cfg(feature = "postgres")]
            Self::Postgres(_) => "BEGIN",
            #[cfg(feature = "postgres")]
            Self::Pooled(_) => BEGIN,
            #[cfg(feature = "mysql")]
            Self::MySql(_) => "SET SESSION wait_timeout = 1; BEGIN",
        }
    }

    /// Returns the statements that commit a transaction.
    pub(crate) fn commit(&self) -> &'static str {
        match self {
            #[cfg(feature = "mysql")]
            Self::MySql(_) => MYSQL_COMMIT,
            #[cfg(any(feature = "postgres", feature = "sqlite"))]
            _ => "COMMIT",
        }
    }

    /// Returns the statements that undo a transaction.
    pub(crate) fn roll_back(&self) -> &'static str {
        match self {
            #[cfg(feature = "mysql")]
            Self::MySql(_) => MYSQL_ROLL_BACK,
            #[cfg(any(feature = "postgres", feature = "sqlite"))]
            _ => "ROLLBACK",
        }
    }

    /// Puts the arguments into a statement, for a message that has none.
    pub(crate) fn filled(&self, statement: &str, args: &[Arg<'_>]) -> String {
        match self {
            #[cfg(feature = "mysql")]
            Self::MySql(_) => filled(statement, args, mysql_literal),
            #[cfg(any(feature = "postgres", feature = "sqlite"))]
            _ => filled(statement, args, literal),
        }
    }

    /// Whether it is a server, whose index limits the length of names, and which is asked over a
    /// network.
    pub(crate) fn is_server(&self) -> bool {
        match self {
            #[cfg(feature = "sqlite")]
            Self::Sqlite(_) => false,
            #[cfg(feature = "postgres")]
            Self::Postgres(_) | Self::Pooled(_) => true,
            #[cfg(feature = "mysql")]
            Self::MySql(_) => true,
        }
    }

    /// Whether it can notify other sessions.
    pub(crate) fn notifies(&self) -> bool {
        match self {
            #[cfg(feature = "postgres")]
            Self::Postgres(_) | Self::Pooled(_) => true,
            #[cfg(feature = "mysql")]
            Self::MySql(_) => false,
            #[cfg(feature = "sqlite")]
            Self::Sqlite(_) => false,
        }
    }

    /// Returns the options of PostgreSQL, if a session of it can listen.
    #[cfg(feature = "postgres")]
    pub(crate) fn sessions(&self) -> Option<&PgConnectOptions> {
        match self {
            Self::Postgres(options) => Some(options),
            Self::Pooled(_) => None,
            #[cfg(feature = "sqlite")]
            Self::Sqlite(_) => None,
            #[cfg(feature = "mysql")]
            Self::MySql(_) => None,
        }
    }

    pub(crate) async fn connect(&self) -> Result<Connection, sqlx::Error> {
        Ok(match self {
            #[cfg(feature = "sqlite")]
            Self::Sqlite(options) => {
                use sqlx::Row as _;

                let mut connection = options.connect().await?;
                let main = sqlx::query("PRAGMA database_list").fetch_one(&mut connection).await?;
                if main.try_get::<&str, _>(2)?.is_empty() {
                    return Err(sqlx::Error::Configuration(IN_MEMORY.into()));
                }
                Connection::Sqlite(connection)
            }
            #[cfg(feature = "postgres")]
            Self::Postgres(options) => {
                let mut connection = options.connect().await?;
                sqlx::Executor::execute(&mut connection, SESSION).await?;
                Connection::Postgres(connection)
            }
            #[cfg(feature = "postgres")]
            Self::Pooled(options) => {
                Connection::Pooled { connection: options.connect().await?, has_begun: false }
            }
            #[cfg(feature = "mysql")]
            Self::MySql(options) => {
                let mut connection = options.connect().await?;
                let rows = sqlx::Executor::fetch_all(&mut connection, MYSQL_SESSION).await?;
                let row = rows.into_iter().next().ok_or(sqlx::Error::RowNotFound)?;
                check_mysql(&Row::MySql(Box::new(row)))?;
                Connection::MySql(connection)
            }
        })
    }
}

/// Settings of a session of PostgreSQL, or of one transaction. A row that somebody has locked is
/// waited for no longer than a second, and a stalled program keeps a row locked no longer than
/// that. A session whose client has given up ends soon, instead of waiting for rows: a server for
/// Linux can look, from version 14 on. A grant that a crash undoes would let two in, so a commit
/// waits for the disk. The time-out of a statement would end a commit's wait for a standby, and
/// report success.
#[cfg(feature = "postgres")]
macro_rules! settings {
    ($local:literal) => {
        concat!(
            "SELECT set_config('lock_timeout', '1s', ",
            $local,
            "), set_config('idle_in_transaction_session_timeout', '1s', ",
            $local,
            "), set_config('statement_timeout', '0', ",
            $local,
            "), CASE WHEN current_setting('client_connection_check_interval', true) IS NOT NULL \
             AND version() LIKE '%linux%' THEN set_config('client_connection_check_interval', '200ms', ",
            $local,
            ") END, set_config('synchronous_commit', CASE current_setting('synchronous_commit') WHEN 'off' THEN 'on' \
             ELSE current_setting('synchronous_commit') END, ",
            $local,
            ")"
        )
    };
}

/// The settings of a session.
#[cfg(feature = "postgres")]
const SESSION: &str = concat!("SET default_transaction_isolation = 'read committed'; ", settings!("false"));

/// Begins a transaction with its own settings.
#[cfg(feature = "postgres")]
const BEGIN: &str = concat!("BEGIN ISOLATION LEVEL READ COMMITTED; ", settings!("true"));

/// Comes before a statement in the same message: together they are a transaction. Has one row.
#[cfg(feature = "postgres")]
pub(crate) const ALONE: &str =
    concat!("SET TRANSACTION ISOLATION LEVEL READ COMMITTED; ", settings!("true"), "; ");

/// Settings of a session of MariaDB or MySQL, as for PostgreSQL; then what only the operator of the
/// server can set. A program that is stalled within a transaction has a time-out of its own there,
/// which [`Options::begin`] sets.
#[cfg(feature = "mysql")]
const MYSQL_SESSION: &str = "SET SESSION sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION', time_zone = '+00:00', autocommit = 1, \
     completion_type = 0, sql_select_limit = 18446744073709551615, sql_big_selects = 1, \
     /*M! max_statement_time = 0, */ innodb_lock_wait_timeout = 1, lock_wait_timeout = 1, wait_timeout = 3600, \
     net_read_timeout = 5, net_write_timeout = 5, NAMES utf8mb4; \
     SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED, READ WRITE; \
     SELECT CAST(@@innodb_flush_log_at_trx_commit AS SIGNED), CAST(@@log_bin AS SIGNED), \
     CAST(@@sync_binlog AS SIGNED), CAST(SLEEP(0.001) AS SIGNED), CAST(SYSDATE(6) > NOW(6) AS SIGNED)";

/// Undoes a transaction of MariaDB or MySQL.
#[cfg(feature = "mysql")]
pub(crate) const MYSQL_ROLL_BACK: &str = "ROLLBACK; DO RELEASE_ALL_LOCKS(); SET SESSION wait_timeout = 3600";

/// Commits a transaction of MariaDB or MySQL, and lets the next one go on.
#[cfg(feature = "mysql")]
pub(crate) const MYSQL_COMMIT: &str = "COMMIT; DO RELEASE_ALL_LOCKS(); SET SESSION wait_timeout = 3600";

/// Refuses a server with settings that let two in.
#[cfg(feature = "mysql")]
fn check_mysql(row: &Row) -> Result<(), sqlx::Error> {
    let refuse = |what: String| Err(sqlx::Error::Configuration(what.into()));
    let (flush, has_log, sync, is_clock) = (row.int(0)?, row.int(1)?, row.int(2)?, row.int(4)?);
    if flush != 1 {
        return refuse(format!(
            "`innodb_flush_log_at_trx_commit` is {flush}: a crash undoes grants of the last second, and their locks \
             get second holders; set it to 1 at the server"
        ));
    }
    if has_log == 1 && sync != 1 {
        return refuse(format!(
            "`sync_binlog` is {sync}, and the binary log is on: a power failure undoes grants that are not in the \
             log, and their locks get second holders; set it to 1 at the server"
        ));
    }
    if is_clock != 1 {
        return refuse(
            "the server runs with `--sysdate-is-now`: SYSDATE does not say the time after a wait for a row; start it \
             without this option"
                .to_owned(),
        );
    }
    Ok(())
}

#[cfg(feature = "sqlite")]
const IN_MEMORY: &str =
    "a database in memory is seen by one connection only; name a file, or use the store `memory:`";

/// A connection to a database.
#[derive(Debug)]
pub(crate) enum Connection {
    #[cfg(feature = "sqlite")]
    Sqlite(SqliteConnection),
    #[cfg(feature = "postgres")]
    Postgres(PgConnection),
    /// To a pooler, which may have another session for the next message outside of a transaction.
    #[cfg(feature = "postgres")]
    Pooled { connection: PgConnection, has_begun: bool },
    #[cfg(feature = "mysql")]
    MySql(MySqlConnection),
}

impl Connection {
    /// Records whether a transaction has begun.
    pub(crate) fn set_begun(&mut self, begun: bool) {
        match self {
            #[cfg(feature = "sqlite")]
            Self::Sqlite(_) => {}
            #[cfg(feature = "postgres")]
            Self::Postgres(_) => {}
            #[cfg(feature = "postgres")]
            Self::Pooled { has_begun, .. } => *has_begun = begun,
            #[cfg(feature = "mysql")]
            Self::MySql(_) => {}
        }
        let _ = begun;
    }
}
