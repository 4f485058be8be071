//! [`Terms`]: the terms on which a caller wants a lock.

use std::time::Duration;

use lock_core::{Replication, TokenRetention};

/// How long a caller is willing to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    No,
    For(Duration),
    Forever,
}

impl Wait {
    pub fn at_most(limit: Duration) -> Self {
        if limit.is_zero() { Self::No } else { Self::For(limit) }
    }

    /// Returns the maximum duration of the wait.
    pub(crate) fn limit(self) -> Duration {
        match self {
            Self::No => Duration::ZERO,
            Self::For(limit) => limit,
            Self::Forever => Duration::MAX,
        }
    }
}

/// How long a hold lives if nobody releases it, and how long its token counters outlive it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease {
    pub duration: Duration,
    /// Whether it is renewed to `duration`, every third of it, as long as a guard lives. Otherwise
    /// the hold ends by itself.
    pub is_renewed: bool,
    pub retention: TokenRetention,
}

impl Lease {
    pub fn renewed(duration: Duration) -> Self {
        Self { duration, is_renewed: true, retention: TokenRetention::default() }
    }

    pub fn fixed(duration: Duration) -> Self {
        Self { is_renewed: false, ..Self::renewed(duration) }
    }
}

/// A caller's settings, besides the keys.
#[derive(Clone, Copy, Debug)]
pub struct Terms {
    pub wait: Wait,
    pub lease: Lease,
    pub max_hold: Option<Duration>,
    pub min_hold: Duration,
    /// The replicas that have to confirm the grant.
    pub replication: Replication,
}

impl Terms {
    /// Whether the caller makes one attempt only.
    pub(crate) fn is_try(&self) -> bool {
        self.wait == Wait::No
    }
}
