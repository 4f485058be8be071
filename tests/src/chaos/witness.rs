//! Witnesses: what they could not do for a while, nobody could, and it is held against nobody.
//!
//! One in each worker sleeps in its executor and notes when it wakes up late. One in the parent asks each server for
//! nothing, on the way that the workers' requests take, and notes when the answer is late.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::history::{Event, Log};
use crate::redis::Connection;

/// Delay between two looks.
const PERIOD: Duration = Duration::from_millis(5);
/// Maximum lateness on a machine that runs.
const LATE: Duration = Duration::from_millis(20);
/// Maximum time for an answer. One that does not come counts for as long.
const PATIENCE: Duration = Duration::from_millis(500);

fn note(log: &Log, late: Duration) {
    if late > LATE {
        log.say(&Event::Stood { time: late });
    }
}

/// Notes when the executor stands still, for as long as it is polled.
pub(super) async fn watch_executor(log: Log) {
    loop {
        let due = Instant::now() + PERIOD;
        tokio::time::sleep(PERIOD).await;
        note(&log, due.elapsed());
    }
}

/// Threads that note when the ways to the servers stand still, until it is dropped.
pub(super) struct Witness {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Witness {
    /// Watches the ways that begin at these addresses.
    pub(super) fn start(log: &Log, ways: impl IntoIterator<Item = SocketAddr>) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let watch = |way: SocketAddr| {
            let (log, stop) = (log.clone(), Arc::clone(&stop));
            std::thread::spawn(move || {
                let mut open = None;
                while !stop.load(Ordering::Relaxed) {
                    let asked = Instant::now();
                    open = ask(way, open);
                    note(&log, asked.elapsed());
                    std::thread::sleep(PERIOD);
                }
            })
        };
        let threads = ways.into_iter().map(watch).collect();
        Self { stop, threads }
    }
}

impl Drop for Witness {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// Asks once. A connection that has failed is not used again.
fn ask(way: SocketAddr, open: Option<Connection>) -> Option<Connection> {
    let mut connection = open.or_else(|| Connection::open(way, PATIENCE).ok())?;
    connection.command(&["PING"]).is_ok().then_some(connection)
}
