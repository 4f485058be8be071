//! [`QuorumMember`]: what a server of a quorum has to do.

use std::time::Duration;

use super::{BoxFuture, ServerTime, StoreError};

/// Asks for a store's marker: a record that exists as long as the store keeps its data, under a
/// name that no lock can have.
///
/// A store that was restarted without its data has no marker, and may have forgotten locks that are
/// still held. A client that needs several stores to agree makes the marker anew, then waits for
/// the longest lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MarkRequest {
    /// The action of the store.
    pub mark: Mark,
    /// The call resolves within about this time.
    pub timeout: Duration,
}

/// The action of a [`MarkRequest`], before the store answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mark {
    /// Nothing.
    Look,
    /// Makes the marker if there is none, or if its time is in the future because the store's clock
    /// was set back. From now on, the store remembers everything.
    Make,
    /// Records that the store cannot have forgotten anything, because it was never used before. The
    /// store refuses this, without an error, when its clock is past `latest`.
    First {
        /// The last moment at which it may be done.
        latest: ServerTime,
    },
}

/// The answer to a [`MarkRequest`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Marked {
    /// The store remembers every lock it has granted since this time; `None` without a marker.
    pub since: Option<ServerTime>,
    /// When the store looked.
    pub server_time: ServerTime,
}

/// A store that can be a server of a quorum. It keeps a marker, and grants tokens above the
/// [floor](super::AcquireRequest::floor) of a request, since the counters of several servers
/// differ.
pub trait QuorumMember: Send + Sync {
    /// Looks at the store's marker, or makes it: see [`MarkRequest`].
    fn mark(&self, request: MarkRequest) -> BoxFuture<Result<Marked, StoreError>>;
}
