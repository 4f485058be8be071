//! [`StoreError`].

use std::sync::Arc;

/// Why a store could not do what it was asked.
///
/// The message has the store's own words and where the store is, never a secret. Clones share it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct StoreError {
    kind: StoreErrorKind,
    message: Arc<str>,
}

/// What kind of failure a [`StoreError`] is, and so what to do about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum StoreErrorKind {
    /// No connection; nothing was executed. Worth a retry.
    Unreachable,
    /// No answer, or the connection broke before one: whether the step was executed is unknown.
    /// Worth a retry by a new owner, after the old one has been withdrawn.
    Unanswered,
    /// The server says that it cannot serve just now (loading, a script is running, a slot is
    /// moving). Nothing was executed. Worth a retry.
    NotReady,
    /// Granted, but fewer replicas than [wanted](super::AcquireRequest::replication) have confirmed
    /// it in time. Worth a retry by a new owner, after the old one has been withdrawn.
    NotReplicated,
    /// Not granted, and a withdrawal of it may still arrive: the request must not be sent again.
    /// Worth a retry by a new owner, after the old one has been withdrawn. For stores that undo
    /// attempts by themselves, as several that have to agree do.
    Unsettled,
    /// The request arrived later than it was allowed to; nothing was executed. Worth a retry.
    TooLate,
    /// The server is a replica or otherwise read-only.
    ReadOnly,
    /// The server has no memory or no disk space left, and refuses writes for now. Nothing was
    /// executed. Worth a retry.
    Full,
    /// The credentials are wrong, or the user may not do this.
    Denied,
    /// The key, or its counter, holds somebody's data that is not a lock.
    ForeignData,
    /// The server is too old, or this store cannot do this.
    Unsupported,
    /// Anything else the server refuses.
    Refused,
}

impl StoreErrorKind {
    /// Whether something has to be changed at the store, or in the program, before calls can
    /// succeed.
    #[doc(hidden)]
    pub fn is_misconfiguration(self) -> bool {
        matches!(self, Self::Denied | Self::ForeignData | Self::Unsupported)
    }
}

impl StoreError {
    /// An error of this kind. `message` must not contain a secret.
    #[must_use]
    pub fn new(kind: StoreErrorKind, message: impl Into<Arc<str>>) -> Self {
        Self { kind, message: message.into() }
    }

    /// What kind of failure it is.
    #[must_use]
    pub fn kind(&self) -> StoreErrorKind {
        self.kind
    }

    /// Whether the same call may succeed a moment later without anybody changing something.
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

    /// Whether the same call may succeed later: a primary that was demoted will be replaced.
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
