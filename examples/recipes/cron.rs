//! # A job that must run once on three instances
//!
//! Every instance of a service has the same timer, but the report must be sent once. The clocks of
//! the machines differ a little, so one instance may start when another is already done.
//!
//! **Copy** the line above `send_report`:
//! - `wait = "none"`: the others don't queue up to send it again.
//! - `on_busy = skip`: for them a busy lock is no error. They get `None`.
//! - `min_hold`: the key stays taken after the job is done. If all instances start at the same time
//!   of day, choose more than their clocks differ, and well under the period. If each starts after
//!   its own interval, choose slightly less than the period.
//!
//! **Watch**
//! - The key also stays taken after a run that failed, and after a crash. `force_release` frees it
//!   for another attempt.
//! - Return an `Option`. With `()`, a skipped call looks like one that ran.
//! - A job that loses its lock midway is dropped there, and not repeated.
//! - While a job runs for longer than its period, the next runs are skipped: its lock is renewed.
//!
//! ```text
//! cargo run --example cron                                            # plays three instances
//! LOCK_URL=redis://127.0.0.1:6379 cargo run --example cron -- one     # is one of them
//! ```
#![allow(clippy::print_stdout)]

use std::time::Duration;

use anyhow::{Result, bail};
use lock_runtime::{LockError, LockManager, distributed_lock};

struct Instance {
    name: String,
    locks: LockManager,
}

impl Instance {
    async fn start(name: &str) -> Result<Self, LockError> {
        // Managers on `memory:NAME` share their locks, as processes on one Redis server do.
        let url = std::env::var("LOCK_URL").unwrap_or_else(|_| "memory:cron".to_owned());
        Ok(Self { name: name.to_owned(), locks: LockManager::connect(url).await? })
    }

    /// Returns the number of mails, or `None` if another instance sends them.
    #[distributed_lock(key = "cron:report", manager = self.locks, wait = "none", on_busy = skip, min_hold = "30s")]
    async fn send_report(&self) -> Result<Option<u32>, LockError> {
        tokio::time::sleep(Duration::from_millis(50)).await;
        Ok(Some(12))
    }

    /// Is called by the timer. Returns whether this instance has sent the report.
    async fn tick(&self) -> Result<bool, LockError> {
        let sent = self.send_report().await?;
        match sent {
            Some(mails) => println!("{}: sent {mails} mails", self.name),
            None => println!("{}: skipped", self.name),
        }
        Ok(sent.is_some())
    }
}

/// Lets two instances start together, and a third one when they are done.
async fn one_night(instances: &[Instance; 3]) -> Result<()> {
    let [first, second, late] = instances;
    let (first, second) = tokio::join!(first.tick(), second.tick());
    let sent = [first?, second?, late.tick().await?];
    match sent.into_iter().filter(|sent| *sent).count() {
        1 => Ok(()),
        0 => bail!("none has sent it; was there another run in the last 30 s?"),
        times => bail!("it was sent {times} times"),
    }
}

#[tokio::main]
async fn main() -> Result<()> {
    if std::env::args().nth(1).as_deref() == Some("one") {
        let instance = Instance::start(&format!("process {}", std::process::id())).await?;
        instance.tick().await?;
        instance.locks.shutdown(Duration::from_secs(5)).await?;
        return Ok(());
    }
    let instances =
        [Instance::start("red").await?, Instance::start("green").await?, Instance::start("blue").await?];
    for night in ["tonight", "tomorrow night"] {
        println!("{night}");
        one_night(&instances).await?;
        // Instead of waiting for 30 s; an operator does it to repeat a job.
        instances[0].locks.force_release("cron:report").await?;
    }
    for instance in instances {
        instance.locks.shutdown(Duration::from_secs(5)).await?;
    }
    Ok(())
}
