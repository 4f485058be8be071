//! [`Sql`]: a SQL database with locks.

use std::cell::RefCell;
use std::io;
use std::net::SocketAddr;
use std::str::FromStr;
use std::time::Duration;

use sqlx::mysql::MySqlConnectOptions;
use sqlx::postgres::PgConnectOptions;
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{ConnectOptions, MySqlConnection, PgConnection, SqliteConnection};
use tempfile::TempDir;
use tokio::runtime::{Handle, Runtime};
use tokio::time::timeout;

use super::database::{Act, Database, FOREIGN, Row, note_rows};
use super::observe::Observer;
use crate::database_server::beside_a_busy_disk;
use crate::history::{Event, Log, Remains};
use crate::witness::Ping;
use crate::{MariaDbServer, PostgresServer, Proxy, ServerClock};

/// Maximum time for an answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// A SQL database, and a connection to it that is independent of the library.
pub(super) struct Sql {
    // Before the database: connections end first.
    stranger: RefCell<Stranger>,
    product: Product,
}

enum Product {
    Postgres(Box<PostgresServer>),
    MariaDb(Box<MariaDbServer>),
    /// The folder of the file.
    Sqlite(TempDir),
}

impl Sql {
    pub(super) fn postgres(clock: &ServerClock, runtime: &Handle) -> Self {
        Self::of(Product::Postgres(Box::new(PostgresServer::start_with_clock(clock))), runtime)
    }

    pub(super) fn mariadb(clock: &ServerClock, runtime: &Handle) -> Self {
        Self::of(Product::MariaDb(Box::new(MariaDbServer::start_with_clock(clock))), runtime)
    }

    pub(super) fn sqlite(runtime: &Handle) -> io::Result<Self> {
        let folder = tempfile::Builder::new().prefix("lock-sqlite-").tempdir_in(beside_a_busy_disk())?;
        Ok(Self::of(Product::Sqlite(folder), runtime))
    }

    fn of(product: Product, runtime: &Handle) -> Self {
        let stranger = Stranger::new(product.url(None), runtime, PATIENCE);
        Self { stranger: RefCell::new(stranger), product }
    }

    /// Does something to the server, which SQLite does not have.
    pub(super) fn act(&mut self, act: Act) {
        match &mut self.product {
            Product::Postgres(server) => act.on(server),
            Product::MariaDb(server) => act.on(server),
            Product::Sqlite(_) => {}
        }
    }

    /// Starts a proxy to the server.
    pub(super) fn proxy(&self, runtime: &Runtime) -> Option<Proxy> {
        match &self.product {
            Product::Postgres(server) => Some(runtime.block_on(Proxy::start_postgres(server.addr()))),
            Product::MariaDb(server) => Some(runtime.block_on(Proxy::start_mariadb(server.addr()))),
            Product::Sqlite(_) => None,
        }
    }

    /// Returns the URL that workers connect to.
    pub(super) fn url(&self, proxy: Option<&Proxy>) -> String {
        self.product.url(proxy.map(Proxy::addr))
    }

    fn rows(&self, text: &str) -> io::Result<Vec<Vec<String>>> {
        self.stranger.borrow_mut().rows(text)
    }

    /// Whether a statement that returns the changed rows has changed any.
    fn changes(&self, text: &str) -> io::Result<bool> {
        Ok(!self.rows(text)?.is_empty())
    }
}

impl Database for Sql {
    fn delete(&self, key: &str) -> io::Result<bool> {
        let held = self.product.held(key);
        self.changes(&format!("DELETE FROM lock_records WHERE {held} RETURNING name"))
    }

    fn overwrite(&self, key: &str) -> io::Result<bool> {
        let returning = match self.product {
            Product::MariaDb(_) => "; SELECT 1 FROM DUAL WHERE ROW_COUNT() > 0",
            Product::Postgres(_) | Product::Sqlite(_) => " RETURNING name",
        };
        let held = self.product.held(key);
        self.changes(&format!(
            "UPDATE lock_records SET record = '{FOREIGN}', version = '{FOREIGN}' WHERE {held}{returning}"
        ))
    }

    fn delete_foreign(&self) -> io::Result<()> {
        self.rows(&format!("DELETE FROM lock_records WHERE record = '{FOREIGN}'")).map(drop)
    }

    fn flush(&self) -> io::Result<()> {
        self.rows(match self.product {
            Product::Postgres(_) | Product::MariaDb(_) => "TRUNCATE TABLE lock_records",
            Product::Sqlite(_) => "DELETE FROM lock_records",
        })
        .map(drop)
    }

    /// In SQLite it locks the whole file.
    fn lock_rows(&self) -> io::Result<()> {
        self.rows(match self.product {
            Product::Postgres(_) | Product::MariaDb(_) => "BEGIN; SELECT name FROM lock_records FOR UPDATE",
            Product::Sqlite(_) => "BEGIN IMMEDIATE",
        })
        .map(drop)
    }

    fn lock_living_rows(&self) -> io::Result<bool> {
        let mut rows = self.rows(&format!("BEGIN; {} FOR UPDATE", self.product.rows()))?.into_iter();
        let is_alive = rows.all(|row| read_row(&row).is_ok_and(|row| row.has_nothing_over()));
        if !is_alive {
            self.unlock_rows()?;
        }
        Ok(is_alive)
    }

    fn unlock_rows(&self) -> io::Result<()> {
        self.rows("COMMIT").map(drop)
    }

    fn cut_clients(&self) -> io::Result<bool> {
        if let Product::MariaDb(_) = self.product {
            let others = "SELECT id FROM information_schema.processlist \
                          WHERE user = 'root' AND id <> CONNECTION_ID()";
            let others = self.rows(others)?;
            // Some have ended meanwhile.
            let cut = others.iter().flatten().filter(|id| self.rows(&format!("KILL {id}")).is_ok());
            return Ok(cut.count() > 0);
        }
        self.changes(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
             WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()",
        )
    }

    fn left(&self) -> io::Result<Vec<(Remains, Option<Duration>, String)>> {
        let mut found = Vec::new();
        for row in self.rows(&self.product.rows())? {
            read_row(&row)?.left(&mut found);
        }
        let open = match self.product {
            Product::Postgres(_) => {
                "SELECT application_name FROM pg_stat_activity WHERE state LIKE 'idle in transaction%'"
            }
            Product::MariaDb(_) => {
                "SELECT p.host FROM information_schema.innodb_trx t JOIN information_schema.processlist p \
                 ON p.id = t.trx_mysql_thread_id WHERE p.command = 'Sleep'"
            }
            Product::Sqlite(_) => return Ok(found),
        };
        for row in self.rows(open)? {
            found.push((Remains::Other, None, format!("an open transaction of {row:?}")));
        }
        Ok(found)
    }

    fn observer(&self, within: Duration) -> Box<dyn Observer> {
        let (url, runtime) = (self.product.url(None), self.stranger.borrow().runtime.clone());
        let stranger = Stranger::new(url, &runtime, within);
        Box::new(Eyes { stranger, rows: self.product.rows(), total: self.product.total() })
    }

    fn ping(&self, proxy: &Proxy, within: Duration) -> Ping {
        let runtime = self.stranger.borrow().runtime.clone();
        let mut way = Stranger::new(self.url(Some(proxy)), &runtime, within);
        Box::new(move || drop(way.rows("SELECT 1")))
    }
}

impl Product {
    /// Returns the URL, with another address of the server if there is one.
    fn url(&self, at: Option<SocketAddr>) -> String {
        match self {
            Self::Postgres(server) => {
                format!("postgres://test@{}/postgres", at.unwrap_or_else(|| server.addr()))
            }
            Self::MariaDb(server) => format!("mysql://root@{}/locks", at.unwrap_or_else(|| server.addr())),
            Self::Sqlite(folder) => format!("sqlite:{}", folder.path().join("locks.db").display()),
        }
    }

    /// Returns an expression for the database's clock, in microseconds.
    fn clock(&self) -> &'static str {
        match self {
            Self::Postgres(_) => "CAST(EXTRACT(EPOCH FROM clock_timestamp()) * 1000000 AS BIGINT)",
            Self::MariaDb(_) => "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', SYSDATE(6))",
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

    /// Returns a statement that reads the number of transactions or statements so far.
    fn total(&self) -> Option<&'static str> {
        match self {
            Self::Postgres(_) => Some(
                "SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = current_database()",
            ),
            Self::MariaDb(_) => Some("SHOW GLOBAL STATUS LIKE 'Questions'"),
            Self::Sqlite(_) => None,
        }
    }

    /// Returns a condition for the row of a key, while one holder has it alone.
    fn held(&self, key: &str) -> String {
        format!(
            "class = 'lock' AND name = '{key}' AND until > {} AND record LIKE '{{\"held\"%'",
            self.clock()
        )
    }
}

/// Reads a row, as [`Product::rows`] has it.
fn read_row(columns: &[String]) -> io::Result<Row> {
    let [name, now, until, kept_until, token, record] = columns else {
        return Err(io::Error::other(format!("not a row of a lock: {columns:?}")));
    };
    let number = |text: &String| text.parse().map_err(io::Error::other);
    Ok(Row {
        name: name.clone(),
        now: number(now)?,
        until: number(until)?,
        kept_until: number(kept_until)?,
        token: number(token)?,
        record: record.clone(),
    })
}

/// Looks at the rows.
struct Eyes {
    stranger: Stranger,
    /// The statement that reads them.
    rows: String,
    /// The statement that counts what the database does.
    total: Option<&'static str>,
}

impl Observer for Eyes {
    fn look(&mut self, log: &Log) {
        note_rows(log, || {
            let rows = self.stranger.rows(&self.rows)?;
            Ok(rows.iter().filter_map(|row| read_row(row).ok()).collect())
        });
    }

    fn count(&mut self, log: &Log) {
        if let Some(total) = self.total
            && let Ok(rows) = self.stranger.rows(total)
            && let Some(total) = rows.iter().flatten().find_map(|total| total.parse().ok())
        {
            log.say(&Event::Commands { server: "database".to_owned(), total });
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
    MySql(MySqlConnection),
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
        Ok(match url.split(':').next() {
            Some("postgres") => Self::Postgres(PgConnectOptions::from_str(url)?.connect().await?),
            Some("mysql") => Self::MySql(MySqlConnectOptions::from_str(url)?.connect().await?),
            _ => Self::Sqlite(SqliteConnectOptions::from_str(url)?.connect().await?),
        })
    }

    async fn rows(&mut self, text: &str) -> Result<Vec<Vec<String>>, sqlx::Error> {
        match self {
            Self::Postgres(client) => texts(&sqlx::raw_sql(text).fetch_all(client).await?),
            Self::MySql(client) => texts(&sqlx::raw_sql(text).fetch_all(client).await?),
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
