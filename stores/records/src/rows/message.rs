//! [`message`]: what a step tells other processes.

use lock_core::{FencingToken, OwnerId};

use super::found::{class_named, text_of};
use crate::listeners::{Event, What};
use crate::record::Name;

/// Maximum length of a message in bytes. PostgreSQL takes 7999, with the time that is added.
const LONGEST: usize = 7900;

/// Message about a change that would be too long: its process looks at everything it waits for.
const ANYTHING: &str = "*";

/// Returns the message about an event.
#[must_use]
pub fn message(name: &Name, what: &What) -> String {
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

/// Reads a message; `None` if anything may have happened.
#[must_use]
pub fn read_message(message: &str) -> Option<(Name, Event)> {
    type Parts = (String, String, String, Option<String>, Option<u64>);
    let (class, name, word, owner, token): Parts = serde_json::from_str(message).ok()?;
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
    Some((name, Event { index: 0, what, to: None }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Class;

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
            let message = message(&name, &what);
            let (is, event) = read_message(&message).unwrap();
            assert_eq!((is, event.what), (name.clone(), what));
            assert!(!message.contains('\n'), "it is one line");
        }
    }

    #[test]
    fn a_long_message_says_that_anything_may_have_happened() {
        let name = Name { class: Class::Lock, text: "\u{1}".repeat(2500).into() };
        let message = message(&name, &What::Freed);
        assert_eq!((message.as_str(), read_message(&message)), (ANYTHING, None));
    }
}
