//! Two processes, many tasks, few keys, and a checker that looks for overlaps.

use std::time::Duration;

use lock_tests::overlap::Report;
use lock_tests::{Helper, Layout, RedisServer};

const SLACK: Duration = Duration::from_secs(30);
const TASKS: usize = 16;
const KEYS: usize = 4;

/// Two processes that work on one server.
struct Run {
    server: RedisServer,
    layout: Layout,
    dir: tempfile::TempDir,
    processes: [Helper; 2],
    time: Duration,
}

/// The work of one process.
#[derive(Debug)]
struct Done {
    sections: usize,
    lost: usize,
}

impl Run {
    /// Starts two processes on one server that work for `time` under a `lock`: a lease in
    /// milliseconds, or a broken lock.
    fn start(layout: Layout, time: Duration, lock: &str) -> Self {
        let server = RedisServer::start();
        let dir = tempfile::tempdir().unwrap();
        let args = [
            layout.url(&server.url()),
            dir.path().join("log").display().to_string(),
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
        Self { server, layout, dir, processes, time }
    }

    /// Awaits the end of a process's work.
    fn done(&mut self, process: usize) -> Done {
        let answer = self.processes[process].line(self.time + SLACK * 2);
        let numbers: Vec<usize> = answer
            .strip_prefix("done ")
            .into_iter()
            .flat_map(str::split_whitespace)
            .flat_map(str::parse)
            .collect();
        let [sections, lost] = numbers[..] else { panic!("not two counts: {answer:?}") };
        assert!(sections >= TASKS, "every task got in: {sections}");
        Done { sections, lost }
    }

    fn report(&self) -> Report {
        let report = Report::read(&self.dir.path().join("log")).expect("the log is whole");
        assert_eq!(report.sections.len(), KEYS);
        report
    }

    /// Asserts that orderly ends leave no lock behind; counters stay on purpose.
    fn assert_no_lock_is_left(&self) {
        let left = self.layout.locks(&self.server);
        assert!(left.is_empty(), "{left:?}");
    }
}

fn two_processes_of_sixteen_tasks_never_overlap(layout: Layout) {
    let mut run = Run::start(layout, Duration::from_secs(10), "30000");
    let (first, second) = (run.done(0), run.done(1));
    let report = run.report();
    report.assert_clean();
    assert_eq!(report.total(), first.sections + second.sections, "every section is in the log");
    assert_eq!((first.lost, second.lost), (0, 0));
    run.assert_no_lock_is_left();
}

#[test]
fn the_same_run_with_a_broken_lock_is_noticed() {
    let mut run = Run::start(Layout::Hash, Duration::from_secs(2), "broken");
    run.done(0);
    run.done(1);
    let report = run.report();
    assert!(!report.overlaps.is_empty(), "{report}");
}

fn a_process_killed_at_work_overlaps_with_nobody(layout: Layout) {
    let lease = Duration::from_secs(1);
    let mut run = Run::start(layout, Duration::from_secs(5), "1000");
    std::thread::sleep(lease);
    run.processes[0].kill();
    let survivor = run.done(1);
    let report = run.report();
    report.assert_clean();
    assert!(report.total() > survivor.sections, "the dead process was at work, too");
    run.assert_no_lock_is_left();
}

fn a_process_stopped_at_work_overlaps_with_nobody(layout: Layout) {
    let lease = Duration::from_secs(1);
    let mut run = Run::start(layout, Duration::from_secs(6), "1000");
    for _ in 0..3 {
        std::thread::sleep(lease / 2);
        run.processes[0].stop();
        // Past every lease it held: the other process takes over.
        std::thread::sleep(lease * 3 / 2);
        run.processes[0].cont();
    }
    let (stopped, other) = (run.done(0), run.done(1));
    let report = run.report();
    report.assert_clean();
    assert_eq!(report.total(), stopped.sections + other.sections);
    run.assert_no_lock_is_left();
}

lock_tests::on_every_layout! {
    blocking:
    two_processes_of_sixteen_tasks_never_overlap,
    a_process_killed_at_work_overlaps_with_nobody,
    a_process_stopped_at_work_overlaps_with_nobody,
}
