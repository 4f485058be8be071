//! All randomness: [`jitter`], which spreads the attempts of many processes, and [`random_bytes`].
//! Tests may fix both.

use std::cell::Cell;

thread_local! {
    static JITTER: Cell<Option<f64>> = const { Cell::new(None) };
    static SEED: Cell<Option<u64>> = const { Cell::new(None) };
}

/// Fixes the jitter of all managers on this thread to a number in 0..1. On a current-thread runtime
/// under paused time, every run is then the same.
#[cfg(feature = "testing")]
pub fn set_jitter(jitter: f64) {
    JITTER.set(Some(jitter));
}

/// Derives all randomness of managers on this thread from `seed`: the jitter of their attempts, and
/// their identities.
#[cfg(feature = "testing")]
pub fn seed(seed: u64) {
    SEED.set(Some(seed));
}

/// Returns a number in 0..1, uniformly distributed unless a test has fixed it.
pub fn jitter() -> f64 {
    let seeded = || next().map(|number| number as f64 / u64::MAX as f64);
    JITTER.get().or_else(seeded).unwrap_or_else(rand::random)
}

/// Returns random bytes, derived from the seed in a simulation.
pub fn random_bytes() -> [u8; 16] {
    match (next(), next()) {
        (Some(high), Some(low)) => (u128::from(high) << 64 | u128::from(low)).to_be_bytes(),
        _ => rand::random(),
    }
}

/// Returns the next number derived from the seed (SplitMix64), if there is one.
fn next() -> Option<u64> {
    let state = SEED.get()?.wrapping_add(0x9e37_79b9_7f4a_7c15);
    SEED.set(Some(state));
    let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    Some(mixed ^ (mixed >> 31))
}

#[cfg(all(test, feature = "testing"))]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_makes_the_same_numbers() {
        let numbers = |from| {
            seed(from);
            [(); 3].map(|()| next())
        };
        assert_eq!(numbers(7), numbers(7));
        assert_ne!(numbers(7), numbers(8));
        SEED.set(None);
    }
}
