//! [`Notices`]: what a step tells other managers, by NOTIFY.

#[cfg(feature = "postgres")]
use lock_core::store::ServerTime;
use lock_store_records::rows::{message, new_version};
#[cfg(feature = "postgres")]
use lock_store_records::rows::{read_message, time};
use lock_store_records::{Event, ListenerId, Name, What};

use crate::options::Options;
use crate::plumbing::quoted;

/// Beginning of the name of each channel.
const CHANNEL: &str = "lock_";

/// Whom to notify.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Whom {
    All,
    /// Those who listen to a row, and not single waiters.
    Public,
}

/// The notices of one manager.
#[derive(Debug)]
pub(crate) struct Notices {
    /// Whether the database can notify.
    notifies: bool,
    /// Where this manager listens; `None` if nothing arrives.
    here: Option<ListenerId>,
}

impl Notices {
    pub(crate) fn of(options: &Options) -> Self {
        let mut id = new_version();
        id.truncate(12);
        #[cfg(feature = "postgres")]
        let listens = options.sessions().is_some();
        #[cfg(not(feature = "postgres"))]
        let listens = false;
        Self { notifies: options.notifies(), here: listens.then(|| id.into()) }
    }

    /// Returns where this manager listens.
    #[cfg(feature = "postgres")]
    pub(crate) fn here(&self) -> Option<&ListenerId> {
        self.here.as_ref()
    }

    /// Returns channels with the messages to single waiters about a step at the time `at`, as JSON;
    /// `None` if there are none.
    pub(crate) fn direct(&self, name: &Name, events: &[Event], at: i64) -> Option<String> {
        let mut direct = Vec::new();
        for event in events {
            if let Some(to) = event.to.as_ref().filter(|to| self.here.as_ref() != Some(to)) {
                direct.push([channel(to), told(name, &event.what, at)]);
            }
        }
        if direct.is_empty() || !self.notifies { None } else { serde_json::to_string(&direct).ok() }
    }

    /// Returns statements that notify others of events. Each record has its `listeners`.
    pub(crate) fn statements(
        &self,
        names: &[Name],
        listeners: &[Option<String>],
        events: &[Event],
        whom: Whom,
        now: i64,
    ) -> String {
        let mut notices = String::new();
        if !self.notifies {
            return notices;
        }
        for event in events {
            let to = match (&event.to, listeners.get(event.index)) {
                (Some(to), _) if whom == Whom::All => vec![to.to_string()],
                (None, Some(Some(all))) => {
                    let all: Vec<(String, i64)> = serde_json::from_str(all).unwrap_or_default();
                    all.into_iter().filter(|(_, until)| *until > now).map(|(id, _)| id).collect()
                }
                _ => continue,
            };
            let (Some(name), false) = (names.get(event.index), to.is_empty()) else { continue };
            let message = quoted(&told(name, &event.what, now));
            for to in to.iter().filter(|to| self.here.as_deref() != Some(to)) {
                notices += &format!("SELECT pg_notify({}, {message}); ", quoted(&channel(to)));
            }
        }
        notices
    }
}

pub(crate) fn channel(id: &str) -> String {
    format!("{CHANNEL}{id}")
}

/// Returns the message about an event at the time `at`.
fn told(name: &Name, what: &What, at: i64) -> String {
    format!("{} {at}", message(name, what))
}

/// Reads a message with its time; `None` if it can't be read.
#[cfg(feature = "postgres")]
pub(crate) fn read(message: &str) -> Option<(Name, Event, ServerTime)> {
    let (text, now) = message.rsplit_once(' ')?;
    let (name, event) = read_message(text)?;
    Some((name, event, time(now.parse().ok()?)))
}
