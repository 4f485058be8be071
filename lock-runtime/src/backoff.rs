//! [`Backoff`]: pauses between attempts of one call; [`jitter`], which spreads those of many processes, and all else that
//! is left to chance.

use std::time::Duration;

const FIRST: Duration = Duration::from_millis(20);
const LONGEST: Duration = Duration::from_secs(1);
const LONGEST_OF_PATIENT: Duration = Duration::from_secs(5);

/// Uniform in 0..1.
#[cfg(not(feature = "testing"))]
pub(crate) fn jitter() -> f64 {
    rand::random()
}

/// As without the feature, unless a test needs the same run again.
#[cfg(feature = "testing")]
pub(crate) fn jitter() -> f64 {
    let seeded = || crate::testing::simulation::chance().map(|number| number as f64 / u64::MAX as f64);
    crate::testing::jitter().or_else(seeded).unwrap_or_else(rand::random)
}

/// Any bytes.
#[cfg(not(feature = "testing"))]
pub(crate) fn random_bytes() -> [u8; 16] {
    rand::random()
}

/// As without the feature, unless a simulation needs the same run again.
#[cfg(feature = "testing")]
pub(crate) fn random_bytes() -> [u8; 16] {
    use crate::testing::simulation::chance;

    match (chance(), chance()) {
        (Some(high), Some(low)) => (u128::from(high) << 64 | u128::from(low)).to_be_bytes(),
        _ => rand::random(),
    }
}

/// Doubles from 20 ms to a second. Each pause is shorter by up to a half, so that those who began
/// together do not go on together.
#[derive(Debug)]
pub(crate) struct Backoff {
    pause: Duration,
    longest: Duration,
}

impl Backoff {
    pub(crate) fn new() -> Self {
        Self { pause: FIRST, longest: LONGEST }
    }

    /// Grows to five seconds: for what may go on for long.
    pub(crate) fn patient() -> Self {
        Self { pause: FIRST, longest: LONGEST_OF_PATIENT }
    }

    pub(crate) fn next(&mut self) -> Duration {
        let pause = self.pause.mul_f64(0.5 + jitter() / 2.0);
        self.pause = (self.pause * 2).min(self.longest);
        pause
    }
}
