//! (7) Nothing is renewed without a guard: a hold whose end moves is wanted by a request.

use std::collections::BTreeMap;
use std::time::Duration;

use super::check::Limits;
use super::request::{Fault, History, Life, Request};
use super::spans::{Spans, nanos};
use super::waiting::outages;

/// Maximum error of an observation from outside.
const BLUR: Duration = Duration::from_millis(50);

/// Returns the latest time at which the server has executed what was under way to it at `at`. A
/// stopped server executes it when it goes on.
fn executed(history: &History, at: u64, limits: &Limits) -> u64 {
    let soon = at.saturating_add(nanos(limits.call_timeout));
    let hinder = |fault: &&Fault| fault.hinders() && fault.from <= soon && fault.to >= at;
    history.faults.iter().filter(hinder).map(|fault| fault.to).fold(soon, u64::max)
}

pub(super) fn without_guard(history: &History, limits: &Limits) -> Vec<String> {
    let call = nanos(limits.call_timeout);
    // A request without an answer asks again as the same owner. If it has the key without knowing,
    // that moves the end of the hold.
    let outages = outages(history, limits);
    let mut wanted: BTreeMap<&str, Vec<(u64, u64)>> = BTreeMap::new();
    for request in &history.requests {
        let Some(life) = history.lives.get(&request.process) else { continue };
        let spans = wanted.entry(&request.key).or_default();
        spans.push(guarded(request, life, limits, history));
        let waits = Spans::one(request.asked, request.answered.or(life.killed).unwrap_or(history.end));
        let unanswered = waits.and(&outages);
        spans
            .extend(unanswered.iter().map(|(from, to)| (from.saturating_sub(call), to.saturating_add(call))));
    }
    let mut found = Vec::new();
    for (key, looks) in &history.seen {
        let wanted = Spans::of(wanted.remove(key.as_str()).unwrap_or_default());
        // A copy elsewhere, or under another clock, ends at another time.
        let taken = |from: u64, to: u64| {
            let takes = |fault: &Fault| fault.takes(key) && fault.from <= to && from <= fault.to;
            history.faults.iter().any(takes)
        };
        for (before, after) in looks.iter().zip(looks.iter().skip(1)) {
            let same = before.holders.iter().find(|holder| after.holders.contains(holder));
            let latest = before.expires.saturating_add(before.at - before.since);
            let moved = after.expires > latest.saturating_add(nanos(BLUR));
            if let Some(holder) = same
                && moved
                && !wanted.touches(before.since, after.at)
                && !taken(before.since, after.at)
            {
                found.push(format!("{key}: {holder} was renewed between {} and {} ns", before.at, after.at));
            }
        }
    }
    found
}

/// Returns the time in which a request may cause renewals. It begins when the request may have had
/// the key in the store, not while it only waits. It includes renewals under way at the end of the
/// guard.
fn guarded(request: &Request, life: &Life, limits: &Limits, history: &History) -> (u64, u64) {
    let killed = life.killed.unwrap_or(u64::MAX);
    let (from, to) = match &request.grant {
        Some(grant) => {
            let ends = [grant.ended.map(|(at, _)| at), grant.lost.as_ref().map(|(at, _)| *at)];
            (grant.at, ends.into_iter().flatten().min().unwrap_or(u64::MAX).min(killed))
        }
        None => {
            let answered = request.answered.unwrap_or(history.end).min(killed);
            (answered, answered)
        }
    };
    let call = nanos(limits.call_timeout);
    let mut from = from.saturating_sub(call);
    for (stopped, went_on) in life.pauses.iter().rev() {
        // It had the key, but could not hear of it.
        if *stopped <= to && from <= *went_on {
            from = from.min(stopped.saturating_sub(call));
        }
    }
    (from, executed(history, to, limits))
}

#[cfg(test)]
mod tests {
    use super::super::Check::Renewals;
    use super::super::check::tests::found;

    const S: u64 = 1_000_000_000;

    #[test]
    fn a_renewal_that_nobody_wants_is_found() {
        let seen = |at: u64, expires: u64| format!("0 {} 0 seen {} x:1 - a\n", at * S, expires * S);
        let looks = |last: u64| seen(10, 12) + &seen(11, last);
        let holder = |end: u64| {
            format!("1 10 10 ask mutex patient 60000 - 1 a\n1 20 900 granted 5\n1 {} 900 end", end * S)
        };
        let with = |end: u64, last: u64| found(Renewals, &[("0.0", &holder(end)), ("run", &looks(last))]);
        assert_eq!(with(20, 13), 0, "it has a guard");
        assert_eq!(with(5, 12), 0, "it was not renewed");
        assert_eq!(with(9, 13), 0, "on the way");
        assert_eq!(with(5, 13), 1);
        let slow = |took: u64| {
            let looks = looks(13).replacen(" x:1", &format!("/{took} x:1"), 1);
            found(Renewals, &[("0.0", &holder(5)), ("run", &looks)])
        };
        assert_eq!((slow(900), slow(1000)), (1, 0), "the first look was slow");
        let killed =
            format!("{}\n0 {} 0 killed", holder(20).lines().take(2).collect::<Vec<_>>().join("\n"), 5 * S);
        assert_eq!(found(Renewals, &[("0.0", &killed), ("run", &looks(13))]), 1, "its process is dead");
        let flush = format!("0 {} 0 fault keys - failover\n0 {} 0 fault-over failover", 10 * S, 12 * S);
        let logs = [("0.0", &*holder(5)), ("run", &looks(13)), ("faults", &flush)];
        assert_eq!(found(Renewals, &logs), 0, "another server has it");
    }

    #[test]
    fn who_is_stopped_hears_of_its_grant_later() {
        let looks = format!("0 {} 0 seen {} x:1 - a\n0 {} 0 seen {} x:1 - a", 10 * S, 12 * S, 11 * S, 13 * S);
        let log = format!("1 10 10 ask mutex patient 60000 - 1 a\n1 {} {} granted 5", 15 * S, 16 * S);
        let with = |stopped: u64| {
            let life = format!("0 {0} {0} paused\n0 {1} {1} continued", stopped * S, 15 * S);
            found(Renewals, &[("0.0", &*log), ("0.0", &*life), ("run", &looks)])
        };
        assert_eq!((with(11), with(14)), (0, 1));
    }

    #[test]
    fn who_only_waits_is_no_reason_for_a_renewal() {
        let looks = format!("0 {} 0 seen {} x:1 - a\n0 {} 0 seen {} x:1 - a", 10 * S, 12 * S, 11 * S, 13 * S);
        let with = |answer: &str| {
            let log = format!("1 10 10 ask mutex patient 60000 - 1 a\n{answer}");
            found(Renewals, &[("0.0", &log), ("run", &looks)])
        };
        // A call takes two seconds at most.
        let at = |seconds: u64, what: &str| format!("1 {} {} {what}", seconds * S, 90 * S);
        assert_eq!((with(&at(12, "granted 5")), with(&at(14, "granted 5"))), (0, 1));
        for answer in ["refused timed-out x", "left"] {
            let with = |seconds| with(&at(seconds, answer));
            assert_eq!((with(7), with(9), with(12), with(14)), (1, 0, 0, 1), "{answer}");
        }
        let cut = |seconds: u64| {
            let (from, to) = (seconds * S, (seconds + 1) * S);
            let log = format!("1 10 10 ask mutex patient 60000 - 1 a\n{}", at(40, "granted 5"));
            let run = format!("{looks}\n0 {from} 0 fault nothing unavailable cut\n0 {to} 0 fault-over cut");
            found(Renewals, &[("0.0", &log), ("run", &run)])
        };
        assert_eq!((cut(8), cut(6)), (0, 1), "it got no answer, and asked again");
        let dies = |seconds: u64| with(&format!("0 {} 0 killed", seconds * S));
        assert_eq!((dies(7), dies(9)), (1, 0));
    }

    #[test]
    fn a_renewal_that_a_stopped_server_finds_later_is_the_guards() {
        let seen = "0 10000000000 0 seen 12000000000 x:1 - a\n0 11000000000 0 seen 13000000000 x:1 - a\n";
        let holder =
            format!("1 10 10 ask mutex patient 60000 - 1 a\n1 20 900 granted 5\n1 {} 900 end", 5 * S);
        let with = |from: u64, to: u64, errors: &str| {
            let stop = format!("0 {from} 0 fault nothing {errors} stop\n0 {to} 0 fault-over stop\n");
            found(Renewals, &[("0.0", &holder), ("run", &(stop + seen))])
        };
        let half = S / 2;
        assert_eq!(with(4 * S, 10 * S + half, "unavailable"), 0);
        assert_eq!(with(4 * S, 10 * S + half, "-"), 1, "the server ran");
        assert_eq!(with(4 * S, 9 * S, "unavailable"), 1, "it went on before");
        assert_eq!(with(8 * S, 10 * S + half, "unavailable"), 1, "no request was under way");
    }
}
