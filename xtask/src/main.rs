//! The commands of README and CI. `cargo xtask --help` lists them.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a command-line program")]

mod api;
mod bench;
mod book;
mod build;
mod chaos;
mod cli;
mod deep;
mod direction;
mod examples;
mod install;
mod lines;
mod prose;
mod runner;
mod servers;
mod stress;
mod test;
mod workspace;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match cli::parse(&args) {
        Ok(cli::Task::Help(text)) => {
            println!("{text}");
            ExitCode::SUCCESS
        }
        Ok(cli::Task::Test(options)) => test::run(&options),
        Ok(cli::Task::List) => test::list(),
        Ok(cli::Task::Api) => api::run(),
        Ok(cli::Task::Book) => book::run(),
        Ok(cli::Task::Lines) => lines::run(),
        Ok(cli::Task::Bench(options)) => bench::run(&options),
        Ok(cli::Task::Servers(topology)) => servers::run(topology),
        Ok(cli::Task::Stress(options)) => stress::run(&options),
        Ok(cli::Task::Deep(options)) => deep::run(options),
        Ok(cli::Task::Direction(draw)) => direction::run(draw),
        Ok(cli::Task::Chaos(args)) => chaos::run(&args),
        Err(message) => {
            eprintln!("error: {message}");
            ExitCode::from(2)
        }
    }
}

/// Returns a command for the cargo that runs us, in the root of the workspace.
fn cargo() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root());
    command
}

/// Returns the folder of the workspace: the one that cargo runs us for, or the nearest one around
/// the current folder. The compiled-in path may be that of another checkout, if two share a target
/// folder.
fn root() -> PathBuf {
    if let Some(xtask) = std::env::var_os("CARGO_MANIFEST_DIR").map(PathBuf::from) {
        return xtask.parent().expect("xtask is a folder of the workspace").to_owned();
    }
    let current = std::env::current_dir().unwrap_or_default();
    let around = current.ancestors().find(|folder| folder.join("xtask/Cargo.toml").exists());
    let compiled = Path::new(env!("CARGO_MANIFEST_DIR")).parent();
    around.or(compiled).expect("xtask is a folder of the workspace").to_owned()
}
