//! `cargo xtask servers`: servers to try things on.

use std::error::Error;
use std::process::ExitCode;
use std::time::Duration;

use lock_tests::{
    Cluster, DatabaseServer, EtcdCluster, MariaDbServer, MongoDbSet, PostgresServer, Product, Quorum,
    RedisServer, Sentinels, ZooKeeperServer, cluster, etcd, mongodb, sentinels,
};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

/// The servers to start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Topology {
    Single,
    Sentinel,
    Cluster,
    Quorum,
    Postgres,
    MariaDb,
    MongoDb,
    Etcd,
    ZooKeeper,
}

impl Topology {
    pub(crate) const ALL: [Self; 9] = [
        Self::Single,
        Self::Sentinel,
        Self::Cluster,
        Self::Quorum,
        Self::Postgres,
        Self::MariaDb,
        Self::MongoDb,
        Self::Etcd,
        Self::ZooKeeper,
    ];

    /// Those of Redis servers.
    pub(crate) const REDIS: [Self; 4] = [Self::Single, Self::Sentinel, Self::Cluster, Self::Quorum];

    pub(crate) fn name(self) -> &'static str {
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
        }
    }

    pub(crate) fn names() -> String {
        Self::ALL.map(Self::name).join(", ")
    }

    /// Returns the text for a user who waits for them.
    fn says(self) -> &'static str {
        match self {
            Self::Single => "a redis-server runs until Ctrl-C",
            Self::Sentinel => "a primary, two replicas and three sentinels run until Ctrl-C",
            Self::Cluster => "a cluster of three primaries with a replica each runs until Ctrl-C",
            Self::Quorum => "three redis-servers that know nothing of each other run until Ctrl-C",
            Self::Postgres => "a PostgreSQL server runs until Ctrl-C",
            Self::MariaDb => "a MariaDB server runs until Ctrl-C",
            Self::MongoDb => "a MongoDB replica set of three members runs until Ctrl-C",
            Self::Etcd => "an etcd cluster of three members runs until Ctrl-C",
            Self::ZooKeeper => "a ZooKeeper server runs until Ctrl-C",
        }
    }
}

/// Servers that stop on drop.
pub(crate) enum Running {
    Single(RedisServer),
    Sentinel(Sentinels),
    Cluster(Cluster),
    Quorum(Quorum),
    Postgres(PostgresServer),
    MariaDb(MariaDbServer),
    MongoDb(MongoDbSet),
    Etcd(EtcdCluster),
    ZooKeeper(ZooKeeperServer),
}

impl Running {
    pub(crate) fn start(topology: Topology) -> Result<Self, Box<dyn Error>> {
        // People pause and debug the processes they try, so a longer pause than in tests counts as
        // death.
        let patience = Duration::from_secs(5);
        Ok(match topology {
            Topology::Single => Self::Single(RedisServer::try_start_with(&[])?),
            Topology::Sentinel => {
                let options = sentinels::Options::default().down_after(patience);
                Self::Sentinel(Sentinels::try_start_with(options)?)
            }
            Topology::Cluster => {
                let options = cluster::Options::default().replicas(1).node_timeout(patience);
                Self::Cluster(Cluster::try_start_with(options)?)
            }
            Topology::Quorum => Self::Quorum(Quorum::try_start_with(3, &[])?),
            Topology::Postgres => Self::Postgres(PostgresServer::try_start()?),
            Topology::MariaDb => Self::MariaDb(MariaDbServer::try_start()?),
            Topology::MongoDb => {
                let options = mongodb::Options::default().election_timeout(patience);
                Self::MongoDb(MongoDbSet::try_start_with(options)?)
            }
            Topology::Etcd => {
                // As by default in production: a longer one would lengthen the shortest lease.
                let options = etcd::Options::default().election_timeout(Duration::from_secs(1));
                Self::Etcd(EtcdCluster::try_start_with(options)?)
            }
            Topology::ZooKeeper => Self::ZooKeeper(ZooKeeperServer::try_start()?),
        })
    }

    pub(crate) fn url(&self) -> String {
        match self {
            Self::Single(server) => server.url(),
            Self::Sentinel(sentinels) => sentinels.url(),
            Self::Cluster(cluster) => cluster.url(),
            Self::Quorum(quorum) => quorum.url(),
            Self::Postgres(server) => server.url(),
            Self::MariaDb(server) => server.url(),
            Self::MongoDb(set) => set.url(),
            Self::Etcd(cluster) => cluster.url(),
            Self::ZooKeeper(server) => server.url(),
        }
    }

    /// Returns all Redis servers that take writes.
    pub(crate) fn primaries(&self) -> Vec<&RedisServer> {
        match self {
            Self::Single(server) => vec![server],
            Self::Sentinel(sentinels) => vec![sentinels.primary()],
            Self::Cluster(cluster) => {
                cluster.primaries().into_iter().filter_map(|at| cluster.nodes().get(at)).collect()
            }
            Self::Quorum(quorum) => quorum.servers().iter().collect(),
            Self::Postgres(_) | Self::MariaDb(_) | Self::MongoDb(_) | Self::Etcd(_) | Self::ZooKeeper(_) => {
                Vec::new()
            }
        }
    }

    /// Returns a message for each server that has ended by itself.
    fn ended(&mut self) -> Vec<String> {
        match self {
            Self::Single(server) => {
                let status = server.ended();
                let say = |status| format!("redis-server ended with {status}:\n{}", server.log());
                status.map(say).into_iter().collect()
            }
            Self::Sentinel(sentinels) => sentinels.ended(),
            Self::Cluster(cluster) => cluster.ended(),
            Self::Quorum(quorum) => quorum.ended(),
            Self::Postgres(server) => database_ended(server),
            Self::MariaDb(server) => database_ended(server),
            Self::MongoDb(set) => set.ended(),
            Self::Etcd(cluster) => cluster.ended(),
            Self::ZooKeeper(server) => database_ended(server),
        }
    }

    /// Lists all processes, for users who want to pause or kill one of them.
    fn processes(&self) -> Vec<String> {
        let of =
            |name: &str, server: &RedisServer| format!("{name} {}, process {}", server.addr(), server.pid());
        let all = |name: &str, servers: &[RedisServer]| -> Vec<String> {
            servers.iter().map(|server| of(name, server)).collect()
        };
        match self {
            Self::Single(server) => vec![of("redis-server", server)],
            Self::Sentinel(sentinels) => {
                [all("redis-server", sentinels.servers()), all("sentinel", sentinels.sentinels())].concat()
            }
            Self::Cluster(cluster) => all("node", cluster.nodes()),
            Self::Quorum(quorum) => all("redis-server", quorum.servers()),
            Self::Postgres(server) => database_process(server),
            Self::MariaDb(server) => database_process(server),
            Self::MongoDb(set) => set.members().flat_map(database_process).collect(),
            Self::Etcd(cluster) => cluster.members().flat_map(database_process).collect(),
            Self::ZooKeeper(server) => database_process(server),
        }
    }
}

fn database_ended<P: Product>(server: &mut DatabaseServer<P>) -> Vec<String> {
    let status = server.ended();
    let say = |status| format!("{} ended with {status}:\n{}", P::NAME, server.log());
    status.map(say).into_iter().collect()
}

fn database_process<P: Product>(server: &DatabaseServer<P>) -> Vec<String> {
    vec![format!("{} {}, process {}", P::NAME, server.addr(), server.pid())]
}

pub(crate) fn run(topology: Topology) -> ExitCode {
    // Before the servers start: a signal that comes between must not leave them running.
    let mut signals = match Signals::new([SIGINT, SIGTERM, SIGHUP]) {
        Ok(signals) => signals,
        Err(error) => {
            eprintln!("error: can't listen for signals: {error}");
            return ExitCode::FAILURE;
        }
    };
    let mut running = match Running::start(topology) {
        Ok(running) => running,
        Err(error) => {
            eprintln!("error: {error}");
            return ExitCode::FAILURE;
        }
    };
    println!("export LOCK_URL={}", quoted(&running.url()));
    eprintln!("{}", topology.says());
    for process in running.processes() {
        eprintln!("  {process}");
    }
    let mut reported = 0;
    loop {
        // Checked before the signals: Ctrl-C reaches the servers too, and a server it ends has not
        // ended by itself.
        let ended = running.ended();
        if signals.pending().next().is_some() {
            return if reported == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE };
        }
        for what in ended.iter().skip(reported) {
            eprintln!("error: {what}");
        }
        // One of several may end, since the user may be trying just that; the others go on.
        let is_one = matches!(
            topology,
            Topology::Single | Topology::Postgres | Topology::MariaDb | Topology::ZooKeeper
        );
        if !ended.is_empty() && is_one {
            return ExitCode::FAILURE;
        }
        reported = ended.len();
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Quotes a URL for a shell, to which `|`, `?` and `&` are special.
fn quoted(url: &str) -> String {
    if url.contains(['|', '?', '&']) { format!("'{url}'") } else { url.to_owned() }
}
