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
use lock_core::{FencingToken, OwnerId};
use lock_store_records::{Class, Event, HandleId, ListenerId, Listeners, Name, What};
use sqlx::postgres::{PgConnectOptions, PgListener, PgPoolOptions};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout, timeout_at};

use crate::links::Links;
use crate::plumbing::Arg;
use crate::row::{Whom, class_named, new_version, text_of, time};
use crate::statements::{Statements, quoted};

/// Beginning of the name of each channel.
const CHANNEL: &str = "lock_";

/// Maximum length of a message in bytes. PostgreSQL takes 7999, with the time that is added.
const LONGEST: usize = 7900;

/// Message about a change that would be too long: its process looks at everything it waits for.
const ANYTHING: &str = "*";

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
    /// Creates the station of a process, if its database can notify.
    pub(crate) fn of(
        links: &Links,
        statements: &Statements,
        listeners: &Arc<Mutex<Listeners>>,
    ) -> Option<Self> {
        let options = links.options.postgres()?;
        let mut id = new_version();
        id.truncate(12);
        lock(listeners).listen_at(None);
        let shared = Shared {
            id: id.into(),
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

    /// Returns the messages about events that others have to hear.
    fn messages<'a>(&self, names: &[Name], events: &'a [Event]) -> Vec<(&'a Event, String)> {
        let elsewhere = |event: &&Event| event.to.as_ref() != Some(&self.shared.id);
        let message = |event: &'a Event| Some((event, message(names.get(event.index)?, &event.what)));
        events.iter().filter(elsewhere).filter_map(message).collect()
    }

    /// Returns channels with the messages to single waiters about a step at the time `at`, as JSON;
    /// `None` if there are none.
    pub(crate) fn direct(&self, name: &Name, events: &[Event], at: i64) -> Option<String> {
        let messages = self.messages(std::slice::from_ref(name), events).into_iter();
        let direct = messages
            .filter_map(|(event, message)| Some([channel(event.to.as_ref()?), format!("{message} {at}")]));
        let direct: Vec<_> = direct.collect();
        if direct.is_empty() { None } else { serde_json::to_string(&direct).ok() }
    }

    /// Returns statements that notify others.
    pub(crate) fn notices(
        &self,
        names: &[Name],
        listeners: &[Option<String>],
        events: &[Event],
        whom: Whom,
        now: i64,
    ) -> String {
        let mut notices = String::new();
        for (event, message) in self.messages(names, events) {
            if whom == Whom::Public && event.to.is_some() {
                continue;
            }
            let all = listeners.get(event.index).and_then(Option::as_deref).unwrap_or("[]");
            let all: Vec<(String, i64)> = serde_json::from_str(all).unwrap_or_default();
            let others = all.into_iter().filter(|(id, until)| *until > now && **id != *self.shared.id);
            let to: Vec<String> = match &event.to {
                Some(to) => vec![to.to_string()],
                None => others.map(|(id, _)| id).collect(),
            };
            let message = quoted(&format!("{message} {now}"));
            for to in to {
                notices += &format!("SELECT pg_notify({}, {message}); ", quoted(&channel(&to)));
            }
        }
        notices
    }

    /// Returns once messages about these records arrive.
    pub(crate) async fn listen(&self, names: &[Name]) -> Result<bool, sqlx::Error> {
        self.start();
        let mut works = self.shared.works.subscribe();
        let works = works.wait_for(|works| *works).await.is_ok();
        self.shared.register(names).await?;
        Ok(works)
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
        let texts = serde_json::to_string(&texts).unwrap_or_default();
        let life = i64::try_from(LIFE.as_micros()).unwrap_or(0);
        let args = [Arg::Text(text_of(class)), Arg::Text(&texts), Arg::Text(&self.id), Arg::Int(life)];
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

fn channel(id: &str) -> String {
    format!("{CHANNEL}{id}")
}

/// Returns the message about an event. The statement adds a space and the time.
pub(crate) fn message(name: &Name, what: &What) -> String {
    let (word, owner, token) = match what {
        What::Freed => ("freed", None, None),
        What::Readable => ("readable", None, None),
        What::Changed => ("changed", None, None),
        What::Told(owner) => ("told", Some(owner.as_str()), None),
        What::Granted(owner, token) => ("granted", Some(owner.as_str()), Some(token.get())),
    };
    let message = serde_json::to_string(&(text_of(name.class), &*name.text, word, owner, token));
    message.ok().filter(|message| message.len() <= LONGEST).unwrap_or_else(|| ANYTHING.to_owned())
}

/// Reads a message with its time; `None` if it can't be read.
fn read(message: &str) -> Option<(Name, Event, lock_core::store::ServerTime)> {
    type Parts = (String, String, String, Option<String>, Option<u64>);
    let (text, now) = message.rsplit_once(' ')?;
    let (class, name, word, owner, token): Parts = serde_json::from_str(text).ok()?;
    let owner = owner.map(OwnerId::new);
    let what = match word.as_str() {
        "freed" => What::Freed,
        "readable" => What::Readable,
        "changed" => What::Changed,
        "told" => What::Told(owner?),
        "granted" => What::Granted(owner?, FencingToken::new(token?)),
        _ => return None,
    };
    let name = Name { class: class_named(&class)?, text: name.into() };
    Some((name, Event { index: 0, what, to: None }, time(now.parse().ok()?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_says_what_has_happened() {
        let owner = OwnerId::new("o \"1\"");
        let name = Name { class: Class::Lock, text: "a b\n".into() };
        let all = [
            What::Freed,
            What::Readable,
            What::Changed,
            What::Told(owner.clone()),
            What::Granted(owner, FencingToken::new(u64::MAX)),
        ];
        for what in all {
            let (is, event, now) = read(&format!("{} 17", message(&name, &what))).unwrap();
            assert_eq!((is, event.what, now), (name.clone(), what, time(17)));
        }
    }

    #[test]
    fn a_long_message_says_that_anything_may_have_happened() {
        let name = Name { class: Class::Lock, text: "\u{1}".repeat(2500).into() };
        let message = message(&name, &What::Freed);
        assert_eq!((message.as_str(), read(&message)), (ANYTHING, None));
    }
}
