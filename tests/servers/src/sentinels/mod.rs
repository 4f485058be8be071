//! [`Sentinels`]: a primary with replicas, and the Redis sentinels that watch them.
//!
//! All of them are known to each other from the start, so nothing waits for sentinels to find out.
//! The servers' settings are in files, which the sentinels have rewritten: who restarts is what it
//! was made last.

mod options;

use std::net::SocketAddr;
use std::time::Duration;

pub use options::Options;

use crate::RedisServer;
use crate::redis::{Reply, Role, StartError, ended, free_port_for, text, until, until_ports_are_free};

/// What the sentinels call their primary.
pub const MASTER: &str = "mymaster";

/// How long anything may take, fail-overs included: elections that nobody wins are held again after
/// twice the time-out of a failover.
const LONG: Duration = Duration::from_secs(40);

/// A primary, replicas and sentinels on free loopback ports. Ended and cleaned up on drop.
#[derive(Debug)]
pub struct Sentinels {
    // Sentinels end first: they would take the end of the others for a reason to act.
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

    /// Starts what `options` say.
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

    /// Starts what `options` say, and returns when all know each other and the replicas follow.
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

    /// `redis+sentinel://h1:p,h2:p,h3:p/mymaster`, with the passwords.
    #[must_use]
    pub fn url(&self) -> String {
        let password = self.options.password.as_ref().map_or_else(String::new, |text| format!(":{text}@"));
        let peers: Vec<String> = self.sentinels.iter().map(|peer| peer.addr().to_string()).collect();
        let query = self.options.sentinel_password.as_ref();
        let query = query.map_or_else(String::new, |text| format!("?sentinel_password={text}"));
        format!("redis+sentinel://{password}{}/{MASTER}{query}", peers.join(","))
    }

    /// The servers with data, whatever they are at present. The first was the primary at the start.
    #[must_use]
    pub fn servers(&self) -> &[RedisServer] {
        &self.servers
    }

    /// The servers with data, to be stopped, killed or restarted.
    pub fn servers_mut(&mut self) -> &mut [RedisServer] {
        &mut self.servers
    }

    /// The sentinels.
    #[must_use]
    pub fn sentinels(&self) -> &[RedisServer] {
        &self.sentinels
    }

    /// The sentinels, to be stopped, killed or restarted.
    pub fn sentinels_mut(&mut self) -> &mut [RedisServer] {
        &mut self.sentinels
    }

    /// The primary, as most of the sentinels say that answer: its place in
    /// [`servers`](Self::servers).
    ///
    /// # Panics
    ///
    /// When no sentinel knows one.
    #[track_caller]
    #[must_use]
    pub fn primary_at(&self) -> usize {
        match until(LONG, || self.named()) {
            Ok(at) => at,
            Err(why) => panic!("{why}\n{}", self.logs()),
        }
    }

    /// The primary, as most of the sentinels say.
    ///
    /// # Panics
    ///
    /// When no sentinel knows one.
    #[track_caller]
    #[must_use]
    pub fn primary(&self) -> &RedisServer {
        &self.servers[self.primary_at()]
    }

    /// The primary, to be stopped, killed or restarted.
    ///
    /// # Panics
    ///
    /// When no sentinel knows one.
    #[track_caller]
    pub fn primary_mut(&mut self) -> &mut RedisServer {
        let at = self.primary_at();
        &mut self.servers[at]
    }

    /// All servers with data but the primary.
    ///
    /// # Panics
    ///
    /// When no sentinel knows a primary.
    #[track_caller]
    #[must_use]
    pub fn replicas(&self) -> Vec<&RedisServer> {
        let primary = self.primary_at();
        self.servers.iter().enumerate().filter(|(at, _)| *at != primary).map(|(_, server)| server).collect()
    }

    /// Waits until all servers are there, know each other, and the replicas follow the primary.
    ///
    /// # Panics
    ///
    /// When that does not come; the text says what is missing.
    #[track_caller]
    pub fn wait_until_ready(&self) {
        if let Err(why) = until(LONG, || self.check()) {
            panic!("{why}\n{}", self.logs());
        }
    }

    /// Asks the sentinels to make a replica the primary, and waits until they have. Returns its
    /// place in [`servers`](Self::servers).
    ///
    /// # Panics
    ///
    /// When they do not.
    #[track_caller]
    pub fn failover(&self) -> usize {
        let before = self.primary_at();
        // Refused while a failover is under way, and while no replica looks good enough.
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

    /// Waits until another server than the one at `before` is the primary: most of the sentinels
    /// say so, and it does itself. Returns its place in [`servers`](Self::servers).
    ///
    /// # Panics
    ///
    /// When none becomes it.
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

    /// Has the server at `replica` follow its primary through `address`, a proxy for example, and
    /// waits until it does. The sentinels know the replica by its own address as before. They
    /// correct it after the [failover time-out](Options::failover_timeout).
    ///
    /// # Panics
    ///
    /// When nothing comes through.
    #[track_caller]
    pub fn follow_through(&self, replica: usize, address: SocketAddr) {
        let (replica, port) = (&self.servers[replica], address.port().to_string());
        replica.cli(&["REPLICAOF", &address.ip().to_string(), &port]);
        if let Err(why) = until(LONG, || follows(replica, address.port())) {
            panic!("{why}\n{}", replica.log());
        }
    }

    /// Has clients, replicas and sentinels reach the servers with data through these ports, one for
    /// each, which are those of proxies. Returns when all have heard of it.
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
        // They know it by its address, and would take it for one that has gone.
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

    /// What is to be said of servers that have ended by themselves.
    pub fn ended(&mut self) -> Vec<String> {
        [ended("redis-server", &mut self.servers), ended("sentinel", &mut self.sentinels)].concat()
    }

    /// The place of the server that most of the sentinels name that answer.
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

    /// Why not all is as it should be.
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
        // Known since Redis 7. Without it sentinels look rarely, and sit still for half a minute
        // when they were not given the processor for two seconds.
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

/// Whether `server` is a replica that has all that somebody at `port` has told it.
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
