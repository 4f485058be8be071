//! [`ServerTime`]: a point on a store's clock; [`Moment`]: a point in the order of its answers.

use std::fmt;
use std::ops::Add;
use std::time::Duration;

/// Microseconds since the Unix epoch by the store's clock.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServerTime(u64);

impl ServerTime {
    /// Creates a server time from microseconds since the Unix epoch.
    #[must_use]
    pub const fn from_micros(micros: u64) -> Self {
        Self(micros)
    }

    /// Returns the microseconds since the Unix epoch.
    #[must_use]
    pub const fn as_micros(self) -> u64 {
        self.0
    }

    /// Returns the time from `earlier` to `self`, or zero if `earlier` is later.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_micros(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for ServerTime {
    type Output = Self;

    /// Returns the time that is `duration` later, or the last there is.
    fn add(self, duration: Duration) -> Self {
        let micros = u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
        Self(self.0.saturating_add(micros))
    }
}

impl fmt::Debug for ServerTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ServerTime({} us)", self.0)
    }
}

/// When a store looked or granted: an opaque number that only orders the answers about one key.
///
/// A later step of the store has a moment that is not smaller. For a store with a clock, a moment
/// is a [`ServerTime`]; for others a revision or a transaction id.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Moment(u64);

impl Moment {
    /// Creates the moment with this number.
    #[must_use]
    pub const fn new(number: u64) -> Self {
        Self(number)
    }

    /// Returns the number.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }
}

impl From<ServerTime> for Moment {
    fn from(time: ServerTime) -> Self {
        Self(time.0)
    }
}
