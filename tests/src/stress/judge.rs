//! The checkers: what the histories of all processes say about the lock.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use super::log::{Granted, History, Kind, Mode, Request};
use super::windows::{out_of_order, overlaps};

/// What is allowed.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// How much later than its wait a request may be answered, and a release be over, not counting the time for which
    /// the process was stopped. Generous: the machine is busy.
    pub slack: Duration,
    /// When the faults were over, on the common clock.
    pub calm_from: u64,
}

/// How much has happened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Processes, with those that were killed.
    pub processes: usize,
    /// Of them, killed.
    pub killed: usize,
    /// Stops.
    pub stops: usize,
    /// Times at which all connections were cut.
    pub cuts: usize,
    /// Stops of the server.
    pub freezes: usize,
    /// Requests.
    pub requests: usize,
    /// Requests that were granted.
    pub grants: usize,
    /// Grants that were lost before they were given back.
    pub lost: usize,
    /// Grants whose process was killed while it held.
    pub died: usize,
    /// Grants that excluded not everybody, from the beginning or later.
    pub shared: usize,
    /// Grants of fair locks that were seen to be in turn.
    pub turns: usize,
    /// Requests without patience whose wait was over.
    pub refused: usize,
    /// The longest time from a patient request to its grant, stops of its process not counted.
    pub longest_wait: Duration,
}

/// What was found.
#[derive(Clone, Debug, Default)]
pub struct Verdict {
    /// How much has happened.
    pub counts: Counts,
    /// Two that held a key at the same time.
    pub overlaps: Vec<String>,
    /// Tokens that are not in the order of grants.
    pub tokens: Vec<String>,
    /// Locks that were gone while they were valid.
    pub taken: Vec<String>,
    /// Requests without an answer, and processes that got nothing.
    pub progress: Vec<String>,
    /// Holders of fair locks that others had waited for before them.
    pub order: Vec<String>,
    /// What was left behind, in processes and on the server.
    pub left: Vec<String>,
}

impl Verdict {
    fn findings(&self) -> [(&'static str, &Vec<String>); 6] {
        [
            ("overlaps", &self.overlaps),
            ("tokens out of order", &self.tokens),
            ("locks taken away", &self.taken),
            ("without progress", &self.progress),
            ("out of turn", &self.order),
            ("left behind", &self.left),
        ]
    }

    /// Whether nothing was found.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.findings().iter().all(|(_, found)| found.is_empty())
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN: usize = 5;
        let Counts { processes, killed, stops, cuts, freezes, .. } = self.counts;
        let Counts { requests, grants, lost, died, refused, shared, turns, longest_wait, .. } = self.counts;
        writeln!(
            f,
            "{processes} processes: {killed} killed, {stops} stops; the server: {cuts} cuts, {freezes} stops"
        )?;
        writeln!(
            f,
            "{requests} requests, {grants} grants, {lost} of them lost, {died} died with their process, {refused} \
             refused in time; the longest patient wait was {longest_wait:.1?}"
        )?;
        if shared + turns > 0 {
            writeln!(f, "{shared} grants were shared, {turns} of fair locks were seen to be in turn")?;
        }
        let found = self.findings().map(|(what, found)| format!("{what}: {}", found.len()));
        write!(f, "{}", found.join(", "))?;
        for (what, found) in self.findings() {
            for line in found.iter().take(SHOWN) {
                write!(f, "\n  {what}: {line}")?;
            }
        }
        Ok(())
    }
}

/// Runs all checkers over the history.
#[must_use]
pub fn judge(history: &History, bounds: Bounds) -> Verdict {
    let mut verdict = Verdict { counts: count(history), ..Verdict::default() };
    let mut keys: BTreeMap<&str, Vec<(&Request, &Granted)>> = BTreeMap::new();
    for request in &history.requests {
        if let Some(grant) = &request.grant {
            keys.entry(&request.key).or_default().push((request, grant));
        }
    }
    for grants in keys.values() {
        verdict.overlaps.extend(overlaps(grants));
        verdict.tokens.extend(out_of_order(grants));
    }
    verdict.taken = taken(&keys);
    verdict.progress = without_progress(history, bounds);
    verdict
}

/// Releases that found nothing although the lock was valid until after they were answered: somebody else freed it.
fn taken(keys: &BTreeMap<&str, Vec<(&Request, &Granted)>>) -> Vec<String> {
    let mut found = Vec::new();
    for (request, grant) in keys.values().flatten() {
        if let (Some((ended, valid_until)), Some((at, how))) = (&grant.ended, &grant.out)
            && how.starts_with("lost")
            && valid_until > ended
            && at < valid_until
        {
            let (key, id) = (&request.key, &request.id);
            found.push(format!("{key}: {id} was valid until {valid_until}, and {how} at {at}"));
        }
    }
    found
}

fn without_progress(history: &History, bounds: Bounds) -> Vec<String> {
    let mut found = Vec::new();
    let mut calm: BTreeMap<&str, usize> = history
        .lives
        .iter()
        .filter(|(_, life)| !life.killed)
        .map(|(process, _)| (process.as_str(), 0))
        .collect();
    for request in &history.requests {
        let Request { id, process, key, kind, wait, asked, answered, refused, grant, .. } = request;
        let Some(life) = history.lives.get(process) else { continue };
        let running = |from: u64, to: u64| running(&life.stops, from, to);
        match answered {
            None if !life.killed => found.push(format!("{key}: {id} ({kind:?}) got no answer")),
            Some(at) if running(*asked, *at) > *wait + bounds.slack => {
                let took = running(*asked, *at);
                found.push(format!("{key}: {id} ({kind:?}, wait {wait:?}) was answered after {took:.1?}"));
            }
            _ => {}
        }
        match refused {
            Some(why) if *kind == Kind::Patient || !may_refuse(why) => {
                found.push(format!("{key}: {id} ({kind:?}, wait {wait:?}) was refused: {why}"));
            }
            _ => {}
        }
        let Some(grant) = grant else { continue };
        if grant.at > bounds.calm_from
            && let Some(grants) = calm.get_mut(process.as_str())
        {
            *grants += 1;
        }
        match (&grant.ended, &grant.out) {
            _ if life.killed => {}
            (None, _) => found.push(format!("{key}: {id} never gave back what it had")),
            (Some(_), None) => found.push(format!("{key}: the release of {id} never ended")),
            (Some((from, _)), Some((to, _))) if running(*from, *to) > bounds.slack => {
                found.push(format!("{key}: the release of {id} took {:.1?}", running(*from, *to)));
            }
            _ => {}
        }
    }
    let starved = calm.into_iter().filter(|(_, grants)| *grants == 0);
    found.extend(starved.map(|(process, _)| format!("{process} got nothing after the faults were over")));
    found
}

/// What may become of requests without patience: somebody else has the lock, or a stop of the process ate the time in
/// which the store's answer was awaited.
fn may_refuse(why: &str) -> bool {
    ["busy", "timed out", "unavailable"].iter().any(|allowed| why.starts_with(allowed))
}

/// The time from `from` to `to` without the stops.
fn running(stops: &[(u64, u64)], from: u64, to: u64) -> Duration {
    let stopped: u64 = stops.iter().map(|(start, end)| end.min(&to).saturating_sub(*start.max(&from))).sum();
    Duration::from_nanos(to.saturating_sub(from).saturating_sub(stopped))
}

fn count(history: &History) -> Counts {
    let mut counts =
        Counts { processes: history.lives.len(), requests: history.requests.len(), ..Counts::default() };
    for life in history.lives.values() {
        counts.killed += usize::from(life.killed);
        counts.stops += life.stops.len();
    }
    for request in &history.requests {
        counts.refused += usize::from(request.refused.is_some());
        let Some(grant) = &request.grant else { continue };
        let Some(life) = history.lives.get(&request.process) else { continue };
        counts.grants += 1;
        counts.shared += usize::from(request.mode == Mode::Shared || grant.shared_from.is_some());
        counts.died += usize::from(grant.ended.is_none() && life.killed);
        counts.lost += usize::from(grant.ended.is_some_and(|(at, valid_until)| valid_until <= at));
        if request.kind == Kind::Patient {
            counts.longest_wait = counts.longest_wait.max(running(&life.stops, request.asked, grant.at));
        }
    }
    counts
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn history(logs: &[(&str, &str)]) -> History {
        let mut history = History::default();
        for (process, log) in logs {
            let lines: String = log.lines().map(|line| format!("{}\n", line.trim())).collect();
            history.add(process, &lines).unwrap();
        }
        history
    }

    fn verdict(logs: &[(&str, &str)]) -> Verdict {
        judge(&history(logs), Bounds { slack: Duration::from_secs(10), calm_from: 0 })
    }

    const GOOD: &str = "1 10 10 ask patient 60000 a
        1 20 900 got 5
        1 30 900 end
        1 40 40 out ok";

    #[test]
    fn grants_one_after_the_other_are_clean() {
        let verdict = verdict(&[
            ("0.0", GOOD),
            (
                "1.0",
                "1 15 15 ask patient 60000 a
                1 35 900 got 6
                1 45 900 end
                1 50 50 out ok
                2 51 51 ask short 20 a
                2 60 60 no timed out
                3 61 61 ask fickle 60000 a
                3 62 62 left",
            ),
        ]);
        assert!(verdict.is_clean(), "{verdict}");
        assert_eq!((verdict.counts.requests, verdict.counts.grants, verdict.counts.refused), (4, 2, 1));
    }

    #[test]
    fn an_overlap_inside_validity_is_found() {
        let verdict = verdict(&[
            ("0.0", GOOD),
            (
                "1.0",
                "1 15 15 ask patient 60000 a
                1 25 900 got 6
                1 45 900 end
                1 50 50 out ok",
            ),
        ]);
        assert_eq!(verdict.overlaps.len(), 1, "{verdict}");
        assert!(verdict.tokens.is_empty() && verdict.progress.is_empty(), "{verdict}");
    }

    #[test]
    fn who_is_killed_or_stopped_holds_for_as_long_as_its_lock_was_valid() {
        let killed = "1 10 10 ask patient 60000 a
            1 20 100 got 5
            0 30 30 killed";
        let stopped = "1 10 10 ask patient 60000 a
            1 20 100 got 5
            0 30 30 stopped
            0 300 300 continued
            1 310 310 held
            1 311 311 end
            1 320 320 out lost its lease is over";
        let next = |at: u64| {
            format!(
                "1 15 15 ask patient 60000 a
                1 {at} 900 got 6
                1 200 900 end
                1 210 210 out ok"
            )
        };
        for first in [killed, stopped] {
            let late = verdict(&[("0.0", first), ("1.0", &next(100))]);
            assert!(late.is_clean(), "{late}");
            let early = verdict(&[("0.0", first), ("1.0", &next(99))]);
            assert_eq!(early.overlaps.len(), 1, "{early}");
        }
    }

    #[test]
    fn who_acts_on_its_lock_after_it_woke_is_found() {
        let verdict = verdict(&[
            (
                "0.0",
                "1 10 10 ask patient 60000 a
                1 20 100 got 5
                0 30 30 stopped
                0 300 300 continued
                1 310 900 held
                1 320 900 end
                1 330 330 out ok",
            ),
            (
                "1.0",
                "1 15 15 ask patient 60000 a
                1 150 900 got 6
                1 200 900 end
                1 210 210 out ok",
            ),
        ]);
        assert_eq!(verdict.overlaps.len(), 1, "{verdict}");
    }

    /// Two grants, the second asked for after the reply to the first, with these tokens.
    fn tokens(first: u64, second: u64) -> Verdict {
        verdict(&[
            (
                "0.0",
                &format!(
                    "1 10 10 ask patient 60000 a
                    1 20 20 got {first}
                    1 30 30 end
                    1 40 40 out lost its lease is over"
                ),
            ),
            (
                "1.0",
                &format!(
                    "1 21 21 ask patient 60000 a
                    1 22 22 got {second}
                    1 30 30 end
                    1 40 40 out lost its lease is over"
                ),
            ),
        ])
    }

    #[test]
    fn tokens_against_the_order_of_grants_are_found_even_without_validity() {
        assert!(tokens(5, 6).is_clean());
        assert_eq!(tokens(6, 5).tokens.len(), 1);
        assert_eq!(tokens(5, 5).tokens.len(), 1);
    }

    #[test]
    fn tokens_of_grants_side_by_side_may_be_in_any_order() {
        let verdict = verdict(&[
            ("0.0", "1 10 10 ask try 0 a\n1 20 20 got 6\n1 30 30 end\n1 40 40 out lost by time"),
            ("1.0", "1 19 19 ask try 0 a\n1 25 25 got 5\n1 30 30 end\n1 40 40 out lost by time"),
        ]);
        assert!(verdict.is_clean(), "{verdict}");
    }

    #[test]
    fn a_lock_that_is_gone_while_it_is_valid_is_found() {
        let lost = |at: u64| {
            verdict(&[(
                "0.0",
                &format!(
                    "1 10 10 ask patient 60000 a
                    1 20 900 got 5
                    1 30 900 end
                    1 {at} {at} out lost the store says that it is gone"
                ),
            )])
        };
        assert_eq!(lost(899).taken.len(), 1);
        // Its release may have come too late.
        assert!(lost(900).is_clean());
    }

    #[test]
    fn a_waiter_without_an_answer_is_found_unless_it_was_killed() {
        let waits = format!("{GOOD}\n2 50 50 ask patient 60000 b\n");
        let verdict_of = |end: &str| verdict(&[("0.0", &format!("{waits}{end}"))]);
        assert_eq!(verdict_of("").progress.len(), 1);
        assert!(verdict_of("0 60 60 killed").is_clean());
        assert_eq!(verdict_of("2 60 60 no timed out").progress.len(), 1, "a patient one starved");
        let late = 71 * SECOND;
        assert_eq!(verdict_of(&format!("2 {late} {late} left")).progress.len(), 1);
        let stopped = format!("0 60 60 stopped\n0 {late} {late} continued\n2 {late} {late} left");
        assert!(verdict_of(&stopped).is_clean());
    }

    #[test]
    fn refusals_that_nobody_asked_for_are_found() {
        let refused = |why: &str| {
            verdict(&[("0.0", &format!("{GOOD}\n2 50 50 ask try 0 b\n2 60 60 no {why}"))]).progress.len()
        };
        assert_eq!(refused("busy"), 0);
        assert_eq!(refused("lock b: the lock manager was shut down"), 1);
    }

    #[test]
    fn a_release_that_does_not_end_is_found() {
        let held = "1 10 10 ask patient 60000 a\n1 20 900 got 5";
        assert_eq!(verdict(&[("0.0", held)]).progress.len(), 1);
        assert_eq!(verdict(&[("0.0", &format!("{held}\n1 30 900 end"))]).progress.len(), 1);
        assert!(verdict(&[("0.0", &format!("{held}\n1 30 900 end\n0 40 40 killed"))]).is_clean());
        let late = 20 * SECOND;
        assert_eq!(
            verdict(&[("0.0", &format!("{held}\n1 30 900 end\n1 {late} 0 out ok"))]).progress.len(),
            1
        );
    }

    #[test]
    fn a_process_that_gets_nothing_after_the_faults_is_found() {
        let starved =
            judge(&history(&[("0.0", GOOD)]), Bounds { slack: Duration::from_secs(1), calm_from: 25 });
        assert_eq!(starved.progress.len(), 1, "{starved}");
    }

    /// A reader and a reader or writer of another process, side by side.
    fn beside(second: &str, token: u64) -> Verdict {
        let first = "1 10 10 ask patient:shared 60000 a\n1 20 900 got 5\n1 40 900 end\n1 50 50 out ok";
        let second =
            format!("1 10 10 ask {second} 60000 a\n1 30 900 got {token}\n1 40 900 end\n1 50 50 out ok");
        verdict(&[("0.0", first), ("1.0", &second)])
    }

    #[test]
    fn readers_may_be_beside_readers_only() {
        assert!(beside("patient:shared", 6).is_clean());
        assert_eq!(beside("patient", 6).overlaps.len(), 1);
    }

    #[test]
    fn a_token_is_shared_by_readers_of_one_process_only() {
        assert_eq!(beside("patient:shared", 5).tokens.len(), 1);
        let own = "1 10 10 ask patient:shared 60000 a\n1 20 900 got 5
            2 11 11 ask patient:shared 60000 a\n2 25 900 got 5
            1 40 900 end\n1 50 50 out ok\n2 40 900 end\n2 50 50 out ok";
        assert!(verdict(&[("0.0", own)]).is_clean());
    }

    #[test]
    fn who_shares_what_it_had_alone_is_beside_readers_from_then_on() {
        let first =
            "1 10 10 ask patient 60000 a\n1 20 900 got 5\n1 30 900 shared\n1 40 900 end\n1 50 50 out ok";
        let reader = |at: u64| {
            let reader =
                format!("1 15 15 ask patient:shared 60000 a\n1 {at} 900 got 6\n1 45 900 end\n1 50 50 out ok");
            verdict(&[("0.0", first), ("1.0", &reader)])
        };
        assert!(reader(31).is_clean());
        assert_eq!(reader(29).overlaps.len(), 1);
    }
}
