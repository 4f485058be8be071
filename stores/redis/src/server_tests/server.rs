//! Requests of tests to a server through the client under test, and fakes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use lock_test_servers::RedisServer;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, FromRedisValue, RedisResult, ToRedisArgs};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::Semaphore;

/// Operations of tests on a server, beyond those of its launcher.
pub(super) trait ServerExt {
    fn client(&self) -> redis::Client;

    fn client_as(&self, user: &str, password: &str) -> redis::Client;

    async fn try_connection(&self) -> RedisResult<MultiplexedConnection>;

    /// Runs one command on its own connection.
    async fn try_ask<T: FromRedisValue>(&self, words: &[impl ToRedisArgs]) -> RedisResult<T>;

    async fn connection(&self) -> MultiplexedConnection {
        self.try_connection().await.unwrap()
    }

    /// Runs one command, which must succeed.
    async fn ask<T: FromRedisValue>(&self, words: &[impl ToRedisArgs]) -> T {
        self.try_ask(words).await.unwrap()
    }

    /// Returns how often this command, in lower case, was executed.
    async fn calls(&self, command: &str) -> u64 {
        let stats: String = self.ask(&["INFO", "commandstats"]).await;
        let head = format!("cmdstat_{command}:calls=");
        let calls = stats.lines().find_map(|line| line.strip_prefix(&head)?.split(',').next());
        calls.map_or(0, |calls| calls.parse().unwrap())
    }

    /// Returns all keys, sorted.
    async fn keys(&self) -> Vec<String> {
        let mut keys: Vec<String> = self.ask(&["KEYS", "*"]).await;
        keys.sort();
        keys
    }

    /// Gives a server in cluster mode all slots.
    async fn take_all_slots(&self) {
        let _: () = self.ask(&["CLUSTER", "ADDSLOTSRANGE", "0", "16383"]).await;
        super::until("the cluster is up", async || {
            let info: String = self.ask(&["CLUSTER", "INFO"]).await;
            info.contains("cluster_state:ok")
        })
        .await;
    }

    /// Ends all connections of this kind, `normal` or `pubsub`, except the one that asks.
    async fn kill_clients(&self, kind: &str) -> u64 {
        self.ask(&["CLIENT", "KILL", "TYPE", kind, "SKIPME", "yes"]).await
    }
}

impl ServerExt for RedisServer {
    fn client(&self) -> redis::Client {
        redis::Client::open(self.url()).unwrap()
    }

    fn client_as(&self, user: &str, password: &str) -> redis::Client {
        redis::Client::open(format!("redis://{user}:{password}@{}", self.addr())).unwrap()
    }

    async fn try_connection(&self) -> RedisResult<MultiplexedConnection> {
        let config = AsyncConnectionConfig::new().set_response_timeout(Some(Duration::from_secs(10)));
        self.client().get_multiplexed_async_connection_with_config(&config).await
    }

    async fn try_ask<T: FromRedisValue>(&self, words: &[impl ToRedisArgs]) -> RedisResult<T> {
        let mut command = redis::Cmd::new();
        for word in words {
            command.arg(word);
        }
        command.query_async(&mut self.try_connection().await?).await
    }
}

/// Passes bytes on to a server, until told to swallow or hold them.
pub(super) struct Proxy {
    pub(super) port: u16,
    swallow: Arc<AtomicBool>,
    hold: Arc<AtomicBool>,
    held: Arc<Semaphore>,
    pub(super) connections: Arc<AtomicU64>,
    task: tokio::task::JoinHandle<()>,
}

impl Proxy {
    pub(super) async fn start(server: &RedisServer) -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let (swallow, connections) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (address, flag, count) = (server.addr(), Arc::clone(&swallow), Arc::clone(&connections));
        let (hold, held) = (Arc::new(AtomicBool::new(false)), Arc::new(Semaphore::new(0)));
        let (to_hold, gate) = (Arc::clone(&hold), Arc::clone(&held));
        let task = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                count.fetch_add(1, Ordering::SeqCst);
                // Only connections that exist when the flag is set become half open; new ones work.
                let mine = Arc::new(AtomicBool::new(false));
                let server = tokio::net::TcpStream::connect(address).await.unwrap();
                let (mut client_in, mut client_out) = client.into_split();
                let (mut server_in, mut server_out) = server.into_split();
                let (flag_a, mine_a) = (Arc::clone(&flag), Arc::clone(&mine));
                let (to_hold, gate) = (Arc::clone(&to_hold), Arc::clone(&gate));
                tokio::spawn(async move {
                    let mut buffer = [0; 4096];
                    while let Ok(n @ 1..) = client_in.read(&mut buffer).await {
                        if flag_a.swap(false, Ordering::SeqCst) {
                            mine_a.store(true, Ordering::SeqCst);
                        }
                        if to_hold.swap(false, Ordering::SeqCst) {
                            gate.acquire().await.unwrap().forget();
                        }
                        if !mine_a.load(Ordering::SeqCst) && server_out.write_all(&buffer[..n]).await.is_err()
                        {
                            return;
                        }
                    }
                });
                tokio::spawn(async move {
                    let mut buffer = [0; 4096];
                    while let Ok(n @ 1..) = server_in.read(&mut buffer).await {
                        if !mine.load(Ordering::SeqCst) && client_out.write_all(&buffer[..n]).await.is_err() {
                            return;
                        }
                    }
                });
            }
        });
        Self { port, swallow, hold, held, connections, task }
    }

    /// Makes the next connection that sends something half open from then on.
    pub(super) fn swallow_next(&self) {
        self.swallow.store(true, Ordering::SeqCst);
    }

    /// Holds what the next connection that sends something sends from then on.
    pub(super) fn hold_next(&self) {
        self.hold.store(true, Ordering::SeqCst);
    }

    /// Passes on what one connection was held up with.
    pub(super) fn let_go(&self) {
        self.held.add_permits(1);
    }

    pub(super) fn client(&self) -> redis::Client {
        redis::Client::open(format!("redis://127.0.0.1:{}", self.port)).unwrap()
    }

    pub(super) fn client_as(&self, user: &str, password: &str) -> redis::Client {
        redis::Client::open(format!("redis://{user}:{password}@127.0.0.1:{}", self.port)).unwrap()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Answers each command with what `script` returns for its words.
pub(super) struct Fake {
    pub(super) port: u16,
    task: tokio::task::JoinHandle<()>,
}

impl Fake {
    pub(super) async fn start(script: impl Fn(&[String]) -> String + Send + Sync + 'static) -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let script = Arc::new(script);
        let task = tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let script = Arc::clone(&script);
                tokio::spawn(async move {
                    let mut bytes = Vec::new();
                    let mut buffer = [0; 16384];
                    while let Ok(n @ 1..) = stream.read(&mut buffer).await {
                        bytes.extend_from_slice(&buffer[..n]);
                        while let Some((words, used)) = parse(&bytes) {
                            bytes.drain(..used);
                            if stream.write_all(script(&words).as_bytes()).await.is_err() {
                                return;
                            }
                        }
                    }
                });
            }
        });
        Self { port, task }
    }

    pub(super) fn client(&self) -> redis::Client {
        redis::Client::open(format!("redis://ann:hunter2@127.0.0.1:{}", self.port)).unwrap()
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Reads one command in the client's format. Returns its words and its length.
fn parse(bytes: &[u8]) -> Option<(Vec<String>, usize)> {
    let line = |from: usize| {
        let end = bytes.get(from..)?.windows(2).position(|two| two == b"\r\n")? + from;
        Some((std::str::from_utf8(&bytes[from + 1..end]).ok()?.parse::<usize>().ok()?, end + 2))
    };
    let (count, mut at) = line(0)?;
    let mut words = Vec::new();
    for _ in 0..count {
        let (length, start) = line(at)?;
        words.push(String::from_utf8_lossy(bytes.get(start..start + length)?).into_owned());
        at = start + length + 2;
    }
    (bytes.len() >= at).then_some((words, at))
}
