//! [`Station`]: where a manager hears of the steps of others.
//!
//! A step notifies only those who wait. A waiter in a queue has its station in the record. For all
//! others, the process is registered in the row.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use lock_core::internal::clock::{Clock, Tick};
use lock_core::internal::sync::{Mutex, lock};
use lock_core::store::ServerTime;
use lock_core::store::kit::Backoff;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout, timeout_at};

use crate::listeners::{Event, HandleId, Listeners};
use crate::queue::ListenerId;
use crate::record::Name;

/// Time for which a process is registered in a row.
pub const LIFE: Duration = Duration::from_secs(60);

/// Time between two looks whether the connection is alive, and the registrations are fresh.
const ROUND: Duration = Duration::from_secs(15);

/// Time for an answer to such a look.
const ANSWER: Duration = Duration::from_secs(5);

/// Number of rows in a message that registers.
const BATCH: usize = 500;

/// A connection over which messages arrive.
pub trait Wire: Send + Sync + 'static {
    /// The connection that messages arrive on.
    type Stream: Send;
    /// Why it did not work.
    type Error: Send;

    /// Returns once messages arrive.
    fn connect(&self) -> impl Future<Output = Result<Self::Stream, Self::Error>> + Send;

    /// Returns the next message; `None` if some may have been lost. Cancel safe.
    fn next(
        &self,
        stream: &mut Self::Stream,
    ) -> impl Future<Output = Result<Option<Arrived>, Self::Error>> + Send;

    /// Fails if no messages arrive any more.
    fn check(&self, stream: &mut Self::Stream) -> impl Future<Output = Result<(), Self::Error>> + Send;

    /// Registers this process in the rows of these names of one class, for [`LIFE`].
    fn register(&self, names: &[Name]) -> impl Future<Output = Result<(), Self::Error>> + Send;
}

/// The content of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Arrived {
    /// These events of rows have happened.
    Events(Vec<(Name, Event, ServerTime)>),
    /// Anything may have happened.
    Anything,
}

/// The place where a manager hears of the steps of others. Begins to listen when it is first
/// needed.
pub struct Station<W: Wire> {
    shared: Arc<Shared<W>>,
    task: Mutex<Option<JoinHandle<()>>>,
}

impl<W: Wire> fmt::Debug for Station<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Station").field("id", &self.shared.id).finish_non_exhaustive()
    }
}

struct Shared<W> {
    id: ListenerId,
    wire: W,
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

impl<W: Wire> Station<W> {
    /// Creates the station `id` of a manager.
    pub fn new(id: ListenerId, wire: W, listeners: &Arc<Mutex<Listeners>>) -> Self {
        let shared = Shared {
            id,
            wire,
            listeners: Arc::clone(listeners),
            works: watch::Sender::new(false),
            registered: Mutex::default(),
            wanted: Mutex::default(),
            turn: tokio::sync::Mutex::default(),
        };
        Self { shared: Arc::new(shared), task: Mutex::default() }
    }

    /// Returns once messages about these records arrive.
    ///
    /// # Errors
    ///
    /// If this process could not be registered.
    pub async fn listen(&self, names: &[Name]) -> Result<(), W::Error> {
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

impl<W: Wire> Drop for Station<W> {
    fn drop(&mut self) {
        if let Some(task) = lock(&self.task).take() {
            task.abort();
        }
    }
}

/// The task that listens. When it is dropped, messages no longer arrive.
struct Works<W: Wire>(Arc<Shared<W>>);

impl<W: Wire> Works<W> {
    async fn run(self) {
        let mut backoff = Backoff::default();
        let mut was_lost = false;
        loop {
            if let Ok(Ok(stream)) = timeout(ANSWER, self.0.wire.connect()).await {
                backoff = Backoff::default();
                // Another server may not have them.
                lock(&self.0.registered).clear();
                self.0.set_works(true);
                if was_lost {
                    self.0.missed();
                }
                // How it ends makes no difference.
                let _ = self.0.hear(stream).await;
                self.0.set_works(false);
                was_lost = true;
            }
            tokio::time::sleep(backoff.next_pause()).await;
        }
    }
}

impl<W: Wire> Drop for Works<W> {
    fn drop(&mut self) {
        self.0.set_works(false);
    }
}

impl<W: Wire> Shared<W> {
    fn set_works(&self, works: bool) {
        lock(&self.listeners).listen_at(works.then(|| Arc::clone(&self.id)));
        self.works.send_replace(works);
    }

    /// Passes messages on until some may have been lost.
    async fn hear(&self, mut stream: W::Stream) -> Result<(), W::Error> {
        loop {
            let names = lock(&self.listeners).public_names();
            let watched: HashSet<_> = names.iter().collect();
            lock(&self.registered).retain(|name, _| watched.contains(name));
            // If it fails, the next round tries again: registrations last for several.
            let _ = timeout(ANSWER, self.register(&names)).await;
            let round = Instant::now() + ROUND;
            while Instant::now() < round
                && let Ok(heard) = timeout_at(round, self.wire.next(&mut stream)).await
            {
                match heard? {
                    Some(Arrived::Events(events)) => self.pass_on(events),
                    Some(Arrived::Anything) => self.missed(),
                    None => return Ok(()),
                }
            }
            if !matches!(timeout(ANSWER, self.wire.check(&mut stream)).await, Ok(Ok(()))) {
                return Ok(());
            }
        }
    }

    /// Registers this manager in rows, so that releases notify it. Those who come while a message
    /// is under way share the next one.
    async fn register(&self, names: &[Name]) -> Result<(), W::Error> {
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
    async fn register_some(&self, names: &[Name]) -> Result<(), W::Error> {
        let now = Clock::Boot.now();
        self.wire.register(names).await?;
        lock(&self.registered).extend(names.iter().map(|name| (name.clone(), now)));
        Ok(())
    }

    /// Wakes the watches that the events are for.
    fn pass_on(&self, events: Vec<(Name, Event, ServerTime)>) {
        for (name, event, now) in events {
            let bell = lock(&self.listeners).bell(&[name], &[event], now);
            bell.ring(HandleId::ELSEWHERE);
        }
    }

    /// Wakes all watches.
    fn missed(&self) {
        let bell = lock(&self.listeners).missed();
        bell.ring(HandleId::ELSEWHERE);
    }
}
