//! (1) Validity intervals of one key do not overlap, unless both read. Where keys were lost, what was held then may
//! overlap what comes after by one validity.

use std::collections::HashSet;
use std::fmt;
use std::time::Duration;

use super::check::Limits;
use super::request::{Fault, Grant, History, Request};
use super::spans::nanos;

/// A time in which a key was held.
#[derive(Clone, Copy)]
pub(crate) struct Window<'a> {
    pub(crate) id: &'a str,
    pub(crate) process: &'a str,
    /// Locks of others have none.
    pub(crate) token: Option<u64>,
    pub(crate) shared: bool,
    pub(crate) from: u64,
    pub(crate) to: u64,
    /// When the grant was heard of, also if it shares only since later.
    pub(crate) granted: u64,
    /// The store has not granted it before this.
    pub(crate) asked: u64,
    /// It was had alone before.
    pub(crate) downgraded: bool,
}

impl fmt::Display for Window<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { id, token, from, to, .. } = self;
        let shared = if self.shared { " shared" } else { "" };
        let token = token.map_or_else(|| "no token".to_owned(), |token| format!("token {token}"));
        write!(f, "{id}{shared} with {token} from {from} to {to} ns")
    }
}

/// In the order of their beginnings. Leases are of this length, if they are not fixed.
pub(super) fn windows<'a>(grants: &[(&'a Request, &'a Grant)], longest: Duration) -> Vec<Window<'a>> {
    let mut found = Vec::new();
    for &(Request { id, process, kind, lease, asked, .. }, grant) in grants {
        // Validity is counted from when the store was asked, which may be long after the caller asked.
        let valid_until = grant.looks.first().map_or(grant.at, |(_, until)| *until);
        let asked = valid_until.saturating_sub(nanos(lease.unwrap_or(longest))).max(*asked);
        let mut add = |shared, from, to| {
            if from < to {
                let (token, granted) = (Some(grant.token), grant.at);
                let downgraded = shared && !kind.is_shared();
                found.push(Window { id, process, token, shared, from, to, granted, asked, downgraded });
            }
        };
        match grant.shared_from {
            None => add(kind.is_shared(), grant.at, grant.to),
            Some(shared) => {
                add(kind.is_shared(), grant.at, shared.min(grant.to));
                add(true, shared, grant.to);
            }
        }
    }
    found.sort_by_key(|window| window.from);
    found
}

/// Windows of one key that exclude each other and overlap: the later one, and the earlier. They are given in the order of
/// their beginnings.
pub(crate) fn beside<'a>(windows: &[Window<'a>]) -> Vec<(Window<'a>, Window<'a>)> {
    let mut found = Vec::new();
    let mut open: Vec<Window<'_>> = Vec::new();
    for window in windows {
        open.retain(|other| window.from < other.to);
        let excluded = open.iter().filter(|other| !(other.shared && window.shared));
        found.extend(excluded.map(|other| (*window, *other)));
        open.push(*window);
    }
    found
}

pub(super) fn overlaps(history: &History, limits: &Limits) -> Vec<String> {
    let mut found = Vec::new();
    for (key, grants) in history.grants() {
        let windows = windows(&grants, limits.lease);
        let mut excuses = Excuses::new(history, limits, &windows);
        for (window, other) in beside(&windows) {
            if !excuses.excuse(&other, &window) {
                found.push(format!("{key}: {window} while {other}"));
            }
        }
    }
    found
}

/// The losses of keys, and what each of them has left.
struct Excuses<'a> {
    losses: Vec<Loss<'a>>,
    windows: &'a [Window<'a>],
    longest: u64,
}

/// A fault that took keys: what was granted before it may be beside what was granted afterwards.
struct Loss<'a> {
    fault: &'a Fault,
    survivor: Option<Survivor<'a>>,
    before: HashSet<&'a str>,
    afterwards: HashSet<&'a str>,
}

/// Who does not know yet that its hold is lost.
enum Survivor<'a> {
    /// A process.
    Of(&'a str),
    Readers,
}

impl Survivor<'_> {
    /// Whether it has this window, too. Who had the key alone may share it since.
    fn has(&self, window: &Window<'_>) -> bool {
        match self {
            Self::Of(process) => *process == window.process && (!window.shared || window.downgraded),
            Self::Readers => window.shared,
        }
    }
}

impl<'a> Excuses<'a> {
    fn new(history: &'a History, limits: &Limits, windows: &'a [Window<'a>]) -> Self {
        let faults = history.faults.iter().filter(|fault| fault.loses.keys());
        let loss = |fault| Loss { fault, survivor: None, before: HashSet::new(), afterwards: HashSet::new() };
        Self { losses: faults.map(loss).collect(), windows, longest: nanos(limits.lease) }
    }

    fn excuse(&mut self, earlier: &Window<'a>, later: &Window<'a>) -> bool {
        let Self { losses, windows, longest } = self;
        losses.iter_mut().any(|loss| {
            // A process that does not know yet may hand on what it has lost: then the survivor is the later one.
            loss.excuse(earlier, later, windows, *longest) || loss.excuse(later, earlier, windows, *longest)
        })
    }
}

impl<'a> Loss<'a> {
    /// One holder from before may be beside those from afterwards, until the last renewal that it can have got is over.
    fn excuse(&mut self, old: &Window<'a>, new: &Window<'a>, all: &[Window<'a>], longest: u64) -> bool {
        let Fault { from, to, loses, .. } = *self.fault;
        let excused = from <= new.granted
            && is_from(old, to, all)
            && old.to <= to.saturating_add(longest)
            // The counter goes on where it was, or with the time.
            && (loses.tokens() || old.token < new.token)
            && !self.afterwards.contains(old.id)
            && !self.before.contains(new.id)
            && self.survivor.as_ref().is_none_or(|known| known.has(old));
        if excused {
            let shared = old.shared && (!old.downgraded || old.from <= to);
            self.survivor.get_or_insert(if shared { Survivor::Readers } else { Survivor::Of(old.process) });
            self.before.insert(old.id);
            self.afterwards.insert(new.id);
        }
        excused
    }
}

/// Whether it is from a hold that may have been granted by then, and heard of later. A hold's tokens come one after the
/// other, so others have none between those of requests that had it in turn.
fn is_from(window: &Window<'_>, by: u64, all: &[Window<'_>]) -> bool {
    let handed_on_from = |first: &Window<'_>| {
        let among = |other: &Window<'_>| first.token <= other.token && other.token <= window.token;
        first.process == window.process
            && first.asked <= by
            && among(first)
            && all.iter().all(|other| other.process == window.process || !among(other))
    };
    window.asked <= by || all.iter().any(handed_on_from)
}

#[cfg(test)]
mod tests {
    use super::super::Check::Exclusion;
    use super::super::check::tests::found;

    /// Two of different processes, the first from 20 to at most 900, the second from `at`.
    fn beside(first: &str, second: &str, at: u64, faults: &str) -> usize {
        let first = format!("1 10 10 ask {first} patient 60000 - 1 a\n1 20 900 granted 5");
        let second = format!("1 10 10 ask {second} patient 60000 - 1 a\n1 {at} 1900 granted 6");
        found(Exclusion, &[("0.0", &first), ("1.0", &second), ("run", faults)])
    }

    #[test]
    fn only_readers_may_be_beside_readers() {
        assert_eq!(beside("mutex", "mutex", 900, ""), 0);
        assert_eq!(beside("mutex", "mutex", 899, ""), 1);
        assert_eq!(beside("read", "read", 30, ""), 0);
        assert_eq!(beside("read", "write", 30, ""), 1);
        assert_eq!(beside("write", "read", 30, ""), 1);
    }

    #[test]
    fn who_shares_what_it_had_alone_is_beside_readers_from_then_on() {
        let first = "1 10 10 ask write patient 60000 - 1 a\n1 20 900 granted 5\n1 30 900 shared";
        let reader =
            |at: u64| format!("1 15 15 ask read patient 60000 - 1 a\n1 {at} 900 granted 6\n1 45 900 end");
        assert_eq!(found(Exclusion, &[("0.0", first), ("1.0", &reader(31))]), 0);
        assert_eq!(found(Exclusion, &[("0.0", first), ("1.0", &reader(29))]), 1);
    }

    const LOSS: &str = "0 100 0 fault keys - flush\n0 110 0 fault-over flush";

    /// A hold: its token, from and to.
    type Hold = (u64, u64, u64);

    /// Processes that hold the key one time after the other, with a fault meanwhile.
    fn overlaps_of(fault: &str, holders: &[(&str, &str, &[Hold])]) -> usize {
        let mut logs = vec![("run", fault.to_owned())];
        for (name, kind, holds) in holders {
            let each = holds.iter().zip(1..).map(|((token, from, to), n)| {
                let ask = format!("{n} {0} {0} ask {kind} patient 60000 - {n} a", from - 5);
                format!("{ask}\n{n} {from} {to} granted {token}\n{n} {to} {to} end\n")
            });
            logs.push((name, each.collect()));
        }
        let logs: Vec<(&str, &str)> = logs.iter().map(|(name, log)| (*name, log.as_str())).collect();
        found(Exclusion, &logs)
    }

    fn overlaps(fault: &str, holders: &[(&str, &[Hold])]) -> usize {
        let holders: Vec<_> = holders.iter().map(|(name, holds)| (*name, "mutex", *holds)).collect();
        overlaps_of(fault, &holders)
    }

    #[test]
    fn a_loss_of_keys_excuses_one_survivor() {
        let with = |fault: &str, from| overlaps(fault, &[("0", &[(5, 20, 900)]), ("1", &[(6, from, 1900)])]);
        assert_eq!((with(LOSS, 200), with(LOSS, 100)), (0, 0));
        assert_eq!(with(LOSS, 90), 1, "granted before the loss");
        assert_eq!(with("", 200), 1, "nothing happened");
        for kind in ["nothing", "tokens"] {
            let fault = LOSS.replace("keys", kind);
            assert_eq!(with(&fault, 200), 1, "{kind}: no key was lost");
        }
        // One after the other from the new state, beside the same survivor.
        let turns = &[(6, 200, 300), (7, 310, 400)];
        assert_eq!(overlaps(LOSS, &[("0", &[(5, 20, 900)]), ("1", turns)]), 0);
    }

    #[test]
    fn two_holders_from_after_a_loss_are_not_excused() {
        let late = &[(5, 120, 900)];
        assert_eq!(overlaps(LOSS, &[("0", late), ("1", &[(6, 200, 1900)])]), 1);
        assert_eq!(overlaps(LOSS, &[("0", &[(5, 112, 900)]), ("1", &[(6, 200, 1900)])]), 0, "heard of late");
        // Nor if the first of them came while the loss went on, and is known by the survivor beside it.
        let three = &[("0", &[(5, 20, 900)][..]), ("1", &[(6, 105, 900)]), ("2", &[(7, 300, 1900)])];
        assert_eq!(overlaps(LOSS, three), 1);
    }

    #[test]
    fn only_one_process_survives_a_loss_or_any_readers() {
        let two = |kind| {
            let before: [(&str, &str, &[Hold]); 2] =
                [("0", kind, &[(5, 20, 900)]), ("1", kind, &[(6, 30, 900)])];
            let after: (&str, &str, &[Hold]) = ("2", "write", &[(7, 200, 900)]);
            (overlaps_of(LOSS, &before), overlaps_of(LOSS, &[before[0], before[1], after]))
        };
        assert_eq!(two("mutex"), (1, 2), "beside each other, and both beside the third");
        assert_eq!(two("read"), (0, 0));
    }

    #[test]
    fn who_waited_through_a_loss_and_was_granted_after_it_is_no_survivor() {
        // The lease of these tests is a second: who is valid for all of it has asked the store after the loss.
        let with = |until: u64| {
            let first = format!("1 10 10 ask mutex patient 60000 - 1 a\n1 120 {until} granted 5");
            let second = format!("1 10 10 ask mutex patient 60000 - 1 a\n1 200 {until} granted 6");
            found(Exclusion, &[("0", &first), ("1", &second), ("run", LOSS)])
        };
        assert_eq!((with(1_000_000_110), with(1_000_000_111)), (0, 1));
    }

    #[test]
    fn a_survivor_may_share_what_it_had_alone() {
        let survivor = "1 10 10 ask write patient 60000 - 1 a\n1 20 900 granted 5\n1 300 900 shared";
        let hold = |kind: &str, from: u64, token: u64, until: u64| {
            format!("1 {0} {0} ask {kind} patient 60000 - 1 a\n1 {from} {until} granted {token}", from - 5)
        };
        let with = |others: &[(&str, String)]| {
            let mut logs = vec![("0", survivor), ("run", LOSS)];
            logs.extend(others.iter().map(|(name, log)| (*name, log.as_str())));
            found(Exclusion, &logs)
        };
        let new = ("1", hold("write", 200, 7, 800));
        assert_eq!(with(std::slice::from_ref(&new)), 0, "beside it alone, then for reading");
        // Readers of before would have been beside it; so would any from before that are beside the new one.
        assert_eq!(with(&[("2", hold("read", 30, 6, 250)), new]), 2);
        let late = ("1", hold("write", 350, 7, 800));
        assert_eq!(with(std::slice::from_ref(&late)), 0);
        assert_eq!(with(&[("2", hold("read", 108, 6, 900)), late]), 1, "the reader came after the loss");
    }

    #[test]
    fn a_survivor_may_hand_on_within_its_process() {
        let other = |token| ("1", vec![(token, 200, 900)]);
        let with = |fault: &str, first: &[(u64, u64, u64)], (name, grants): (&str, Vec<_>)| {
            overlaps(fault, &[("0", first), (name, &grants)])
        };
        // Granted before the loss, and handed on after the other was granted.
        let handed = &[(5, 20, 150), (6, 250, 500)];
        assert_eq!(with(LOSS, handed, other(1000)), 0);
        assert_eq!(
            with(&LOSS.replace("keys", "keys-and-tokens"), handed, other(2)),
            0,
            "the counter began again"
        );
        assert_eq!(with(LOSS, handed, other(2)), 1, "the counter did not");
        assert_eq!(with(LOSS, &[(5, 20, 150), (7, 250, 500)], other(6)), 1, "somebody was between");
        assert_eq!(with(LOSS, &[(6, 250, 500)], other(1000)), 1, "nothing was there to hand on");
        let without = &[(5, 120, 150), (6, 250, 500)];
        assert_eq!(with(LOSS, without, other(1000)), 1, "the first was granted after the loss");
    }

    #[test]
    fn a_survivor_is_valid_for_no_longer_than_one_validity() {
        // The lease of these tests is a second.
        const SECOND: u64 = 1_000_000_000;
        let until = |to| overlaps(LOSS, &[("0", &[(5, 20, to)]), ("1", &[(6, 200, 3 * SECOND)])]);
        assert_eq!((until(SECOND + 110), until(SECOND + 111)), (0, 1), "it was renewed after the loss");
        let late = |from| overlaps(LOSS, &[("0", &[(5, 20, 2 * SECOND)]), ("1", &[(6, from, 3 * SECOND)])]);
        assert_eq!(late(2 * SECOND - 10), 1, "beside it for a moment, and long after");
    }
}
