//! The real engine of several processes on a simulated server: everything follows from a seed.
//!
//! `cargo xtask deep` plays thousands of seeds. `LOCK_SIM_SEEDS=5000` plays that many on all cores;
//! `LOCK_SIM_SEED=42` plays only that one, and writes its logs to standard output.
#![allow(clippy::print_stdout, reason = "figures and seeds, shown with --nocapture and on failure")]

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use lock_tests::history::Check;
use lock_tests::simulation::{Faults, Lie, Plan};

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().expect("a number"))
}

/// Plays many seeds, or the one that was asked for.
fn play(plan: fn(u64) -> Plan, seeds: u64) {
    let one = number("LOCK_SIM_SEED");
    let (from, to) = match one {
        Some(seed) => (seed, seed + 1),
        None => (0, number("LOCK_SIM_SEEDS").unwrap_or(seeds)),
    };
    // Tests already run in parallel; a long run of one does not.
    let threads = match number("LOCK_SIM_SEEDS") {
        Some(_) => std::thread::available_parallelism().map_or(1, usize::from),
        None => 1,
    };
    let next = AtomicU64::new(from);
    let failed = Mutex::new(Vec::new());
    let work = || {
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= to {
                return;
            }
            let run = plan(seed).run();
            if one.is_some() {
                for (process, log) in &run.logs {
                    log.lines().for_each(|line| println!("{process}: {line}"));
                }
            }
            if !run.violations.is_empty() {
                println!("seed {seed}:");
                run.violations.iter().take(5).for_each(|violation| println!("  {violation}"));
                failed.lock().unwrap().push(seed);
            }
        }
    };
    std::thread::scope(|scope| {
        (1..threads).for_each(|_| drop(scope.spawn(work)));
        work();
    });
    let failed = failed.into_inner().unwrap();
    assert!(failed.is_empty(), "LOCK_SIM_SEED={failed:?}");
}

#[test]
fn nothing_goes_wrong_without_faults() {
    play(|seed| Plan::new(seed, Faults::None), 6);
}

#[test]
fn nothing_goes_wrong_while_processes_stop_and_die() {
    play(|seed| Plan::new(seed, Faults::Processes), 12);
}

#[test]
fn nothing_goes_wrong_while_faults_lose_no_keys() {
    play(|seed| Plan::new(seed, Faults::Safe), 16);
}

#[test]
fn faults_that_lose_keys_cost_one_validity() {
    play(|seed| Plan::new(seed, Faults::Losing), 16);
}

#[test]
fn a_quorum_of_three_servers_stands_the_same_faults() {
    play(|seed| Plan::quorum(seed, Faults::Safe), 8);
}

#[test]
fn a_quorum_believes_no_server_that_came_back_empty() {
    play(|seed| Plan::quorum(seed, Faults::OneMember), 8);
}

/// Asserts that a checker notices a lie in one of a few seeds.
#[track_caller]
fn is_noticed(lie: Lie, faults: Faults, by: Check) {
    let mut others = BTreeSet::new();
    for seed in 0..20 {
        let run = Plan { lie: Some(lie), ..Plan::new(seed, faults) }.run();
        if run.violations.iter().any(|violation| violation.check == by) {
            return;
        }
        others.extend(run.violations.into_iter().map(|violation| violation.check));
    }
    panic!("{lie:?} was not noticed by {by:?}, but by {others:?}");
}

#[test]
fn every_checker_notices_its_lies() {
    is_noticed(Lie::GrantsTwice, Faults::None, Check::Exclusion);
    is_noticed(Lie::OnlySaysRenewed, Faults::None, Check::Exclusion);
    is_noticed(Lie::ReusesTokens, Faults::None, Check::Tokens);
    is_noticed(Lie::ForgetsTokens, Faults::Safe, Check::Fencing);
    is_noticed(Lie::ForgetsWaiters, Faults::None, Check::Waiting);
    is_noticed(Lie::NeverExpires, Faults::Processes, Check::Crashes);
    is_noticed(Lie::NeverExpires, Faults::Safe, Check::Crashes);
    is_noticed(Lie::NeverExpires, Faults::Processes, Check::Leftovers);
    is_noticed(Lie::RenewsAll, Faults::None, Check::Renewals);
    is_noticed(Lie::TellsNobody, Faults::None, Check::Validity);
    is_noticed(Lie::ReleasesForeign, Faults::None, Check::Ownership);
    is_noticed(Lie::WrongError, Faults::Safe, Check::Errors);
    is_noticed(Lie::JumpsQueues, Faults::None, Check::Order);
    is_noticed(Lie::StarvesOne, Faults::None, Check::Shares);
    is_noticed(Lie::NoPauses, Faults::None, Check::Load);
}

#[test]
fn a_seed_plays_the_same_run_again() {
    for seed in [1, 2, 3] {
        let (first, second) = (Plan::new(seed, Faults::Losing).run(), Plan::new(seed, Faults::Losing).run());
        assert_eq!(first.logs, second.logs);
    }
    assert_ne!(Plan::new(1, Faults::Safe).run().logs, Plan::new(2, Faults::Safe).run().logs);
}
