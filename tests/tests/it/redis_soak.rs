//! Memory stays flat while locks come and go: the short version of `cargo xtask stress --soak`, and
//! a leak, which the checker must notice.
#![allow(clippy::print_stdout, reason = "figures and seeds, shown with --nocapture and on failure")]

use std::time::Duration;

use lock_tests::dice::Dice;
use lock_tests::soak::{Outcome, Plan, Servers, run};

fn soak(servers: Servers, time: Duration, leak: usize) -> Outcome {
    let plan =
        Plan { program: env!("CARGO_BIN_EXE_soak").into(), seed: Dice::draw_seed(), time, leak, servers };
    println!("seed {}", plan.seed);
    let outcome = run(&plan, &|| false, &|_| ()).unwrap();
    println!("{outcome}");
    outcome
}

#[test]
fn memory_is_flat_and_nothing_is_left() {
    let outcome = soak(Servers::One, Duration::from_secs(9), 0);
    assert!(outcome.is_clean(), "{outcome}");
    assert!(outcome.grants > 100 && outcome.vain > 100, "{outcome}");
}

#[test]
fn memory_is_flat_on_a_cluster_whose_slots_move() {
    let outcome = soak(Servers::Cluster, Duration::from_secs(15), 0);
    assert!(outcome.is_clean(), "{outcome}");
    assert!(outcome.grants > 100 && outcome.vain > 100, "{outcome}");
}

#[test]
fn a_leak_is_noticed() {
    // A tenth of a second at a time, some seconds from one third to the next.
    let outcome = soak(Servers::One, Duration::from_secs(6), 64 * 1024);
    let growth = outcome.growth.expect("long enough");
    assert!(!growth.is_flat() && growth.last.live > growth.middle.live, "{outcome}");
    assert!(!outcome.is_clean());
}
