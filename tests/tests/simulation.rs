//! The real engine of several processes on a simulated server: everything follows from a seed.
//!
//! `LOCK_SIM_SEEDS=5000` plays more seeds, `LOCK_SIM_SEED=42` one of them, and writes its logs to the standard output.
#![allow(clippy::print_stdout, reason = "figures and seeds, shown with --nocapture and on failure")]

use lock_tests::simulation::{Faults, Plan};

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().expect("a number"))
}

/// Plays many seeds, on as many threads as there are cores.
fn play(faults: Faults, seeds: u64) {
    let one = number("LOCK_SIM_SEED");
    let (from, to) = match one {
        Some(seed) => (seed, seed + 1),
        None => (0, number("LOCK_SIM_SEEDS").unwrap_or(seeds)),
    };
    let mut failed = Vec::new();
    for seed in from..to {
        let run = Plan::new(seed, faults).run();
        if one.is_some() {
            for (process, log) in &run.logs {
                log.lines().for_each(|line| println!("{process}: {line}"));
            }
        }
        if !run.violations.is_empty() {
            println!("seed {seed}:");
            run.violations.iter().take(5).for_each(|violation| println!("  {violation}"));
            failed.push(seed);
        }
    }
    assert!(failed.is_empty(), "LOCK_SIM_SEED={failed:?} ({faults:?})");
}

#[test]
fn nothing_goes_wrong_without_faults() {
    play(Faults::None, 20);
}

#[test]
fn nothing_goes_wrong_while_faults_lose_no_keys() {
    play(Faults::Safe, 100);
}

#[test]
fn faults_that_lose_keys_cost_one_validity() {
    play(Faults::Losing, 100);
}

#[test]
fn a_seed_plays_the_same_run_again() {
    for seed in [1, 2, 3] {
        let (first, second) = (Plan::new(seed, Faults::Losing).run(), Plan::new(seed, Faults::Losing).run());
        assert_eq!(first.logs, second.logs);
    }
    assert_ne!(Plan::new(1, Faults::Safe).run().logs, Plan::new(2, Faults::Safe).run().logs);
}
