//! [`RoundTrip`]: the lowest recent round trip to the store.

use std::time::Duration;

use crate::clock::Tick;
use crate::sync::Mutex;

/// How long a measurement counts, at most twice this.
const PERIOD: Duration = Duration::from_secs(10);
/// So many measurements make the lowest one a round trip: single ones have connecting or loading a script in them.
const ENOUGH: u32 = 8;
/// What is assumed before the first call.
const ASSUMED: Duration = Duration::from_millis(1);

/// The smallest round trip of this period and the last one.
#[derive(Debug, Default)]
pub(crate) struct RoundTrip(Mutex<Periods>);

#[derive(Debug, Default)]
struct Periods {
    started: Tick,
    current: Option<Lowest>,
    last: Option<Lowest>,
}

#[derive(Clone, Copy, Debug)]
struct Lowest {
    time: Duration,
    count: u32,
}

impl Lowest {
    fn with(self, other: Self) -> Self {
        Self { time: self.time.min(other.time), count: self.count.saturating_add(other.count) }
    }
}

impl RoundTrip {
    /// A call that was sent at `sent` has been answered.
    pub(crate) fn record(&self, sent: Tick, now: Tick) {
        let took = now.since(sent);
        let mut periods = crate::sync::lock(&self.0);
        if now.since(periods.started) > PERIOD {
            periods.last = periods.current.take();
            periods.started = now;
        }
        let one = Lowest { time: took, count: 1 };
        periods.current = Some(periods.current.map_or(one, |lowest| lowest.with(one)));
    }

    fn recent(&self) -> (Tick, Option<Lowest>) {
        let periods = crate::sync::lock(&self.0);
        (periods.started, periods.current.into_iter().chain(periods.last).reduce(Lowest::with))
    }

    /// The lowest recent round trip, if there were enough calls to be sure of it.
    pub(crate) fn measured(&self, now: Tick) -> Option<Duration> {
        let (started, recent) = self.recent();
        recent
            .filter(|lowest| lowest.count >= ENOUGH && now.since(started) <= PERIOD * 2)
            .map(|lowest| lowest.time)
    }

    /// The lowest recent round trip, or a guess.
    pub(crate) fn lowest(&self) -> Duration {
        self.recent().1.map_or(ASSUMED, |lowest| lowest.time)
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
