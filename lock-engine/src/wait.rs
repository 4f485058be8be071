//! [`Wait`]: for how long a caller waits.

use std::time::Duration;

use lock_core::store::LONGEST_WAIT;

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

    /// How long it is, as far as a queue at the store has to know; `None` without one.
    pub(crate) fn at_the_store(self) -> Option<Duration> {
        match self {
            Self::No => None,
            Self::For(limit) => Some(limit),
            Self::Forever => Some(LONGEST_WAIT),
        }
    }
}
