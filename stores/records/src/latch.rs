//! [`Latch`]: the count of a latch, and the steps on it.

use std::collections::BTreeMap;

use lock_core::store::{CountDownRequest, ServerTime};

/// The data of a latch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Latch {
    /// Zero if there is no latch.
    pub(crate) count: u64,
    /// The id of each counted call, and until when it is remembered.
    pub(crate) done: BTreeMap<String, ServerTime>,
}

impl Latch {
    /// Creates the latch; returns `false` if it exists.
    pub(crate) fn try_set(&mut self, count: u32) -> bool {
        let is_free = self.count == 0;
        if is_free {
            self.count = count.max(1).into();
        }
        is_free
    }

    /// Decrements the count once for each id; returns whether it became zero.
    pub(crate) fn count_down(&mut self, request: &CountDownRequest, now: ServerTime) -> bool {
        self.drop_expired(now);
        if self.count == 0 || self.done.contains_key(&request.id) {
            return false;
        }
        self.done.insert(request.id.clone(), now + request.remember);
        self.count -= 1;
        self.count == 0
    }

    /// Removes the latch; returns whether there was one.
    pub(crate) fn delete(&mut self) -> bool {
        std::mem::take(&mut self.count) > 0
    }

    /// Returns how many have counted down.
    pub(crate) fn owners(&self) -> usize {
        self.done.len()
    }

    pub(crate) fn ends_of_all(&self, visit: &mut dyn FnMut(ServerTime)) {
        self.done.values().for_each(|until| visit(*until));
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.count == 0 && self.done.is_empty()
    }

    pub(crate) fn due(&self) -> Option<ServerTime> {
        self.done.values().min().copied()
    }

    pub(crate) fn drop_expired(&mut self, now: ServerTime) {
        self.done.retain(|_, until| *until > now);
    }
}
