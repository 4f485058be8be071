//! [`check`]: every checker over one history.

use std::fmt;
use std::time::Duration;

use super::request::History;
use super::{
    answers, errors, exclusion, fencing, leftovers, load, order, ownership, renewals, shares, tokens,
    validity, waiting,
};

/// What is checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Check {
    /// (1) Validity intervals of one key do not overlap, or at most one validity where keys were
    /// lost.
    Exclusion,
    /// (2) Tokens are distinct and in the real-time order of grants.
    Tokens,
    /// (3) A set that is written with tokens as conditions loses no element.
    Fencing,
    /// (4) No key is free for long while somebody waits for it.
    Waiting,
    /// (5) Nothing is left in the end but what is allowed.
    Leftovers,
    /// (6) What a crash leaves is free within the lease.
    Crashes,
    /// (7) Nothing is renewed without a guard.
    Renewals,
    /// (8) The lost signal comes by the deadline, and no body starts outside validity.
    Validity,
    /// (9) Nobody releases another's lock.
    Ownership,
    /// (10) Callers get the errors that the faults explain.
    Errors,
    /// (11) Fair locks are granted in turn, and writers are not passed over for ever.
    Order,
    /// (12) Every process gets its share.
    Shares,
    /// (13) Servers are not asked without pause.
    Load,
    /// Every request and every release gets an answer, and in time.
    Answers,
}

/// What is allowed.
#[derive(Clone, Debug)]
pub struct Limits {
    /// The longest lease of the run; nothing is valid for longer than this without a renewal.
    pub lease: Duration,
    /// The longest pause of a waiter that hears nothing.
    pub fallback: Duration,
    /// Of one call to the store.
    pub call_timeout: Duration,
    /// What is granted to a busy machine on top of every bound.
    pub slack: Duration,
    /// The same for what a process does without a server, in the time in which it runs.
    pub local_slack: Duration,
    /// How long a dead waiter may hold up a fair queue, and the readers behind a dead writer.
    pub waiter_life: Duration,
    /// How often a patient waiter may be passed over by requests for its key that came later, in
    /// the other kind.
    pub passed_over: usize,
    /// The smallest part of an equal share that a process gets of a key that it always wants, in
    /// calm time.
    pub share: f64,
    /// For how long one process may have a key again and again while another waits.
    pub stint: Duration,
    /// Commands that a server gets in a second, at most.
    pub commands_per_second: u64,
    /// Faults through which callers reach the store, although they may get errors.
    pub reachable: Vec<&'static str>,
}

impl Limits {
    /// The settings of the library's default, for locks of this lease, on a busy machine.
    #[must_use]
    pub fn new(lease: Duration) -> Self {
        Self {
            lease,
            fallback: Duration::from_secs(5),
            call_timeout: Duration::from_secs(2),
            slack: Duration::from_secs(5),
            local_slack: Duration::from_millis(1500),
            waiter_life: Duration::from_secs(3),
            passed_over: 1000,
            share: 0.05,
            stint: Duration::from_secs(10),
            commands_per_second: 50_000,
            reachable: Vec::new(),
        }
    }

    /// After an outage, until whoever waits has asked the store again.
    pub(super) fn again(&self) -> Duration {
        self.fallback + self.call_timeout
    }

    /// The longest time for which a free key may have a waiter.
    pub(super) fn free_with_waiter(&self) -> Duration {
        self.fallback + self.call_timeout + self.slack
    }
}

/// Something that a history should not have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Which checker found it.
    pub check: Check,
    /// What, for people.
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

    /// How many violations a checker finds in these logs. The lease is a second, and bounds are
    /// small.
    #[track_caller]
    pub(in super::super) fn found(of: Check, logs: &[(&str, &str)]) -> usize {
        let limits = Limits {
            passed_over: 3,
            share: 0.2,
            stint: Duration::from_secs(2),
            commands_per_second: 100,
            reachable: vec!["slow"],
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
