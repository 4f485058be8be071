//! The tests of the part `test` that `cargo xtask test --quick` runs: those without clusters and
//! other groups of servers, without killed or paused processes, and without long runs.

/// Tests of the Redis store that are left out: servers of other kinds, and faults.
const REDIS: [&str; 8] =
    ["cluster", "sentinel", "quorum", "synced", "faults", "server_tests::group", "fair_model", "rw_model"];

/// Integration tests that run: those of every store on one server, and those of the attribute.
const INTEGRATION: [&str; 9] = [
    "docs_name_tests",
    "fair_order",
    "latch",
    "macro_b",
    "macro_kinds",
    "multi_locks",
    "mutex_ownership",
    "rw_sharing",
    "semaphore",
];

/// Tests with exhaustive schedules that are left out: these scenes take most of the time.
const LARGE_SCENES: [&str; 8] = [
    "behind",
    "wait_runs_out",
    "reentry_of_a_lock_that_is_lost",
    "in_line",
    "force_release",
    "gives_back",
    "gives_one_back",
    "layer::load",
];

/// Returns the arguments of a test program; `None` if it is left out.
pub(super) fn args(label: &str) -> Option<Vec<&'static str>> {
    let without = |names: &[&'static str]| names.iter().flat_map(|&name| ["--skip", name]).collect();
    match label {
        "stores/redis/lib" => Some(without(&REDIS)),
        "stores/quorum/lib" => None,
        "lock-runtime/it" => Some(without(&LARGE_SCENES)),
        "tests/it" => Some(INTEGRATION.to_vec()),
        // Tests that start programs gain nothing from a hurried run.
        _ if label.starts_with("benches/") || label.starts_with("tests/") => None,
        _ => Some(Vec::new()),
    }
}
