//! [`Arg`] and [`Row`]: what statements take and return, in every database.

use sqlx::Row as _;
#[cfg(feature = "mysql")]
use sqlx::mysql::MySqlRow;
#[cfg(feature = "postgres")]
use sqlx::postgres::PgRow;
#[cfg(feature = "sqlite")]
use sqlx::sqlite::SqliteRow;

use super::written::Written;

/// Reads a number from a row of any database.
macro_rules! get {
    ($row:expr, $at:expr) => {
        match $row {
            #[cfg(feature = "sqlite")]
            Row::Sqlite(row) => row.try_get($at),
            #[cfg(feature = "postgres")]
            Row::Postgres(row) => row.try_get($at),
            #[cfg(feature = "mysql")]
            Row::MySql(row) => row.try_get($at),
            #[cfg(feature = "mysql")]
            Row::Updated(_) => Err(sqlx::Error::ColumnIndexOutOfBounds { index: $at, len: 0 }),
        }
    };
}

/// A value that is bound to a statement.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Arg<'a> {
    Int(i64),
    Maybe(Option<i64>),
    Text(&'a str),
    /// Names of rows.
    Names(&'a [&'a str]),
    /// Rows to write.
    Rows(&'a [Written<'a>]),
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
#[cfg(any(feature = "postgres", feature = "sqlite"))]
macro_rules! query {
    ($text:expr, $args:expr) => {
        $args.iter().fold(sqlx::query($text), |query, arg| match *arg {
            Arg::Int(number) => query.bind(number),
            Arg::Maybe(number) => query.bind(number),
            Arg::Text(text) => query.bind(text),
            Arg::Names(names) => query.bind(crate::plumbing::names_as_json(names)),
            Arg::Rows(rows) => query.bind(crate::plumbing::rows_as_json(rows)),
        })
    };
}

#[cfg(any(feature = "postgres", feature = "sqlite"))]
pub(crate) use query;

/// A row of the result of a statement.
pub(crate) enum Row {
    #[cfg(feature = "sqlite")]
    Sqlite(Box<SqliteRow>),
    #[cfg(feature = "postgres")]
    Postgres(Box<PgRow>),
    #[cfg(feature = "mysql")]
    MySql(Box<MySqlRow>),
    /// A row was updated: a one, and the time.
    #[cfg(feature = "mysql")]
    Updated([i64; 2]),
}

impl Row {
    pub(crate) fn int(&self, at: usize) -> Result<i64, sqlx::Error> {
        #[cfg(feature = "mysql")]
        if let Row::Updated(numbers) = self
            && let Some(number) = numbers.get(at)
        {
            return Ok(*number);
        }
        get!(self, at)
    }

    pub(crate) fn maybe_int(&self, at: usize) -> Result<Option<i64>, sqlx::Error> {
        get!(self, at)
    }

    pub(crate) fn maybe_text(&self, at: usize) -> Result<Option<String>, sqlx::Error> {
        match self {
            #[cfg(feature = "sqlite")]
            Row::Sqlite(row) => row.try_get(at),
            #[cfg(feature = "postgres")]
            Row::Postgres(row) => row.try_get(at),
            #[cfg(feature = "mysql")]
            Row::Updated(_) => Ok(None),
            // Names are bytes there.
            #[cfg(feature = "mysql")]
            Row::MySql(row) => {
                let bytes: Option<Vec<u8>> = row.try_get_unchecked(at)?;
                let text = bytes.map(String::from_utf8).transpose();
                text.map_err(|error| sqlx::Error::Decode(error.into()))
            }
        }
    }
}
