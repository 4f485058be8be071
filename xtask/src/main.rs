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
mod spec;
mod stress;
mod test;
mod workspace;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let failed = |code: u8, why: String| {
        eprintln!("error: {why}");
        ExitCode::from(code)
    };
    let task = match cli::parse(&args) {
        Ok(task) => task,
        Err(why) => return failed(2, why),
    };
    let done = |()| ExitCode::SUCCESS;
    let ended = match task {
        cli::Task::Help(text) => {
            println!("{text}");
            Ok(ExitCode::SUCCESS)
        }
        cli::Task::Test(options) => Ok(test::run(&options)),
        cli::Task::List => test::list().map(done),
        cli::Task::Api => api::run().map(done),
        cli::Task::Book => book::run().map(done),
        cli::Task::Lines => lines::run().map(done),
        cli::Task::Bench(options) => bench::run(&options),
        cli::Task::Servers(topology) => Ok(servers::run(topology)),
        cli::Task::Stress(options) => stress::run(&options),
        cli::Task::Spec { deep } => spec::all(deep).map(done),
        cli::Task::Deep(options) => Ok(deep::run(options)),
        cli::Task::Direction(draw) => Ok(direction::run(draw)),
        cli::Task::Chaos(args) => chaos::run(&args),
    };
    ended.unwrap_or_else(|why| failed(1, why))
}

/// Returns a command for the cargo that runs us, in the root of the workspace.
fn cargo() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root());
    // `cargo xtask` sets variables about this package. The build script of `ring` watches them:
    // cargo would compile it, and all that depends on it, again after each change between a shell
    // and us.
    let of_ours =
        ["CARGO_MANIFEST_", "CARGO_PKG_", "CARGO_CRATE_NAME", "CARGO_BIN_NAME", "CARGO_PRIMARY_PACKAGE"];
    for (name, _) in std::env::vars_os() {
        if of_ours.iter().any(|start| name.to_string_lossy().starts_with(start)) {
            command.env_remove(name);
        }
    }
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
