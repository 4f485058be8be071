//! The short form of `cargo xtask chaos`: every fault once on one server in each layout, and broken
//! locks, which the checkers must notice.
#![cfg(target_os = "linux")]
#![allow(clippy::print_stdout, reason = "figures and seeds, shown with --nocapture and on failure")]

use std::cell::Cell;
use std::io::ErrorKind;
use std::time::Duration;

use lock_tests::Layout;
use lock_tests::chaos::{Broken, Fault, Outcome, Plan, Topology, run};
use lock_tests::dice::Dice;
use lock_tests::history::Check;

fn plan() -> Plan {
    let plan = Plan::new(env!("CARGO_BIN_EXE_chaos").into(), Topology::Single, Dice::draw_seed());
    Plan { settle: Duration::from_millis(500), calm: Duration::from_secs(2), ..plan }
}

fn outcome(plan: &Plan) -> Outcome {
    println!("seed {}", plan.seed);
    let logs = tempfile::tempdir().unwrap();
    let outcome = run(plan, logs.path(), &|| false, &|line| println!("{line}")).unwrap();
    println!("{outcome}");
    if !outcome.is_clean() && plan.broken == Broken::Nothing {
        println!("the logs are in {}", logs.keep().display());
    }
    outcome
}

/// Runs each of these faults once, and asserts that nothing is found.
fn holds_through(layout: Layout, faults: impl IntoIterator<Item = Fault>) {
    let plan = Plan { layout, only: faults.into_iter().collect(), ..plan() };
    let outcome = outcome(&plan);
    assert!(outcome.is_clean(), "seed {}: {outcome}", plan.seed);
    for row in &outcome.rows {
        assert_eq!(row.missed, 0, "seed {}: {row:?}", plan.seed);
    }
    assert_eq!(outcome.rows.len(), plan.only.len());
}

/// Runs every fault once, in parallel parts with their own servers.
fn holds_through_every_fault(layout: Layout) {
    let faults: Vec<Fault> = Fault::at(Topology::Single).collect();
    std::thread::scope(|scope| {
        for part in faults.chunks(faults.len().div_ceil(3)) {
            scope.spawn(|| holds_through(layout, part.iter().copied()));
        }
    });
}

#[test]
fn promises_hold_in_the_plain_layout_through_every_fault() {
    holds_through_every_fault(Layout::Plain);
}

#[test]
fn promises_hold_through_every_fault_and_a_random_sequence_of_them() {
    std::thread::scope(|scope| {
        scope.spawn(|| holds_through_every_fault(Layout::Hash));
        scope.spawn(|| {
            let plan = Plan { time: Some(Duration::from_secs(20)), ..plan() };
            let outcome = outcome(&plan);
            assert!(outcome.is_clean(), "seed {}: {outcome}", plan.seed);
        });
    });
}

/// Runs a broken lock for a few quiet seconds, and returns what the checkers found.
fn found(broken: Broken, only: Vec<Fault>) -> Vec<Check> {
    found_in(Layout::Hash, broken, only)
}

fn found_in(layout: Layout, broken: Broken, only: Vec<Fault>) -> Vec<Check> {
    let second = Duration::from_secs(1);
    let time = only.is_empty().then_some(Duration::ZERO);
    let calm = if broken == Broken::DeafWaiter { 12 * second } else { 3 * second };
    let outcome = outcome(&Plan { layout, broken, only, time, calm, slack: second, ..plan() });
    outcome.violations.iter().map(|violation| violation.check).collect()
}

#[test]
fn a_lock_that_is_granted_twice_is_noticed() {
    let found = found(Broken::DoubleGrant, Vec::new());
    assert!(found.contains(&Check::Exclusion), "{found:?}");
}

#[test]
fn tokens_that_come_again_are_noticed() {
    let found = found(Broken::ReusedToken, Vec::new());
    assert!(found.contains(&Check::Tokens) && !found.contains(&Check::Exclusion), "{found:?}");
}

/// Where a deleted key excuses a token, it excuses no others.
#[test]
fn tokens_that_come_again_are_noticed_in_the_plain_layout() {
    let found = found_in(Layout::Plain, Broken::ReusedToken, vec![Fault::DeletedKey]);
    assert!(found.contains(&Check::Tokens) && !found.contains(&Check::Exclusion), "{found:?}");
}

#[test]
fn a_lock_that_is_renewed_for_nobody_is_noticed() {
    let found = found(Broken::Leak, Vec::new());
    assert!(found.contains(&Check::Renewals) && found.contains(&Check::Leftovers), "{found:?}");
}

#[test]
fn waiters_that_do_not_hear_are_noticed() {
    let found = found(Broken::DeafWaiter, Vec::new());
    assert!(found.contains(&Check::Waiting), "{found:?}");
}

#[test]
fn holders_who_are_not_told_that_they_lost_are_noticed() {
    let found = found(Broken::NoLostSignal, vec![Fault::Partition]);
    assert!(found.contains(&Check::Validity), "{found:?}");
}

#[test]
fn requests_that_are_forgotten_are_noticed() {
    let found = found(Broken::ForgottenRequest, Vec::new());
    assert!(found.contains(&Check::Errors), "{found:?}");
}

#[test]
fn an_interrupted_run_ends_everything() {
    let logs = tempfile::tempdir().unwrap();
    let calls = Cell::new(0);
    let interrupted = || calls.replace(calls.get() + 1) == 3;
    let error = run(&plan(), logs.path(), &interrupted, &|_| {}).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Interrupted);
    // Nobody writes any more.
    let size = || -> u64 {
        let files = std::fs::read_dir(logs.path()).unwrap();
        files.map(|file| file.unwrap().metadata().unwrap().len()).sum()
    };
    let before = size();
    std::thread::sleep(Duration::from_millis(200));
    assert_eq!(size(), before);
}
