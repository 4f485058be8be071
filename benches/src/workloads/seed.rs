//! `seed10k`, `seed1000`, `seed100`: a fixed number of requests, timed as a whole.

use std::time::{Duration, Instant};

use serde_json::json;

use super::common::{AFTER_ERROR, Errors, GAVE_UP, WARM_UP};
use crate::args::Options;
use crate::backend::{Backend, Held, Limit, Lock};
use crate::meter::{Cost, Meter};
use crate::report::Report;
use crate::server::Urls;
use crate::stats::{Samples, Waits, micros, nanos};

const SEQUENTIAL: u64 = 10_000;

/// Runs `seed10k`: locks and releases one key in sequence.
pub(super) async fn sequential(options: &Options, urls: &Urls) -> Result<Report, String> {
    let (mut lock, mut meter) = prepare(options, urls).await?;
    let (mut waits, mut errors, mut grants) = (Samples::new(), Errors::default(), 0);
    let start = meter.start().await?;
    for _ in 0..SEQUENTIAL {
        let asked = Instant::now();
        match lock.acquire(Limit::Default).await {
            Ok(Some(held)) => {
                waits.record(asked.elapsed());
                grants += 1;
                if let Err(error) = lock.release(held).await {
                    errors.add(&error);
                }
            }
            Ok(None) => errors.add(GAVE_UP),
            Err(error) => {
                errors.add(&error);
                tokio::time::sleep(AFTER_ERROR).await;
            }
        }
    }
    let cost = meter.end(&start).await?;
    let extra = vec![("total_ms", json!(millis(cost.time)))];
    Ok(Report { tasks: 1, hold_us: 0, grants, errors: errors.0, waits: Waits::from(&waits), cost, extra })
}

/// Runs `seed1000`: the winner holds until everybody else has given up.
pub(super) async fn winner(options: &Options, urls: &Urls) -> Result<Report, String> {
    rush(options, urls, Rush { tasks: 1000, limit: Duration::from_millis(10), winners: Winners::Hold }).await
}

/// Runs `seed100`: everybody gets the lock in turn.
pub(super) async fn everybody(options: &Options, urls: &Urls) -> Result<Report, String> {
    rush(options, urls, Rush { tasks: 100, limit: Duration::from_secs(10), winners: Winners::Release }).await
}

/// Tasks that ask for one key at once.
#[derive(Clone, Copy, Debug)]
struct Rush {
    tasks: usize,
    limit: Duration,
    winners: Winners,
}

/// A task's use of the lock that it was granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Winners {
    /// Keeps it to the end of the run.
    Hold,
    /// Releases it at once.
    Release,
}

/// The outcome of one task.
enum Fate {
    /// After this wait.
    Granted(Duration, Option<Held>),
    GaveUp,
}

async fn rush(options: &Options, urls: &Urls, rush: Rush) -> Result<Report, String> {
    let (mut lock, mut meter) = prepare(options, urls).await?;
    let (mut waits, mut errors, mut acquired) = (Samples::new(), Errors::default(), 0);
    let mut holders = Vec::new();
    let start = meter.start().await?;
    let tasks: Vec<_> = (0..rush.tasks).map(|_| tokio::spawn(contend(lock.clone(), rush))).collect();
    for task in tasks {
        match task.await.map_err(|error| format!("a task failed: {error}"))? {
            Ok(Fate::Granted(wait, held)) => {
                acquired += 1;
                waits.record(wait);
                holders.extend(held);
            }
            Ok(Fate::GaveUp) => {}
            Err(error) => errors.add(&error),
        }
    }
    let cost: Cost = meter.end(&start).await?;
    for held in holders {
        if let Err(error) = lock.release(held).await {
            errors.add(&error);
        }
    }
    let extra = vec![("acquired", json!(acquired)), ("total_ms", json!(millis(cost.time)))];
    let (grants, errors, waits) = (acquired, errors.0, Waits::from(&waits));
    Ok(Report { tasks: rush.tasks, hold_us: 0, grants, errors, waits, cost, extra })
}

async fn contend(mut lock: Lock, rush: Rush) -> Result<Fate, String> {
    let asked = Instant::now();
    let Some(held) = lock.acquire(Limit::For(rush.limit)).await? else { return Ok(Fate::GaveUp) };
    let wait = asked.elapsed();
    match rush.winners {
        Winners::Hold => Ok(Fate::Granted(wait, Some(held))),
        Winners::Release => {
            lock.release(held).await?;
            Ok(Fate::Granted(wait, None))
        }
    }
}

/// Connects, warms up with another lock, and returns the one that is measured.
async fn prepare(options: &Options, urls: &Urls) -> Result<(Lock, Meter), String> {
    let backend = Backend::connect(options, urls).await?;
    let meter = Meter::connect(options, urls).await?;
    let mut warm = backend.lock("seed:warm-up")?;
    let end = Instant::now() + WARM_UP;
    while Instant::now() < end {
        let held = warm.acquire(Limit::Default).await?.ok_or(GAVE_UP)?;
        warm.release(held).await?;
    }
    Ok((backend.lock("seed")?, meter))
}

fn millis(duration: Duration) -> f64 {
    micros(nanos(duration / 1000))
}
