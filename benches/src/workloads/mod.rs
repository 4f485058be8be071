//! The workloads, one to a file; [`common`] has what they share.

mod common;
mod crew;
mod curator;
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

use crate::args::{Lib, Options, Workload};
use crate::report::Report;
use crate::server::{Product, Urls};

/// Runs the chosen workload.
pub(crate) async fn run(options: &Options, urls: &Urls) -> Result<Report, String> {
    if let (Lib::Raw, Some((Product::ZooKeeper, url))) = (options.lib, urls.database()) {
        return curator::run(options, url).await;
    }
    // In a task, as a program's own work would be: `block_on` does not poll on a worker thread.
    let (options, urls) = (options.clone(), urls.clone());
    let run = tokio::spawn(async move {
        match options.workload {
            Workload::Latency => Box::pin(latency::run(&options, &urls)).await,
            Workload::Throughput => Box::pin(throughput::run(&options, &urls)).await,
            Workload::Hot => Box::pin(hot::run(&options, &urls)).await,
            Workload::Multi => Box::pin(multi::run(&options, &urls)).await,
            Workload::Pingpong => Box::pin(pingpong::run(&options, &urls)).await,
            Workload::Held | Workload::Readers => Box::pin(held::run(&options, &urls)).await,
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
