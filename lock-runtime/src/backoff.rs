//! [`Backoff`]: pauses between attempts of one call; [`jitter`], which spreads those of many processes.

use std::time::Duration;

const FIRST: Duration = Duration::from_millis(20);
const LONGEST: Duration = Duration::from_secs(1);

/// Uniform in 0..1.
#[cfg(not(feature = "testing"))]
pub(crate) fn jitter() -> f64 {
    rand::random()
}

/// As without the feature, unless a test needs the same run again.
#[cfg(feature = "testing")]
pub(crate) fn jitter() -> f64 {
    crate::testing::jitter().unwrap_or_else(rand::random)
}

/// Doubles from 20 ms to a second.
#[derive(Debug)]
pub(crate) struct Backoff(Duration);

impl Backoff {
    pub(crate) fn new() -> Self {
        Self(FIRST)
    }

    pub(crate) fn next(&mut self) -> Duration {
        let pause = self.0;
        self.0 = (pause * 2).min(LONGEST);
        pause
    }
}
