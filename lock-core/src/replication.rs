//! [`Replication`]: how many replicas have to confirm a grant.

use std::fmt;
use std::time::Duration;

/// Value of [`Replication::replicas`] that stands for a majority.
const MAJORITY: u32 = u32::MAX;
/// Maximum time-out in milliseconds (49 days).
const LONGEST: u32 = u32::MAX;

/// Error message for a [majority](Replication::majority) of an unknown number of replicas.
pub const OF_HOW_MANY: &str = "a majority needs the number of replicas, which the server does not report: set \
                               `replicas` when the manager is built, or use `Replication::at_least`";

/// How many replicas have to confirm a grant before it counts; see
/// `LockManagerBuilder::replication` and `Lock::replication`.
///
/// A grant that too few replicas confirm in time is undone and requested again until the wait ends,
/// which then fails with `LockError::NotReplicated`.
///
/// This narrows the window in which a failover can lose a lock, but does not close it. Replication
/// is asynchronous: a failover may still promote a replica that has not received the grant. It may
/// also lose renewals and releases, which never wait for replicas. Only a check of the fencing
/// token at the resource closes the window, see `docs/book/src/guarantees.md`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Replication {
    /// 0 for none.
    replicas: u32,
    timeout_ms: u32,
}

impl Replication {
    /// No replica has to confirm. The default.
    pub const NONE: Self = Self { replicas: 0, timeout_ms: 0 };

    /// Requires at least `replicas` replicas to confirm within `timeout`, which is rounded up to
    /// whole milliseconds. 0 replicas means [`NONE`](Self::NONE).
    ///
    /// The time-out is cut to half the lease, and to the larger of the caller's wait and one
    /// `call_timeout`.
    #[must_use]
    pub fn at_least(replicas: u32, timeout: Duration) -> Self {
        match replicas {
            0 => Self::NONE,
            replicas => Self { replicas: replicas.min(MAJORITY - 1), timeout_ms: millis(timeout) },
        }
    }

    /// Requires more than half of the primary's replicas to confirm within `timeout`, as with
    /// [`at_least`](Self::at_least).
    ///
    /// All replicas count, including those that are down. Sentinel and Cluster report how many
    /// there are; for a single primary, `LockManagerBuilder::replicas` says so.
    #[must_use]
    pub fn majority(timeout: Duration) -> Self {
        Self { replicas: MAJORITY, timeout_ms: millis(timeout) }
    }

    /// Whether no replica has to confirm.
    #[must_use]
    pub fn is_none(self) -> bool {
        self.replicas == 0
    }

    /// Returns the time within which the replicas have to confirm.
    #[must_use]
    pub fn timeout(self) -> Duration {
        Duration::from_millis(self.timeout_ms.into())
    }

    /// Returns how many replicas have to confirm if the primary has `known` of them; `None` for a
    /// majority of an unknown number.
    #[must_use]
    pub fn wanted(self, known: Option<u32>) -> Option<u32> {
        match self.replicas {
            MAJORITY => known.map(|known| known / 2 + 1),
            replicas => Some(replicas),
        }
    }

    /// Cuts the time-out to at most `time`.
    #[doc(hidden)]
    pub fn within(self, time: Duration) -> Self {
        let timeout_ms = if self.is_none() { 0 } else { self.timeout_ms.min(millis(time)) };
        Self { timeout_ms, ..self }
    }

    /// Whether a grant under this policy also satisfies a caller that wants `other`.
    #[doc(hidden)]
    pub fn satisfies(self, other: Self) -> bool {
        // A majority is at least one replica.
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
