//! [`check`]: runs every checker over one history.

use std::fmt;
use std::time::Duration;

use super::request::History;
use super::{
    answers, errors, exclusion, fencing, leftovers, load, order, ownership, renewals, shares, tokens,
    validity, waiting,
};

/// The checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Check {
    /// (1) Validity intervals of one key do not overlap, except for at most one validity where keys
    /// were lost.
    Exclusion,
    /// (2) Tokens are distinct and in the real-time order of grants.
    Tokens,
    /// (3) A set that is written with tokens as conditions loses no element.
    Fencing,
    /// (4) No key with a waiter is free for long.
    Waiting,
    /// (5) In the end nothing is left except what is allowed.
    Leftovers,
    /// (6) A dead process's keys are free within the lease.
    Crashes,
    /// (7) Nothing is renewed without a guard.
    Renewals,
    /// (8) The lost signal comes by the deadline, and no body starts outside validity.
    Validity,
    /// (9) No holder releases the lock of another.
    Ownership,
    /// (10) Callers get only errors that their requests or the faults explain.
    Errors,
    /// (11) Fair locks are granted in turn, and writers are not passed over forever.
    Order,
    /// (12) Every process gets its share.
    Shares,
    /// (13) Servers are not called without pause.
    Load,
    /// Every request and every release gets an answer, and in time.
    Answers,
}

/// The bounds of the checks.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Maximum lease of the run. Nothing is valid for longer than this without a renewal.
    pub lease: Duration,
    /// Maximum pause of a waiter that hears nothing.
    pub fallback: Duration,
    /// Time-out of one call to the store.
    pub call_timeout: Duration,
    /// How long a call may get no answer although nothing is in trouble, because the store serves
    /// others meanwhile.
    pub unanswered: Duration,
    /// Allowance for a busy machine on top of every bound.
    pub slack: Duration,
    /// The same allowance for actions of a process that need no server; counts only time in which
    /// it runs, and does not stand still.
    pub local_slack: Duration,
    /// How long a dead waiter may hold up a fair queue, or a dead writer the readers behind it.
    pub waiter_life: Duration,
    /// How often a patient waiter may be passed over by later requests of the other kind for its
    /// key.
    pub passed_over: usize,
    /// Minimum share of a key, as a part of an equal share, for a process that always wants it in
    /// calm time.
    pub share: f64,
    /// Maximum time that one process may take a key again and again while another waits.
    pub stint: Duration,
    /// Maximum number of commands per second at a server.
    pub commands_per_second: u64,
    /// Faults during which callers reach the store, although they may get errors.
    pub reachable: Vec<&'static str>,
    /// Whether a grant takes its token after the key, in a second step. If a fault takes the key
    /// between the two, a later grant may have a smaller token.
    pub token_follows: bool,
}

impl Limits {
    /// Returns the limits for the library's default settings on a busy machine, with locks of this
    /// lease.
    #[must_use]
    pub fn new(lease: Duration) -> Self {
        Self {
            lease,
            fallback: Duration::from_secs(5),
            call_timeout: Duration::from_secs(2),
            unanswered: Duration::ZERO,
            slack: Duration::from_secs(5),
            local_slack: Duration::from_millis(1500),
            waiter_life: Duration::from_secs(3),
            passed_over: 1000,
            share: 0.05,
            stint: Duration::from_secs(10),
            commands_per_second: 50_000,
            reachable: Vec::new(),
            token_follows: false,
        }
    }

    /// Returns how long after an outage every waiter has asked the store again.
    pub(super) fn again(&self) -> Duration {
        self.fallback + self.call_timeout
    }

    /// Returns the maximum time that a key with a waiter may be free.
    pub(super) fn free_with_waiter(&self) -> Duration {
        self.fallback + self.call_timeout + self.slack
    }
}

/// A defect of a history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Which checker found it.
    pub check: Check,
    /// A description for people.
    pub what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { check, what } = self;
        write!(f, "{check:?}: {what}")
    }
}

/// Runs every checker over the history.
#[must_use]
pub fn check(history: &History, limits: &Limits) -> Vec<Violation> {
    type Checker = fn(&History, &Limits) -> Vec<String>;
    const CHECKERS: [(Check, Checker); 14] = [
        (Check::Exclusion, exclusion::overlaps),
        (Check::Tokens, tokens::out_of_order),
        (Check::Fencing, fencing::lost_elements),
        (Check::Waiting, waiting::free_with_waiter),
        (Check::Leftovers, leftovers::left_behind),
        (Check::Crashes, waiting::held_by_the_dead),
        (Check::Renewals, renewals::without_guard),
        (Check::Validity, validity::too_long),
        (Check::Ownership, ownership::taken_away),
        (Check::Errors, errors::unexplained),
        (Check::Order, order::out_of_turn),
        (Check::Shares, shares::too_small),
        (Check::Load, load::too_high),
        (Check::Answers, answers::missing),
    ];
    let mut found = Vec::new();
    for (check, checker) in CHECKERS {
        found.extend(checker(history, limits).into_iter().map(|what| Violation { check, what }));
    }
    found
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Returns how many violations a checker finds in these logs. The lease is a second, and bounds
    /// are small.
    #[track_caller]
    pub(in super::super) fn found(of: Check, logs: &[(&str, &str)]) -> usize {
        found_where(of, logs, false)
    }

    #[track_caller]
    pub(in super::super) fn found_where(of: Check, logs: &[(&str, &str)], token_follows: bool) -> usize {
        let limits = Limits {
            passed_over: 3,
            share: 0.2,
            stint: Duration::from_secs(2),
            commands_per_second: 100,
            reachable: vec!["slow"],
            token_follows,
            ..Limits::new(Duration::from_secs(1))
        };
        let history = History::parse(logs).unwrap();
        let found = check(&history, &limits).into_iter().filter(|violation| violation.check == of);
        found.count()
    }

    #[test]
    fn a_history_in_which_all_goes_well_is_clean() {
        let first = "1 10 10 ask mutex patient 60000 - 1 a
            1 20 900 granted 5
            1 21 900 body
            1 30 900 alive
            1 40 900 end
            1 50 50 out released";
        let second = "1 15 15 ask mutex patient 60000 - 1 a
            1 55 955 granted 6
            1 60 955 end
            1 61 61 out dropped
            2 70 70 ask mutex try 0 - 2 a
            2 80 80 refused busy lock a is busy";
        let history = History::parse(&[("0.0", first), ("1.0", second)]).unwrap();
        assert_eq!(check(&history, &Limits::new(Duration::from_secs(1))), []);
    }
}
