//! [`Replication`]: how many replicas have to confirm a grant.

use std::fmt;
use std::time::Duration;

/// [`Replication::replicas`] of a majority.
const MAJORITY: u32 = u32::MAX;
/// Time-outs are kept in milliseconds, up to 49 days.
const LONGEST: u32 = u32::MAX;

/// What is said of a [majority](Replication::majority) when nobody knows of how many.
pub const OF_HOW_MANY: &str = "a majority of how many replicas? The server does not say how many it has: set \
                                      `replicas` when the manager is built, or ask for `Replication::at_least`";

/// How many replicas have to confirm a grant before it counts; see
/// `LockManagerBuilder::replication` and
/// `Lock::replication`.
///
/// A grant that too few confirm in time is undone and asked for again until the wait ends, which is
/// then `LockError::NotReplicated`.
///
/// This narrows the window in which a failover can lose a lock, it does not close it: replication
/// is asynchronous, so a failover may still pick a replica that has not heard of the grant, and may
/// lose renewals and releases, which are never waited for. Only a check of the fencing token at the
/// resource closes it, see `docs/guarantees.md`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Replication {
    /// 0 for none.
    replicas: u32,
    timeout_ms: u32,
}

impl Replication {
    /// Nobody is waited for. The default.
    pub const NONE: Self = Self { replicas: 0, timeout_ms: 0 };

    /// At least so many replicas confirm within `timeout`, in whole milliseconds, at least one. 0
    /// replicas is [`NONE`](Self::NONE).
    ///
    /// They have no longer than half the lease, nor than the caller waits, or one
    /// `call_timeout` if that is more.
    #[must_use]
    pub fn at_least(replicas: u32, timeout: Duration) -> Self {
        match replicas {
            0 => Self::NONE,
            replicas => Self { replicas: replicas.min(MAJORITY - 1), timeout_ms: millis(timeout) },
        }
    }

    /// More than half of the primary's replicas confirm within `timeout`, as with
    /// [`at_least`](Self::at_least). All of them count, also those that are down: with Sentinel and
    /// Cluster as many as these know, with a single primary as many as
    /// `LockManagerBuilder::replicas` says.
    #[must_use]
    pub fn majority(timeout: Duration) -> Self {
        Self { replicas: MAJORITY, timeout_ms: millis(timeout) }
    }

    /// Whether nobody is waited for.
    #[must_use]
    pub fn is_none(self) -> bool {
        self.replicas == 0
    }

    /// How long the replicas have.
    #[must_use]
    pub fn timeout(self) -> Duration {
        Duration::from_millis(self.timeout_ms.into())
    }

    /// How many replicas have to confirm, if the primary has `known` of them; `None` when that has
    /// to be known and is not.
    #[must_use]
    pub fn wanted(self, known: Option<u32>) -> Option<u32> {
        match self.replicas {
            MAJORITY => known.map(|known| known / 2 + 1),
            replicas => Some(replicas),
        }
    }

    /// The same with replicas that have so much time at most.
    #[doc(hidden)]
    pub fn within(self, time: Duration) -> Self {
        let timeout_ms = if self.is_none() { 0 } else { self.timeout_ms.min(millis(time)) };
        Self { timeout_ms, ..self }
    }

    /// Whether a grant with this policy is good for who wants `other`.
    #[doc(hidden)]
    pub fn satisfies(self, other: Self) -> bool {
        // A majority is at least one.
        match (self.replicas, other.replicas) {
            (_, 0) | (MAJORITY, 1 | MAJORITY) => true,
            (MAJORITY, _) | (_, MAJORITY) => false,
            (confirmed, wanted) => confirmed >= wanted,
        }
    }
}

fn millis(timeout: Duration) -> u32 {
    u32::try_from(timeout.as_micros().div_ceil(1000)).unwrap_or(LONGEST).max(1)
}

impl fmt::Debug for Replication {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.replicas {
            0 => f.write_str("none"),
            MAJORITY => write!(f, "majority({:?})", self.timeout()),
            replicas => write!(f, "at_least({replicas}, {:?})", self.timeout()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn the_time_of_replicas_is_bounded() {
        let policy = Replication::majority(Duration::MAX).within(SECOND).within(2 * SECOND);
        assert_eq!(policy, Replication::majority(SECOND));
        assert_eq!(Replication::NONE.within(SECOND), Replication::NONE);
    }

    #[test]
    fn a_majority_counts_all_replicas() {
        let majority = Replication::majority(SECOND);
        for (known, wanted) in [(0, 1), (1, 1), (2, 2), (3, 2), (4, 3), (5, 3)] {
            assert_eq!(majority.wanted(Some(known)), Some(wanted), "of {known}");
        }
        assert_eq!(majority.wanted(None), None);
        assert_eq!(Replication::at_least(2, SECOND).wanted(None), Some(2));
        assert!(Replication::at_least(0, SECOND).is_none());
    }

    #[test]
    fn a_hold_is_handed_on_to_those_who_want_no_more() {
        let (none, one, two) =
            (Replication::NONE, Replication::at_least(1, SECOND), Replication::at_least(2, SECOND * 2));
        let majority = Replication::majority(SECOND);
        for (had, wanted, good) in [
            (none, none, true),
            (one, none, true),
            (none, one, false),
            (two, one, true),
            (one, two, false),
            (majority, one, true),
            (majority, two, false),
            (two, majority, false),
            (majority, Replication::majority(SECOND * 3), true),
        ] {
            assert_eq!(had.satisfies(wanted), good, "{had:?} for {wanted:?}");
        }
    }

    #[test]
    fn times_are_whole_milliseconds() {
        assert_eq!(Replication::at_least(1, Duration::from_micros(1)).timeout(), Duration::from_millis(1));
        assert_eq!(Replication::at_least(1, Duration::ZERO).timeout(), Duration::from_millis(1));
        assert_eq!(format!("{:?}", Replication::majority(SECOND)), "majority(1s)");
    }
}
