//! Carries out the faults.

use std::io;
use std::time::{Duration, Instant};

use super::arena::{Topology, tell};
use super::database::{Act, Database};
use super::fault::Fault;
use super::run::Stage;
use super::want::{WANTED, stored};
use super::{CALL_TIMEOUT, LEASE, MAX_LEASE};
use crate::cluster::slot_of;
use crate::history::Loses;
use crate::proxy::{Fault as Trouble, Injection, Line, Way};
use crate::redis::Data;

/// Longer than leases.
const LONG: Duration = LEASE.saturating_mul(5).checked_div(4).expect("not zero");
/// Shorter than leases.
const SHORT: Duration = Duration::from_millis(1500);
/// Maximum time to try something that needs the right moment.
pub(super) const TRIES: Duration = Duration::from_secs(5);
/// How long a server of a quorum has no vote after the loss of its data has been noticed.
const QUARANTINE: Duration = MAX_LEASE.saturating_add(Duration::from_secs(4));
const SUBSCRIBER_LIMIT: &str = "pubsub 33554432 8388608 60";

/// The key and the server that a fault hits.
pub(super) struct Target {
    /// The key as workers call it.
    wanted: &'static str,
    key: String,
    at: usize,
}

impl Target {
    /// Returns the only key that the fault takes, or `None` if it may take any.
    pub(super) fn only(&self, fault: Fault) -> Option<&'static str> {
        matches!(fault, Fault::DeletedKey | Fault::OverwrittenKey).then_some(self.wanted)
    }
}

impl Stage<'_> {
    /// Chooses the target of a fault: a key with one holder at a time, and a server that serves it.
    pub(super) fn aim(&mut self) -> Target {
        let wanted = WANTED[usize::try_from(self.dice.below(3)).unwrap_or(0)];
        let key = stored(wanted);
        let mut at = self.arena.serving(&key, &mut self.dice);
        if self.arena.topology == Topology::Quorum {
            // A server that has lost its data has no vote until all locks that it may have
            // forgotten are over. Until then faults hit the same server: two of three would be too
            // many.
            if let Some((weak, until)) = self.weak
                && Instant::now() < until
            {
                at = weak;
            }
        }
        Target { wanted, key, at }
    }

    /// Returns the loss that the fault causes in the store when it hits this target.
    pub(super) fn loses(&self, fault: Fault, target: &Target) -> Loses {
        match fault {
            // Losing one of three servers does not matter.
            _ if self.arena.topology == Topology::Quorum => Loses::Nothing,
            Fault::LostData | Fault::Flush | Fault::Eviction if self.arena.is_behind(target.at) => {
                Loses::KeysAndTokens
            }
            // The row also has the counter.
            Fault::DeletedKey | Fault::OverwrittenKey
                if self.arena.database().is_some() && self.arena.is_behind(target.at) =>
            {
                Loses::KeysAndTokens
            }
            // All data is there, but the next primary may have another clock.
            Fault::StoppedServer | Fault::KilledServer | Fault::StepDown
                if self.arena.mongo().is_some() && self.arena.clocks_differ() =>
            {
                Loses::Keys
            }
            // A leader that goes on after a stop ends the sessions that were kept alive meanwhile,
            // before it hears of its successor (etcd-io/etcd#15247). Versions with the correction
            // do so, too: they only notice a leader whose disk was stuck.
            Fault::StoppedServer | Fault::StoppedLeaderAndWorker if self.arena.etcd().is_some() => {
                Loses::Keys
            }
            // The clock is stepped forward again later, and that takes keys.
            Fault::ClockBehind if self.arena.is_replicated() => Loses::Keys,
            // The replica that takes over may not know the latest tokens, and its clock may show an
            // earlier time.
            Fault::Failover | Fault::LossyFailover | Fault::Promotion if self.arena.clocks_differ() => {
                Loses::KeysAndTokens
            }
            // While a slot moves, two servers have keys of a lock, and the clock of either one
            // gives the token.
            Fault::MovedSlot | Fault::HalfMovedSlot if self.arena.clocks_differ() => Loses::Tokens,
            _ => fault.loses(),
        }
    }

    /// Carries out the fault, and ends it. Returns whether it has really happened.
    pub(super) fn inject(&mut self, fault: Fault, target: Target) -> io::Result<bool> {
        let at = target.at;
        let happened = self.carry_out(fault, target)?;
        if fault.loses().keys() || fault == Fault::ClockBehind {
            self.weak = Some((at, Instant::now() + QUARANTINE));
        }
        Ok(happened)
    }

    fn carry_out(&mut self, fault: Fault, Target { wanted, key, at }: Target) -> io::Result<bool> {
        match fault {
            Fault::Partition
            | Fault::PartitionToServer
            | Fault::PartitionToClient
            | Fault::LostAnswers
            | Fault::SlowLink
            | Fault::Reset
            | Fault::Torn
            | Fault::HalfClosed
            | Fault::LateRequests
            | Fault::LostMessages
            | Fault::DoubledMessages
            | Fault::Loading => self.network(fault, at),
            Fault::StoppedWorker => self.stop_worker().map(|()| true),
            Fault::BlockedExecutor => self.block_worker(LONG).map(|()| true),
            Fault::KilledHolder => self.doom_worker("die holding").map(|()| true),
            Fault::KilledWaiter => self.doom_worker("die waiting").map(|()| true),
            Fault::KilledReleaser => self.doom_worker("die releasing").map(|()| true),
            Fault::StoppedServer => self.stop_server(fault, at),
            Fault::KilledServer => {
                self.arena.act(at, Act::Kill, Data::Kept);
                self.rest(SHORT / 3)?;
                self.arena.act(at, Act::Restart, Data::Kept);
                self.arena.heal();
                Ok(true)
            }
            Fault::StoppedFollower => {
                let at = self.follower(at);
                self.stop_server(fault, at)
            }
            Fault::KilledFollower => {
                let at = self.follower(at);
                self.carry_out(Fault::KilledServer, Target { wanted, key, at })
            }
            Fault::StoppedLeaderAndWorker => self.stop_server_and_worker(fault, at).map(|()| true),
            Fault::KilledCluster => {
                (0..3).for_each(|at| self.arena.act(at, Act::Kill, Data::Kept));
                self.rest(SHORT / 3)?;
                (0..3).for_each(|at| self.arena.act(at, Act::Restart, Data::Kept));
                self.arena.heal();
                Ok(true)
            }
            Fault::PeerPartition => {
                self.arena.part(at);
                let rest = self.rest(LONG * 2);
                let happened = self.arena.join();
                self.arena.heal();
                rest.map(|()| happened)
            }
            Fault::ForeignNode => match self.arena.zookeeper() {
                Some(zookeeper) => {
                    let happened = self.until(|| zookeeper.make_foreign(&key));
                    let rest = self.rest(SHORT);
                    // It may be there even if there was no answer.
                    zookeeper.delete_foreign()?;
                    rest.and(happened)
                }
                None => Ok(false),
            },
            Fault::EndedSession => match self.arena.zookeeper() {
                Some(zookeeper) => self.strike(fault, || self.until(|| zookeeper.end_session(&key))),
                None => Ok(false),
            },
            Fault::Compaction => self.arena.etcd().map_or(Ok(false), |etcd| etcd.compact().map(|()| true)),
            Fault::StepDown => {
                if let Some(mongo) = self.arena.mongo() {
                    mongo.step_down()?;
                }
                if let Some(etcd) = self.arena.etcd() {
                    etcd.step_down()?;
                }
                self.rest(LONG)?;
                self.arena.heal();
                Ok(true)
            }
            Fault::LostData => {
                self.strikes(fault);
                self.arena.act(at, Act::Restart, Data::Lost);
                self.strikes(fault);
                Ok(true)
            }
            Fault::Failover | Fault::LossyFailover | Fault::Promotion => self.fail_over(fault, at, &key),
            Fault::MovedSlot | Fault::HalfMovedSlot => self.move_slot(fault, &key),
            Fault::ClockAhead => self.step(fault, at, self.arena.is_replicated()).map(|()| true),
            Fault::ClockBehind => {
                // A hold that nobody renews any more would last another minute.
                let forgotten = self.forgotten.saturating_duration_since(Instant::now());
                self.rest(forgotten.max(LEASE + Duration::from_secs(1)))?;
                let is_alone = self.arena.topology == Topology::Single || self.arena.database().is_some();
                self.step(fault, at, !is_alone).map(|()| true)
            }
            Fault::Flush
            | Fault::ScriptFlush
            | Fault::CutClients
            | Fault::CutSubscribers
            | Fault::SubscriberOverflow
            | Fault::NoChannels
            | Fault::DeletedKey
            | Fault::OverwrittenKey
            | Fault::Eviction
            | Fault::OutOfMemory
            | Fault::ReadOnly
            | Fault::LockedRows => match self.arena.database() {
                Some(database) => self.statement(database, fault, &key),
                None => self.command(fault, at, &key),
            },
        }
    }

    /// Returns a member other than the leader.
    fn follower(&mut self, leader: usize) -> usize {
        (leader + 1 + usize::from(self.dice.once_in(2))) % 3
    }

    fn stop_server(&mut self, fault: Fault, at: usize) -> io::Result<bool> {
        // A session is longer than a lease.
        let time = if self.arena.topology.has_sessions() { LONG * 2 } else { LONG };
        let takes = self.arena.etcd().is_some() && fault == Fault::StoppedServer;
        self.arena.stop(at);
        let rest = self.rest(time);
        if takes {
            self.strikes(fault);
        }
        self.arena.cont(at);
        self.arena.heal();
        if takes {
            self.rest(SHORT)?;
            self.strikes(fault);
        }
        rest.map(|()| true)
    }

    /// Steps a clock, and sets it right again if `and_back` is true. Where replicas take over,
    /// different clocks would keep a key alive after a failover; only runs with a skew test that. A
    /// quorum server that had lost its data before would be without a vote for the same time.
    fn step(&mut self, fault: Fault, at: usize, and_back: bool) -> io::Result<()> {
        let seconds = if fault == Fault::ClockAhead { 60 } else { -60 };
        self.step_by(fault, at, seconds)?;
        self.rest(LONG)?;
        if and_back {
            self.step_by(fault, at, -seconds)?;
        }
        Ok(())
    }

    fn step_by(&mut self, fault: Fault, at: usize, seconds: i64) -> io::Result<()> {
        // A step back takes no keys.
        if seconds > 0 {
            self.strikes(fault);
        }
        let back = seconds < 0;
        if back && let Some(database) = self.arena.database() {
            self.until(|| database.lock_living_rows())?;
        }
        let stepped = self.arena.step(at, seconds);
        if back && let Some(database) = self.arena.database() {
            database.unlock_rows()?;
        }
        stepped?;
        if seconds > 0 {
            self.strikes(fault);
        }
        Ok(())
    }

    /// Carries out a fault of the network with the proxy in front of the server.
    fn network(&mut self, fault: Fault, at: usize) -> io::Result<bool> {
        const LINES: [Line; 3] = [Line::Connecting, Line::Commands, Line::PubSub];
        // A client asks one member, whoever the leader is.
        let is_any = self.arena.topology.has_sessions();
        let at = if is_any { self.arena.asked(at, &mut self.dice) } else { at };
        let proxy = self.arena.proxy(at);
        let whole = |ways: &[Way]| -> Vec<Injection> {
            let each = |way: &Way| LINES.map(|line| proxy.from_now(line, *way, Trouble::BlackHole));
            ways.iter().flat_map(each).collect()
        };
        let some = |trouble| {
            vec![
                proxy.next(3, Line::Commands, Way::ToServer, trouble),
                proxy.next(3, Line::Commands, Way::ToClient, trouble),
                proxy.next(2, Line::PubSub, Way::ToClient, trouble),
            ]
        };
        let news = |trouble| vec![proxy.from_now(Line::PubSub, Way::ToClient, trouble)];
        let (injections, time) = match fault {
            Fault::Partition => (whole(&[Way::ToServer, Way::ToClient]), LONG),
            Fault::PartitionToServer => (whole(&[Way::ToServer]), LONG),
            Fault::PartitionToClient => (whole(&[Way::ToClient]), LONG),
            Fault::LostAnswers => {
                (vec![proxy.next(4, Line::Commands, Way::ToClient, Trouble::BlackHole)], SHORT)
            }
            Fault::SlowLink => {
                let slow = Trouble::Jitter(Duration::from_millis(200));
                let way = |way| [Line::Commands, Line::PubSub].map(|line| proxy.from_now(line, way, slow));
                ([way(Way::ToServer), way(Way::ToClient)].into_iter().flatten().collect(), LONG)
            }
            Fault::Reset => (some(Trouble::Reset), SHORT),
            Fault::Torn => (some(Trouble::Torn), SHORT),
            Fault::HalfClosed => (some(Trouble::HalfClose), SHORT),
            Fault::LateRequests => {
                let late = Trouble::Delay(CALL_TIMEOUT * 5 / 2);
                (vec![proxy.next(4, Line::Commands, Way::ToServer, late)], LONG)
            }
            Fault::LostMessages => (news(Trouble::Lost), LONG),
            Fault::DoubledMessages => (news(Trouble::Twice), LONG),
            _ => {
                let loading = Trouble::Refused("LOADING Redis is loading the dataset in memory");
                (vec![proxy.from_now(Line::Commands, Way::ToServer, loading)], SHORT)
            }
        };
        self.rest(time)?;
        // At times no client sends the server a request.
        let (begun, hits) = (Instant::now(), || injections.iter().map(Injection::hits).sum::<usize>());
        while hits() == 0 && begun.elapsed() < TRIES {
            self.rest(TRIES / 50)?;
        }
        Ok(hits() > 0)
    }

    /// Carries out what takes keys.
    fn strike(&self, fault: Fault, act: impl FnOnce() -> io::Result<bool>) -> io::Result<bool> {
        self.strikes(fault);
        let done = act();
        self.strikes(fault);
        done
    }

    /// Carries out a fault that a stranger causes in a database.
    fn statement(&self, database: &dyn Database, fault: Fault, key: &str) -> io::Result<bool> {
        match fault {
            Fault::Flush => self.strike(fault, || database.flush().map(|()| true)),
            Fault::CutClients => database.cut_clients(),
            Fault::DeletedKey => self.strike(fault, || self.until(|| database.delete(key))),
            Fault::OverwrittenKey => {
                let happened = self.strike(fault, || self.until(|| database.overwrite(key)))?;
                self.rest(SHORT)?;
                if self.arena.etcd().is_some() {
                    // The owner had it until now.
                    self.strike(fault, || database.delete_foreign().map(|()| true))?;
                } else {
                    database.delete_foreign()?;
                }
                Ok(happened)
            }
            Fault::LockedRows => {
                database.lock_rows()?;
                let rest = self.rest(LONG);
                database.unlock_rows()?;
                rest.map(|()| true)
            }
            _ => Ok(false),
        }
    }

    /// Carries out a fault that the server causes itself, by commands.
    fn command(&mut self, fault: Fault, at: usize, key: &str) -> io::Result<bool> {
        let server = || &self.arena.servers()[at];
        let tell = |command: &[&str]| tell(server(), command);
        let set = |name: &str, value: &str| tell(&["CONFIG", "SET", name, value]).map(drop);
        let evicted = || -> io::Result<String> {
            let info = tell(&["INFO", "stats"])?;
            Ok(info.lines().find(|line| line.starts_with("evicted_keys")).unwrap_or_default().to_owned())
        };
        match fault {
            Fault::Flush => self.strike(fault, || tell(&["FLUSHALL"]).map(|_| true)),
            Fault::ScriptFlush => tell(&["SCRIPT", "FLUSH"]).map(|_| true),
            Fault::CutClients => {
                let subscribers = tell(&["CLIENT", "KILL", "TYPE", "pubsub"])?;
                let others = tell(&["CLIENT", "KILL", "TYPE", "normal"])?;
                Ok((subscribers, others) != ("0".to_owned(), "0".to_owned()))
            }
            Fault::CutSubscribers => self.until(|| Ok(tell(&["CLIENT", "KILL", "TYPE", "pubsub"])? != "0")),
            Fault::SubscriberOverflow => {
                let before = tell(&["CLIENT", "LIST", "TYPE", "pubsub"])?;
                set("client-output-buffer-limit", "pubsub 32768 0 0")?;
                let news = "x".repeat(400_000);
                for (list, publish) in [("CHANNELS", "PUBLISH"), ("SHARDCHANNELS", "SPUBLISH")] {
                    for channel in tell(&["PUBSUB", list])?.lines().filter(|channel| !channel.is_empty()) {
                        // This server cannot publish to a slot that has moved away.
                        let _ = tell(&[publish, channel, &news]);
                    }
                }
                self.rest(SHORT / 3)?;
                set("client-output-buffer-limit", SUBSCRIBER_LIMIT)?;
                let after = tell(&["CLIENT", "LIST", "TYPE", "pubsub"])?;
                let id = |line: &str| line.split(' ').next().unwrap_or_default().to_owned();
                Ok(before.lines().any(|line| !after.lines().any(|other| id(other) == id(line))))
            }
            Fault::NoChannels => {
                tell(&["ACL", "SETUSER", "default", "resetchannels"])?;
                let rest = self.rest(LONG);
                tell(&["ACL", "SETUSER", "default", "allchannels"])?;
                rest.map(|()| true)
            }
            Fault::DeletedKey => self.strike(fault, || self.until(|| Ok(tell(&["DEL", key])? == "1"))),
            Fault::OverwrittenKey => {
                let overwrite = || Ok(tell(&["SET", key, "mine", "XX", "PX", "1500"])? == "OK");
                let happened = self.strike(fault, || self.until(overwrite))?;
                self.rest(SHORT)?;
                Ok(happened)
            }
            Fault::Eviction => {
                let before = evicted()?;
                set("maxmemory-policy", "allkeys-random")?;
                self.strikes(fault);
                set("maxmemory", "1")?;
                let rest = self.rest(SHORT / 3);
                set("maxmemory", "0")?;
                self.strikes(fault);
                set("maxmemory-policy", "noeviction")?;
                rest?;
                Ok(evicted()? != before)
            }
            Fault::OutOfMemory => {
                set("maxmemory", "1")?;
                let rest = self.rest(SHORT);
                set("maxmemory", "0")?;
                rest.map(|()| true)
            }
            _ => {
                // No server listens there, so this one keeps its data.
                tell(&["REPLICAOF", "127.0.0.1", "1"])?;
                let rest = self.rest(SHORT);
                tell(&["REPLICAOF", "NO", "ONE"])?;
                rest.map(|()| true)
            }
        }
    }

    fn until(&self, try_it: impl Fn() -> io::Result<bool>) -> io::Result<bool> {
        let deadline = Instant::now() + TRIES;
        while Instant::now() < deadline {
            if try_it()? {
                return Ok(true);
            }
            self.rest(Duration::from_millis(1))?;
        }
        Ok(false)
    }

    fn fail_over(&mut self, fault: Fault, before: usize, key: &str) -> io::Result<bool> {
        if fault == Fault::Promotion {
            if let Some(sentinels) = self.arena.sentinels() {
                sentinels.failover();
            } else if let Some(cluster) = self.arena.cluster() {
                cluster.failover(before);
            }
            self.arena.heal();
            return Ok(true);
        }
        // From now on the replicas hear nothing from the primary: what it sends them is lost for
        // good.
        let proxy = self.arena.proxy(before);
        let hole = (fault == Fault::LossyFailover)
            .then(|| proxy.from_now(Line::Replication, Way::ToClient, Trouble::BlackHole));
        if hole.is_some() {
            self.rest(SHORT)?;
        }
        self.strikes(fault);
        self.arena.stop(before);
        self.strikes(fault);
        if let Some(sentinels) = self.arena.sentinels() {
            sentinels.wait_for_failover(before);
        } else if let Some(cluster) = self.arena.cluster() {
            cluster.wait_for_failover(slot_of(key), before);
        }
        self.rest(SHORT)?;
        self.arena.cont(before);
        self.arena.heal();
        Ok(hole.is_none_or(|hole| hole.hits() > 0))
    }

    fn move_slot(&mut self, fault: Fault, key: &str) -> io::Result<bool> {
        let Some(cluster) = self.arena.cluster() else { return Ok(false) };
        let (slot, from) = (slot_of(key), cluster.node_of(key));
        let others: Vec<usize> = cluster.primaries().into_iter().filter(|other| *other != from).collect();
        let at = usize::try_from(self.dice.below(others.len() as u64)).unwrap_or(0);
        let Some(&to) = others.get(at) else { return Ok(false) };
        if fault == Fault::MovedSlot {
            cluster.move_slot(slot, to);
            return Ok(true);
        }
        let moving = cluster.begin_move(slot, to);
        let keys = cluster.keys_left(moving);
        let some: Vec<&str> = keys.iter().step_by(2).map(String::as_str).collect();
        cluster.move_keys(moving, &some);
        let rest = self.rest(LONG);
        let Some(cluster) = self.arena.cluster() else { return Ok(false) };
        cluster.move_all_keys(moving);
        cluster.end_move(moving);
        rest.map(|()| true)
    }
}
