//! Tests in which somebody has to be alive at the store, and machines that stop a test for longer
//! than that.

use std::cell::Cell;
use std::time::Instant;

use super::*;

/// A test that took so much longer than it meant to may have failed for that alone: the shortest
/// life that a test relies on is that of an intent.
const EXCUSE: Duration = INTENT_LIFE.saturating_sub(Duration::from_millis(200));

thread_local! {
    static RESTED: Cell<Duration> = const { Cell::new(Duration::ZERO) };
}

/// Lets time pass on purpose.
pub(super) async fn rest(time: Duration) {
    tokio::time::sleep(time).await;
    RESTED.set(RESTED.get() + time);
}

/// Runs a test on a fresh subject. One that fails and was stopped for a while in between is run
/// again.
pub async fn undisturbed<S, T>(make: impl Fn() -> S, test: impl Fn(Subject) -> T)
where
    S: Future<Output = Subject>,
    T: Future<Output = ()> + Send + 'static,
{
    for last in [false, false, false, true] {
        let subject = make().await;
        if subject.skipped {
            return;
        }
        RESTED.set(Duration::ZERO);
        let began = Instant::now();
        let Err(failure) = tokio::spawn(test(subject)).await else { return };
        let stopped = began.elapsed().saturating_sub(RESTED.get());
        if last || stopped < EXCUSE {
            std::panic::resume_unwind(failure.into_panic());
        }
    }
}
