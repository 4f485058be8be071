//! [`Request`]: what a caller wants of the engine, and [`Wait`], for how long it waits.

use std::sync::Arc;
use std::time::Duration;

use super::Engine;
use super::hold::Lease;
use super::registry::Spec;
use crate::clock::Tick;
use crate::key::LockKey;
use crate::metrics::Label;
use crate::replication::Replication;

/// How long a caller is willing to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    No,
    For(Duration),
    Forever,
}

impl Wait {
    pub(crate) fn at_most(limit: Duration) -> Self {
        if limit.is_zero() { Self::No } else { Self::For(limit) }
    }
}

/// What a lock builder has collected.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) engine: Arc<Engine>,
    pub(crate) key: LockKey,
    pub(crate) spec: Spec,
    pub(crate) wait: Wait,
    pub(crate) lease: Lease,
    pub(crate) max_hold: Option<Duration>,
    pub(crate) min_hold: Duration,
    pub(crate) replication: Replication,
    pub(crate) label: Label,
    /// Its own cap of those who wait.
    pub(crate) max_waiters: usize,
    /// Since when it waits; it may have to begin again.
    pub(crate) asked: Option<Tick>,
}
