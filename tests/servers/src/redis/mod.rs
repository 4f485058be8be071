//! [`RedisServer`]: a real redis-server for one test, and a minimal client that is independent of
//! the library under test.

mod client;
mod group;
mod launch;

use std::io;
use std::net::SocketAddr;
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

pub use client::{Connection, Reply};
pub(crate) use group::{ended, text, until};
pub(crate) use launch::{READY, Role, Setup, free_port_for, until_ports_are_free};
pub use launch::{StartError, free_port};
#[cfg(feature = "tls")]
pub(crate) use launch::{launch_in, read_log};

use crate::ServerClock;
use crate::process::Process;

/// Whether the `redis-server` on the `PATH` was built with TLS. Makes it read settings, without
/// starting a server.
#[must_use]
pub fn knows_tls() -> bool {
    // redis-server reads settings in order, and ends at the first one that it does not know.
    let output = Command::new("redis-server")
        .args(["--tls-port", "0", "--no-such-setting", "0"])
        .stdin(Stdio::null())
        .output();
    output.is_ok_and(|output| String::from_utf8_lossy(&output.stderr).contains("no-such-setting"))
}

/// Whether a server keeps its data over a [restart](RedisServer::restart).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Data {
    /// Saved and loaded again.
    Kept,
    /// Lost, as after a crash without persistence.
    Lost,
}

/// A redis-server on a free loopback port, with its own folder. Ended and cleaned up on drop.
#[derive(Debug)]
pub struct RedisServer {
    // Fields are dropped in order: the process ends before its folder goes.
    process: Process,
    dir: TempDir,
    port: u16,
    /// The port that clients and replicas are told to use, when it is not `port`.
    announced: Option<u16>,
    setup: Setup,
}

impl RedisServer {
    /// Starts a server without persistence.
    ///
    /// # Panics
    ///
    /// When it does not start; the text says what is missing.
    #[track_caller]
    #[must_use]
    pub fn start() -> Self {
        Self::start_with(&[])
    }

    /// Starts a server with additional command-line arguments (`&["--maxmemory", "2mb"]`).
    ///
    /// # Panics
    ///
    /// When it does not start.
    #[track_caller]
    #[must_use]
    pub fn start_with(args: &[&str]) -> Self {
        match Self::try_start_with(args) {
            Ok(server) => server,
            Err(error) => panic!("{error}"),
        }
    }

    /// Starts a server whose wall clock is `clock`, which can be set while it runs.
    ///
    /// # Panics
    ///
    /// When it does not start.
    #[track_caller]
    #[must_use]
    pub fn start_with_clock(args: &[&str], clock: &ServerClock) -> Self {
        let args = args.iter().map(|&arg| arg.to_owned()).collect();
        match Self::try_launch(&Setup { args, clock: Some(clock.clone()), ..Setup::default() }) {
            Ok(server) => server,
            Err(error) => panic!("{error}"),
        }
    }

    /// Starts a server with additional arguments.
    ///
    /// # Errors
    ///
    /// When there is no `redis-server`, or it refuses to run.
    pub fn try_start_with(args: &[&str]) -> Result<Self, StartError> {
        let args = args.iter().map(|&arg| arg.to_owned()).collect();
        Self::try_launch(&Setup { args, ..Setup::default() })
    }

    pub(crate) fn try_launch(setup: &Setup) -> Result<Self, StartError> {
        until_ports_are_free(|| Self::try_launch_on(free_port_for(setup.role)?, setup.clone()))
    }

    pub(crate) fn try_launch_on(port: u16, setup: Setup) -> Result<Self, StartError> {
        let dir = tempfile::Builder::new().prefix("lock-redis-").tempdir()?;
        setup.write(&dir)?;
        let process = setup.launch(port, &dir)?;
        Ok(Self { process, dir, port, announced: None, setup })
    }

    /// Returns `redis://127.0.0.1:<port>`.
    #[must_use]
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Returns the port.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Returns the port for TLS connections, if there is one.
    pub(crate) fn tls_port(&self) -> Option<u16> {
        self.setup.value("--tls-port")?.parse().ok()
    }

    /// Returns the port that clients and replicas are told to use: the server's own, or that of a
    /// proxy.
    pub(crate) fn announced_port(&self) -> u16 {
        self.announced.unwrap_or(self.port)
    }

    /// Makes the server announce this port of the loopback interface to clients and replicas. A
    /// restart forgets it, so the caller has to announce it again.
    pub(crate) fn announce(&mut self, port: u16) -> Result<(), String> {
        let (text_port, bus) = (port.to_string(), (self.port.saturating_add(10_000)).to_string());
        if self.setup.role == Role::Node {
            // Nodes go on speaking to each other directly.
            text(self, &["CONFIG", "SET", "cluster-announce-bus-port", &bus])?;
            text(self, &["CONFIG", "SET", "cluster-announce-port", &text_port])?;
        } else {
            text(self, &["CONFIG", "SET", "replica-announce-port", &text_port])?;
        }
        self.announced = Some(port);
        Ok(())
    }

    /// Returns the address.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], self.port))
    }

    /// Runs one command and returns its answer as `redis-cli` prints it to a pipe. Text stays as it
    /// is, numbers are decimal, nil is empty, and an array has one line for each element.
    ///
    /// # Panics
    ///
    /// When the server can't be asked, or answers with an error.
    #[track_caller]
    pub fn cli(&self, args: &[&str]) -> String {
        match self.command(args) {
            Ok(Reply::Error(text)) => panic!("{args:?}: {text}"),
            Ok(reply) => reply.to_string(),
            Err(error) => panic!("{args:?}: {error}"),
        }
    }

    /// Runs one command.
    ///
    /// # Errors
    ///
    /// When the server does not answer. An error answer is a [`Reply::Error`].
    pub fn command(&self, args: &[&str]) -> io::Result<Reply> {
        self.command_within(READY, args)
    }

    /// Runs one command. The server must answer within `within`.
    ///
    /// # Errors
    ///
    /// As [`command`](Self::command).
    pub fn command_within(&self, within: Duration, args: &[&str]) -> io::Result<Reply> {
        self.connect(within)?.command(args)
    }

    fn connect(&self, within: Duration) -> io::Result<Connection> {
        let mut connection = Connection::open(self.addr(), within)?;
        if let Some(password) = self.setup.password() {
            connection.command(&["AUTH", password])?;
        }
        Ok(connection)
    }

    /// Waits until `replicas` of this server's replicas have all its writes. A new replica that
    /// reports itself connected may get its first changes a second later. Not for clusters, where a
    /// server only accepts keys of its slots.
    ///
    /// # Panics
    ///
    /// When that takes more than a minute, or the server does not answer.
    #[track_caller]
    pub fn wait_for_replicas(&self, replicas: usize) {
        const LONG: Duration = Duration::from_secs(60);
        const MARKER: &str = "lock-tests:marker";

        // `WAIT` only covers what its own connection has written.
        let caught_up = || -> io::Result<Reply> {
            let mut connection = self.connect(LONG + READY)?;
            connection.command(&["SET", MARKER, "1"])?;
            connection.command(&["DEL", MARKER])?;
            connection.command(&["WAIT", &replicas.to_string(), &LONG.as_millis().to_string()])
        };
        match caught_up() {
            Ok(Reply::Number(count)) if count >= replicas as i64 => {}
            other => panic!("{}: not {replicas} replicas have caught up: {other:?}", self.addr()),
        }
    }

    /// Returns the number of open connections with bytes that the server has not read: they stay in
    /// its socket buffers while it is [stopped](Self::stop). Connections that the other side has
    /// closed do not count.
    ///
    /// # Panics
    ///
    /// When the system does not list its connections.
    #[cfg(target_os = "linux")]
    #[must_use]
    pub fn unread_connections(&self) -> usize {
        let table = std::fs::read_to_string("/proc/net/tcp").expect("Linux lists its connections");
        // sl local_address rem_address st tx_queue:rx_queue …, numbers in hexadecimal
        let port = format!(":{:04X}", self.port);
        let unread = |line: &&str| {
            let words: Vec<&str> = line.split_whitespace().collect();
            let (Some(local), Some(state), Some(queues)) = (words.get(1), words.get(3), words.get(4)) else {
                return false;
            };
            // 01: established. For a listening socket the column counts its backlog, for a closed
            // one the end of its stream.
            let received = queues.split_once(':').map_or("", |(_, received)| received);
            local.ends_with(&port) && *state == "01" && received.bytes().any(|digit| digit != b'0')
        };
        table.lines().skip(1).filter(unread).count()
    }

    /// Returns the process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Returns the whole log of the server.
    #[must_use]
    pub fn log(&self) -> String {
        launch::read_log(&self.dir)
    }

    /// Returns the exit status, if the server has ended by itself.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.process.ended()
    }

    /// Sends SIGSTOP: the server keeps its connections but answers nothing.
    pub fn stop(&mut self) {
        self.process.stop();
    }

    /// Sends SIGCONT.
    pub fn cont(&mut self) {
        self.process.cont();
    }

    /// Sends SIGKILL. A [restart](Self::restart) uses the same port, unless another process takes
    /// it.
    pub fn kill(&mut self) {
        self.process.kill();
    }

    /// Ends the server and starts it again on the same port.
    ///
    /// # Panics
    ///
    /// When it does not start again, or its data can't be saved.
    #[track_caller]
    pub fn restart(&mut self, data: Data) {
        let dump = self.dir.path().join("dump.rdb");
        match data {
            // The state of a sentinel is already in its file.
            Data::Kept if self.setup.role == Role::Sentinel => {}
            Data::Kept if self.process.ended().is_none() => {
                self.cli(&["SAVE"]);
            }
            Data::Kept => {}
            Data::Lost => {
                let _ = std::fs::remove_file(&dump);
                // Written with `appendonly yes`.
                let _ = std::fs::remove_dir_all(self.dir.path().join("appendonlydir"));
                if self.setup.role == Role::Sentinel {
                    self.process.kill();
                    self.setup.write(&self.dir).expect("the file can be written again");
                }
            }
        }
        self.process.kill();
        let deadline = Instant::now() + READY;
        loop {
            match self.setup.launch(self.port, &self.dir) {
                Ok(process) => {
                    self.process = process;
                    return;
                }
                Err(error) if error.port_is_taken() && Instant::now() < deadline => {
                    std::thread::sleep(Duration::from_millis(50));
                }
                Err(error) => panic!("restart: {error}"),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_answers_and_leaves_nothing_behind() {
        let server = RedisServer::start();
        assert_eq!(server.cli(&["SET", "a", "1"]), "OK");
        assert_eq!(server.cli(&["INCR", "a"]), "2");
        assert_eq!(server.cli(&["GET", "none"]), "");
        assert_eq!(server.cli(&["MGET", "a", "none"]), "2\n");
        assert!(matches!(server.command(&["NONSENSE"]), Ok(Reply::Error(_))));
        let (dir, addr) = (server.dir.path().to_owned(), server.addr());
        drop(server);
        assert!(!dir.exists());
        assert!(Connection::open(addr, Duration::from_secs(1)).is_err());
    }

    #[test]
    fn a_restart_keeps_the_port_and_what_it_was_told_to_keep() {
        let mut server = RedisServer::start();
        let port = server.port();
        server.cli(&["SET", "a", "1"]);
        server.restart(Data::Kept);
        assert_eq!((server.port(), server.cli(&["GET", "a"])), (port, "1".to_owned()));
        server.restart(Data::Lost);
        assert_eq!((server.port(), server.cli(&["GET", "a"])), (port, String::new()));
    }

    #[test]
    fn a_password_protected_server_is_usable() {
        let server = RedisServer::start_with(&["--requirepass", "secret"]);
        assert_eq!(server.cli(&["PING"]), "PONG");
    }

    #[test]
    fn a_stopped_server_answers_after_it_is_continued() {
        let mut server = RedisServer::start();
        let mut connection = Connection::open(server.addr(), Duration::from_millis(200)).unwrap();
        server.stop();
        assert!(connection.command(&["PING"]).is_err());
        #[cfg(target_os = "linux")]
        assert_eq!(server.unread_connections(), 1);
        server.cont();
        assert_eq!(server.cli(&["PING"]), "PONG");
    }

    #[test]
    fn a_server_that_refuses_to_run_shows_why() {
        let error = RedisServer::try_start_with(&["--maxmemory", "nonsense"]).unwrap_err();
        assert!(matches!(error, StartError::Failed(_)), "{error}");
    }
}
