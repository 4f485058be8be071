//! [`Servers`], to which both sides connect, and [`Shared`], which each test starts.

use std::io::Write;
use std::time::Duration;

use lock_runtime::{LockManager, LockManagerBuilder, TokenRetention};

use crate::cluster::Options;
use crate::sentinels::MASTER;
use crate::{Cluster, RedisServer, Sentinels, sentinels};

/// Servers that a Java and a Rust program share, in any topology.
pub trait Servers {
    /// Returns the start argument with the servers' addresses for the Java program.
    fn java_argument(&self) -> String;

    /// Returns the URL of the servers for [`LockManager`](lock_runtime::LockManager).
    fn url(&self) -> String;

    /// Returns the servers with data.
    fn servers(&self) -> &[RedisServer];

    /// Sends a command to the server that has `key`, without either client.
    fn ask(&self, key: &str, command: &[&str]) -> String;

    /// Returns all existing keys.
    ///
    /// # Panics
    ///
    /// When a server does not answer.
    fn keys(&self) -> Vec<String> {
        let lists = self.servers().iter().map(|server| server.cli(&["KEYS", "*"]));
        let mut keys: Vec<String> = lists
            .flat_map(|list| list.lines().map(str::to_owned).collect::<Vec<_>>())
            .filter(|key| !key.is_empty())
            .collect();
        // Replicas have the same keys as their primary.
        keys.sort();
        keys.dedup();
        keys
    }

    /// Returns how many connections listen on a channel, sharded or not, on all servers together.
    ///
    /// # Panics
    ///
    /// When a server does not answer.
    fn listeners(&self, channel: &str) -> usize {
        let count = |server: &RedisServer, command: &str| -> usize {
            let reply = server.command(&["PUBSUB", command, channel]).expect("a server answers").to_string();
            // Before Redis 7 there are no sharded channels: the error counts as 0.
            reply.lines().nth(1).and_then(|count| count.parse().ok()).unwrap_or_default()
        };
        self.servers().iter().map(|server| count(server, "NUMSUB") + count(server, "SHARDNUMSUB")).sum()
    }
}

impl Servers for RedisServer {
    fn java_argument(&self) -> String {
        format!("single={}", RedisServer::url(self))
    }

    fn url(&self) -> String {
        RedisServer::url(self)
    }

    fn servers(&self) -> &[RedisServer] {
        std::slice::from_ref(self)
    }

    fn ask(&self, _key: &str, command: &[&str]) -> String {
        self.cli(command)
    }
}

impl Servers for Cluster {
    fn java_argument(&self) -> String {
        format!("cluster={}", addresses(self.nodes()))
    }

    fn url(&self) -> String {
        Cluster::url(self)
    }

    fn servers(&self) -> &[RedisServer] {
        self.nodes()
    }

    fn ask(&self, key: &str, command: &[&str]) -> String {
        self.cli(key, command)
    }
}

impl Servers for Sentinels {
    fn java_argument(&self) -> String {
        format!("sentinel={MASTER}@{}", addresses(self.sentinels()))
    }

    fn url(&self) -> String {
        Sentinels::url(self)
    }

    fn servers(&self) -> &[RedisServer] {
        Sentinels::servers(self)
    }

    fn ask(&self, _key: &str, command: &[&str]) -> String {
        self.primary().cli(command)
    }
}

/// Returns `redis://h1:p,redis://h2:p`. Redisson wants a scheme for each address.
fn addresses(servers: &[RedisServer]) -> String {
    servers.iter().map(RedisServer::url).collect::<Vec<_>>().join(",")
}

/// The servers of one test, in the topology that `LOCK_INTEROP_SERVERS` names: `single` (the
/// default), `cluster` or `sentinel`. `cargo xtask test interop` runs the tests on each.
#[derive(Debug)]
pub enum Shared {
    /// One server.
    Single(RedisServer),
    /// Three primaries.
    Cluster(Cluster),
    /// A primary with two replicas, and three sentinels.
    Sentinel(Sentinels),
}

const VARIABLE: &str = "LOCK_INTEROP_SERVERS";

impl Shared {
    /// Starts the servers.
    ///
    /// # Panics
    ///
    /// When they do not start, or the environment names another topology.
    #[track_caller]
    #[must_use]
    pub fn start() -> Self {
        match topology().as_str() {
            "single" => Self::Single(RedisServer::start()),
            "cluster" => Self::Cluster(Cluster::start()),
            // Long enough that a slow answer on a busy machine does not count as death.
            "sentinel" => {
                let patience = Duration::from_secs(10);
                Self::Sentinel(Sentinels::start_with(sentinels::Options::default().down_after(patience)))
            }
            other => panic!("{VARIABLE}={other}: there are single, cluster and sentinel"),
        }
    }

    /// Starts one server for a test that only makes sense on a single one. On other topologies
    /// returns `None`, and says on stderr that the test is left out.
    ///
    /// # Panics
    ///
    /// When it does not start.
    #[track_caller]
    #[must_use]
    pub fn single_only(why: &str) -> Option<RedisServer> {
        match topology().as_str() {
            "single" => Some(RedisServer::start()),
            other => {
                left_out(other, why);
                None
            }
        }
    }

    /// Starts sentinels for a test about them. On other topologies returns `None`, and says on
    /// stderr that the test is left out.
    ///
    /// # Panics
    ///
    /// When it does not start.
    #[track_caller]
    #[must_use]
    pub fn sentinel_only() -> Option<Sentinels> {
        match topology().as_str() {
            "sentinel" => Some(Sentinels::start()),
            other => {
                left_out(other, "it is about Sentinel");
                None
            }
        }
    }

    /// Starts a cluster for a test about it. On other topologies returns `None`, and says on stderr
    /// that the test is left out.
    ///
    /// # Panics
    ///
    /// When it does not start.
    #[track_caller]
    #[must_use]
    pub fn cluster_only(options: Options) -> Option<Cluster> {
        match topology().as_str() {
            "cluster" => Some(Cluster::start_with(options)),
            other => {
                left_out(other, "it is about a cluster");
                None
            }
        }
    }

    fn any(&self) -> &dyn Servers {
        match self {
            Self::Single(server) => server,
            Self::Cluster(cluster) => cluster,
            Self::Sentinel(sentinels) => sentinels,
        }
    }
}

impl Servers for Shared {
    fn java_argument(&self) -> String {
        self.any().java_argument()
    }

    fn url(&self) -> String {
        self.any().url()
    }

    fn servers(&self) -> &[RedisServer] {
        self.any().servers()
    }

    fn ask(&self, key: &str, command: &[&str]) -> String {
        self.any().ask(key, command)
    }
}

fn topology() -> String {
    match std::env::var(VARIABLE) {
        Ok(name) if !name.is_empty() => name,
        _ => "single".to_owned(),
    }
}

fn left_out(topology: &str, why: &str) {
    let thread = std::thread::current();
    let test = thread.name().unwrap_or("a test");
    // Not with the macro: its output is hidden when a test passes.
    let _ = writeln!(std::io::stderr(), "left out on {topology}: {test}: {why}");
}

/// Connects a manager with the settings that a fleet with Java programs needs. `settings` may
/// change them.
///
/// # Panics
///
/// When it can't connect.
pub async fn connect(
    servers: &impl Servers,
    settings: impl FnOnce(LockManagerBuilder) -> LockManagerBuilder,
) -> LockManager {
    let builder = LockManager::builder().prefix("").token_retention(TokenRetention::Keep);
    match settings(builder).connect(servers.url()).await {
        Ok(locks) => locks,
        Err(error) => panic!("{}: {error}", servers.url()),
    }
}
