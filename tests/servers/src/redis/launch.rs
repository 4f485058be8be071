//! Launches a redis-server on a free port.

use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use super::client::{Connection, Reply};
use crate::ServerClock;
use crate::process::Process;

/// Maximum time for a server to answer. Generous: the machine may have only two busy cores.
pub(crate) const READY: Duration = Duration::from_secs(20);

/// The file with a server's settings, in its folder.
const FILE: &str = "redis.conf";

/// Why a server could not be started.
#[derive(Debug)]
pub enum StartError {
    /// There is no `redis-server` on the `PATH`.
    Missing,
    /// The server ended, or did not answer in time. Contains its log.
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

impl StartError {
    pub(crate) fn port_is_taken(&self) -> bool {
        matches!(self, Self::Failed(log) if log.contains("Address already in use"))
    }
}

impl From<io::Error> for StartError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// A server's role. It determines the ports that the server needs and how it is launched.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Role {
    /// A server with data.
    #[default]
    Data,
    /// A server with data in a cluster. It has a second port, 10000 above the first.
    Node,
    /// A sentinel, which watches other servers.
    Sentinel,
}

/// How a server is launched, at the start and at each restart.
#[derive(Clone, Debug, Default)]
pub(crate) struct Setup {
    pub(crate) role: Role,
    /// Command-line arguments of every launch.
    pub(crate) args: Vec<String>,
    /// The settings file, which the server rewrites: settings changed at run time survive a
    /// restart.
    pub(crate) file: Option<String>,
    /// The server's wall clock.
    pub(crate) clock: Option<ServerClock>,
}

impl Setup {
    /// Returns the password that clients need.
    pub(crate) fn password(&self) -> Option<&str> {
        self.value("--requirepass")
    }

    /// Returns the argument that follows `name` on the command line.
    pub(crate) fn value(&self, name: &str) -> Option<&str> {
        let at = self.args.iter().position(|arg| arg == name)?;
        self.args.get(at + 1).map(String::as_str)
    }

    /// Writes the settings file before the first launch in `dir`.
    pub(crate) fn write(&self, dir: &TempDir) -> io::Result<()> {
        match &self.file {
            Some(text) => std::fs::write(dir.path().join(FILE), text),
            None => Ok(()),
        }
    }

    /// Starts a server in `dir` and waits until it answers.
    pub(crate) fn launch(&self, port: u16, dir: &TempDir) -> Result<Process, StartError> {
        let port_text = port.to_string();
        let own = ["--port", port_text.as_str()].into_iter().chain(self.args.iter().map(String::as_str));
        // Last, because redis-server takes an argument behind it for its value.
        let sentinel = (self.role == Role::Sentinel).then_some("--sentinel");
        let file = self.file.as_ref().map(|_| FILE);
        let ready = |process: &Process| is_ready(port, process.id(), self.password());
        let mut command = Command::new("redis-server");
        if let Some(clock) = &self.clock {
            clock.apply(&mut command);
        }
        launch_command(command, dir, file, own.chain(sentinel), ready)
    }
}

/// Returns a port of the loopback interface on which no process listens.
///
/// The port is below the range that systems use for outgoing connections (Linux: 32768 and up). So
/// no client connection takes it between this check, the start of the server and its restart.
///
/// # Errors
///
/// When no port is free.
pub fn free_port() -> io::Result<u16> {
    free_port_for(Role::Data)
}

/// Returns a free port for a server in this role. A cluster node's second port is free too.
pub(crate) fn free_port_for(role: Role) -> io::Result<u16> {
    const FIRST: u16 = 20_000;
    const COUNT: u16 = 12_000;
    /// Number of ports whose second port is below 32768.
    const NODES: u16 = 2_700;
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let count = if role == Role::Node { NODES } else { COUNT };
    for _ in 0..count {
        // Processes start at different places, and a process does not try the same port twice in a
        // row.
        let spread = std::process::id().wrapping_mul(2_654_435_761) >> 16;
        let step = u32::from(NEXT.fetch_add(1, Ordering::Relaxed));
        let offset = u16::try_from((spread + step) % u32::from(count)).expect("below the count");
        let port = FIRST + offset;
        let second = (role == Role::Node).then_some(port + BUS);
        match [Some(port), second].into_iter().flatten().try_for_each(is_free) {
            Ok(()) => return Ok(port),
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
            Err(error) => return Err(error),
        }
    }
    Err(io::Error::new(io::ErrorKind::AddrInUse, "no loopback port is free"))
}

/// Distance between a node's first and second port.
const BUS: u16 = 10_000;

fn is_free(port: u16) -> io::Result<()> {
    TcpListener::bind(("127.0.0.1", port)).map(drop)
}

/// Calls `start` again while it fails because a port is taken.
pub(crate) fn until_ports_are_free<T>(start: impl Fn() -> Result<T, StartError>) -> Result<T, StartError> {
    let mut last = StartError::Failed("no port was free".to_owned());
    // A port that was free a moment ago may be taken now: the server of another test won the race.
    for _ in 0..20 {
        match start() {
            Err(error) if error.port_is_taken() => last = error,
            other => return other,
        }
    }
    Err(last)
}

#[cfg(feature = "tls")]
/// Starts a server in `dir` and waits until it is `ready`. The name of its settings `file`, if it
/// has one, is relative to `dir`.
pub(crate) fn launch_in<'a>(
    dir: &TempDir,
    file: Option<&str>,
    args: impl IntoIterator<Item = &'a str>,
    ready: impl Fn(&Process) -> bool,
) -> Result<Process, StartError> {
    launch_command(Command::new("redis-server"), dir, file, args, ready)
}

/// Like `launch_in`, with a prepared command.
fn launch_command<'a>(
    mut command: Command,
    dir: &TempDir,
    file: Option<&str>,
    args: impl IntoIterator<Item = &'a str>,
    ready: impl Fn(&Process) -> bool,
) -> Result<Process, StartError> {
    let log = dir.path().join("redis.log");
    let _ = std::fs::remove_file(&log);
    command
        .args(file)
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

pub(crate) fn read_log(dir: &TempDir) -> String {
    std::fs::read_to_string(dir.path().join("redis.log")).unwrap_or_else(|error| format!("(no log: {error})"))
}
