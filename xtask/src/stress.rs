//! `cargo xtask stress`: processes that are killed and paused for minutes, or one whose memory must
//! not grow.

use std::io;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use lock_tests::dice::Dice;
use lock_tests::stress::{Kinds, Lock};
use lock_tests::{Layout, soak, stress};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::build;
use crate::runner::Output;

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Options {
    /// Servers for a test of memory; `None` for a test of exclusion.
    pub(crate) soak: Option<soak::Servers>,
    pub(crate) time: Duration,
    /// Drawn if `None`.
    pub(crate) seed: Option<u64>,
    pub(crate) lock: Lock,
    pub(crate) kinds: Kinds,
    pub(crate) layout: Layout,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            soak: None,
            time: Duration::from_secs(60),
            seed: None,
            lock: Lock::Real,
            kinds: Kinds::Mutex,
            layout: Layout::Hash,
        }
    }
}

pub(crate) fn run(options: &Options) -> Result<ExitCode, String> {
    let code = |is_clean| if is_clean { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    let name = if options.soak.is_some() { "soak" } else { "stress" };
    let program = build::program(&["--package", "lock-tests", "--bin", name], "bin", name, &Output::Live)?;
    // Before anything is started: a signal that comes between must not leave it running.
    let signalled = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(&signalled))
            .map_err(|error| format!("can't listen for signals: {error}"))?;
    }
    let interrupted = || signalled.load(Ordering::Relaxed);
    let seed = options.seed.unwrap_or_else(Dice::draw_seed);
    println!("seed {seed}, {} s", options.time.as_secs());
    if let Some(servers) = options.soak {
        let plan = soak::Plan { program, seed, time: options.time, leak: 0, servers };
        let outcome = soak::run(&plan, &interrupted, &|line| println!("{line}")).map_err(said)?;
        println!("{outcome}");
        return Ok(code(outcome.is_clean()));
    }
    let plan = stress::Plan::new(program, seed, options.time);
    let plan = stress::Plan { lock: options.lock, kinds: options.kinds, layout: options.layout, ..plan };
    // The logs are kept, also if a panic ends the run, unless they have nothing of interest.
    let logs = tempfile::Builder::new().prefix("lock-stress-").tempdir().map_err(said)?.keep();
    println!("logs in {}", logs.display());
    let verdict = stress::run(&plan, &logs, &interrupted).map_err(said);
    if verdict.as_ref().map_or(true, stress::Verdict::is_clean) {
        let _ = std::fs::remove_dir_all(&logs);
    }
    let verdict = verdict?;
    println!("{verdict}");
    if !verdict.is_clean() {
        println!("the logs are in {}; the seed was {seed}", logs.display());
    }
    Ok(code(verdict.is_clean()))
}

#[expect(clippy::needless_pass_by_value, reason = "for `map_err`")]
fn said(error: io::Error) -> String {
    error.to_string()
}
