//! `lock-bench`: runs one workload and prints one line of JSON. `lock-bench --help` lists flags and
//! workloads.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a command-line program")]

mod alloc;
mod args;
mod backend;
mod inside;
mod journal;
mod meter;
mod postgres;
mod proxy;
mod report;
mod server;
mod stamp;
mod stats;
mod workloads;

use std::process::ExitCode;

use crate::args::{Options, Task};
use crate::server::Target;

#[global_allocator]
static ALLOCATOR: alloc::Counting = alloc::Counting;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args::parse(&args) {
        Ok(Task::Help) => {
            println!("{}", args::HELP);
            ExitCode::SUCCESS
        }
        Ok(Task::Run(options)) => match run(&options) {
            Ok(line) => {
                println!("{line}");
                ExitCode::SUCCESS
            }
            Err(message) => {
                eprintln!("error: {message}");
                ExitCode::FAILURE
            }
        },
        Err(message) => {
            eprintln!("error: {message}");
            ExitCode::from(2)
        }
    }
}

fn run(options: &Options) -> Result<String, String> {
    let target = Target::prepare(options)?;
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    if let Some(workers) = options.workers {
        builder.worker_threads(workers);
    }
    let runtime = builder.enable_all().build().map_err(|error| format!("no tokio runtime: {error}"))?;
    let report = runtime.block_on(workloads::run(options, target.urls()))?;
    Ok(report.line(options))
}
