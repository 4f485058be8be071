//! [`Fault`]: what a fault does to a run, what it may take, and which errors it explains.

use std::str::FromStr;

use super::arena::Topology;
use crate::history::{ErrorClass, Loses};

/// A fault: an action, or a state that lasts for a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Fault {
    /// No message passes between the clients and one server, in either direction.
    Partition,
    /// No message passes between the leader and the other members.
    PeerPartition,
    /// Requests vanish on their way to one server; its answers and messages pass.
    PartitionToServer,
    /// Requests are carried out, but neither answers nor messages come back.
    PartitionToClient,
    /// A few requests are carried out, and their connections are silent from then on.
    LostAnswers,
    /// Every message is delayed by a random time.
    SlowLink,
    /// Connections are reset, before the request arrives or after it was carried out.
    Reset,
    /// Connections are reset when half of a request or of an answer has passed.
    Torn,
    /// One side of a connection sees its end, the other does not.
    HalfClosed,
    /// Requests arrive after their client has closed the connection.
    LateRequests,
    /// Published messages vanish.
    LostMessages,
    /// Published messages come twice.
    DoubledMessages,
    /// Requests are answered with `LOADING`.
    Loading,
    /// SIGSTOP for a worker, for longer than its leases.
    StoppedWorker,
    /// The threads of a worker's executor are blocked for longer than its leases.
    BlockedExecutor,
    /// SIGKILL for a worker while it holds a lock.
    KilledHolder,
    /// SIGKILL for a worker while it waits for a lock.
    KilledWaiter,
    /// SIGKILL for a worker while it releases a lock.
    KilledReleaser,
    /// SIGSTOP for a server, for longer than leases.
    StoppedServer,
    /// SIGSTOP for a member that is not the leader, for longer than leases.
    StoppedFollower,
    /// SIGSTOP for the leader and a worker together, for longer than sessions.
    StoppedLeaderAndWorker,
    /// SIGKILL for a server, which comes back with its data.
    KilledServer,
    /// SIGKILL for a member that is not the leader, which comes back with its data.
    KilledFollower,
    /// SIGKILL for all members, which come back with their data.
    KilledCluster,
    /// A server restarts without its data.
    LostData,
    /// `FLUSHALL`, `TRUNCATE`, `drop`.
    Flush,
    /// `SCRIPT FLUSH`.
    ScriptFlush,
    /// The server closes all connections of clients.
    CutClients,
    /// The server closes the connections of subscribers.
    CutSubscribers,
    /// A message that exceeds the output buffers of subscribers.
    SubscriberOverflow,
    /// The user may not use channels any more.
    NoChannels,
    /// A transaction of a stranger locks all rows, for longer than leases.
    LockedRows,
    /// A key that is held is deleted.
    DeletedKey,
    /// A key that is held is overwritten with foreign text.
    OverwrittenKey,
    /// A node that is no entry is in the directory of a key.
    ForeignNode,
    /// The session that has a key is ended by somebody else.
    EndedSession,
    /// The server is short of memory, and evicts keys.
    Eviction,
    /// The server has no memory for writes.
    OutOfMemory,
    /// The server has become a replica.
    ReadOnly,
    /// The clock of a live server is stepped forward by a minute.
    ClockAhead,
    /// The clock of a live server is stepped back by a minute.
    ClockBehind,
    /// The primary hangs, and a replica that has all its data takes over.
    Failover,
    /// The primary hangs, and a replica takes over that missed its last writes.
    LossyFailover,
    /// A replica becomes the primary by an operator's command.
    Promotion,
    /// The primary steps down by an operator's command, and a member with all its data takes over.
    StepDown,
    /// The history of the keys is removed, up to the present.
    Compaction,
    /// The slot of a key moves to another node while it is held and waited for.
    MovedSlot,
    /// The slot of a key begins to move, with half of its keys, stays like that for a while, and
    /// moves back.
    HalfMovedSlot,
}

/// The properties of a fault.
struct Entry {
    fault: Fault,
    name: &'static str,
    loses: Loses,
    errors: &'static [ErrorClass],
    at: &'static [Topology],
}

const ALL: &[Topology] = &Topology::ALL;
/// Topologies without replicas: each server has the only copy of its data.
const ALONE: &[Topology] = &[Topology::Single, Topology::Quorum];
/// Topologies whose servers have their data on disk.
const LASTING: &[Topology] = &[
    Topology::Single,
    Topology::Quorum,
    Topology::Postgres,
    Topology::MariaDb,
    Topology::MongoDb,
    Topology::Etcd,
    Topology::ZooKeeper,
];
const SERVERS: &[Topology] = &[
    Topology::Single,
    Topology::Sentinel,
    Topology::Cluster,
    Topology::Quorum,
    Topology::Postgres,
    Topology::MariaDb,
    Topology::MongoDb,
    Topology::Etcd,
    Topology::ZooKeeper,
];
/// Topologies whose servers have clocks that can be set.
const CLOCKS: &[Topology] = &[
    Topology::Single,
    Topology::Sentinel,
    Topology::Cluster,
    Topology::Quorum,
    Topology::Postgres,
    Topology::MariaDb,
    Topology::MongoDb,
];
/// Topologies whose servers close connections by a command.
const CLOSING: &[Topology] = &[
    Topology::Single,
    Topology::Sentinel,
    Topology::Cluster,
    Topology::Quorum,
    Topology::Postgres,
    Topology::MariaDb,
];
const REDIS: &[Topology] = &[Topology::Single, Topology::Sentinel, Topology::Cluster, Topology::Quorum];
const DATABASES: &[Topology] = &[Topology::Postgres, Topology::MariaDb, Topology::MongoDb, Topology::Sqlite];
/// Topologies whose members elect another one that has all data.
const ELECTING: &[Topology] = &[Topology::MongoDb, Topology::Etcd];
const ETCD: &[Topology] = &[Topology::Etcd];
const ZOOKEEPER: &[Topology] = &[Topology::ZooKeeper];
/// Topologies whose locks end with sessions, on members that elect a leader.
const SESSIONS: &[Topology] = &[Topology::Etcd, Topology::ZooKeeper];
/// Topologies with one record for a key.
const RECORDS: &[Topology] = &[
    Topology::Single,
    Topology::Sentinel,
    Topology::Cluster,
    Topology::Quorum,
    Topology::Postgres,
    Topology::MariaDb,
    Topology::MongoDb,
    Topology::Etcd,
    Topology::Sqlite,
];
const SINGLE: &[Topology] = &[Topology::Single];
const REPLICATED: &[Topology] = &[Topology::Sentinel, Topology::Cluster];
const CLUSTER: &[Topology] = &[Topology::Cluster];

const NONE: &[ErrorClass] = &[];
const AWAY: &[ErrorClass] = &[ErrorClass::Unavailable, ErrorClass::Lost];
const LOST: &[ErrorClass] = &[ErrorClass::Lost];
const LOST_OR_STRANGE: &[ErrorClass] = &[ErrorClass::Lost, ErrorClass::Misconfigured];
const AWAY_OR_STRANGE: &[ErrorClass] =
    &[ErrorClass::Unavailable, ErrorClass::Lost, ErrorClass::Misconfigured];

const fn entry(
    fault: Fault,
    name: &'static str,
    loses: Loses,
    errors: &'static [ErrorClass],
    at: &'static [Topology],
) -> Entry {
    Entry { fault, name, loses, errors, at }
}

const TABLE: [Entry; 48] = [
    entry(Fault::Partition, "partition", Loses::Nothing, AWAY, SERVERS),
    entry(Fault::PeerPartition, "peer-partition", Loses::Nothing, AWAY, SESSIONS),
    entry(Fault::PartitionToServer, "partition-to-server", Loses::Nothing, AWAY, SERVERS),
    entry(Fault::PartitionToClient, "partition-to-client", Loses::Nothing, AWAY, SERVERS),
    entry(Fault::LostAnswers, "lost-answers", Loses::Nothing, AWAY, SERVERS),
    entry(Fault::SlowLink, "slow-link", Loses::Nothing, AWAY, SERVERS),
    entry(Fault::Reset, "reset", Loses::Nothing, AWAY, SERVERS),
    entry(Fault::Torn, "torn", Loses::Nothing, AWAY, SERVERS),
    entry(Fault::HalfClosed, "half-closed", Loses::Nothing, AWAY, SERVERS),
    entry(Fault::LateRequests, "late-requests", Loses::Nothing, AWAY, SERVERS),
    entry(Fault::LostMessages, "lost-messages", Loses::Nothing, NONE, REDIS),
    entry(Fault::DoubledMessages, "doubled-messages", Loses::Nothing, NONE, REDIS),
    entry(Fault::Loading, "loading", Loses::Nothing, AWAY, REDIS),
    entry(Fault::StoppedWorker, "stopped-worker", Loses::Nothing, LOST, ALL),
    entry(Fault::BlockedExecutor, "blocked-executor", Loses::Nothing, LOST, ALL),
    entry(Fault::KilledHolder, "killed-holder", Loses::Nothing, NONE, ALL),
    entry(Fault::KilledWaiter, "killed-waiter", Loses::Nothing, NONE, ALL),
    entry(Fault::KilledReleaser, "killed-releaser", Loses::Nothing, NONE, ALL),
    entry(Fault::StoppedServer, "stopped-server", Loses::Nothing, AWAY, LASTING),
    entry(Fault::StoppedFollower, "stopped-follower", Loses::Nothing, AWAY, SESSIONS),
    entry(Fault::StoppedLeaderAndWorker, "stopped-leader-and-worker", Loses::Nothing, AWAY, SESSIONS),
    entry(Fault::KilledServer, "killed-server", Loses::Nothing, AWAY, LASTING),
    entry(Fault::KilledFollower, "killed-follower", Loses::Nothing, AWAY, SESSIONS),
    entry(Fault::KilledCluster, "killed-cluster", Loses::Nothing, AWAY, SESSIONS),
    entry(Fault::LostData, "lost-data", Loses::Keys, AWAY, ALONE),
    entry(Fault::Flush, "flush", Loses::Keys, LOST, ALL),
    entry(Fault::ScriptFlush, "script-flush", Loses::Nothing, NONE, REDIS),
    entry(Fault::CutClients, "cut-clients", Loses::Nothing, AWAY, CLOSING),
    entry(Fault::CutSubscribers, "cut-subscribers", Loses::Nothing, NONE, REDIS),
    entry(Fault::SubscriberOverflow, "subscriber-overflow", Loses::Nothing, NONE, REDIS),
    entry(Fault::NoChannels, "no-channels", Loses::Nothing, NONE, REDIS),
    entry(Fault::LockedRows, "locked-rows", Loses::Nothing, AWAY, DATABASES),
    entry(Fault::DeletedKey, "deleted-key", Loses::Keys, LOST, ALL),
    entry(Fault::OverwrittenKey, "overwritten-key", Loses::Keys, AWAY_OR_STRANGE, RECORDS),
    entry(Fault::ForeignNode, "foreign-node", Loses::Nothing, LOST_OR_STRANGE, ZOOKEEPER),
    entry(Fault::EndedSession, "ended-session", Loses::Keys, AWAY, ZOOKEEPER),
    entry(Fault::Eviction, "eviction", Loses::Keys, AWAY, REDIS),
    entry(Fault::OutOfMemory, "out-of-memory", Loses::Nothing, AWAY, REDIS),
    entry(Fault::ReadOnly, "read-only", Loses::Nothing, AWAY, SINGLE),
    entry(Fault::ClockAhead, "clock-ahead", Loses::Keys, AWAY, CLOCKS),
    entry(Fault::ClockBehind, "clock-behind", Loses::Nothing, AWAY, CLOCKS),
    entry(Fault::Failover, "failover", Loses::Keys, AWAY, REPLICATED),
    entry(Fault::LossyFailover, "lossy-failover", Loses::Keys, AWAY, REPLICATED),
    entry(Fault::Promotion, "promotion", Loses::Keys, AWAY, REPLICATED),
    entry(Fault::StepDown, "step-down", Loses::Nothing, AWAY, ELECTING),
    entry(Fault::Compaction, "compaction", Loses::Nothing, NONE, ETCD),
    entry(Fault::MovedSlot, "moved-slot", Loses::Nothing, AWAY, CLUSTER),
    entry(Fault::HalfMovedSlot, "half-moved-slot", Loses::Nothing, AWAY, CLUSTER),
];

impl Fault {
    /// Returns all faults that exist at a topology.
    pub fn at(topology: Topology) -> impl Iterator<Item = Self> {
        TABLE.iter().filter(move |entry| entry.at.contains(&topology)).map(|entry| entry.fault)
    }

    fn entry(self) -> &'static Entry {
        TABLE.iter().find(|entry| entry.fault == self).expect("every fault is in the table")
    }

    /// Returns the name on the command line and in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.entry().name
    }

    /// Returns the loss that the fault causes in the store: it decides which promises of exclusion
    /// hold.
    #[must_use]
    pub fn loses(self) -> Loses {
        self.entry().loses
    }

    /// Returns the errors that callers may get because of it, besides the end of their own wait.
    #[must_use]
    pub fn errors(self) -> &'static [ErrorClass] {
        self.entry().errors
    }

    /// Returns its class: `A` if it takes nothing from the store, otherwise `B`.
    #[must_use]
    pub fn class(self) -> char {
        if self.loses() == Loses::Nothing { 'A' } else { 'B' }
    }
}

impl FromStr for Fault {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        TABLE.iter().find(|entry| entry.name == text).map(|entry| entry.fault).ok_or_else(|| {
            let names: Vec<&str> = TABLE.iter().map(|entry| entry.name).collect();
            format!("unknown fault {text:?}; there are: {}", names.join(", "))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_fault_has_one_name_and_a_place() {
        for entry in &TABLE {
            assert_eq!(entry.name.parse(), Ok(entry.fault));
            assert_eq!(entry.fault.name(), entry.name);
            assert!(!entry.at.is_empty());
        }
        assert!("nonsense".parse::<Fault>().unwrap_err().contains("half-moved-slot"));
        assert!(Fault::at(Topology::Single).count() > 30);
        assert!(Fault::at(Topology::Sqlite).any(|fault| fault == Fault::LockedRows));
        assert!(Fault::at(Topology::Cluster).any(|fault| fault == Fault::MovedSlot));
    }
}
