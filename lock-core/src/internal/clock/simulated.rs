//! [`SimClock`]: the clock of a simulated process or server.

use std::fmt;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use super::Tick;

/// A clock that runs at its own rate relative to tokio's, and can be stepped. Never freed: there is
/// one for each simulated process or server.
#[derive(Clone, Copy)]
pub struct SimClock(&'static State);

struct State {
    origin: tokio::time::Instant,
    parts_per_million: i64,
    stepped: AtomicI64,
}

/// Initial time of such a clock, which is how far it can be stepped back.
const FIRST: Duration = Duration::from_secs(24 * 60 * 60);

impl SimClock {
    /// Creates a clock that is `parts_per_million` faster than tokio's.
    #[must_use]
    pub fn new(parts_per_million: i64) -> Self {
        let (origin, stepped) = (tokio::time::Instant::now(), AtomicI64::new(0));
        Self(Box::leak(Box::new(State { origin, parts_per_million, stepped })))
    }

    /// Moves the clock by `nanos` nanoseconds, back if negative.
    pub fn step(self, nanos: i64) {
        self.0.stepped.fetch_add(nanos, Ordering::Relaxed);
    }

    /// Returns the time of the clock, in nanoseconds.
    #[must_use]
    pub fn nanos(self) -> u64 {
        self.now().as_nanos()
    }

    /// Returns the time of the clock.
    #[doc(hidden)]
    #[must_use]
    pub fn now(self) -> Tick {
        let passed = i128::try_from(self.0.origin.elapsed().as_nanos()).unwrap_or(i128::MAX);
        let rate = 1_000_000 + i128::from(self.0.parts_per_million);
        let first = i128::try_from(FIRST.as_nanos()).unwrap_or(0);
        let now = first + passed * rate / 1_000_000 + i128::from(self.0.stepped.load(Ordering::Relaxed));
        Tick::from_nanos(u64::try_from(now.max(0)).unwrap_or(u64::MAX))
    }
}

impl fmt::Debug for SimClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SimClock").field(&self.now()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn clocks_run_at_their_rates_and_are_stepped() {
        let (exact, fast) = (SimClock::new(0), SimClock::new(5_000));
        let (exact_before, fast_before) = (exact.now(), fast.now());
        tokio::time::sleep(Duration::from_secs(100)).await;
        assert_eq!(exact.now().since(exact_before), Duration::from_secs(100));
        assert_eq!(fast.now().since(fast_before), Duration::from_millis(100_500));
        exact.step(-5_000_000_000);
        assert_eq!(exact.now().since(exact_before), Duration::from_secs(95));
    }
}
