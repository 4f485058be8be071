//! `latency`: one task, no contention; a PING between the pairs is the round trip to compare with.

use std::time::{Duration, Instant};

use serde_json::json;

use super::common::{AFTER_ERROR, Errors, GAVE_UP, WARM_UP};
use crate::alloc;
use crate::args::Options;
use crate::backend::{Backend, Limit, Lock};
use crate::meter::Meter;
use crate::report::Report;
use crate::server::Urls;
use crate::stats::{Samples, Waits, round};

/// Number of pairs whose allocations are counted after the timed seconds, without PINGs and
/// bookkeeping.
const COUNTED_PAIRS: u32 = 1000;

#[derive(Debug)]
struct Tally {
    acquires: Samples,
    releases: Samples,
    pairs: Samples,
    pings: Samples,
    grants: u64,
    errors: Errors,
}

pub(super) async fn run(options: &Options, urls: &Urls) -> Result<Report, String> {
    let backend = Backend::connect(options, urls).await?;
    let mut meter = Meter::connect(options, urls).await?;
    let locks: Result<Vec<Lock>, String> =
        (0..options.keys).map(|i| backend.lock(&format!("k:{i}"))).collect();
    let mut locks = locks?;

    rounds(&mut locks, &mut meter, WARM_UP).await?;
    let start = meter.start().await?;
    let tally = rounds(&mut locks, &mut meter, options.secs).await?;
    let cost = meter.end(&start).await?;
    let (pairs, allocations) = alloc::count(bare_pairs(&mut locks)).await;
    let per_pair = (pairs > 0).then(|| round(allocations as f64 / f64::from(pairs)));

    Ok(Report {
        tasks: 1,
        hold_us: 0,
        grants: tally.grants,
        errors: tally.errors.0,
        waits: Waits::from(&tally.acquires),
        cost,
        extra: vec![
            ("ping_p50_us", json!(tally.pings.percentile(50.0))),
            ("release_p50_us", json!(tally.releases.percentile(50.0))),
            ("release_p99_us", json!(tally.releases.percentile(99.0))),
            ("pair_p50_us", json!(tally.pairs.percentile(50.0))),
            ("allocs_per_pair", json!(per_pair)),
        ],
    })
}

async fn rounds(locks: &mut [Lock], meter: &mut Meter, time: Duration) -> Result<Tally, String> {
    let mut tally = Tally {
        acquires: Samples::new(),
        releases: Samples::new(),
        pairs: Samples::new(),
        pings: Samples::new(),
        grants: 0,
        errors: Errors::default(),
    };
    let end = Instant::now() + time;
    'time: loop {
        for lock in &mut *locks {
            let asked = Instant::now();
            if asked >= end {
                break 'time;
            }
            match lock.acquire(Limit::Default).await {
                Ok(Some(held)) => {
                    let granted = Instant::now();
                    let released = lock.release(held).await;
                    let done = Instant::now();
                    tally.grants += 1;
                    tally.acquires.record(granted - asked);
                    match released {
                        Ok(()) => {
                            tally.releases.record(done - granted);
                            tally.pairs.record(done - asked);
                        }
                        Err(error) => tally.errors.add(&error),
                    }
                }
                Ok(None) => tally.errors.add(GAVE_UP),
                Err(error) => {
                    tally.errors.add(&error);
                    tokio::time::sleep(AFTER_ERROR).await;
                }
            }
            if let Some(trip) = meter.ping().await? {
                tally.pings.record(trip);
            }
        }
    }
    Ok(tally)
}

/// Locks and releases during the warm-up, and returns the number of pairs.
async fn bare_pairs(locks: &mut [Lock]) -> u32 {
    let end = Instant::now() + WARM_UP;
    let mut pairs = 0;
    loop {
        for lock in &mut *locks {
            if pairs == COUNTED_PAIRS || Instant::now() >= end {
                return pairs;
            }
            let Ok(Some(held)) = lock.acquire(Limit::Default).await else { return pairs };
            if lock.release(held).await.is_err() {
                return pairs;
            }
            pairs += 1;
        }
    }
}
