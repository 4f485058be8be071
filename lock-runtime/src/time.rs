//! Timers that belong to the manager's runtime, whoever awaits them: also under other executors than tokio, and in
//! runtimes without timers.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::time::{Sleep, Timeout};

/// Whether the runtime has timers; tokio says so only by a panic.
pub(crate) fn has_timers(runtime: &Handle) -> bool {
    catch_unwind(AssertUnwindSafe(|| drop(sleep(runtime, Duration::ZERO)))).is_ok()
}

pub(crate) fn sleep(runtime: &Handle, duration: Duration) -> Sleep {
    let _entered = runtime.enter();
    tokio::time::sleep(duration)
}

pub(crate) fn timeout<F: Future>(runtime: &Handle, limit: Duration, future: F) -> Timeout<F> {
    let _entered = runtime.enter();
    tokio::time::timeout(limit, future)
}
