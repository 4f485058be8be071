//! [`Numbers`]: the numbers in the names of entries.
//!
//! etcd's index keeps deleted keys until the next compaction. It looks at all of them when it looks
//! for the first key of a queue. So names are used again, and a lock has as many as it had entries
//! of a session at once.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use lock_core::internal::sync::{Mutex, lock};
use lock_store_sequences::{Class, Entry, Session};

/// The numbers of the entries that may be there.
#[derive(Debug, Default)]
pub(crate) struct Numbers(Mutex<Inner>);

#[derive(Debug, Default)]
struct Inner {
    named: HashMap<(Session, Entry), Named>,
    queues: HashMap<(Session, Arc<str>, Class), Queue>,
}

#[derive(Debug)]
struct Named {
    /// Those that it has had. The last one counts; under the others are entries of somebody else.
    numbers: Vec<u32>,
    /// How often it is remembered.
    uses: usize,
}

/// The numbers of a queue: all below `next` that are not free are used.
#[derive(Debug, Default)]
struct Queue {
    next: u32,
    free: BTreeSet<u32>,
}

impl Queue {
    fn take(&mut self) -> u32 {
        self.free.pop_first().unwrap_or_else(|| {
            self.next += 1;
            self.next - 1
        })
    }
}

impl Inner {
    fn take(&mut self, session: Session, entry: &Entry) -> u32 {
        let queue = (session, Arc::clone(&entry.lock), entry.class);
        self.queues.entry(queue).or_default().take()
    }
}

impl Numbers {
    /// Gives an entry a number, until it is [forgotten](Self::forget) as often.
    pub(crate) fn remember(&self, session: Session, entry: &Entry) {
        let mut inner = lock(&self.0);
        let name = (session, entry.clone());
        if let Some(named) = inner.named.get_mut(&name) {
            named.uses += 1;
            return;
        }
        let number = inner.take(session, entry);
        inner.named.insert(name, Named { numbers: vec![number], uses: 1 });
    }

    pub(crate) fn forget(&self, session: Session, entry: &Entry) {
        let mut inner = lock(&self.0);
        let name = (session, entry.clone());
        let Some(named) = inner.named.get_mut(&name) else { return };
        named.uses -= 1;
        if named.uses > 0 {
            return;
        }
        let numbers = inner.named.remove(&name).map_or_else(Vec::new, |named| named.numbers);
        let queue = (session, Arc::clone(&entry.lock), entry.class);
        if let Some(numbered) = inner.queues.get_mut(&queue) {
            numbered.free.extend(numbers);
            if numbered.free.len() == numbered.next as usize {
                inner.queues.remove(&queue);
            }
        }
    }

    /// Gives an entry another number, because there is somebody else's entry under this one. Does
    /// nothing if it has another one by now.
    pub(crate) fn change(&self, session: Session, entry: &Entry, taken: u32) {
        let mut inner = lock(&self.0);
        let name = (session, entry.clone());
        if inner.named.get(&name).is_none_or(|named| named.numbers.last() != Some(&taken)) {
            return;
        }
        let number = inner.take(session, entry);
        if let Some(named) = inner.named.get_mut(&name) {
            named.numbers.push(number);
        }
    }

    /// Returns the number of an entry; `None` if it is not remembered.
    pub(crate) fn last(&self, session: Session, entry: &Entry) -> Option<u32> {
        let inner = lock(&self.0);
        inner.named.get(&(session, entry.clone()))?.numbers.last().copied()
    }

    /// Returns all numbers that an entry has had; none if it is not remembered.
    pub(crate) fn all(&self, session: Session, entry: &Entry) -> Vec<u32> {
        let inner = lock(&self.0);
        let named = inner.named.get(&(session, entry.clone()));
        named.map_or_else(Vec::new, |named| named.numbers.clone())
    }
}

#[cfg(test)]
mod tests {
    use lock_core::OwnerId;

    use super::*;

    const SESSION: Session = Session(7);

    fn entry(owner: u32) -> Entry {
        Entry { lock: "a".into(), class: Class::Lock, owner: OwnerId::new(format!("tester:{owner}")) }
    }

    #[test]
    fn numbers_are_used_again_by_others_of_the_same_queue() {
        let numbers = Numbers::default();
        let [one, two, three] = [1, 2, 3].map(entry);
        for entry in [&one, &two] {
            numbers.remember(SESSION, entry);
        }
        assert_eq!([&one, &two].map(|entry| numbers.all(SESSION, entry)), [[0], [1]]);
        numbers.remember(Session(8), &three);
        assert_eq!(numbers.all(Session(8), &three), [0], "each session has its own");
        numbers.remember(SESSION, &one);
        numbers.forget(SESSION, &one);
        assert_eq!(numbers.all(SESSION, &one), [0], "it was remembered twice");
        numbers.forget(SESSION, &one);
        assert_eq!(numbers.all(SESSION, &one), [0; 0]);
        numbers.remember(SESSION, &three);
        assert_eq!(numbers.all(SESSION, &three), [0]);
        for (session, entry) in [(SESSION, &two), (SESSION, &three), (Session(8), &three)] {
            numbers.forget(session, entry);
        }
        let inner = lock(&numbers.0);
        assert!(inner.named.is_empty() && inner.queues.is_empty(), "nothing is left: {inner:?}");
    }

    #[test]
    fn an_entry_may_get_another_number_and_gives_all_back() {
        let numbers = Numbers::default();
        let [one, two] = [1, 2].map(entry);
        numbers.remember(SESSION, &one);
        for _ in 0..2 {
            numbers.change(SESSION, &one, 0);
        }
        numbers.change(SESSION, &two, 0);
        numbers.remember(SESSION, &two);
        assert_eq!((numbers.all(SESSION, &one), numbers.all(SESSION, &two)), (vec![0, 1], vec![2]));
        assert_eq!(numbers.last(SESSION, &one), Some(1));
        numbers.forget(SESSION, &one);
        assert_eq!(numbers.last(SESSION, &one), None);
        numbers.forget(SESSION, &two);
        assert!(lock(&numbers.0).queues.is_empty());
    }
}
