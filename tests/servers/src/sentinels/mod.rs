//! [`Sentinels`]: a primary with replicas, and the Redis sentinels that watch them.
//!
//! All servers know each other from the start, so no test waits for discovery. Their settings are
//! in files, which the sentinels rewrite: a restarted server keeps its latest role.

mod options;

use std::net::SocketAddr;
use std::time::Duration;

pub use options::Options;

use crate::RedisServer;
use crate::redis::{Reply, Role, StartError, ended, free_port_for, text, until, until_ports_are_free};

/// Name of the primary among the sentinels.
pub const MASTER: &str = "mymaster";

/// Maximum duration of any step, failovers included. An election without a winner is repeated only
/// after twice the failover time-out.
const LONG: Duration = Duration::from_secs(40);

/// A primary, replicas and sentinels on free loopback ports. Ended and cleaned up on drop.
#[derive(Debug)]
pub struct Sentinels {
    // Dropped first: running sentinels would react to the end of the servers.
    sentinels: Vec<RedisServer>,
    servers: Vec<RedisServer>,
    options: Options,
}

impl Sentinels {
    /// Starts one primary, two replicas and three sentinels.
    ///
    /// # Panics
    ///
    /// When they do not start; the text says what is missing.
    #[track_caller]
    #[must_use]
    pub fn start() -> Self {
        Self::start_with(Options::default())
    }

    /// Starts the servers and sentinels that `options` describe.
    ///
    /// # Panics
    ///
    /// When they do not start.
    #[track_caller]
    #[must_use]
    pub fn start_with(options: Options) -> Self {
        match Self::try_start_with(options) {
            Ok(sentinels) => sentinels,
            Err(error) => panic!("{error}"),
        }
    }

    /// Starts the servers and sentinels that `options` describe. Returns when all know each other
    /// and the replicas follow.
    ///
    /// # Errors
    ///
    /// When there is no `redis-server`, or one of them refuses to run.
    pub fn try_start_with(options: Options) -> Result<Self, StartError> {
        let mut servers = vec![RedisServer::try_launch(&options.server(0, None))?];
        let primary = servers[0].addr();
        for place in 1..=options.replicas {
            servers.push(RedisServer::try_launch(&options.server(place, Some(primary)))?);
        }
        let sentinels = until_ports_are_free(|| start_sentinels(&options, &servers))?;
        let group = Self { sentinels, servers, options };
        match until(LONG, || group.check()) {
            Ok(()) => Ok(group),
            Err(why) => Err(StartError::Failed(format!("{why}\n{}", group.logs()))),
        }
    }

    /// Returns `redis+sentinel://h1:p,h2:p,h3:p/mymaster`, with the passwords.
    #[must_use]
    pub fn url(&self) -> String {
        let password = self.options.password.as_ref().map_or_else(String::new, |text| format!(":{text}@"));
        let peers: Vec<String> = self.sentinels.iter().map(|peer| peer.addr().to_string()).collect();
        let query = self.options.sentinel_password.as_ref();
        let query = query.map_or_else(String::new, |text| format!("?sentinel_password={text}"));
        format!("redis+sentinel://{password}{}/{MASTER}{query}", peers.join(","))
    }

    /// Returns the servers with data, whatever their present roles. The first was the primary at
    /// the start.
    #[must_use]
    pub fn servers(&self) -> &[RedisServer] {
        &self.servers
    }

    /// Returns the servers with data, to be stopped, killed or restarted.
    pub fn servers_mut(&mut self) -> &mut [RedisServer] {
        &mut self.servers
    }

    /// Returns the sentinels.
    #[must_use]
    pub fn sentinels(&self) -> &[RedisServer] {
        &self.sentinels
    }

    /// Returns the sentinels, to be stopped, killed or restarted.
    pub fn sentinels_mut(&mut self) -> &mut [RedisServer] {
        &mut self.sentinels
    }

    /// Returns the place in [`servers`](Self::servers) of the primary that most of the answering
    /// sentinels name.
    ///
    /// # Panics
    ///
    /// When no sentinel names one.
    #[track_caller]
    #[must_use]
    pub fn primary_at(&self) -> usize {
        match until(LONG, || self.named()) {
            Ok(at) => at,
            Err(why) => panic!("{why}\n{}", self.logs()),
        }
    }

    /// Returns the primary that most of the answering sentinels name.
    ///
    /// # Panics
    ///
    /// When no sentinel names one.
    #[track_caller]
    #[must_use]
    pub fn primary(&self) -> &RedisServer {
        &self.servers[self.primary_at()]
    }

    /// Returns the primary, to be stopped, killed or restarted.
    ///
    /// # Panics
    ///
    /// When no sentinel names one.
    #[track_caller]
    pub fn primary_mut(&mut self) -> &mut RedisServer {
        let at = self.primary_at();
        &mut self.servers[at]
    }

    /// Returns all servers with data except the primary.
    ///
    /// # Panics
    ///
    /// When no sentinel names a primary.
    #[track_caller]
    #[must_use]
    pub fn replicas(&self) -> Vec<&RedisServer> {
        let primary = self.primary_at();
        self.servers.iter().enumerate().filter(|(at, _)| *at != primary).map(|(_, server)| server).collect()
    }

    /// Waits until all servers run and know each other, and the replicas follow the primary.
    ///
    /// # Panics
    ///
    /// When that takes too long; the text says what is missing.
    #[track_caller]
    pub fn wait_until_ready(&self) {
        if let Err(why) = until(LONG, || self.check()) {
            panic!("{why}\n{}", self.logs());
        }
    }

    /// Makes the sentinels promote a replica, and waits until they have. Returns the place of the
    /// new primary in [`servers`](Self::servers).
    ///
    /// # Panics
    ///
    /// When no replica is promoted.
    #[track_caller]
    pub fn failover(&self) -> usize {
        let before = self.primary_at();
        // Refused while a failover is under way, and while no replica is suitable.
        let asked = until(LONG, || {
            let mut last = "no sentinel".to_owned();
            for sentinel in &self.sentinels {
                match text(sentinel, &["SENTINEL", "FAILOVER", MASTER]) {
                    Ok(_) => return Ok(()),
                    Err(why) => last = why,
                }
            }
            Err(last)
        });
        if let Err(why) = asked {
            panic!("{why}\n{}", self.logs());
        }
        self.wait_for_failover(before)
    }

    /// Waits until a server other than the one at `before` is the primary, according to most of the
    /// sentinels and to the server itself. Returns its place in [`servers`](Self::servers).
    ///
    /// # Panics
    ///
    /// When no other server is promoted.
    #[track_caller]
    pub fn wait_for_failover(&self, before: usize) -> usize {
        let promoted = until(LONG, || {
            let now = self.named()?;
            if now == before {
                return Err(format!("{} is still the primary", self.servers[now].addr()));
            }
            match role(&self.servers[now])?.as_str() {
                "master" => Ok(now),
                other => Err(format!("{} is named the primary and says {other}", self.servers[now].addr())),
            }
        });
        match promoted {
            Ok(now) => now,
            Err(why) => panic!("{why}\n{}", self.logs()),
        }
    }

    /// Makes the replica at `replica` follow its primary through `address`, for example a proxy,
    /// and waits until it does. The sentinels still know the replica by its own address. They
    /// correct it after the [failover time-out](Options::failover_timeout).
    ///
    /// # Panics
    ///
    /// When the replica does not get through to its primary.
    #[track_caller]
    pub fn follow_through(&self, replica: usize, address: SocketAddr) {
        let (replica, port) = (&self.servers[replica], address.port().to_string());
        replica.cli(&["REPLICAOF", &address.ip().to_string(), &port]);
        if let Err(why) = until(LONG, || follows(replica, address.port())) {
            panic!("{why}\n{}", replica.log());
        }
    }

    /// Makes clients, replicas and sentinels reach each server with data through the port of a
    /// proxy, one port for each server. Returns when all of them know the ports.
    ///
    /// # Panics
    ///
    /// When a server or a sentinel refuses.
    pub fn stand_behind(&mut self, ports: &[u16]) {
        let primary = self.primary_at();
        if let Err(why) = self.try_stand_behind(primary, ports) {
            panic!("{why}\n{}", self.logs());
        }
        self.wait_until_ready();
    }

    fn try_stand_behind(&mut self, primary: usize, ports: &[u16]) -> Result<(), String> {
        for (server, port) in self.servers.iter_mut().zip(ports) {
            server.announce(*port)?;
        }
        // The sentinels know the primary by its old address, and would report it as gone.
        for sentinel in &self.sentinels {
            text(sentinel, &["SENTINEL", "REMOVE", MASTER])?;
        }
        let port = self.servers[primary].announced_port().to_string();
        for (_, server) in self.servers.iter().enumerate().filter(|(at, _)| *at != primary) {
            text(server, &["REPLICAOF", "127.0.0.1", &port])?;
        }
        let quorum = (self.sentinels.len() / 2 + 1).to_string();
        for sentinel in &self.sentinels {
            text(sentinel, &["SENTINEL", "MONITOR", MASTER, "127.0.0.1", &port, &quorum])?;
            for (name, value) in self.options.settings(self.servers.len()) {
                text(sentinel, &["SENTINEL", "SET", MASTER, name, &value])?;
            }
        }
        Ok(())
    }

    /// Returns a report on each server that has ended by itself.
    pub fn ended(&mut self) -> Vec<String> {
        [ended("redis-server", &mut self.servers), ended("sentinel", &mut self.sentinels)].concat()
    }

    /// Returns the place of the server that most of the answering sentinels name as the primary.
    fn named(&self) -> Result<usize, String> {
        let mut votes = vec![0; self.servers.len()];
        let mut last = "no sentinel names a primary that we know".to_owned();
        for sentinel in &self.sentinels {
            match text(sentinel, &["SENTINEL", "GET-MASTER-ADDR-BY-NAME", MASTER]) {
                Ok(answer) => {
                    let port = answer.lines().nth(1).unwrap_or_default();
                    let at =
                        self.servers.iter().position(|server| server.announced_port().to_string() == port);
                    if let Some(vote) = at.and_then(|at| votes.get_mut(at)) {
                        *vote += 1;
                    }
                }
                Err(why) => last = why,
            }
        }
        let total: usize = votes.iter().sum();
        votes.iter().position(|votes| votes * 2 > total).ok_or(last)
    }

    /// Returns why the group is not ready.
    fn check(&self) -> Result<(), String> {
        let primary = self.named()?;
        for (at, server) in self.servers.iter().enumerate() {
            if at == primary {
                let role = role(server)?;
                (role == "master").then_some(()).ok_or_else(|| format!("{} is {role}", server.addr()))?;
            } else {
                follows(server, self.servers[primary].announced_port())?;
            }
        }
        for sentinel in &self.sentinels {
            text(sentinel, &["SENTINEL", "CKQUORUM", MASTER])?;
            let Ok(Reply::List(fields)) = sentinel.command(&["SENTINEL", "MASTER", MASTER]) else {
                return Err(format!("the sentinel at {} does not know {MASTER}", sentinel.addr()));
            };
            let field = |name: &str| {
                let at = fields.iter().position(|field| field.to_string() == name);
                at.and_then(|at| fields.get(at + 1)).map_or_else(String::new, Reply::to_string)
            };
            let (slaves, peers) = (self.servers.len() - 1, self.sentinels.len() - 1);
            let known = (field("flags"), field("num-slaves"), field("num-other-sentinels"), field("port"));
            let port = self.servers[primary].announced_port();
            if known != ("master".to_owned(), slaves.to_string(), peers.to_string(), port.to_string()) {
                return Err(format!("the sentinel at {} says {known:?}", sentinel.addr()));
            }
            let Ok(Reply::List(replicas)) = sentinel.command(&["SENTINEL", "REPLICAS", MASTER]) else {
                return Err(format!("the sentinel at {} does not know the replicas", sentinel.addr()));
            };
            let bad = ["s_down", "disconnected", "o_down"];
            if let Some(replica) =
                replicas.iter().map(Reply::to_string).find(|text| bad.iter().any(|bad| text.contains(bad)))
            {
                return Err(format!("the sentinel at {} says {replica}", sentinel.addr()));
            }
        }
        Ok(())
    }

    fn logs(&self) -> String {
        let of = |name: &str, server: &RedisServer| format!("--- {name} {}\n{}", server.addr(), server.log());
        let servers = self.servers.iter().map(|server| of("redis-server", server));
        servers.chain(self.sentinels.iter().map(|server| of("sentinel", server))).collect()
    }
}

fn start_sentinels(options: &Options, servers: &[RedisServer]) -> Result<Vec<RedisServer>, StartError> {
    let ports: Vec<u16> =
        (0..options.sentinels).map(|_| free_port_for(Role::Sentinel)).collect::<Result<_, _>>()?;
    let mut sentinels = Vec::new();
    for &port in &ports {
        let setup = options.sentinel(servers, port, &ports);
        let sentinel = RedisServer::try_launch_on(port, setup)?;
        // Known since Redis 7. Without it sentinels look rarely, and pause for half a minute after
        // two seconds without the processor.
        let _ = sentinel.command(&[
            "SENTINEL",
            "DEBUG",
            "INFO-PERIOD",
            "1000",
            "PUBLISH-PERIOD",
            "500",
            "TILT-PERIOD",
            "1000",
        ]);
        sentinels.push(sentinel);
    }
    Ok(sentinels)
}

fn role(server: &RedisServer) -> Result<String, String> {
    Ok(text(server, &["ROLE"])?.lines().next().unwrap_or_default().to_owned())
}

/// Checks that `server` is a connected replica of the server or proxy at `port`.
fn follows(server: &RedisServer, port: u16) -> Result<(), String> {
    let role = text(server, &["ROLE"])?;
    let mut lines = role.lines();
    let found = (lines.next(), lines.nth(1), lines.next());
    let wanted = (Some("slave"), Some(port.to_string()), Some("connected"));
    if (found.0, found.1.map(str::to_owned), found.2) == wanted {
        Ok(())
    } else {
        Err(format!("{} should follow port {port} and says {}", server.addr(), role.replace('\n', " ")))
    }
}
