//! (1) Validity intervals of one key do not overlap, unless both read. Where keys were lost, what was held then may
//! overlap what comes after by one validity.

use std::fmt;

use super::check::Limits;
use super::event::Loses;
use super::request::{Fault, Grant, History, Request};
use super::spans::{length, nanos};

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
}

impl fmt::Display for Window<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { id, token, from, to, .. } = self;
        let shared = if self.shared { " shared" } else { "" };
        let token = token.map_or_else(|| "no token".to_owned(), |token| format!("token {token}"));
        write!(f, "{id}{shared} with {token} from {from} to {to} ns")
    }
}

/// In the order of their beginnings.
pub(super) fn windows<'a>(grants: &[(&'a Request, &'a Grant)]) -> Vec<Window<'a>> {
    let mut found = Vec::new();
    for &(Request { id, process, kind, .. }, grant) in grants {
        let mut add = |shared, from, to| {
            if from < to {
                let (token, granted) = (Some(grant.token), grant.at);
                found.push(Window { id, process, token, shared, from, to, granted });
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
        let mut excuses = Excuses::new(history, limits);
        for (window, other) in beside(&windows(&grants)) {
            if !excuses.excuse(&other, &window) {
                found.push(format!("{key}: {window} while {other}"));
            }
        }
    }
    found
}

/// The losses of keys, and which earlier holder each of them has left.
struct Excuses<'a> {
    faults: Vec<(&'a Fault, Option<Survivor<'a>>)>,
    longest: u64,
}

/// Who does not know yet that its hold is lost.
#[derive(PartialEq)]
enum Survivor<'a> {
    /// A process.
    Of(&'a str),
    Readers,
}

impl<'a> Excuses<'a> {
    fn new(history: &'a History, limits: &Limits) -> Self {
        let losses = history.faults.iter().filter(|fault| fault.loses >= Loses::Keys);
        Self { faults: losses.map(|fault| (fault, None)).collect(), longest: nanos(limits.lease) }
    }

    /// One holder from before a loss may be beside those from after it.
    fn excuse(&mut self, before: &Window<'a>, after: &Window<'a>) -> bool {
        let overlap = length((after.from, before.to.min(after.to)));
        if nanos(overlap) > self.longest {
            return false;
        }
        // A process that does not know yet may hand on what it has lost: then the survivor is granted later, and has the
        // smaller token.
        let handed_on = after.token < before.token && after.process != before.process;
        for (fault, survivor) in &mut self.faults {
            let over = fault.to.saturating_add(self.longest);
            let between = before.granted <= fault.to && fault.from <= after.from && after.from <= over;
            let old = if handed_on && fault.loses == Loses::Keys { after } else { before };
            let who = || if old.shared { Survivor::Readers } else { Survivor::Of(old.process) };
            if between && survivor.as_ref().is_none_or(|known| *known == who()) {
                *survivor = Some(who());
                return true;
            }
        }
        false
    }
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

    #[test]
    fn a_loss_of_keys_excuses_one_overlap() {
        let loss = "0 100 0 fault keys - flush\n0 110 0 fault-over flush";
        assert_eq!(beside("mutex", "mutex", 200, loss), 0);
        assert_eq!(beside("mutex", "mutex", 90, loss), 1, "granted before the loss");
        assert_eq!(beside("mutex", "mutex", 200, &loss.replace("keys", "nothing")), 1, "nothing was lost");
        let third = "1 10 10 ask mutex patient 60000 - 1 a\n1 300 2900 granted 7";
        let first = "1 10 10 ask mutex patient 60000 - 1 a\n1 20 900 granted 5";
        let second = "1 10 10 ask mutex patient 60000 - 1 a\n1 200 1900 granted 6";
        let logs = [("0.0", first), ("1.0", second), ("2.0", third), ("run", loss)];
        assert_eq!(found(Exclusion, &logs), 1, "a second overlap by one loss");
    }

    #[test]
    fn a_loss_of_keys_does_not_excuse_more_than_one_validity() {
        // The lease of these tests is a second.
        let first = "1 10 10 ask mutex patient 60000 - 1 a\n1 20 9000000000 granted 5";
        let second = "1 10 10 ask mutex patient 60000 - 1 a\n1 200 9000000000 granted 6";
        let loss = "0 100 0 fault keys - flush\n0 110 0 fault-over flush";
        assert_eq!(found(Exclusion, &[("0.0", first), ("1.0", second), ("run", loss)]), 1);
    }
}
