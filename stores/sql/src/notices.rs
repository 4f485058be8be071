//! [`Notices`]: what a step tells other managers, by NOTIFY.

use lock_store_records::{Event, ListenerId, Name, What};
#[cfg(feature = "postgres")]
use {
    crate::row::{class_named, time},
    lock_core::store::ServerTime,
    lock_core::{FencingToken, OwnerId},
};

use crate::links::Options;
use crate::row::{new_version, text_of};
use crate::statements::quoted;

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
    /// Where this manager listens; `None` if the database can't notify.
    here: Option<ListenerId>,
}

impl Notices {
    pub(crate) fn of(options: &Options) -> Self {
        let mut id = new_version();
        id.truncate(12);
        Self { here: options.is_postgres().then(|| id.into()) }
    }

    /// Returns where this manager listens.
    #[cfg(feature = "postgres")]
    pub(crate) fn here(&self) -> Option<&ListenerId> {
        self.here.as_ref()
    }

    /// Returns the messages about events that others have to hear.
    fn messages<'a>(&self, names: &[Name], events: &'a [Event]) -> Vec<(&'a Event, String)> {
        let Some(here) = &self.here else { return Vec::new() };
        let elsewhere = |event: &&Event| event.to.as_ref() != Some(here);
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
        for (event, message) in self.messages(names, events) {
            if whom == Whom::Public && event.to.is_some() {
                continue;
            }
            let all = listeners.get(event.index).and_then(Option::as_deref).unwrap_or("[]");
            let all: Vec<(String, i64)> = serde_json::from_str(all).unwrap_or_default();
            let others =
                all.into_iter().filter(|(id, until)| *until > now && Some(&**id) != self.here.as_deref());
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
}

pub(crate) fn channel(id: &str) -> String {
    format!("{CHANNEL}{id}")
}

/// Returns the message about an event, without the time.
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
