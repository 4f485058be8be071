//! [`RedisServer`]: a real redis-server for one test, and a minimal client that needs no library under test.

use std::fmt;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::ServerClock;
use crate::process::Process;

/// How long a server may take to answer. Generous: two busy cores.
const READY: Duration = Duration::from_secs(20);

/// Why a server could not be started.
#[derive(Debug)]
pub enum StartError {
    /// There is no `redis-server` on the `PATH`.
    Missing,
    /// It ended, or did not answer in time; its log.
    Failed(String),
    /// The system refused something.
    Io(io::Error),
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing => f.write_str(
                "redis-server is not on the PATH: `cargo xtask test --install` installs it, or see \
                 `cargo xtask test` for the command",
            ),
            Self::Failed(log) => write!(f, "redis-server did not start:\n{log}"),
            Self::Io(error) => write!(f, "redis-server did not start: {error}"),
        }
    }
}

impl std::error::Error for StartError {}

impl From<io::Error> for StartError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// Whether the `redis-server` on the `PATH` was built with TLS. It is asked to read settings and starts nothing.
#[must_use]
pub fn knows_tls() -> bool {
    // Settings are read in order, and it ends at the first one that it does not know.
    let output = Command::new("redis-server")
        .args(["--tls-port", "0", "--no-such-setting", "0"])
        .stdin(Stdio::null())
        .output();
    output.is_ok_and(|output| String::from_utf8_lossy(&output.stderr).contains("no-such-setting"))
}

/// What becomes of a server's data at a [restart](RedisServer::restart).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Data {
    /// Saved, and loaded again.
    Kept,
    /// Gone, as after a crash without persistence.
    Lost,
}

/// A redis-server on a free loopback port with a folder of its own. Ended and cleaned up on drop.
#[derive(Debug)]
pub struct RedisServer {
    // Fields are dropped in order: the process ends before its folder goes.
    process: Process,
    dir: TempDir,
    port: u16,
    args: Vec<String>,
    clock: Option<ServerClock>,
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

    /// Starts a server with more arguments, as on its command line (`&["--maxmemory", "2mb"]`).
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
        match Self::try_start_with_clock(args, clock) {
            Ok(server) => server,
            Err(error) => panic!("{error}"),
        }
    }

    /// Starts a server with more arguments.
    ///
    /// # Errors
    ///
    /// When there is no `redis-server`, or it refuses to run.
    pub fn try_start_with(args: &[&str]) -> Result<Self, StartError> {
        Self::try_start(args, None)
    }

    /// Starts a server whose wall clock is `clock`.
    ///
    /// # Errors
    ///
    /// As [`try_start_with`](Self::try_start_with).
    pub fn try_start_with_clock(args: &[&str], clock: &ServerClock) -> Result<Self, StartError> {
        Self::try_start(args, Some(clock.clone()))
    }

    fn try_start(args: &[&str], clock: Option<ServerClock>) -> Result<Self, StartError> {
        let args: Vec<String> = args.iter().map(|&arg| arg.to_owned()).collect();
        let dir = tempfile::Builder::new().prefix("lock-redis-").tempdir()?;
        let (process, port) = on_a_free_port(|port| launch(port, &dir, &args, clock.as_ref()))?;
        Ok(Self { process, dir, port, args, clock })
    }

    /// `redis://127.0.0.1:<port>`.
    #[must_use]
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// The port.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The address.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], self.port))
    }

    /// Runs one command and returns its answer as `redis-cli` prints it to a pipe: text as it is, numbers in decimal,
    /// nothing for nil, one line per element of an array.
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
    /// When the server does not answer. An error that it answers is a [`Reply::Error`].
    pub fn command(&self, args: &[&str]) -> io::Result<Reply> {
        let mut connection = Connection::open(self.addr(), READY)?;
        if let Some(password) = password(&self.args) {
            connection.command(&["AUTH", password])?;
        }
        connection.command(args)
    }

    /// How many open connections have sent something that the server has not read: what waits in its socket buffers
    /// while it is [stopped](Self::stop). Connections that the other side has closed are not counted.
    ///
    /// # Panics
    ///
    /// When the system does not tell.
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
            // 01: established. A listening socket counts its backlog there, a closed one the end of its stream.
            let received = queues.split_once(':').map_or("", |(_, received)| received);
            local.ends_with(&port) && *state == "01" && received.bytes().any(|digit| digit != b'0')
        };
        table.lines().skip(1).filter(unread).count()
    }

    /// The whole log of the server.
    #[must_use]
    pub fn log(&self) -> String {
        read_log(&self.dir)
    }

    /// The exit status, if the server has ended by itself.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.process.ended()
    }

    /// SIGSTOP: the server keeps its connections, and answers nothing.
    pub fn stop(&mut self) {
        self.process.stop();
    }

    /// SIGCONT.
    pub fn cont(&mut self) {
        self.process.cont();
    }

    /// SIGKILL. The port stays reserved for a [restart](Self::restart) as far as nobody else takes it.
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
            Data::Kept if self.process.ended().is_none() => {
                self.cli(&["SAVE"]);
            }
            Data::Kept => {}
            Data::Lost => {
                let _ = std::fs::remove_file(&dump);
            }
        }
        self.process.kill();
        let deadline = Instant::now() + READY;
        loop {
            match launch(self.port, &self.dir, &self.args, self.clock.as_ref()) {
                Ok(process) => {
                    self.process = process;
                    return;
                }
                Err(StartError::Failed(log))
                    if log.contains("Address already in use") && Instant::now() < deadline =>
                {
                    std::thread::sleep(Duration::from_millis(50));
                }
                Err(error) => panic!("restart: {error}"),
            }
        }
    }
}

/// A port that nobody listens on. Below the range that systems take for outgoing connections (Linux: 32768 and up),
/// so that no client's connection takes it between this check, the start of a server and its restart.
fn free_port() -> io::Result<u16> {
    const FIRST: u16 = 20_000;
    const COUNT: u16 = 12_000;
    static NEXT: AtomicU16 = AtomicU16::new(0);
    for _ in 0..COUNT {
        // Processes start at different places, and one process does not try a port twice in a row.
        let spread = std::process::id().wrapping_mul(2_654_435_761) >> 16;
        let step = u32::from(NEXT.fetch_add(1, Ordering::Relaxed));
        let offset = u16::try_from((spread + step) % u32::from(COUNT)).expect("below COUNT");
        let port = FIRST + offset;
        match TcpListener::bind(("127.0.0.1", port)) {
            Ok(_) => return Ok(port),
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
            Err(error) => return Err(error),
        }
    }
    Err(io::Error::new(io::ErrorKind::AddrInUse, "no loopback port is free"))
}

/// Launches a server on one free port after the other until one is really free.
pub(crate) fn on_a_free_port(
    launch: impl Fn(u16) -> Result<Process, StartError>,
) -> Result<(Process, u16), StartError> {
    let mut last = StartError::Failed("no port was free".to_owned());
    // A port that was free a moment ago may be taken now: another test's server won the race.
    for _ in 0..20 {
        let port = free_port()?;
        match launch(port) {
            Ok(process) => return Ok((process, port)),
            Err(StartError::Failed(log)) if log.contains("Address already in use") => {
                last = StartError::Failed(log);
            }
            Err(error) => return Err(error),
        }
    }
    Err(last)
}

fn launch(
    port: u16,
    dir: &TempDir,
    args: &[String],
    clock: Option<&ServerClock>,
) -> Result<Process, StartError> {
    let port_args = ["--port".to_owned(), port.to_string()];
    let all = port_args.iter().chain(args).map(String::as_str);
    let mut command = Command::new("redis-server");
    if let Some(clock) = clock {
        clock.apply(&mut command);
    }
    launch_command(command, dir, all, |process| is_ready(port, process.id(), password(args)))
}

/// Starts a server in `dir` and waits until it is `ready`.
#[cfg(any(feature = "tls-rustls", feature = "tls-native"))]
pub(crate) fn launch_in<'a>(
    dir: &TempDir,
    args: impl IntoIterator<Item = &'a str>,
    ready: impl Fn(&Process) -> bool,
) -> Result<Process, StartError> {
    launch_command(Command::new("redis-server"), dir, args, ready)
}

/// The same for a server whose environment is prepared.
fn launch_command<'a>(
    mut command: Command,
    dir: &TempDir,
    args: impl IntoIterator<Item = &'a str>,
    ready: impl Fn(&Process) -> bool,
) -> Result<Process, StartError> {
    let log = dir.path().join("redis.log");
    let _ = std::fs::remove_file(&log);
    command
        .args(["--bind", "127.0.0.1", "--daemonize", "no"])
        .args(["--save", "", "--appendonly", "no", "--databases", "16"])
        .arg("--dir")
        .arg(dir.path())
        .arg("--logfile")
        .arg(&log)
        .args(args)
        .current_dir(dir.path())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let mut process = Process::spawn(&mut command, Some(dir.path())).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => StartError::Missing,
        _ => StartError::Io(error),
    })?;
    let deadline = Instant::now() + READY;
    loop {
        if process.ended().is_some() {
            return Err(StartError::Failed(read_log(dir)));
        }
        if ready(&process) {
            return Ok(process);
        }
        if Instant::now() >= deadline {
            return Err(StartError::Failed(format!("no answer within {READY:?}\n{}", read_log(dir))));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Whether *our* server answers: another one may have taken the port.
fn is_ready(port: u16, pid: u32, password: Option<&str>) -> bool {
    let ask = || -> io::Result<Reply> {
        let addr = SocketAddr::from(([127, 0, 0, 1], port));
        let mut connection = Connection::open(addr, Duration::from_secs(2))?;
        if let Some(password) = password {
            connection.command(&["AUTH", password])?;
        }
        match connection.command(&["PING"])? {
            Reply::Text(pong) if pong == "PONG" => connection.command(&["INFO", "server"]),
            reply => Ok(reply),
        }
    };
    match ask() {
        Ok(Reply::Text(info)) => info.lines().any(|line| line == format!("process_id:{pid}")),
        _ => false,
    }
}

fn password(args: &[String]) -> Option<&str> {
    args.iter().position(|arg| arg == "--requirepass").and_then(|at| args.get(at + 1)).map(String::as_str)
}

pub(crate) fn read_log(dir: &TempDir) -> String {
    std::fs::read_to_string(dir.path().join("redis.log")).unwrap_or_else(|error| format!("(no log: {error})"))
}

/// What a server answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// Text, a status or a bulk string.
    Text(String),
    /// A number.
    Number(i64),
    /// Nothing.
    Nil,
    /// A list.
    List(Vec<Reply>),
    /// An error, with its code.
    Error(String),
}

impl fmt::Display for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) | Self::Error(text) => f.write_str(text),
            Self::Number(number) => number.fmt(f),
            Self::Nil => Ok(()),
            Self::List(items) => {
                for (i, item) in items.iter().enumerate() {
                    if i > 0 {
                        f.write_str("\n")?;
                    }
                    item.fmt(f)?;
                }
                Ok(())
            }
        }
    }
}

/// A connection that speaks RESP 2: enough to look at a server from outside.
#[derive(Debug)]
pub struct Connection {
    stream: BufReader<TcpStream>,
}

impl Connection {
    /// Connects; every answer must come within `timeout`.
    ///
    /// # Errors
    ///
    /// When nobody listens there.
    pub fn open(addr: SocketAddr, timeout: Duration) -> io::Result<Self> {
        let stream = TcpStream::connect_timeout(&addr, timeout)?;
        stream.set_read_timeout(Some(timeout))?;
        stream.set_write_timeout(Some(timeout))?;
        stream.set_nodelay(true)?;
        Ok(Self { stream: BufReader::new(stream) })
    }

    /// Sends one command and reads its answer.
    ///
    /// # Errors
    ///
    /// When there is no answer, or not one that this client understands.
    pub fn command(&mut self, args: &[&str]) -> io::Result<Reply> {
        let mut request = format!("*{}\r\n", args.len());
        for arg in args {
            request.push_str(&format!("${}\r\n{arg}\r\n", arg.len()));
        }
        self.stream.get_mut().write_all(request.as_bytes())?;
        self.read()
    }

    /// Reads one answer or message.
    ///
    /// # Errors
    ///
    /// As [`command`](Self::command).
    pub fn read(&mut self) -> io::Result<Reply> {
        let mut line = String::new();
        if self.stream.read_line(&mut line)? == 0 {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the server closed the connection"));
        }
        let line = line.trim_end_matches(['\r', '\n']);
        let strange = || io::Error::new(io::ErrorKind::InvalidData, format!("not an answer: {line:?}"));
        let (kind, rest) = line.split_at_checked(1).ok_or_else(strange)?;
        let number = || rest.parse::<i64>().map_err(|_| strange());
        Ok(match kind {
            "+" => Reply::Text(rest.to_owned()),
            "-" => Reply::Error(rest.to_owned()),
            ":" => Reply::Number(number()?),
            "$" => match usize::try_from(number()?) {
                Err(_) => Reply::Nil,
                Ok(length) => {
                    let mut bytes = vec![0; length + 2];
                    self.stream.read_exact(&mut bytes)?;
                    bytes.truncate(length);
                    Reply::Text(String::from_utf8_lossy(&bytes).into_owned())
                }
            },
            "*" => match usize::try_from(number()?) {
                Err(_) => Reply::Nil,
                Ok(length) => Reply::List((0..length).map(|_| self.read()).collect::<io::Result<_>>()?),
            },
            _ => return Err(strange()),
        })
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
