//! The short form of `cargo xtask chaos`: every fault once on one server in each layout and on
//! SQLite, and broken locks, which the checkers must notice. PostgreSQL has its own test program.
#![cfg(target_os = "linux")]

use std::cell::Cell;
use std::io::ErrorKind;
use std::time::Duration;

use lock_tests::Layout;
use lock_tests::chaos::{Broken, Fault, Plan, Topology, run};
use lock_tests::history::Check;

fn on(topology: Topology) -> Plan {
    Plan::short(env!("CARGO_BIN_EXE_chaos"), topology)
}

fn plan() -> Plan {
    on(Topology::Single)
}

#[test]
fn promises_hold_in_the_plain_layout_through_every_fault() {
    Plan { layout: Layout::Plain, ..plan() }.holds_through_every_fault();
}

#[test]
fn promises_hold_in_sqlite_through_every_fault() {
    on(Topology::Sqlite).holds_through_every_fault();
}

#[test]
fn promises_hold_through_every_fault_and_a_random_sequence_of_them() {
    std::thread::scope(|scope| {
        scope.spawn(|| plan().holds_through_every_fault());
        scope.spawn(|| {
            let plan = Plan { time: Some(Duration::from_secs(20)), ..plan() };
            let outcome = plan.outcome();
            assert!(outcome.is_clean(), "seed {}: {outcome}", plan.seed);
        });
    });
}

/// Returns what the checkers find in a run of a broken lock.
fn found(broken: Broken, only: Vec<Fault>) -> Vec<Check> {
    plan().found(broken, only)
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
    let plan = Plan { layout: Layout::Plain, ..plan() };
    // The fault may let two in, which is excused only if the second one has a larger token.
    let found = plan.found(Broken::ReusedToken, vec![Fault::DeletedKey]);
    assert!(found.contains(&Check::Tokens), "{found:?}");
}

#[test]
fn a_lock_that_is_renewed_for_nobody_is_noticed() {
    let found = found(Broken::Leak, Vec::new());
    assert!(found.contains(&Check::Renewals) && found.contains(&Check::Leftovers), "{found:?}");
}

#[test]
fn a_lock_that_is_renewed_for_nobody_is_noticed_in_sqlite() {
    // On a busy disk a shorter lease might be lost.
    let plan = Plan { lease: Duration::from_secs(6), ..on(Topology::Sqlite) };
    let found = plan.found(Broken::Leak, Vec::new());
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
