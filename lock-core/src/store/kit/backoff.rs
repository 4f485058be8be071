//! [`Backoff`]: pauses between attempts of one call.

use std::time::Duration;

use crate::internal::chance::jitter;

const FIRST: Duration = Duration::from_millis(20);
const LONGEST: Duration = Duration::from_secs(1);
const LONGEST_OF_PATIENT: Duration = Duration::from_secs(5);

/// Pauses that double from 20 ms to one second. Each is randomly shortened by up to half, so that
/// calls that began together spread out.
#[derive(Debug)]
pub struct Backoff {
    pause: Duration,
    longest: Duration,
}

impl Default for Backoff {
    fn default() -> Self {
        Self { pause: FIRST, longest: LONGEST }
    }
}

impl Backoff {
    /// Creates a back-off that grows to five seconds, for calls that may go on for long.
    #[must_use]
    pub fn patient() -> Self {
        Self { pause: FIRST, longest: LONGEST_OF_PATIENT }
    }

    /// Returns the next pause.
    pub fn next_pause(&mut self) -> Duration {
        let pause = self.pause.mul_f64(0.5 + jitter() / 2.0);
        self.pause = (self.pause * 2).min(self.longest);
        pause
    }
}
