//! PostgreSQL's side of a measurement: the commit that stands for a PING, the count of statements,
//! a transaction that stays open, and the lock that programs write by hand.

use sqlx::postgres::{PgConnectOptions, PgConnection};
use sqlx::{ConnectOptions, Connection, Executor};

/// Rows that the commits update in turn: as many as `latency` has keys.
const ROWS: i32 = 1000;

const TABLES: &str = "
CREATE TABLE IF NOT EXISTS lock_bench_ping (id INT PRIMARY KEY, n BIGINT NOT NULL) WITH (fillfactor = 50);
INSERT INTO lock_bench_ping SELECT id, 0 FROM generate_series(0, 999) AS id ON CONFLICT DO NOTHING;
CREATE TABLE IF NOT EXISTS lock_bench_raw (name TEXT PRIMARY KEY)";

/// The commit that others are compared with.
const COMMIT: &str = "UPDATE lock_bench_ping SET n = n + 1 WHERE id = $1";

/// Statements that the server has executed for clients, but for those of [`Commits`].
const STATEMENTS: &str = "SELECT COALESCE(sum(calls), 0)::bigint FROM pg_stat_statements \
                          WHERE query !~ 'lock_bench_ping|pg_stat_statements'";

/// The lock by hand, between `BEGIN` and `COMMIT`.
const LOCK: &str = "SELECT name FROM lock_bench_raw WHERE name = $1 FOR UPDATE";
const INSERT: &str = "INSERT INTO lock_bench_raw (name) VALUES ($1) ON CONFLICT DO NOTHING";

#[expect(clippy::needless_pass_by_value, reason = "for `map_err`")]
fn said(error: sqlx::Error) -> String {
    format!("PostgreSQL: {error}")
}

async fn connect(url: &str) -> Result<PgConnection, String> {
    let options: PgConnectOptions = url.parse().map_err(said)?;
    let mut connection = options.application_name("lock-bench").connect().await.map_err(said)?;
    connection.execute("SET synchronous_commit = on").await.map_err(said)?;
    Ok(connection)
}

/// A connection that commits, and asks for the server's counters.
#[derive(Debug)]
pub(crate) struct Commits {
    connection: PgConnection,
    next: i32,
    counts: bool,
}

impl Commits {
    pub(crate) async fn connect(url: &str) -> Result<Self, String> {
        let mut connection = connect(url).await?;
        connection.execute("SET client_min_messages = warning").await.map_err(said)?;
        connection.execute(TABLES).await.map_err(said)?;
        // Not every server has it, or lets everybody make it.
        let _ = connection.execute("CREATE EXTENSION IF NOT EXISTS pg_stat_statements").await;
        let counts = connection.execute(STATEMENTS).await.is_ok();
        Ok(Self { connection, next: 0, counts })
    }

    /// Updates one row, and waits until that is on the disk.
    pub(crate) async fn commit(&mut self) -> Result<(), String> {
        self.next = (self.next + 1) % ROWS;
        sqlx::query(COMMIT).bind(self.next).execute(&mut self.connection).await.map(drop).map_err(said)
    }

    /// Returns the number of statements of all other connections so far; `None` if the server does
    /// not count them.
    pub(crate) async fn statements(&mut self) -> Result<Option<u64>, String> {
        if !self.counts {
            return Ok(None);
        }
        let count: i64 =
            sqlx::query_scalar(STATEMENTS).fetch_one(&mut self.connection).await.map_err(said)?;
        Ok(u64::try_from(count).ok())
    }
}

/// A transaction that keeps its snapshot, so that no version of a row that dies meanwhile can go.
/// It ends on drop, with its connection.
#[derive(Debug)]
pub(crate) struct Snapshot(PgConnection);

impl Snapshot {
    pub(crate) async fn open(url: &str) -> Result<Self, String> {
        let mut connection = connect(url).await?;
        let begin = "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM lock_bench_ping";
        connection.execute(begin).await.map_err(said)?;
        Ok(Self(connection))
    }

    pub(crate) async fn close(self) -> Result<(), String> {
        self.0.close().await.map_err(said)
    }
}

/// One row as a lock: `BEGIN; SELECT … FOR UPDATE; COMMIT`, without lease, token or time-out.
/// [`Commits`] has made its table. Each clone has a connection, as each task of a program would.
#[derive(Debug)]
pub(crate) struct RowLock {
    url: String,
    name: String,
    connection: Option<Box<PgConnection>>,
}

impl Clone for RowLock {
    fn clone(&self) -> Self {
        Self::new(&self.url, &self.name)
    }
}

impl RowLock {
    pub(crate) fn new(url: &str, name: &str) -> Self {
        Self { url: url.to_owned(), name: name.to_owned(), connection: None }
    }

    pub(crate) async fn acquire(&mut self) -> Result<(), String> {
        if self.connection.is_none() {
            let mut connection = connect(&self.url).await?;
            sqlx::query(INSERT).bind(&self.name).execute(&mut connection).await.map_err(said)?;
            self.connection = Some(Box::new(connection));
        }
        let connection = self.connection.as_mut().ok_or("no connection")?;
        connection.execute("BEGIN").await.map_err(said)?;
        sqlx::query(LOCK).bind(&self.name).fetch_one(&mut **connection).await.map(drop).map_err(said)
    }

    pub(crate) async fn release(&mut self) -> Result<(), String> {
        let connection = self.connection.as_mut().ok_or("a lock was released that is not held")?;
        connection.execute("COMMIT").await.map(drop).map_err(said)
    }
}
