//! Processes that are killed and paused at random while they compete for a few keys: the short
//! version of `cargo xtask stress`, and broken locks, which the checkers must notice.
#![allow(clippy::print_stdout, reason = "figures and seeds, shown with --nocapture and on failure")]

use std::cell::Cell;
use std::io::ErrorKind;
use std::time::Duration;

use lock_tests::Layout;
use lock_tests::dice::Dice;
use lock_tests::history::Check;
use lock_tests::stress::{Deed, Lock, Plan, Verdict, run};

fn plan(time: Duration) -> Plan {
    Plan::new(env!("CARGO_BIN_EXE_stress").into(), Dice::draw_seed(), time)
}

fn verdict(plan: &Plan) -> Verdict {
    println!("seed {}", plan.seed);
    let logs = tempfile::tempdir().unwrap();
    let verdict = run(plan, logs.path(), &|| false).unwrap();
    println!("{verdict}");
    verdict
}

/// Runs another lock for a few quiet seconds.
fn broken(lock: Lock) -> Verdict {
    let second = Duration::from_secs(1);
    verdict(&Plan { lock, calm: second, patience: second, ..plan(second) })
}

fn killed_and_stopped_processes_never_overlap_and_nobody_is_forgotten(layout: Layout) {
    // A schedule with all kinds of faults, short as it is.
    let has = |plan: &Plan, deed: fn(&Deed) -> bool| plan.faults().iter().any(|fault| deed(&fault.deed));
    let mut plans = std::iter::repeat_with(|| Plan { layout, ..plan(Duration::from_secs(7)) });
    let plan = plans.find(|plan| {
        has(plan, |deed| matches!(deed, Deed::Kill(_)))
            && has(plan, |deed| matches!(deed, Deed::Continue(_)))
            && has(plan, |deed| matches!(deed, Deed::Cut | Deed::Freeze))
    });
    let plan = plan.expect("there are many");
    let verdict = verdict(&plan);
    assert!(verdict.is_clean(), "seed {}: {verdict}", plan.seed);
    let counts = verdict.counts;
    assert!(
        counts.killed > 0 && counts.stops > 0 && counts.grants > counts.processes * plan.tasks,
        "{verdict}"
    );
}

lock_tests::on_every_layout! { blocking: killed_and_stopped_processes_never_overlap_and_nobody_is_forgotten }

#[test]
fn a_lock_that_frees_without_looking_whose_it_is_overlaps_and_is_taken_away() {
    let verdict = broken(Lock::NoOwnerCheck);
    assert!(verdict.has(Check::Exclusion) && verdict.has(Check::Ownership), "{verdict}");
}

#[test]
fn tokens_that_mean_nothing_are_noticed() {
    let verdict = broken(Lock::RandomToken);
    assert!(verdict.has(Check::Tokens) && !verdict.has(Check::Exclusion), "{verdict}");
}

#[test]
fn a_lock_that_is_never_given_back_is_noticed() {
    let verdict = broken(Lock::Leak);
    let key = |name: &str| {
        verdict.found(Check::Leftovers).any(|left| left.starts_with("key ") && left.contains(name))
    };
    assert!(key("stress:leaked:0."), "on the server: {verdict}");
    assert!(
        verdict.found(Check::Leftovers).any(|left| left.contains("has keys")),
        "in the process: {verdict}"
    );
}

#[test]
fn waiters_that_nobody_wakes_are_noticed() {
    let verdict = broken(Lock::ForgetWaiter);
    assert!(verdict.found(Check::Answers).any(|line| line.ends_with("got no answer")), "{verdict}");
}

#[test]
fn an_interrupted_run_ends_everything() {
    let plan = plan(Duration::from_secs(3600));
    let logs = tempfile::tempdir().unwrap();
    let calls = Cell::new(0);
    let interrupted = || calls.replace(calls.get() + 1) == 3;
    let error = run(&plan, logs.path(), &interrupted).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Interrupted);
    // Nobody writes any more.
    let size = || -> u64 {
        let files = std::fs::read_dir(logs.path()).unwrap();
        files.map(|file| file.unwrap().metadata().unwrap().len()).sum()
    };
    let before = size();
    std::thread::sleep(Duration::from_millis(200));
    assert!(before > 0);
    assert_eq!(size(), before);
}
