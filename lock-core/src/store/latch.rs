//! [`LatchStore`]: where count-down latches are kept.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::latest::Latest;
use super::{BoxFuture, ServerTime, StoreError, Watch};
use crate::key::LockKey;

/// Takes one from the count of a latch.
#[derive(Debug)]
pub struct CountDownRequest {
    /// The latch.
    pub key: LockKey,
    /// New for each count: a request that is sent again counts once. At most 64 letters, digits,
    /// `:` and `-`.
    pub id: String,
    /// The store refuses to execute the request later than this after it was sent.
    pub timeout: Duration,
    /// How long the store remembers the id after it has counted it: longer than the request is sent
    /// again.
    pub remember: Duration,
    latest: Latest,
}

impl CountDownRequest {
    /// A request to count once.
    #[must_use]
    pub fn new(key: LockKey, id: String, timeout: Duration, remember: Duration) -> Self {
        Self { key, id, timeout, remember, latest: Latest::default() }
    }

    /// As [`AcquireRequest::stamp`](super::AcquireRequest::stamp).
    pub fn stamp(&self, estimate: ServerTime) -> ServerTime {
        self.latest.stamp(estimate, self.timeout)
    }
}

/// Where count-down latches are kept: numbers that go down to zero, and wake whoever waits for
/// that. A latch at zero does not exist.
///
/// The [rules](super) of the locks' store hold: a call does nothing before its first poll, and
/// resolves by itself.
pub trait LatchStore: Send + Sync + fmt::Debug + 'static {
    /// Makes the latch with this count, at least 1; `false` when it exists.
    fn try_set_count(
        &self,
        key: LockKey,
        count: u32,
        timeout: Duration,
    ) -> BoxFuture<Result<bool, StoreError>>;

    /// Takes one from the count, once for each id, and wakes whoever waits when that makes it zero.
    /// Returns the count that is left. A latch that does not exist stays so.
    fn count_down(&self, request: Arc<CountDownRequest>) -> BoxFuture<Result<u64, StoreError>>;

    /// The count; zero when the latch does not exist.
    fn count(&self, key: LockKey, timeout: Duration) -> BoxFuture<Result<u64, StoreError>>;

    /// Removes the latch, whatever its count, and wakes whoever waits; `false` when it did not
    /// exist.
    fn delete(&self, key: LockKey, timeout: Duration) -> BoxFuture<Result<bool, StoreError>>;

    /// Delivers a notice whenever the count may have become zero. An `Err` or an unconfirmed watch
    /// means that the caller has to poll.
    fn watch(&self, key: LockKey, timeout: Duration) -> BoxFuture<Result<Watch, StoreError>>;
}
