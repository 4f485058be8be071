//! [`Names`]: the nodes that a session has made, by entry.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use lock_core::internal::sync::{Mutex, lock};
use lock_store_sequences::{Entry, Session};

use crate::names;

/// Where the node of an entry is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum At {
    /// The entry has no node.
    #[default]
    Nowhere,
    /// A request for one had no answer.
    Unknown,
    /// It is there, unless it was deleted.
    Node(Node),
}

/// The node of an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Node {
    pub(crate) path: Arc<str>,
    /// The revision that made it.
    pub(crate) born: u64,
    /// The reader's node that may be there in its place.
    pub(crate) turned: Option<Arc<str>>,
}

/// The nodes of a session.
#[derive(Debug, Default)]
pub(crate) struct Names {
    all: Mutex<HashMap<Entry, (u32, At)>>,
}

impl Names {
    pub(crate) fn remember(&self, entry: &Entry) {
        lock(&self.all).entry(entry.clone()).or_default().0 += 1;
    }

    /// Returns whether nobody needs the entry any more although it may be there.
    pub(crate) fn forget(&self, entry: &Entry) -> bool {
        let mut all = lock(&self.all);
        let Some((users, at)) = all.get_mut(entry) else { return false };
        *users -= 1;
        if *users > 0 {
            return false;
        }
        let may_be_there = *at != At::Nowhere;
        all.remove(entry);
        may_be_there
    }

    pub(crate) fn is_empty(&self) -> bool {
        lock(&self.all).is_empty()
    }

    pub(crate) fn get(&self, entry: &Entry) -> At {
        lock(&self.all).get(entry).map(|(_, at)| at.clone()).unwrap_or_default()
    }

    /// Returns the node of an entry, if it was made by this revision.
    pub(crate) fn node(&self, entry: &Entry, born: u64) -> Option<Node> {
        match self.get(entry) {
            At::Node(node) if node.born == born => Some(node),
            _ => None,
        }
    }

    /// Records where the node of an entry is.
    pub(crate) fn set(&self, entry: &Entry, at: At) {
        if let Some((_, known)) = lock(&self.all).get_mut(entry) {
            *known = at;
        }
    }

    /// Records that a node is gone.
    pub(crate) fn gone(&self, entry: &Entry, born: u64) {
        if let Some((_, known)) = lock(&self.all).get_mut(entry)
            && matches!(known, At::Node(node) if node.born == born)
        {
            *known = At::Nowhere;
        }
    }

    /// Leaves those of the paths that nobody needs.
    pub(crate) fn unwanted(&self, session: Session, mut paths: Vec<String>) -> Vec<String> {
        let all = lock(&self.all);
        let (mut wanted, mut begun) = (HashSet::<&str>::new(), HashSet::new());
        for (entry, (_, at)) in &*all {
            match at {
                At::Node(node) => {
                    wanted.extend([&node.path].into_iter().chain(&node.turned).map(|path| &**path));
                }
                At::Unknown => drop(begun.insert(names::path_of(entry, session))),
                At::Nowhere => {}
            }
        }
        let without_number = |path: &str| path.trim_end_matches(|c: char| c.is_ascii_digit()).to_owned();
        paths.retain(|path| !wanted.contains(path.as_str()) && !begun.contains(&without_number(path)));
        paths
    }
}

#[cfg(test)]
mod tests {
    use lock_core::OwnerId;
    use lock_store_sequences::Class;

    use super::*;

    fn entry(owner: &str) -> Entry {
        Entry { lock: Arc::from("/a"), class: Class::Lock, owner: OwnerId::new(owner) }
    }

    fn node(path: &str, born: u64) -> At {
        At::Node(Node { path: Arc::from(path), born, turned: None })
    }

    #[test]
    fn an_entry_is_known_until_all_have_forgotten_it() {
        let (names, entry) = (Names::default(), entry("m:1"));
        names.remember(&entry);
        names.remember(&entry);
        names.set(&entry, node("/a/x", 7));
        assert!(!names.forget(&entry) && !names.is_empty());
        assert_eq!(names.node(&entry, 7).map(|node| node.path), Some(Arc::from("/a/x")));
        assert_eq!(names.node(&entry, 8), None);
        names.gone(&entry, 8);
        assert!(names.node(&entry, 7).is_some());
        assert!(names.forget(&entry) && names.is_empty());
        assert!(!names.forget(&entry));
    }

    #[test]
    fn nodes_are_unwanted_if_no_entry_may_have_made_them() {
        let names = Names::default();
        let session = Session(5);
        for owner in ["m:1", "m:2", "m:3"] {
            names.remember(&entry(owner));
        }
        names.set(&entry("m:1"), node("/a/x", 7));
        names.set(&entry("m:2"), At::Unknown);
        let begun = names::numbered(&entry("m:2"), session, 3);
        let given_up = names::numbered(&entry("m:3"), session, 4);
        let paths = vec!["/a/x".to_owned(), begun, given_up.clone()];
        assert_eq!(names.unwanted(session, paths), [given_up]);
    }
}
