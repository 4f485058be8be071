//! [`Database`] and [`Work`]: one interface to both databases.

use std::borrow::Cow;
#[cfg(feature = "sqlite")]
use std::sync::Arc;
use std::time::Duration;

use sqlx::Row as _;
#[cfg(feature = "postgres")]
use sqlx::postgres::{PgPool, PgRow, Postgres};
#[cfg(feature = "sqlite")]
use sqlx::sqlite::{Sqlite, SqlitePool, SqliteRow};

/// Runs the same code for either database.
macro_rules! with {
    ($of:ident, $value:expr, $inner:pat => $body:expr) => {
        match $value {
            #[cfg(feature = "sqlite")]
            $of::Sqlite($inner) => $body,
            #[cfg(feature = "postgres")]
            $of::Postgres($inner) => $body,
        }
    };
}

/// A value that is bound to a statement.
#[derive(Clone, Copy, Debug)]
pub enum Arg<'a> {
    Int(i64),
    Maybe(Option<i64>),
    Text(&'a str),
}

impl From<i64> for Arg<'_> {
    fn from(number: i64) -> Self {
        Self::Int(number)
    }
}

impl From<Option<i64>> for Arg<'_> {
    fn from(number: Option<i64>) -> Self {
        Self::Maybe(number)
    }
}

impl<'a> From<&'a str> for Arg<'a> {
    fn from(text: &'a str) -> Self {
        Self::Text(text)
    }
}

/// Builds a query with its arguments; the database is inferred from the context.
macro_rules! query {
    ($text:expr, $args:expr) => {
        $args.iter().fold(sqlx::query($text), |query, arg| match *arg {
            Arg::Int(number) => query.bind(number),
            Arg::Maybe(number) => query.bind(number),
            Arg::Text(text) => query.bind(text),
        })
    };
}

pub(crate) use query;

/// A row of the result of a statement.
pub enum Row {
    #[cfg(feature = "sqlite")]
    Sqlite(Box<SqliteRow>),
    #[cfg(feature = "postgres")]
    Postgres(Box<PgRow>),
}

impl Row {
    pub fn int(&self, at: usize) -> Result<i64, sqlx::Error> {
        with!(Row, self, row => row.try_get(at))
    }

    pub fn maybe_int(&self, at: usize) -> Result<Option<i64>, sqlx::Error> {
        with!(Row, self, row => row.try_get(at))
    }

    pub fn maybe_text(&self, at: usize) -> Result<Option<String>, sqlx::Error> {
        with!(Row, self, row => row.try_get(at))
    }
}

/// A connection pool of the user.
#[derive(Clone)]
pub enum Database {
    /// The pool, and a mutex for writers. SQLite allows one writer at a time, so those of this
    /// process queue here and are woken. SQLite's busy handler would sleep and poll instead.
    #[cfg(feature = "sqlite")]
    Sqlite((SqlitePool, Arc<tokio::sync::Mutex<()>>)),
    #[cfg(feature = "postgres")]
    Postgres(PgPool),
}

impl Database {
    pub fn name(&self) -> &'static str {
        match self {
            #[cfg(feature = "sqlite")]
            Self::Sqlite(_) => "SQLite",
            #[cfg(feature = "postgres")]
            Self::Postgres(_) => "PostgreSQL",
        }
    }

    /// Runs one statement that reads, without a transaction.
    pub async fn rows(&self, text: &str, args: &[Arg<'_>]) -> Result<Vec<Row>, sqlx::Error> {
        Ok(match self {
            #[cfg(feature = "sqlite")]
            Self::Sqlite((pool, _)) => {
                let rows = query!(text, args).fetch_all(pool).await?;
                rows.into_iter().map(|row| Row::Sqlite(Box::new(row))).collect()
            }
            #[cfg(feature = "postgres")]
            Self::Postgres(pool) => {
                let rows = query!(text, args).fetch_all(pool).await?;
                rows.into_iter().map(|row| Row::Postgres(Box::new(row))).collect()
            }
        })
    }

    /// Begins a transaction that writes. PostgreSQL ends it by itself if it is idle for `limit`.
    pub async fn begin(&self, limit: Duration) -> Result<Work, sqlx::Error> {
        match self {
            #[cfg(feature = "sqlite")]
            Self::Sqlite((pool, turn)) => {
                let turn = Arc::clone(turn).lock_owned().await;
                let transaction = begin(pool.clone(), "BEGIN IMMEDIATE").await?;
                let _ = limit;
                Ok(Work::Sqlite((transaction, turn)))
            }
            #[cfg(feature = "postgres")]
            Self::Postgres(pool) => {
                // A client that stalls or can't be reached must not keep rows locked, and its
                // COMMIT must not arrive too late. `statement_timeout` would not do: it would end a
                // COMMIT's wait for a standby, and report success.
                let limit = limit.as_millis().clamp(1, i32::MAX as u128);
                let statement = format!(
                    "BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL lock_timeout = {limit}; \
                     SET LOCAL idle_in_transaction_session_timeout = {limit}"
                );
                Ok(Work::Postgres((begin(pool.clone(), statement).await?, ())))
            }
        }
    }
}

/// Begins a transaction in a task, which goes on if the future is dropped. Otherwise sqlx 0.8 could
/// leave the transaction open, on a connection that others use next. That happens if the future is
/// dropped when the database has begun, but sqlx does not know it yet (sqlx issues 4385 and 4393).
/// A transaction that is no longer wanted is rolled back.
async fn begin<D: sqlx::Database>(
    pool: sqlx::Pool<D>,
    statement: impl Into<Cow<'static, str>> + Send + 'static,
) -> Result<sqlx::Transaction<'static, D>, sqlx::Error> {
    let begun = tokio::spawn(async move { pool.begin_with(statement).await });
    begun.await.map_err(|_| sqlx::Error::WorkerCrashed)?
}

/// A transaction that writes. If it is dropped, it is rolled back before its connection is used
/// again.
pub enum Work {
    #[cfg(feature = "sqlite")]
    Sqlite((sqlx::Transaction<'static, Sqlite>, tokio::sync::OwnedMutexGuard<()>)),
    #[cfg(feature = "postgres")]
    Postgres((sqlx::Transaction<'static, Postgres>, ())),
}

impl Work {
    /// Runs a statement and returns how many rows it changed.
    pub async fn execute(&mut self, text: &str, args: &[Arg<'_>]) -> Result<u64, sqlx::Error> {
        with!(Work, self, (transaction, _) => {
            Ok(query!(text, args).execute(&mut **transaction).await?.rows_affected())
        })
    }

    /// Runs any number of statements without arguments.
    pub async fn run(&mut self, text: &str) -> Result<(), sqlx::Error> {
        with!(Work, self, (transaction, _) => {
            sqlx::Executor::execute(&mut **transaction, text).await?;
            Ok(())
        })
    }

    pub async fn rows(&mut self, text: &str, args: &[Arg<'_>]) -> Result<Vec<Row>, sqlx::Error> {
        Ok(match self {
            #[cfg(feature = "sqlite")]
            Self::Sqlite((transaction, _)) => {
                let rows = query!(text, args).fetch_all(&mut **transaction).await?;
                rows.into_iter().map(|row| Row::Sqlite(Box::new(row))).collect()
            }
            #[cfg(feature = "postgres")]
            Self::Postgres((transaction, ())) => {
                let rows = query!(text, args).fetch_all(&mut **transaction).await?;
                rows.into_iter().map(|row| Row::Postgres(Box::new(row))).collect()
            }
        })
    }

    pub async fn commit(self) -> Result<(), sqlx::Error> {
        with!(Work, self, (transaction, _turn) => transaction.commit().await)
    }
}
