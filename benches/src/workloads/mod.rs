//! The workloads, one to a file, and what they share.

mod crew;
mod fair_hot;
mod held;
mod hot;
mod latency;
mod layer;
mod multi;
mod multi3;
mod pingpong;
mod rw;
mod seed;
mod stock;
mod throughput;
mod waiting;

pub(crate) use fair_hot::journal::{Journal, Watched};

use std::time::Duration;

use crate::args::{Options, Workload};
use crate::report::Report;
use crate::server::Urls;

/// Runs before anything is counted: connections, caches and the branch predictor are warm then.
const WARM_UP: Duration = Duration::from_millis(500);
/// After an error, so that a server that is gone is not asked without pause.
const AFTER_ERROR: Duration = Duration::from_millis(10);

/// Runs the workload that was asked for.
pub(crate) async fn run(options: &Options, urls: &Urls) -> Result<Report, String> {
    // In a task, as a program's own work would be: what `block_on` runs is not on a worker thread.
    let (options, urls) = (options.clone(), urls.clone());
    let run = tokio::spawn(async move {
        match options.workload {
            Workload::Latency => Box::pin(latency::run(&options, &urls)).await,
            Workload::Throughput => Box::pin(throughput::run(&options, &urls)).await,
            Workload::Hot => Box::pin(hot::run(&options, &urls)).await,
            Workload::Multi => Box::pin(multi::run(&options, &urls)).await,
            Workload::Pingpong => Box::pin(pingpong::run(&options, &urls)).await,
            Workload::Held => Box::pin(held::run(&options, &urls)).await,
            Workload::Waiting => Box::pin(waiting::run(&options, &urls)).await,
            Workload::FairHot => Box::pin(fair_hot::run(&options, &urls)).await,
            Workload::RwHot => Box::pin(rw::hot(&options, &urls)).await,
            Workload::RwMix => Box::pin(rw::mix(&options, &urls)).await,
            Workload::Multi3 => Box::pin(multi3::run(&options, &urls)).await,
            Workload::Layer => Box::pin(layer::run(&options, &urls)).await,
            Workload::Stock => Box::pin(stock::run(&options, &urls)).await,
            Workload::Seed10k => Box::pin(seed::sequential(&options, &urls)).await,
            Workload::Seed1000 => Box::pin(seed::winner(&options, &urls)).await,
            Workload::Seed100 => Box::pin(seed::everybody(&options, &urls)).await,
        }
    });
    run.await.map_err(|error| format!("the workload failed: {error}"))?
}

/// Counts errors; the first one is shown.
#[derive(Debug, Default)]
struct Errors(u64);

impl Errors {
    fn add(&mut self, error: &str) {
        if self.0 == 0 {
            eprintln!("first error: {error}");
        }
        self.0 += 1;
    }
}

/// A wait without a limit that ends, or a wait of 10 s for a key that nobody else wants.
const GAVE_UP: &str = "the lock was not granted before the wait ended";
