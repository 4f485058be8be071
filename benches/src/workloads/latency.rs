//! `latency`: one task, no contention; a PING between the pairs is the round trip to compare with.
//!
//! With `--open-secs` it goes on while a transaction of a database is open, which keeps dead
//! versions of every row. Pairs are measured again at the end of that time.

use std::time::{Duration, Instant};

use serde_json::json;

use super::common::{AFTER_ERROR, Errors, GAVE_UP, WARM_UP, warm_up};
use crate::alloc;
use crate::args::Options;
use crate::backend::{Backend, Limit, Lock};
use crate::meter::Meter;
use crate::report::Report;
use crate::server::Urls;
use crate::sql::Snapshot;
use crate::stats::{Samples, Waits, round, round_ratio};

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

    rounds(&mut locks, &mut meter, warm_up(options)).await?;
    let start = meter.start().await?;
    let tally = rounds(&mut locks, &mut meter, options.secs).await?;
    let cost = meter.end(&start).await?;
    let open = match options.open {
        Some(time) => Some(beside_a_snapshot(options, urls, time, &mut locks, &mut meter).await?),
        None => None,
    };
    let open_errors = open.as_ref().map_or(0, |open| open.errors.0);
    let p50 = |samples: &Samples| samples.percentile(50.0);
    let open_pair = open.as_ref().and_then(|open| p50(&open.pairs));
    let open_ping = open.as_ref().and_then(|open| p50(&open.pings));
    let open_ratio = open_pair.zip(p50(&tally.pairs)).map(|(open, alone)| round_ratio(open / alone));
    let (pairs, allocations) = alloc::count(bare_pairs(&mut locks)).await;
    let per_pair = (pairs > 0).then(|| round(allocations as f64 / f64::from(pairs)));

    Ok(Report {
        tasks: 1,
        hold_us: 0,
        grants: tally.grants,
        errors: tally.errors.0 + open_errors,
        waits: Waits::from(&tally.acquires),
        cost,
        extra: vec![
            ("ping_p50_us", json!(tally.pings.percentile(50.0))),
            ("release_p50_us", json!(tally.releases.percentile(50.0))),
            ("release_p99_us", json!(tally.releases.percentile(99.0))),
            ("pair_p50_us", json!(tally.pairs.percentile(50.0))),
            ("allocs_per_pair", json!(per_pair)),
            ("open_pair_p50_us", json!(open_pair)),
            ("open_ping_p50_us", json!(open_ping)),
            ("open_ratio", json!(open_ratio)),
        ],
    })
}

/// Goes on for `time` while a transaction is open, and measures the last seconds of it.
async fn beside_a_snapshot(
    options: &Options,
    urls: &Urls,
    time: Duration,
    locks: &mut [Lock],
    meter: &mut Meter,
) -> Result<Tally, String> {
    let snapshot = Snapshot::open(urls.database().ok_or("there is no database")?.1).await?;
    rounds(locks, meter, time.saturating_sub(options.secs)).await?;
    let tally = rounds(locks, meter, options.secs).await?;
    snapshot.close().await?;
    Ok(tally)
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
