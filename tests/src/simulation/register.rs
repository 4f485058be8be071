//! [`Register`]: sets in a separate store, which refuses smaller tokens than the largest it has
//! seen.

use std::collections::BTreeMap;
use std::sync::Mutex;

use crate::history::{Event, Log, Wrote};

#[derive(Debug)]
pub(super) struct Register {
    log: Log,
    sets: Mutex<BTreeMap<String, Set>>,
}

#[derive(Debug, Default)]
struct Set {
    token: u64,
    elements: Vec<String>,
}

impl Register {
    pub(super) fn new(log: Log) -> Self {
        Self { log, sets: Mutex::default() }
    }

    /// Returns the elements of a set. From now on smaller tokens can't write to it: the reader
    /// would overwrite a write that is still under way, and lose its element.
    pub(super) fn read(&self, set: &str, token: u64) -> Option<Vec<String>> {
        let mut sets = self.sets.lock().unwrap();
        let set = sets.entry(set.to_owned()).or_default();
        if token < set.token {
            return None;
        }
        set.token = token;
        Some(set.elements.clone())
    }

    /// Writes the whole set, of which `element` is new. [`Check::Forgotten`] accepts any token.
    pub(super) fn write(&self, name: &str, token: u64, elements: Vec<String>, element: String, check: Check) {
        let mut sets = self.sets.lock().unwrap();
        let set = sets.entry(name.to_owned()).or_default();
        let accepted = check == Check::Forgotten || token >= set.token;
        if accepted {
            set.token = set.token.max(token);
            set.elements = elements;
        }
        drop(sets);
        let outcome = if accepted { Wrote::Accepted } else { Wrote::Refused };
        self.log.say(&Event::Wrote { set: name.to_owned(), token, element, outcome });
    }

    /// Notes the elements of each set.
    pub(super) fn note(&self) {
        for (name, set) in &*self.sets.lock().unwrap() {
            let elements = set.elements.clone();
            self.log.say(&Event::Contents { set: name.clone(), elements });
        }
    }
}

/// Whether a token is checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Check {
    Made,
    Forgotten,
}
