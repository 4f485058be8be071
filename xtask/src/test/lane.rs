//! [`Lane`]: steps one after the other. Two lanes run side by side.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::Command;
use std::time::Instant;

use lock_tests::process::cpu_of_ended;

use super::Part;
use super::table::{Outcome, Row, Table, first_line};
use crate::runner::{self, Output};

/// Runs steps and records their outcomes.
pub(crate) struct Lane<'a> {
    table: &'a Table,
    output: &'a Output,
}

/// Where a step of a lane runs its programs.
pub(crate) struct Step<'a> {
    output: &'a Output,
}

impl<'a> Lane<'a> {
    pub(super) fn new(table: &'a Table, output: &'a Output) -> Self {
        Self { table, output }
    }

    /// Runs a step and returns whether it succeeded. In a background lane, its output appears when
    /// the step is over.
    pub(crate) fn step(&self, part: Part, name: &str, step: impl FnOnce(&Step<'_>) -> Outcome) -> bool {
        self.output.line(&format!("\n=== {name} ==="));
        let (start, before) = (Instant::now(), cpu_of_ended());
        // Whatever happens here, the other lane goes on, and the table is printed.
        let run = || step(&Step { output: self.output });
        let outcome = catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|panic| {
            let said = panic.downcast_ref::<String>().map(String::as_str);
            let said = said.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no message");
            Outcome::Failed(format!("panicked: {said}"))
        });
        let cpu = cpu_of_ended().saturating_sub(before);
        match &outcome {
            Outcome::Ok => {}
            Outcome::Failed(why) => self.output.line(&format!("{name} FAILED: {}", first_line(why))),
            Outcome::Skipped(why) => self.output.line(&format!("{name} skipped: {why}")),
        }
        self.output.flush();
        let is_ok = outcome == Outcome::Ok;
        self.table.add(Row { part, name: name.to_owned(), outcome, took: start.elapsed(), cpu });
        is_ok
    }

    /// Records a step that is left out.
    pub(crate) fn skip(&self, part: Part, name: &str, why: &str) {
        self.step(part, name, |_| Outcome::Skipped(why.to_owned()));
    }
}

impl Step<'_> {
    /// Runs a program.
    pub(crate) fn run(&self, command: &mut Command) -> Outcome {
        runner::run(command, self.output)
    }

    /// Runs cargo.
    pub(crate) fn cargo(&self, args: &[&str]) -> Outcome {
        self.run(crate::cargo().args(args))
    }

    pub(crate) fn output(&self) -> &Output {
        self.output
    }
}
