//! [`Backoff`]: pauses between attempts of one call.

use std::time::Duration;

use crate::internal::chance::jitter;

const FIRST: Duration = Duration::from_millis(20);
const LONGEST: Duration = Duration::from_secs(1);
const LONGEST_OF_PATIENT: Duration = Duration::from_secs(5);

/// Doubles from 20 ms to a second. Each pause is shorter by up to a half, so that those who began
/// together do not go on together.
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
    /// Grows to five seconds: for what may go on for long.
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
