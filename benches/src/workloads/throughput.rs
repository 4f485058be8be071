//! `throughput`: many tasks, no contention.

use super::crew::{Crew, Keys};
use crate::args::Options;
use crate::backend::{Backend, Limit, Lock};
use crate::meter::Meter;
use crate::report::Report;

pub(super) async fn run(options: &Options, url: Option<&str>) -> Result<Report, String> {
    // Each task has its own keys, and goes from one to the next without a hold.
    let options = Options { hold: std::time::Duration::ZERO, ..options.clone() };
    let backend = Backend::connect(&options, url).await?;
    let mut meter = Meter::connect(&options, url).await?;
    let keys = (options.keys / options.tasks).max(1);
    let own = |task: usize| (0..keys).map(|i| backend.lock(&format!("k:{task}:{i}"))).collect();
    let locks: Result<Vec<Vec<Lock>>, String> = (0..options.tasks).map(own).collect();
    let crew = Crew::run(&options, &mut meter, locks?, Limit::Default, Keys::OwnOnes).await?;
    Ok(Report {
        tasks: options.tasks,
        hold_us: 0,
        grants: crew.grants(),
        errors: crew.errors,
        waits: crew.waits,
        cost: crew.cost,
        extra: Vec::new(),
    })
}
