//! [`Outcome`]: the results of a run, fault by fault.

use std::collections::BTreeMap;
use std::fmt::{self, Write};
use std::time::Duration;

use super::arena::Topology;
use super::fault::Fault;
use super::want::WANTED;
use crate::history::{self, Grant, History, Outcome as Out, Request, Violation};

/// Maximum time of the calm before and after a fault that is considered, in nanoseconds.
const AROUND: u64 = 3_000_000_000;

/// The results of a run.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// One row for each fault that has happened.
    pub rows: Vec<Row>,
    /// The findings of the checkers.
    pub violations: Vec<Violation>,
    /// Number of requests.
    pub requests: usize,
    /// Number of granted requests.
    pub grants: usize,
    /// Losses, expected or not.
    pub losses: Losses,
}

/// Losses of the run, whether a fault excuses them or not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Losses {
    /// Pairs of holders that held a key at the same time.
    pub overlaps: usize,
    /// Locks that disappeared while they were valid.
    pub taken: usize,
    /// Tokens that were issued twice, or not in the order of grants.
    pub tokens: usize,
    /// Requests that were refused because the replicas did not confirm.
    pub not_replicated: usize,
}

/// The events around one kind of fault.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// The fault.
    pub fault: Fault,
    /// The topology of the run.
    pub topology: Topology,
    /// How often it happened.
    pub times: usize,
    /// How often it hit nothing.
    pub missed: usize,
    /// Grants per second: in the calm before it, during it, and in the calm after it.
    pub grants: [f64; 3],
    /// Maximum time that a waiter waited for a free key.
    pub stall: Duration,
    /// Number of grants that were lost from its beginning to the next fault.
    pub lost: usize,
    /// Requests that got an error other than the end of their wait.
    pub refused: usize,
    /// Number of violations around it.
    pub violations: usize,
}

impl Outcome {
    pub(super) fn new(
        topology: Topology,
        history: &History,
        violations: Vec<Violation>,
        missed: &[Fault],
    ) -> Self {
        let stalls = stalls(history);
        let mut rows: BTreeMap<Fault, Row> = BTreeMap::new();
        let grants: Vec<(&Request, &Grant)> =
            history.requests.iter().filter_map(|request| Some((request, request.grant.as_ref()?))).collect();
        let mut times: BTreeMap<Fault, [u64; 3]> = BTreeMap::new();
        // Not back into the fault before.
        let before = |at: usize, from: u64| {
            let earlier = at.checked_sub(1).and_then(|at| history.faults.get(at)).map_or(0, |fault| fault.to);
            (from.saturating_sub(AROUND).max(earlier), from)
        };
        for (at, event) in history.faults.iter().enumerate() {
            let Ok(fault) = event.name.parse::<Fault>() else { continue };
            let to = event.to.min(history.end);
            let next = history.faults.get(at + 1).map_or(history.end, |next| next.from);
            let spans = [before(at, event.from), (event.from, to), (to, next.min(to + AROUND))];
            let row = rows.entry(fault).or_insert_with(|| Row::new(fault, topology));
            row.times += 1;
            for (place, (from, to)) in spans.into_iter().enumerate() {
                let within = grants.iter().filter(|(_, grant)| (from..to).contains(&grant.at)).count();
                row.grants[place] += u32::try_from(within).map_or(0.0, f64::from);
                times.entry(fault).or_default()[place] += to - from;
            }
            let lost = |(_, grant): &&(&Request, &Grant)| {
                let at = match (&grant.lost, &grant.out) {
                    (Some((at, _)), _) | (None, Some((at, Out::Lost(_)))) => *at,
                    _ => return false,
                };
                (event.from..next).contains(&at)
            };
            row.lost += grants.iter().filter(lost).count();
            let refused = |request: &&Request| {
                let error = request.refused.as_ref().map(|(error, _)| *error);
                let usual = [history::ErrorClass::Busy, history::ErrorClass::TimedOut];
                error.is_some_and(|error| !usual.contains(&error))
                    && request.answered.is_some_and(|at| (event.from..next).contains(&at))
            };
            row.refused += history.requests.iter().filter(refused).count();
            let stall = stalls.iter().filter(|(at, _)| (event.from..next).contains(at));
            let longest = stall.map(|(_, stall)| Duration::from_nanos(*stall)).max();
            row.stall = row.stall.max(longest.unwrap_or_default());
            row.violations += violations
                .iter()
                .filter(|violation| {
                    time_in(&violation.what).is_some_and(|at| (event.from..next).contains(&at))
                })
                .count();
        }
        for (fault, spans) in times {
            let Some(row) = rows.get_mut(&fault) else { continue };
            for (grants, nanos) in row.grants.iter_mut().zip(spans) {
                *grants /= Duration::from_nanos(nanos).as_secs_f64().max(0.001);
            }
            row.missed = missed.iter().filter(|other| **other == fault).count();
        }
        let (requests, grants) = (history.requests.len(), grants.len());
        let losses = Losses::default();
        Self { rows: rows.into_values().collect(), violations, requests, grants, losses }
    }

    /// Whether no violation was found.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.violations.is_empty()
    }
}

impl Row {
    fn new(fault: Fault, topology: Topology) -> Self {
        Self {
            fault,
            topology,
            times: 0,
            missed: 0,
            grants: [0.0; 3],
            stall: Duration::ZERO,
            lost: 0,
            refused: 0,
            violations: 0,
        }
    }
}

/// Returns for every grant of the keys in `WANTED`: its time, and how long the key had been free
/// while the request waited.
fn stalls(history: &History) -> Vec<(u64, u64)> {
    let mut found = Vec::new();
    for key in WANTED {
        let of_key = |request: &&Request| request.key == key;
        let mut grants: Vec<(&Request, &Grant)> =
            history.requests.iter().filter(of_key).filter_map(|r| Some((r, r.grant.as_ref()?))).collect();
        grants.sort_by_key(|(_, grant)| grant.at);
        let mut free_from = 0;
        for (request, grant) in grants {
            found.push((grant.at, grant.at.saturating_sub(request.asked.max(free_from))));
            let over = grant.out.as_ref().map_or(grant.to, |(at, _)| *at);
            free_from = free_from.max(over);
        }
    }
    found
}

/// Returns the first time in the text of a violation.
fn time_in(text: &str) -> Option<u64> {
    let digits = text.split(|c: char| !c.is_ascii_digit());
    // Nanoseconds of a machine that has been up for ten seconds at least. Tokens have more digits.
    digits.filter(|word| (11..=15).contains(&word.len())).find_map(|word| word.parse().ok())
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN: usize = 20;
        writeln!(f, "{} requests, {} grants", self.requests, self.grants)?;
        f.write_str(&markdown(&self.rows))?;
        let Losses { overlaps, taken, tokens, not_replicated } = self.losses;
        writeln!(
            f,
            "lost, by faults that may: {overlaps} overlaps, {taken} locks gone while valid, {tokens} tokens out of \
             order; {not_replicated} requests refused for lack of replicas"
        )?;
        write!(f, "{} violations", self.violations.len())?;
        for violation in self.violations.iter().take(SHOWN) {
            write!(f, "\n  {violation}")?;
        }
        Ok(())
    }
}

/// Returns the rows as a table.
#[must_use]
pub fn markdown(rows: &[Row]) -> String {
    let mut text = String::from(
        "| topology | fault | class | times | grants/s before, during, after | longest stall | lost | refused | violations |\n\
         |---|---|---|---|---|---|---|---|---|\n",
    );
    for row in rows {
        let Row {
            fault, topology, times, missed, grants: [before, during, after], stall, lost, refused, ..
        } = row;
        let (name, class, topology) = (fault.name(), fault.class(), topology.name());
        let times = if *missed == 0 { times.to_string() } else { format!("{times} ({missed} hit nothing)") };
        // Writing to a string does not fail.
        let _ = writeln!(
            text,
            "| {topology} | {name} | {class} | {times} | {before:.0}, {during:.0}, {after:.0} | {:.1} s | {lost} | \
             {refused} | {} |",
            stall.as_secs_f64(),
            row.violations
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::{Check, Event, Kind, Log, Loses, Want};
    use std::sync::atomic::{AtomicU64, Ordering};

    #[test]
    fn a_row_has_what_happened_around_its_fault() {
        static NOW: AtomicU64 = AtomicU64::new(0);
        let at = |seconds: u64| NOW.store(seconds * 1_000_000_000, Ordering::SeqCst);
        let clock = || NOW.load(Ordering::SeqCst);
        let (parent, worker) = (Log::in_memory(clock), Log::in_memory(clock));
        let note = |id, event: Event| worker.note(id, &event, || Duration::ZERO);
        let (key, wait) = (WANTED[0].to_owned(), Duration::from_secs(60));
        let ask = |call| Event::Ask {
            key: key.clone(),
            kind: Kind::Mutex,
            want: Want::Patient,
            wait,
            lease: None,
            call,
        };
        at(98);
        note(1, ask(1));
        note(1, Event::Granted { token: 1 });
        note(2, ask(2));
        at(100);
        let name = Fault::Partition.name().to_owned();
        parent.say(&Event::Fault { name: name.clone(), loses: Loses::Nothing, errors: Vec::new() });
        note(1, Event::End);
        note(1, Event::Out { how: Out::Lost("its lease is over".to_owned()) });
        at(103);
        parent.say(&Event::FaultOver { name });
        at(104);
        note(2, Event::Granted { token: 2 });
        at(110);
        parent.say(&Event::Calm);
        let history = History::of([("parent", &parent), ("0.0", &worker)]);
        let what = "chaos:m0: free from 101000000000 ns".to_owned();
        let violation = Violation { check: Check::Waiting, what };
        let outcome = Outcome::new(Topology::Single, &history, vec![violation], &[]);
        let [row] = &outcome.rows[..] else { panic!("{outcome}") };
        assert_eq!((row.times, row.missed, row.lost, row.refused, row.violations), (1, 0, 1, 0, 1));
        assert_eq!(row.stall, Duration::from_secs(4), "given up at 100 s, granted at 104 s");
        assert!(row.grants[0] > 0.0 && row.grants[1] == 0.0 && row.grants[2] > 0.0, "{row:?}");
        assert!(!outcome.is_clean());
        let line = markdown(&outcome.rows).lines().last().map(str::to_owned);
        assert_eq!(line.as_deref(), Some("| single | partition | A | 1 | 0, 0, 0 | 4.0 s | 1 | 0 | 1 |"));
    }
}
