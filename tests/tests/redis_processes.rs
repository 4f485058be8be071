//! Two processes, many tasks, few keys, and a checker that looks for overlaps.

use std::path::Path;
use std::time::Duration;

use lock_tests::overlap::Report;
use lock_tests::{Helper, RedisServer};

const SLACK: Duration = Duration::from_secs(30);
const TASKS: usize = 16;
const KEYS: usize = 4;

/// Two processes on one server for `time`; what they did.
fn hammer(server: &RedisServer, log: &Path, time: Duration, lock: &str) -> Report {
    let args = [
        server.url(),
        log.display().to_string(),
        TASKS.to_string(),
        KEYS.to_string(),
        time.as_millis().to_string(),
        lock.to_owned(),
    ];
    let mut processes = [(); 2].map(|()| Helper::spawn(env!("CARGO_BIN_EXE_hammer"), &args));
    for process in &mut processes {
        assert_eq!(process.line(SLACK), "ready");
    }
    for process in &mut processes {
        process.send("go");
    }
    let mut total = 0;
    for mut process in processes {
        let answer = process.line(time + SLACK * 2);
        let sections = answer.strip_prefix("done ").and_then(|count| count.parse::<usize>().ok());
        let sections = sections.unwrap_or_else(|| panic!("not a count: {answer:?}"));
        assert!(sections >= TASKS, "every task of each process got in: {sections}");
        total += sections;
        process.finish(SLACK);
    }
    let report = Report::read(log).expect("the log is whole");
    assert_eq!(report.total(), total, "every section is in the log");
    assert_eq!(report.sections.len(), KEYS);
    report
}

#[test]
fn two_processes_of_sixteen_tasks_never_overlap() {
    let server = RedisServer::start();
    let dir = tempfile::tempdir().unwrap();
    let report = hammer(&server, &dir.path().join("log"), Duration::from_secs(10), "real");
    report.assert_clean();
    // Orderly ends leave no lock behind; counters stay on purpose.
    let left: Vec<String> = server
        .cli(&["KEYS", "*"])
        .lines()
        .filter(|key| server.cli(&["TYPE", key]) == "hash")
        .map(Into::into)
        .collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn the_same_run_with_a_broken_lock_is_noticed() {
    let server = RedisServer::start();
    let dir = tempfile::tempdir().unwrap();
    let report = hammer(&server, &dir.path().join("log"), Duration::from_secs(2), "broken");
    assert!(!report.overlaps.is_empty(), "{report}");
}
