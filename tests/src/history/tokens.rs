//! (2) Tokens are distinct and in the real-time order of grants. Where the counter was lost and the
//! clock set back as well, tokens from before are not compared with those from after it. Where a
//! grant takes its token in a second step, and may have lost the key before it, no later token has
//! to be larger.

use std::collections::{HashMap, HashSet};

use super::check::Limits;
use super::exclusion::{Window, lost_before_its_token, windows};
use super::request::{Grant, History, Request};

type Granted<'a> = (&'a Request, &'a Grant);

pub(super) fn out_of_order(history: &History, limits: &Limits) -> Vec<String> {
    let lost = history.faults.iter().filter(|fault| fault.loses.tokens());
    let lost: Vec<(u64, u64)> = lost.map(|fault| (fault.from, fault.to)).collect();
    let mut found = Vec::new();
    for (key, grants) in history.grants() {
        let late = grants.iter().filter(|grant| lost_before_its_token(**grant, history, limits));
        let late: HashSet<&str> = late.map(|(request, _)| request.id.as_str()).collect();
        let mut epochs: HashMap<usize, Vec<Granted<'_>>> = HashMap::new();
        for (request, grant) in grants {
            let meanwhile = |&&(from, to): &&(u64, u64)| request.asked <= to && grant.at >= from;
            if lost.iter().find(meanwhile).is_none() {
                let epoch = lost.iter().filter(|(_, to)| *to < request.asked).count();
                epochs.entry(epoch).or_default().push((request, grant));
            }
        }
        let mut epochs: Vec<_> = epochs.into_iter().collect();
        epochs.sort_unstable_by_key(|(epoch, _)| *epoch);
        for (_, grants) in epochs {
            let grown = not_grown(&windows(&grants, limits.lease), &late);
            let lines = [shared(&grants), not_in_order(&grants, &late), grown].concat();
            found.extend(lines.into_iter().map(|line| format!("{key}: {line}")));
        }
    }
    found
}

/// Finds grants that share a token, but not a hold. Only readers of the same process share a hold,
/// including downgraded writers.
fn shared(grants: &[Granted<'_>]) -> Vec<String> {
    let mut found = Vec::new();
    let mut owners: HashMap<u64, (&Request, bool)> = HashMap::new();
    for (request, grant) in grants {
        let reads = request.kind.is_shared() || grant.shared_from.is_some();
        if let Some((other, other_reads)) = owners.insert(grant.token, (request, reads))
            && !(reads && other_reads && request.process == other.process)
        {
            found.push(format!("{} and {} both have token {}", request.id, other.id, grant.token));
        }
    }
    found
}

/// Finds tokens that are smaller than one whose grant was answered before their own request.
/// Readers are not compared with readers. A reader that joins a hold gets the hold's token, and
/// other readers may have come after that hold began. Tokens of requests in `late` may be larger
/// than those of later grants.
fn not_in_order(grants: &[Granted<'_>], late: &HashSet<&str>) -> Vec<String> {
    let mut found = Vec::new();
    let mut by_request = grants.to_vec();
    by_request.sort_by_key(|(request, _)| request.asked);
    let mut by_reply = grants.to_vec();
    by_reply.retain(|(request, _)| !late.contains(request.id.as_str()));
    by_reply.sort_by_key(|(_, grant)| grant.at);
    let mut replies = by_reply.into_iter().peekable();
    let mut highest: Option<(u64, &str)> = None;
    let mut exclusive: Option<(u64, &str)> = None;
    for (request, grant) in by_request {
        while let Some((earlier, reply)) = replies.next_if(|(_, reply)| reply.at < request.asked) {
            let one = Some((reply.token, earlier.id.as_str()));
            highest = highest.max(one);
            if !earlier.kind.is_shared() {
                exclusive = exclusive.max(one);
            }
        }
        let before = if request.kind.is_shared() { exclusive } else { highest };
        if let Some((token, before)) = before
            && grant.token < token
        {
            found
                .push(format!("{} has {} although {before} had got {token} before", request.id, grant.token));
        }
    }
    found
}

/// Finds tokens that are not larger than those of all earlier holders of the key. A downgraded
/// holder counts from its original grant. Tokens of requests in `late` may be larger than those of
/// later grants.
pub(crate) fn not_grown(windows: &[Window<'_>], late: &HashSet<&str>) -> Vec<String> {
    let mut windows: Vec<&Window<'_>> = windows.iter().filter(|window| window.token.is_some()).collect();
    windows.sort_by_key(|window| window.granted);
    let mut ends = windows.clone();
    ends.retain(|window| !late.contains(window.id));
    ends.sort_by_key(|window| window.to);
    let mut ends = ends.into_iter().peekable();
    let (mut highest, mut exclusive): (Option<&Window<'_>>, Option<&Window<'_>>) = (None, None);
    let mut found = Vec::new();
    for window in windows.drain(..) {
        while let Some(before) = ends.next_if(|before| before.to <= window.granted) {
            let higher = |other: Option<&Window<'_>>| other.is_none_or(|other| before.token > other.token);
            if higher(highest) {
                highest = Some(before);
            }
            if !before.shared && higher(exclusive) {
                exclusive = Some(before);
            }
        }
        let before = if window.shared { exclusive } else { highest };
        // A downgraded writer keeps its token, and may share it with readers of its process.
        let own = |before: &Window<'_>| {
            window.shared && window.token == before.token && window.process == before.process
        };
        if let Some(before) = before.filter(|before| window.token <= before.token && !own(before)) {
            found.push(format!("{window} after {before}"));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::super::Check::Tokens;
    use super::super::check::tests::{found, found_where};

    fn grant(n: u64, kind: &str, asked: u64, at: u64, token: u64) -> String {
        let end = at + 10;
        format!(
            "{n} {asked} 0 ask {kind} patient 60000 - {n} a\n{n} {at} 900 granted {token}\n{n} {end} 900 end\n"
        )
    }

    #[test]
    fn tokens_that_shrink_or_stay_are_found() {
        let two = |second: String| found(Tokens, &[("0.0", &grant(1, "mutex", 10, 20, 5)), ("1.0", &second)]);
        assert_eq!(two(grant(1, "mutex", 15, 40, 6)), 0);
        assert_eq!(two(grant(1, "mutex", 15, 40, 4)), 1, "asked before the other was granted");
        assert_eq!(two(grant(1, "mutex", 35, 40, 4)), 2, "asked afterwards");
        assert_eq!(two(grant(1, "mutex", 35, 40, 5)), 2, "the same");
    }

    #[test]
    fn a_token_is_shared_by_readers_of_one_process_only() {
        let beside = |token: u64| {
            let (first, second) = (grant(1, "read", 10, 20, 5), grant(1, "read", 15, 25, token));
            found(Tokens, &[("0.0", &first), ("1.0", &second)])
        };
        assert_eq!((beside(5), beside(4), beside(6)), (1, 0, 0));
        let own = grant(1, "read", 10, 20, 5) + &grant(2, "read", 15, 25, 5);
        assert_eq!(found(Tokens, &[("0.0", &own)]), 0);
    }

    #[test]
    fn who_shares_what_it_had_alone_keeps_its_token() {
        // Its hold was lost meanwhile, and another process had the key.
        let writer =
            "1 10 10 ask write patient 60000 - 1 a\n1 20 900 granted 5\n1 60 900 shared\n1 70 900 end";
        let other = grant(1, "mutex", 30, 35, 6);
        assert_eq!(found(Tokens, &[("0.0", writer), ("1.0", &other)]), 0);
        let reader = grant(2, "read", 55, 60, 5);
        assert_eq!(found(Tokens, &[("0.0", &reader), ("1.0", &other)]), 2, "granted afterwards");
        let mutex = grant(1, "mutex", 75, 80, 4);
        assert_eq!(found(Tokens, &[("0.0", writer), ("1.0", &mutex)]), 2, "after it has shared");
    }

    #[test]
    fn a_token_that_follows_its_key_may_come_after_the_loss_of_the_key() {
        let (holder, next) = (grant(1, "mutex", 10, 20, 6), grant(1, "mutex", 40, 50, 5));
        let del = |from: u64, to: u64| format!("0 {from} 0 fault keys - del\n0 {to} 0 fault-over del");
        let with = |fault: &str, next: &str, follows: bool| {
            found_where(Tokens, &[("0.0", &holder), ("1.0", next), ("run", fault)], follows)
        };
        assert_eq!((with(&del(12, 15), &next, true), with(&del(12, 15), &next, false)), (0, 2));
        assert_eq!(with(&del(21, 25), &next, true), 2, "it had its token before");
        assert_eq!(with(&del(5, 9), &next, true), 2, "asked afterwards");
        assert_eq!(with(&del(12, 15).replace("keys", "nothing"), &next, true), 2, "no key was lost");
        let other = del(12, 15).replace('\n', "\n0 12 0 aimed b del\n");
        assert_eq!(with(&other, &next, true), 2, "another key was lost");
        assert_eq!(with(&del(12, 15), &grant(1, "mutex", 40, 50, 6), true), 1, "the same token");
    }

    #[test]
    fn tokens_need_not_grow_over_the_loss_of_clock_and_counter() {
        let (first, second) = (grant(1, "mutex", 10, 20, 5), grant(1, "mutex", 100, 110, 3));
        let fault = |loses: &str| format!("0 50 0 fault {loses} - flush\n0 60 0 fault-over flush");
        let with = |loses: &str| found(Tokens, &[("0.0", &first), ("1.0", &second), ("run", &fault(loses))]);
        assert_eq!(with("keys-and-tokens"), 0);
        assert_eq!(with("keys"), 2);
        let third = grant(1, "mutex", 120, 130, 3);
        let fault = fault("keys-and-tokens");
        let logs = [("0.0", &*first), ("1.0", &second), ("2.0", &third), ("run", &fault)];
        assert_eq!(found(Tokens, &logs), 2, "from after the loss");
    }
}
