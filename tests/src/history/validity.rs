//! (8) The lost signal comes by the deadline, and no body starts outside its lock's validity.

use super::check::Limits;
use super::request::{Grant, History, Life, Request};

pub(super) fn too_long(history: &History, limits: &Limits) -> Vec<String> {
    let mut found = Vec::new();
    for request in &history.requests {
        let (Some(grant), Some(life)) = (&request.grant, history.lives.get(&request.process)) else {
            continue;
        };
        let (key, id) = (&request.key, &request.id);
        if let Some(body) = grant.body
            && let Some(until) = valid_until(grant, body)
            && life.awake(until, body) > limits.local_slack
        {
            found.push(format!("{key}: the body of {id} started at {body} ns, valid until {until} ns"));
        }
        if let Some((over, noticed)) = late(request, grant, life, limits, history.end) {
            found.push(format!(
                "{key}: the validity of {id} ended at {over} ns, and {id} had not noticed by {noticed} ns"
            ));
        }
    }
    found
}

/// Returns the latest end of the validity that was known at a time.
fn valid_until(grant: &Grant, by: u64) -> Option<u64> {
    let valid = grant.looks.iter().filter(|(at, until)| *at <= by && until > at);
    valid.map(|(_, until)| *until).max()
}

/// Returns a time at which the lock was no longer valid, and a much later one at which the holder
/// still had not been told.
fn late(request: &Request, grant: &Grant, life: &Life, limits: &Limits, end: u64) -> Option<(u64, u64)> {
    // The end of a fixed lease is known in advance. Otherwise the lock ended by the first reading
    // that found it invalid.
    let over = match request.lease {
        Some(_) => valid_until(grant, u64::MAX),
        None => grant.looks.iter().find(|(at, until)| until <= at).map(|(at, _)| *at),
    }?;
    let told = grant.lost.as_ref().map(|(at, _)| *at);
    // A holder that has sent its release does not get the signal any more. Nor does a holder while
    // it downgrades; it learns the outcome of that instead, unless it is killed before.
    let ended = grant.ended.map(|(at, _)| at);
    let is_back =
        |shared: u64| grant.looks.iter().any(|(at, _)| *at > shared && ended.is_none_or(|ended| *at < ended));
    let gave_up = grant.shared_from.filter(|shared| !is_back(*shared));
    let working_until = gave_up.or(ended).or(life.killed).unwrap_or(end);
    let by = told.unwrap_or(working_until).min(working_until);
    (life.awake(over, by) > limits.local_slack).then_some((over, by))
}

#[cfg(test)]
mod tests {
    use super::super::Check::Validity;
    use super::super::check::tests::found;

    const S: u64 = 1_000_000_000;

    fn with(lease: &str, events: &str) -> usize {
        let ask = format!("1 10 10 ask mutex patient 60000 {lease} 1 a\n1 20 {S} granted 5\n{events}");
        found(Validity, &[("0.0", &ask)])
    }

    #[test]
    fn a_body_that_starts_too_late_is_found() {
        assert_eq!(with("1000", &format!("1 30 {S} body\n1 40 {S} end")), 0);
        // A second of validity, and a second and a half of slack.
        let late = |at: u64| format!("1 {0} {0} body\n1 {0} {0} end", at * S / 10);
        assert_eq!((with("-", &late(24)), with("-", &late(26))), (0, 1));
        let paused = |at: u64| format!("0 30 0 paused\n0 {} 0 continued\n{}", 6 * S, late(at));
        assert_eq!((with("-", &paused(74)), with("-", &paused(76))), (0, 1), "its process was stopped");
    }

    #[test]
    fn time_in_which_the_process_stood_still_does_not_count() {
        let late = |stood: u64| format!("0 {0} 0 stood {stood}\n1 {0} {0} body\n1 {0} {0} end", 3 * S);
        // A second of validity, and a second and a half of slack.
        assert_eq!((with("-", &late(500)), with("-", &late(499))), (0, 1));
        let paused =
            |from: u64| format!("0 {} 0 paused\n0 {} 0 continued\n{}", from * S / 10, 3 * S, late(499));
        assert_eq!((with("-", &paused(25)), with("-", &paused(26))), (0, 1), "while it was stopped");
    }

    #[test]
    fn a_signal_that_does_not_come_is_found() {
        let ends = |at: u64| format!("1 30 {S} body\n1 {0} {0} end", at * S);
        assert_eq!((with("1000", &ends(2)), with("1000", &ends(3))), (0, 1), "a fixed lease");
        assert_eq!(with("-", &ends(7)), 0, "it may have been renewed until then");
        let looked = |at: u64| format!("1 {0} {0} alive\n{1}", 2 * S, ends(at));
        assert_eq!((with("-", &looked(3)), with("-", &looked(4))), (0, 1), "looked at");
        let stopped = format!("0 {} 0 paused\n0 {} 0 continued\n{}", 3 * S, 5 * S, looked(5));
        assert_eq!(with("-", &stopped), 0, "its process was stopped");
        let told = |at: u64| {
            format!("1 {0} {0} alive\n1 {1} {1} lost its lease is over\n{2}", 2 * S, at * S, ends(9))
        };
        assert_eq!((with("-", &told(3)), with("-", &told(4))), (0, 1));
        let shares = |more: &str| {
            let (from, to) = (S / 2, 9 * S);
            format!("1 {from} {S} shared\n{more}1 {to} {to} end\n1 {to} {to} out failed unavailable x")
        };
        let back = format!("1 {} {S} alive\n", S * 3 / 4);
        assert_eq!(with("1000", &shares("")), 0, "the guard is in the library's hands");
        assert_eq!(with("1000", &shares(&back)), 1, "it is back");
        let lost = |more: &str| shares(more).replace("failed unavailable x", "lost its lease is over");
        assert_eq!((with("1000", &lost("")), with("1000", &lost(&back))), (0, 1));
        let killed = |more: &str| format!("1 {} {S} shared\n{more}0 {} 0 killed", S / 2, 9 * S);
        assert_eq!((with("1000", &killed("")), with("1000", &killed(&back))), (0, 1));
    }
}
