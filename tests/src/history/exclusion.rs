//! (1) Validity intervals of one key do not overlap, unless both are readers. Where keys were lost,
//! an earlier hold may overlap later ones by one validity.

use std::collections::HashSet;
use std::fmt;
use std::time::Duration;

use super::check::Limits;
use super::event::{Kind, Outcome};
use super::request::{Fault, Grant, History, Request};
use super::spans::{length, nanos};

/// Maximum delay of an answer on a busy machine.
pub(crate) const ECHO: Duration = Duration::from_millis(300);

/// An interval in which a key was held.
#[derive(Clone, Copy)]
pub(crate) struct Window<'a> {
    pub(crate) id: &'a str,
    pub(crate) process: &'a str,
    /// `None` for holds of other programs.
    pub(crate) token: Option<u64>,
    pub(crate) shared: bool,
    pub(crate) from: u64,
    pub(crate) to: u64,
    /// When the caller heard of the grant; also for the shared part of a downgraded hold.
    pub(crate) granted: u64,
    /// Earliest time at which the store may have granted it.
    pub(crate) asked: u64,
    /// Whether this is the shared part of a hold that was exclusive before.
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

/// Returns the windows in the order of their beginnings. `longest` is the lease of grants without a
/// fixed one.
pub(super) fn windows<'a>(grants: &[(&'a Request, &'a Grant)], longest: Duration) -> Vec<Window<'a>> {
    let mut found = Vec::new();
    for &(request, grant) in grants {
        let (Request { id, process, kind, .. }, asked) = (request, sent(request, grant, longest));
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

/// Returns the earliest time at which the store may have granted the request. Validity counts from
/// the call to the store, which may come long after the caller's request.
fn sent(request: &Request, grant: &Grant, longest: Duration) -> u64 {
    let valid_until = grant.looks.first().map_or(grant.at, |(_, until)| *until);
    valid_until.saturating_sub(nanos(request.lease.unwrap_or(longest))).max(request.asked)
}

/// Whether a fault may have taken the key after it was granted and before the grant had its token.
pub(super) fn lost_before_its_token(
    (request, grant): (&Request, &Grant),
    history: &History,
    limits: &Limits,
) -> bool {
    let asked = sent(request, grant, limits.lease);
    let between = |fault: &Fault| {
        let (since, by) = taken(fault);
        fault.takes(&request.key) && asked <= by && since <= grant.at
    };
    limits.token_follows && history.faults.iter().any(between)
}

/// Returns the earliest and the latest time at which a fault may have taken keys.
fn taken(fault: &Fault) -> (u64, u64) {
    // The last strike may have an answer that is still on its way.
    let struck = fault.struck.map(|(first, last)| (first, last.saturating_add(nanos(ECHO))));
    struck.unwrap_or((fault.from, fault.to))
}

/// Returns pairs of windows of one key that overlap and exclude each other, the later one first.
/// The windows must be in the order of their beginnings.
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
        let mut excuses = Excuses::new(history, limits, key, &windows);
        for (window, other) in beside(&windows) {
            if !excuses.excuse(&other, &window) {
                found.push(format!("{key}: {window} while {other}"));
            }
        }
    }
    found
}

/// The losses of one key, and the overlaps that each of them has excused.
struct Excuses<'a> {
    /// For each loss, its possible readings: the ways in which it may explain the history.
    losses: Vec<Vec<Loss<'a>>>,
    all: All<'a>,
}

/// The events of a key.
struct All<'a> {
    history: &'a History,
    windows: &'a [Window<'a>],
    key: &'a str,
    longest: u64,
}

/// Maximum number of readings that are followed.
const READINGS: usize = 16;

/// A fault that took the key: a hold from before it may overlap holds from after it.
#[derive(Clone)]
struct Loss<'a> {
    loses_tokens: bool,
    token_follows: bool,
    /// A hold granted before `since` comes from the old state. A hold that its caller heard of
    /// before `by` may come from it.
    since: u64,
    by: u64,
    survivor: Option<Survivor<'a>>,
    before: HashSet<&'a str>,
    afterwards: HashSet<&'a str>,
}

/// The holders that do not know yet that their hold is lost.
#[derive(Clone)]
enum Survivor<'a> {
    /// One process.
    Of(&'a str),
    Readers,
}

impl Survivor<'_> {
    /// Whether this window belongs to the survivor. A window that has become shared still belongs
    /// to the process that had the key alone.
    fn has(&self, window: &Window<'_>) -> bool {
        match self {
            Self::Of(process) => *process == window.process && (!window.shared || window.downgraded),
            Self::Readers => window.shared,
        }
    }
}

impl<'a> Excuses<'a> {
    fn new(history: &'a History, limits: &Limits, key: &'a str, windows: &'a [Window<'a>]) -> Self {
        let losses = history.faults.iter().filter(|fault| fault.takes(key));
        let losses = losses.map(|fault| vec![Loss::of(fault, limits)]).collect();
        Self { losses, all: All { history, windows, key, longest: nanos(limits.lease) } }
    }

    fn excuse(&mut self, earlier: &Window<'a>, later: &Window<'a>) -> bool {
        let Self { losses, all } = self;
        losses.iter_mut().any(|readings| {
            // Usually the earlier window survives the loss. But a process that does not know of the
            // loss may hand its hold on, and then the later window is the survivor. When the time
            // of the loss is not known, later events tell which one it was.
            let of = |reading: &Loss<'a>| {
                [(earlier, later), (later, earlier)].map(|(old, new)| {
                    let mut reading = reading.clone();
                    reading.excuse(old, new, all).then_some(reading)
                })
            };
            let mut fitting: Vec<Loss<'a>> = readings.iter().flat_map(of).flatten().collect();
            fitting.truncate(READINGS);
            let fits = !fitting.is_empty();
            if fits {
                *readings = fitting;
            }
            fits
        })
    }
}

impl<'a> Loss<'a> {
    fn of(fault: &Fault, limits: &Limits) -> Self {
        let (loses_tokens, token_follows) = (fault.loses.tokens(), limits.token_follows);
        let (since, by) = taken(fault);
        let (before, afterwards) = (HashSet::new(), HashSet::new());
        Self { loses_tokens, token_follows, since, by, survivor: None, before, afterwards }
    }

    /// Excuses the overlap of `old` with `new` if possible. One holder from before the loss may
    /// overlap holders from after it, until the last renewal that it can have got is over.
    fn excuse(&mut self, old: &Window<'a>, new: &Window<'a>, all: &All<'a>) -> bool {
        // Its token may be from after the loss.
        let late_token = self.token_follows && old.asked <= self.by && self.since <= old.granted;
        let excused = self.since <= new.granted
            && is_from(old, self.by, all.windows)
            && old.to <= self.by.saturating_add(all.longest)
            // The counter goes on where it was, or with the time.
            && (self.loses_tokens || late_token || old.token < new.token)
            && !self.afterwards.contains(old.id)
            && !self.before.contains(new.id)
            && self.survivor.as_ref().is_none_or(|known| known.has(old))
            && !all.was_there(old, self.by);
        if excused {
            let shared = old.shared && (!old.downgraded || old.from <= self.by);
            self.survivor.get_or_insert(if shared { Survivor::Readers } else { Survivor::Of(old.process) });
            self.before.insert(old.id);
            self.afterwards.insert(new.id);
        }
        excused
    }
}

impl All<'_> {
    /// Whether the store still had the hold at its release after `by`. If so, the hold was not
    /// lost.
    fn was_there(&self, window: &Window<'_>, by: u64) -> bool {
        let Some(request) = self.history.requests.iter().find(|request| request.id == window.id) else {
            return false;
        };
        let Some(Grant { ended: Some((ended, _)), out: Some((out, Outcome::Released)), .. }) = request.grant
        else {
            return false;
        };
        // A release that is repeated without an answer to the first one finds nothing, and counts
        // as done.
        let hinders = |fault: &Fault| fault.hinders() && fault.from <= out && ended <= fault.to;
        let life = self.history.lives.get(window.process);
        let stopped = life.is_some_and(|life| life.running(ended, out) < length((ended, out)));
        ended > by
            && !window.shared
            && !stopped
            && !self.history.faults.iter().any(hinders)
            && self.asked_the_store(request, ended, out)
    }

    /// Whether the release must have called the store. That is so if the request was for this key
    /// alone, and the process had no other request to hand the hold on to.
    fn asked_the_store(&self, request: &Request, ended: u64, out: u64) -> bool {
        let never = request.kind == Kind::Fair || request.lease.is_some();
        let others = self.history.requests.iter().filter(|other| other.process == request.process);
        let mut others = others.filter(|other| other.id != request.id);
        others.all(|other| {
            let there = other.asked <= out && other.answered.is_none_or(|answered| answered >= ended);
            other.call != request.call && (never || other.key != self.key || !there)
        })
    }
}

/// Whether the window is from a hold that may have been granted by this time, and heard of later.
/// When requests of one process hand a hold on, no other process has a token between theirs.
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
    use super::super::check::tests::{found, found_where};

    /// Returns the violations of two requests by different processes, the first held from 20 to 900
    /// at most, the second from `at`.
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

    /// A hold: its token, its beginning and its end.
    type Hold = (u64, u64, u64);

    /// Returns the violations of processes with these holds, and with a fault meanwhile.
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
        // Two holders from the new state one after the other, next to the same survivor.
        let turns = &[(6, 200, 300), (7, 310, 400)];
        assert_eq!(overlaps(LOSS, &[("0", &[(5, 20, 900)]), ("1", turns)]), 0);
    }

    #[test]
    fn a_survivor_may_have_a_larger_token_if_the_token_followed_its_key() {
        let survivor = "1 10 10 ask mutex patient 60000 - 1 a\n1 105 900 granted 6";
        let next = "1 115 115 ask mutex patient 60000 - 1 a\n1 120 1900 granted 5";
        let with = |survivor: &str, follows| {
            found_where(Exclusion, &[("0.0", survivor), ("1.0", next), ("run", LOSS)], follows)
        };
        assert_eq!((with(survivor, true), with(survivor, false)), (0, 1));
        assert_eq!(with(&survivor.replace("105", "95"), true), 1, "it had its token before");
    }

    #[test]
    fn two_holders_from_after_a_loss_are_not_excused() {
        let late = &[(5, 120, 900)];
        assert_eq!(overlaps(LOSS, &[("0", late), ("1", &[(6, 200, 1900)])]), 1);
        assert_eq!(overlaps(LOSS, &[("0", &[(5, 112, 900)]), ("1", &[(6, 200, 1900)])]), 0, "heard of late");
        // Not excused either if the first of them came during the loss: the survivor was next to
        // it.
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
        // The lease of these tests is a second: a holder that is valid for all of it has called the
        // store after the loss.
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
        // Readers from before would have held it together with the survivor. So would any reader
        // from before that overlaps the new holder.
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
        // Granted before the loss, and handed on after the other holder's grant.
        let handed = &[(5, 20, 150), (6, 250, 500)];
        assert_eq!(with(LOSS, handed, other(1000)), 0);
        assert_eq!(
            with(&LOSS.replace("keys", "keys-and-tokens"), handed, other(2)),
            0,
            "the counter began again"
        );
        assert_eq!(with(LOSS, handed, other(2)), 1, "the counter did not");
        assert_eq!(with(LOSS, &[(5, 20, 150), (7, 250, 500)], other(6)), 1, "another grant was in between");
        assert_eq!(with(LOSS, &[(6, 250, 500)], other(1000)), 1, "nothing was there to hand on");
        let without = &[(5, 120, 150), (6, 250, 500)];
        assert_eq!(with(LOSS, without, other(1000)), 1, "the first was granted after the loss");
    }

    const MS: u64 = 1_000_000;

    /// A failover that takes from 100 ms to 5.1 s, and takes keys at 1 s.
    fn failover() -> String {
        let at = |ms: u64, what: &str| format!("0 {} 0 {what} failover\n", ms * MS);
        at(100, "fault keys -") + &at(1000, "struck") + &at(1001, "struck") + &at(5100, "fault-over")
    }

    #[test]
    fn only_what_is_on_both_sides_of_a_strike_is_excused() {
        let with = |old: u64, new: u64| {
            let (old, new) = ([(5, old * MS, (old + 1000) * MS)], [(6, new * MS, 2900 * MS)]);
            overlaps(&failover(), &[("0", &old), ("1", &new)])
        };
        assert_eq!(with(500, 1100), 0);
        assert_eq!(with(500, 900), 1, "both from before it");
        // An answer may be under way for 300 ms.
        assert_eq!((with(1200, 1500), with(1400, 1500)), (0, 1), "both from after it");
        let until = |to: u64| {
            overlaps(&failover(), &[("0", &[(5, 500 * MS, to * MS)]), ("1", &[(6, 1100 * MS, 9000 * MS)])])
        };
        assert_eq!((until(2301), until(2302)), (0, 1), "renewed after it");
    }

    #[test]
    fn what_follows_tells_who_survived_where_the_time_of_the_loss_is_not_known() {
        let loss = "0 100 0 fault keys-and-tokens - promotion\n0 900 0 fault-over promotion";
        // Of the first two, the later one had it from before the loss; two others came during its
        // hold.
        let with = |last: &[Hold]| {
            let (new, old) = ([(4, 300, 390)], [(9, 310, 700)]);
            overlaps(loss, &[("0", &new), ("1", &old), ("2", last)])
        };
        assert_eq!(with(&[(5, 400, 500), (6, 510, 600)]), 0);
        assert_eq!(with(&[(5, 380, 500)]), 1, "beside both");
    }

    #[test]
    fn a_fault_that_takes_one_key_excuses_nothing_else() {
        let with = |key: &str| {
            let aimed = format!("0 100 0 fault keys - del\n0 100 0 aimed {key} del\n0 110 0 fault-over del");
            overlaps(&aimed, &[("0", &[(5, 20, 900)]), ("1", &[(6, 200, 1900)])])
        };
        assert_eq!((with("a"), with("b")), (0, 1));
    }

    #[test]
    fn who_gives_back_after_a_loss_what_the_store_still_has_has_not_lost_it() {
        let with = |kind: &str, out: &str, more: &str| {
            let from_zero =
                |n: u64| format!("{n} 10 10 ask {kind} patient 60000 - {n} a\n{n} 20 900000000 granted 5\n");
            let old = format!("{}1 {} 900000000 end\n{out}\n{more}", from_zero(1), 600 * MS);
            let new = format!("1 10 10 ask mutex patient 60000 - 1 a\n1 {} 900000000 granted 6", 500 * MS);
            let flush = LOSS.replace("- flush", "lost flush");
            found(Exclusion, &[("0", &old), ("1", &new), ("run", &flush)])
        };
        let out = |how: &str| format!("1 {} 0 out {how}", 601 * MS);
        assert_eq!(with("mutex", &out("released"), ""), 1);
        for how in ["dropped", "lost the store says that it is gone"] {
            assert_eq!(with("mutex", &out(how), ""), 0, "{how}");
        }
        let waits = format!("2 {} 0 ask mutex patient 60000 - 2 a", 400 * MS);
        assert_eq!(with("mutex", &out("released"), &waits), 0, "it may have been handed on");
        let waits = waits.replace("mutex", "fair");
        assert_eq!(with("fair", &out("released"), &waits), 1, "those are not handed on");
        let two = "2 10 10 ask mutex patient 60000 - 1 b";
        assert_eq!(with("mutex", &out("released"), two), 0, "the store had the other one");
    }

    #[test]
    fn a_release_that_is_sent_again_finds_nothing_without_a_word() {
        let old = format!(
            "1 10 10 ask mutex patient 60000 - 1 a\n1 20 900000000 granted 5\n1 {} 900000000 end\n1 {} 0 out released",
            600 * MS,
            700 * MS
        );
        let new = format!("1 10 10 ask mutex patient 60000 - 1 a\n1 {} 900000000 granted 6", 500 * MS);
        let cut = |errors: &str| {
            format!("{LOSS}\n0 {} 0 fault nothing {errors} cut\n0 {} 0 fault-over cut", 650 * MS, 800 * MS)
        };
        let with = |errors| found(Exclusion, &[("0", &old), ("1", &new), ("run", &cut(errors))]);
        assert_eq!((with("unavailable"), with("lost")), (0, 1));
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
