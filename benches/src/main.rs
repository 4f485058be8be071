//! `lock-bench`: runs one workload and prints one line of JSON. `lock-bench --help` lists flags and
//! workloads.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a command-line program")]

mod alloc;
mod args;
mod backend;
mod etcd;
mod inside;
mod journal;
mod meter;
mod mongo;
mod proxy;
mod report;
mod server;
mod sql;
mod stamp;
mod stats;
mod workloads;
mod zookeeper;

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

/// Keeps this process on the first of its processors, and so those that it starts. Client and
/// server of a commit take turns, which takes longer if they are on different processors.
#[cfg(target_os = "linux")]
fn stay_on(cpus: usize) -> Result<(), String> {
    use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

    let all = sched_getaffinity(None).map_err(|error| format!("--cpus: {error}"))?;
    let (mut some, mut left) = (CpuSet::new(), cpus);
    for cpu in (0..CpuSet::MAX_CPU).filter(|cpu| all.is_set(*cpu)).take(cpus) {
        some.set(cpu);
        left -= 1;
    }
    if left > 0 {
        return Err(format!("--cpus {cpus} is more than there are: {}", cpus - left));
    }
    sched_setaffinity(None, &some).map_err(|error| format!("--cpus: {error}"))
}

#[cfg(not(target_os = "linux"))]
fn stay_on(_cpus: usize) -> Result<(), String> {
    Err("--cpus is for Linux only; leave it out".to_owned())
}

fn run(options: &Options) -> Result<String, String> {
    if let Some(cpus) = options.cpus {
        stay_on(cpus)?;
    }
    let target = Target::prepare(options)?;
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    if let Some(workers) = options.workers {
        builder.worker_threads(workers);
    }
    let runtime = builder.enable_all().build().map_err(|error| format!("no tokio runtime: {error}"))?;
    let report = runtime.block_on(workloads::run(options, target.urls()))?;
    Ok(report.line(options))
}
