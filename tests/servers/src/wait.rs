//! Waiting for a condition, instead of sleeping for a fixed time.

use std::time::{Duration, Instant};

const PERIOD: Duration = Duration::from_millis(5);

/// Returns as soon as `condition` is true. Fails the test when that takes longer than `within`.
///
/// # Panics
///
/// When the condition is still false after `within`.
#[track_caller]
pub fn eventually_blocking(mut condition: impl FnMut() -> bool, within: Duration) {
    let deadline = Instant::now() + within;
    while !condition() {
        assert!(Instant::now() < deadline, "not true within {within:?}");
        std::thread::sleep(PERIOD);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_condition_that_comes_true_ends_the_wait() {
        let mut calls = 0;
        eventually_blocking(
            || {
                calls += 1;
                calls == 3
            },
            Duration::from_secs(30),
        );
        assert_eq!(calls, 3);
    }

    #[test]
    #[should_panic(expected = "not true within 10ms")]
    fn a_condition_that_stays_false_fails() {
        eventually_blocking(|| false, Duration::from_millis(10));
    }
}
