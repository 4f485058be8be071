//! A clock that all processes of a machine share.

use std::time::Duration;

/// Returns nanoseconds on a clock that all processes of this machine share and nobody sets. On
/// Linux it is `CLOCK_BOOTTIME`, on which lock validity is counted; elsewhere the monotonic clock.
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

/// Returns `now_nanos` plus `duration`.
#[must_use]
pub fn nanos_from_now(duration: Duration) -> u64 {
    now_nanos().saturating_add(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX))
}

/// Returns the time since `began`, a time of [`now_nanos`], in whole milliseconds, rounded up.
#[must_use]
pub fn whole_millis_since(began: u64) -> Duration {
    Duration::from_millis(now_nanos().saturating_sub(began).div_ceil(1_000_000))
}

/// Returns how far [`now_nanos`] is ahead of the monotonic clock: the time for which the machine
/// has been suspended. 0 outside Linux. Java's `System.nanoTime` uses the monotonic clock on Linux.
#[must_use]
pub fn nanos_ahead_of_monotonic() -> i64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let monotonic = time.tv_sec * 1_000_000_000 + time.tv_nsec;
    i64::try_from(now_nanos()).expect("less than 292 years") - monotonic
}
