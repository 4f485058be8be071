//! [`RoundTrip`]: the lowest recent round trip to the store.

use std::sync::Mutex;
use std::time::Duration;

use crate::clock::Tick;

/// How long a measurement counts, at most twice this.
const PERIOD: Duration = Duration::from_secs(10);
/// What is assumed before the first call.
const ASSUMED: Duration = Duration::from_millis(1);

/// The smallest round trip of this period and the last one.
#[derive(Debug, Default)]
pub(crate) struct RoundTrip(Mutex<Periods>);

#[derive(Debug, Default)]
struct Periods {
    started: Tick,
    current: Option<Duration>,
    last: Option<Duration>,
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
        periods.current = Some(periods.current.map_or(took, |lowest| lowest.min(took)));
    }

    /// The lowest recent round trip, if anything was measured.
    pub(crate) fn measured(&self) -> Option<Duration> {
        let periods = crate::sync::lock(&self.0);
        periods.current.into_iter().chain(periods.last).min()
    }

    /// The lowest recent round trip, or a guess.
    pub(crate) fn lowest(&self) -> Duration {
        self.measured().unwrap_or(ASSUMED)
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
}
