//! [`Crowds`]: which of the many waiters for one fair lock are near the head of its queue.
//!
//! Each waiter has a place at the store, which disappears without a sign of life. Near waiters send
//! one every 1.5 s, and look at the store now and then. Far waiters do so rarely; they look when
//! told to, or once they have come near. Thus ten thousand waiters cost a server little more than a
//! hundred.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Weak};
use std::time::Duration;

use lock_core::LockKey;
use lock_core::internal::clock::Tick;
use lock_core::internal::sync::{Mutex, lock};
use lock_core::store::Standing;

use super::lane::Lane;

/// Minimum number of near waiters.
const NEAR: usize = 100;
/// Additional near waiters for each one that left within a second. With them, the store's last
/// answer to a waiter is little more than a second old when it gets the lock.
const AHEAD: usize = 4;
const SECOND: Duration = Duration::from_secs(1);
/// Time-out of a call that renews places.
const CALL: Duration = Duration::from_millis(700);

/// The crowds of one manager, by key.
#[derive(Debug)]
pub(crate) struct Crowds {
    crowds: Mutex<HashMap<LockKey, Crowd>>,
    /// Silence after which the places of this manager may be gone.
    silence: Duration,
}

/// The waiters for one key. Members are numbered in the order in which they came.
#[derive(Debug, Default)]
struct Crowd {
    members: BTreeMap<u64, Weak<Lane>>,
    /// Members up to this number are near.
    near_to: u64,
    near: usize,
    /// How many near members left in this second, and in the one before.
    gone: [usize; 2],
    second: Tick,
    /// When the last successful call that kept a near member was sent.
    kept: Tick,
    /// When the far members were last in doubt.
    doubted: Tick,
}

impl Crowds {
    /// Creates the crowds at a store with this life of a waiter.
    pub(crate) fn new(waiter_life: Duration) -> Self {
        Self { crowds: Mutex::default(), silence: waiter_life.saturating_sub(CALL) }
    }

    pub(crate) fn join(&self, key: &LockKey, number: u64, lane: Weak<Lane>, now: Tick) {
        let mut crowds = lock(&self.crowds);
        let crowd = crowds.entry(key.clone()).or_insert_with(|| Crowd { kept: now, ..Crowd::default() });
        crowd.join(number, lane);
    }

    /// Returns the members that have come near because this one has left.
    pub(crate) fn leave(&self, key: &LockKey, number: u64, now: Tick) -> Vec<Arc<Lane>> {
        self.change(key, |crowd| crowd.leave(number, now))
    }

    pub(crate) fn standing(&self, lane: &Lane) -> Standing {
        let is_far = lock(&self.crowds).get(&lane.key).is_some_and(|crowd| crowd.is_far(lane.id));
        if is_far { Standing::Far } else { Standing::Waiter }
    }

    /// Records that a call sent at `sent` has kept near members, or has found some of them `lost`.
    /// Returns the far members whose places have become doubtful.
    pub(crate) fn kept(&self, key: &LockKey, sent: Tick, lost: bool) -> Vec<Arc<Lane>> {
        self.change(key, |crowd| crowd.kept(sent, lost, self.silence))
    }

    fn change(&self, key: &LockKey, f: impl FnOnce(&mut Crowd) -> Vec<Weak<Lane>>) -> Vec<Arc<Lane>> {
        let mut crowds = lock(&self.crowds);
        let Some(crowd) = crowds.get_mut(key) else { return Vec::new() };
        let lanes = f(crowd);
        if crowd.members.is_empty() {
            crowds.remove(key);
        }
        drop(crowds);
        lanes.iter().filter_map(Weak::upgrade).collect()
    }
}

impl Crowd {
    fn is_far(&self, number: u64) -> bool {
        number > self.near_to && self.members.contains_key(&number)
    }

    fn join(&mut self, number: u64, lane: Weak<Lane>) {
        if self.members.insert(number, lane).is_none() && number <= self.near_to {
            self.near += 1;
        }
        self.draw_near();
    }

    fn leave(&mut self, number: u64, now: Tick) -> Vec<Weak<Lane>> {
        if self.members.remove(&number).is_none() || number > self.near_to {
            return Vec::new();
        }
        self.near -= 1;
        let passed = now.since(self.second);
        if passed >= SECOND {
            self.gone = [0, if passed < 2 * SECOND { self.gone[0] } else { 0 }];
            self.second = now;
        }
        self.gone[0] += 1;
        self.draw_near()
    }

    /// Moves far members near, as many as needed.
    fn draw_near(&mut self) -> Vec<Weak<Lane>> {
        let wanted = NEAR + AHEAD * self.gone[0].max(self.gone[1]);
        let mut drawn = Vec::new();
        while self.near < wanted
            && let Some((number, lane)) = self.members.range(self.near_to + 1..).next()
        {
            self.near_to = *number;
            self.near += 1;
            drawn.push(Weak::clone(lane));
        }
        drawn
    }

    fn kept(&mut self, sent: Tick, lost: bool, longest: Duration) -> Vec<Weak<Lane>> {
        let silence = sent.since(self.kept);
        if sent > self.kept {
            self.kept = sent;
        }
        // Several calls keep one crowd, and each of them finds its own members lost.
        let doubtful = silence > longest || lost && sent >= self.doubted + SECOND;
        if doubtful {
            self.doubted = sent;
        }
        let far = doubtful.then(|| self.members.range(self.near_to + 1..));
        far.into_iter().flatten().map(|(_, lane)| Weak::clone(lane)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Tick {
        Tick::default() + Duration::from_millis(ms)
    }

    fn crowd(size: u64) -> Crowd {
        let mut crowd = Crowd { kept: at(0), ..Crowd::default() };
        (1..=size).for_each(|number| crowd.join(number, Weak::new()));
        crowd
    }

    fn far(crowd: &Crowd) -> usize {
        crowd.members.keys().filter(|number| crowd.is_far(**number)).count()
    }

    #[test]
    fn the_first_hundred_are_near() {
        let crowd = crowd(1000);
        assert!(!crowd.is_far(100) && crowd.is_far(101) && !crowd.is_far(1001));
        assert_eq!((far(&crowd), crowd.near), (900, NEAR));
    }

    #[test]
    fn a_waiter_that_leaves_lets_others_come_near() {
        let mut crowd = crowd(1000);
        // One replaces it, and four more for those that may leave next.
        assert_eq!(crowd.leave(1, at(0)).len(), 1 + AHEAD);
        assert_eq!(crowd.leave(1, at(0)).len(), 0, "it has gone already");
        assert_eq!(crowd.leave(1000, at(0)).len(), 0, "a far one");
        assert_eq!(crowd.near, NEAR + AHEAD);
        // After two quiet seconds one replacement would do, and there are more than enough.
        assert_eq!(crowd.leave(2, at(3000)).len(), 1);
    }

    #[test]
    fn a_crowd_that_moves_fast_is_near_for_some_seconds_before_its_turn() {
        let mut crowd = crowd(20_000);
        let mut number = 0;
        for ms in 0..3000 {
            number += 1;
            crowd.leave(number, at(ms));
        }
        assert!((NEAR + 3990..=NEAR + 4004).contains(&crowd.near), "{}", crowd.near);
        assert_eq!(far(&crowd) + crowd.near, crowd.members.len());
    }

    #[test]
    fn all_come_near_in_the_end_and_nothing_is_left() {
        let mut crowd = crowd(1000);
        let mut drawn = NEAR;
        for number in 1..=1000 {
            drawn += crowd.leave(number, at(0)).len();
        }
        assert_eq!((drawn, crowd.near, crowd.members.len()), (1000, 0, 0));
    }

    #[test]
    fn far_ones_are_in_doubt_after_a_silence_or_a_loss() {
        let mut crowd = crowd(1000);
        let silence = Duration::from_millis(2300);
        assert_eq!(crowd.kept(at(1000), false, silence).len(), 0);
        assert_eq!(crowd.kept(at(3301), false, silence).len(), 900, "a silence");
        assert_eq!(crowd.kept(at(5000), true, silence).len(), 900, "a loss");
        assert_eq!(crowd.kept(at(5100), true, silence).len(), 0, "another part of it");
        assert_eq!(crowd.kept(at(4500), false, silence).len(), 0, "an answer that was late");
        assert_eq!(crowd.kept(at(6000), false, silence).len(), 0);
    }
}
