//! [`Certain`]: until when a session is certain to live. No I/O.

use std::time::Duration;

use lock_core::internal::clock::Tick;

/// Part of the time-out by which the clocks of client and leader may differ.
const MARGIN: u32 = 40;

/// The heartbeats of a session, and until when they make it certain to live.
///
/// The leader of the ensemble ends a session that it has not heard of for the time-out. It hears of
/// a heartbeat by the follower's next answer to its own pings, which it sends twice a tick. So a
/// heartbeat that was answered shows that the leader has heard of one before it. Two of them leave
/// time for the ping, if each is sent a tick after the answer to the one before.
/// `spec/Heartbeats.tla` shows that less is not enough.
#[derive(Debug)]
pub(crate) struct Certain {
    timeout: Duration,
    tick: Duration,
    /// When the last two that count were sent,
    before: [Option<Tick>; 2],
    /// and when the next one counts: a tick after the last answer.
    next: Tick,
    until: Tick,
}

impl Certain {
    /// A session with this time-out that was asked for at `sent`, and began by `now`. The leader
    /// itself began it.
    pub(crate) fn new(sent: Tick, now: Tick, timeout: Duration, tick: Duration) -> Self {
        let until = sent + longest_life(timeout);
        Self { timeout, tick, before: [None, Some(sent)], next: now + tick, until }
    }

    /// Returns until when the session is certain to live.
    pub(crate) const fn until(&self) -> Tick {
        self.until
    }

    /// Returns when the next heartbeat counts.
    pub(crate) const fn next(&self) -> Tick {
        self.next
    }

    /// Records the answer to a heartbeat, which has just come.
    pub(crate) fn heard(&mut self, sent: Tick, now: Tick) {
        if sent < self.next {
            return;
        }
        let [first, second] = self.before;
        self.before = [second, Some(sent)];
        self.next = now + self.tick;
        if let Some(first) = first {
            self.until = self.until.max(first + longest_life(self.timeout));
        }
    }

    pub(crate) const fn tick(&self) -> Duration {
        self.tick
    }

    /// Returns the longest lease that heartbeats can keep.
    pub(crate) fn longest_lease(&self) -> Duration {
        longest_lease(self.timeout, self.tick)
    }
}

/// Returns for how long a session is certain to live after the leader has heard of it.
fn longest_life(timeout: Duration) -> Duration {
    timeout.saturating_sub(timeout / MARGIN)
}

/// Returns the longest lease that heartbeats, one each tick, can keep in a session.
pub(crate) fn longest_lease(timeout: Duration, tick: Duration) -> Duration {
    longest_life(timeout).saturating_sub(3 * tick)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn at(seconds: u64) -> Tick {
        Tick::default() + SECOND * u32::try_from(seconds).unwrap()
    }

    #[test]
    fn a_new_session_is_certain_from_its_request_on() {
        let certain = Certain::new(at(10), at(10), 40 * SECOND, 3 * SECOND);
        assert_eq!((certain.until(), certain.next()), (at(49), at(13)));
        assert_eq!(certain.longest_lease(), 30 * SECOND);
        // After a handshake that took long.
        let certain = Certain::new(at(10), at(25), 40 * SECOND, 3 * SECOND);
        assert_eq!((certain.until(), certain.next()), (at(49), at(28)));
    }

    #[test]
    fn it_is_certain_from_the_last_but_two_heartbeats_on() {
        let mut certain = Certain::new(at(10), at(10), 40 * SECOND, 3 * SECOND);
        let mut until = Vec::new();
        for sent in [13, 16, 20, 23] {
            certain.heard(at(sent), at(sent));
            until.push(certain.until());
        }
        // The session's beginning counts as one, and makes it certain already.
        assert_eq!(until, [at(49), at(49), at(52), at(55)]);
    }

    #[test]
    fn heartbeats_that_are_less_than_a_tick_apart_do_not_count() {
        let mut certain = Certain::new(at(10), at(10), 40 * SECOND, 3 * SECOND);
        for sent in [11, 12, 13, 14, 15] {
            certain.heard(at(sent), at(sent + 1));
        }
        // From the answer of one to the sending of the next.
        assert_eq!((certain.until(), certain.next()), (at(49), at(17)));
    }

    #[test]
    fn a_session_is_certain_for_the_longest_lease_while_there_is_a_heartbeat_each_tick() {
        let mut certain = Certain::new(at(0), at(0), 40 * SECOND, 3 * SECOND);
        for beat in 1..50 {
            // Just before the answer.
            assert!(certain.until() >= at(3 * beat) + certain.longest_lease(), "{beat}");
            certain.heard(at(3 * beat), at(3 * beat));
        }
    }
}
