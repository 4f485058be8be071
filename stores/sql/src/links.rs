//! [`Links`]: a manager's own connections.
//!
//! A pool of sqlx asks the server once more after each use of a connection, and keeps one whose
//! statement was given up. These are closed instead, so that no later step waits for an answer that
//! may never come.

use std::sync::Arc;

use lock_core::internal::sync::{Mutex, lock};
use sqlx::ConnectOptions;
#[cfg(feature = "postgres")]
use sqlx::postgres::{PgConnectOptions, PgConnection};
#[cfg(feature = "sqlite")]
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::plumbing::{Arg, Row, query};

/// How to connect.
#[derive(Clone, Debug)]
pub(crate) enum Options {
    #[cfg(feature = "sqlite")]
    Sqlite(Box<SqliteConnectOptions>),
    #[cfg(feature = "postgres")]
    Postgres(Box<PgConnectOptions>),
}

impl Options {
    /// Returns the name of the database in errors.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            #[cfg(feature = "sqlite")]
            Self::Sqlite(_) => "SQLite",
            #[cfg(feature = "postgres")]
            Self::Postgres(_) => "PostgreSQL",
        }
    }

    /// Returns the statement that begins a transaction that writes.
    pub(crate) fn begin(&self) -> &'static str {
        match self {
            #[cfg(feature = "sqlite")]
            Self::Sqlite(_) => "BEGIN IMMEDIATE",
            #[cfg(feature = "postgres")]
            Self::Postgres(_) => "BEGIN",
        }
    }

    async fn connect(&self) -> Result<Connection, sqlx::Error> {
        Ok(match self {
            #[cfg(feature = "sqlite")]
            Self::Sqlite(options) => Connection::Sqlite(options.connect().await?),
            #[cfg(feature = "postgres")]
            Self::Postgres(options) => {
                let mut connection = options.connect().await?;
                sqlx::Executor::execute(&mut connection, SESSION).await?;
                Connection::Postgres(connection)
            }
        })
    }
}

/// Settings of a session of PostgreSQL. A row that somebody has locked is waited for no longer than
/// a second, and a stalled program keeps a row locked no longer than five. A grant that a crash
/// undoes would let two in, so a commit waits for the disk.
#[cfg(feature = "postgres")]
const SESSION: &str = "\
SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL READ COMMITTED;
SET lock_timeout = '1s';
SET idle_in_transaction_session_timeout = '5s';
SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') = 'off'";

#[derive(Debug)]
enum Connection {
    #[cfg(feature = "sqlite")]
    Sqlite(SqliteConnection),
    #[cfg(feature = "postgres")]
    Postgres(PgConnection),
}

/// At most a number of connections to one database, made when they are needed.
#[derive(Debug)]
pub(crate) struct Links {
    pub(crate) options: Options,
    idle: Mutex<Vec<Connection>>,
    /// Callers get a connection in the order in which they ask.
    permits: Arc<Semaphore>,
}

impl Links {
    pub(crate) fn new(options: Options, most: usize) -> Arc<Self> {
        Arc::new(Self { options, idle: Mutex::default(), permits: Arc::new(Semaphore::new(most)) })
    }

    /// Waits for a connection.
    pub(crate) async fn take(self: &Arc<Self>) -> Result<Link, sqlx::Error> {
        let permit = Arc::clone(&self.permits).acquire_owned().await;
        let permit = permit.map_err(|_| sqlx::Error::PoolClosed)?;
        let idle = lock(&self.idle).pop();
        let connection = match idle {
            Some(connection) => connection,
            None => self.options.connect().await?,
        };
        Ok(Link { connection: Some(connection), links: Arc::clone(self), _permit: permit })
    }
}

/// A connection in use. It is closed on drop, unless it is given back.
#[derive(Debug)]
pub(crate) struct Link {
    connection: Option<Connection>,
    links: Arc<Links>,
    _permit: OwnedSemaphorePermit,
}

impl Link {
    /// Runs one statement.
    pub(crate) async fn rows(&mut self, text: &str, args: &[Arg<'_>]) -> Result<Vec<Row>, sqlx::Error> {
        let answer = match &mut self.connection {
            #[cfg(feature = "sqlite")]
            Some(Connection::Sqlite(connection)) => query!(text, args)
                .fetch_all(connection)
                .await
                .map(|rows| rows.into_iter().map(|row| Row::Sqlite(Box::new(row))).collect()),
            #[cfg(feature = "postgres")]
            Some(Connection::Postgres(connection)) => query!(text, args)
                .fetch_all(connection)
                .await
                .map(|rows| rows.into_iter().map(|row| Row::Postgres(Box::new(row))).collect()),
            None => Err(sqlx::Error::PoolClosed),
        };
        answer.inspect_err(|error| self.failed(error))
    }

    /// Runs any number of statements without arguments.
    pub(crate) async fn run(&mut self, text: &str) -> Result<(), sqlx::Error> {
        use sqlx::Executor;

        let answer = match &mut self.connection {
            #[cfg(feature = "sqlite")]
            Some(Connection::Sqlite(connection)) => connection.execute(text).await.map(drop),
            #[cfg(feature = "postgres")]
            Some(Connection::Postgres(connection)) => connection.execute(text).await.map(drop),
            None => Err(sqlx::Error::PoolClosed),
        };
        answer.inspect_err(|error| self.failed(error))
    }

    /// If the server has gone, so have the other connections.
    fn failed(&self, error: &sqlx::Error) {
        if !matches!(error, sqlx::Error::Database(_)) {
            let gone = std::mem::take(&mut *lock(&self.links.idle));
            drop(gone);
        }
    }

    /// Lets others use the connection. It must not be in a transaction.
    pub(crate) fn give_back(mut self) {
        if let Some(connection) = self.connection.take() {
            lock(&self.links.idle).push(connection);
        }
    }
}
