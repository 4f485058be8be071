//! One of the processes that sell from one stock.
//!
//! | to a child | | from it |
//! |---|---|---|
//! | `<segments> <the stock's name>` | → | |
//! | | ← | `ready`: its tasks are at work |
//! | `count` | → | |
//! | `end` | → | |
//! | | ← | `[counted, all, errors]` |
//! | … | | |
//! | `done` | → | |

use std::time::{Duration, Instant};

use serde_json::json;

use super::super::multi::child::listen;
use super::super::multi::process::{COUNT, END, Process, READY};
use super::super::multi::{START, shared};
use super::seller::{Way, manager};
use super::slice::{SETTLE, Slice, Sold};
use crate::args::Options;
use crate::meter::Cost;
use crate::report::Report;
use crate::server::Urls;
use crate::stats::Waits;

const DONE: &str = "done";
/// Maximum time for a process to answer, on a busy machine.
const ANSWER: Duration = START;

pub(super) async fn run(options: &Options, urls: &Urls) -> Result<Report, String> {
    let mut parent = listen()?;
    let manager = manager(options, urls).await?;
    loop {
        let line = parent.recv().await.ok_or("the parent is gone")?;
        if line == DONE {
            // The parent already knows what was sold.
            let (waits, cost) = (Waits::default(), Cost::default());
            return Ok(Report { tasks: 0, hold_us: 0, grants: 0, errors: 0, waits, cost, extra: Vec::new() });
        }
        let told = line.split_once(' ').and_then(|(segments, name)| Some((segments.parse().ok()?, name)));
        let (segments, name) = told.ok_or_else(|| format!("the parent says {line:?}"))?;
        let way = Way::locked(&manager, name, segments, options.hold).await?;
        let slice = Slice::start(way.sellers(options.tasks));
        println!("{READY}");
        for word in [COUNT, END] {
            match parent.recv().await {
                Some(line) if line == word => {}
                other => return Err(format!("the parent says {other:?} instead of {word:?}")),
            }
            if word == COUNT {
                slice.count();
            }
        }
        let Sold { counted, all, errors } = slice.end().await?;
        println!("{}", json!([counted, all, errors]));
    }
}

/// The child processes, as the parent sees them.
pub(super) struct Processes(Vec<Process>);

impl Processes {
    /// Starts the processes, each with its share of the tasks.
    pub(super) fn start(options: &Options, urls: &Urls) -> Result<Self, String> {
        let of_each = Options { tasks: (options.tasks / options.procs).max(1), ..options.clone() };
        let mut processes = Vec::with_capacity(options.procs);
        for id in 0..options.procs {
            processes.push(Process::start(&of_each, shared(urls)?, id)?);
        }
        Ok(Self(processes))
    }

    fn say(&mut self, line: &str) -> Result<(), String> {
        self.0.iter_mut().try_for_each(|process| process.say(line))
    }

    /// Has all processes sell for `time`, and returns the rate per second.
    pub(super) async fn sell(
        &mut self,
        name: &str,
        segments: u32,
        time: Duration,
    ) -> Result<(f64, Sold), String> {
        self.say(&format!("{segments} {name}"))?;
        for process in &mut self.0 {
            let line = process.hear(ANSWER).await?;
            if line != READY {
                return Err(format!("process {} says {line:?}", process.id()));
            }
        }
        tokio::time::sleep(SETTLE).await;
        let start = Instant::now();
        self.say(COUNT)?;
        tokio::time::sleep(time).await;
        let counted = start.elapsed();
        self.say(END)?;
        let mut sold = Sold::default();
        for process in &mut self.0 {
            let line = process.hear(ANSWER).await?;
            let [counted, all, errors]: [u64; 3] = serde_json::from_str(&line)
                .map_err(|error| format!("process {} says {line:?}: {error}", process.id()))?;
            sold.counted += counted;
            sold.all += all;
            sold.errors += errors;
        }
        Ok((sold.counted as f64 / counted.as_secs_f64(), sold))
    }

    pub(super) fn end(mut self) -> Result<(), String> {
        self.say(DONE)
    }
}
