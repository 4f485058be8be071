//! [`Table`]: the outcomes of the steps, and their cost.

use std::fmt;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use super::Part;

/// The outcome of a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Ok,
    /// The reason, in one line; further lines have the messages of failed tests.
    Failed(String),
    Skipped(String),
}

/// One line of the table.
#[derive(Debug)]
pub(super) struct Row {
    pub(super) part: Part,
    pub(super) name: String,
    pub(super) outcome: Outcome,
    pub(super) took: Duration,
    /// Processor time of all processes of the step; zero if the system does not report it.
    pub(super) cpu: Duration,
}

/// Collects the rows of all lanes.
#[derive(Debug, Default)]
pub(super) struct Table {
    rows: Mutex<Vec<Row>>,
}

impl Table {
    pub(super) fn add(&self, row: Row) {
        self.rows.lock().unwrap_or_else(PoisonError::into_inner).push(row);
    }

    /// Completes the table after a run that took `took`, with the rows in the order of the parts.
    pub(super) fn finish(self, took: Duration) -> Finished {
        let mut rows = self.rows.into_inner().unwrap_or_else(PoisonError::into_inner);
        rows.sort_by_key(|row| row.part);
        Finished { rows, took }
    }
}

/// The table of a run that is over.
#[derive(Debug)]
pub(super) struct Finished {
    rows: Vec<Row>,
    took: Duration,
}

impl Finished {
    /// Whether nothing failed; in CI nothing may be skipped either.
    pub(super) fn is_good(&self, ci: bool) -> bool {
        self.rows.iter().all(|row| match row.outcome {
            Outcome::Ok => true,
            Outcome::Failed(_) => false,
            Outcome::Skipped(_) => !ci,
        })
    }
}

impl fmt::Display for Finished {
    /// Prints the table, the failures in full, and their names last. A reader sees the end first.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = self.rows.iter().map(|row| row.name.len()).max().unwrap_or(0).max("part".len());
        writeln!(f, "{:width$}  {:7}  {:>7}  {:>7}", "part", "result", "seconds", "cpu")?;
        for Row { name, outcome, took, cpu, .. } in &self.rows {
            let (result, why) = match outcome {
                Outcome::Ok => ("ok", ""),
                Outcome::Failed(why) => ("FAILED", first_line(why)),
                Outcome::Skipped(why) => ("skipped", why.as_str()),
            };
            let (took, cpu) = (took.as_secs_f64(), cpu.as_secs_f64());
            let line = format!("{name:width$}  {result:7}  {took:7.1}  {cpu:7.1}  {why}");
            writeln!(f, "{}", line.trim_end())?;
        }
        let cpu: Duration = self.rows.iter().map(|row| row.cpu).sum();
        let (took, cpu) = (self.took.as_secs_f64(), cpu.as_secs_f64());
        writeln!(f, "{:width$}  {:7}  {took:7.1}  {cpu:7.1}", "all", "")?;
        let failed = || {
            self.rows.iter().filter_map(|row| match &row.outcome {
                Outcome::Failed(why) => Some((&row.name, why)),
                _ => None,
            })
        };
        for (name, why) in failed() {
            writeln!(f, "\n--- {name} FAILED: {why}")?;
        }
        for (name, why) in failed() {
            writeln!(f, "FAILED: {name}: {}", first_line(why))?;
            // Test programs end with a list of what failed.
            let mut tests = why.lines().filter(|line| {
                line.strip_prefix("    ").is_some_and(|name| name.contains("::") && !name.contains(' '))
            });
            tests.try_for_each(|test| writeln!(f, "{test}"))?;
        }
        Ok(())
    }
}

pub(super) fn first_line(text: &str) -> &str {
    text.lines().next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(outcomes: &[Outcome]) -> Finished {
        let table = Table::default();
        for (outcome, part) in outcomes.iter().zip(Part::ALL.into_iter().rev()) {
            let (name, took, cpu) = ("part".to_owned(), Duration::from_secs(3), Duration::from_secs(2));
            table.add(Row { part, name, outcome: outcome.clone(), took, cpu });
        }
        table.finish(Duration::from_secs(4))
    }

    #[test]
    fn a_failure_is_a_failure_everywhere() {
        let table = table(&[Outcome::Ok, Outcome::Failed("why".to_owned())]);
        assert!(!table.is_good(false));
        assert!(!table.is_good(true));
    }

    #[test]
    fn what_the_tests_said_is_below_the_table_and_their_names_are_last() {
        let why = "exit status: 101\n---- b::c stdout ----\nboom\n\nfailures:\n    b::c";
        let text = table(&[Outcome::Failed(why.to_owned())]).to_string();
        let (table, below) = text.split_once("\n---").expect("a table");
        assert!(table.contains("exit status: 101") && !table.contains("boom"), "{text}");
        assert!(below.contains("boom"), "{text}");
        assert!(below.ends_with("FAILED: part: exit status: 101\n    b::c\n"), "{text}");
    }

    #[test]
    fn what_is_left_out_fails_in_ci_only() {
        let table = table(&[Outcome::Ok, Outcome::Skipped("why".to_owned())]);
        assert!(table.is_good(false));
        assert!(!table.is_good(true));
    }

    #[test]
    fn the_table_says_what_became_of_each_part_and_what_all_of_them_cost() {
        let text = table(&[Outcome::Ok, Outcome::Skipped("missing: x".to_owned())]).to_string();
        let lines: Vec<&str> = text.lines().collect();
        let expected = [
            "part  result   seconds      cpu",
            "part  skipped      3.0      2.0  missing: x",
            "part  ok           3.0      2.0",
            "all                4.0      4.0",
        ];
        assert_eq!(lines, expected, "in the order of the parts, side by side");
    }
}
