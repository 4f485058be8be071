//! Two processes, many tasks, few keys, and a checker that looks for overlaps.

use std::time::Duration;

use lock_tests::hammers::Hammers;
use lock_tests::{Layout, RedisServer};

/// Two processes that work on one server.
struct Run {
    hammers: Hammers,
    server: RedisServer,
    layout: Layout,
}

impl Run {
    /// Starts two processes on one server that work for `time` under a `lock`: a lease in
    /// milliseconds, or a broken lock.
    fn start(layout: Layout, time: Duration, lock: &str) -> Self {
        let server = RedisServer::start();
        let url = layout.url(&server.url());
        let hammers = Hammers::start(env!("CARGO_BIN_EXE_hammer"), &url, 2, time, lock);
        Self { hammers, server, layout }
    }

    /// Asserts that orderly ends leave no lock behind; counters stay on purpose.
    fn assert_no_lock_is_left(&self) {
        let left = self.layout.locks(&self.server);
        assert!(left.is_empty(), "{left:?}");
    }
}

fn two_processes_of_sixteen_tasks_never_overlap(layout: Layout) {
    let mut run = Run::start(layout, Duration::from_secs(10), "30000");
    let (first, second) = (run.hammers.done(0), run.hammers.done(1));
    let report = run.hammers.report();
    report.assert_clean();
    assert_eq!(report.total(), first.sections + second.sections, "every section is in the log");
    assert_eq!((first.lost, second.lost), (0, 0));
    run.assert_no_lock_is_left();
}

#[test]
fn the_same_run_with_a_broken_lock_is_noticed() {
    let mut run = Run::start(Layout::Hash, Duration::from_secs(2), "broken");
    run.hammers.done(0);
    run.hammers.done(1);
    let report = run.hammers.report();
    assert!(!report.overlaps.is_empty(), "{report}");
}

fn a_process_killed_at_work_overlaps_with_nobody(layout: Layout) {
    let lease = Duration::from_secs(1);
    let mut run = Run::start(layout, Duration::from_secs(5), "1000");
    std::thread::sleep(lease);
    run.hammers.processes[0].kill();
    let survivor = run.hammers.done(1);
    let report = run.hammers.report();
    report.assert_clean();
    assert!(report.total() > survivor.sections, "the dead process was at work, too");
    run.assert_no_lock_is_left();
}

fn a_process_stopped_at_work_overlaps_with_nobody(layout: Layout) {
    let lease = Duration::from_secs(1);
    let mut run = Run::start(layout, Duration::from_secs(6), "1000");
    for _ in 0..3 {
        std::thread::sleep(lease / 2);
        run.hammers.processes[0].stop();
        // Past every lease it held: the other process takes over.
        std::thread::sleep(lease * 3 / 2);
        run.hammers.processes[0].cont();
    }
    let (stopped, other) = (run.hammers.done(0), run.hammers.done(1));
    let report = run.hammers.report();
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
