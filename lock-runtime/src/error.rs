//! [`LockError`], which every call of a lock returns, and [`ConnectError`].

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use lock_core::internal::clock::rounded;
use lock_core::store::{Kind, StoreError, StoreErrorKind};
use lock_core::{InvalidKey, LockKey};
use lock_engine::failure::{Failure, Loss};

/// The reason why a manager could not be built.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The store did not answer in time or refused the connection.
    #[error("{cause}")]
    Unavailable {
        /// The store's error; names host and port, never the password.
        cause: StoreError,
    },
    /// The URL, the settings or the server's configuration cannot work.
    #[error("{reason}")]
    Misconfigured {
        /// The problem, and what to do about it.
        reason: Arc<str>,
    },
}

/// Everything that can go wrong with a lock. All calls of locks, guards, semaphores, latches and
/// listings return it, and so does `#[distributed_lock]`.
///
/// Your own error type with `#[from] LockError` therefore works with `?` at each of them.
/// [`is_busy`](Self::is_busy), [`is_retryable`](Self::is_retryable) and
/// [`body_started`](Self::body_started) say what to do about an error. Where a store is the cause,
/// its [`StoreError`] is the field `cause`, and its text is part of this one's. So there is no
/// [`source`](std::error::Error::source), which reports would print a second time.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LockError {
    /// Another caller holds the lock, and this one did not want to wait.
    #[error("lock {key} is busy")]
    Busy {
        /// The key.
        key: LockKey,
        /// Time for which the key is still taken, as far as this process knows. A renewed hold may
        /// last longer, a released one ends earlier. `None` when unknown.
        remaining: Option<Duration>,
    },
    /// The wait ended before the lock was free.
    #[error("lock {key} was still held after a wait of {:?}", rounded(*.waited))]
    TimedOut {
        /// The key.
        key: LockKey,
        /// How long the call waited.
        waited: Duration,
        /// Time for which the key is still taken, as far as this process knows. A renewed hold may
        /// last longer, a released one ends earlier. `None` when unknown.
        remaining: Option<Duration>,
    },
    /// Too many callers wait already. The caps are set on the manager's builder, and by
    /// [`max_waiters`](crate::Lock::max_waiters).
    #[error("lock {key}: {waiting} callers already wait, as many as {cap} allows")]
    TooManyWaiters {
        /// The key.
        key: LockKey,
        /// Number of callers that wait.
        waiting: usize,
        /// The cap: `max_waiters_per_key`, `max_fair_waiters_per_key` or `max_waiters` of the
        /// manager, or `max_waiters of this lock`. Or `the store's room for one key`, with the
        /// callers of this process as `waiting`: a database keeps the waiters of all processes in
        /// one record.
        cap: &'static str,
        /// Time for which the key is still taken, as far as this process knows. A renewed hold may
        /// last longer, a released one ends earlier. `None` when unknown.
        remaining: Option<Duration>,
    },
    /// The lock was lost after it had been granted. A body under `#[distributed_lock]` or
    /// [`with`](crate::Lock::with) was dropped at the await where it was suspended; code under a
    /// guard goes on.
    #[error("lock {key} was lost: {why}")]
    Lost {
        /// The key.
        key: LockKey,
        /// The reason.
        why: Loss,
    },
    /// The grant had already ended.
    #[error("lock {key} is no longer held by this grant")]
    NotHeld {
        /// The key.
        key: LockKey,
    },
    /// The store did not confirm a release, a downgrade or an extension. The work under the lock
    /// had begun, or was done.
    #[error(
        "lock {key} was held, and the store did not confirm its release, extension or downgrade: {cause}"
    )]
    Unconfirmed {
        /// The key.
        key: LockKey,
        /// The store's last error.
        cause: StoreError,
    },
    /// The lock could not be acquired: until the wait ended, the store could not be reached,
    /// answered with errors, or did not answer at all.
    #[error("lock {key}: the store is unavailable: {cause}")]
    Unavailable {
        /// The key.
        key: LockKey,
        /// The store's last error.
        cause: StoreError,
    },
    /// The manager was shut down, or its runtime is gone.
    #[error("lock {key}: the lock manager was shut down")]
    ShutDown {
        /// The key.
        key: LockKey,
    },
    /// An enclosing call holds the key in a kind that excludes the one wanted. A reader can't
    /// become a writer, for example: two that tried would wait for each other forever.
    #[error(
        "lock {key} is held as {held:?} by an enclosing call and can't be taken as {wanted:?} inside it; take it as \
         {wanted:?} outside, or release it first"
    )]
    KindConflict {
        /// The key.
        key: LockKey,
        /// The kind in which the enclosing call holds it.
        held: Kind,
        /// The kind in which this call wants it.
        wanted: Kind,
    },
    /// The program or the store has to be changed before this can work.
    #[error("{reason}")]
    Misconfigured {
        /// The problem, and what to do about it.
        reason: Arc<str>,
    },
    /// The text is not a valid lock key.
    #[error(transparent)]
    InvalidKey(#[from] InvalidKey),
    /// The store failed in a call that is not about one key, such as a listing or a connection.
    #[error("{cause}")]
    Store {
        /// The store's error.
        cause: StoreError,
    },
    /// A [`shutdown`](crate::LockManager::shutdown) had to cut off locks, or has left releases
    /// unconfirmed.
    #[error(transparent)]
    CutOff(#[from] ShutdownError),
    /// Too few replicas confirmed the grant before the wait ended, so it was undone; see
    /// [`Replication`](crate::Replication).
    #[error("lock {key}: {cause}")]
    NotReplicated {
        /// The key.
        key: LockKey,
        /// The store's error, which says how many did.
        cause: StoreError,
    },
}

/// The error of a [`LockManager::shutdown`](crate::LockManager::shutdown) that did not end in good
/// order.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct ShutdownError {
    cut_off: usize,
    drained: bool,
}

impl fmt::Display for ShutdownError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.cut_off {
            0 => f.write_str("no lock was held when the grace time was over")?,
            1 => f.write_str("1 lock was still held when the grace time was over, and was cut off")?,
            n => write!(f, "{n} locks were still held when the grace time was over, and were cut off")?,
        }
        if self.drained {
            return Ok(());
        }
        f.write_str(
            "; the store has not confirmed all releases, so some keys are free only when their leases end",
        )
    }
}

impl ShutdownError {
    pub(crate) fn new(cut_off: usize, drained: bool) -> Self {
        Self { cut_off, drained }
    }

    /// Returns how many locks were still held when the grace time was over.
    #[must_use]
    pub fn cut_off(&self) -> usize {
        self.cut_off
    }

    /// Whether the store answered every release. If not, the keys of the unanswered ones are freed
    /// by the end of their leases.
    #[must_use]
    pub fn drained(&self) -> bool {
        self.drained
    }
}

impl LockError {
    /// Whether another caller holds the lock: [`Busy`](Self::Busy), [`TimedOut`](Self::TimedOut) or
    /// [`TooManyWaiters`](Self::TooManyWaiters). The body never started.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        matches!(self, Self::Busy { .. } | Self::TimedOut { .. } | Self::TooManyWaiters { .. })
    }

    /// Whether the same call may succeed a moment later, and can be repeated without harm because
    /// its body never started.
    ///
    /// This is about the lock that [`key`](Self::key) names. A function that takes a second lock
    /// inside its body, and passes that lock's error on with `?`, has started nevertheless.
    ///
    /// Do not repeat [`Semaphore::add_permits`](crate::Semaphore::add_permits) and
    /// [`CountDownLatch::count_down`](crate::CountDownLatch::count_down) after
    /// [`Unavailable`](Self::Unavailable): the first call may have been executed, and the second
    /// would count again.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        self.is_busy()
            || matches!(self, Self::Unavailable { .. } | Self::NotReplicated { .. } | Self::Store { .. })
    }

    /// Whether the lock had been granted before the error came up. If not, its body was not
    /// executed at all.
    ///
    /// As with [`is_retryable`](Self::is_retryable), the body is that of the lock that the error
    /// names.
    #[must_use]
    pub fn body_started(&self) -> bool {
        matches!(self, Self::Lost { .. } | Self::NotHeld { .. } | Self::Unconfirmed { .. })
    }

    /// Returns the key, if the error is about one.
    #[must_use]
    pub fn key(&self) -> Option<&LockKey> {
        match self {
            Self::Busy { key, .. }
            | Self::TimedOut { key, .. }
            | Self::TooManyWaiters { key, .. }
            | Self::Lost { key, .. }
            | Self::NotHeld { key }
            | Self::Unavailable { key, .. }
            | Self::Unconfirmed { key, .. }
            | Self::ShutDown { key }
            | Self::KindConflict { key, .. }
            | Self::NotReplicated { key, .. } => Some(key),
            Self::Misconfigured { .. } | Self::InvalidKey(_) | Self::Store { .. } | Self::CutOff(_) => None,
        }
    }

    pub(crate) fn misconfigured(reason: impl Into<Arc<str>>) -> Self {
        Self::Misconfigured { reason: reason.into() }
    }

    /// Returns the caller's error for a store error that is not, or no longer, retried.
    pub(crate) fn from_store(key: LockKey, cause: StoreError) -> Self {
        if cause.kind().is_misconfiguration() {
            Self::Misconfigured { reason: format!("lock {key}: {cause}").into() }
        } else if cause.kind() == StoreErrorKind::NotReplicated {
            Self::NotReplicated { key, cause }
        } else {
            Self::Unavailable { key, cause }
        }
    }

    /// Returns the error for a caller that does not get `key`.
    pub(crate) fn of(key: LockKey, failure: Failure) -> Self {
        match failure {
            Failure::Busy { remaining } => Self::Busy { key, remaining },
            Failure::TimedOut { waited, remaining } => Self::TimedOut { key, waited, remaining },
            Failure::TooManyWaiters { waiting, cap, remaining } => {
                Self::TooManyWaiters { key, waiting, cap, remaining }
            }
            Failure::Lost(why) => Self::Lost { key, why },
            Failure::NotHeld => Self::NotHeld { key },
            Failure::Store(cause) => Self::from_store(key, cause),
            Failure::Unconfirmed(cause) => Self::Unconfirmed { key, cause },
            Failure::ShutDown => Self::ShutDown { key },
            Failure::KindConflict { held, wanted } => Self::KindConflict { key, held, wanted },
            Failure::Misconfigured(reason) => Self::Misconfigured { reason },
        }
    }
}

impl ConnectError {
    pub(crate) fn misconfigured(reason: impl Into<Arc<str>>) -> Self {
        Self::Misconfigured { reason: reason.into() }
    }
}

impl From<StoreError> for ConnectError {
    fn from(cause: StoreError) -> Self {
        if cause.kind().is_misconfiguration() {
            Self::Misconfigured { reason: cause.to_string().into() }
        } else {
            Self::Unavailable { cause }
        }
    }
}

/// For errors without a key: [`LockError::Store`], or [`LockError::Misconfigured`] where no waiting
/// helps.
impl From<StoreError> for LockError {
    fn from(cause: StoreError) -> Self {
        ConnectError::from(cause).into()
    }
}

impl From<ConnectError> for LockError {
    fn from(error: ConnectError) -> Self {
        match error {
            ConnectError::Unavailable { cause } => Self::Store { cause },
            ConnectError::Misconfigured { reason } => Self::Misconfigured { reason },
        }
    }
}
