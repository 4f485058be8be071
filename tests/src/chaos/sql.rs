//! [`Sql`]: a database with locks, and what a stranger does to it.

use std::cell::RefCell;
use std::io;
use std::net::SocketAddr;
use std::str::FromStr;
use std::time::Duration;

use serde_json::Value;
use sqlx::postgres::PgConnectOptions;
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{ConnectOptions, PgConnection, SqliteConnection};
use tempfile::TempDir;
use tokio::runtime::Handle;
use tokio::time::timeout;

use super::observe::Observer;
use super::want::stored_keys;
use crate::clock::{now_nanos, whole_millis_since};
use crate::history::{Event, Log, Remains};
use crate::{PostgresServer, Proxy, ServerClock};

/// Maximum time for an answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// Maximum time in microseconds between a look at the rows and a step of the clock.
const SOON: i64 = 100_000;

/// The text of a row that the library did not write.
const FOREIGN: &str = "mine";

/// A database, and a connection to it that is independent of the library.
pub(super) struct Sql {
    // Before the database: connections end first.
    stranger: RefCell<Stranger>,
    database: Database,
}

enum Database {
    Postgres(Box<PostgresServer>),
    /// The folder of the file.
    Sqlite(TempDir),
}

impl Sql {
    pub(super) fn postgres(clock: &ServerClock, runtime: &Handle) -> Self {
        Self::of(Database::Postgres(Box::new(PostgresServer::start_with_clock(clock))), runtime)
    }

    pub(super) fn sqlite(runtime: &Handle) -> io::Result<Self> {
        let folder = tempfile::Builder::new().prefix("lock-sqlite-").tempdir()?;
        Ok(Self::of(Database::Sqlite(folder), runtime))
    }

    fn of(database: Database, runtime: &Handle) -> Self {
        let stranger = Stranger::new(database.url(), runtime, PATIENCE);
        Self { stranger: RefCell::new(stranger), database }
    }

    /// Returns the server, which SQLite does not have.
    pub(super) fn server(&mut self) -> Option<&mut PostgresServer> {
        match &mut self.database {
            Database::Postgres(server) => Some(server),
            Database::Sqlite(_) => None,
        }
    }

    pub(super) fn addr(&self) -> Option<SocketAddr> {
        match &self.database {
            Database::Postgres(server) => Some(server.addr()),
            Database::Sqlite(_) => None,
        }
    }

    /// Returns the URL that workers connect to.
    pub(super) fn url(&self, proxy: Option<&Proxy>) -> String {
        proxy.map_or_else(|| self.database.url(), |proxy| postgres_at(proxy.addr()))
    }

    /// Returns an action that asks the server for something harmless, on the way through the proxy.
    pub(super) fn ping(&self, proxy: &Proxy, within: Duration) -> impl FnMut() + Send + use<> {
        let runtime = self.stranger.borrow().runtime.clone();
        let mut way = Stranger::new(postgres_at(proxy.addr()), &runtime, within);
        move || drop(way.rows("SELECT 1"))
    }

    pub(super) fn observer(&self, within: Duration) -> impl Observer + use<> {
        let (url, runtime) = (self.database.url(), self.stranger.borrow().runtime.clone());
        let counts = matches!(self.database, Database::Postgres(_));
        Eyes { stranger: Stranger::new(url, &runtime, within), rows: self.database.rows(), counts }
    }

    fn rows(&self, text: &str) -> io::Result<Vec<Vec<String>>> {
        self.stranger.borrow_mut().rows(text)
    }

    /// Whether a statement that returns the changed rows has changed any.
    fn changes(&self, text: &str) -> io::Result<bool> {
        Ok(!self.rows(text)?.is_empty())
    }

    /// Deletes the row of a key that is held.
    pub(super) fn delete(&self, key: &str) -> io::Result<bool> {
        let held = self.database.held(key);
        self.changes(&format!("DELETE FROM lock_records WHERE {held} RETURNING name"))
    }

    /// Overwrites the row of a key that is held with foreign text.
    pub(super) fn overwrite(&self, key: &str) -> io::Result<bool> {
        let held = self.database.held(key);
        self.changes(&format!(
            "UPDATE lock_records SET record = '{FOREIGN}', version = '{FOREIGN}' WHERE {held} RETURNING name"
        ))
    }

    /// Deletes the rows with foreign text.
    pub(super) fn delete_foreign(&self) -> io::Result<()> {
        self.rows(&format!("DELETE FROM lock_records WHERE record = '{FOREIGN}'")).map(drop)
    }

    /// Deletes all rows.
    pub(super) fn flush(&self) -> io::Result<()> {
        self.rows(match self.database {
            Database::Postgres(_) => "TRUNCATE lock_records",
            Database::Sqlite(_) => "DELETE FROM lock_records",
        })
        .map(drop)
    }

    /// Locks all rows, in a transaction that stays open. In SQLite it locks the whole file.
    pub(super) fn lock_rows(&self) -> io::Result<()> {
        self.rows(match self.database {
            Database::Postgres(_) => "BEGIN; SELECT name FROM lock_records FOR UPDATE",
            Database::Sqlite(_) => "BEGIN IMMEDIATE",
        })
        .map(drop)
    }

    /// Locks all rows, if no hold in them is over. Such a hold would count again when the clock is
    /// stepped back, and nobody would release it.
    pub(super) fn lock_living_rows(&self) -> io::Result<bool> {
        let mut rows = self.rows(&format!("BEGIN; {} FOR UPDATE", self.database.rows()))?.into_iter();
        let is_alive = rows.all(|row| Row::of(&row).is_ok_and(|row| row.has_nothing_over()));
        if !is_alive {
            self.unlock_rows()?;
        }
        Ok(is_alive)
    }

    pub(super) fn unlock_rows(&self) -> io::Result<()> {
        self.rows("COMMIT").map(drop)
    }

    /// Makes the server close all other connections.
    pub(super) fn cut_clients(&self) -> io::Result<bool> {
        self.changes(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
             WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()",
        )
    }

    /// Returns the rows, and the transactions that are still open.
    pub(super) fn left(&self) -> io::Result<Vec<(Remains, Option<Duration>, String)>> {
        let mut found = Vec::new();
        for row in self.rows(&self.database.rows())? {
            let Row { name, now, until, kept_until, token, record } = Row::of(&row)?;
            let left = |end: i64| Some(Duration::from_micros(u64::try_from(end - now).unwrap_or(0)));
            found.push((Remains::Counter, left(kept_until.max(token)), name.clone()));
            if until > now || record == FOREIGN {
                found.push((Remains::Key, left(until), name));
            }
        }
        if let Database::Postgres(_) = self.database {
            let open =
                "SELECT application_name FROM pg_stat_activity WHERE state LIKE 'idle in transaction%'";
            for row in self.rows(open)? {
                found.push((Remains::Other, None, format!("an open transaction of {row:?}")));
            }
        }
        Ok(found)
    }
}

fn postgres_at(addr: SocketAddr) -> String {
    format!("postgres://test@{addr}/postgres")
}

impl Database {
    fn url(&self) -> String {
        match self {
            Self::Postgres(server) => server.url(),
            Self::Sqlite(folder) => format!("sqlite:{}", folder.path().join("locks.db").display()),
        }
    }

    /// Returns an expression for the database's clock, in microseconds.
    fn clock(&self) -> &'static str {
        match self {
            Self::Postgres(_) => "CAST(EXTRACT(EPOCH FROM clock_timestamp()) * 1000000 AS BIGINT)",
            Self::Sqlite(_) => "CAST(ROUND((JULIANDAY('now') - 2440587.5) * 86400000) AS INTEGER) * 1000",
        }
    }

    /// Returns a statement that reads all rows of locks.
    fn rows(&self) -> String {
        format!(
            "SELECT name, {}, until, kept_until, token, record FROM lock_records WHERE class = 'lock'",
            self.clock()
        )
    }

    /// Returns a condition for the row of a key, while one holder has it alone.
    fn held(&self, key: &str) -> String {
        format!(
            "class = 'lock' AND name = '{key}' AND until > {} AND record LIKE '{{\"held\"%'",
            self.clock()
        )
    }
}

/// A row of the table, as [`Database::rows`] reads it. Times are microseconds.
struct Row {
    name: String,
    now: i64,
    until: i64,
    kept_until: i64,
    token: i64,
    record: String,
}

impl Row {
    fn of(columns: &[String]) -> io::Result<Self> {
        let [name, now, until, kept_until, token, record] = columns else {
            return Err(io::Error::other(format!("not a row of a lock: {columns:?}")));
        };
        let number = |text: &String| text.parse().map_err(io::Error::other);
        Ok(Self {
            name: name.clone(),
            now: number(now)?,
            until: number(until)?,
            kept_until: number(kept_until)?,
            token: number(token)?,
            record: record.clone(),
        })
    }

    /// Whether no hold in the row has ended.
    fn has_nothing_over(&self) -> bool {
        let Ok(record) = serde_json::from_str::<Value>(&self.record) else { return false };
        let readers = record["readers"].as_array().into_iter().flatten();
        let mut holds = [&record["held"], &record["writer"]].into_iter().chain(readers);
        holds.all(|hold| hold[1].as_i64().is_none_or(|end| end > self.now + SOON))
    }

    /// Returns the event that the row was seen in a look that began at `at`.
    fn seen(&self, key: &str, at: u64, took: Duration) -> Event {
        let local = |end: u64| {
            let left = end.saturating_sub(u64::try_from(self.now).unwrap_or(0));
            at.saturating_add(left.saturating_mul(1000))
        };
        let entry = |entry: &Value| Some((entry[0].as_str()?.to_owned(), local(entry[1].as_u64()?)));
        let key = key.to_owned();
        let Ok(record) = serde_json::from_str::<Value>(&self.record) else {
            // Foreign text, which does not expire.
            let holders = vec![self.record.clone()];
            return Event::Seen { key, took, holders, expires: u64::MAX, queue: Vec::new() };
        };
        let list = |of: &Value| of.as_array().into_iter().flatten().filter_map(entry).collect::<Vec<_>>();
        let holders = [&record["held"], &record["writer"]].into_iter().filter_map(entry);
        let mut holders: Vec<(String, u64)> = holders.chain(list(&record["readers"])).collect();
        holders.retain(|(_, end)| *end > at);
        let expires = holders.iter().map(|(_, end)| *end).max().unwrap_or(0);
        let holders = holders.into_iter().map(|(owner, _)| owner).collect();
        Event::Seen { key, took, holders, expires, queue: list(&record["queue"]) }
    }
}

/// Looks at the rows.
struct Eyes {
    stranger: Stranger,
    /// The statement that reads them.
    rows: String,
    /// Whether the database counts transactions.
    counts: bool,
}

impl Observer for Eyes {
    fn look(&mut self, log: &Log) {
        // The database may be in trouble, and the table may be missing still.
        let began = now_nanos();
        let Ok(rows) = self.stranger.rows(&self.rows) else { return };
        let took = whole_millis_since(began);
        let rows: Vec<Row> = rows.iter().filter_map(|row| Row::of(row).ok()).collect();
        for (key, stored) in stored_keys() {
            log.say(&match rows.iter().find(|row| row.name == stored) {
                Some(row) => row.seen(key, began, took),
                None => {
                    let (key, holders, queue) = (key.to_owned(), Vec::new(), Vec::new());
                    Event::Seen { key, took, holders, expires: 0, queue }
                }
            });
        }
    }

    fn count(&mut self, log: &Log) {
        let total =
            "SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = current_database()";
        if self.counts
            && let Ok(rows) = self.stranger.rows(total)
            && let Some(total) = rows.iter().flatten().find_map(|total| total.parse().ok())
        {
            log.say(&Event::Commands { server: "postgres".to_owned(), total });
        }
    }
}

/// A connection that is made when it is needed. Its calls block the thread.
struct Stranger {
    url: String,
    runtime: Handle,
    /// Maximum time for an answer.
    within: Duration,
    open: Option<Client>,
}

enum Client {
    Postgres(PgConnection),
    Sqlite(SqliteConnection),
}

impl Stranger {
    fn new(url: String, runtime: &Handle, within: Duration) -> Self {
        Self { url, runtime: runtime.clone(), within, open: None }
    }

    /// Runs statements, and returns their rows as texts. A connection that fails is closed. If it
    /// was an older one, the statements run again on a new one.
    fn rows(&mut self, text: &str) -> io::Result<Vec<Vec<String>>> {
        let is_new = self.open.is_none();
        let Self { url, runtime, within, open } = &mut *self;
        let answer = async {
            let mut client = match open.take() {
                Some(client) => client,
                None => Client::connect(url).await?,
            };
            let rows = client.rows(text).await?;
            *open = Some(client);
            Ok(rows)
        };
        match runtime.block_on(async { timeout(*within, answer).await }) {
            Ok(Err(sqlx::Error::Io(_))) if !is_new => self.rows(text),
            Ok(answer) => answer.map_err(|error| io::Error::other(format!("{text}: {error}"))),
            Err(_) => Err(io::Error::new(io::ErrorKind::TimedOut, format!("{text}: no answer"))),
        }
    }
}

impl Client {
    async fn connect(url: &str) -> Result<Self, sqlx::Error> {
        Ok(if url.starts_with("postgres:") {
            Self::Postgres(PgConnectOptions::from_str(url)?.connect().await?)
        } else {
            Self::Sqlite(SqliteConnectOptions::from_str(url)?.connect().await?)
        })
    }

    async fn rows(&mut self, text: &str) -> Result<Vec<Vec<String>>, sqlx::Error> {
        match self {
            Self::Postgres(client) => texts(&sqlx::raw_sql(text).fetch_all(client).await?),
            Self::Sqlite(client) => texts(&sqlx::raw_sql(text).fetch_all(client).await?),
        }
    }
}

fn texts<R>(rows: &[R]) -> Result<Vec<Vec<String>>, sqlx::Error>
where
    R: sqlx::Row,
    usize: sqlx::ColumnIndex<R>,
    String: for<'a> sqlx::Decode<'a, R::Database>,
{
    let columns = |row: &R| (0..row.len()).map(|at| row.try_get_unchecked(at)).collect();
    rows.iter().map(columns).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(record: &str) -> Row {
        let columns = ["lock:k", "1000000", "0", "0", "5", record].map(str::to_owned);
        Row::of(&columns).unwrap()
    }

    fn seen(record: &str) -> (Vec<String>, u64, Vec<(String, u64)>) {
        match row(record).seen("k", 7_000_000_000, Duration::ZERO) {
            Event::Seen { key, holders, expires, queue, .. } if key == "k" => (holders, expires, queue),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_row_shows_holders_and_waiters_by_our_clock() {
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let (none, second) = (Vec::new(), 1_000_000_000);
        assert_eq!(seen("{}"), (names(&[]), 0, none.clone()));
        assert_eq!(seen(r#"{"held":["a:1",3000000]}"#), (names(&["a:1"]), 9 * second, none.clone()));
        assert_eq!(seen(r#"{"held":["a:1",1000000]}"#), (names(&[]), 0, none.clone()), "it is over");
        let shared = r#"{"writer":["a:1",2000000],"readers":[["b:1",3000000],["c:1",2000000]]}"#;
        assert_eq!(seen(shared), (names(&["a:1", "b:1", "c:1"]), 9 * second, none.clone()));
        let queue = r#"{"queue":[["a:1",2000000,5,null,true],["b:1",4000000,5,null,true]]}"#;
        let waiters = vec![("a:1".to_owned(), 8 * second), ("b:1".to_owned(), 10 * second)];
        assert_eq!(seen(queue), (names(&[]), 0, waiters));
        assert_eq!(seen("mine"), (names(&["mine"]), u64::MAX, none));
    }

    #[test]
    fn a_hold_that_is_over_or_soon_will_be_is_found() {
        let alive = |end: i64| {
            let kinds = [r#"{"held":["a:1",END]}"#, r#"{"readers":[["b:1",9000000],["a:1",END]]}"#];
            kinds.map(|record| row(&record.replace("END", &end.to_string())).has_nothing_over())
        };
        assert_eq!((alive(1_200_000), alive(1_050_000), alive(900_000)), ([true; 2], [false; 2], [false; 2]));
        assert!(row("{}").has_nothing_over() && !row("mine").has_nothing_over());
    }
}
