//! [`Station`]: where a manager hears of the steps of others, by LISTEN and NOTIFY.
//!
//! NOTIFY makes all commits of a server wait for each other, so a step notifies only those who
//! wait. A waiter in a queue has its station in the record. For all others, the process is in the
//! column `listeners` of the row.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use lock_core::internal::clock::{Clock, Tick};
use lock_core::internal::sync::{Mutex, lock};
use lock_core::store::kit::Backoff;
use lock_store_records::{Class, HandleId, ListenerId, Listeners, Name};
use sqlx::postgres::{PgConnectOptions, PgListener, PgPoolOptions};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout, timeout_at};

use crate::links::Links;
use crate::notices::{Notices, channel, read};
use crate::plumbing::Arg;
use crate::row::text_of;
use crate::statements::Statements;

/// Message of a process to itself.
const TEST: &str = "?";

/// Time for which a process is registered in a row.
const LIFE: Duration = Duration::from_secs(60);

/// Time between two looks whether the connection is alive, and the registrations are fresh.
const ROUND: Duration = Duration::from_secs(15);

/// Time for an answer to such a look.
const ANSWER: Duration = Duration::from_secs(5);

/// Number of rows in a statement that registers.
const BATCH: usize = 500;

/// The place where a manager hears of the steps of others. Begins to listen when it is first
/// needed, over a connection of its own.
#[derive(Debug)]
pub(crate) struct Station {
    shared: Arc<Shared>,
    task: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Debug)]
struct Shared {
    id: ListenerId,
    options: PgConnectOptions,
    /// For registrations.
    links: Links,
    statements: Statements,
    listeners: Arc<Mutex<Listeners>>,
    /// Whether messages arrive.
    works: watch::Sender<bool>,
    /// When this manager was registered in these rows.
    registered: Mutex<HashMap<Name, Tick>>,
    /// Names that wait to be registered, in the order of class and name.
    wanted: Mutex<BTreeSet<Name>>,
    /// For the one caller that registers.
    turn: tokio::sync::Mutex<()>,
}

impl Station {
    /// Creates the station of a manager, if its database can notify.
    pub(crate) fn of(
        notices: &Notices,
        links: &Links,
        statements: &Statements,
        listeners: &Arc<Mutex<Listeners>>,
    ) -> Option<Self> {
        let (id, options) = (notices.here()?, links.options.sessions()?);
        let shared = Shared {
            id: Arc::clone(id),
            options: options.clone(),
            links: links.clone(),
            statements: statements.clone(),
            listeners: Arc::clone(listeners),
            works: watch::Sender::new(false),
            registered: Mutex::default(),
            wanted: Mutex::default(),
            turn: tokio::sync::Mutex::default(),
        };
        Some(Self { shared: Arc::new(shared), task: Mutex::default() })
    }

    /// Returns once messages about these records arrive.
    pub(crate) async fn listen(&self, names: &[Name]) -> Result<(), sqlx::Error> {
        self.start();
        let mut works = self.shared.works.subscribe();
        // The sender is in `shared`, so this is no error.
        let _ = works.wait_for(|works| *works).await;
        self.shared.register(names).await
    }

    /// Starts the task, unless it runs.
    fn start(&self) {
        let mut task = lock(&self.task);
        if task.as_ref().is_none_or(JoinHandle::is_finished) {
            let works = Works(Arc::clone(&self.shared));
            *task = Some(tokio::spawn(works.run()));
        }
    }
}

impl Drop for Station {
    fn drop(&mut self) {
        if let Some(task) = lock(&self.task).take() {
            task.abort();
        }
    }
}

/// The task that listens. When it is dropped, messages no longer arrive.
struct Works(Arc<Shared>);

impl Works {
    async fn run(self) {
        let mut backoff = Backoff::default();
        let mut was_lost = false;
        loop {
            if let Ok(Ok(listener)) = timeout(ANSWER, self.0.connect()).await {
                backoff = Backoff::default();
                // Another server may not have them.
                lock(&self.0.registered).clear();
                self.0.set_works(true);
                if was_lost {
                    self.0.missed();
                }
                // How it ends makes no difference.
                let _ = self.0.hear(listener).await;
                self.0.set_works(false);
                was_lost = true;
            }
            tokio::time::sleep(backoff.next_pause()).await;
        }
    }
}

impl Drop for Works {
    fn drop(&mut self) {
        self.0.set_works(false);
    }
}

impl Shared {
    fn set_works(&self, works: bool) {
        lock(&self.listeners).listen_at(works.then(|| Arc::clone(&self.id)));
        self.works.send_replace(works);
    }

    /// Connects, and waits for a message to itself: behind some poolers, none arrives.
    async fn connect(&self) -> Result<PgListener, sqlx::Error> {
        let pool = PgPoolOptions::new().max_connections(1).idle_timeout(None).max_lifetime(None);
        let mut listener = PgListener::connect_with(&pool.connect_lazy_with(self.options.clone())).await?;
        listener.eager_reconnect(false);
        let channel = channel(&self.id);
        listener.listen(&channel).await?;
        let mut link = self.links.take().await?;
        link.rows("SELECT pg_notify($1, $2)", &[Arg::Text(&channel), Arg::Text(TEST)]).await?;
        link.give_back();
        match listener.try_recv().await? {
            Some(_) => Ok(listener),
            None => Err(sqlx::Error::PoolClosed),
        }
    }

    /// Passes messages on until the connection is lost.
    async fn hear(&self, mut listener: PgListener) -> Result<(), sqlx::Error> {
        loop {
            let names = lock(&self.listeners).public_names();
            let watched: HashSet<_> = names.iter().collect();
            lock(&self.registered).retain(|name, _| watched.contains(name));
            // If it fails, the next round tries again: registrations last for several.
            let _ = timeout(ANSWER, self.register(&names)).await;
            let round = Instant::now() + ROUND;
            while Instant::now() < round
                && let Ok(message) = timeout_at(round, listener.try_recv()).await
            {
                let Some(message) = message? else { return Ok(()) };
                self.pass_on(message.payload());
            }
            let alive = sqlx::Executor::execute(&mut listener, "SELECT 1");
            timeout(ANSWER, alive).await.map_err(|_| sqlx::Error::PoolTimedOut)??;
        }
    }

    /// Registers this manager in rows, so that releases notify it. Those who come while a statement
    /// is under way share the next one.
    async fn register(&self, names: &[Name]) -> Result<(), sqlx::Error> {
        let now = Clock::Boot.now();
        let stale = |registered: &HashMap<Name, Tick>, name: &Name| {
            registered.get(name).is_none_or(|at| now.since(*at) >= LIFE / 3)
        };
        let mine: Vec<&Name> = {
            let registered = lock(&self.registered);
            names.iter().filter(|name| stale(&registered, name)).collect()
        };
        if mine.is_empty() {
            return Ok(());
        }
        lock(&self.wanted).extend(mine.iter().copied().cloned());
        let _turn = self.turn.lock().await;
        let mut all = std::mem::take(&mut *lock(&self.wanted));
        all.extend(mine.into_iter().cloned());
        {
            let registered = lock(&self.registered);
            all.retain(|name| stale(&registered, name));
        }
        let all: Vec<Name> = all.into_iter().collect();
        let mut outcome = Ok(());
        for batch in all.chunk_by(|one, other| one.class == other.class) {
            for names in batch.chunks(BATCH) {
                // One that fails, because somebody has locked a row, costs no other.
                outcome = self.register_some(names).await.and(outcome);
            }
        }
        outcome
    }

    /// Registers this manager in these rows of one class.
    async fn register_some(&self, names: &[Name]) -> Result<(), sqlx::Error> {
        let now = Clock::Boot.now();
        let class = names.first().map_or(Class::Lock, |name| name.class);
        let texts: Vec<&str> = names.iter().map(|name| &*name.text).collect();
        let life = i64::try_from(LIFE.as_micros()).unwrap_or(0);
        let args = [Arg::Text(text_of(class)), Arg::Names(&texts), Arg::Text(&self.id), Arg::Int(life)];
        let mut link = self.links.take().await?;
        let done = link.rows(&self.statements.register, &args).await;
        link.give_back();
        done?;
        lock(&self.registered).extend(names.iter().map(|name| (name.clone(), now)));
        Ok(())
    }

    /// Wakes the watches that the message is for.
    fn pass_on(&self, message: &str) {
        let bell = match read(message) {
            Some((name, event, now)) => lock(&self.listeners).bell(&[name], &[event], now),
            None if message.starts_with(TEST) => return,
            None => lock(&self.listeners).missed(),
        };
        bell.ring(HandleId::ELSEWHERE);
    }

    /// Wakes all watches.
    fn missed(&self) {
        let bell = lock(&self.listeners).missed();
        bell.ring(HandleId::ELSEWHERE);
    }
}
