//! Simulation: the real engine of several processes on a simulated server, in one thread under
//! paused time, so that minutes pass in milliseconds and everything follows from a seed: a run that
//! fails is made again by its seed.
//!
//! Each process is a manager with tasks of its own and a clock that runs at a rate of its own; it
//! can be stopped and killed, which nothing of it notices. The server is the memory store as a
//! value, with a clock that can be stepped. The network between them delays, loses, doubles and
//! keeps messages, one way or both, and executes what was stuck long after its caller has given up.
//! What the tasks see goes into a [`History`], which the same checkers judge as those of real
//! processes. A [`Lie`] is a bug on purpose, which they must notice.
//!
//! Not on `turmoil`: it simulates hosts that talk over its own TCP, each with a runtime that is
//! moved on in steps of fixed length. What is simulated here is on this side of any socket; one
//! runtime under paused time goes from event to event and needs nothing more, and stopping the
//! tasks of one process is not among what `turmoil` does.

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

/// What happens to processes, servers and network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Faults {
    /// Nothing.
    None,
    /// Processes are stopped and killed.
    Processes,
    /// What loses no key.
    Safe,
    /// What loses keys, too.
    Losing,
    /// Of several servers, the last one comes back empty now and then: whoever held a bare majority
    /// with it is told that it holds the lock no more, and nobody gets it too early.
    OneMember,
}

/// A bug that is put in on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lie {
    /// A key that somebody has is granted to another.
    GrantsTwice,
    /// Renewals are answered, and not carried out.
    OnlySaysRenewed,
    /// Tokens are granted more than once.
    ReusesTokens,
    /// The resource does not look at tokens.
    ForgetsTokens,
    /// Waiters are neither told of a release nor ask again.
    ForgetsWaiters,
    /// Whoever has a key keeps it, wanted or not.
    RenewsAll,
    /// Leases last a thousand times as long as they should.
    NeverExpires,
    /// Holders are not told that their lock is lost.
    TellsNobody,
    /// Releases free what another has.
    ReleasesForeign,
    /// Failures of the network look like wrong credentials.
    WrongError,
    /// Who wants a fair lock does not look at its queue.
    JumpsQueues,
    /// One process is never granted anything.
    StarvesOne,
    /// Waiters are told to ask again at once, always.
    NoPauses,
}

/// A run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Everything follows from it.
    pub seed: u64,
    /// At work side by side.
    pub processes: usize,
    /// Of each process.
    pub tasks: usize,
    /// One, or a quorum of three.
    pub servers: usize,
    /// For how long things happen to them.
    pub time: Duration,
    /// For how long they go on after that.
    pub calm: Duration,
    /// Of renewed locks.
    pub lease: Duration,
    /// Of calls to the store.
    pub call_timeout: Duration,
    /// The longest pause of a waiter that hears nothing.
    pub fallback: Duration,
    /// How long patient requests wait.
    pub patience: Duration,
    /// What happens.
    pub faults: Faults,
    /// What is wrong on purpose.
    pub lie: Option<Lie>,
}

impl Plan {
    /// Three processes of three tasks, a few seconds of faults, and a few of calm.
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

    /// The same on a quorum of three servers.
    #[must_use]
    pub fn quorum(seed: u64, faults: Faults) -> Self {
        // Of which each of its calls has a part.
        let call_timeout = Duration::from_millis(600);
        Self { servers: 3, call_timeout, ..Self::new(seed, faults) }
    }

    /// What its history may have. Nothing here is slower than it should be, so the slack is for
    /// what is noted late: a message's way there and back, and a body's look.
    #[must_use]
    pub fn limits(&self) -> Limits {
        Limits {
            fallback: self.fallback,
            call_timeout: self.call_timeout,
            // A quorum is asked in several rounds.
            slack: Duration::from_millis(250) * u32::try_from(self.servers).unwrap_or(1),
            local_slack: Duration::from_millis(250),
            commands_per_second: 1500 * self.servers as u64,
            // Some bodies last longer than a lease.
            stint: self.lease * 4,
            ..Limits::new(self.lease)
        }
    }

    /// Plays it.
    #[must_use]
    pub fn run(&self) -> Run {
        let (logs, history) = run::play(self);
        let violations = check(&history, &self.limits());
        Run { logs, history, violations }
    }
}

/// What came of a run.
#[derive(Debug)]
pub struct Run {
    /// The text of each log, by process.
    pub logs: BTreeMap<String, String>,
    /// All of them.
    pub history: History,
    /// What is wrong with it.
    pub violations: Vec<Violation>,
}
