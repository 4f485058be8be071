//! [`Links`]: a manager's own connections.
//!
//! A pool of sqlx asks the server once more after each use of a connection, and keeps one whose
//! statement was given up. These are closed instead, so that no later step waits for an answer that
//! may never come.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::{Either, select, select_ok};
use lock_core::internal::clock::{Clock, Tick};
use lock_core::internal::sync::{Mutex, lock};
#[cfg(feature = "mysql")]
use sqlx::mysql::{MySqlConnection, MySqlRow};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::time::timeout;

#[cfg(feature = "postgres")]
use crate::options::ALONE;
#[cfg(feature = "mysql")]
use crate::options::MYSQL_ROLL_BACK;
use crate::options::{Connection, Options};
#[cfg(any(feature = "mysql", feature = "postgres"))]
use crate::plumbing::filled;
#[cfg(feature = "postgres")]
use crate::plumbing::literal;
#[cfg(feature = "mysql")]
use crate::plumbing::mysql_literal;
#[cfg(any(feature = "postgres", feature = "sqlite"))]
use crate::plumbing::query;
use crate::plumbing::{Arg, Row};

/// Time after which an idle connection is not used again: a firewall may have forgotten it.
const IDLE: Duration = Duration::from_secs(30);

/// Time that a login has after its caller has gone.
const LOGIN: Duration = Duration::from_secs(10);

/// Time after which a connection may be a spare one.
const SOON: Duration = Duration::from_millis(250);

/// At most a number of connections to one database, made when they are needed.
#[derive(Clone, Debug)]
pub(crate) struct Links {
    pub(crate) options: Options,
    idle: Arc<Mutex<Vec<(Connection, Tick)>>>,
    /// Callers get a connection in the order in which they ask.
    permits: Arc<Semaphore>,
    /// Where callers wait that let others go first: only one of them at a time asks for a
    /// connection.
    gate: Option<Arc<Semaphore>>,
    /// For a login whose caller has gone.
    left: Arc<Semaphore>,
    /// Where callers also wait if they get no connection soon, as when the server has its maximum.
    spare: Option<Box<Links>>,
}

impl Links {
    pub(crate) fn new(options: Options, most: usize) -> Self {
        let [permits, left] = [most, 1].map(|permits| Arc::new(Semaphore::new(permits)));
        Self { options, idle: Arc::default(), permits, gate: None, left, spare: None }
    }

    /// Returns these connections, and those of `spare` for callers that do not get one soon.
    #[cfg(any(feature = "mysql", feature = "postgres"))]
    pub(crate) fn or_from(self, spare: &Self) -> Self {
        Self { spare: Some(Box::new(spare.clone())), ..self }
    }

    /// Returns the same connections for callers that let those of `self` go first.
    #[cfg(feature = "sqlite")]
    pub(crate) fn behind(&self) -> Self {
        Self { gate: Some(Arc::new(Semaphore::new(1))), ..self.clone() }
    }

    /// Waits for a connection.
    pub(crate) async fn take(&self) -> Result<Link, sqlx::Error> {
        let Some(spare) = &self.spare else { return self.take_own().await };
        let late = async {
            tokio::time::sleep(SOON).await;
            spare.take_own().await
        };
        select_ok([self.take_own().boxed(), late.boxed()]).await.map(|(link, _)| link)
    }

    async fn take_own(&self) -> Result<Link, sqlx::Error> {
        let closed = |_| sqlx::Error::PoolClosed;
        let turn = match &self.gate {
            Some(gate) => Some(gate.acquire().await.map_err(closed)?),
            None => None,
        };
        let permit = Arc::clone(&self.permits).acquire_owned().await.map_err(closed)?;
        drop(turn);
        let now = Clock::Boot.now();
        let (newest, others) = {
            let mut idle = lock(&self.idle);
            let newest = idle.pop();
            let is_fresh = newest.as_ref().is_some_and(|(_, since)| now.since(*since) < IDLE);
            // The others are older.
            let others = if is_fresh { Vec::new() } else { std::mem::take(&mut *idle) };
            (newest, others)
        };
        drop(others);
        match newest {
            Some((connection, since)) if now.since(since) < IDLE => Ok(self.link(connection, permit)),
            stale => match (self.log_in(permit).await?, stale) {
                ((Ok(connection), permit), _) => Ok(self.link(connection, permit)),
                // The server may have its maximum.
                ((Err(sqlx::Error::Database(_)), permit), Some((connection, _))) => {
                    Ok(self.link(connection, permit))
                }
                ((Err(error), _), _) => Err(error),
            },
        }
    }

    /// Makes a connection, in a task: if that takes longer than its caller waits, a later call has
    /// it. Otherwise no call would succeed where logins are slow. One login at a time goes on so.
    /// It keeps nobody from logging in anew, perhaps at another server.
    async fn log_in(&self, permit: OwnedSemaphorePermit) -> Result<LoggedIn, sqlx::Error> {
        let (mut caller, told) = oneshot::channel();
        let Self { options, idle, left, .. } = self.clone();
        tokio::spawn(async move {
            let mut login = pin!(options.connect());
            let outcome = match select(&mut login, pin!(caller.closed())).await {
                Either::Left((outcome, _)) => Some(outcome),
                Either::Right(_) => None,
            };
            if let Some(outcome) = outcome {
                // If the caller has just gone, the connection is closed.
                let _ = caller.send((outcome, permit));
                return;
            }
            drop(permit);
            let Ok(_one) = left.try_acquire() else { return };
            if let Ok(Ok(connection)) = timeout(LOGIN, login).await {
                lock(&idle).push((connection, Clock::Boot.now()));
            }
        });
        told.await.map_err(|_| sqlx::Error::PoolClosed)
    }

    fn link(&self, connection: Connection, permit: OwnedSemaphorePermit) -> Link {
        let (idle, taken) = (Arc::clone(&self.idle), Clock::Boot.now());
        Link { connection: Some(connection), is_clean: true, idle, taken, _permit: permit }
    }
}

/// The outcome of a login, and the right to use a connection.
type LoggedIn = (Result<Connection, sqlx::Error>, OwnedSemaphorePermit);

/// A connection in use. If it is dropped and not given back, it is closed, and so are those that
/// were idle meanwhile: whatever has happened to it may have happened to them.
#[derive(Debug)]
pub(crate) struct Link {
    connection: Option<Connection>,
    /// Whether the last statement was answered.
    is_clean: bool,
    idle: Arc<Mutex<Vec<(Connection, Tick)>>>,
    taken: Tick,
    _permit: OwnedSemaphorePermit,
}

impl Link {
    /// Runs one statement.
    pub(crate) async fn rows(&mut self, text: &str, args: &[Arg<'_>]) -> Result<Vec<Row>, sqlx::Error> {
        self.is_clean = false;
        let answer = match &mut self.connection {
            #[cfg(feature = "sqlite")]
            Some(Connection::Sqlite(connection)) => query!(text, args)
                .fetch_all(connection)
                .await
                .map(|rows| rows.into_iter().map(|row| Row::Sqlite(Box::new(row))).collect()),
            // Named statements are in the session. So settings, statement and arguments are one
            // message.
            #[cfg(feature = "postgres")]
            Some(Connection::Pooled { connection, has_begun }) => {
                let (before, first) = if *has_begun { ("", 0) } else { (ALONE, 1) };
                let text = format!("{before}{}", filled(text, args, literal));
                let rows = sqlx::Executor::fetch_all(connection, text.as_str()).await;
                rows.map(|rows| {
                    rows.into_iter().skip(first).map(|row| Row::Postgres(Box::new(row))).collect()
                })
            }
            #[cfg(feature = "postgres")]
            Some(Connection::Postgres(connection)) => query!(text, args)
                .fetch_all(connection)
                .await
                .map(|rows| rows.into_iter().map(|row| Row::Postgres(Box::new(row))).collect()),
            #[cfg(feature = "mysql")]
            Some(Connection::MySql(connection)) => {
                let rows = mysql_rows(connection, &filled(text, args, mysql_literal)).await;
                rows.map(|rows| rows.into_iter().map(|row| Row::MySql(Box::new(row))).collect())
            }
            None => Err(sqlx::Error::PoolClosed),
        };
        self.is_clean = is_answer(&answer);
        answer
    }

    /// Runs one statement of a transaction, and returns how many rows it changed.
    pub(crate) async fn execute(&mut self, text: &str, args: &[Arg<'_>]) -> Result<u64, sqlx::Error> {
        self.is_clean = false;
        let answer = match &mut self.connection {
            #[cfg(feature = "sqlite")]
            Some(Connection::Sqlite(connection)) => {
                query!(text, args).execute(connection).await.map(|done| done.rows_affected())
            }
            #[cfg(feature = "postgres")]
            Some(Connection::Pooled { connection, .. }) => {
                let text = filled(text, args, literal);
                sqlx::Executor::execute(connection, text.as_str()).await.map(|done| done.rows_affected())
            }
            #[cfg(feature = "postgres")]
            Some(Connection::Postgres(connection)) => {
                query!(text, args).execute(connection).await.map(|done| done.rows_affected())
            }
            #[cfg(feature = "mysql")]
            Some(Connection::MySql(connection)) => {
                let text = filled(text, args, mysql_literal);
                let done = sqlx::Executor::execute(&mut *connection, text.as_str()).await;
                mysql_or_undone(connection, done).await.map(|done| done.rows_affected())
            }
            None => Err(sqlx::Error::PoolClosed),
        };
        self.is_clean = is_answer(&answer);
        answer
    }

    /// Runs an update of one row outside of a transaction. Returns a row with a one and the time,
    /// or none if it has changed nothing.
    pub(crate) async fn update(&mut self, text: &str, args: &[Arg<'_>]) -> Result<Vec<Row>, sqlx::Error> {
        #[cfg(feature = "mysql")]
        if let Some(Connection::MySql(connection)) = &mut self.connection {
            self.is_clean = false;
            let mut bound = Vec::new();
            let text = filled(text, args, |arg| {
                bound.push(*arg);
                "?".to_owned()
            });
            let query = bound.iter().fold(sqlx::query(&text), |query, arg| match *arg {
                Arg::Int(number) => query.bind(number),
                // As bytes, like literals.
                Arg::Text(text) => query.bind(text.as_bytes()),
                Arg::Maybe(number) => query.bind(number),
                Arg::Names(_) | Arg::Rows(_) => query.bind(None::<i64>),
            });
            let answer = query.execute(connection).await;
            self.is_clean = is_answer(&answer);
            let done = answer?;
            let now = i64::try_from(done.last_insert_id()).unwrap_or(0);
            return Ok((done.rows_affected() > 0).then_some(Row::Updated([1, now])).into_iter().collect());
        }
        self.rows(text, args).await
    }

    /// Begins a transaction with the statement of [`Options::begin`].
    pub(crate) async fn begin(&mut self, begin: &str) -> Result<(), sqlx::Error> {
        if let Some(connection) = &mut self.connection {
            connection.set_begun(true);
        }
        self.run(begin).await
    }

    /// Begins a transaction with the statement of [`Options::begin`], and runs a statement in it.
    /// Returns also when that was sent.
    pub(crate) async fn begin_with(
        &mut self,
        begin: &str,
        text: &str,
        args: &[Arg<'_>],
    ) -> Result<(Tick, Vec<Row>), sqlx::Error> {
        #[cfg(feature = "mysql")]
        if let Some(Connection::MySql(_)) = &self.connection {
            let sent = Clock::Boot.now();
            return Ok((sent, self.rows(&format!("{begin}; {text}"), args).await?));
        }
        self.begin(begin).await?;
        let sent = Clock::Boot.now();
        Ok((sent, self.rows(text, args).await?))
    }

    /// Runs any number of statements without arguments.
    pub(crate) async fn run(&mut self, text: &str) -> Result<(), sqlx::Error> {
        #[cfg(any(feature = "postgres", feature = "sqlite"))]
        use sqlx::Executor;

        self.is_clean = false;
        let answer = match &mut self.connection {
            #[cfg(feature = "sqlite")]
            Some(Connection::Sqlite(connection)) => connection.execute(text).await.map(drop),
            #[cfg(feature = "postgres")]
            Some(Connection::Postgres(connection) | Connection::Pooled { connection, .. }) => {
                connection.execute(text).await.map(drop)
            }
            #[cfg(feature = "mysql")]
            Some(Connection::MySql(connection)) => mysql_rows(connection, text).await.map(drop),
            None => Err(sqlx::Error::PoolClosed),
        };
        self.is_clean = is_answer(&answer);
        answer
    }

    /// Whether the last statement was answered, so that the connection can be used again.
    pub(crate) fn is_clean(&self) -> bool {
        self.is_clean
    }

    /// Lets others use the connection. It must not be in a transaction.
    pub(crate) fn give_back(mut self) {
        if let Some(mut connection) = self.connection.take_if(|_| self.is_clean) {
            connection.set_begun(false);
            let now = Clock::Boot.now();
            let mut idle = lock(&self.idle);
            // After a burst, most are not needed any more.
            let is_old = |(_, since): &mut (_, Tick)| now.since(*since) >= IDLE;
            let old: Vec<_> = idle.extract_if(.., is_old).collect();
            idle.push((connection, now));
            drop(idle);
            drop(old);
        }
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        if self.connection.take().is_some() {
            let is_older = |(_, since): &mut (_, Tick)| *since <= self.taken;
            let others: Vec<_> = lock(&self.idle).extract_if(.., is_older).collect();
            drop(others);
        }
    }
}

/// Runs the statements of a message.
#[cfg(feature = "mysql")]
async fn mysql_rows(connection: &mut MySqlConnection, text: &str) -> Result<Vec<MySqlRow>, sqlx::Error> {
    let answer = sqlx::Executor::fetch_all(&mut *connection, text).await;
    mysql_or_undone(connection, answer).await
}

/// Undoes the transaction of a message that has failed. The server runs no statement after one that
/// fails, so a transaction that the message began is open then.
#[cfg(feature = "mysql")]
async fn mysql_or_undone<T>(
    connection: &mut MySqlConnection,
    answer: Result<T, sqlx::Error>,
) -> Result<T, sqlx::Error> {
    if matches!(&answer, Err(error @ sqlx::Error::Database(_)) if goes_on(error)) {
        sqlx::Executor::execute(connection, MYSQL_ROLL_BACK).await?;
    }
    answer
}

/// Whether the server has answered, and goes on. It ends the connection with an answer of the
/// classes 57 (an operator, a shutdown), 08 and 70 (a killed session of MySQL), and after a
/// time-out of a transaction.
fn is_answer<T>(answer: &Result<T, sqlx::Error>) -> bool {
    answer.as_ref().err().is_none_or(goes_on)
}

fn goes_on(error: &sqlx::Error) -> bool {
    let sqlx::Error::Database(error) = error else { return false };
    let code = error.code().unwrap_or_default();
    let ends = ["57", "08", "70", "25P03", "25P04"];
    code.len() < 5 || !ends.iter().any(|end| code.starts_with(end))
}
