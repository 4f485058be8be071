//! [`Results`]: the lines that the runs have printed, and the tables of them.

use std::fmt::Write as _;

use serde_json::Value;

use super::bars::{Bar, Line, Run, Wanted};

/// The lines of all runs in all rounds.
#[derive(Debug, Default)]
pub(super) struct Results {
    lines: Vec<(usize, Run, Value)>,
    failed: Vec<(Run, String)>,
}

/// The minimum, median and maximum of a number over several rounds.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Spread {
    least: f64,
    median: f64,
    most: f64,
}

impl Spread {
    /// `None` without values.
    fn of(mut values: Vec<f64>) -> Option<Self> {
        values.sort_by(f64::total_cmp);
        let (least, most) = (*values.first()?, *values.last()?);
        let at = |index: usize| values.get(index).copied();
        let median = (at((values.len() - 1) / 2)? + at(values.len() / 2)?) / 2.0;
        Some(Self { least, median, most })
    }

    fn holds(self, wanted: Wanted) -> bool {
        match wanted {
            Wanted::AtMost(bound) => self.median <= bound,
            Wanted::AtLeast(bound) => self.median >= bound,
            Wanted::Exactly(value) => self.least == value && self.most == value,
        }
    }
}

impl Results {
    pub(super) fn add(&mut self, round: usize, run: Run, line: Value) {
        self.lines.push((round, run, line));
    }

    pub(super) fn failed(&mut self, run: Run, why: String) {
        self.failed.push((run, why));
    }

    pub(super) fn all_ran(&self) -> bool {
        self.failed.is_empty()
    }

    pub(super) fn all_hold(&self, bars: &[Bar]) -> bool {
        bars.iter().all(|bar| self.measured(bar).is_some_and(|spread| spread.holds(bar.wanted)))
    }

    /// Computes a bar's number in each round, from runs close in time. A round in which a run
    /// failed has none.
    fn measured(&self, bar: &Bar) -> Option<Spread> {
        let rounds = self.lines.iter().map(|(round, _, _)| *round).max().unwrap_or(0);
        let of_round = |round| {
            let line = |run: &Run| {
                let found = self.lines.iter().find(|(of, by, _)| *of == round && by == run);
                found.map(|(_, _, line)| Line(line))
            };
            (bar.value)(&bar.of.iter().map(line).collect::<Option<Vec<_>>>()?)
        };
        Spread::of((1..=rounds).filter_map(of_round).collect())
    }

    /// Renders the bars, and whether they hold.
    pub(super) fn bars(&self, bars: &[Bar]) -> String {
        let mut rows = vec![["bar", "wanted", "median", "min..max", ""].map(str::to_owned)];
        for bar in bars {
            let wanted = match bar.wanted {
                Wanted::AtMost(bound) => format!("<= {}", short(bound)),
                Wanted::AtLeast(bound) => format!(">= {}", short(bound)),
                Wanted::Exactly(value) => format!("always {}", short(value)),
            };
            let spread = self.measured(bar);
            let median = spread.map_or_else(|| "-".to_owned(), |spread| short(spread.median));
            let range = spread.map(|spread| format!("{}..{}", short(spread.least), short(spread.most)));
            let verdict = if spread.is_some_and(|spread| spread.holds(bar.wanted)) { "ok" } else { "NOT" };
            let name = format!("{}: {}", bar.workload, bar.name);
            rows.push([name, wanted, median, range.unwrap_or_default(), verdict.to_owned()]);
        }
        table(&rows)
    }

    /// Renders the medians of what every run prints, and the runs that failed.
    pub(super) fn figures(&self) -> String {
        const FIELDS: [&str; 6] = ["grants_per_s", "p50_us", "p99_us", "max_us", "cpu_ms", "ping_p50_us"];
        let mut rows =
            vec![["run", "grants/s", "p50 µs", "p99 µs", "max µs", "cpu ms", "ping µs"].map(str::to_owned)];
        let mut seen: Vec<Run> = Vec::new();
        for (_, run, _) in &self.lines {
            if seen.contains(run) {
                continue;
            }
            seen.push(*run);
            let median = |field: &str| {
                let lines = self.lines.iter().filter(|(_, by, _)| by == run);
                let spread = Spread::of(lines.filter_map(|(_, _, line)| Line(line).number(field)).collect());
                spread.map_or_else(String::new, |spread| short(spread.median))
            };
            let [grants, p50, p99, max, cpu, ping] = FIELDS.map(median);
            rows.push([run.0.to_owned(), grants, p50, p99, max, cpu, ping]);
        }
        let mut text = table(&rows);
        for (run, why) in &self.failed {
            // Writing to a string does not fail.
            let _ = writeln!(text, "{} FAILED: {why}", run.0);
        }
        text
    }
}

/// Formats with at least three digits, and without trailing zeros.
fn short(value: f64) -> String {
    let decimals = match value.abs() {
        size if size >= 100.0 => 0,
        size if size >= 10.0 => 1,
        size if size >= 1.0 || size == 0.0 => 2,
        _ => 4,
    };
    let text = format!("{value:.decimals$}");
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

/// Aligns the first column to the left, the others to the right.
fn table<const N: usize>(rows: &[[String; N]]) -> String {
    let widths: [usize; N] = std::array::from_fn(|column| {
        rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0)
    });
    let mut text = String::new();
    for row in rows {
        let mut line = String::new();
        for (column, (cell, width)) in row.iter().zip(widths).enumerate() {
            // Writing to a string does not fail.
            let _ = match column {
                0 => write!(line, "{cell:width$}"),
                _ => write!(line, "  {cell:>width$}"),
            };
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const RUN: Run = Run("hot");
    const OTHER: Run = Run("hot --lib raw");

    fn bar(wanted: Wanted) -> Bar {
        let value = |lines: &[Line<'_>]| Some(lines.first()?.number("n")? / lines.get(1)?.number("n")?);
        Bar { workload: "hot", name: "ratio", wanted, of: &[RUN, OTHER], value }
    }

    fn results(rounds: &[(f64, f64)]) -> Results {
        let mut results = Results::default();
        for (round, (one, other)) in rounds.iter().enumerate() {
            results.add(round + 1, RUN, json!({ "n": one }));
            results.add(round + 1, OTHER, json!({ "n": other }));
        }
        results
    }

    #[test]
    fn the_median_of_the_ratios_is_judged() {
        // The ratio of the medians would be 2.
        let results = results(&[(1.0, 1.0), (2.0, 1.0), (90.0, 30.0), (10.0, 10.0), (4.0, 4.0)]);
        let spread = results.measured(&bar(Wanted::AtMost(1.0))).unwrap();
        assert_eq!(spread, Spread { least: 1.0, median: 1.0, most: 3.0 });
        assert!(results.all_hold(&[bar(Wanted::AtMost(1.0)), bar(Wanted::AtLeast(1.0))]));
        assert!(!results.all_hold(&[bar(Wanted::AtMost(0.9))]));
        assert!(!results.all_hold(&[bar(Wanted::AtLeast(1.1))]));
    }

    #[test]
    fn what_must_never_happen_is_judged_by_every_round() {
        let results = results(&[(1.0, 1.0), (1.0, 1.0), (2.0, 1.0)]);
        assert!(!results.all_hold(&[bar(Wanted::Exactly(1.0))]));
    }

    #[test]
    fn a_bar_that_was_not_measured_does_not_hold() {
        let mut results = Results::default();
        results.add(1, RUN, json!({ "n": 1 }));
        results.failed(OTHER, "exit status: 1".to_owned());
        let bars = [bar(Wanted::AtMost(5.0))];
        assert!(!results.all_ran() && !results.all_hold(&bars));
        assert!(results.bars(&bars).contains("NOT"));
        assert!(results.figures().contains("hot --lib raw FAILED: exit status: 1"));
    }

    #[test]
    fn of_an_even_number_the_median_is_in_the_middle() {
        assert_eq!(Spread::of(vec![4.0, 1.0, 2.0, 3.0]).unwrap().median, 2.5);
        assert_eq!(Spread::of(Vec::new()), None);
    }

    #[test]
    fn the_table_says_what_was_wanted_and_measured() {
        let text = results(&[(1.5, 1.0), (1.25, 1.0)]).bars(&[bar(Wanted::AtMost(1.4))]);
        let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(lines[0], ["bar", "wanted", "median", "min..max"]);
        assert_eq!(lines[1], ["hot:", "ratio", "<=", "1.4", "1.38", "1.25..1.5", "ok"]);
    }

    #[test]
    fn numbers_are_as_long_as_they_need_to_be() {
        let shown = [0.0, 0.00031, 0.25, 1.4, 43.21, 643_005.08, 100.0].map(short);
        assert_eq!(shown, ["0", "0.0003", "0.25", "1.4", "43.2", "643005", "100"]);
    }
}
