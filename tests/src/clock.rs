//! One clock for all processes of a machine.

use std::time::Duration;

/// Nanoseconds on a clock that all processes of this machine share and nobody sets:
/// `CLOCK_BOOTTIME` on Linux, the one that lock validity counts on; elsewhere the monotonic clock.
#[must_use]
pub fn now_nanos() -> u64 {
    #[cfg(any(target_os = "linux", target_os = "android"))]
    const CLOCK: rustix::time::ClockId = rustix::time::ClockId::Boottime;
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    const CLOCK: rustix::time::ClockId = rustix::time::ClockId::Monotonic;
    let time = rustix::time::clock_gettime(CLOCK);
    let seconds = u64::try_from(time.tv_sec).expect("the clock counts up from zero");
    let nanos = u64::try_from(time.tv_nsec).expect("nanoseconds are positive");
    seconds * 1_000_000_000 + nanos
}

/// `now_nanos` plus `duration`.
#[must_use]
pub fn nanos_from_now(duration: Duration) -> u64 {
    now_nanos().saturating_add(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX))
}

/// By how much [`now_nanos`] is ahead of the monotonic clock, which Java's `System.nanoTime` is on
/// Linux: for how long the machine has been suspended. 0 elsewhere.
#[must_use]
pub fn nanos_ahead_of_monotonic() -> i64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let monotonic = time.tv_sec * 1_000_000_000 + time.tv_nsec;
    i64::try_from(now_nanos()).expect("less than 292 years") - monotonic
}
