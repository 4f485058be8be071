//! Repeats tests that failed because the machine paused them for longer than a waiter or an intent
//! lives.

use std::cell::Cell;
use std::time::Instant;

use super::*;

/// Delay that excuses a failed test, because a waiter or an intent may have died meanwhile. An
/// intent's life is the shortest that a test relies on.
const EXCUSE: Duration = INTENT_LIFE.saturating_sub(Duration::from_millis(200));

thread_local! {
    static RESTED: Cell<Duration> = const { Cell::new(Duration::ZERO) };
}

/// Lets time pass on purpose.
pub(super) async fn rest(time: Duration) {
    tokio::time::sleep(time).await;
    RESTED.set(RESTED.get() + time);
}

/// Runs a test on a fresh subject. Runs it again if it fails after having been paused for a while.
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
