//! Witnesses of [stress](crate::stress) and chaos: threads that notice when a process, the way to a
//! server or the disk stands still. The checkers do not blame anybody for such times.
//!
//! A thread in each worker sleeps, and notes when it wakes up late. It does not belong to the
//! executor: if the executor is kept busy, the library is to blame. For each server, a thread in
//! the parent sends harmless commands on the way that the workers' requests take. It notes when an
//! answer is late. Where each step waits for the disk, another thread writes to that. Where each
//! step waits for a majority of a replica set, others do so, too.

#[cfg(feature = "helpers")]
use std::io;
use std::net::SocketAddr;
#[cfg(feature = "helpers")]
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use crate::background::Background;
use crate::history::{Event, Log};
use crate::redis::Connection;

/// Delay between two looks.
const PERIOD: Duration = Duration::from_millis(5);
/// Maximum lateness on a machine that does not stand still.
const LATE: Duration = Duration::from_millis(20);
/// Maximum time for an answer. A missing answer counts as this long.
pub(crate) const PATIENCE: Duration = Duration::from_millis(500);

fn note(log: &Log, late: Duration) {
    if late > LATE {
        log.say(&Event::Stood { time: late });
    }
}

/// Starts a thread that notes when the process stands still. It runs as long as the process.
#[cfg(feature = "helpers")]
pub fn watch_process(log: Log) {
    std::thread::spawn(move || {
        loop {
            let due = Instant::now() + PERIOD;
            std::thread::sleep(PERIOD);
            note(&log, due.elapsed());
        }
    });
}

/// Asks a server for something harmless, and returns with its answer, or without one after
/// [`PATIENCE`]. Or writes to the disk.
pub(crate) type Ping = Box<dyn FnMut() + Send>;

/// Watches the ways to the servers. Each way has its own log and thread, which notes when it stands
/// still.
pub(crate) fn watch_ways(ways: impl IntoIterator<Item = (Ping, Log)>) -> Background {
    let mut witnesses = Background::default();
    for (mut ping, log) in ways {
        witnesses.repeat(PERIOD, move || {
            let asked = Instant::now();
            ping();
            note(&log, asked.elapsed());
        });
    }
    witnesses
}

/// Returns a ping of the Redis server at the end of the way that begins at this address.
pub(crate) fn ping(way: SocketAddr) -> impl FnMut() + Send {
    let mut open = None;
    move || open = ask(way, open.take())
}

/// Returns a ping that waits until the disk has what was written to a file. The file is in the
/// system's temporary folder, where the databases are.
#[cfg(feature = "helpers")]
pub(crate) fn disk() -> io::Result<impl FnMut() + Send> {
    let file = tempfile::tempfile()?;
    Ok(move || {
        let _ = file.write_all_at(b"x", 0).and_then(|()| file.sync_data());
    })
}

/// Asks for the time, a command that faults of single commands do not touch. Drops a connection
/// that has failed.
fn ask(way: SocketAddr, open: Option<Connection>) -> Option<Connection> {
    let mut connection = open.or_else(|| Connection::open(way, PATIENCE).ok())?;
    connection.command(&["TIME"]).is_ok().then_some(connection)
}
