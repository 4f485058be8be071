//! Short runs, for tests.
#![allow(clippy::print_stdout, reason = "figures and seeds, shown with --nocapture and on failure")]

use std::time::Duration;

use super::arena::Topology;
use super::fault::Fault;
use super::orders::Broken;
use super::plan::Plan;
use super::report::Outcome;
use super::run::run;
use crate::dice::Dice;
use crate::history::Check;

impl Plan {
    /// Returns a plan with short pauses and a random seed.
    #[must_use]
    pub fn short(program: &str, topology: Topology) -> Self {
        let plan = Self::new(program.into(), topology, Dice::draw_seed());
        Self { settle: Duration::from_millis(500), calm: Duration::from_secs(2), ..plan }
    }

    /// Runs the plan. Prints what happens, and keeps the logs if something unexpected was found.
    ///
    /// # Panics
    ///
    /// When the run fails.
    #[must_use]
    pub fn outcome(&self) -> Outcome {
        println!("seed {}", self.seed);
        let logs = tempfile::tempdir().unwrap();
        let outcome = run(self, logs.path(), &|| false, &|line| println!("{line}")).unwrap();
        println!("{outcome}");
        if !outcome.is_clean() && self.broken == Broken::Nothing {
            println!("the logs are in {}", logs.keep().display());
        }
        outcome
    }

    /// Runs each of these faults once.
    ///
    /// # Panics
    ///
    /// When something is found, or a fault hits nothing.
    pub fn holds_through(self, faults: &[Fault]) {
        let plan = Self { only: faults.to_vec(), ..self };
        let outcome = plan.outcome();
        assert!(outcome.is_clean(), "seed {}: {outcome}", plan.seed);
        for row in &outcome.rows {
            assert_eq!(row.missed, 0, "seed {}: {row:?}", plan.seed);
        }
        assert_eq!(outcome.rows.len(), plan.only.len());
    }

    /// Runs every fault of the topology once, in three parallel parts with their own servers.
    ///
    /// # Panics
    ///
    /// As [`holds_through`](Self::holds_through).
    pub fn holds_through_every_fault(&self) {
        let faults: Vec<Fault> = Fault::at(self.topology).collect();
        std::thread::scope(|scope| {
            for part in faults.chunks(faults.len().div_ceil(3)) {
                scope.spawn(|| self.clone().holds_through(part));
            }
        });
    }

    /// Runs a broken lock for a few seconds, with these faults or quietly. Returns what the
    /// checkers found.
    ///
    /// # Panics
    ///
    /// When the run fails.
    #[must_use]
    pub fn found(self, broken: Broken, only: Vec<Fault>) -> Vec<Check> {
        let second = Duration::from_secs(1);
        let time = only.is_empty().then_some(Duration::ZERO);
        let calm = if broken == Broken::DeafWaiter { 12 * second } else { 3 * second };
        let outcome = Self { broken, only, time, calm, slack: second, ..self }.outcome();
        outcome.violations.iter().map(|violation| violation.check).collect()
    }
}
