//! `hot`: the tasks of one process on one key, waiting without limit.

use serde_json::json;

use super::crew::{Crew, Keys};
use crate::args::Options;
use crate::backend::{Backend, Limit};
use crate::meter::Meter;
use crate::report::Report;
use crate::stats::{jain, micros, nanos, round_ratio};

pub(super) async fn run(options: &Options, url: Option<&str>) -> Result<Report, String> {
    let backend = Backend::connect(options, url).await?;
    let mut meter = Meter::connect(options, url).await?;
    let lock = backend.lock("hot")?;
    let locks = vec![vec![lock]; options.tasks];
    let crew = Crew::run(options, &mut meter, locks, Limit::Forever, Keys::OneForAll).await?;
    Ok(Report {
        tasks: options.tasks,
        hold_us: u64::try_from(options.hold.as_micros()).unwrap_or(u64::MAX),
        grants: crew.grants(),
        errors: crew.errors,
        extra: vec![
            ("per_task_min", json!(crew.per_task.iter().min())),
            ("per_task_max", json!(crew.per_task.iter().max())),
            ("jain", json!(jain(&crew.per_task).map(round_ratio))),
            ("overlaps", json!(crew.overlaps)),
            ("pending_max_us", json!(micros(nanos(crew.pending)))),
            ("real_hold_p50_us", json!(crew.holds.percentile(50.0))),
        ],
        waits: crew.waits,
        cost: crew.cost,
    })
}
