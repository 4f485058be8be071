//! [`Known`]: the rows that a process has seen last.

use std::collections::HashMap;

use lock_core::internal::sync::{Mutex, lock};

use super::found::Found;
use crate::record::Name;

/// Maximum length of a row's text that is remembered.
const SHORT: usize = 4096;

/// Number of rows that are remembered, at least.
const KNOWN: usize = 4096;

/// The rows that this process has seen last. They may be out of date: a database compares.
#[derive(Debug, Default)]
pub(super) struct Known(Mutex<[HashMap<Name, Seen>; 2]>);

#[derive(Clone, Debug)]
pub(super) enum Seen {
    Row(Found),
    /// Too long to be remembered: it is looked at before each step.
    Long,
}

impl Known {
    pub(super) fn put(&self, name: &Name, found: Found) {
        let seen = if found.row.text.len() > SHORT { Seen::Long } else { Seen::Row(found) };
        let mut known = lock(&self.0);
        let [young, old] = &mut *known;
        old.remove(name);
        young.insert(name.clone(), seen);
        if young.len() >= KNOWN {
            *old = std::mem::take(young);
        }
    }

    pub(super) fn get(&self, name: &Name) -> Option<Seen> {
        let known = lock(&self.0);
        known.iter().find_map(|found| found.get(name)).cloned()
    }

    pub(super) fn forget(&self, name: &Name) {
        lock(&self.0).iter_mut().for_each(|known| drop(known.remove(name)));
    }
}
