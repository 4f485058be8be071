//! [`Spec`]: what is locked in a lane; [`LaneKind`]: which callers share it.

use lock_core::store::{Abilities, Few, Item, Kind};
use lock_core::{LockKey, OwnerId};

/// The callers that share one machine: its queue, its contender, its hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum LaneKind {
    /// All callers of a key's mutex.
    Mutex,
    /// All writers of a key.
    Write,
    /// The readers of a key that share one hold.
    Read,
    /// One caller.
    Own,
}

impl LaneKind {
    /// Whether its hold is handed off from one caller to the next without the store.
    pub(crate) fn hands_off(self) -> bool {
        matches!(self, Self::Mutex | Self::Write)
    }
}

/// The locks of a lane, besides its key.
#[derive(Clone, Debug)]
pub struct Spec {
    pub kind: Kind,
    /// The other keys of a lock with several.
    pub more: Box<[(LockKey, Kind)]>,
    /// Number of permits of a semaphore; 0 for a lock. Part of the owner's text, see
    /// [`owner_of`](lock_core::internal::owner_of).
    pub permits: u32,
}

impl Spec {
    pub fn one(kind: Kind) -> Self {
        Self { kind, more: Box::default(), permits: 0 }
    }

    /// Creates the spec of semaphore permits. Each caller has its own lane.
    pub fn permits(permits: u32) -> Self {
        Self { permits, ..Self::one(Kind::Mutex) }
    }

    /// Returns all keys and kinds, in their order.
    pub fn keys<'a>(&'a self, first: &'a LockKey) -> impl Iterator<Item = (&'a LockKey, Kind)> {
        std::iter::once((first, self.kind)).chain(self.more.iter().map(|(key, kind)| (key, *kind)))
    }

    /// Returns the items of a request to the store.
    pub(crate) fn items(&self, first: &LockKey, owner: OwnerId) -> Few<Item> {
        let owner = match self.permits {
            0 => owner,
            permits => lock_core::internal::owner_of(&owner, permits),
        };
        let item = |(key, kind): (&LockKey, Kind)| Item { key: key.clone(), kind, owner: owner.clone() };
        self.keys(first).map(item).collect()
    }

    /// Whether a waiter has a place in a queue of the store, which grants the key by a notice.
    pub(crate) fn is_queued(&self, store: &Abilities) -> bool {
        self.permits == 0 && self.any(|kind| store.queues(kind))
    }

    /// Whether it has a fair lock, in whose queue each waiter has its own place.
    pub(crate) fn is_fair(&self) -> bool {
        self.any(|kind| kind == Kind::Fair)
    }

    /// Whether a waiter keeps a short-lived intent to write at the store.
    pub(crate) fn has_an_intent(&self, store: &Abilities) -> bool {
        self.any(|kind| kind == Kind::Write && !store.queues(kind))
    }

    /// Returns all kinds, in the order of the keys.
    pub(crate) fn kinds(&self) -> impl Iterator<Item = Kind> {
        std::iter::once(self.kind).chain(self.more.iter().map(|(_, kind)| *kind))
    }

    fn any(&self, test: impl Fn(Kind) -> bool) -> bool {
        self.kinds().any(test)
    }
}
