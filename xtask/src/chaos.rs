//! `cargo xtask chaos`: rival processes while servers, network and processes fail in all known
//! ways.

use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use lock_tests::process::Process;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::build;
use crate::runner::Output;

/// Maximum time for the program to end everything.
const ENDS: Duration = Duration::from_secs(30);

/// Builds the program and runs it with the arguments, which the program itself parses.
pub(crate) fn run(args: &[String]) -> Result<ExitCode, String> {
    let program =
        build::program(&["--package", "lock-tests", "--bin", "chaos"], "bin", "chaos", &Output::Live)?;
    // Before anything is started: a signal that comes between must not leave it running.
    let signalled = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(&signalled))
            .map_err(|error| format!("can't listen for signals: {error}"))?;
    }
    let mut command = Command::new(&program);
    let mut process = Process::spawn(command.args(args), None)
        .map_err(|error| format!("{}: {error}", program.display()))?;
    let mut told = false;
    loop {
        if let Some(status) = process.ended() {
            let code = status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1);
            return Ok(ExitCode::from(code));
        }
        if signalled.load(Ordering::Relaxed) && !told {
            told = true;
            process.terminate();
            process.wait(ENDS);
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}
