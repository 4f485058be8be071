//! [`Clock`]: the one place where engine, guards and stores read the time.

#[cfg(feature = "testing")]
mod simulated;

use std::fmt;
use std::time::Duration;

#[cfg(feature = "testing")]
pub use self::simulated::SimClock;

/// A point on a manager's clock, in nanoseconds since an arbitrary origin.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Tick(u64);

impl Tick {
    pub const MAX: Self = Self(u64::MAX);

    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Returns the time from `earlier` to `self`, or zero if `earlier` is later.
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    /// Rounds down to a multiple of `grain`, so that work due at about the same time is done
    /// together.
    pub fn rounded_down(self, grain: Duration) -> Self {
        let grain = nanos(grain).max(1);
        Self(self.0 / grain * grain)
    }

    pub fn saturating_sub(self, duration: Duration) -> Self {
        Self(self.0.saturating_sub(nanos(duration)))
    }
}

impl std::ops::Add<Duration> for Tick {
    type Output = Self;

    fn add(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(nanos(duration)))
    }
}

impl fmt::Debug for Tick {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", Duration::from_nanos(self.0))
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// A source of the time. Cheap to copy.
///
/// Sleeps are tokio timers, which do not advance during suspend: a sleeper re-reads the clock when
/// woken.
#[derive(Clone, Copy, Debug)]
pub enum Clock {
    /// Advances while the machine is suspended (`CLOCK_BOOTTIME`, Linux). A lease goes on while a
    /// laptop sleeps, so validity must too. Elsewhere: the monotonic clock of the standard library.
    Boot,
    /// tokio's clock, so that `tokio::time::pause` works on the memory store.
    Tokio { origin: tokio::time::Instant },
    /// The clock of a simulated process or server.
    #[cfg(feature = "testing")]
    Simulated(SimClock),
    /// The clock of a `loom` model, whose threads advance it.
    #[cfg(lock_loom)]
    Model,
}

impl Clock {
    /// Starts tokio's clock at zero now.
    pub fn tokio() -> Self {
        Self::Tokio { origin: tokio::time::Instant::now() }
    }

    pub fn now(self) -> Tick {
        match self {
            Self::Boot => boot_time(),
            Self::Tokio { origin } => Tick::default() + origin.elapsed(),
            #[cfg(feature = "testing")]
            Self::Simulated(clock) => clock.now(),
            #[cfg(lock_loom)]
            Self::Model => Tick(model::advance(0)),
        }
    }
}

#[cfg(lock_loom)]
pub mod model {
    //! The clock of a `loom` model.

    use loom::sync::atomic::{AtomicU64, Ordering};

    loom::lazy_static! {
        static ref NOW: AtomicU64 = AtomicU64::new(0);
    }

    /// Advances the clock and returns the time. Reads by writing, so that no later read sees an
    /// earlier time.
    pub fn advance(nanos: u64) -> u64 {
        NOW.fetch_add(nanos, Ordering::AcqRel) + nanos
    }
}

#[cfg(any(target_os = "linux", target_os = "android"))]
fn boot_time() -> Tick {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    let nanos = u64::try_from(time.tv_nsec).unwrap_or(0);
    Tick(seconds.saturating_mul(1_000_000_000).saturating_add(nanos))
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
fn boot_time() -> Tick {
    use std::sync::OnceLock;
    use std::time::Instant;

    static ORIGIN: OnceLock<Instant> = OnceLock::new();
    Tick::default() + ORIGIN.get_or_init(Instant::now).elapsed()
}

/// Rounds a time for people to read: to whole milliseconds, unless it is shorter than one.
pub fn rounded(time: Duration) -> Duration {
    match u64::try_from(time.as_millis()) {
        Ok(millis) if millis > 0 => Duration::from_millis(millis),
        _ => time,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn boot_time_moves_on() {
        let before = Clock::Boot.now();
        std::thread::sleep(Duration::from_millis(2));
        assert!(Clock::Boot.now().since(before) >= Duration::from_millis(2));
    }

    #[tokio::test(start_paused = true)]
    async fn tokio_time_follows_the_paused_clock() {
        let clock = Clock::tokio();
        let before = clock.now();
        tokio::time::advance(Duration::from_secs(3)).await;
        assert_eq!(clock.now().since(before), Duration::from_secs(3));
    }
}
