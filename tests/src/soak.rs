//! Soak: one process takes and releases locks for a long time, and its memory use must stay flat.
//!
//! The program `soak` of this package takes and loses locks in every way that users do, and reports
//! its memory use now and then. The parent ([`run`]) cuts its connections from time to time. On a
//! cluster, the parent also moves slots and makes replicas take over. In the end it
//! [judges](Growth) the growth: it compares the last third of the run with the third before.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::cluster::{self, Cluster, slot_of};
use crate::redis::StartError;
use crate::{Helper, RedisServer};

/// Interval at which the program reports its memory use.
pub const PERIOD: Duration = Duration::from_millis(100);

/// Maximum growth of memory from one third of a run to the next: tables double, pages fragment.
const LIVE_ALLOWANCE: u64 = 256 * 1024;
const RESIDENT_ALLOWANCE: u64 = 4 * 1024 * 1024;

/// The plan of a run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The program `soak`.
    pub program: PathBuf,
    /// The seed of the program's choices.
    pub seed: u64,
    /// Duration of the run.
    pub time: Duration,
    /// Bytes that the program loses on purpose in every [`PERIOD`].
    pub leak: usize,
    /// The servers with the locks.
    pub servers: Servers,
}

/// The kind of servers with the locks of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Servers {
    /// One server.
    One,
    /// A cluster of three primaries with one replica each.
    Cluster,
}

/// The servers of a run.
enum Field {
    One(RedisServer),
    Cluster(Cluster),
}

impl Field {
    fn start(servers: Servers) -> Result<Self, StartError> {
        Ok(match servers {
            Servers::One => Self::One(RedisServer::try_start_with(&[])?),
            Servers::Cluster => {
                Self::Cluster(Cluster::try_start_with(cluster::Options::default().replicas(1))?)
            }
        })
    }

    fn url(&self) -> String {
        match self {
            Self::One(server) => server.url(),
            Self::Cluster(cluster) => cluster.url(),
        }
    }

    fn servers(&self) -> &[RedisServer] {
        match self {
            Self::One(server) => std::slice::from_ref(server),
            Self::Cluster(cluster) => cluster.nodes(),
        }
    }

    /// Ends all connections of the program. Replication goes on.
    fn cut(&self) {
        for server in self.servers() {
            server.cli(&["CLIENT", "KILL", "TYPE", "pubsub"]);
            server.cli(&["CLIENT", "KILL", "TYPE", "normal"]);
        }
    }

    /// Moves the slot of the `n`th shared key to another primary. Every fifth time a replica takes
    /// over instead.
    fn rearrange(&self, n: usize) {
        let Self::Cluster(cluster) = self else { return };
        let primaries = cluster.primaries();
        let key = format!("lock:soak:shared:{}", n % 8);
        let owner = cluster.node_of(&key);
        if n % 5 == 4 {
            cluster.failover(owner);
        } else if let Some(&to) =
            primaries.iter().cycle().skip(n).take(primaries.len()).find(|&&at| at != owner)
        {
            cluster.move_slot(slot_of(&key), to);
        }
    }

    fn used_memory(&self) -> u64 {
        self.servers().iter().map(used_memory).sum()
    }
}

/// The program's memory use at one time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    /// Allocated bytes.
    pub live: u64,
    /// Resident bytes; 0 if the system does not report them.
    pub resident: u64,
}

/// Memory use in the middle and in the last third of a run; medians.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Growth {
    /// Memory use in the middle third.
    pub middle: Sample,
    /// Memory use in the last third.
    pub last: Sample,
}

impl Growth {
    /// Computes the medians. Returns `None` when there are too few samples.
    #[must_use]
    pub fn of(samples: &[Sample]) -> Option<Self> {
        const LEAST: usize = 30;
        if samples.len() < LEAST {
            return None;
        }
        let third = samples.len() / 3;
        let (middle, last) = samples[third..].split_at(third);
        Some(Self { middle: median(middle), last: median(last) })
    }

    /// Whether the last third exceeds the middle one by no more than the allowance.
    #[must_use]
    pub fn is_flat(&self) -> bool {
        let Self { middle, last } = self;
        last.live <= middle.live + LIVE_ALLOWANCE && last.resident <= middle.resident + RESIDENT_ALLOWANCE
    }
}

impl fmt::Display for Growth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kib = |bytes: u64| bytes / 1024;
        let Self { middle, last } = self;
        write!(
            f,
            "live {} KiB, then {} KiB; resident {} KiB, then {} KiB",
            kib(middle.live),
            kib(last.live),
            kib(middle.resident),
            kib(last.resident)
        )
    }
}

fn median(samples: &[Sample]) -> Sample {
    let middle = |value: fn(&Sample) -> u64| {
        let mut values: Vec<u64> = samples.iter().map(value).collect();
        values.sort_unstable();
        values.get(values.len() / 2).copied().unwrap_or(0)
    };
    Sample { live: middle(|sample| sample.live), resident: middle(|sample| sample.resident) }
}

/// The results of a run.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// `None` when the run was too short.
    pub growth: Option<Growth>,
    /// Number of locks that were taken.
    pub grants: u64,
    /// Number of requests that ended without a lock: busy, timed out, dropped, or cut off.
    pub vain: u64,
    /// Allocated bytes at the end, when all work was done.
    pub at_rest: u64,
    /// The managers' leftovers at the end: keys, timers, tasks.
    pub left: String,
    /// Memory use of the servers in the middle and at the end of the run. For information only:
    /// token counters live on for a while.
    pub server: (u64, u64),
}

impl Outcome {
    /// Whether memory use was flat and nothing was left.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.growth.is_some_and(|growth| growth.is_flat()) && self.left == "0 0 0"
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { growth, grants, vain, at_rest, left, server } = self;
        writeln!(f, "{grants} grants, {vain} requests in vain")?;
        match growth {
            Some(growth) if growth.is_flat() => writeln!(f, "memory is flat: {growth}")?,
            Some(growth) => writeln!(f, "memory GROWS: {growth}")?,
            None => writeln!(f, "too short to tell whether memory grows")?,
        }
        writeln!(f, "at rest {at_rest} bytes; keys, timers, tasks: {left}")?;
        write!(f, "the servers used {} KiB, then {} KiB", server.0 / 1024, server.1 / 1024)
    }
}

/// Runs the plan. Ends everything as soon as `interrupted` returns true; it is called often.
/// Reports progress to `tell` about twice a minute.
///
/// # Errors
///
/// When the run was interrupted.
///
/// # Panics
///
/// When the server or the program does not start, or the program fails by itself.
pub fn run(plan: &Plan, interrupted: &dyn Fn() -> bool, tell: &dyn Fn(&str)) -> io::Result<Outcome> {
    const CUT: Duration = Duration::from_secs(5);
    const REARRANGE: Duration = Duration::from_secs(7);
    const TELL: Duration = Duration::from_secs(30);
    const SLACK: Duration = Duration::from_secs(60);
    let field = Field::start(plan.servers).unwrap_or_else(|error| panic!("{error}"));
    let args = [field.url(), plan.seed.to_string(), plan.time.as_millis().to_string(), plan.leak.to_string()];
    let mut program = Helper::spawn_command(Command::new(&plan.program).args(args));
    let start = Instant::now();
    let (mut next_cut, mut next_tell) = (start + CUT, start + TELL);
    let (mut next_change, mut changes) = (start + REARRANGE, 0);
    let mut samples: Vec<Sample> = Vec::new();
    let mut middle = 0;
    loop {
        if interrupted() {
            return Err(io::Error::new(io::ErrorKind::Interrupted, "interrupted"));
        }
        assert!(start.elapsed() < plan.time + SLACK, "the program does not end");
        let now = Instant::now();
        if now >= next_cut {
            next_cut = now + CUT;
            field.cut();
        }
        if now >= next_change && start.elapsed() < plan.time {
            next_change = now + REARRANGE;
            field.rearrange(changes);
            changes += 1;
        }
        let Some(line) = program.try_line(PERIOD) else { continue };
        let words: Vec<&str> = line.split_whitespace().collect();
        let number = |at: usize| words.get(at).and_then(|word| word.parse().ok()).unwrap_or(0);
        match words.first() {
            Some(&"sample") => samples.push(Sample { live: number(1), resident: number(2) }),
            Some(&"done") => {
                let outcome = Outcome {
                    growth: Growth::of(&samples),
                    grants: number(1),
                    vain: number(2),
                    at_rest: number(3),
                    left: words.get(4..).unwrap_or_default().join(" "),
                    server: (middle, field.used_memory()),
                };
                program.finish(SLACK);
                return Ok(outcome);
            }
            _ => panic!("not understood: {line:?}"),
        }
        if middle == 0 && start.elapsed() >= plan.time / 2 {
            middle = field.used_memory();
        }
        if now >= next_tell {
            next_tell = now + TELL;
            let (third, Sample { live, resident }) = (samples.len() / 3, *samples.last().expect("pushed"));
            let usual = median(&samples[third..]);
            tell(&format!(
                "{:4} s: live {} KiB (usually {}), resident {} KiB, {} grants",
                start.elapsed().as_secs(),
                live / 1024,
                usual.live / 1024,
                resident / 1024,
                number(3)
            ));
        }
    }
}

fn used_memory(server: &RedisServer) -> u64 {
    let info = server.cli(&["INFO", "memory"]);
    let bytes = info.lines().find_map(|line| line.strip_prefix("used_memory:")?.trim().parse().ok());
    bytes.unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1024 * 1024;

    fn growth(live: impl Fn(u64) -> u64, resident: impl Fn(u64) -> u64) -> Growth {
        let samples: Vec<Sample> =
            (0..300).map(|n| Sample { live: live(n), resident: resident(n) }).collect();
        Growth::of(&samples).unwrap()
    }

    #[test]
    fn noise_spikes_and_a_long_start_are_flat() {
        let noise = growth(|n| MIB + n % 7 * 50_000, |n| 20 * MIB + n % 3 * MIB);
        assert!(noise.is_flat(), "{noise}");
        let spikes = growth(|n| if n % 50 == 49 { 50 * MIB } else { MIB }, |_| 20 * MIB);
        assert!(spikes.is_flat(), "{spikes}");
        let start = growth(|n| n.min(100) * MIB, |n| n.min(100) * MIB);
        assert!(start.is_flat(), "{start}");
    }

    #[test]
    fn steady_growth_is_found_in_either_measure() {
        assert!(!growth(|n| MIB + n * 3000, |_| 20 * MIB).is_flat());
        assert!(!growth(|_| MIB, |n| 20 * MIB + n * 50_000).is_flat());
        assert!(!growth(|n| if n > 210 { 2 * MIB } else { MIB }, |_| 20 * MIB).is_flat(), "a late step");
    }

    #[test]
    fn a_few_samples_say_nothing() {
        assert_eq!(Growth::of(&[Sample { live: 1, resident: 1 }; 29]), None);
    }
}
