//! [`ServerClock`]: an estimate of the server's clock, from its last answer.

use crate::internal::clock::Tick;
use crate::internal::sync::{Mutex, lock};
use crate::store::ServerTime;

/// An upper bound of the server's time: its last known time, plus our time since we sent the
/// request that it answered. It is ahead of the true time by at most that request's round trip.
#[derive(Debug, Default)]
pub struct ServerClock(Mutex<Option<Sample>>);

#[derive(Clone, Copy, Debug)]
struct Sample {
    server: ServerTime,
    sent: Tick,
}

impl ServerClock {
    /// Records that the answer to a request sent at `sent` had the server time `server`. Answers to
    /// older requests are ignored.
    pub fn observe(&self, server: ServerTime, sent: Tick) {
        let mut sample = lock(&self.0);
        if sample.is_none_or(|known| known.sent <= sent) {
            *sample = Some(Sample { server, sent });
        }
    }

    /// Sets the time to `server` at `sent`, whatever was known before.
    #[cfg(any(test, feature = "testing"))]
    pub fn pretend(&self, server: ServerTime, sent: Tick) {
        *lock(&self.0) = Some(Sample { server, sent });
    }

    /// Returns the server time of the last answer; `None` before the first answer. It is not ahead
    /// of the server's clock, unless that was set back since.
    pub fn last(&self) -> Option<ServerTime> {
        lock(&self.0).map(|Sample { server, .. }| server)
    }

    /// Returns the estimated server time at `now`; `None` before the first answer.
    pub fn estimate(&self, now: Tick) -> Option<ServerTime> {
        let sample = *lock(&self.0);
        sample.map(|Sample { server, sent }| {
            let passed = u64::try_from(now.since(sent).as_micros()).unwrap_or(u64::MAX);
            ServerTime::from_micros(server.as_micros().saturating_add(passed))
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn time_goes_on_from_the_moment_the_request_was_sent() {
        let clock = ServerClock::default();
        let sent = Tick::from_nanos(1_000);
        assert_eq!((clock.estimate(sent), clock.last()), (None, None));
        clock.observe(ServerTime::from_micros(500), sent);
        assert_eq!(clock.estimate(sent + Duration::from_micros(7)), Some(ServerTime::from_micros(507)));
        assert_eq!(clock.last(), Some(ServerTime::from_micros(500)));
    }

    #[test]
    fn a_late_answer_to_an_older_request_changes_nothing() {
        let clock = ServerClock::default();
        clock.observe(ServerTime::from_micros(500), Tick::from_nanos(2_000));
        clock.observe(ServerTime::from_micros(900), Tick::from_nanos(1_000));
        assert_eq!(clock.estimate(Tick::from_nanos(2_000)), Some(ServerTime::from_micros(500)));
        clock.observe(ServerTime::from_micros(100), Tick::from_nanos(2_000));
        assert_eq!(
            clock.estimate(Tick::from_nanos(2_000)),
            Some(ServerTime::from_micros(100)),
            "clocks step back"
        );
    }
}
