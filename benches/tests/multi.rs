//! The processes of `lock-bench --workload multi`, `fair-hot` and `stock`, on a server that it
//! starts itself.

use std::process::{Command, Stdio};
use std::time::Duration;

use lock_tests::eventually_blocking;
use lock_tests::process::Process;
use serde_json::Value;

const SOON: Duration = Duration::from_secs(30);

fn multi(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_lock-bench"));
    // If a flag is given twice, the last one counts.
    command.args(["--workload", "multi", "--procs", "2", "--tasks", "3"]).args(args);
    command
}

fn line(args: &[&str]) -> Value {
    let output = multi(args).output().expect("lock-bench can be started");
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("the line is JSON, and the only one")
}

#[test]
fn processes_share_one_key_without_overlaps() {
    for lib in ["ours", "raw"] {
        let line = line(&["--lib", lib, "--secs", "0.5"]);
        assert_eq!((&line["lib"], &line["workload"]), (&lib.into(), &"multi".into()));
        let shares: Vec<u64> =
            line["per_process"].as_array().unwrap().iter().map(|share| share.as_u64().unwrap()).collect();
        assert_eq!(shares.len(), 2);
        assert!(shares.iter().sum::<u64>() > 0);
        assert_eq!(line["grants"], shares.iter().sum::<u64>());
        assert_eq!((&line["overlaps"], &line["errors"]), (&0.into(), &0.into()), "{line}");
        for field in
            ["p50_us", "max_us", "pending_max_us", "cmds_per_grant", "calls_in_scripts", "cpu_ms", "jain"]
        {
            assert!(line[field].is_number(), "{field} in {line}");
        }
    }
}

#[test]
fn a_fair_lock_goes_from_process_to_process_in_the_order_of_the_queue() {
    let line = line(&["--workload", "fair-hot", "--secs", "0.5", "--rounds", "20"]);
    assert_eq!((&line["lib"], &line["workload"]), (&"ours".into(), &"fair-hot".into()));
    assert_eq!((&line["overlaps"], &line["errors"]), (&0.into(), &0.into()), "{line}");
    assert_eq!(line["order_violations"], 0, "{line}");
    assert_eq!((&line["handoffs"], &line["stalls"]), (&20.into(), &0.into()), "{line}");
    // Somebody waits all the time, so nearly all waiters were queued.
    assert!(line["queued"].as_u64().unwrap() > 0, "{line}");
    for field in ["ping_p50_us", "handoff_p50_us", "handoff_p99_us", "handoff_max_us", "grants_per_s"] {
        assert!(line[field].as_f64().unwrap() > 0.0, "{field} in {line}");
    }
}

#[test]
fn a_stock_is_sold_with_locks_and_without_and_its_books_are_right() {
    // It fails by itself when a stock has sold more or less than the tasks were told.
    let line = line(&["--workload", "stock", "--tasks", "8", "--secs", "2"]);
    assert_eq!((&line["lib"], &line["workload"]), (&"ours".into(), &"stock".into()));
    assert_eq!(
        (&line["tasks"], &line["hold_us"], &line["errors"]),
        (&8.into(), &1000.into(), &0.into()),
        "{line}"
    );
    assert_eq!(line["merge_round_trips"], 1.0, "{line}");
    assert!(line["grants"].as_u64().unwrap() > 0, "{line}");
    // These may be `null` when a busy machine leaves no time to one side, so only their presence is
    // checked.
    for field in
        ["ratio", "ratio_multi", "script_ratio", "grouped_ratio", "script_segments_ratio", "decrby_per_s"]
    {
        assert!(line.get(field).is_some(), "{field} in {line}");
    }
}

#[test]
fn the_delay_is_in_front_of_every_process() {
    let line = line(&["--delay-ms", "50", "--secs", "1", "--hold-us", "1000"]);
    assert_eq!((&line["overlaps"], &line["errors"]), (&0.into(), &0.into()), "{line}");
    assert!(line["grants"].as_u64().unwrap() > 0, "{line}");
    // Somebody had to wait for the other process, and so for a round trip.
    assert!(line["max_us"].as_f64().unwrap() >= 50_000.0, "{line}");
}

#[cfg(target_os = "linux")]
mod ends {
    use super::*;

    /// Returns the children of `parent` that run one of these programs.
    fn started_by(parent: u32) -> Vec<u32> {
        let processes = std::fs::read_dir("/proc").unwrap();
        let ids = processes.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
        ids.filter(|id: &u32| {
            let Ok(stat) = std::fs::read_to_string(format!("/proc/{id}/stat")) else { return false };
            // pid (name) state parent …
            let ours = stat.contains("(lock-bench) ") || stat.contains("(redis-server) ");
            ours && stat.rsplit_once(") ").and_then(|(_, rest)| rest.split(' ').nth(1)?.parse().ok())
                == Some(parent)
        })
        .collect()
    }

    /// Whether the process is gone, or dead and not yet collected by its new parent.
    fn is_gone(id: u32) -> bool {
        std::fs::read_to_string(format!("/proc/{id}/stat")).map_or(true, |stat| stat.contains(") Z "))
    }

    fn nothing_is_left_after(end: fn(&mut Process)) {
        let mut command = multi(&["--secs", "600"]);
        let mut parent = Process::spawn(command.stdout(Stdio::null()), None).unwrap();
        // Two processes and the server.
        eventually_blocking(|| started_by(parent.id()).len() == 3, SOON);
        let started = started_by(parent.id());
        end(&mut parent);
        assert!(!parent.wait(SOON).success());
        eventually_blocking(|| started.iter().all(|&id| is_gone(id)), SOON);
    }

    #[test]
    fn nothing_is_left_when_it_is_asked_to_end() {
        nothing_is_left_after(Process::terminate);
    }

    #[test]
    fn nothing_is_left_when_it_is_killed() {
        nothing_is_left_after(Process::kill);
    }
}
