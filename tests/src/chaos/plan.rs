//! [`Plan`]: the course of a run, and the limits of its history.

use std::path::PathBuf;
use std::time::Duration;

use super::arena::Topology;
use super::fault::Fault;
use super::orders::{Broken, Confirmed};
use super::schedule::schedule;
use super::{CALL_TIMEOUT, FALLBACK, LEASE, PATIENCE};
use crate::Layout;
use crate::history::{ErrorClass, Limits};

/// The plan of a run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The program `chaos`.
    pub program: PathBuf,
    /// The kind of store.
    pub topology: Topology,
    /// How it keeps its locks. Workers only use the kinds of locks that the layout has.
    pub layout: Layout,
    /// The seed of the faults and of the workers' choices.
    pub seed: u64,
    /// How long faults happen in a random order. `None`: each fault happens once.
    pub time: Option<Duration>,
    /// The faults that may happen, in this order if each happens once. Empty: all faults of the
    /// topology.
    pub only: Vec<Fault>,
    /// Average pause between two faults.
    pub settle: Duration,
    /// How long the workers go on after the last fault. Shares are judged then, if this is longer
    /// than a waiter may wait in vain.
    pub calm: Duration,
    /// Allowance for a busy machine on top of every bound.
    pub slack: Duration,
    /// Number of worker processes.
    pub processes: usize,
    /// Number of tasks in each process.
    pub tasks: usize,
    /// Lease of renewed locks. If it is not the usual one, bodies last up to two thirds of it
    /// instead of a moment.
    pub lease: Duration,
    /// Error of some servers' clocks from the start.
    pub skew: Duration,
    /// How workers break the lock.
    pub broken: Broken,
    /// The servers that must confirm a grant.
    pub replication: Confirmed,
}

impl Plan {
    /// Returns a plan with three processes of six tasks, where every fault happens once.
    #[must_use]
    pub fn new(program: PathBuf, topology: Topology, seed: u64) -> Self {
        Self {
            program,
            topology,
            layout: Layout::Hash,
            seed,
            time: None,
            only: Vec::new(),
            settle: Duration::from_millis(1500),
            calm: Duration::from_secs(15),
            slack: Duration::from_secs(8),
            processes: 3,
            tasks: 6,
            lease: LEASE,
            skew: Duration::ZERO,
            broken: Broken::Nothing,
            replication: Confirmed::ByNobodyElse,
        }
    }

    /// Returns the faults of the run in their order. The sequence is endless if the plan has a
    /// `time`.
    pub(super) fn faults(&self) -> Box<dyn Iterator<Item = Fault>> {
        let only = self.only.clone();
        let chosen = move |fault: &Fault| only.is_empty() || only.contains(fault);
        match self.time {
            Some(_) => Box::new(schedule(self.seed, self.topology).filter(chosen)),
            None if self.only.is_empty() => Box::new(Fault::at(self.topology)),
            None => Box::new(self.only.clone().into_iter()),
        }
    }

    /// Returns the errors that callers may get because of the fault.
    pub(super) fn errors(&self, fault: Fault) -> Vec<ErrorClass> {
        let mut errors = fault.errors().to_vec();
        // It stops in the middle of a transaction, which keeps others waiting.
        let stops = matches!(fault, Fault::StoppedWorker | Fault::BlockedExecutor);
        if stops && self.topology.is_database() && !self.topology.has_sessions() {
            errors.push(ErrorClass::Unavailable);
        }
        // The nodes of sessions are deleted too, which ends those. A request with a short wait may
        // be over before another session has begun.
        if fault == Fault::Flush && self.topology == Topology::ZooKeeper {
            errors.push(ErrorClass::Unavailable);
        }
        if self.replication != Confirmed::ByNobodyElse {
            errors.push(ErrorClass::NotReplicated);
        }
        errors
    }

    /// Returns how much longer a key may outlive a failover if nobody gave it back before. Its end
    /// is a time on the old primary's clock, but the replica that takes over judges by its own
    /// clock.
    fn skews(&self) -> Duration {
        self.skew * 2
    }

    /// Returns how long patient requests wait.
    pub(super) fn patience(&self) -> Duration {
        PATIENCE + self.lease * 5 + self.skews() * 2
    }

    /// Returns the limits of the history.
    pub(super) fn limits(&self) -> Limits {
        let settings = Limits { fallback: FALLBACK, call_timeout: CALL_TIMEOUT, ..Limits::new(self.lease) };
        let (slack, stint) = (self.slack + self.skews(), settings.stint.max(self.lease * 3));
        let reachable = vec![Fault::SlowLink.name()];
        // Less than what a minute would bring, and ten times what has been seen.
        let passed_over = 200;
        let token_follows = self.layout == Layout::Plain;
        let unanswered = match self.topology {
            // A call may need a new connection, for which the server starts a process or a thread.
            Topology::Postgres | Topology::MariaDb | Topology::MongoDb | Topology::Etcd => {
                CALL_TIMEOUT * 3 / 5
            }
            // One process writes at a time, and which one is next is left to chance. A call may
            // wait until its time-out, and a busy machine is late to end it.
            Topology::Sqlite => CALL_TIMEOUT + slack,
            // A short wait may end in the middle of a call that a busy machine delays.
            _ => CALL_TIMEOUT / 2,
        };
        Limits { unanswered, slack, stint, reachable, passed_over, token_follows, ..settings }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::{Check, History, check};

    const S: u64 = 1_000_000_000;

    /// Returns the checks that fail in these logs with the limits of real runs.
    fn found(plan: &Plan, logs: &[(&str, &str)]) -> Vec<Check> {
        let found = check(&History::parse(logs).unwrap(), &plan.limits());
        found.into_iter().map(|violation| violation.check).collect()
    }

    fn plan() -> Plan {
        Plan::new(PathBuf::new(), Topology::Single, 1)
    }

    #[test]
    fn a_process_that_gets_nothing_in_the_calm_of_a_run_is_found() {
        let quiet = 100 * S + u64::try_from(plan().calm.as_nanos()).unwrap();
        let run = format!("0 {} 0 calm\n0 {quiet} 0 quiet", 100 * S);
        let with = |last: &str| {
            let log = format!("1 {} 0 ask mutex patient 72000 - 1 a\n1 {quiet} 0 {last}", 99 * S);
            let found = found(&plan(), &[("0.0", &log), ("run", &run)]);
            found.contains(&Check::Shares)
        };
        assert_eq!((with("refused timed-out x"), with("granted 5")), (true, false));
    }

    #[test]
    fn a_call_may_find_a_database_busy_for_a_while() {
        let with = |topology, error: &str, millis: u64| {
            let plan = Plan { topology, ..plan() };
            let log = format!(
                "1 {S} 0 ask mutex short 60 - 1 a\n1 {} 0 refused {error} no answer",
                S + millis * 1_000_000
            );
            found(&plan, &[("0.0", &log)]).contains(&Check::Errors)
        };
        assert!(!with(Topology::Sqlite, "unavailable", 8999));
        assert!(with(Topology::Sqlite, "unavailable", 9000));
        assert!(with(Topology::Sqlite, "misconfigured", 499));
        assert!(!with(Topology::Postgres, "unavailable", 599));
        assert!(with(Topology::Postgres, "unavailable", 600));
        assert!(!with(Topology::Single, "unavailable", 499));
        assert!(with(Topology::Single, "unavailable", 500));
    }

    #[test]
    fn the_longest_bodies_are_long_enough_for_a_missing_signal() {
        let lease = u64::try_from(LEASE.as_nanos()).unwrap();
        let with = |second: u64| {
            let looks = format!(
                "1 10 10 ask mutex patient 72000 - 1 a\n1 20 {lease} granted 5\n1 30 {lease} body\n1 {0} {0} alive\n1 {1} {1} alive\n1 {1} {1} end",
                lease + 30,
                lease + second + 30
            );
            found(&plan(), &[("0.0", &looks)]).contains(&Check::Validity)
        };
        assert_eq!((with(lease / 2), with(lease)), (false, true));
    }

    #[test]
    fn a_writer_whom_readers_pass_for_half_a_minute_is_found() {
        let with = |count: u64| {
            let reader = |n: u64| format!("{n} 20 20 ask read patient 72000 - {n} a\n{n} 30 90 granted 5\n");
            let readers: String = (1..=count).map(reader).collect();
            let writer = format!("1 10 10 ask write patient 72000 - 1 a\n1 {} 0 refused timed-out x", 30 * S);
            found(&plan(), &[("0.0", &readers), ("1.0", &writer)]).contains(&Check::Order)
        };
        assert_eq!((with(200), with(201)), (false, true));
    }

    #[test]
    fn a_slow_link_keeps_nobody_from_the_store() {
        let holder =
            "1 10 10 ask mutex patient 72000 - 1 a\n1 20 900 granted 5\n1 30 900 end\n1 40 40 out released";
        let waiter = format!("1 15 15 ask mutex patient 72000 - 1 a\n1 {} {} granted 6", 13 * S, 14 * S);
        let with = |name: &str| {
            let run =
                format!("0 20 0 fault nothing unavailable,lost {name}\n0 {} 0 fault-over {name}", 12 * S);
            found(&plan(), &[("0.0", holder), ("1.0", &waiter), ("run", &run)]).contains(&Check::Waiting)
        };
        assert_eq!((with("slow-link"), with("partition")), (true, false));
    }
}
