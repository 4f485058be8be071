//! [`Table`]: the memory store's data, and the removal of expired data.
//!
//! [`Table::purge`] removes expired data; it looks at a bounded number of records each time.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::ops::Bound;

use lock_core::store::ServerTime;
use lock_store_records::{Class, Listeners, Name, Record};

/// Minimum size of a calendar that is worth shrinking.
const SMALL: usize = 1024;

/// Everything the store knows.
#[derive(Debug, Default)]
pub(super) struct Table {
    records: BTreeMap<Name, Kept>,
    /// When to look at a record again to remove expired data, soonest first. Each record has at
    /// most one line here. A line may be too early, if the lease was renewed. It is rewritten when
    /// its time has come, so that renewing costs nothing.
    calendar: BinaryHeap<Reverse<(ServerTime, Name)>>,
    pub(super) listeners: Listeners,
}

#[derive(Clone, Debug)]
struct Kept {
    record: Record,
    in_calendar: bool,
}

impl Table {
    /// Copies the data without its watches.
    #[cfg(feature = "testing")]
    pub(super) fn copy(&self) -> Self {
        Self {
            records: self.records.clone(),
            calendar: self.calendar.clone(),
            listeners: Listeners::default(),
        }
    }

    /// Removes all expired data, whatever the cost.
    #[cfg(feature = "testing")]
    pub(super) fn drop_expired(&mut self, now: ServerTime) {
        for kept in self.records.values_mut() {
            kept.record.purge(now);
        }
    }

    /// Removes expired data, soonest expiry first, looking at no more than `budget` records. A key
    /// is looked at twice, for its hold and for its counter. If each step's budget is at least
    /// twice the number of its keys, removing keeps up with adding.
    pub(super) fn purge(&mut self, now: ServerTime, budget: usize) {
        for _ in 0..budget {
            if self.calendar.peek().is_none_or(|Reverse((due, _))| *due > now) {
                return;
            }
            let Some(Reverse((_, name))) = self.calendar.pop() else { return };
            let Some(kept) = self.records.get_mut(&name) else { continue };
            kept.record.drop_expired(now);
            if let Some(due) = kept.record.due() {
                self.calendar.push(Reverse((due, name)));
                continue;
            }
            kept.in_calendar = false;
            if kept.record.is_empty() {
                self.records.remove(&name);
                // It never shrinks by itself: after a burst of keys, most of it would stay unused.
                if self.calendar.capacity() > SMALL && self.calendar.capacity() / 4 > self.calendar.len() {
                    self.calendar.shrink_to(2 * self.calendar.len());
                }
            }
        }
    }

    /// Takes the record out, for a step.
    pub(super) fn take(&mut self, name: &Name) -> Record {
        let empty = Record::empty(name.class);
        self.records
            .get_mut(name)
            .map_or(Record::empty(name.class), |kept| std::mem::replace(&mut kept.record, empty))
    }

    /// Puts a record back, and schedules its purge.
    pub(super) fn put(&mut self, name: &Name, record: Record) {
        let due = record.due();
        let kept = match self.records.get_mut(name) {
            Some(kept) if record.is_empty() && !kept.in_calendar => {
                self.records.remove(name);
                return;
            }
            Some(kept) => {
                kept.record = record;
                kept
            }
            None if record.is_empty() => return,
            None => self.records.entry(name.clone()).or_insert(Kept { record, in_calendar: false }),
        };
        if !kept.in_calendar
            && let Some(due) = due
        {
            kept.in_calendar = true;
            self.calendar.push(Reverse((due, name.clone())));
        }
    }

    /// Returns at most `most` locks whose name begins with `prefix`, after the name `after`; and
    /// whether there are more.
    pub(super) fn page(&self, prefix: &str, after: Option<&str>, most: usize) -> (Vec<(Name, Record)>, bool) {
        let name = |text: &str| Name { class: Class::Lock, text: text.into() };
        let from = after.map_or(Bound::Included(name(prefix)), |after| Bound::Excluded(name(after)));
        let mut rest = self
            .records
            .range((from, Bound::Unbounded))
            .take_while(|(name, _)| name.class == Class::Lock && name.text.starts_with(prefix));
        let page = rest.by_ref().take(most).map(|(name, kept)| (name.clone(), kept.record.clone()));
        (page.collect(), rest.next().is_some())
    }

    #[cfg(test)]
    pub(super) fn sizes(&self) -> (usize, usize, usize) {
        (self.records.len(), self.calendar.len(), self.listeners.names())
    }
}
