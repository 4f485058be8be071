//! [`Dice`]: repeatable random numbers.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::time::Duration;

/// Random numbers that follow from a seed (SplitMix64). For choices of tests, not for secrets.
#[derive(Clone, Debug)]
pub struct Dice(u64);

impl Dice {
    /// Creates dice that give the same numbers for the same seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Returns a random seed.
    #[must_use]
    pub fn draw_seed() -> u64 {
        // The system's randomness seeds the hashers of the standard library. Short enough to be
        // typed in again.
        RandomState::new().build_hasher().finish() % 1_000_000_000
    }

    /// Returns independent dice for the `n`th user of these.
    #[must_use]
    pub fn fork(&self, n: u64) -> Self {
        let mut dice = Self(self.0 ^ n.wrapping_mul(0xd6e8_feb8_6659_fd93));
        Self(dice.roll())
    }

    /// Returns any number.
    pub fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut n = self.0;
        n = (n ^ (n >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        n = (n ^ (n >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        n ^ (n >> 31)
    }

    /// Returns a number below `end`, or 0 if `end` is 0.
    pub fn below(&mut self, end: u64) -> u64 {
        self.roll().checked_rem(end).unwrap_or(0)
    }

    /// Returns true once in `n` times on average.
    pub fn once_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    /// Returns a duration of whole milliseconds from `from` to below `to`.
    pub fn between(&mut self, from: Duration, to: Duration) -> Duration {
        let span = to.saturating_sub(from).as_millis();
        from + Duration::from_millis(self.below(u64::try_from(span).unwrap_or(u64::MAX)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_falls_in_the_same_way_and_forks_differ() {
        let rolls = |mut dice: Dice| [(); 4].map(|()| dice.roll());
        let dice = Dice::new(7);
        assert_eq!(rolls(dice.clone()), rolls(Dice::new(7)));
        assert_ne!(rolls(dice.clone()), rolls(Dice::new(8)));
        assert_ne!(rolls(dice.fork(1)), rolls(dice.fork(2)));
        assert_eq!(rolls(dice.fork(1)), rolls(Dice::new(7).fork(1)));
    }

    #[test]
    fn ranges_are_kept() {
        let mut dice = Dice::new(1);
        let (from, to) = (Duration::from_millis(5), Duration::from_millis(8));
        assert!((0..100).all(|_| (from..to).contains(&dice.between(from, to))));
        assert!((0..100).all(|_| dice.below(3) < 3));
        assert_eq!(dice.below(0), 0);
        assert_eq!(dice.between(to, from), to);
    }
}
