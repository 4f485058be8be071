//! A SQL server's side of a measurement: the commit that stands for a PING, and the count of
//! statements. Also a transaction that stays open, and the lock that programs write by hand.

use sqlx::mysql::{MySqlConnectOptions, MySqlConnection};
use sqlx::postgres::{PgConnectOptions, PgConnection};
use sqlx::{ConnectOptions, Connection, Executor};

/// Rows that the commits update in turn: as many as `latency` has keys.
const ROWS: i32 = 1000;

const POSTGRES_TABLES: &str = "
CREATE TABLE IF NOT EXISTS lock_bench_ping (id INT PRIMARY KEY, n BIGINT NOT NULL) WITH (fillfactor = 50);
INSERT INTO lock_bench_ping SELECT id, 0 FROM generate_series(0, 999) AS id ON CONFLICT DO NOTHING;
CREATE TABLE IF NOT EXISTS lock_bench_raw (name TEXT PRIMARY KEY)";

const MYSQL_TABLES: &str = "
CREATE TABLE IF NOT EXISTS lock_bench_ping (id INT PRIMARY KEY, n BIGINT NOT NULL) ENGINE = InnoDB;
INSERT IGNORE INTO lock_bench_ping WITH RECURSIVE s (id) AS (SELECT 0 UNION ALL SELECT id + 1 FROM s
WHERE id < 999) SELECT id, 0 FROM s;
CREATE TABLE IF NOT EXISTS lock_bench_raw (name VARCHAR(255) PRIMARY KEY) ENGINE = InnoDB";

/// Statements that PostgreSQL has executed for clients, but for those of [`Commits`].
const POSTGRES_STATEMENTS: &str = "SELECT COALESCE(sum(calls), 0)::bigint FROM pg_stat_statements \
                                   WHERE query !~ 'lock_bench_ping|pg_stat_statements'";

/// Statements that MariaDB has executed for clients.
const MYSQL_STATEMENTS: &str = "SELECT CAST(variable_value AS SIGNED) FROM information_schema.global_status \
                                WHERE variable_name = 'QUESTIONS'";

#[expect(clippy::needless_pass_by_value, reason = "for `map_err`")]
fn said(error: sqlx::Error) -> String {
    format!("the database: {error}")
}

/// A connection to one of the servers.
#[derive(Debug)]
enum Client {
    Postgres(PgConnection),
    MySql(MySqlConnection),
}

impl Client {
    async fn connect(url: &str) -> Result<Self, String> {
        if url.starts_with("mysql:") {
            let options: MySqlConnectOptions = url.parse().map_err(said)?;
            return options.connect().await.map(Self::MySql).map_err(said);
        }
        let options: PgConnectOptions = url.parse().map_err(said)?;
        let connection = options.application_name("lock-bench").connect().await.map_err(said)?;
        let mut client = Self::Postgres(connection);
        client.run("SET synchronous_commit = on").await?;
        Ok(client)
    }

    /// Runs statements.
    async fn run(&mut self, text: &str) -> Result<(), String> {
        match self {
            Self::Postgres(connection) => connection.execute(text).await.map(drop),
            Self::MySql(connection) => connection.execute(text).await.map(drop),
        }
        .map_err(said)
    }

    /// Runs a statement that returns a number.
    async fn number(&mut self, text: &str) -> Result<i64, String> {
        match self {
            Self::Postgres(connection) => sqlx::query_scalar(text).fetch_one(connection).await,
            Self::MySql(connection) => sqlx::query_scalar(text).fetch_one(connection).await,
        }
        .map_err(said)
    }
}

/// A connection that commits, and asks for the server's counters.
#[derive(Debug)]
pub(crate) struct Commits {
    client: Client,
    next: i32,
    counts: bool,
    /// Number of its own statements among those that are counted.
    own: u64,
}

impl Commits {
    pub(crate) async fn connect(url: &str) -> Result<Self, String> {
        let mut client = Client::connect(url).await?;
        let counts = match client {
            Client::Postgres(_) => {
                client.run("SET client_min_messages = warning").await?;
                client.run(POSTGRES_TABLES).await?;
                // Not every server has it, or lets everybody make it.
                let _ = client.run("CREATE EXTENSION IF NOT EXISTS pg_stat_statements").await;
                client.run(POSTGRES_STATEMENTS).await.is_ok()
            }
            Client::MySql(_) => {
                client.run(MYSQL_TABLES).await?;
                true
            }
        };
        Ok(Self { client, next: 0, counts, own: 0 })
    }

    /// Updates one row, and waits until that is on the disk.
    pub(crate) async fn commit(&mut self) -> Result<(), String> {
        const POSTGRES: &str = "UPDATE lock_bench_ping SET n = n + 1 WHERE id = $1";
        const MYSQL: &str = "UPDATE lock_bench_ping SET n = n + 1 WHERE id = ?";
        self.next = (self.next + 1) % ROWS;
        match &mut self.client {
            Client::Postgres(connection) => {
                sqlx::query(POSTGRES).bind(self.next).execute(connection).await.map(drop).map_err(said)
            }
            Client::MySql(connection) => {
                self.own += 1;
                sqlx::query(MYSQL).bind(self.next).execute(connection).await.map(drop).map_err(said)
            }
        }
    }

    /// Returns the number of statements of all other connections so far; `None` if the server does
    /// not count them. In MariaDB, those of other connections of this kind count.
    pub(crate) async fn statements(&mut self) -> Result<Option<u64>, String> {
        if !self.counts {
            return Ok(None);
        }
        let text = match self.client {
            Client::Postgres(_) => POSTGRES_STATEMENTS,
            Client::MySql(_) => {
                self.own += 1;
                MYSQL_STATEMENTS
            }
        };
        let count = self.client.number(text).await?;
        Ok(u64::try_from(count).ok().map(|count| count.saturating_sub(self.own)))
    }
}

/// A transaction that keeps its snapshot, so that no version of a row that dies meanwhile can go.
/// It ends on drop, with its connection.
#[derive(Debug)]
pub(crate) struct Snapshot(Client);

impl Snapshot {
    pub(crate) async fn open(url: &str) -> Result<Self, String> {
        let mut client = Client::connect(url).await?;
        client
            .run(match client {
                Client::Postgres(_) => "BEGIN ISOLATION LEVEL REPEATABLE READ",
                Client::MySql(_) => "START TRANSACTION WITH CONSISTENT SNAPSHOT",
            })
            .await?;
        client.run("SELECT count(*) FROM lock_bench_ping").await?;
        Ok(Self(client))
    }

    pub(crate) async fn close(self) -> Result<(), String> {
        match self.0 {
            Client::Postgres(connection) => connection.close().await.map_err(said),
            Client::MySql(connection) => connection.close().await.map_err(said),
        }
    }
}

/// One row as a lock: `BEGIN; SELECT … FOR UPDATE; COMMIT`, without lease, token or time-out.
/// [`Commits`] has made its table. Each clone has a connection, as each task of a program would.
#[derive(Debug)]
pub(crate) struct RowLock {
    url: String,
    name: String,
    client: Option<Box<Client>>,
}

impl Clone for RowLock {
    fn clone(&self) -> Self {
        Self::new(&self.url, &self.name)
    }
}

impl RowLock {
    pub(crate) fn new(url: &str, name: &str) -> Self {
        Self { url: url.to_owned(), name: name.to_owned(), client: None }
    }

    pub(crate) async fn acquire(&mut self) -> Result<(), String> {
        if self.client.is_none() {
            let mut client = Client::connect(&self.url).await?;
            let name = &self.name;
            client
                .run(&match client {
                    Client::Postgres(_) => {
                        format!("INSERT INTO lock_bench_raw (name) VALUES ('{name}') ON CONFLICT DO NOTHING")
                    }
                    Client::MySql(_) => format!("INSERT IGNORE INTO lock_bench_raw (name) VALUES ('{name}')"),
                })
                .await?;
            self.client = Some(Box::new(client));
        }
        let client = self.client.as_mut().ok_or("no connection")?;
        client.run("BEGIN").await?;
        match &mut **client {
            Client::Postgres(connection) => {
                let lock = "SELECT name FROM lock_bench_raw WHERE name = $1 FOR UPDATE";
                sqlx::query(lock).bind(&self.name).fetch_one(connection).await.map(drop).map_err(said)
            }
            Client::MySql(connection) => {
                let lock = "SELECT name FROM lock_bench_raw WHERE name = ? FOR UPDATE";
                sqlx::query(lock).bind(&self.name).fetch_one(connection).await.map(drop).map_err(said)
            }
        }
    }

    pub(crate) async fn release(&mut self) -> Result<(), String> {
        self.client.as_mut().ok_or("a lock was released that is not held")?.run("COMMIT").await
    }
}
