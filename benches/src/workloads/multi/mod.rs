//! `multi`: several processes on one key, each with a manager and tasks as in `hot`.
//!
//! The process that the user started takes no lock. It starts the others and tells them what to do,
//! line by line:
//!
//! | to a child | | from it |
//! |---|---|---|
//! | the path of the file of the overlap check | → | |
//! | | ← | `ready`: its tasks are at work |
//! | `count` | → | |
//! | `end` | → | |
//! | | ← | its line of JSON, as of `hot` |
//!
//! A child exits when its input ends, so it never outlives this process, however that dies.

pub(super) mod child;
pub(super) mod process;

use std::time::Duration;

use serde_json::{Value, json};
use tempfile::NamedTempFile;

use self::process::{COUNT, END, Process, READY};
use super::common::warm_up;
use super::{crew, hot};
use crate::args::Options;
use crate::inside::Inside;
use crate::meter::{Cost, Meter};
use crate::report::Report;
use crate::server::Urls;
use crate::stats::Waits;

/// Maximum time for processes to start, on a busy machine.
pub(super) const START: Duration = Duration::from_secs(30);
/// Maximum time for processes to end.
const FINISH: Duration = crew::STOP.saturating_add(Duration::from_secs(30));

pub(super) async fn run(options: &Options, urls: &Urls) -> Result<Report, String> {
    if options.id.is_some() {
        return child::run(options, urls).await;
    }
    let mut meter = Meter::connect(options, urls).await?;
    Ok(measure(options, urls, &mut meter).await?.0)
}

/// Starts the processes and makes them count. Returns one line for all, and the line of each.
pub(super) async fn measure(
    options: &Options,
    urls: &Urls,
    meter: &mut Meter,
) -> Result<(Report, Vec<Value>), String> {
    let url = shared(urls)?;
    let file = NamedTempFile::new().map_err(|error| format!("no file for the overlap check: {error}"))?;
    let inside = Inside::shared(file.as_file())?;

    let mut processes = Vec::with_capacity(options.procs);
    for id in 0..options.procs {
        processes.push(Process::start(options, url, id)?);
    }
    for process in &mut processes {
        process.say(&file.path().to_string_lossy())?;
    }
    for process in &mut processes {
        let line = process.hear(START).await?;
        if line != READY {
            return Err(format!("process {} says {line:?}", process.id()));
        }
    }
    // All children have mapped it.
    drop(file);

    tokio::time::sleep(warm_up(options)).await;
    let start = meter.start().await?;
    for process in &mut processes {
        process.say(COUNT)?;
    }
    tokio::time::sleep(options.secs).await;
    for process in &mut processes {
        process.say(END)?;
    }
    let cost = meter.end(&start).await?;
    let mut lines = Vec::with_capacity(processes.len());
    for process in &mut processes {
        let line = process.hear(FINISH).await?;
        let id = process.id();
        lines.push(
            serde_json::from_str(&line).map_err(|error| format!("process {id} says {line:?}: {error}"))?,
        );
    }
    Ok((sum(options, &lines, inside.overlaps(), cost), lines))
}

pub(super) fn shared(urls: &Urls) -> Result<&str, String> {
    urls.measured.as_deref().ok_or_else(|| "there is no store that processes could share".to_owned())
}

/// Combines the lines: sums of work and cost, and the longest wait.
fn sum(options: &Options, lines: &[Value], overlaps: u64, cost: Cost) -> Report {
    let numbers = |field: &'static str| lines.iter().filter_map(move |line| line[field].as_f64());
    let counts = |field: &'static str| lines.iter().filter_map(move |line| line[field].as_u64());
    let most = |field| numbers(field).reduce(f64::max);
    let per_process: Vec<u64> = counts("grants").collect();
    Report {
        tasks: options.tasks,
        hold_us: hot::hold_us(options),
        grants: per_process.iter().sum(),
        errors: counts("errors").sum(),
        waits: Waits { p50: most("p50_us"), p99: most("p99_us"), max: most("max_us") },
        // The processor time of the children; this process only looks on.
        cost: Cost { cpu: Duration::from_secs_f64(numbers("cpu_ms").sum::<f64>() / 1000.0), ..cost },
        extra: vec![
            ("per_task_min", json!(counts("per_task_min").min())),
            ("per_task_max", json!(counts("per_task_max").max())),
            ("jain", hot::fairness(&per_process)),
            ("overlaps", json!(overlaps)),
            ("pending_max_us", json!(most("pending_max_us"))),
            ("real_hold_p50_us", json!(most("real_hold_p50_us"))),
            ("procs", json!(lines.len())),
            ("per_process", json!(per_process)),
        ],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Task, parse};

    #[test]
    fn work_is_summed_and_the_worst_wait_counts() {
        let args = ["--workload", "multi", "--procs", "2"].map(str::to_owned);
        let Ok(Task::Run(options)) = parse(&args) else { panic!("the flags are good") };
        let one = json!({"grants": 100, "errors": 1, "p50_us": 1.0, "p99_us": 9.0, "max_us": 10.0, "cpu_ms": 5.0,
            "per_task_min": 4, "per_task_max": 8, "pending_max_us": 7.0, "real_hold_p50_us": 0.1});
        let other = json!({"grants": 300, "errors": 0, "p50_us": 2.0, "p99_us": 3.0, "max_us": 40.0, "cpu_ms": 5.0,
            "per_task_min": 5, "per_task_max": 9, "pending_max_us": 0.0, "real_hold_p50_us": 0.2});
        let cost = Cost { time: Duration::from_secs(2), ..Cost::default() };
        let line: Value =
            serde_json::from_str(&sum(&options, &[one, other], 3, cost).line(&options)).unwrap();
        for (field, expected) in [
            ("grants", json!(400)),
            ("grants_per_s", json!(200.0)),
            ("errors", json!(1)),
            ("p50_us", json!(2.0)),
            ("p99_us", json!(9.0)),
            ("max_us", json!(40.0)),
            ("cpu_ms", json!(10.0)),
            ("per_task_min", json!(4)),
            ("per_task_max", json!(9)),
            ("jain", json!(0.8)),
            ("overlaps", json!(3)),
            ("pending_max_us", json!(7.0)),
            ("procs", json!(2)),
            ("per_process", json!([100, 300])),
        ] {
            assert_eq!(line[field], expected, "{field} in {line}");
        }
    }
}
