//! [`Sent`]: the copies of a request that are on their way.

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use lock_core::OwnerId;
use lock_core::internal::sync::{Mutex, lock};
use lock_core::store::{AcquireRequest, StoreError, StoreErrorKind};

use crate::named::Name;
use crate::sessions::Live;
use crate::store::Entry;

/// The copies of a request that were sent.
#[derive(Debug, Default)]
pub(crate) struct Sent(Mutex<SentState>);

#[derive(Debug, Default)]
struct SentState {
    live: Option<Arc<Live>>,
    /// The names of its entries in that session.
    names: Vec<(Entry, Name)>,
    /// How many copies had no answer.
    open: u32,
    is_withdrawn: bool,
}

impl Sent {
    /// Records that a copy with these entries is sent.
    pub(crate) fn begin(
        &self,
        live: &Arc<Live>,
        entries: &[Entry],
        name: impl Fn(&Entry) -> Name,
    ) -> Result<(), StoreError> {
        let mut state = lock(&self.0);
        state.check()?;
        if !state.live.as_ref().is_some_and(|known| Arc::ptr_eq(known, live)) {
            // Copies of a session that has ended are refused.
            (state.live, state.open) = (Some(Arc::clone(live)), 0);
            state.names.clear();
        }
        for entry in entries {
            if !state.names.iter().any(|(known, _)| known == entry) {
                state.names.push((entry.clone(), name(entry)));
            }
        }
        state.open += 1;
        Ok(())
    }

    /// Records that the copy which was sent last was answered.
    pub(crate) fn answered(&self, live: &Arc<Live>) {
        let mut state = lock(&self.0);
        if state.live.as_ref().is_some_and(|known| Arc::ptr_eq(known, live)) {
            state.open = state.open.saturating_sub(1);
        }
    }

    /// Whether a copy had no answer.
    pub(crate) fn is_doubtful(&self) -> Result<bool, StoreError> {
        let state = lock(&self.0);
        state.check()?;
        Ok(state.open > 0)
    }

    /// Records that no more copies may be sent. Returns the session of those that were, and
    /// whether one had no answer.
    pub(crate) fn withdraw(&self) -> (Option<Arc<Live>>, bool) {
        let mut state = lock(&self.0);
        state.is_withdrawn = true;
        (state.live.clone(), state.open > 0)
    }

    /// Records that all copies are refused.
    pub(crate) fn settled(&self) {
        lock(&self.0).open = 0;
    }
}

impl SentState {
    fn check(&self) -> Result<(), StoreError> {
        if self.is_withdrawn {
            return Err(StoreError::new(StoreErrorKind::TooLate, "the request was withdrawn"));
        }
        Ok(())
    }
}

/// Returns the epoch of a request: its owner's, of `epochs` in all.
pub(crate) fn slot_of(request: &AcquireRequest, epochs: usize) -> usize {
    request.items.iter().next().map_or(0, |item| slot_of_owner(&item.owner, epochs))
}

fn slot_of_owner(owner: &OwnerId, epochs: usize) -> usize {
    let mut hasher = DefaultHasher::new();
    owner.hash(&mut hasher);
    hasher.finish() as usize % epochs.max(1)
}
