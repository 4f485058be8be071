//! `cargo xtask servers`: a server to try things on.

use std::process::ExitCode;
use std::time::Duration;

use lock_tests::RedisServer;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

pub(crate) fn run() -> ExitCode {
    // Before the server starts: a signal that comes between must not leave it behind.
    let mut signals = match Signals::new([SIGINT, SIGTERM, SIGHUP]) {
        Ok(signals) => signals,
        Err(error) => {
            eprintln!("error: can't listen for signals: {error}");
            return ExitCode::FAILURE;
        }
    };
    let mut server = match RedisServer::try_start_with(&[]) {
        Ok(server) => server,
        Err(error) => {
            eprintln!("error: {error}");
            return ExitCode::FAILURE;
        }
    };
    println!("export LOCK_URL={}", server.url());
    eprintln!("redis-server runs until Ctrl-C");
    loop {
        if signals.pending().next().is_some() {
            return ExitCode::SUCCESS;
        }
        if let Some(status) = server.ended() {
            eprintln!("error: redis-server ended with {status}:\n{}", server.log());
            return ExitCode::FAILURE;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}
