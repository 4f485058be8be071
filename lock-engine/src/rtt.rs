//! [`RoundTrip`]: the lowest recent round trip to the store.

use std::time::Duration;

use lock_core::internal::clock::Tick;
use lock_core::internal::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use lock_core::internal::sync::{Mutex, lock};

/// How long a measurement counts, at most twice this.
const PERIOD: Duration = Duration::from_secs(10);
/// So many measurements make the lowest one a round trip: single ones have connecting or loading a script in them.
const ENOUGH: u32 = 8;
/// What is assumed before the first call.
const ASSUMED: Duration = Duration::from_millis(1);

/// The smallest round trip of this period and the last one. Written rarely: nearly every call is neither among the first
/// of its period nor the fastest.
#[derive(Debug, Default)]
pub(crate) struct RoundTrip {
    current: Lowest,
    last: Lowest,
    /// When the current period began, in nanoseconds of the clock.
    started: AtomicU64,
    /// Held by whoever begins the next period.
    turn: Mutex<()>,
}

#[derive(Debug)]
struct Lowest {
    /// Nanoseconds.
    time: AtomicU64,
    /// How many measurements there were, as far as it matters.
    count: AtomicU32,
}

impl Default for Lowest {
    fn default() -> Self {
        Self { time: AtomicU64::new(u64::MAX), count: AtomicU32::new(0) }
    }
}

impl Lowest {
    fn record(&self, nanos: u64) {
        if nanos < self.time.load(Ordering::Relaxed) {
            self.time.fetch_min(nanos, Ordering::Relaxed);
        }
        if self.count.load(Ordering::Relaxed) < ENOUGH {
            self.count.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn get(&self) -> (u64, u32) {
        (self.time.load(Ordering::Relaxed), self.count.load(Ordering::Relaxed))
    }

    fn set(&self, (nanos, count): (u64, u32)) {
        self.time.store(nanos, Ordering::Relaxed);
        self.count.store(count, Ordering::Relaxed);
    }
}

impl RoundTrip {
    /// A call that was sent at `sent` has been answered.
    pub(crate) fn record(&self, sent: Tick, now: Tick) {
        if now.since(self.started()) > PERIOD {
            let _turn = lock(&self.turn);
            if now.since(self.started()) > PERIOD {
                self.last.set(self.current.get());
                self.current.set((u64::MAX, 0));
                self.started.store(now.as_nanos(), Ordering::Relaxed);
            }
        }
        self.current.record(u64::try_from(now.since(sent).as_nanos()).unwrap_or(u64::MAX));
    }

    fn started(&self) -> Tick {
        Tick::from_nanos(self.started.load(Ordering::Relaxed))
    }

    /// The lowest, and how many there were.
    fn recent(&self) -> Option<(Duration, u32)> {
        let ((current, count), (last, before)) = (self.current.get(), self.last.get());
        let lowest = current.min(last);
        (lowest < u64::MAX).then(|| (Duration::from_nanos(lowest), count + before))
    }

    /// The lowest recent round trip, if there were enough calls to be sure of it.
    pub(crate) fn measured(&self, now: Tick) -> Option<Duration> {
        let recent = self.recent().filter(|_| now.since(self.started()) <= PERIOD * 2);
        recent.filter(|(_, count)| *count >= ENOUGH).map(|(lowest, _)| lowest)
    }

    /// The lowest recent round trip, or a guess.
    pub(crate) fn lowest(&self) -> Duration {
        self.recent().map_or(ASSUMED, |(lowest, _)| lowest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_measurements_are_forgotten() {
        let at = |seconds| Tick::default() + Duration::from_secs(seconds);
        let rtt = RoundTrip::default();
        assert_eq!(rtt.lowest(), ASSUMED);
        rtt.record(at(1), at(1) + Duration::from_micros(50));
        rtt.record(at(2), at(3));
        assert_eq!(rtt.lowest(), Duration::from_micros(50));
        rtt.record(at(14), at(15));
        assert_eq!(rtt.lowest(), Duration::from_micros(50));
        rtt.record(at(29), at(30));
        assert_eq!(rtt.lowest(), Duration::from_secs(1));
    }

    #[test]
    fn few_or_old_measurements_refuse_nobody() {
        let at = |seconds| Tick::default() + Duration::from_secs(seconds);
        let rtt = RoundTrip::default();
        for _ in 1..ENOUGH {
            rtt.record(at(0), at(1));
            assert_eq!(rtt.measured(at(1)), None);
        }
        rtt.record(at(0), at(1));
        assert_eq!(rtt.measured(at(1)), Some(Duration::from_secs(1)));
        assert_eq!(rtt.measured(at(30)), None);
    }
}
