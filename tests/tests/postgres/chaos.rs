//! The short form of `cargo xtask chaos --topology postgres`.

use std::time::Duration;

use lock_tests::chaos::{Broken, Plan, Topology};
use lock_tests::history::Check;

fn plan() -> Plan {
    Plan::short(env!("CARGO_BIN_EXE_chaos"), Topology::Postgres)
}

#[test]
fn promises_hold_in_postgres_through_every_fault() {
    plan().holds_through_every_fault();
}

#[test]
fn a_lock_that_is_renewed_for_nobody_is_noticed() {
    // On a busy disk a shorter lease might be lost.
    let plan = Plan { lease: Duration::from_secs(6), ..plan() };
    let found = plan.found(Broken::Leak, Vec::new());
    assert!(found.contains(&Check::Renewals) && found.contains(&Check::Leftovers), "{found:?}");
}
