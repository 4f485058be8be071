//! `rw-hot` and `rw-mix`: readers and writers of one key in one process.
//!
//! In `rw-hot` all tasks read, and one more task writes every 10 ms. It shows the throughput of
//! readers while a writer does not starve. In `rw-mix` every tenth lock of a task is a write lock;
//! the tasks start at different places, so they do not all write at once.

use std::time::Duration;

use lock_runtime::Kind;
use serde_json::json;

use super::crew::{Crew, Job, Work};
use super::hot;
use crate::args::Options;
use crate::backend::{Backend, Limit, Lock};
use crate::inside::Inside;
use crate::meter::Meter;
use crate::report::Report;
use crate::server::Urls;
use crate::stats::{Waits, micros, nanos, round};

const KEY: &str = "rw";
/// Pause between the end of a write and the next request.
const REST: Duration = Duration::from_millis(10);
/// In `rw-mix`, one lock in this many is a write lock.
const MIX: usize = 10;

pub(super) async fn hot(options: &Options, urls: &Urls) -> Result<Report, String> {
    let backend = Backend::connect(options, urls).await?;
    let mut locks = vec![vec![backend.lock_as(Kind::Read, KEY)?]; options.tasks];
    locks.push(vec![backend.lock_as(Kind::Write, KEY)?]);
    run(options, urls, locks, REST).await
}

pub(super) async fn mix(options: &Options, urls: &Urls) -> Result<Report, String> {
    let backend = Backend::connect(options, urls).await?;
    let (read, write) = (backend.lock_as(Kind::Read, KEY)?, backend.lock_as(Kind::Write, KEY)?);
    run(options, urls, mixed(options.tasks, &read, &write), Duration::ZERO).await
}

/// Returns the locks that each task cycles through.
fn mixed(tasks: usize, read: &Lock, write: &Lock) -> Vec<Vec<Lock>> {
    let choose = |place| if place == 0 { write.clone() } else { read.clone() };
    (0..tasks).map(|task| (0..MIX).map(|turn| choose((task + turn) % MIX)).collect()).collect()
}

async fn run(
    options: &Options,
    urls: &Urls,
    locks: Vec<Vec<Lock>>,
    rest: Duration,
) -> Result<Report, String> {
    let inside = Inside::local();
    let mut meter = Meter::connect(options, urls).await?;
    let tasks = locks.len();
    let job = Job { limit: Limit::Forever, hold: options.hold, inside: Some(inside), writes: Some(rest) };
    let work = Crew::start(job, locks).run(options, &mut meter).await?;
    Ok(report(options, tasks, &work, inside))
}

fn report(options: &Options, tasks: usize, work: &Work, inside: &Inside) -> Report {
    let writes = work.writes.count();
    let per_second = |count: u64| round(count as f64 / work.cost.time.as_secs_f64().max(f64::EPSILON));
    Report {
        tasks,
        hold_us: hot::hold_us(options),
        grants: work.grants(),
        errors: work.errors,
        waits: Waits::from(&work.waits),
        extra: vec![
            ("reads_per_s", json!(per_second(work.grants().saturating_sub(writes)))),
            ("writes_per_s", json!(per_second(writes))),
            ("writer_wait_p50_us", json!(work.writes.percentile(50.0))),
            ("writer_wait_p99_us", json!(work.writes.percentile(99.0))),
            ("overlaps", json!(inside.overlaps())),
            ("pending_max_us", json!(micros(nanos(work.pending)))),
        ],
        cost: work.cost,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::args::{Task, parse};

    async fn line(backend: &Backend, hold_us: &str) -> serde_json::Value {
        let args = ["--workload", "rw-mix", "--lib", "tokio", "--secs", "0.1", "--hold-us", hold_us];
        let args = args.map(str::to_owned);
        let Ok(Task::Run(options)) = parse(&args) else { panic!("the flags are good") };
        let read = backend.lock_as(Kind::Read, KEY).unwrap();
        let write = backend.lock_as(Kind::Write, KEY).unwrap();
        let report = run(&options, &Urls::default(), mixed(20, &read, &write), Duration::ZERO).await.unwrap();
        serde_json::from_str(&report.line(&options)).unwrap()
    }

    #[tokio::test]
    async fn readers_together_are_no_overlap() {
        let line = line(&Backend::Tokio(Arc::default()), "0").await;
        assert_eq!((&line["overlaps"], &line["errors"]), (&json!(0), &json!(0)), "{line}");
    }

    #[test]
    fn every_tenth_lock_is_for_writing_and_at_every_turn_most_tasks_read() {
        let backend = Backend::Tokio(Arc::default());
        let [read, write] = [Kind::Read, Kind::Write].map(|kind| backend.lock_as(kind, KEY).unwrap());
        let tasks = mixed(20, &read, &write);
        assert!(
            tasks
                .iter()
                .all(|turns| turns.iter().filter(|lock| !lock.is_shared()).count() * MIX == turns.len())
        );
        for turn in 0..MIX {
            assert_eq!(tasks.iter().filter(|turns| !turns[turn].is_shared()).count(), 2, "{turn}");
        }
    }

    #[tokio::test]
    async fn a_writer_that_is_not_alone_is_found_out() {
        let line = line(&Backend::Broken(Duration::ZERO), "1000").await;
        assert!(line["overlaps"].as_u64().unwrap() > 0, "{line}");
    }
}
