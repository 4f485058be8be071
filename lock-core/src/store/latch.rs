//! [`LatchStore`]: where count-down latches are kept.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::latest::Latest;
use super::{BoxFuture, ServerTime, StoreError, Watch};
use crate::key::LockKey;

/// Decrements the count of a latch.
#[derive(Debug)]
pub struct CountDownRequest {
    /// The latch.
    pub key: LockKey,
    /// New for each count: a re-sent request counts once. At most 64 letters, digits, `:` and `-`.
    pub id: String,
    /// The store refuses to execute the request later than this after it was sent.
    pub timeout: Duration,
    /// How long the store remembers the id after counting it; must exceed the time over which the
    /// request is re-sent.
    pub remember: Duration,
    latest: Latest,
}

impl CountDownRequest {
    /// Creates a request to count down once.
    #[must_use]
    pub fn new(key: LockKey, id: String, timeout: Duration, remember: Duration) -> Self {
        Self { key, id, timeout, remember, latest: Latest::default() }
    }

    /// Stamps the request, as [`AcquireRequest::stamp`](super::AcquireRequest::stamp) does.
    pub fn stamp(&self, estimate: ServerTime) -> ServerTime {
        self.latest.stamp(estimate, self.timeout)
    }
}

/// A place where count-down latches are kept: numbers that go down to zero and then wake their
/// waiters. A latch at zero does not exist.
///
/// The [rules](super) of a lock store apply: a call does nothing before its first poll, and
/// resolves by itself.
pub trait LatchStore: Send + Sync + fmt::Debug + 'static {
    /// Creates the latch with this count, at least 1; returns `false` when it exists already.
    fn try_set_count(
        &self,
        key: LockKey,
        count: u32,
        timeout: Duration,
    ) -> BoxFuture<Result<bool, StoreError>>;

    /// Decrements the count, once for each id, and wakes the waiters when it becomes zero. Returns
    /// the count that is left. Does not create a latch that does not exist.
    fn count_down(&self, request: Arc<CountDownRequest>) -> BoxFuture<Result<u64, StoreError>>;

    /// Returns the count; zero when the latch does not exist.
    fn count(&self, key: LockKey, timeout: Duration) -> BoxFuture<Result<u64, StoreError>>;

    /// Removes the latch, whatever its count, and wakes its waiters; returns `false` when it did
    /// not exist.
    fn delete(&self, key: LockKey, timeout: Duration) -> BoxFuture<Result<bool, StoreError>>;

    /// Delivers a notice whenever the count may have become zero. After an `Err` or with an
    /// unconfirmed watch, the caller has to poll.
    fn watch(&self, key: LockKey, timeout: Duration) -> BoxFuture<Result<Watch, StoreError>>;
}
