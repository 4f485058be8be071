//! All kinds of locks, and several keys at once, while processes are killed and paused at random:
//! the short version of `cargo xtask stress --kinds`, and broken locks, which the checkers must
//! notice.
#![allow(clippy::print_stdout, reason = "figures and seeds, shown with --nocapture and on failure")]

use std::time::Duration;

use lock_tests::dice::Dice;
use lock_tests::history::Check;
use lock_tests::stress::{Deed, Kinds, Lock, Plan, Verdict, run};

fn plan(time: Duration) -> Plan {
    let plan = Plan::new(env!("CARGO_BIN_EXE_stress").into(), Dice::draw_seed(), time);
    Plan { kinds: Kinds::All, ..plan }
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
    verdict(&Plan { lock, calm: second, patience: 10 * second, ..plan(second) })
}

#[test]
fn every_kind_excludes_and_forgets_nobody_while_processes_are_killed_and_stopped() {
    // A schedule with all kinds of faults, short as it is.
    let has = |plan: &Plan, deed: fn(&Deed) -> bool| plan.faults().iter().any(|fault| deed(&fault.deed));
    let plan = std::iter::repeat_with(|| plan(Duration::from_secs(10))).find(|plan| {
        has(plan, |deed| matches!(deed, Deed::Kill(_)))
            && has(plan, |deed| matches!(deed, Deed::Continue(_)))
            && has(plan, |deed| matches!(deed, Deed::Cut))
            && has(plan, |deed| matches!(deed, Deed::Freeze))
    });
    let plan = plan.expect("there are many");
    let verdict = verdict(&plan);
    assert!(verdict.is_clean(), "seed {}: {verdict}", plan.seed);
    let counts = verdict.counts;
    assert!(counts.killed > 0 && counts.stops > 0 && counts.shared > 0 && counts.turns > 0, "{verdict}");
}

#[test]
fn fair_locks_that_pass_the_queue_are_noticed() {
    let verdict = broken(Lock::Unfair);
    assert!(verdict.has(Check::Order) && !verdict.has(Check::Exclusion), "{verdict}");
}

#[test]
fn readers_that_do_not_look_for_writers_are_noticed() {
    let verdict = broken(Lock::BlindReader);
    assert!(verdict.has(Check::Exclusion) && !verdict.has(Check::Order), "{verdict}");
}
