//! A primary, two replicas and three sentinels of the test's own.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use redis::FromRedisValue;

use super::server::{Server, binary, free_port, ready};
use super::{RedisStore, options, until, until_within};
use crate::store::redis::RedisOptions;
use crate::store::redis::url::{Servers, servers};

/// What the sentinels call the primary.
pub(super) const MASTER: &str = "orders";

/// Whom the sentinels are at the servers, and its password.
pub(super) const USER: &str = "watchman";

/// Passwords, with which everything is protected or nothing.
#[derive(Clone, Copy, Default)]
pub(super) struct Passwords {
    pub(super) data: Option<&'static str>,
    pub(super) sentinels: Option<&'static str>,
}

/// A process that watches; killed when dropped.
pub(super) struct Sentinel {
    child: Child,
    pub(super) port: u16,
    directory: PathBuf,
    password: Option<&'static str>,
}

pub(super) struct SentinelSet {
    /// The first is the primary at the beginning.
    pub(super) servers: Vec<Server>,
    pub(super) sentinels: Vec<Sentinel>,
    passwords: Passwords,
}

impl Sentinel {
    fn start(primary: u16, passwords: Passwords) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let name = format!("lock-sentinel-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let directory = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&directory).unwrap();
        for _ in 0..5 {
            let port = free_port();
            let mut lines = vec![
                format!("port {port}"),
                "bind 127.0.0.1".to_owned(),
                format!("dir {}", directory.display()),
                format!("sentinel monitor {MASTER} 127.0.0.1 {primary} 2"),
                format!("sentinel down-after-milliseconds {MASTER} 1500"),
                format!("sentinel failover-timeout {MASTER} 6000"),
            ];
            lines.push(format!("sentinel auth-user {MASTER} {USER}"));
            lines.push(format!("sentinel auth-pass {MASTER} {USER}"));
            lines.extend(passwords.sentinels.map(|password| format!("requirepass {password}")));
            lines.extend(passwords.sentinels.map(|password| format!("sentinel sentinel-pass {password}")));
            let file = directory.join("sentinel.conf");
            std::fs::write(&file, lines.join("\n") + "\n").unwrap();
            let log = std::fs::File::create(directory.join("log")).unwrap();
            let mut child = Command::new(binary())
                .arg(file)
                .arg("--sentinel")
                .stdin(Stdio::null())
                .stderr(log.try_clone().unwrap())
                .stdout(log)
                .spawn()
                .unwrap();
            if ready(&mut child, port) {
                return Self { child, port, directory, password: passwords.sentinels };
            }
            let _ = child.kill();
            let _ = child.wait();
        }
        panic!("no sentinel: {}", std::fs::read_to_string(directory.join("log")).unwrap_or_default());
    }

    pub(super) fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// `STOP` or `CONT`.
    pub(super) fn signal(&self, name: &str) {
        let status = Command::new("kill").arg(format!("-{name}")).arg(self.child.id().to_string()).status();
        assert!(status.unwrap().success());
    }

    pub(super) async fn command<T: FromRedisValue>(&self, words: &[&str]) -> redis::RedisResult<T> {
        let auth = self.password.map_or(String::new(), |password| format!(":{password}@"));
        let client = redis::Client::open(format!("redis://{auth}127.0.0.1:{}", self.port)).unwrap();
        let config = redis::AsyncConnectionConfig::new().set_response_timeout(Some(Duration::from_secs(10)));
        let mut connection = client.get_multiplexed_async_connection_with_config(&config).await?;
        let mut command = redis::Cmd::new();
        for word in words {
            command.arg(*word);
        }
        command.query_async(&mut connection).await
    }

    /// The port of the primary, as it says.
    pub(super) async fn primary(&self) -> u16 {
        let (_, port): (String, u16) =
            self.command(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", MASTER]).await.unwrap();
        port
    }

    async fn number(&self, what: &str) -> usize {
        let details: std::collections::HashMap<String, String> =
            self.command(&["SENTINEL", "MASTER", MASTER]).await.unwrap();
        details[what].parse().unwrap()
    }
}

impl Drop for Sentinel {
    fn drop(&mut self) {
        self.kill();
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

impl SentinelSet {
    pub(super) async fn start() -> Self {
        Self::start_with(Passwords::default()).await
    }

    /// Resolves when all of them know each other.
    pub(super) async fn start_with(passwords: Passwords) -> Self {
        let password = format!(">{USER}");
        let mut arguments = vec!["--repl-diskless-sync-delay", "0"];
        arguments.extend(["--user", USER, "on", &password, "allkeys", "allchannels", "+@all"]);
        if let Some(password) = passwords.data {
            arguments.extend(["--requirepass", password, "--masterauth", password]);
        }
        let primary = Server::start_with(&arguments);
        let port = primary.port().to_string();
        arguments.extend(["--replicaof", "127.0.0.1", &port]);
        let servers = vec![primary, Server::start_with(&arguments), Server::start_with(&arguments)];
        let mut set = Self { servers, sentinels: Vec::new(), passwords };
        until("the replicas are in sync", async || set.info(0).await.matches("state=online").count() == 2)
            .await;
        set.sentinels = (0..3).map(|_| Sentinel::start(set.servers[0].port(), passwords)).collect();
        until("the sentinels know each other", async || {
            let mut known = true;
            for sentinel in &set.sentinels {
                known &= sentinel.number("num-other-sentinels").await == 2
                    && sentinel.number("num-slaves").await == 2;
            }
            known
        })
        .await;
        set
    }

    /// Nothing while a failover ends its connections.
    async fn info(&self, server: usize) -> String {
        let auth = self.passwords.data.map_or(String::new(), |password| format!(":{password}@"));
        let port = self.servers[server].port();
        let client = redis::Client::open(format!("redis://{auth}127.0.0.1:{port}")).unwrap();
        let asked = async {
            let mut connection = client.get_multiplexed_async_connection().await?;
            redis::cmd("INFO").arg("replication").query_async(&mut connection).await
        };
        asked.await.unwrap_or_default()
    }

    /// The address of all sentinels.
    pub(super) fn url(&self) -> String {
        let places: Vec<String> =
            self.sentinels.iter().map(|sentinel| format!("127.0.0.1:{}", sentinel.port)).collect();
        let auth = self.passwords.data.map_or(String::new(), |password| format!(":{password}@"));
        let query = self
            .passwords
            .sentinels
            .map_or(String::new(), |password| format!("?sentinel_password={password}"));
        format!("redis+sentinel://{auth}{}/{MASTER}{query}", places.join(","))
    }

    pub(super) fn store(&self) -> RedisStore {
        store_at(&self.url(), options())
    }

    /// The server that the first sentinel calls the primary.
    pub(super) async fn primary(&self) -> &Server {
        let port = self.sentinels[0].primary().await;
        self.servers.iter().find(|server| server.port() == port).unwrap()
    }

    /// Makes another server the primary, and resolves when the first sentinel says that it is. The old one does not
    /// know for some seconds.
    pub(super) async fn fail_over(&self) -> &Server {
        let before = self.sentinels[0].primary().await;
        until("a failover begins", async || {
            self.sentinels[0].command::<()>(&["SENTINEL", "FAILOVER", MASTER]).await.is_ok()
        })
        .await;
        self.another_than(before).await
    }

    /// Resolves when the first sentinel has another primary.
    pub(super) async fn another_than(&self, before: u16) -> &Server {
        let others = async || self.sentinels[0].primary().await != before;
        until_within(Duration::from_secs(60), "a failover", &others).await;
        self.primary().await
    }

    /// Resolves when the first server is a replica, which a former primary is told after 8 s.
    pub(super) async fn first_is_demoted(&self) {
        let demoted = async || self.info(0).await.contains("role:slave");
        until_within(Duration::from_secs(60), "the former primary is a replica", demoted).await;
    }
}

/// A store at `url`, of whatever kind that is.
pub(super) fn store_at(url: &str, options: RedisOptions) -> RedisStore {
    match servers(url).unwrap() {
        Servers::One(client) => RedisStore::new(&client, options).unwrap(),
        Servers::Sentinel(sentinels) => RedisStore::with_sentinels(&sentinels, options),
        Servers::Cluster(_) => panic!("{url} is a cluster"),
    }
}
