//! [`Lost`]: holds that have ended although nobody gave them back, until the engine hears of them.

use lock_core::LockKey;
use lock_core::internal::sync::{Mutex, lock};
use lock_core::store::{Item, Kind};
use tokio::sync::Notify;

use crate::store::{Class, Entry};

#[derive(Debug, Default)]
pub(crate) struct Lost {
    /// `None` if nobody has ever asked.
    items: Mutex<Option<Vec<Item>>>,
    more: Notify,
}

impl Lost {
    /// Begins to collect.
    pub(crate) fn begin(&self) {
        lock(&self.items).get_or_insert_default();
    }

    /// Adds the items of entries, whose locks have this prefix.
    pub(crate) fn add<'a>(&self, entries: impl IntoIterator<Item = &'a Entry>, prefix: &str) {
        if let Some(items) = &mut *lock(&self.items) {
            items.extend(entries.into_iter().filter_map(|entry| item_of(entry, prefix)));
        }
        self.more.notify_one();
    }

    /// Waits until there are items, and takes them.
    pub(crate) async fn take(&self) -> Vec<Item> {
        loop {
            let items = lock(&self.items).replace(Vec::new()).unwrap_or_default();
            if !items.is_empty() {
                return items;
            }
            self.more.notified().await;
        }
    }
}

fn item_of(entry: &Entry, prefix: &str) -> Option<Item> {
    let key = LockKey::new(entry.lock.strip_prefix(prefix)?).ok()?;
    let kind = match entry.class {
        Class::Lock => Kind::Mutex,
        Class::Read => Kind::Read,
        Class::Write => Kind::Write,
        // The engine finds out when it renews them.
        Class::Permit => return None,
    };
    Some(Item { key, kind, owner: entry.owner.clone() })
}
