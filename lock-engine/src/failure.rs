//! [`Failure`]: why the engine does not give a caller what it wants.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use lock_core::store::{Kind, StoreError};

/// Why a lock was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Loss {
    /// The lease is over by the local clock. Either a fixed lease ended, or no renewal succeeded in
    /// time, because the store was unreachable or this process was paused.
    LeaseOver,
    /// The store says that the hold is gone: freed by force, deleted, or lost with the store's
    /// data.
    TakenAway,
    /// `max_hold` is over.
    MaxHold,
    /// The manager was shut down, or its runtime is gone.
    ShutDown,
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::LeaseOver => "its lease is over",
            Self::TakenAway => "the store says that it is gone",
            Self::MaxHold => "its max_hold is over",
            Self::ShutDown => "the lock manager was shut down",
        })
    }
}

/// Why a caller does not get what it wants. The caller knows the key.
#[derive(Clone, Debug)]
pub enum Failure {
    /// Another caller holds the key, and this one does not wait.
    Busy { remaining: Option<Duration> },
    /// The wait is over.
    TimedOut { waited: Duration, remaining: Option<Duration> },
    /// The maximum number of callers wait already; `cap` names the setting.
    TooManyWaiters { waiting: usize, cap: &'static str, remaining: Option<Duration> },
    /// The hold had been lost before.
    Lost(Loss),
    /// The grant had ended before.
    NotHeld,
    /// The store failed; nothing was taken.
    Store(StoreError),
    /// The store has not confirmed a step, which goes on being re-sent.
    Unconfirmed(StoreError),
    /// The manager was shut down, or its runtime is gone.
    ShutDown,
    /// An enclosing call holds the key in a kind that excludes the wanted one.
    KindConflict { held: Kind, wanted: Kind },
    /// The request can't work; the text says why, and what to do.
    Misconfigured(Arc<str>),
}

impl Failure {
    pub(crate) fn misconfigured(reason: impl Into<Arc<str>>) -> Self {
        Self::Misconfigured(reason.into())
    }

    /// Makes the failure of a wait that is over. `last_error` is the error that kept the store from
    /// answering at the end, if any; `remaining` is for how long the key is still taken.
    pub fn wait_over(last_error: Option<StoreError>, waited: Duration, remaining: Option<Duration>) -> Self {
        last_error.map_or(Self::TimedOut { waited, remaining }, Self::Store)
    }
}
