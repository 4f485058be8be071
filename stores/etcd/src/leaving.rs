//! [`Leaving`]: names that entries leave, and what is known of them.

use lock_store_sequences::Entry;

use crate::messages::{Compare, KeyValue};
use crate::ranges::signed;

/// A name under which an entry may be that is left.
pub(crate) struct Leaving {
    pub(crate) key: Vec<u8>,
    owner: Vec<u8>,
    /// The revision that made the entry. If it is not known, the value tells the owner.
    born: Option<i64>,
    /// The key, if it is not what was expected.
    seen: Option<Seen>,
}

struct Seen {
    /// The revision that made the key; zero if it is not there.
    revision: i64,
    is_own: bool,
}

impl Leaving {
    pub(crate) fn new(key: Vec<u8>, entry: &Entry, born: Option<u64>) -> Self {
        Self { key, owner: entry.owner.as_str().into(), born: born.map(signed), seen: None }
    }

    /// The condition under which the key is what it is taken for.
    pub(crate) fn condition(&self) -> Compare {
        let key = self.key.clone();
        match (&self.seen, self.born) {
            (Some(seen), _) => Compare::created(key, seen.revision),
            (None, Some(born)) => Compare::created(key, born),
            (None, None) => Compare::value(key, self.owner.clone()),
        }
    }

    pub(crate) fn is_own(&self) -> bool {
        self.seen.as_ref().is_none_or(|seen| seen.is_own)
    }

    pub(crate) fn see(&mut self, kv: Option<&KeyValue>) {
        let is_own = kv.is_some_and(|kv| match self.born {
            Some(born) => kv.create_revision == born,
            None => kv.value == self.owner,
        });
        self.seen = Some(Seen { revision: kv.map_or(0, |kv| kv.create_revision), is_own });
    }
}
