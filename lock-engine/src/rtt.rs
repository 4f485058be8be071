//! [`RoundTrip`]: the lowest recent round trip to the store.

use std::time::Duration;

use lock_core::internal::clock::Tick;
use lock_core::internal::sync::{Mutex, lock};

/// Minimum time for which a measurement counts; the maximum is twice that.
const PERIOD: Duration = Duration::from_secs(10);
/// Number of measurements, one after the other, that make their minimum reliable. Single ones
/// include connecting or loading a script, and overlapping ones may all have met the same pause.
const ENOUGH: u32 = 8;
/// Round trip assumed before the first call.
const ASSUMED: Duration = Duration::from_millis(1);

/// The smallest round trip of the current period and the last one.
#[derive(Debug, Default)]
pub(crate) struct RoundTrip(Mutex<Periods>);

#[derive(Debug, Default)]
struct Periods {
    current: Lowest,
    last: Lowest,
    started: Tick,
    /// When the last counted call was answered.
    answered: Tick,
}

#[derive(Clone, Copy, Debug, Default)]
struct Lowest {
    time: Option<Duration>,
    count: u32,
}

impl RoundTrip {
    /// Records a call that was sent at `sent` and has been answered.
    pub(crate) fn record(&self, sent: Tick, now: Tick) {
        let mut periods = lock(&self.0);
        if now.since(periods.started) > PERIOD {
            periods.last = std::mem::take(&mut periods.current);
            periods.started = now;
        }
        let took = now.since(sent);
        let overlaps = sent < periods.answered;
        let current = &mut periods.current;
        current.time = Some(current.time.map_or(took, |time| time.min(took)));
        if !overlaps {
            current.count = current.count.saturating_add(1);
            periods.answered = now;
        }
    }

    /// Returns the lowest recent round trip, if there were enough calls for it to be reliable.
    pub(crate) fn measured(&self, now: Tick) -> Option<Duration> {
        let periods = lock(&self.0);
        let enough = periods.current.count.saturating_add(periods.last.count) >= ENOUGH;
        periods.lowest().filter(|_| enough && now.since(periods.started) <= PERIOD * 2)
    }

    /// Returns the lowest recent round trip, or a guess.
    pub(crate) fn lowest(&self) -> Duration {
        lock(&self.0).lowest().unwrap_or(ASSUMED)
    }
}

impl Periods {
    fn lowest(&self) -> Option<Duration> {
        self.current.time.into_iter().chain(self.last.time).min()
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
        for second in 1..u64::from(ENOUGH) {
            rtt.record(at(second - 1), at(second));
            assert_eq!(rtt.measured(at(second)), None);
        }
        rtt.record(at(7), at(8));
        assert_eq!(rtt.measured(at(8)), Some(Duration::from_secs(1)));
        assert_eq!(rtt.measured(at(30)), None);
    }

    #[test]
    fn calls_that_met_one_pause_are_one_measurement() {
        let at = |seconds| Tick::default() + Duration::from_secs(seconds);
        let rtt = RoundTrip::default();
        (0..10 * ENOUGH).for_each(|_| rtt.record(at(0), at(1)));
        assert_eq!(rtt.measured(at(1)), None);
    }
}
