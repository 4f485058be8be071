//! A program that dies in the middle of an operation on a stock.
//!
//! `stock_steps <url> <stock> <scenario> <step>` runs the scenario and kills itself with SIGKILL at
//! this step of it, counted from 1; 0 means never. It says `done` when it gets to the end.
//! [`Scenario::prepare`] makes the scenario's starting state.
#![allow(clippy::print_stdout, reason = "answers go to stdout")]

use std::sync::atomic::{AtomicU32, Ordering};

use lock_core::internal::steps::on_stock_step;
use lock_runtime::LockManager;
use lock_tests::stock_steps::{Scenario, spread};
use rustix::process::{Signal, getpid, kill_process};

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [url, name, scenario, step] = &args[..] else { panic!("four arguments are needed, not {args:?}") };
    let scenario = Scenario::named(scenario).expect("a scenario");
    let fatal: u32 = step.parse().expect("the number of a step");
    let locks = LockManager::connect(url).await.expect("a manager");
    let stock = spread(&locks, name);
    // Looked up here, so that the look-up is not one of the scenario's steps.
    if scenario != Scenario::Initialize {
        stock.snapshot().await.expect("a stock");
    }
    let steps = AtomicU32::new(0);
    on_stock_step(move |_| {
        if steps.fetch_add(1, Ordering::Relaxed) + 1 == fatal {
            kill_process(getpid(), Signal::KILL).expect("to die");
        }
    });
    scenario.play(&stock).await.expect("nothing else fails");
    println!("done");
}
