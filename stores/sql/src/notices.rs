//! [`Notices`]: what a step tells other managers, by NOTIFY.

use lock_store_records::{Event, ListenerId, Name, What};
#[cfg(feature = "postgres")]
use {
    crate::row::{class_named, time},
    lock_core::store::ServerTime,
    lock_core::{FencingToken, OwnerId},
};

use crate::links::Options;
use crate::plumbing::quoted;
use crate::row::{new_version, text_of};

/// Beginning of the name of each channel.
const CHANNEL: &str = "lock_";

/// Maximum length of a message in bytes. PostgreSQL takes 7999, with the time that is added.
const LONGEST: usize = 7900;

/// Message about a change that would be too long: its process looks at everything it waits for.
const ANYTHING: &str = "*";

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

/// Returns the message without the time.
fn message(name: &Name, what: &What) -> String {
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
#[cfg(feature = "postgres")]
pub(crate) fn read(message: &str) -> Option<(Name, Event, ServerTime)> {
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

#[cfg(all(test, feature = "postgres"))]
mod tests {
    use lock_store_records::Class;

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
