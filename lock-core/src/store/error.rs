//! [`StoreError`].

use std::sync::Arc;

/// An error of a store.
///
/// The message names the store's own error text and address, never a secret. Clones share it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct StoreError {
    kind: StoreErrorKind,
    message: Arc<str>,
}

/// The kind of a [`StoreError`], which decides what to do about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum StoreErrorKind {
    /// No connection; nothing was executed. Worth a retry.
    Unreachable,
    /// No answer, or the connection broke before one: the step may have been executed. Worth a
    /// retry by a new owner, after the old one has been withdrawn.
    Unanswered,
    /// The server cannot serve at the moment (loading, busy with a script, moving a slot). Nothing
    /// was executed. Worth a retry.
    NotReady,
    /// Granted, but fewer replicas than [wanted](super::AcquireRequest::replication) have confirmed
    /// it in time. Worth a retry by a new owner, after the old one has been withdrawn.
    NotReplicated,
    /// Not granted, and a withdrawal of it may still arrive: the request must not be sent again.
    /// Worth a retry by a new owner, after the old one has been withdrawn. For stores that undo
    /// attempts by themselves, such as a quorum.
    Unsettled,
    /// The request arrived after its time limit; nothing was executed. Worth a retry.
    TooLate,
    /// The server is a replica or otherwise read-only.
    ReadOnly,
    /// The server is out of memory or disk space, and refuses writes for now. Nothing was executed.
    /// Worth a retry.
    Full,
    /// The credentials are wrong, or the user may not do this.
    Denied,
    /// The key, or its counter, holds foreign data that is not a lock.
    ForeignData,
    /// The server is too old, or this store cannot do this.
    Unsupported,
    /// The store has no room for another waiter or holder of this key. Nothing was executed.
    TooManyWaiters,
    /// Any other refusal by the server.
    Refused,
}

impl StoreErrorKind {
    /// Whether the store or the program has to be changed before calls can succeed.
    #[doc(hidden)]
    pub fn is_misconfiguration(self) -> bool {
        matches!(self, Self::Denied | Self::ForeignData | Self::Unsupported)
    }
}

impl StoreError {
    /// Creates an error of this kind. `message` must not contain a secret.
    #[must_use]
    pub fn new(kind: StoreErrorKind, message: impl Into<Arc<str>>) -> Self {
        Self { kind, message: message.into() }
    }

    /// Returns the kind of failure.
    #[must_use]
    pub fn kind(&self) -> StoreErrorKind {
        self.kind
    }

    /// Whether the same call may succeed a moment later without any intervention.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        matches!(
            self.kind,
            StoreErrorKind::Unreachable
                | StoreErrorKind::Unanswered
                | StoreErrorKind::NotReady
                | StoreErrorKind::Full
                | StoreErrorKind::TooLate
                | StoreErrorKind::NotReplicated
                | StoreErrorKind::Unsettled
        )
    }

    /// Whether the same call may succeed later. Includes read-only servers: a demoted primary will
    /// be replaced.
    #[doc(hidden)]
    pub fn may_pass(&self) -> bool {
        self.is_transient() || self.kind == StoreErrorKind::ReadOnly
    }

    /// Whether the step may have been executed, so that it has to be undone.
    #[must_use]
    pub fn outcome_unknown(&self) -> bool {
        matches!(
            self.kind,
            StoreErrorKind::Unanswered | StoreErrorKind::NotReplicated | StoreErrorKind::Unsettled
        )
    }
}
