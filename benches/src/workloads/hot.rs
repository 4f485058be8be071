//! `hot`: the tasks of one process on one key, waiting without limit.

use serde_json::{Value, json};

use super::crew::{Crew, Job, Work};
use crate::args::Options;
use crate::backend::{Backend, Limit};
use crate::inside::Inside;
use crate::meter::Meter;
use crate::report::Report;
use crate::server::Urls;
use crate::stats::{Waits, jain, micros, nanos, round_ratio};

/// The one key of `hot`, `multi` and `fair-hot`.
const KEY: &str = "hot";

pub(super) async fn run(options: &Options, urls: &Urls) -> Result<Report, String> {
    let inside = Inside::local();
    let mut meter = Meter::connect(options, urls).await?;
    let backend = Backend::connect(options, urls).await?;
    let work = start(options, &backend, inside)?.run(options, &mut meter).await?;
    Ok(report(options, &work, inside))
}

/// Starts the tasks of one process.
pub(super) fn start(options: &Options, backend: &Backend, inside: &'static Inside) -> Result<Crew, String> {
    let job = Job { limit: Limit::Forever, hold: options.hold, inside: Some(inside), writes: None };
    let lock = backend.lock_as(options.workload.kind(), KEY)?;
    Ok(Crew::start(job, vec![vec![lock]; options.tasks]))
}

pub(super) fn report(options: &Options, work: &Work, inside: &Inside) -> Report {
    Report {
        tasks: options.tasks,
        hold_us: hold_us(options),
        grants: work.grants(),
        errors: work.errors,
        waits: Waits::from(&work.waits),
        extra: vec![
            ("per_task_min", json!(work.per_task.iter().min())),
            ("per_task_max", json!(work.per_task.iter().max())),
            ("jain", fairness(&work.per_task)),
            ("overlaps", json!(inside.overlaps())),
            ("pending_max_us", json!(micros(nanos(work.pending)))),
            ("real_hold_p50_us", json!(work.holds.percentile(50.0))),
        ],
        cost: work.cost,
    }
}

pub(super) fn hold_us(options: &Options) -> u64 {
    u64::try_from(options.hold.as_micros()).unwrap_or(u64::MAX)
}

pub(super) fn fairness(shares: &[u64]) -> Value {
    json!(jain(shares).map(round_ratio))
}
