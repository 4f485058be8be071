//! `cargo xtask bench`: the benchmarks, round by round, and which bars hold.

pub(crate) mod bars;
mod table;

use std::io::Read;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use lock_tests::process::Process;
use serde_json::Value;

use self::bars::{Plan, Run};
use self::table::Results;
use crate::build;
use crate::install::{Found, Tool};
use crate::runner::Output;

/// Maximum time for a run. The longest is `pingpong` with 20 000 rounds, about two minutes.
const LIMIT: Duration = Duration::from_secs(15 * 60);

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Options {
    pub(crate) rounds: usize,
    /// Workloads to run; all of them if empty.
    pub(crate) only: Vec<&'static str>,
    pub(crate) long: bool,
    pub(crate) strict: bool,
}

pub(crate) fn run(options: &Options) -> Result<ExitCode, String> {
    let mut tools: Vec<Tool> =
        options.only.iter().flat_map(|workload| bars::needs(workload)).copied().collect();
    if tools.is_empty() {
        tools.push(Tool::RedisServer);
    }
    tools.dedup();
    let found = Found::look(&tools, false);
    if tools.into_iter().any(|tool| found.is_missing(tool)) {
        return Ok(ExitCode::FAILURE);
    }
    let program =
        build::program(&["--release", "--package", "lock-bench"], "bin", "lock-bench", &Output::Live)?;
    let plan = Plan::new(&options.only, options.long);
    let mut results = Results::default();
    for round in 1..=options.rounds {
        let once: &[Run] = if round == 1 { &plan.once } else { &[] };
        for &run in plan.rounds.iter().chain(once) {
            eprintln!("round {round} of {}: {}", options.rounds, run.0);
            match measure(&program, run) {
                Ok(line) => results.add(round, run, line),
                Err(why) => {
                    eprintln!("error: {}: {why}", run.0);
                    results.failed(run, why);
                }
            }
        }
    }
    println!("\n{}\n{}", results.figures(), results.bars(&plan.bars));
    let good = results.all_ran() && (!options.strict || results.all_hold(&plan.bars));
    Ok(if good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Runs lock-bench on a fresh server, and reads its line.
fn measure(program: &Path, run: Run) -> Result<Value, String> {
    let mut command = Command::new(program);
    command.arg("--workload").args(run.0.split(' '));
    command.current_dir(crate::root()).stdin(Stdio::null()).stdout(Stdio::piped());
    let mut process = Process::spawn(&mut command, None).map_err(|error| error.to_string())?;
    let mut output = process.stdout().ok_or("it has no output")?;
    let deadline = Instant::now() + LIMIT;
    // Its one line fits into the pipe.
    let status = loop {
        match process.ended() {
            Some(status) => break status,
            None if Instant::now() >= deadline => {
                process.kill_tree();
                return Err(format!("not done within {LIMIT:?}"));
            }
            None => std::thread::sleep(Duration::from_millis(20)),
        }
    };
    if !status.success() {
        return Err(status.to_string());
    }
    let mut line = String::new();
    output.read_to_string(&mut line).map_err(|error| error.to_string())?;
    serde_json::from_str(&line).map_err(|error| format!("{line:?}: {error}"))
}
