//! [`Arena`]: the servers of a run, the proxies in front of them, and their clocks.

use std::io;
use std::path::Path;
use std::str::FromStr;
use std::time::Duration;

use tokio::runtime::Runtime;

use super::database::{Act, Database};
use super::etcd::Etcd;
use super::mongo::Mongo;
use super::observe::{self, Holders, Observer, Redis};
use super::sql::Sql;
use super::zookeeper::{self, ZooKeeper};
use crate::dice::Dice;
use crate::proxy::{Line, Way};
use crate::redis::{Connection, Data, Reply};
use crate::witness::{self, Ping};
use crate::{
    Cluster, EtcdServer, Layout, Offset, Proxy, RedisServer, Sentinels, ServerClock, ZooKeeperServer,
    cluster, sentinels,
};

/// Duration of silence after which a server counts as dead. Longer than any pause of a busy
/// machine: no fault would excuse a failover that such a pause causes.
const DEAD_AFTER: Duration = Duration::from_secs(5);

/// The kind of store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Topology {
    /// One server.
    Single,
    /// A primary with two replicas, and three sentinels.
    Sentinel,
    /// Three primaries with one replica each.
    Cluster,
    /// Three independent servers.
    Quorum,
    /// A PostgreSQL server.
    Postgres,
    /// A MariaDB server.
    MariaDb,
    /// A MongoDB replica set of three members.
    MongoDb,
    /// An etcd cluster of three members.
    Etcd,
    /// An ensemble of three ZooKeeper members.
    ZooKeeper,
    /// A file.
    Sqlite,
}

impl Topology {
    /// All topologies.
    pub const ALL: [Self; 10] = [
        Self::Single,
        Self::Sentinel,
        Self::Cluster,
        Self::Quorum,
        Self::Postgres,
        Self::MariaDb,
        Self::MongoDb,
        Self::Etcd,
        Self::ZooKeeper,
        Self::Sqlite,
    ];

    /// Returns the name on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Single => "single",
            Self::Sentinel => "sentinel",
            Self::Cluster => "cluster",
            Self::Quorum => "quorum",
            Self::Postgres => "postgres",
            Self::MariaDb => "mariadb",
            Self::MongoDb => "mongodb",
            Self::Etcd => "etcd",
            Self::ZooKeeper => "zookeeper",
            Self::Sqlite => "sqlite",
        }
    }

    /// Whether the locks are in a database, in etcd or in ZooKeeper, and not in Redis.
    #[must_use]
    pub fn is_database(self) -> bool {
        let is_sql = matches!(self, Self::Postgres | Self::MariaDb | Self::Sqlite);
        is_sql || self == Self::MongoDb || self.has_sessions()
    }

    /// Whether locks end with the sessions of managers.
    pub(super) fn has_sessions(self) -> bool {
        matches!(self, Self::Etcd | Self::ZooKeeper)
    }
}

impl FromStr for Topology {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|topology| topology.name() == text);
        found.ok_or_else(|| {
            format!("unknown topology {text:?}; there are: {}", Self::ALL.map(Self::name).join(", "))
        })
    }
}

/// The servers of a run. All of them end with it.
pub(super) struct Arena {
    pub(super) topology: Topology,
    layout: Layout,
    // Before the servers: connections end first.
    proxies: Vec<Proxy>,
    _runtime: Runtime,
    servers: Servers,
    clocks: Vec<Clock>,
    /// The server with the sets that workers write under the locks.
    pub(super) resource: RedisServer,
}

enum Servers {
    Loose(Vec<RedisServer>),
    Sentinels(Box<Sentinels>),
    Cluster(Box<Cluster>),
    Sql(Box<Sql>),
    Mongo(Box<Mongo>),
    Etcd(Box<Etcd>),
    ZooKeeper(Box<ZooKeeper>),
}

/// A server's clock, and its offset.
struct Clock {
    clock: ServerClock,
    ahead_seconds: i64,
    /// Maximum of `ahead_seconds` so far.
    most_ahead: i64,
}

impl Arena {
    /// Starts all servers. A single server and the servers of a quorum log their writes, so a
    /// killed one comes back with its data. Of every three clocks, the second is `skew` ahead of
    /// the machine's and the third is `skew` behind.
    pub(super) fn start(topology: Topology, layout: Layout, skew: Duration) -> io::Result<Self> {
        const WRITTEN_DOWN: [&str; 4] = ["--appendonly", "yes", "--appendfsync", "no"];
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let count = match topology {
            Topology::Single | Topology::Postgres | Topology::MariaDb => 1,
            // Programs in Go read the time without the C library, so etcd has no clocks to set.
            // ZooKeeper measures sessions with a monotonic clock only, which nobody can step.
            Topology::Sqlite | Topology::Etcd | Topology::ZooKeeper => 0,
            Topology::Sentinel | Topology::Quorum | Topology::MongoDb => 3,
            Topology::Cluster => 6,
        };
        let seconds = i64::try_from(skew.as_secs()).unwrap_or(i64::MAX);
        let offset = |place: usize| [0, seconds, -seconds][place % 3];
        let clocks: Vec<ServerClock> =
            (0..count).map(|place| ServerClock::new(ahead(offset(place)))).collect::<io::Result<_>>()?;
        let failed = |error: crate::redis::StartError| io::Error::other(error.to_string());
        let mut servers = match topology {
            Topology::Single | Topology::Quorum => Servers::Loose(
                clocks.iter().map(|clock| RedisServer::start_with_clock(&WRITTEN_DOWN, clock)).collect(),
            ),
            Topology::Sentinel => {
                let options = sentinels::Options::default().down_after(DEAD_AFTER).clocks(&clocks);
                Servers::Sentinels(Box::new(Sentinels::try_start_with(options).map_err(failed)?))
            }
            Topology::Cluster => {
                let options =
                    cluster::Options::default().replicas(1).node_timeout(DEAD_AFTER).clocks(&clocks);
                Servers::Cluster(Box::new(Cluster::try_start_with(options).map_err(failed)?))
            }
            Topology::Postgres => Servers::Sql(Box::new(Sql::postgres(&clocks[0], runtime.handle()))),
            Topology::MariaDb => Servers::Sql(Box::new(Sql::mariadb(&clocks[0], runtime.handle()))),
            Topology::MongoDb => Servers::Mongo(Box::new(Mongo::start(&clocks)?)),
            Topology::Etcd => Servers::Etcd(Box::new(Etcd::start()?)),
            Topology::ZooKeeper => Servers::ZooKeeper(Box::new(ZooKeeper::start()?)),
            Topology::Sqlite => Servers::Sql(Box::new(Sql::sqlite(runtime.handle())?)),
        };
        let before = |servers: &[RedisServer]| -> Vec<Proxy> {
            servers.iter().map(|server| runtime.block_on(Proxy::start(server.addr()))).collect()
        };
        let ports = |proxies: &[Proxy]| proxies.iter().map(|proxy| proxy.addr().port()).collect::<Vec<_>>();
        let proxies = match &mut servers {
            Servers::Loose(servers) => before(servers),
            Servers::Sentinels(sentinels) => {
                let proxies = before(sentinels.servers());
                sentinels.stand_behind(&ports(&proxies));
                proxies
            }
            Servers::Cluster(cluster) => {
                let proxies = before(cluster.nodes());
                cluster.stand_behind(&ports(&proxies));
                proxies
            }
            Servers::Sql(sql) => sql.proxy(&runtime).into_iter().collect(),
            Servers::Mongo(mongo) => {
                let start = |addr| runtime.block_on(Proxy::start_mongodb(addr));
                let proxies: Vec<Proxy> = mongo.addrs().into_iter().map(start).collect();
                mongo.set.stand_behind(&ports(&proxies));
                proxies
            }
            Servers::Etcd(etcd) => {
                let start = |addr| runtime.block_on(Proxy::start_etcd(addr));
                etcd.addrs().into_iter().map(start).collect()
            }
            Servers::ZooKeeper(zookeeper) => {
                let start = |addr| runtime.block_on(Proxy::start_zookeeper(addr));
                zookeeper.addrs().into_iter().map(start).collect()
            }
        };
        let with_offset = |(place, clock)| {
            let ahead_seconds = offset(place);
            Clock { clock, ahead_seconds, most_ahead: ahead_seconds }
        };
        let clocks = clocks.into_iter().enumerate().map(with_offset).collect();
        let resource = RedisServer::start();
        Ok(Self { topology, layout, proxies, _runtime: runtime, servers, clocks, resource })
    }

    /// Returns the URL that a worker connects to, for locks of this lease. In etcd, each begins
    /// with another member.
    pub(super) fn url(&self, worker: usize, lease: Duration) -> String {
        let url = match &self.servers {
            Servers::Loose(_) if self.topology == Topology::Single => self.proxies[0].url(),
            Servers::Loose(_) => {
                let urls: Vec<String> = self.proxies.iter().map(Proxy::url).collect();
                format!("quorum:{}", urls.join("|"))
            }
            Servers::Sentinels(sentinels) => sentinels.url(),
            Servers::Cluster(cluster) => cluster.url(),
            Servers::Sql(sql) => sql.url(self.proxies.first()),
            Servers::Mongo(mongo) => mongo.set.url(),
            Servers::Etcd(_) => {
                let mut addrs: Vec<String> =
                    self.proxies.iter().map(|proxy| proxy.addr().to_string()).collect();
                addrs.rotate_left(worker % self.proxies.len());
                format!("etcd://{}/", addrs.join(","))
            }
            Servers::ZooKeeper(_) => {
                let addrs: Vec<_> = self.proxies.iter().map(Proxy::addr).collect();
                zookeeper::url(&addrs, lease)
            }
        };
        self.layout.url(&url)
    }

    /// Returns the Redis servers.
    pub(super) fn servers(&self) -> &[RedisServer] {
        match &self.servers {
            Servers::Loose(servers) => servers,
            Servers::Sentinels(sentinels) => sentinels.servers(),
            Servers::Cluster(cluster) => cluster.nodes(),
            Servers::Sql(_) | Servers::Mongo(_) | Servers::Etcd(_) | Servers::ZooKeeper(_) => &[],
        }
    }

    /// Does something to a server. A Redis that starts again has this data, and a database its own.
    pub(super) fn act(&mut self, at: usize, act: Act, data: Data) {
        let server = match &mut self.servers {
            Servers::Loose(servers) => &mut servers[at],
            Servers::Sentinels(sentinels) => &mut sentinels.servers_mut()[at],
            Servers::Cluster(cluster) => &mut cluster.nodes_mut()[at],
            Servers::Sql(sql) => return sql.act(act),
            Servers::Mongo(mongo) => return mongo.act(at, act),
            Servers::Etcd(etcd) => return etcd.act(at, act),
            Servers::ZooKeeper(zookeeper) => return zookeeper.act(at, act),
        };
        match act {
            Act::Stop => server.stop(),
            Act::Cont => server.cont(),
            Act::Kill => server.kill(),
            Act::Restart => server.restart(data),
        }
    }

    /// Sends SIGSTOP to all processes of a server.
    pub(super) fn stop(&mut self, at: usize) {
        self.act(at, Act::Stop, Data::Kept);
    }

    /// Sends SIGCONT to all processes of a server.
    pub(super) fn cont(&mut self, at: usize) {
        self.act(at, Act::Cont, Data::Kept);
    }

    /// Returns the database, if the locks are in one.
    pub(super) fn database(&self) -> Option<&dyn Database> {
        match &self.servers {
            Servers::Sql(sql) => Some(&**sql),
            Servers::Mongo(mongo) => Some(&**mongo),
            Servers::Etcd(etcd) => Some(&**etcd),
            Servers::ZooKeeper(zookeeper) => Some(&**zookeeper),
            _ => None,
        }
    }

    pub(super) fn mongo(&self) -> Option<&Mongo> {
        match &self.servers {
            Servers::Mongo(mongo) => Some(mongo),
            _ => None,
        }
    }

    pub(super) fn etcd(&self) -> Option<&Etcd> {
        match &self.servers {
            Servers::Etcd(etcd) => Some(etcd),
            _ => None,
        }
    }

    pub(super) fn zookeeper(&self) -> Option<&ZooKeeper> {
        match &self.servers {
            Servers::ZooKeeper(zookeeper) => Some(zookeeper),
            _ => None,
        }
    }

    /// Lets no message pass between a member and the others.
    pub(super) fn part(&mut self, at: usize) {
        match &mut self.servers {
            Servers::Etcd(etcd) => etcd.peers.cut(at),
            Servers::ZooKeeper(zookeeper) => zookeeper.part(at),
            _ => {}
        }
    }

    /// Lets all messages between members pass. Returns whether some did not.
    pub(super) fn join(&mut self) -> bool {
        match &mut self.servers {
            Servers::Etcd(etcd) => etcd.peers.join() > 0,
            Servers::ZooKeeper(zookeeper) => zookeeper.join(),
            _ => false,
        }
    }

    /// Returns the observer of the keys.
    pub(super) fn observer(&self) -> Box<dyn Observer> {
        if let Some(database) = self.database() {
            return database.observer(observe::PATIENCE);
        }
        let holders = if self.topology == Topology::Quorum { Holders::OnMost } else { Holders::OnOne };
        let addrs: Vec<_> = self.servers().iter().map(RedisServer::addr).collect();
        Box::new(Redis::new(&addrs, holders))
    }

    /// Returns an action for the way to each server, which asks that for something harmless. In a
    /// database each step waits for the disk, and in a replica set for the other members, so there
    /// are some for that too.
    pub(super) fn pings(&self) -> io::Result<Vec<Ping>> {
        let ping = |proxy: &Proxy| -> Ping {
            match self.database() {
                Some(database) => database.ping(proxy, witness::PATIENCE),
                None => Box::new(witness::ping(proxy.addr())),
            }
        };
        let mut pings: Vec<Ping> = self.proxies.iter().map(ping).collect();
        if self.topology.is_database() {
            pings.push(Box::new(witness::disk()?));
        }
        pings.extend(self.mongo().into_iter().flat_map(Mongo::pulses));
        Ok(pings)
    }

    /// Returns the proxy between this server and its clients, replicas and sentinels.
    pub(super) fn proxy(&self, at: usize) -> &Proxy {
        &self.proxies[at]
    }

    /// Returns one of the servers that answer clients most often, or `at` if none does.
    pub(super) fn asked(&self, at: usize, dice: &mut Dice) -> usize {
        let passed = || -> Vec<usize> {
            self.proxies.iter().map(|proxy| proxy.passed(Line::Commands, Way::ToClient)).collect()
        };
        let before = passed();
        std::thread::sleep(Duration::from_millis(200));
        let now = passed();
        let count = |at: &usize| now[*at] - before[*at];
        let most = (0..now.len()).map(|at| count(&at)).max().unwrap_or(0);
        // A connection that is not used any more has some messages, too.
        let asked: Vec<usize> = (0..now.len()).filter(|at| count(at) > most / 4).collect();
        let one = usize::try_from(dice.below(asked.len().max(1) as u64)).unwrap_or(0);
        asked.get(one).copied().unwrap_or(at)
    }

    /// Tells the servers which connections have ended, where faults have kept that from them.
    pub(super) fn bury_dead(&self) {
        self.proxies.iter().for_each(Proxy::bury_dead);
    }

    pub(super) fn sentinels(&self) -> Option<&Sentinels> {
        match &self.servers {
            Servers::Sentinels(sentinels) => Some(sentinels),
            _ => None,
        }
    }

    pub(super) fn cluster(&self) -> Option<&Cluster> {
        match &self.servers {
            Servers::Cluster(cluster) => Some(cluster),
            _ => None,
        }
    }

    /// Returns the place of a server that serves `key`, the key's name in the store.
    pub(super) fn serving(&self, key: &str, dice: &mut Dice) -> usize {
        match &self.servers {
            Servers::Loose(servers) => usize::try_from(dice.below(servers.len() as u64)).unwrap_or(0),
            Servers::Sentinels(sentinels) => sentinels.primary_at(),
            Servers::Cluster(cluster) => cluster.node_of(key),
            Servers::Sql(_) => 0,
            Servers::Mongo(mongo) => mongo.set.primary(),
            Servers::Etcd(etcd) => etcd.cluster.leader(),
            Servers::ZooKeeper(zookeeper) => zookeeper.ensemble.leader(),
        }
    }

    /// Steps the clock of a server. The clocks of a replica set of MongoDB are stepped together.
    pub(super) fn step(&mut self, at: usize, seconds: i64) -> io::Result<()> {
        let range = if self.mongo().is_some() { 0..self.clocks.len() } else { at..at + 1 };
        for clock in &mut self.clocks[range] {
            clock.ahead_seconds += seconds;
            clock.most_ahead = clock.most_ahead.max(clock.ahead_seconds);
            clock.clock.set(ahead(clock.ahead_seconds))?;
        }
        Ok(())
    }

    /// Whether this server may have tokens that are later than its clock shows now. If the counter
    /// is lost too, such tokens are issued again.
    pub(super) fn is_behind(&self, at: usize) -> bool {
        // Failovers and moved slots bring counters from one server to another.
        let is_behind = |clock: &Clock| clock.ahead_seconds < clock.most_ahead;
        self.is_replicated() && self.clocks_differ() || self.clocks.get(at).is_some_and(is_behind)
    }

    /// Whether replicas can take over for a server that do not have all its data.
    pub(super) fn is_replicated(&self) -> bool {
        matches!(self.servers, Servers::Sentinels(_) | Servers::Cluster(_))
    }

    /// Whether one of the clocks has shown a time that is later than what another shows now.
    pub(super) fn clocks_differ(&self) -> bool {
        let latest = self.clocks.iter().map(|clock| clock.most_ahead).max();
        self.clocks.iter().any(|clock| Some(clock.ahead_seconds) < latest)
    }

    /// Writes what members of etcd or ZooKeeper have logged beside the histories.
    pub(super) fn keep_logs(&self, folder: &Path) -> io::Result<()> {
        let of_etcd = self.etcd().into_iter().flat_map(|etcd| etcd.cluster.members());
        let of_zookeeper = self.zookeeper().into_iter().flat_map(|zookeeper| zookeeper.ensemble.members());
        let logs = of_etcd.map(EtcdServer::log).chain(of_zookeeper.map(ZooKeeperServer::log));
        let mut logs = logs.enumerate();
        logs.try_for_each(|(at, log)| std::fs::write(folder.join(format!("member-{at}.txt")), log))
    }

    /// Waits until the servers of a group are complete and connected again.
    pub(super) fn heal(&self) {
        match &self.servers {
            Servers::Loose(_) | Servers::Sql(_) => {}
            Servers::Sentinels(sentinels) => sentinels.wait_until_ready(),
            Servers::Cluster(cluster) => cluster.wait_until_ready(),
            Servers::Mongo(mongo) => mongo.set.settle(),
            Servers::Etcd(etcd) => etcd.cluster.wait_until_ready(),
            Servers::ZooKeeper(zookeeper) => zookeeper.ensemble.wait_until_ready(),
        }
    }
}

fn ahead(seconds: i64) -> Offset {
    let size = Duration::from_secs(seconds.unsigned_abs());
    if seconds < 0 { Offset::Behind(size) } else { Offset::Ahead(size) }
}

/// Sends one command. Fails when the server does not answer, or answers with an error.
pub(super) fn tell(server: &RedisServer, command: &[&str]) -> io::Result<String> {
    let mut connection = Connection::open(server.addr(), Duration::from_secs(5))?;
    match connection.command(command)? {
        Reply::Error(error) => Err(io::Error::other(format!("{command:?}: {error}"))),
        reply => Ok(reply.to_string()),
    }
}
