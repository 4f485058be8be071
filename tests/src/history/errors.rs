//! (10) Callers get only errors that their requests or the faults explain.

use std::time::Duration;

use super::check::Limits;
use super::event::{ErrorClass, Outcome, Want};
use super::request::{History, Life, Request};
use super::spans::{length, nanos};

pub(super) fn unexplained(history: &History, limits: &Limits) -> Vec<String> {
    let mut found = Vec::new();
    for request in &history.requests {
        let Some(life) = history.lives.get(&request.process) else { continue };
        let Request { id, process, key, want, wait, asked, .. } = request;
        if let (Some((error, why)), Some(at)) = (&request.refused, request.answered)
            && !explained(history, process, limits, (*error, why), (*asked, at))
            && !asked_for(request, *error, why, at)
        {
            found.push(format!("{key}: {id} ({want:?}, wait {wait:?}) was refused: {error:?}: {why}"));
        }
        let Some(grant) = &request.grant else { continue };
        if let (Some((ended, until)), Some((at, how))) = (&grant.ended, &grant.out) {
            match how {
                Outcome::Failed(error, why)
                    if !explained(history, process, limits, (*error, why), (*ended, *at)) =>
                {
                    found.push(format!("{key}: the release of {id} failed: {error:?}: {why}"));
                }
                // A release long after the end of the hold must report the loss.
                Outcome::Released if late(*ended, *until, grant.to, life) > limits.lease + limits.slack => {
                    found.push(format!("{key}: {id} was released at {at} ns, and over at {} ns", grant.to));
                }
                _ => {}
            }
        }
    }
    found
}

/// Returns how long the hold had been over when its release began.
fn late(ended: u64, until: u64, to: u64, life: &Life) -> Duration {
    if until > ended { Duration::ZERO } else { life.running(to, ended) }
}

/// Whether the error is a normal end of the request.
fn asked_for(request: &Request, error: ErrorClass, why: &str, at: u64) -> bool {
    match error {
        ErrorClass::Busy => request.wait.is_zero(),
        ErrorClass::TimedOut => {
            // The clocks of processes may differ by one per cent.
            let waited = length((request.asked, at));
            let mine = matches!(request.want, Want::Short | Want::Fickle);
            mine && !request.wait.is_zero() && waited >= request.wait - request.wait / 100
        }
        // A busy machine can make round trips too long for a short lease.
        ErrorClass::Misconfigured => request.lease.is_some() && why.contains("round trips"),
        _ => false,
    }
}

/// Whether something excuses the error of a call. A fault excuses its own errors in a call that it
/// overlapped, and in the next one. A stop of the process uses up the time for the store's answer.
/// So does a machine that stands still for at least half of the call, and a store that serves
/// others meanwhile.
fn explained(
    history: &History,
    process: &str,
    limits: &Limits,
    (error, why): (ErrorClass, &str),
    (asked, to): (u64, u64),
) -> bool {
    let Some(life) = history.lives.get(process) else { return false };
    let lag = nanos(limits.call_timeout);
    let from = asked.saturating_sub(lag);
    let there = |start: u64, end: u64| start <= to && end.saturating_add(lag) >= from;
    let fault =
        history.faults.iter().any(|fault| fault.errors.contains(&error) && there(fault.from, fault.to));
    // A request that waits for less than the call time-out is told that there was no answer when
    // its wait is over.
    let stood =
        error == ErrorClass::Unavailable && history.stood(process, asked, to) * 2 >= length((asked, to));
    let paused = matches!(error, ErrorClass::Unavailable | ErrorClass::TimedOut)
        && life.pauses.iter().any(|(start, end)| there(*start, *end));
    let queued = error == ErrorClass::Unavailable
        && why.contains("no answer")
        && length((asked, to)) < limits.unanswered;
    fault || paused || stood || queued
}

#[cfg(test)]
mod tests {
    use super::super::Check::Errors;
    use super::super::check::tests::found;

    const S: u64 = 1_000_000_000;

    fn refused(want: &str, error: &str, run: &str) -> usize {
        let log = format!("1 {0} 0 ask mutex {want} - 1 a\n1 {1} 0 refused {error} x", 10 * S, 11 * S);
        found(Errors, &[("0.0", &log), ("run", run)])
    }

    #[test]
    fn refusals_that_nobody_asked_for_are_found() {
        assert_eq!((refused("try 0", "busy", ""), refused("short 50", "timed-out", "")), (0, 0));
        assert_eq!(
            (refused("short 50", "busy", ""), refused("try 0", "timed-out", "")),
            (1, 1),
            "the other one"
        );
        assert_eq!(
            (refused("short 1005", "timed-out", ""), refused("short 1050", "timed-out", "")),
            (0, 1),
            "early"
        );
        assert_eq!((refused("patient 60000", "busy", ""), refused("patient 60000", "timed-out", "")), (1, 1));
        assert_eq!((refused("try 0", "shut-down", ""), refused("try 0", "unavailable", "")), (1, 1));
    }

    #[test]
    fn a_fault_explains_its_errors_and_no_others() {
        let cut = |at: u64| format!("0 {0} 0 fault nothing unavailable cut\n0 {0} 0 fault-over cut", at * S);
        assert_eq!(refused("try 0", "unavailable", &cut(9)), 0);
        assert_eq!(refused("try 0", "unavailable", &cut(12)), 1, "later");
        assert_eq!(refused("try 0", "unavailable", &cut(3)), 1, "long before");
        assert_eq!(refused("try 0", "misconfigured", &cut(9)), 1);
    }

    #[test]
    fn a_machine_that_stood_still_explains_what_was_not_answered_and_nothing_else() {
        let log = |error: &str| {
            format!("1 {0} 0 ask mutex short 100 - 1 a\n1 {1} 0 refused {error} x", 10 * S, 10 * S + S / 5)
        };
        // These times are just below and above half of the 200 ms of the call.
        let stood = |ms: u64| format!("0 {} 0 stood {ms}", 10 * S + S / 10);
        let with = |error: &str, who: &str, ms| {
            let (log, stood) = (log(error), stood(ms));
            match who {
                "itself" => found(Errors, &[("0.0", &format!("{stood}\n{log}"))]),
                _ => found(Errors, &[("0.0", &log), (who, &stood)]),
            }
        };
        for who in ["itself", "witness-2"] {
            assert_eq!((with("unavailable", who, 100), with("unavailable", who, 90)), (0, 1), "{who}");
            assert_eq!(with("shut-down", who, 100), 1, "{who}");
        }
        assert_eq!(with("unavailable", "1.0", 100), 1, "another process reached the store");
        assert_eq!(with("unavailable", "witness-2", 9000), 0, "and before");
        let early = format!("0 {} 0 stood 60", 10 * S + S / 15);
        let late = format!("0 {} 0 stood 60", 10 * S + S / 5);
        let ways = [("0.0", &*log("unavailable")), ("witness-0", &*early), ("witness-1", &*late)];
        assert_eq!(found(Errors, &ways), 1, "no way for half of the time");
    }

    #[test]
    fn a_release_that_fails_for_no_reason_is_found() {
        let with = |how: &str, run: &str| {
            let log = format!(
                "1 10 0 ask mutex patient 60000 - 1 a\n1 20 900 granted 5\n1 30 900 end\n1 40 0 out {how}"
            );
            found(Errors, &[("0.0", &log), ("run", run)])
        };
        assert_eq!((with("released", ""), with("lost by time", ""), with("dropped", "")), (0, 0, 0));
        assert_eq!(with("failed unavailable x", ""), 1);
        assert_eq!(with("failed unavailable x", "0 20 0 fault nothing unavailable cut"), 0);
    }

    #[test]
    fn a_release_of_what_was_lost_long_ago_is_found() {
        let log = format!(
            "1 10 0 ask mutex patient 60000 - 1 a\n1 20 900 granted 5\n1 {0} {0} end\n1 {0} 0 out released",
            9 * S
        );
        assert_eq!(found(Errors, &[("0.0", &log)]), 1);
    }
}
