//! [`TokenRetention`]: how long fencing counters are kept.

use std::time::Duration;

/// How long the fencing counter of a key outlives its last hold. Default 15 minutes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenRetention {
    /// The counter lives for at least this long after the end of each hold, released or not. It is
    /// deleted a quarter of this time plus one lease later at the latest. The minimum is one
    /// second.
    ///
    /// After a counter is deleted, the next one starts at the server's clock, in microseconds.
    /// Tokens still grow, unless that clock has been set back to before the last grant.
    For(Duration),
    /// The counter never expires. Required when Java's `RFencedLock` uses the same names: its
    /// `INCR` does not refresh a time to live, and would start again at 1.
    Keep,
}

/// Minimum retention; a shorter one is taken for a mistake, such as the wrong unit.
const SHORTEST_RETENTION: Duration = Duration::from_secs(1);

impl TokenRetention {
    /// Returns why this retention is invalid, or `None` if it is valid.
    #[doc(hidden)]
    pub fn refusal(self) -> Option<String> {
        match self {
            Self::For(time) if time < SHORTEST_RETENTION => Some(format!(
                "a token retention of {time:?} is too short; use a second or more, or `TokenRetention::Keep`"
            )),
            Self::For(_) | Self::Keep => None,
        }
    }
}

impl Default for TokenRetention {
    fn default() -> Self {
        Self::For(Duration::from_secs(15 * 60))
    }
}
