//! `throughput`: many tasks, no contention.

use std::time::Duration;

use super::crew::{Crew, Job};
use crate::args::Options;
use crate::backend::{Backend, Limit, Lock};
use crate::meter::Meter;
use crate::report::Report;
use crate::server::Urls;
use crate::stats::Waits;

pub(super) async fn run(options: &Options, urls: &Urls) -> Result<Report, String> {
    let backend = Backend::connect(options, urls).await?;
    let mut meter = Meter::connect(options, urls).await?;
    let keys = (options.keys / options.tasks).max(1);
    let own = |task: usize| (0..keys).map(|i| backend.lock(&format!("k:{task}:{i}"))).collect();
    let locks: Result<Vec<Vec<Lock>>, String> = (0..options.tasks).map(own).collect();
    // Each task has its own keys, and goes from one to the next without holding.
    let job = Job { limit: Limit::Default, hold: Duration::ZERO, inside: None, writes: None };
    let work = Crew::start(job, locks?).run(options, &mut meter).await?;
    Ok(Report {
        tasks: options.tasks,
        hold_us: 0,
        grants: work.grants(),
        errors: work.errors,
        waits: Waits::from(&work.waits),
        cost: work.cost,
        extra: Vec::new(),
    })
}
