//! The answers of a store to operators.

use std::time::Duration;

use super::Kind;
use super::error::{StoreError, StoreErrorKind};
use crate::key::LockKey;
use crate::token::{FencingToken, OwnerId};

/// The status of a key, as the store knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LockStatus {
    /// How it is held; `None` when the key is free. A fair lock without waiters looks like a mutex.
    /// A mutex with waiters looks like a fair lock, if the store [queues](super::Abilities) it.
    pub kind: Option<Kind>,
    /// The holders and their hold counts; empty when the key is free. A writer that also reads is
    /// listed twice.
    pub holders: Vec<(OwnerId, u64)>,
    /// Number of waiters, as a hint. For a fair lock: the entries of its queue. Otherwise: the
    /// connections that listen for the release, each of which may stand for many waiters.
    pub waiters: u64,
    /// Time until the hold ends if nobody renews it; `None` when the key is free.
    pub remaining: Option<Duration>,
    /// The highest fencing token granted so far, while the counter survives; `None` without
    /// [`Abilities::own_tokens`](super::Abilities::own_tokens).
    pub last_token: Option<FencingToken>,
}

impl LockStatus {
    /// Returns the status of a key that nobody holds.
    #[must_use]
    pub const fn free() -> Self {
        Self { kind: None, holders: Vec::new(), waiters: 0, remaining: None, last_token: None }
    }

    /// Returns the status of a key that one owner holds, for `remaining` more if that is known.
    #[must_use]
    pub fn held(kind: Kind, owner: OwnerId, remaining: Option<Duration>) -> Self {
        Self { kind: Some(kind), holders: vec![(owner, 1)], remaining, ..Self::free() }
    }

    /// Whether the key is held.
    #[must_use]
    pub fn is_locked(&self) -> bool {
        !self.holders.is_empty()
    }
}

/// Asks for a page of locks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScanRequest {
    /// Literal prefix of the keys, after the store's own prefix; empty for all keys.
    pub prefix: String,
    /// `None` for the first page, then [`Scanned::next`] of the page before.
    pub cursor: Option<Cursor>,
    /// The call resolves within about this time.
    pub timeout: Duration,
}

/// A page of locks. A lock that is held during the whole scan is on at least one page. A lock held
/// only part of the time may be missing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scanned {
    /// Held keys and their status; may be empty although there is a next page.
    pub locks: Vec<(LockKey, LockStatus)>,
    /// Cursor of the next page; `None` after the last.
    pub next: Option<Cursor>,
}

/// Where a scan goes on: bytes that only the store understands, such as a number or the last key.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Cursor(Box<[u8]>);

impl Cursor {
    /// Creates the cursor with these bytes.
    #[must_use]
    pub fn new(bytes: impl Into<Box<[u8]>>) -> Self {
        Self(bytes.into())
    }

    /// Returns the bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Returns the number that the cursor was made from.
    ///
    /// # Errors
    ///
    /// The [refusal](Self::refusal) of other bytes.
    pub fn to_number(&self) -> Result<u64, StoreError> {
        self.0.as_ref().try_into().map(u64::from_be_bytes).map_err(|_| Self::refusal())
    }

    /// Returns the error about a cursor that no page has given out.
    #[must_use]
    pub fn refusal() -> StoreError {
        StoreError::new(StoreErrorKind::Refused, "the cursor is not from an earlier page")
    }
}

impl From<u64> for Cursor {
    fn from(number: u64) -> Self {
        Self::new(number.to_be_bytes())
    }
}
