//! [`Wake`]: decides when notices of a quorum's stores are worth an attempt. Does no I/O, and reads
//! no clock.
//!
//! All stores announce a release at about the same time. But a failed attempt is undone, which the
//! stores that had granted it announce, too. A waiter that answered that with an attempt would keep
//! all others awake. So a majority of notices wakes at once; fewer wake only after a while, which
//! grows as long as nothing else happens.

use std::time::Duration;

use lock_core::internal::clock::Tick;

/// First and maximum delay of notices from fewer than a majority.
const DOUBT_FIRST: Duration = Duration::from_millis(50);
const DOUBT_LONGEST: Duration = Duration::from_secs(1);

/// The notices since the waiter was last woken.
#[derive(Debug)]
pub(super) struct Wake {
    /// By node.
    heard: Vec<bool>,
    /// Number of notices that are believed.
    enough: usize,
    doubt: Duration,
    due: Option<Tick>,
}

impl Wake {
    /// Creates the state for `nodes` stores, of which `enough` are believed.
    pub(super) fn new(nodes: usize, enough: usize) -> Self {
        Self { heard: vec![false; nodes], enough, doubt: DOUBT_FIRST, due: None }
    }

    /// Records a release announced by the node. `pause` spreads waiters that hear of it at the same
    /// time.
    pub(super) fn heard(&mut self, node: usize, now: Tick, pause: Duration) {
        if let Some(heard) = self.heard.get_mut(node) {
            *heard = true;
        }
        let wait = if self.is_believed() { pause } else { self.doubt + pause };
        let due = now + wait;
        self.due = Some(self.due.map_or(due, |earlier| earlier.min(due)));
    }

    fn is_believed(&self) -> bool {
        self.heard.iter().filter(|heard| **heard).count() >= self.enough
    }

    /// Returns when to wake the waiter, if no further notice comes.
    pub(super) fn due(&self) -> Option<Tick> {
        self.due
    }

    /// Records that the waiter is woken.
    pub(super) fn woken(&mut self) {
        self.doubt = if self.is_believed() { DOUBT_FIRST } else { (self.doubt * 2).min(DOUBT_LONGEST) };
        self.heard.fill(false);
        self.due = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn at(ms: u32) -> Tick {
        Tick::default() + MS * ms
    }

    #[test]
    fn a_majority_wakes_after_a_short_pause() {
        let mut wake = Wake::new(3, 2);
        wake.heard(2, at(0), MS);
        assert_eq!(wake.due(), Some(at(51)));
        wake.heard(2, at(1), MS);
        assert_eq!(wake.due(), Some(at(51)), "it is one store that says it twice");
        wake.heard(0, at(2), MS);
        assert_eq!(wake.due(), Some(at(3)));
        wake.heard(1, at(2), 5 * MS);
        assert_eq!(wake.due(), Some(at(3)));
        wake.woken();
        assert_eq!(wake.due(), None);
    }

    #[test]
    fn a_single_store_wakes_later_and_later() {
        let mut wake = Wake::new(3, 2);
        for wait in [50, 100, 200, 400, 800, 1000, 1000] {
            wake.heard(0, at(0), Duration::ZERO);
            assert_eq!(wake.due(), Some(at(wait)));
            wake.woken();
        }
        wake.heard(0, at(0), Duration::ZERO);
        wake.heard(1, at(0), Duration::ZERO);
        wake.woken();
        wake.heard(0, at(0), Duration::ZERO);
        assert_eq!(wake.due(), Some(at(50)));
    }
}
