//! [`RetrySchedule`]: when a contender tries again. Does no I/O, and reads no clock.

use std::time::Duration;

use lock_core::Replication;
use lock_core::internal::clock::Tick;
use lock_core::store::StoreError;

/// First poll interval when the store cannot deliver messages, and its maximum.
const POLL_FIRST: Duration = Duration::from_millis(20);
pub(crate) const POLL_LONGEST: Duration = Duration::from_millis(250);
/// Pause between two polls of a waiter for each that comes before it, and its maximum. Those before
/// it may leave faster than expected, and the key then waits for its poll. A hundred waiters poll
/// about as many times a second.
const POLL_EACH: Duration = Duration::from_millis(160);
const POLL_BEHIND: Duration = Duration::from_secs(1);
/// First interval of the fallback that covers lost messages; it doubles up to the configured one.
const FALLBACK_FIRST: Duration = Duration::from_millis(250);
/// First and maximum back-off after a store error.
const ERROR_FIRST: Duration = Duration::from_millis(10);
const ERROR_LONGEST: Duration = Duration::from_secs(1);
/// Minimum and maximum of a step-back.
const STEP_BACK_SHORTEST: Duration = Duration::from_millis(2);
const STEP_BACK_LONGEST: Duration = Duration::from_millis(10);
/// Number of unanswered step-backs after which listeners count as phantoms, and for how long.
const UNANSWERED_STEP_BACKS: u32 = 3;
const PHANTOM_TIME: Duration = Duration::from_secs(1);

/// Pause after a message, per listener; limited by [`TURNS_LONGEST`].
///
/// A driver that asked after a message and found another one first has lost a race. After the next
/// message it pauses for a random time of up to 2 ms; each lost race doubles that, up to this
/// limit. Timers have a resolution of a millisecond, so some drivers ask at once.
const TURN: Duration = Duration::from_micros(100);
const TURNS_LONGEST: Duration = Duration::from_millis(50);
/// Number of lost races after which a driver asks at once after the next message. Otherwise two
/// drivers that have just won, and so don't pause, could keep the key between them.
const RACES: u32 = 8;

/// A contender's knowledge about its rivals, and the earliest time of its next attempt.
#[derive(Debug, Default)]
pub struct RetrySchedule {
    not_before: Tick,
    interval: Duration,
    /// Maximum pause between two polls because of those that come first.
    pace: Duration,
    failures: Failures,
    /// Whether others go first for a moment.
    steps_back: bool,
    unanswered: u32,
    phantoms_until: Tick,
    setback: Setback,
    listening: bool,
    /// Whether the next attempt comes after a message.
    races: bool,
    /// Number of such attempts in a row that found another contender first.
    lost_races: u32,
    /// Pause between the next message and the attempt.
    turn: Duration,
}

/// The back-off of callers that want replicas to confirm; it does not affect others.
#[derive(Debug, Default)]
struct Setback {
    until: Tick,
    failures: Failures,
}

/// Failed attempts in a row, and the last error.
#[derive(Debug, Default)]
struct Failures {
    count: u32,
    last: Option<StoreError>,
}

impl Failures {
    /// Counts a failure; returns the back-off.
    fn note(&mut self, error: StoreError, random: f64) -> Duration {
        let longest = (ERROR_FIRST * 2u32.saturating_pow(self.count.min(10))).min(ERROR_LONGEST);
        *self = Self { count: self.count.saturating_add(1), last: Some(error) };
        longest.mul_f64(0.5 + random / 2.0)
    }
}

impl RetrySchedule {
    /// Returns the earliest time of the next attempt.
    pub fn not_before(&self) -> Tick {
        self.not_before
    }

    /// Returns the earliest time of the next attempt with this policy.
    pub(crate) fn not_before_with(&self, wanted: Replication) -> Tick {
        if wanted.is_none() { self.not_before } else { self.not_before.max(self.setback.until) }
    }

    /// Whether callers with a policy are held back.
    pub(crate) fn is_set_back(&self, now: Tick) -> bool {
        now < self.setback.until
    }

    /// Returns the store's error that prevented a grant with this policy, if there was one.
    pub fn last_error_for(&self, wanted: Replication) -> Option<StoreError> {
        let of_policy = self.setback.failures.last.as_ref().filter(|_| !wanted.is_none());
        of_policy.or(self.failures.last.as_ref()).cloned()
    }

    /// Schedules the next attempt for `until`, because the current state was just seen by other
    /// means. A contender that can't hear of a change polls nevertheless, unless it is `far` from
    /// its turn.
    pub(crate) fn seen(&mut self, now: Tick, until: Tick, far: bool) {
        if self.failures.count == 0 && !self.steps_back && now < self.not_before {
            let hears = self.listening || far;
            self.not_before = if hears { until } else { self.not_before.min(now + self.poll()) };
        }
    }

    /// Schedules an attempt at once.
    pub(crate) fn reset(&mut self, now: Tick) {
        self.not_before = now;
        self.steps_back = false;
    }

    /// Adjusts the schedule to a new caller. Earlier failures should not delay it, so it need not
    /// wait for the back-off, which goes on growing if the new attempt fails, too. If it is
    /// `alone`, all pauses stem from callers that have left a driver that has not noticed yet.
    pub(crate) fn on_new_waiter(&mut self, wanted: Replication, alone: bool, now: Tick) {
        if alone && self.not_before_with(wanted) > now + STEP_BACK_LONGEST {
            self.reset(now);
        }
        if self.failures.count > 0 && !self.steps_back {
            self.bring_forward(now);
        }
    }

    /// Schedules an attempt at `at`, unless an earlier one is due.
    pub(crate) fn bring_forward(&mut self, at: Tick) {
        self.not_before = self.not_before.min(at);
    }

    /// Returns the maximum pause between two polls.
    pub(crate) fn poll(&self) -> Duration {
        self.pace.max(POLL_LONGEST)
    }

    /// Whether messages arrive, or are expected to.
    pub(crate) fn hears(&self) -> bool {
        self.listening
    }

    /// Records how many waiters come first: the more, the less often this one polls, but once a
    /// second, and once in `longest`.
    pub(crate) fn ahead(&mut self, ahead: u32, longest: Duration) {
        self.pace = POLL_EACH.saturating_mul(ahead).min(POLL_BEHIND).min(longest);
    }

    /// Records that another owner holds the key, for `remaining` more if it is not renewed.
    ///
    /// `random` is uniform in 0..1 and spreads the polls of many processes.
    pub fn on_busy(
        &mut self,
        now: Tick,
        remaining: Option<Duration>,
        listening: bool,
        longest: Duration,
        random: f64,
    ) {
        self.failures = Failures::default();
        self.listening = listening;
        if std::mem::take(&mut self.steps_back) {
            self.unanswered = 0;
        }
        let (first, longest) = if listening {
            (FALLBACK_FIRST.min(longest), longest)
        } else {
            (POLL_FIRST.min(longest), if longest < POLL_LONGEST { longest } else { self.poll() })
        };
        self.interval =
            if self.interval.is_zero() { first } else { (self.interval * 2).clamp(first, longest) };
        let jittered = self.interval.mul_f64(0.75 + random / 4.0);
        // One millisecond more than the store said, because it rounds down.
        let end = remaining.map(|remaining| remaining.saturating_add(Duration::from_millis(1)));
        self.not_before = now + end.map_or(jittered, |end| jittered.min(end));
    }

    /// Records how many listen for the same release, although some may have just begun. Only one of
    /// them gets the key, so drivers that have lost a race don't all ask at the same time.
    pub(crate) fn rivals(&mut self, listeners: u32, random: f64) {
        if std::mem::take(&mut self.races) {
            self.lost_races = self.lost_races.saturating_add(1);
        }
        let longest = TURN.saturating_mul(listeners).min(TURNS_LONGEST);
        let longest = match self.lost_races % RACES {
            0 => Duration::ZERO,
            lost => longest.min(Duration::from_millis(1 << lost)),
        };
        self.turn = Duration::from_millis(u64::try_from(longest.mul_f64(random).as_millis()).unwrap_or(0));
    }

    /// Handles a message: the key may be free.
    pub fn on_notification(&mut self, now: Tick) {
        if std::mem::take(&mut self.steps_back) {
            // The step-back was answered.
            self.unanswered = 0;
        }
        self.interval = Duration::ZERO;
        self.races = true;
        // A second message does not delay the attempt.
        self.bring_forward(now + self.turn);
    }

    /// Records that messages arrive from now on. One may have been missed before, so an attempt
    /// follows when it is our turn. A step-back stays in force.
    pub fn listening(&mut self, now: Tick) {
        self.listening = true;
        self.interval = Duration::ZERO;
        if !self.steps_back {
            self.bring_forward(now + self.turn);
        }
    }

    /// Switches to polling, from the shortest interval, because messages can't be relied on. A
    /// back-off or a step-back stays in force.
    pub fn deaf(&mut self, now: Tick) {
        self.listening = false;
        if self.failures.count == 0 && !self.steps_back {
            self.interval = Duration::ZERO;
            self.bring_forward(now + POLL_FIRST);
        }
    }

    /// Backs off after a store error.
    pub fn on_failure(&mut self, now: Tick, error: StoreError, random: f64) {
        self.steps_back = false;
        self.not_before = now + self.failures.note(error, random);
    }

    /// Holds back callers that want replicas to confirm, after such an attempt has failed. Callers
    /// without a policy may try at once. No message brings the others forward, because the undo of
    /// their own attempt causes one.
    pub(crate) fn set_back(&mut self, now: Tick, error: StoreError, random: f64) {
        self.steps_back = false;
        self.setback.until = now + self.setback.failures.note(error, random);
    }

    /// Records a grant to us, with the confirmation of replicas if required.
    pub(crate) fn confirmed(&mut self) {
        self.setback = Setback::default();
    }

    /// Records a grant to us.
    pub(crate) fn on_granted(&mut self, now: Tick) {
        (self.races, self.lost_races, self.turn) = (false, 0, Duration::ZERO);
        self.failures = Failures::default();
        self.interval = Duration::ZERO;
        if std::mem::take(&mut self.steps_back) {
            self.unanswered += 1;
            if self.unanswered >= UNANSWERED_STEP_BACKS {
                self.unanswered = 0;
                self.phantoms_until = now + PHANTOM_TIME;
            }
        }
    }

    /// Steps back for a moment, because the key was released for everybody and others listen: they
    /// go first.
    pub(crate) fn step_back(&mut self, now: Tick, round_trip: Duration) {
        self.steps_back = true;
        self.not_before = now + (round_trip * 2).clamp(STEP_BACK_SHORTEST, STEP_BACK_LONGEST);
    }

    /// Whether to ignore listeners, because they did not answer the last step-backs.
    pub(crate) fn listeners_are_phantoms(&self, now: Tick) -> bool {
        now < self.phantoms_until
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::SHORTEST_POLL;
    use lock_core::store::StoreErrorKind;

    const MS: Duration = Duration::from_millis(1);
    const LONG: Duration = Duration::from_secs(30);

    fn at(ms: u64) -> Tick {
        Tick::default() + MS * u32::try_from(ms).unwrap()
    }

    #[test]
    fn a_busy_contender_waits_for_the_hold_to_end_at_most() {
        let mut retry = RetrySchedule::default();
        retry.on_busy(at(0), Some(40 * MS), true, Duration::from_secs(5), 1.0);
        assert_eq!(retry.not_before(), at(41));
    }

    #[test]
    fn the_fallback_grows_to_its_cap_and_starts_again_after_a_message() {
        let mut retry = RetrySchedule::default();
        let mut last = Duration::ZERO;
        for _ in 0..12 {
            retry.on_busy(at(0), Some(LONG), true, Duration::from_secs(5), 1.0);
            let wait = retry.not_before().since(at(0));
            assert!(wait >= last && wait <= Duration::from_secs(5));
            last = wait;
        }
        assert_eq!(last, Duration::from_secs(5));
        retry.on_notification(at(7));
        assert_eq!(retry.not_before(), at(7));
        retry.on_busy(at(0), Some(LONG), true, Duration::from_secs(5), 1.0);
        assert_eq!(retry.not_before(), Tick::default() + FALLBACK_FIRST);
    }

    #[test]
    fn without_messages_it_polls() {
        let mut retry = RetrySchedule::default();
        for _ in 0..20 {
            retry.on_busy(at(0), Some(LONG), false, Duration::from_secs(5), 1.0);
            assert!(retry.not_before() <= Tick::default() + POLL_LONGEST);
        }
    }

    #[test]
    fn the_more_come_first_the_less_often_it_polls() {
        let pauses = |ahead, most, longest| {
            let mut retry = RetrySchedule::default();
            retry.ahead(ahead, most);
            let mut last = Duration::ZERO;
            for _ in 0..12 {
                retry.on_busy(at(0), Some(LONG), false, longest, 1.0);
                last = retry.not_before().since(at(0));
            }
            retry.seen(at(0), at(20_000), false);
            assert!(retry.not_before() <= at(0) + last.max(POLL_LONGEST));
            last
        };
        let most = 5000 * MS;
        assert_eq!(pauses(0, most, POLL_LONGEST), POLL_LONGEST);
        assert_eq!(pauses(3, most, POLL_LONGEST), 480 * MS);
        assert_eq!(pauses(1000, most, POLL_LONGEST), POLL_BEHIND);
        assert_eq!(pauses(1000, 50 * MS, 50 * MS), 50 * MS, "as often as it was set up to");
    }

    #[test]
    fn every_fallback_that_is_accepted_is_kept_to() {
        for longest in (SHORTEST_POLL.as_millis()..60).map(|ms| MS * u32::try_from(ms).unwrap()) {
            for listening in [true, false] {
                let mut retry = RetrySchedule::default();
                for _ in 0..5 {
                    retry.on_busy(at(0), Some(LONG), listening, longest, 1.0);
                    let wait = retry.not_before().since(at(0));
                    assert!(!wait.is_zero() && wait <= longest, "{wait:?} of {longest:?}, {listening}");
                }
            }
        }
    }

    #[test]
    fn what_was_seen_in_another_way_takes_the_place_of_an_attempt() {
        let mut retry = RetrySchedule::default();
        retry.on_busy(at(0), Some(LONG), true, LONG, 1.0);
        retry.seen(at(1), at(5000), false);
        assert_eq!(retry.not_before(), at(5000));
        retry.seen(at(1000), at(2000), false);
        assert_eq!(retry.not_before(), at(2000), "the lease ends sooner");
        retry.seen(at(2000), at(9000), false);
        assert_eq!(retry.not_before(), at(2000), "it is due");
        retry.on_notification(at(2001));
        retry.seen(at(2001), at(9000), true);
        assert_eq!(retry.not_before(), at(2000));
    }

    #[test]
    fn who_hears_nothing_polls_unless_it_is_far() {
        let mut retry = RetrySchedule::default();
        retry.on_busy(at(0), Some(LONG), false, LONG, 1.0);
        retry.seen(at(1), at(5000), false);
        assert_eq!(retry.not_before(), Tick::default() + POLL_FIRST);
        retry.seen(at(1), at(5000), true);
        assert_eq!(retry.not_before(), at(5000));
        retry.seen(at(2), at(5000), false);
        assert_eq!(retry.not_before(), at(2) + POLL_LONGEST, "it has come near");
    }

    #[test]
    fn many_who_listen_take_turns_after_a_message() {
        let after = |races: u64, listeners, random| {
            let mut retry = RetrySchedule::default();
            for race in 0..=races {
                retry.on_busy(at(100 * race), Some(LONG), true, LONG, 1.0);
                retry.rivals(listeners, random);
                retry.on_notification(at(100 * race + 50));
            }
            retry.not_before().since(at(100 * races + 50)).as_millis()
        };
        assert_eq!(after(0, 1000, 0.999), 0, "listeners do not have to want the key");
        assert_eq!([1, 2, 3, 4, 7].map(|races| after(races, 150, 0.999)), [1, 3, 7, 14, 14]);
        assert_eq!([8, 9, 16].map(|races| after(races, 150, 0.999)), [0, 1, 0], "no waiter loses forever");
        assert_eq!([0.0, 0.05, 0.1, 0.5].map(|random| after(7, 150, random)), [0, 0, 1, 7]);
        assert_eq!([0.0, 0.5, 0.999].map(|random| after(7, 100_000, random)), [0, 25, 49]);
        assert_eq!(after(7, 9, 0.999), 0, "few ask at once");

        let mut retry = RetrySchedule { lost_races: 7, ..RetrySchedule::default() };
        retry.on_busy(at(0), Some(LONG), true, LONG, 1.0);
        retry.rivals(150, 0.5);
        retry.on_notification(at(7));
        retry.on_notification(at(10));
        assert_eq!(retry.not_before(), at(14), "no message makes it later");
        retry.on_busy(at(14), Some(LONG), true, LONG, 1.0);
        retry.listening(at(20));
        assert_eq!(retry.not_before(), at(27), "as after a connection that broke for all");
        retry.on_granted(at(27));
        retry.on_notification(at(30));
        assert_eq!(retry.not_before(), at(27), "the winner begins again");
    }

    #[test]
    fn a_message_ends_a_step_back() {
        let mut retry = RetrySchedule::default();
        retry.step_back(at(0), MS);
        assert_eq!(retry.not_before(), at(2));
        retry.on_notification(at(1));
        assert_eq!(retry.not_before(), at(1));
    }

    #[test]
    fn a_step_back_is_short_whatever_the_round_trip() {
        let mut retry = RetrySchedule::default();
        retry.step_back(at(0), Duration::from_micros(50));
        assert_eq!(retry.not_before(), at(2));
        retry.step_back(at(0), Duration::from_secs(1));
        assert_eq!(retry.not_before(), at(10));
    }

    #[test]
    fn three_unanswered_step_backs_make_phantoms_for_a_second() {
        let mut retry = RetrySchedule::default();
        for _ in 0..3 {
            assert!(!retry.listeners_are_phantoms(at(10)));
            retry.step_back(at(0), MS);
            retry.on_granted(at(10));
        }
        assert!(retry.listeners_are_phantoms(at(11)));
        assert!(!retry.listeners_are_phantoms(at(1011)));
    }

    #[test]
    fn a_rival_that_takes_the_key_is_no_phantom() {
        let mut retry = RetrySchedule::default();
        for _ in 0..6 {
            retry.step_back(at(0), MS);
            retry.on_busy(at(5), Some(LONG), true, LONG, 0.0);
            retry.on_notification(at(6));
            retry.on_granted(at(7));
        }
        assert!(!retry.listeners_are_phantoms(at(8)));
    }

    #[test]
    fn who_is_new_does_not_wait_for_the_end_of_a_back_off() {
        let mut retry = RetrySchedule::default();
        let error = StoreError::new(StoreErrorKind::Unreachable, "down");
        for _ in 0..20 {
            retry.on_failure(at(0), error.clone(), 1.0);
        }
        retry.on_new_waiter(Replication::NONE, false, at(7));
        assert_eq!(retry.not_before(), at(7));
        retry.on_failure(at(8), error, 1.0);
        assert_eq!(retry.not_before(), at(1008), "it did not begin again");
        retry.on_busy(at(9), Some(LONG), true, LONG, 1.0);
        retry.on_new_waiter(Replication::NONE, false, at(10));
        assert_eq!(retry.not_before(), at(9) + FALLBACK_FIRST, "the holder is still the same");
    }

    #[test]
    fn errors_back_off_to_a_second() {
        let mut retry = RetrySchedule::default();
        let error = StoreError::new(StoreErrorKind::Unreachable, "down");
        for _ in 0..20 {
            retry.on_failure(at(0), error.clone(), 1.0);
            assert!(retry.not_before() <= at(1000));
        }
        assert_eq!(retry.not_before(), at(1000));
        assert_eq!(retry.failures.last, Some(error));
    }
}
