//! `multi3`: what a lock of three keys costs beside a lock of one.
//!
//! One task, no contention: a pair on one key, a pair on three keys of one slot, a PING, and on to
//! the next keys.

use std::time::{Duration, Instant};

use serde_json::json;

use super::common::{AFTER_ERROR, Errors, GAVE_UP, WARM_UP};
use crate::args::Options;
use crate::backend::{Backend, Limit, Lock};
use crate::meter::Meter;
use crate::report::Report;
use crate::server::Urls;
use crate::stats::{Samples, Waits, round_ratio};

#[derive(Debug)]
struct Tally {
    one: Pairs,
    three: Pairs,
    pings: Samples,
    errors: Errors,
}

#[derive(Debug)]
struct Pairs {
    acquires: Samples,
    pairs: Samples,
}

pub(super) async fn run(options: &Options, urls: &Urls) -> Result<Report, String> {
    let backend = Backend::connect(options, urls).await?;
    let mut meter = Meter::connect(options, urls).await?;
    let both = |i: usize| {
        let keys: Vec<String> = ["a", "b", "c"].iter().map(|name| format!("{{m:{i}}}:{name}")).collect();
        // A name of the same length, also with a hash tag, and different from the three.
        Ok((backend.lock(&format!("{{o:{i}}}:a"))?, backend.multi(&keys)?))
    };
    let mut locks = (0..options.keys).map(both).collect::<Result<Vec<_>, String>>()?;

    rounds(&mut locks, &mut meter, WARM_UP).await?;
    let start = meter.start().await?;
    let tally = rounds(&mut locks, &mut meter, options.secs).await?;
    let cost = meter.end(&start).await?;

    let (one, three) = (tally.one.pairs.percentile(50.0), tally.three.pairs.percentile(50.0));
    let ratio = one.zip(three).filter(|(one, _)| *one > 0.0).map(|(one, three)| round_ratio(three / one));
    Ok(Report {
        tasks: 1,
        hold_us: 0,
        grants: tally.one.acquires.count() + tally.three.acquires.count(),
        errors: tally.errors.0,
        waits: Waits::from(&tally.three.acquires),
        cost,
        extra: vec![
            ("ping_p50_us", json!(tally.pings.percentile(50.0))),
            ("one_pair_p50_us", json!(one)),
            ("three_pair_p50_us", json!(three)),
            ("ratio", json!(ratio)),
        ],
    })
}

async fn rounds(locks: &mut [(Lock, Lock)], meter: &mut Meter, time: Duration) -> Result<Tally, String> {
    let mut tally =
        Tally { one: Pairs::new(), three: Pairs::new(), pings: Samples::new(), errors: Errors::default() };
    let end = Instant::now() + time;
    loop {
        for (one, three) in &mut *locks {
            if Instant::now() >= end {
                return Ok(tally);
            }
            tally.one.pair(one, &mut tally.errors).await;
            tally.three.pair(three, &mut tally.errors).await;
            if let Some(trip) = meter.ping().await? {
                tally.pings.record(trip);
            }
        }
    }
}

impl Pairs {
    fn new() -> Self {
        Self { acquires: Samples::new(), pairs: Samples::new() }
    }

    async fn pair(&mut self, lock: &mut Lock, errors: &mut Errors) {
        let asked = Instant::now();
        let error = match lock.acquire(Limit::Default).await {
            Ok(Some(held)) => {
                self.acquires.record(asked.elapsed());
                match lock.release(held).await {
                    Ok(()) => return self.pairs.record(asked.elapsed()),
                    Err(error) => error,
                }
            }
            Ok(None) => GAVE_UP.to_owned(),
            Err(error) => error,
        };
        errors.add(&error);
        tokio::time::sleep(AFTER_ERROR).await;
    }
}
