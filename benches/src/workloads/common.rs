//! The warm-up and the handling of errors that the workloads share.

use std::time::Duration;

use crate::args::Options;

/// Time before anything is counted, so that connections, caches and branch predictors are warm.
pub(super) const WARM_UP: Duration = Duration::from_millis(500);
/// The same, if the server is a program in Java. Its code is compiled while it runs.
const WARM_UP_OF_JAVA: Duration = Duration::from_secs(5);
/// Pause after an error, so that a server that is gone is not asked in a busy loop.
pub(super) const AFTER_ERROR: Duration = Duration::from_millis(10);

/// Returns the time before anything is counted.
pub(super) fn warm_up(options: &Options) -> Duration {
    if options.store.is_zookeeper() { WARM_UP_OF_JAVA } else { WARM_UP }
}

/// Counts errors, and prints the first one.
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

/// Error for a wait without a limit that ended, or a wait of 10 s for a key without contention.
pub(super) const GAVE_UP: &str = "the lock was not granted before the wait ended";
