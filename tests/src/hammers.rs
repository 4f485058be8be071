//! [`Hammers`]: processes of the program `hammer`, which work on one store and log their sections.

use std::path::PathBuf;
use std::time::Duration;

use crate::overlap::Report;
use crate::{Helper, eventually_blocking};

const SLACK: Duration = Duration::from_secs(30);

/// Number of tasks in each process.
pub const TASKS: usize = 16;

/// Number of keys, which all tasks share.
pub const KEYS: usize = 4;

/// Processes that are at work.
#[derive(Debug)]
pub struct Hammers {
    dir: tempfile::TempDir,
    /// The processes, to be killed and stopped.
    pub processes: Vec<Helper>,
    time: Duration,
}

/// The work of one process.
#[derive(Clone, Copy, Debug)]
pub struct Done {
    /// Number of sections that it has entered.
    pub sections: usize,
    /// Number of sections in which the lock was lost, or whose release was not confirmed.
    pub lost: usize,
}

impl Hammers {
    /// Starts processes of `program` on the store at `url` that work for `time` under a `lock`: a
    /// lease in milliseconds, or a broken lock.
    ///
    /// # Panics
    ///
    /// When one does not start.
    #[track_caller]
    #[must_use]
    pub fn start(program: &str, url: &str, processes: usize, time: Duration, lock: &str) -> Self {
        let dir = tempfile::tempdir().expect("a folder can be made");
        let args = [
            url.to_owned(),
            dir.path().join("log").display().to_string(),
            TASKS.to_string(),
            KEYS.to_string(),
            time.as_millis().to_string(),
            lock.to_owned(),
        ];
        let mut processes: Vec<_> = (0..processes).map(|_| Helper::spawn(program, &args)).collect();
        for process in &mut processes {
            assert_eq!(process.line(SLACK), "ready");
        }
        for process in &mut processes {
            process.send("go");
        }
        Self { dir, processes, time }
    }

    fn log(&self) -> PathBuf {
        self.dir.path().join("log")
    }

    /// Waits until every process has entered a section, and somebody has entered one of each key.
    pub fn await_work(&mut self) {
        for process in 0..self.processes.len() {
            let enters = format!("enter {}-", self.processes[process].process().id());
            let has_entered = || std::fs::read_to_string(self.log()).is_ok_and(|log| log.contains(&enters));
            eventually_blocking(has_entered, SLACK);
        }
        // A line may be half-written.
        let has_all = || Report::read(&self.log()).is_ok_and(|report| report.sections.len() == KEYS);
        eventually_blocking(has_all, SLACK);
    }

    /// Lets all processes end their work before the time is over. None of them was killed.
    pub fn end(&mut self) {
        for process in &mut self.processes {
            process.send("end");
        }
    }

    /// Awaits the end of a process's work.
    ///
    /// # Panics
    ///
    /// When the process fails, or a task of it never got in.
    #[track_caller]
    pub fn done(&mut self, process: usize) -> Done {
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

    /// Returns the judgement of the log.
    ///
    /// # Panics
    ///
    /// When the log is not whole.
    #[must_use]
    pub fn report(&self) -> Report {
        let report = Report::read(&self.log()).expect("the log is whole");
        assert_eq!(report.sections.len(), KEYS);
        report
    }
}
