//! [`Arg`] and [`Row`]: what statements take and return, in both databases.

use sqlx::Row as _;
#[cfg(feature = "postgres")]
use sqlx::postgres::PgRow;
#[cfg(feature = "sqlite")]
use sqlx::sqlite::SqliteRow;

/// Reads a value from a row of either database.
macro_rules! get {
    ($row:expr, $at:expr) => {
        match $row {
            #[cfg(feature = "sqlite")]
            Row::Sqlite(row) => row.try_get($at),
            #[cfg(feature = "postgres")]
            Row::Postgres(row) => row.try_get($at),
        }
    };
}

/// A value that is bound to a statement.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Arg<'a> {
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
pub(crate) enum Row {
    #[cfg(feature = "sqlite")]
    Sqlite(Box<SqliteRow>),
    #[cfg(feature = "postgres")]
    Postgres(Box<PgRow>),
}

impl Row {
    pub(crate) fn int(&self, at: usize) -> Result<i64, sqlx::Error> {
        get!(self, at)
    }

    pub(crate) fn maybe_int(&self, at: usize) -> Result<Option<i64>, sqlx::Error> {
        get!(self, at)
    }

    pub(crate) fn maybe_text(&self, at: usize) -> Result<Option<String>, sqlx::Error> {
        get!(self, at)
    }
}
