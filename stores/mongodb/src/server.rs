//! [`Server`]: the connection to a server or a replica set.

use std::fmt::Display;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{Either, select};
use lock_core::internal::clock::{Clock, Tick};
use lock_core::internal::sync::{Mutex, lock};
use lock_core::store::{ServerTime, StoreError, StoreErrorKind};
use lock_store_records::rows::LONGEST;
use mongodb::bson::{DateTime, Document, doc};
use mongodb::error::{Error, ErrorKind};
use mongodb::options::{
    Acknowledgment, ClientOptions, ConnectionString, ReadConcern, ReadPreference, SelectionCriteria,
    WriteConcern,
};
use mongodb::{Client, ClientSession, Database};
use tokio::runtime::Handle;
use tokio::sync::{OnceCell, Semaphore, SemaphorePermit};
use tokio::time::{Instant, timeout, timeout_at};

use crate::classify::{DATABASE, During, Fault, answered, failed, fault};
use crate::documents::{self, COLLECTION, batch_of};

/// Maximum number of steps that are under way at once. The others of the connections are for
/// stocks, renewals, sweeping, and the change stream.
const STEPS: usize = 8;

/// Maximum number of connections to a server.
const CONNECTIONS: u32 = 20;

/// A server or a replica set, and how to log in there.
#[derive(Clone, Debug)]
pub enum Target {
    /// An address. Those of SRV records are looked up on first use.
    Address(Box<ConnectionString>),
    /// The options of a client.
    Options(Box<ClientOptions>),
}

/// The connection to a server or a replica set, made on first use.
#[derive(Debug)]
pub(crate) struct Server {
    target: Target,
    /// Time-out of looking for a server.
    timeout: Duration,
    connected: Mutex<Arc<OnceCell<Arc<Connected>>>>,
    steps: Semaphore,
    /// When abandoned transactions were looked for last. Locked during a look.
    looked: tokio::sync::Mutex<Option<Tick>>,
}

/// The server, as it describes itself.
#[derive(Debug)]
pub(crate) struct Connected {
    client: Client,
    pub(crate) database: Database,
    /// Whether it belongs to a replica set, and so has transactions and change streams.
    pub(crate) is_set: bool,
    /// When a call has ended last that was not given up.
    heard: Arc<Mutex<Tick>>,
}

impl Server {
    /// Creates the connection. `timeout` is that of calls.
    pub(crate) fn new(target: Target, timeout: Duration) -> Self {
        Self {
            target,
            timeout,
            connected: Mutex::default(),
            steps: Semaphore::new(STEPS),
            looked: tokio::sync::Mutex::default(),
        }
    }

    /// Returns the options of the client.
    async fn options(&self) -> Result<ClientOptions, Error> {
        let mut options = match &self.target {
            Target::Address(address) => ClientOptions::parse((**address).clone()).await?,
            Target::Options(options) => (**options).clone(),
        };
        // A new primary may not have what fewer have. Others than the primary know old values.
        (options.write_concern, options.read_concern) = (None, None);
        options.selection_criteria = Some(SelectionCriteria::ReadPreference(ReadPreference::Primary));
        // Whoever does not know the outcome withdraws.
        (options.retry_reads, options.retry_writes) = (Some(false), Some(false));
        options.max_adaptive_retries = Some(0);
        // So that the error of a call says why there is no server.
        options.server_selection_timeout = Some(self.timeout * 9 / 10);
        options.max_pool_size = Some(options.max_pool_size.map_or(CONNECTIONS, |most| most.max(CONNECTIONS)));
        options.app_name.get_or_insert_with(|| NAME.to_owned());
        Ok(options)
    }

    /// Waits for the right to make a step.
    pub(crate) async fn permit(&self) -> Option<SemaphorePermit<'_>> {
        // It is never closed.
        self.steps.acquire().await.ok()
    }

    /// Returns the connection, and makes it if it is missing.
    pub(crate) async fn connected(&self) -> Result<Arc<Connected>, Fault> {
        let connected = Arc::clone(&lock(&self.connected));
        connected.get_or_try_init(|| self.connect()).await.map(Arc::clone)
    }

    /// Ends transactions of processes that have died, if this call has been under way for a long
    /// time, and nobody else has just done that.
    pub(crate) async fn end_abandoned(&self, bounds: Bounds) {
        if bounds.timeout.saturating_sub(bounds.left()) < bounds.patience() {
            return;
        }
        let Ok(mut looked) = self.looked.try_lock() else { return };
        if looked.is_some_and(|looked| Clock::Boot.now().since(looked) < PATIENCE) {
            return;
        }
        let end = async { self.connected().await?.end_abandoned().await };
        // They end by themselves, only later.
        let _ = bounds.part(PATIENCE).within(During::Work, end).await;
        *looked = Some(Clock::Boot.now());
    }

    /// Replaces the client if no call has had an answer since this one was sent, which was given
    /// up. The driver makes two connections at a time, and never gives up one that hears nothing
    /// while it logs in. Two of these would keep it from making others.
    fn given_up(&self, connected: &Arc<Connected>, sent: Tick) {
        let is_short = Clock::Boot.now().since(sent) < self.timeout / 2;
        if is_short || *lock(&connected.heard) > sent {
            return;
        }
        let mut present = lock(&self.connected);
        if present.get().is_some_and(|present| Arc::ptr_eq(present, connected)) {
            *present = Arc::default();
        }
    }

    async fn connect(&self) -> Result<Arc<Connected>, Fault> {
        let options = self.options().await.map_err(failed)?;
        let name = options.default_database.clone().unwrap_or_default();
        let client = Client::with_options(options).map_err(failed)?;
        let database = client.database(&name);
        let hello = run(&database, doc! { "hello": 1 }).await?;
        if hello.get_str("msg").is_ok_and(|msg| msg == "isdbgrid") {
            return refuse(
                "this is a router of a sharded cluster, and each router has a clock of its own; name a replica set"
                    .to_owned(),
            );
        }
        let version = hello.get_i32("maxWireVersion").unwrap_or_default();
        if version < OLDEST {
            return refuse(format!("the server is too old (wire version {version}); it takes MongoDB 4.4"));
        }
        let is_set = hello.contains_key("setName");
        let connected =
            Connected { client, database, is_set, heard: Arc::new(Mutex::new(Clock::Boot.now())) };
        connected.make(COLLECTION).await?;
        Ok(Arc::new(connected))
    }
}

/// The wire version of MongoDB 4.4, which has expressions in projections.
const OLDEST: i32 = 9;

/// The name of clients at the server, unless they have another one.
const NAME: &str = "lock-runtime";

/// Time in microseconds after which the client of a transaction has died, or stands still.
const IDLE: i64 = 1_000_000;

/// Time between two looks for abandoned transactions. A call that has not ended begins to look
/// after this time, or half of its time-out.
const PATIENCE: Duration = Duration::from_secs(1);

/// Time for ending a transaction whose caller has gone.
const ENDS: Duration = Duration::from_secs(60);

/// Runs a command of the connect.
async fn run(database: &Database, command: Document) -> Result<Document, Fault> {
    let answer = database.run_command(command).await;
    answered(answer.map_err(failed)?, During::Work)
}

fn refuse<T>(text: impl Display) -> Result<T, Fault> {
    Err(StoreError::new(StoreErrorKind::Unsupported, format!("{DATABASE}: {text}")).into())
}

impl Connected {
    /// Makes a collection if it is missing. Refuses one whose options keep it from what we do.
    pub(crate) async fn make(&self, collection: &str) -> Result<(), Fault> {
        match run(&self.database, doc! { "create": collection }).await {
            Ok(_) => {}
            // It is there, or this user may not make one. The first write says so if it is missing.
            Err(Fault::Again(_)) => {}
            Err(Fault::Failed(error)) if error.kind() == StoreErrorKind::Denied => {}
            Err(fault) => return Err(fault),
        }
        let list = doc! { "listCollections": 1, "filter": { "name": collection }, "authorizedCollections": true, "nameOnly": false };
        // Who may not list them has been told by whoever made it.
        if let Ok(list) = run(&self.database, list).await {
            let found = list.get_document("cursor").and_then(|cursor| cursor.get_array("firstBatch"));
            let first = found.ok().and_then(|found| found.first()?.as_document());
            let has = |option: &str| {
                first
                    .and_then(|first| first.get_document("options").ok())
                    .is_some_and(|options| options.contains_key(option))
            };
            if let Some(option) =
                ["collation", "capped", "viewOn", "timeseries"].into_iter().find(|it| has(it))
            {
                return refuse(format!(
                    "the collection {collection} was made with the option `{option}`; drop it, or make it without"
                ));
            }
        }
        Ok(())
    }

    /// Begins a session.
    pub(crate) async fn session(&self) -> Result<ClientSession, Error> {
        self.client.start_session().causal_consistency(false).await
    }

    /// Ends transactions of clients of this user that have [`NAME`] and have died. The server would
    /// keep their documents locked for a minute.
    pub(crate) async fn end_abandoned(&self) -> Result<(), Fault> {
        let admin = self.client.database("admin");
        let idle = doc! {
            "type": "idleSession", "appName": NAME, "transaction.timeInactiveMicros": { "$gt": IDLE },
        };
        let pipeline = vec![
            doc! { "$currentOp": {} },
            doc! { "$match": idle },
            doc! { "$project": { "id": "$lsid.id" } },
        ];
        let found = run(&admin, doc! { "aggregate": 1, "pipeline": pipeline, "cursor": {} }).await?;
        let sessions = batch_of(&found);
        if !sessions.is_empty() {
            run(&admin, doc! { "killSessions": sessions }).await?;
        }
        Ok(())
    }

    /// Begins a transaction.
    pub(crate) async fn begin(&self) -> Result<Transaction, Error> {
        let mut session = self.session().await?;
        let concern = WriteConcern::builder().w(Acknowledgment::Majority).journal(true).build();
        session.start_transaction().read_concern(ReadConcern::snapshot()).write_concern(concern).await?;
        let (database, heard, runtime) = (self.database.clone(), Arc::clone(&self.heard), Handle::current());
        Ok(Transaction { session: Some(session), database, heard, runtime })
    }
}

/// A transaction. When it is dropped, the server ends it: an open one keeps its documents locked.
/// The driver does not end one that was dropped during its first command, or during its commit.
pub(crate) struct Transaction {
    /// `None` if it has ended.
    session: Option<ClientSession>,
    database: Database,
    /// As that of the connection.
    heard: Arc<Mutex<Tick>>,
    /// Its caller may leave outside of the runtime.
    runtime: Handle,
}

impl Transaction {
    /// Runs a command in it.
    pub(crate) async fn run(&mut self, command: Document) -> Result<Document, Error> {
        let Some(session) = &mut self.session else { return Err(Error::custom("the transaction is over")) };
        let answer = self.database.run_command(command).session(session).await;
        *lock(&self.heard) = Clock::Boot.now();
        // The server has ended it.
        if answer.as_ref().is_err_and(|error| matches!(*error.kind, ErrorKind::Command(_))) {
            self.session = None;
        }
        answer
    }

    /// Waits until a majority has everything that it has read, at the same primary. A command in it
    /// then tells whether it is still there.
    pub(crate) async fn settle(&self, bounds: Bounds) -> Result<(), Fault> {
        let answer = self.database.run_command(bounds.for_majority(documents::look(""))).await;
        answered(answer.map_err(failed)?, During::Work).map(drop)
    }

    /// Undoes it.
    pub(crate) async fn abort(&mut self) -> Result<(), Error> {
        let Some(session) = &mut self.session else { return Ok(()) };
        session.abort_transaction().await?;
        self.session = None;
        Ok(())
    }

    pub(crate) async fn commit(&mut self) -> Result<(), Error> {
        let Some(session) = &mut self.session else { return Err(Error::custom("the transaction is over")) };
        let answer = session.commit_transaction().await;
        *lock(&self.heard) = Clock::Boot.now();
        answer?;
        self.session = None;
        Ok(())
    }
}

impl Drop for Transaction {
    fn drop(&mut self) {
        let Some(mut session) = self.session.take() else { return };
        let database = self.database.clone();
        let ends = async move {
            // Sent only if the first command has been answered.
            let _ = session.abort_transaction().await;
            // The server ends the transaction before this one, and refuses its late commands.
            if session.start_transaction().await.is_ok() {
                let nothing = doc! { "find": COLLECTION, "filter": { "_id": "" }, "limit": 1 };
                let _ = database.run_command(nothing).session(&mut session).await;
                let _ = session.abort_transaction().await;
            }
        };
        // A time-out is made in its runtime.
        self.runtime.spawn(async { timeout(ENDS, ends).await });
    }
}

/// A call until its deadline.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    pub(crate) timeout: Duration,
    pub(crate) deadline: Instant,
}

impl Bounds {
    pub(crate) fn new(timeout: Duration) -> Self {
        Self { timeout, deadline: Instant::now() + timeout.min(LONGEST) }
    }

    /// Returns a part of the call, until its own deadline.
    pub(crate) fn part(&self, limit: Duration) -> Self {
        Self { deadline: self.deadline.min(Instant::now() + limit), ..*self }
    }

    /// Returns the time after which the call looks for abandoned transactions.
    fn patience(&self) -> Duration {
        PATIENCE.min(self.timeout / 2).max(Duration::from_millis(1))
    }

    /// Makes a call. If it takes long, ends transactions of processes that have died: it may wait
    /// for their documents.
    pub(crate) async fn patiently<T>(&self, server: &Server, call: impl Future<Output = T>) -> T {
        let (mut call, mut pause) = (pin!(call), self.patience());
        loop {
            if let Ok(done) = timeout(pause, &mut call).await {
                return done;
            }
            pause = PATIENCE / 4;
            let looks = pin!(server.end_abandoned(*self));
            if let Either::Left((done, _)) = select(&mut call, looks).await {
                return done;
            }
        }
    }

    pub(crate) fn left(&self) -> Duration {
        self.deadline.saturating_duration_since(Instant::now())
    }

    /// Returns the connection, and makes it if it is missing.
    pub(crate) async fn connected(&self, server: &Server) -> Result<Arc<Connected>, Fault> {
        self.within(During::Work, server.connected()).await
    }

    /// Waits for an answer until the deadline.
    pub(crate) async fn within<T>(
        &self,
        during: During,
        step: impl Future<Output = Result<T, Fault>>,
    ) -> Result<T, Fault> {
        match timeout_at(self.deadline, step).await {
            Ok(answer) => answer,
            Err(_) => {
                let kind = match during {
                    During::Work => StoreErrorKind::NotReady,
                    During::Commit => StoreErrorKind::Unanswered,
                };
                let text = format!("{DATABASE}: no answer within {:?}", self.timeout);
                Err(StoreError::new(kind, text).into())
            }
        }
    }

    /// Returns a command that waits until a majority has what it writes, or everything if it writes
    /// nothing.
    fn for_majority(&self, mut command: Document) -> Document {
        let left = self.milliseconds();
        command.insert("maxTimeMS", left);
        command.insert("writeConcern", doc! { "w": "majority", "j": true, "wtimeout": left });
        command
    }

    /// Runs a command that writes, and waits until a majority has it.
    pub(crate) async fn write(&self, server: &Server, command: Document) -> Result<(Tick, Document), Fault> {
        self.run(server, self.for_majority(command), During::Commit).await
    }

    /// Begins a transaction.
    pub(crate) async fn begin(&self, server: &Server) -> Result<Transaction, Fault> {
        let begin = async { server.connected().await?.begin().await.map_err(failed) };
        self.within(During::Work, begin).await
    }

    /// Runs a command in a transaction.
    pub(crate) async fn run_in(
        &self,
        transaction: &mut Transaction,
        mut command: Document,
    ) -> Result<Document, Fault> {
        command.insert("maxTimeMS", self.milliseconds());
        let run = async { answered(transaction.run(command).await.map_err(failed)?, During::Work) };
        self.within(During::Work, run).await
    }

    /// Runs commands that only read, and sees everything that was committed before. Other reads may
    /// miss something after an election: a new primary does not know at once what a majority has.
    /// A transaction reads what the primary itself has, and is committed once a majority has that.
    pub(crate) async fn read_current(
        &self,
        server: &Server,
        commands: impl IntoIterator<Item = Document>,
    ) -> Result<Vec<Document>, Fault> {
        let mut transaction = self.begin(server).await?;
        let mut answers = Vec::new();
        for command in commands {
            answers.push(self.run_in(&mut transaction, command).await?);
        }
        let commit = async { transaction.commit().await.map_err(failed) };
        self.within(During::Work, commit).await?;
        Ok(answers)
    }

    /// Runs a command that only reads what a majority has.
    pub(crate) async fn read(&self, server: &Server, command: Document) -> Result<(Tick, Document), Fault> {
        self.read_at(server, "majority", command).await
    }

    /// Runs a command that only reads, with this read concern.
    pub(crate) async fn read_at(
        &self,
        server: &Server,
        level: &str,
        mut command: Document,
    ) -> Result<(Tick, Document), Fault> {
        command.insert("maxTimeMS", self.milliseconds());
        command.insert("readConcern", doc! { "level": level });
        self.run(server, command, During::Work).await
    }

    async fn run(
        &self,
        server: &Server,
        command: Document,
        during: During,
    ) -> Result<(Tick, Document), Fault> {
        let connected = self.connected(server).await?;
        let sent = Clock::Boot.now();
        let run = async {
            let answer = connected.database.run_command(command).await;
            *lock(&connected.heard) = Clock::Boot.now();
            answered(answer.map_err(|error| fault(&error, during))?, during)
        };
        let answer = self.within(during, run).await;
        if answer.is_err() {
            server.given_up(&connected, sent);
        }
        Ok((sent, answer?))
    }

    /// Asks for the primary's time.
    pub(crate) async fn time(&self, server: &Server) -> Result<(Tick, ServerTime), Fault> {
        let (sent, hello) = self.run(server, doc! { "hello": 1 }, During::Work).await?;
        let time = hello.get_datetime("localTime").copied().unwrap_or(DateTime::MIN).timestamp_millis();
        Ok((sent, ServerTime::from_micros(u64::try_from(time).unwrap_or(0).saturating_mul(1000))))
    }

    /// Returns the milliseconds that are left, for the server.
    pub(crate) fn milliseconds(&self) -> i64 {
        i64::try_from(self.left().as_millis()).unwrap_or(i64::MAX).clamp(1, i64::from(i32::MAX))
    }
}

/// One server for several handles.
pub(crate) type Shared = Arc<Server>;
