//! Simulation: the real engine of several processes on a simulated server. Everything runs in one
//! thread under paused time, so minutes pass in milliseconds. Everything follows from a seed, so a
//! failed run can be repeated.
//!
//! Each process is a manager with its own tasks, and with a clock that runs at its own rate. It can
//! be stopped or killed without noticing. The server is the memory store as a value, with a clock
//! that can be stepped. The network between them delays, loses, duplicates and holds back messages,
//! one way or both. It executes stuck requests long after their callers have given up. All that the
//! tasks see goes into a [`History`], judged by the same checkers as those of real processes. A
//! [`Lie`] is a deliberate bug, which the checkers must notice.
//!
//! This does not use `turmoil`, which simulates hosts that talk over its own TCP, and advances each
//! host's runtime in fixed steps. The simulation here ends above the sockets, so one runtime under
//! paused time suffices, and it jumps from event to event. Besides, `turmoil` cannot stop the tasks
//! of one process.

mod faults;
mod listen;
mod net;
mod register;
mod run;
mod store;
mod version;
mod worker;
mod world;

use std::collections::BTreeMap;
use std::time::Duration;

use crate::history::{History, Limits, Violation, check};

/// The faults of processes, servers and the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Faults {
    /// Nothing.
    None,
    /// Processes are stopped and killed.
    Processes,
    /// Faults that lose no key.
    Safe,
    /// Also faults that lose keys.
    Losing,
    /// The last one of several servers comes back empty now and then. A holder with a bare majority
    /// that included it is told that its lock is lost, and nobody else gets the lock too early.
    OneMember,
}

/// A deliberate bug.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lie {
    /// A key is granted although it is held.
    GrantsTwice,
    /// Renewals are answered, but not carried out.
    OnlySaysRenewed,
    /// Tokens are granted more than once.
    ReusesTokens,
    /// The resource does not check tokens.
    ForgetsTokens,
    /// Waiters are not told of releases, and do not ask again.
    ForgetsWaiters,
    /// Holds are renewed, wanted or not.
    RenewsAll,
    /// Leases last a thousand times as long as they should.
    NeverExpires,
    /// Holders are not told that their lock is lost.
    TellsNobody,
    /// A release frees the hold of another owner.
    ReleasesForeign,
    /// Network failures look like wrong credentials.
    WrongError,
    /// A request for a fair lock does not look at its queue.
    JumpsQueues,
    /// One process is never granted anything.
    StarvesOne,
    /// Waiters are always told to ask again at once.
    NoPauses,
}

/// The plan of a run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The seed of everything.
    pub seed: u64,
    /// Number of concurrent processes.
    pub processes: usize,
    /// Number of tasks in each process.
    pub tasks: usize,
    /// Number of servers: one, or three for a quorum.
    pub servers: usize,
    /// How long faults happen.
    pub time: Duration,
    /// How long the processes go on after that.
    pub calm: Duration,
    /// Lease of renewed locks.
    pub lease: Duration,
    /// Time-out of one call to the store.
    pub call_timeout: Duration,
    /// Maximum pause of a waiter that hears nothing.
    pub fallback: Duration,
    /// How long patient requests wait.
    pub patience: Duration,
    /// The faults that happen.
    pub faults: Faults,
    /// The deliberate bug, if any.
    pub lie: Option<Lie>,
}

impl Plan {
    /// Returns a plan with three processes of three tasks, a few seconds of faults, and a few of
    /// calm.
    #[must_use]
    pub fn new(seed: u64, faults: Faults) -> Self {
        Self {
            seed,
            processes: 3,
            tasks: 3,
            servers: 1,
            time: Duration::from_secs(4),
            calm: Duration::from_secs(2),
            lease: Duration::from_secs(1),
            call_timeout: Duration::from_millis(250),
            fallback: Duration::from_secs(1),
            patience: Duration::from_secs(60),
            faults,
            lie: None,
        }
    }

    /// Returns the same plan on a quorum of three servers.
    #[must_use]
    pub fn quorum(seed: u64, faults: Faults) -> Self {
        // Each call to one server gets a part of it.
        let call_timeout = Duration::from_millis(600);
        Self { servers: 3, call_timeout, ..Self::new(seed, faults) }
    }

    /// Returns the limits of the history. The simulation itself is never slow, so the slack only
    /// covers late notes: a message's round trip, and the interval at which a body checks.
    #[must_use]
    pub fn limits(&self) -> Limits {
        Limits {
            fallback: self.fallback,
            call_timeout: self.call_timeout,
            // A quorum takes several rounds.
            slack: Duration::from_millis(250) * u32::try_from(self.servers).unwrap_or(1),
            local_slack: Duration::from_millis(250),
            commands_per_second: 1500 * self.servers as u64,
            // Some bodies last longer than a lease.
            stint: self.lease * 4,
            ..Limits::new(self.lease)
        }
    }

    /// Runs the simulation.
    #[must_use]
    pub fn run(&self) -> Run {
        let (logs, history) = run::play(self);
        let violations = check(&history, &self.limits());
        Run { logs, history, violations }
    }
}

/// The results of a run.
#[derive(Debug)]
pub struct Run {
    /// The text of each log, by process.
    pub logs: BTreeMap<String, String>,
    /// The history of all logs.
    pub history: History,
    /// The violations in it.
    pub violations: Vec<Violation>,
}
