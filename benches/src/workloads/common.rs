//! What the workloads have in common: the warm-up, and what becomes of errors.

use std::time::Duration;

/// Runs before anything is counted: connections, caches and the branch predictor are warm then.
pub(super) const WARM_UP: Duration = Duration::from_millis(500);
/// After an error, so that a server that is gone is not asked without pause.
pub(super) const AFTER_ERROR: Duration = Duration::from_millis(10);

/// Counts errors; the first one is shown.
#[derive(Debug, Default)]
pub(super) struct Errors(pub(super) u64);

impl Errors {
    pub(super) fn add(&mut self, error: &str) {
        if self.0 == 0 {
            eprintln!("first error: {error}");
        }
        self.0 += 1;
    }
}

/// A wait without a limit that ends, or a wait of 10 s for a key that nobody else wants.
pub(super) const GAVE_UP: &str = "the lock was not granted before the wait ended";
