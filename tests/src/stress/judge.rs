//! [`Verdict`]: the result of a run.

use std::fmt;
use std::time::Duration;

use super::Plan;
use crate::history::{Check, History, Kind, Limits, Violation, WITNESS, Want, check};

/// The size of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Number of processes, including killed ones.
    pub processes: usize,
    /// Number of killed processes.
    pub killed: usize,
    /// Number of stops.
    pub stops: usize,
    /// Number of faults of the server and its connections.
    pub faults: usize,
    /// Number of requests.
    pub requests: usize,
    /// Number of granted requests.
    pub grants: usize,
    /// Number of grants that were lost before their release.
    pub lost: usize,
    /// Number of grants whose process was killed while it held the lock.
    pub died: usize,
    /// Number of grants that were shared, from the beginning or after a downgrade.
    pub shared: usize,
    /// Number of grants of fair locks that were observed while others waited.
    pub turns: usize,
    /// Number of refused requests.
    pub refused: usize,
    /// Maximum time from a patient request to its grant, without the stops of its process.
    pub longest_wait: Duration,
}

impl Counts {
    /// Counts the events of a history.
    #[must_use]
    pub fn of(history: &History) -> Self {
        let mut counts = Self {
            processes: history.lives.keys().filter(|name| !name.starts_with(WITNESS)).count(),
            faults: history.faults.len(),
            requests: history.requests.len(),
            ..Self::default()
        };
        for life in history.lives.values() {
            counts.killed += usize::from(life.killed.is_some());
            counts.stops += life.pauses.len();
        }
        for looks in history.seen.values() {
            let turns = looks.windows(2).filter(|looks| match looks {
                [before, after] => {
                    !after.holders.is_empty() && after.holders != before.holders && !after.queue.is_empty()
                }
                _ => false,
            });
            counts.turns += turns.count();
        }
        for request in &history.requests {
            counts.refused += usize::from(request.refused.is_some());
            let Some(grant) = &request.grant else { continue };
            let Some(life) = history.lives.get(&request.process) else { continue };
            counts.grants += 1;
            counts.shared += usize::from(request.kind == Kind::Read || grant.shared_from.is_some());
            counts.died += usize::from(grant.ended.is_none() && life.killed.is_some());
            counts.lost += usize::from(grant.ended.is_some_and(|(at, valid_until)| valid_until <= at));
            if request.want == Want::Patient {
                counts.longest_wait = counts.longest_wait.max(life.running(request.asked, grant.at));
            }
        }
        counts
    }
}

/// The result of a run.
#[derive(Clone, Debug, Default)]
pub struct Verdict {
    /// The size of the run.
    pub counts: Counts,
    /// The violations that the checkers have found.
    pub violations: Vec<Violation>,
}

impl Verdict {
    /// Runs all checkers over the history of a run.
    #[must_use]
    pub fn of(history: &History, plan: &Plan) -> Self {
        let settings = Limits::new(plan.lease.max(super::FIXED));
        // A wait may end in the middle of a call. How long a busy machine needs for one is no
        // defect, unless the call has run into its time-out: then its answer was lost, or the
        // machine stood still.
        let limits = Limits { slack: plan.slack(), unanswered: settings.call_timeout, ..settings };
        Self { counts: Counts::of(history), violations: check(history, &limits) }
    }

    /// Whether there is no violation.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.violations.is_empty()
    }

    /// Returns the findings of one checker.
    pub fn found(&self, check: Check) -> impl Iterator<Item = &str> {
        let found = self.violations.iter().filter(move |violation| violation.check == check);
        found.map(|violation| violation.what.as_str())
    }

    /// Whether this checker has found anything.
    #[must_use]
    pub fn has(&self, check: Check) -> bool {
        self.found(check).next().is_some()
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN: usize = 20;
        let Counts { processes, killed, stops, faults, requests, grants, lost, .. } = self.counts;
        let Counts { died, refused, shared, turns, longest_wait, .. } = self.counts;
        writeln!(f, "{processes} processes: {killed} killed, {stops} stops; {faults} faults of the server")?;
        writeln!(
            f,
            "{requests} requests, {grants} grants, {lost} of them lost, {died} died with their process, {refused} \
             refused in time; the longest patient wait was {longest_wait:.1?}"
        )?;
        if shared + turns > 0 {
            writeln!(f, "{shared} grants were shared, {turns} of fair locks came while others waited")?;
        }
        write!(f, "violations: {}", self.violations.len())?;
        for violation in self.violations.iter().take(SHOWN) {
            write!(f, "\n  {violation}")?;
        }
        Ok(())
    }
}
