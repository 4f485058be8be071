//! Witnesses: what they could not do for a while, nobody could, and it is held against nobody.
//!
//! A thread in each worker sleeps, and notes when it wakes up late. It is none of the executor's:
//! what keeps that busy is held against the library. A thread in the parent for each server asks it
//! for nothing, on the way that the workers' requests take, and notes when the answer is late.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use super::background::Background;
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

/// Starts a thread that notes when the process stands still, for as long as it lives.
pub(super) fn watch_process(log: Log) {
    std::thread::spawn(move || {
        loop {
            let due = Instant::now() + PERIOD;
            std::thread::sleep(PERIOD);
            note(&log, due.elapsed());
        }
    });
}

/// Watches the ways to the servers that begin at these addresses, each with a log of its own: a
/// thread for each notes when it stands still.
pub(super) fn watch_ways(ways: impl IntoIterator<Item = (SocketAddr, Log)>) -> Background {
    let mut witnesses = Background::default();
    for (way, log) in ways {
        let mut open = None;
        witnesses.repeat(PERIOD, move || {
            let asked = Instant::now();
            open = ask(way, open.take());
            note(&log, asked.elapsed());
        });
    }
    witnesses
}

/// Asks for the time, which faults of single commands leave alone. A connection that has failed is
/// not used again.
fn ask(way: SocketAddr, open: Option<Connection>) -> Option<Connection> {
    let mut connection = open.or_else(|| Connection::open(way, PATIENCE).ok())?;
    connection.command(&["TIME"]).is_ok().then_some(connection)
}
