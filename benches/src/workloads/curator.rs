//! The mutex of Apache Curator, which measures itself in a process of its own.

use std::time::Duration;

use lock_tests::callers::Callers;
use lock_tests::curator;
use serde_json::json;

use super::common::warm_up;
use super::hot::fairness;
use super::pingpong::{HOLD, STALL};
use crate::args::{Options, Workload};
use crate::meter::Cost;
use crate::report::Report;
use crate::stats::{Samples, Waits};
use crate::zookeeper::servers_of;

pub(super) async fn run(options: &Options, url: &str) -> Result<Report, String> {
    let (options, servers) = (options.clone(), servers_of(url)?.to_owned());
    let running = tokio::task::spawn_blocking(move || {
        let mut curator = curator::start(&servers, options.lease);
        // The virtual machine compiles what runs often.
        ask(&mut curator, &options, warm_up(&options))?;
        let numbers = ask(&mut curator, &options, options.secs)?;
        Ok(report(&options, &numbers))
    });
    running.await.map_err(|error| format!("Curator failed: {error}"))?
}

/// Returns the numbers of the answer.
fn ask(curator: &mut Callers, options: &Options, time: Duration) -> Result<Vec<u64>, String> {
    let (command, number) = match options.workload {
        Workload::Latency => ("pairs", options.keys),
        Workload::Pingpong => ("hand-offs", usize::try_from(HOLD.as_millis()).unwrap_or(usize::MAX)),
        _ => ("grants", options.tasks),
    };
    let answer = curator.ask(&format!("a {command} /curator/{command} {number} {}", time.as_millis()));
    let mut words = answer.split(' ');
    if !["took", "granted"].contains(&words.next().unwrap_or_default()) {
        return Err(answer);
    }
    words.map(|word| word.parse().map_err(|_| format!("Curator answered {word:?}"))).collect()
}

fn report(options: &Options, numbers: &[u64]) -> Report {
    let (mut waits, mut releases, mut pairs) = (Samples::new(), Samples::new(), Samples::new());
    let (mut extra, mut hold_us) = (Vec::new(), 0);
    let (tasks, grants) = match options.workload {
        Workload::Latency => {
            for (acquire, release) in numbers.chunks_exact(2).map(|pair| (pair[0], pair[1])) {
                waits.record(Duration::from_nanos(acquire));
                releases.record(Duration::from_nanos(release));
                pairs.record(Duration::from_nanos(acquire + release));
            }
            extra.extend([
                ("release_p50_us", json!(releases.percentile(50.0))),
                ("release_p99_us", json!(releases.percentile(99.0))),
                ("pair_p50_us", json!(pairs.percentile(50.0))),
            ]);
            (1, pairs.count())
        }
        Workload::Pingpong => {
            numbers.iter().for_each(|&handoff| waits.record(Duration::from_nanos(handoff)));
            hold_us = u64::try_from(HOLD.as_micros()).unwrap_or(u64::MAX);
            let stalls = numbers.iter().filter(|&&handoff| Duration::from_nanos(handoff) > STALL);
            extra.push(("stalls", json!(stalls.count())));
            (2, 2 * waits.count())
        }
        _ => {
            extra.push(("jain", fairness(numbers)));
            (options.tasks, numbers.iter().sum())
        }
    };
    let cost = Cost { time: options.secs, ..Cost::default() };
    // Curator ends with the first error.
    Report { tasks, hold_us, grants, errors: 0, waits: Waits::from(&waits), cost, extra }
}
