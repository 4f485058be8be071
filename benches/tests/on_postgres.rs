//! `lock-bench --store postgres-shm`, on a PostgreSQL that it starts itself.

use std::process::Command;

use serde_json::Value;

fn line(args: &str) -> Value {
    let mut command = Command::new(env!("CARGO_BIN_EXE_lock-bench"));
    command.args(["--store", "postgres-shm", "--workload"]).args(args.split(' '));
    let output = command.output().expect("lock-bench can be started");
    assert!(output.status.success(), "{args}: {}", String::from_utf8_lossy(&output.stderr));
    let line: Value = serde_json::from_slice(&output.stdout).expect("the line is JSON, and the only one");
    assert_eq!(line["errors"], 0, "{args}: {line}");
    line
}

fn number(line: &Value, field: &str) -> f64 {
    line[field].as_f64().unwrap_or_else(|| panic!("{field} is not a number in {line}"))
}

#[test]
fn a_pair_is_two_statements_beside_commits_and_beside_an_open_transaction() {
    let line = line("latency --keys 10 --secs 0.5 --open-secs 1");
    // Clocks are asked for now and then, and the table is swept.
    let statements = number(&line, "cmds_per_grant");
    assert!((2.0..2.5).contains(&statements), "{line}");
    for field in ["pair_p50_us", "ping_p50_us", "open_pair_p50_us", "open_ping_p50_us", "open_ratio"] {
        assert!(number(&line, field) > 0.0, "{field} in {line}");
    }
}

#[test]
fn tasks_share_a_key_by_our_lock_and_by_a_row() {
    for lib in ["ours", "raw"] {
        let line = line(&format!("hot --lib {lib} --tasks 4 --secs 0.5"));
        assert!(number(&line, "grants") > 0.0, "{line}");
        assert_eq!(line["overlaps"], 0, "{line}");
    }
}

#[test]
fn a_row_is_a_lock_for_processes_and_costs_three_statements() {
    let line = line("multi --lib raw --procs 2 --tasks 2 --secs 0.5");
    assert_eq!(line["overlaps"], 0, "{line}");
    // Waits that are open at both ends of the time are counted in part.
    assert!((2.5..3.5).contains(&number(&line, "cmds_per_grant")), "{line}");
}

#[test]
fn readers_of_one_key_keep_their_holds() {
    let line = line("readers --procs 5 --lease-ms 1000 --secs 2");
    assert_eq!((&line["grants"], &line["lost"]), (&5.into(), &0.into()), "{line}");
    // Each renews at least once.
    assert!(number(&line, "cmds_per_s") >= 2.0, "{line}");
}

#[test]
fn waiters_are_asked_for_by_statements() {
    let line = line("waiting --tasks 2 --procs 2 --secs 1");
    for crowd in ["one_mutex", "one_fair", "many_mutex", "many_fair"] {
        assert!(line[crowd]["cmds_per_s"].as_f64().is_some_and(|count| count > 0.0), "{crowd} in {line}");
        assert!(line[crowd]["server_ms_per_s"].is_null(), "{line}");
    }
    assert_eq!(line["lost"], 0, "{line}");
}
