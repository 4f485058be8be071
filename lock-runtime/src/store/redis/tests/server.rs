//! A redis-server of the test's own, and fakes.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use redis::{FromRedisValue, ToRedisArgs};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// A redis-server on a free port of this machine; killed when dropped.
pub(super) struct Server {
    child: Child,
    port: u16,
    directory: PathBuf,
    arguments: Vec<String>,
}

impl Server {
    pub(super) fn start() -> Self {
        Self::start_with(&[])
    }

    pub(super) fn start_with(arguments: &[&str]) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let name = format!("lock-runtime-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let directory = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&directory).unwrap();
        let arguments: Vec<String> = arguments.iter().map(ToString::to_string).collect();
        for _ in 0..5 {
            let port = free_port();
            let mut child = spawn(port, &directory, &arguments);
            if ready(&mut child, port) {
                return Self { child, port, directory, arguments };
            }
            let _ = child.kill();
            let _ = child.wait();
        }
        panic!("redis-server did not start: {}", log(&directory));
    }

    pub(super) fn port(&self) -> u16 {
        self.port
    }

    pub(super) fn address(&self) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], self.port))
    }

    pub(super) fn client(&self) -> redis::Client {
        redis::Client::open(format!("redis://127.0.0.1:{}", self.port)).unwrap()
    }

    pub(super) fn client_as(&self, user: &str, password: &str) -> redis::Client {
        redis::Client::open(format!("redis://{user}:{password}@127.0.0.1:{}", self.port)).unwrap()
    }

    pub(super) fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// The same server again on the same port, empty.
    pub(super) fn start_again(&mut self) {
        self.kill();
        self.child = spawn(self.port, &self.directory, &self.arguments);
        assert!(
            ready(&mut self.child, self.port),
            "redis-server did not start again: {}",
            log(&self.directory)
        );
    }

    /// `STOP` or `CONT`.
    pub(super) fn signal(&self, name: &str) {
        let status = Command::new("kill").arg(format!("-{name}")).arg(self.child.id().to_string()).status();
        assert!(status.unwrap().success());
    }

    pub(super) async fn connection(&self) -> redis::aio::MultiplexedConnection {
        let config = redis::AsyncConnectionConfig::new().set_response_timeout(Some(Duration::from_secs(10)));
        self.client().get_multiplexed_async_connection_with_config(&config).await.unwrap()
    }

    /// One command on a connection of its own.
    pub(super) async fn command<T: FromRedisValue>(&self, words: &[impl ToRedisArgs]) -> T {
        self.try_command(words).await.unwrap()
    }

    pub(super) async fn try_command<T: FromRedisValue>(
        &self,
        words: &[impl ToRedisArgs],
    ) -> redis::RedisResult<T> {
        let mut command = redis::Cmd::new();
        for word in words {
            command.arg(word);
        }
        command.query_async(&mut self.connection().await).await
    }

    /// All keys, sorted.
    pub(super) async fn keys(&self) -> Vec<String> {
        let mut keys: Vec<String> = self.command(&["KEYS", "*"]).await;
        keys.sort();
        keys
    }

    /// Ends all connections of this kind, `normal` or `pubsub`, but the one that asks.
    pub(super) async fn kill_clients(&self, kind: &str) -> u64 {
        self.command(&["CLIENT", "KILL", "TYPE", kind, "SKIPME", "yes"]).await
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

pub(super) fn binary() -> String {
    std::env::var("LOCK_TEST_REDIS_SERVER").unwrap_or_else(|_| "redis-server".to_owned())
}

/// What the server has said.
fn log(directory: &std::path::Path) -> String {
    std::fs::read_to_string(directory.join("log")).unwrap_or_default()
}

fn spawn(port: u16, directory: &std::path::Path, arguments: &[String]) -> Child {
    let log = std::fs::File::create(directory.join("log")).unwrap();
    let spawned = Command::new(binary())
        .args(["--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--loglevel", "notice"])
        .args(["--port", &port.to_string(), "--dir"])
        .arg(directory)
        .args(arguments)
        .stdin(Stdio::null())
        .stderr(log.try_clone().unwrap())
        .stdout(log)
        .spawn();
    match spawned {
        Ok(child) => child,
        Err(error) => panic!(
            "can't run {:?}: {error}. These tests need a Redis server: `apt-get install redis-server`, or \
             `cargo xtask test --install`, or set LOCK_TEST_REDIS_SERVER to the binary",
            binary()
        ),
    }
}

pub(super) fn ready(child: &mut Child, port: u16) -> bool {
    let give_up = Instant::now() + Duration::from_secs(10);
    while Instant::now() < give_up {
        if child.try_wait().unwrap().is_some() {
            return false;
        }
        if let Ok(mut stream) = TcpStream::connect(("127.0.0.1", port)) {
            stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
            let mut answer = [0; 1];
            if stream.write_all(b"PING\r\n").is_ok() && stream.read_exact(&mut answer).is_ok() {
                return true;
            }
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    false
}

/// A port that nobody listens on. Below the range that systems take for outgoing connections (Linux: 32768 and up), as in
/// `tests/src/redis/launch.rs`: no client's connection has it when its server starts again.
pub(super) fn free_port() -> u16 {
    const PORTS: std::ops::Range<u16> = 20_000..32_000;
    static NEXT: AtomicU64 = AtomicU64::new(0);
    // Processes begin at different places, and one process does not try a port twice in a row.
    let spread = u64::from(std::process::id().wrapping_mul(2_654_435_761) >> 16);
    let count = u64::from(PORTS.end - PORTS.start);
    let next =
        || PORTS.start + u16::try_from((spread + NEXT.fetch_add(1, Ordering::Relaxed)) % count).unwrap();
    let is_free = |port: &u16| TcpListener::bind(("127.0.0.1", *port)).is_ok();
    std::iter::repeat_with(next).take(usize::from(PORTS.end - PORTS.start)).find(is_free).unwrap()
}

/// Passes bytes on to a server, until told to swallow them.
pub(super) struct Proxy {
    pub(super) port: u16,
    swallow: Arc<AtomicBool>,
    pub(super) connections: Arc<AtomicU64>,
    task: tokio::task::JoinHandle<()>,
}

impl Proxy {
    pub(super) async fn start(server: &Server) -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let (swallow, connections) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (address, flag, count) = (server.address(), Arc::clone(&swallow), Arc::clone(&connections));
        let task = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                count.fetch_add(1, Ordering::SeqCst);
                // Only connections that exist when the flag is set are half open, new ones work.
                let mine = Arc::new(AtomicBool::new(false));
                let server = tokio::net::TcpStream::connect(address).await.unwrap();
                let (mut client_in, mut client_out) = client.into_split();
                let (mut server_in, mut server_out) = server.into_split();
                let (flag_a, mine_a) = (Arc::clone(&flag), Arc::clone(&mine));
                tokio::spawn(async move {
                    let mut buffer = [0; 4096];
                    while let Ok(n @ 1..) = client_in.read(&mut buffer).await {
                        if flag_a.swap(false, Ordering::SeqCst) {
                            mine_a.store(true, Ordering::SeqCst);
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
        Self { port, swallow, connections, task }
    }

    /// The connection that sends something next is half open from then on.
    pub(super) fn swallow_next(&self) {
        self.swallow.store(true, Ordering::SeqCst);
    }

    pub(super) fn client(&self) -> redis::Client {
        redis::Client::open(format!("redis://127.0.0.1:{}", self.port)).unwrap()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Answers each command by what `script` says about its words.
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

/// One command in the client's format, and its length.
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
