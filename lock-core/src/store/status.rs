//! What a store says about locks to operators.

use std::time::Duration;

use super::Kind;
use crate::key::LockKey;
use crate::token::{FencingToken, OwnerId};

/// What the store knows about a key.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LockStatus {
    /// How it is held; `None` when the key is free. A fair lock without waiters looks like a mutex.
    pub kind: Option<Kind>,
    /// The holders and their hold counts; empty when the key is free. A writer that reads too is
    /// there twice.
    pub holders: Vec<(OwnerId, u64)>,
    /// How many wait, a hint: the entries of a fair lock's queue, else the connections that listen
    /// for the release, each of which may stand for many waiters.
    pub waiters: u64,
    /// Time until the hold ends if nobody renews it; `None` when the key is free.
    pub remaining: Option<Duration>,
    /// The highest fencing token granted so far, while the counter survives.
    pub last_token: Option<FencingToken>,
}

impl LockStatus {
    /// A key that nobody holds.
    #[must_use]
    pub const fn free() -> Self {
        Self { kind: None, holders: Vec::new(), waiters: 0, remaining: None, last_token: None }
    }

    /// Whether somebody holds the key.
    #[must_use]
    pub fn is_locked(&self) -> bool {
        !self.holders.is_empty()
    }
}

/// Asks for a page of locks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScanRequest {
    /// What the keys begin with, literally; empty for all. The store's own prefix is in front of
    /// it.
    pub prefix: String,
    /// Zero, then [`Scanned::next`] of the page before.
    pub cursor: u64,
    /// The call resolves within about this time.
    pub timeout: Duration,
}

/// A page of locks. A lock that is held from the first page to the last is in one page at least;
/// others may be in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scanned {
    /// Keys that are held, and what is known about them; may be empty although there is a next
    /// page.
    pub locks: Vec<(LockKey, LockStatus)>,
    /// The cursor of the next page; `None` after the last.
    pub next: Option<u64>,
}
