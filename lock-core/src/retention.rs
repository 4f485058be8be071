//! [`TokenRetention`]: how long fencing counters are kept.

use std::time::Duration;

/// How long the fencing counter of a key outlives its last hold. Default 15 minutes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenRetention {
    /// The counter lives for at least this long after the end of each hold, released or not, and
    /// for a quarter of it and a lease longer at most. At least a second. A counter that is gone
    /// begins again at the server's clock, in microseconds: tokens still grow unless that clock has
    /// been set back to before the last grant.
    For(Duration),
    /// The counter never expires. Required when Java's `RFencedLock` uses the same names: its
    /// `INCR` does not refresh a time to live and would start at 1 again.
    Keep,
}

/// A shorter retention is a mistake, such as the wrong unit.
const SHORTEST_RETENTION: Duration = Duration::from_secs(1);

impl TokenRetention {
    /// Why no lock can have it.
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
