//! The output of `lock-bench`: one line of JSON with the fields of the contract. No server is
//! needed.

use std::process::{Command, Output};

use serde_json::Value;

fn bench(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_lock-bench")).args(args).output().expect("lock-bench can be started")
}

fn line(args: &[&str]) -> Value {
    let output = bench(args);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{args:?}: {stderr}");
    let stdout = String::from_utf8(output.stdout).expect("the line is text");
    assert_eq!(stdout.lines().count(), 1, "{stdout}");
    serde_json::from_str(&stdout).expect("the line is JSON")
}

fn number(line: &Value, field: &str) -> f64 {
    line[field].as_f64().unwrap_or_else(|| panic!("{field} is not a number in {line}"))
}

fn has_common_fields(line: &Value, workload: &str) {
    assert_eq!(line["lib"], "ours");
    assert_eq!(line["workload"], workload);
    for field in [
        "tasks",
        "hold_us",
        "secs",
        "grants",
        "grants_per_s",
        "p50_us",
        "p99_us",
        "max_us",
        "errors",
        "cpu_ms",
    ] {
        number(line, field);
    }
    assert!(number(line, "p50_us") <= number(line, "max_us"), "{line}");
    assert_eq!(line["errors"], 0, "{line}");
    // Commands can't be counted without a server.
    assert!(line["cmds_per_grant"].is_null() && line["calls_in_scripts"].is_null(), "{line}");
}

#[test]
fn seed100_grants_the_lock_to_everybody() {
    let line = line(&["--workload", "seed100", "--url", "memory:", "--secs", "0.1"]);
    has_common_fields(&line, "seed100");
    assert_eq!(line["acquired"], 100);
    assert_eq!(line["grants"], 100);
    assert!(number(&line, "total_ms") > 0.0);
}

#[test]
fn latency_measures_both_halves_of_a_pair() {
    let line = line(&["--workload", "latency", "--url", "memory:", "--keys", "10", "--secs", "0.1"]);
    has_common_fields(&line, "latency");
    assert!(number(&line, "grants") > 0.0);
    assert!(number(&line, "pair_p50_us") >= number(&line, "release_p50_us"));
    assert!(number(&line, "release_p99_us") > 0.0);
    number(&line, "allocs_per_pair");
    assert!(line["ping_p50_us"].is_null());
}

#[test]
fn held_locks_are_renewed_and_what_they_take_is_measured() {
    let args =
        ["--workload", "held", "--url", "memory:", "--keys", "200", "--lease-ms", "300", "--secs", "0.6"];
    let line = line(&args);
    has_common_fields(&line, "held");
    assert_eq!(line["grants"], 200);
    assert_eq!(line["lost"], 0, "{line}");
    assert!(number(&line, "bytes_per_hold") > 0.0, "{line}");
    assert!(line["scripts_per_s"].is_null());
    #[cfg(target_os = "linux")]
    assert!(number(&line, "rss_mb") > 0.0);
}

#[test]
fn hot_shares_one_key_among_all_tasks() {
    let args =
        ["--workload", "hot", "--url", "memory:", "--tasks", "4", "--hold-us", "1000", "--secs", "0.3"];
    let line = line(&args);
    has_common_fields(&line, "hot");
    assert_eq!((&line["tasks"], &line["hold_us"]), (&4.into(), &1000.into()));
    assert_eq!(line["overlaps"], 0, "{line}");
    assert!(number(&line, "per_task_min") <= number(&line, "per_task_max"));
    assert!(number(&line, "jain") <= 1.0);
    assert!(number(&line, "pending_max_us") > 0.0);
    assert!(number(&line, "real_hold_p50_us") >= 1000.0);
}

#[test]
fn readers_and_a_writer_share_one_key() {
    for lib in ["ours", "tokio"] {
        let url: &[&str] = if lib == "ours" { &["--url", "memory:"] } else { &[] };
        for (workload, tasks) in [("rw-hot", 5), ("rw-mix", 4)] {
            let args = ["--workload", workload, "--lib", lib, "--tasks", "4", "--secs", "0.3"];
            let line = line(&[&args[..], url].concat());
            assert_eq!((&line["lib"], &line["workload"]), (&lib.into(), &workload.into()));
            // `rw-hot` has one writer more.
            assert_eq!(line["tasks"], tasks);
            assert_eq!((&line["overlaps"], &line["errors"]), (&0.into(), &0.into()), "{line}");
            assert!(number(&line, "reads_per_s") + number(&line, "writes_per_s") > 0.0, "{line}");
            // On a busy machine the writer of `rw-hot` may not get to write in that time.
            let waits = ["writer_wait_p50_us", "writer_wait_p99_us"].map(|field| line[field].as_f64());
            assert_eq!(waits.map(|wait| wait.is_some()), [number(&line, "writes_per_s") > 0.0; 2], "{line}");
            assert!(waits[0] <= waits[1], "{line}");
        }
    }
}

#[test]
fn multi3_compares_three_keys_with_one() {
    let line = line(&["--workload", "multi3", "--url", "memory:", "--keys", "10", "--secs", "0.1"]);
    has_common_fields(&line, "multi3");
    assert!(number(&line, "grants") > 0.0);
    let (three, one) = (number(&line, "three_pair_p50_us"), number(&line, "one_pair_p50_us"));
    assert!((number(&line, "ratio") - three / one).abs() < 0.01, "{line}");
}

#[test]
fn layer_compares_requests_with_and_without_a_lock() {
    let memory: &[&str] = &["--url", "memory:"];
    for url in [memory, &[]] {
        let args = ["--workload", "layer", "--keys", "10", "--secs", "0.3"];
        let line = line(&[&args[..], url].concat());
        if url == memory {
            has_common_fields(&line, "layer");
        }
        assert!(number(&line, "grants") > 0.0, "{line}");
        assert_eq!(line["errors"], 0, "{line}");
        assert!(number(&line, "allocs_added") > 0.0 && number(&line, "added_ns_p50") > 0.0, "{line}");
        assert_eq!(line["skip_allocs_added"], 0.0, "{line}");
        assert_eq!(line["ping_p50_us"].is_null(), url == memory, "{line}");
        assert!(line["http_added_p50_us"].is_number() && line["skip_added_ns"].is_number(), "{line}");
    }
}

#[test]
fn a_child_without_a_parent_ends() {
    for workload in ["multi", "fair-hot"] {
        let output = bench(&["--workload", workload, "--id", "0", "--url", "redis://127.0.0.1:1"]);
        assert!(!output.status.success());
        assert!(output.stdout.is_empty());
    }
}

#[test]
fn a_workload_that_is_not_there_prints_no_line() {
    let output = bench(&["--workload", "stocks"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(output.stdout.is_empty());
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(stderr.contains("latency, throughput, hot, multi, pingpong, held"), "{stderr}");
}
