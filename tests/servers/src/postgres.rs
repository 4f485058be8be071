//! [`PostgresServer`]: a real PostgreSQL for one test, run by the programs installed on this
//! machine.

use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::ServerClock;
use crate::process::Process;
use crate::redis::free_port;

/// Maximum time to create and start a server on a busy machine.
pub(crate) const READY: Duration = Duration::from_secs(60);

/// Returns the folder with PostgreSQL's programs: the one that `pg_config` names, the newest one of
/// Debian's packages, or one on the `PATH`.
#[must_use]
pub fn programs() -> Option<PathBuf> {
    let has_both = |folder: &PathBuf| ["initdb", "postgres"].iter().all(|name| folder.join(name).is_file());
    let said = Command::new("pg_config").arg("--bindir").stdin(Stdio::null()).output();
    let said = said.ok().map(|output| PathBuf::from(String::from_utf8_lossy(&output.stdout).trim()));
    let mut packaged: Vec<(u32, PathBuf)> = std::fs::read_dir("/usr/lib/postgresql")
        .into_iter()
        .flatten()
        .filter_map(|entry| {
            let entry = entry.ok()?;
            Some((entry.file_name().to_str()?.parse().ok()?, entry.path().join("bin")))
        })
        .collect();
    packaged.sort();
    let packaged = packaged.into_iter().rev().map(|(_, folder)| folder);
    let path = std::env::var_os("PATH").unwrap_or_default();
    let on_path: Vec<_> = std::env::split_paths(&path).collect();
    said.into_iter().chain(packaged).chain(on_path).find(has_both)
}

/// The user that PostgreSQL runs as when the tests run as root, because it refuses to run as root.
#[derive(Clone, Copy, Debug)]
pub(crate) struct User {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
}

impl User {
    pub(crate) fn find() -> io::Result<Option<Self>> {
        if !rustix::process::geteuid().is_root() {
            return Ok(None);
        }
        let users = std::fs::read_to_string("/etc/passwd")?;
        let find = |name: &str| {
            let line = users.lines().find(|line| line.split(':').next() == Some(name))?;
            let mut numbers = line.split(':').skip(2).map(str::parse);
            Some(Self { uid: numbers.next()?.ok()?, gid: numbers.next()?.ok()? })
        };
        let user = find("postgres").or_else(|| find("nobody"));
        user.map(Some).ok_or_else(|| io::Error::other("neither a user `postgres` nor `nobody`"))
    }
}

/// A PostgreSQL server on a free loopback port, with its own folder. It lets every client in. Ended
/// and cleaned up on drop.
#[derive(Debug)]
pub struct PostgresServer {
    // Fields are dropped in order: the process ends before its folder goes.
    process: Process,
    dir: TempDir,
    port: u16,
    setup: Setup,
}

/// How the server is launched, at the start and at each restart.
#[derive(Debug)]
struct Setup {
    programs: PathBuf,
    user: Option<User>,
    /// The server's wall clock.
    clock: Option<ServerClock>,
    settings: Vec<String>,
}

impl PostgresServer {
    /// Creates a database and starts the server.
    ///
    /// # Panics
    ///
    /// When that does not work; the text says what is missing.
    #[track_caller]
    #[must_use]
    pub fn start() -> Self {
        match Self::try_start() {
            Ok(server) => server,
            Err(error) => panic!("{error}"),
        }
    }

    /// As [`start`](Self::start).
    ///
    /// # Errors
    ///
    /// When PostgreSQL is missing, or refuses to run.
    pub fn try_start() -> io::Result<Self> {
        Self::try_launch(&std::env::temp_dir(), None, &[])
    }

    /// As [`try_start`](Self::try_start), with its data in a new folder within `parent`, and with
    /// settings like `max_connections=500`.
    ///
    /// # Errors
    ///
    /// As [`try_start`](Self::try_start).
    pub fn try_start_in(parent: &Path, settings: &[&str]) -> io::Result<Self> {
        Self::try_launch(parent, None, settings)
    }

    /// Like [`start`](Self::start), with a wall clock that can be set while the server runs.
    ///
    /// # Panics
    ///
    /// As [`start`](Self::start).
    #[track_caller]
    #[must_use]
    pub fn start_with_clock(clock: &ServerClock) -> Self {
        match Self::try_launch(&std::env::temp_dir(), Some(clock.clone()), &[]) {
            Ok(server) => server,
            Err(error) => panic!("{error}"),
        }
    }

    /// Starts a standby, which streams this server's changes, and takes over after `pg_promote()`.
    ///
    /// # Panics
    ///
    /// When that does not work.
    #[track_caller]
    #[must_use]
    pub fn start_standby(&self) -> Self {
        let copy = |setup: &Setup, dir: &Path| {
            let mut backup = command(&setup.programs.join("pg_basebackup"), setup.user);
            backup.arg("-D").arg(dir.join("data")).args(["-h", "127.0.0.1", "-p"]).arg(self.port.to_string());
            backup.args(["-U", "test", "--write-recovery-conf", "--checkpoint=fast", "--no-sync"]);
            backup
        };
        match Self::try_make(&std::env::temp_dir(), None, &[], copy) {
            Ok(server) => server,
            Err(error) => panic!("{error}"),
        }
    }

    fn try_launch(parent: &Path, clock: Option<ServerClock>, settings: &[&str]) -> io::Result<Self> {
        Self::try_make(parent, clock, settings, |setup, dir| {
            let mut initdb = command(&setup.programs.join("initdb"), setup.user);
            initdb.arg("-D").arg(dir.join("data"));
            initdb.args(["-U", "test", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync"]);
            initdb
        })
    }

    /// Starts a server whose data the command that `make` returns has made.
    fn try_make(
        parent: &Path,
        clock: Option<ServerClock>,
        settings: &[&str],
        make: impl Fn(&Setup, &Path) -> Command,
    ) -> io::Result<Self> {
        let programs =
            programs().ok_or_else(|| io::Error::other("PostgreSQL's `initdb` and `postgres` are missing"))?;
        let user = User::find()?;
        if let Some(clock) = &clock {
            clock.share()?;
        }
        let dir = tempfile::Builder::new().prefix("lock-postgres-").tempdir_in(parent)?;
        if let Some(User { uid, gid }) = user {
            chown(dir.path(), Some(uid), Some(gid))?;
        }
        let settings = settings.iter().map(ToString::to_string).collect();
        let setup = Setup { programs, user, clock, settings };
        let mut make = make(&setup, dir.path());
        let made = make.current_dir(dir.path()).output()?;
        if !made.status.success() {
            let (program, said) = (make.get_program().display(), String::from_utf8_lossy(&made.stderr));
            return Err(io::Error::other(format!("{program}: {said}")));
        }
        let deadline = Instant::now() + READY;
        loop {
            let port = free_port()?;
            match setup.launch(dir.path(), port) {
                Ok(process) => return Ok(Self { process, dir, port, setup }),
                // Another process has taken the port meanwhile.
                Err(_) if Instant::now() < deadline => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Returns `postgres://test@127.0.0.1:<port>/postgres`.
    #[must_use]
    pub fn url(&self) -> String {
        format!("postgres://test@127.0.0.1:{}/postgres", self.port)
    }

    /// Returns the address.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], self.port))
    }

    /// Returns the id of the main process.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Returns how the server ended, if it did.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.process.ended()
    }

    /// Returns what the server has logged.
    #[must_use]
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("log")).unwrap_or_default()
    }

    /// Sends SIGKILL to all processes of the server, as in a crash.
    pub fn kill(&mut self) {
        self.process.kill_tree();
    }

    /// Stops all processes of the server. Linux only.
    pub fn stop(&mut self) {
        self.process.stop_tree();
    }

    /// Lets all processes of the server go on.
    pub fn cont(&mut self) {
        self.process.cont_tree();
    }

    /// Starts the server again on the same port. Kills it first if it still runs.
    ///
    /// # Panics
    ///
    /// When it does not start.
    #[track_caller]
    pub fn restart(&mut self) {
        self.kill();
        let deadline = Instant::now() + READY;
        loop {
            match self.setup.launch(self.dir.path(), self.port) {
                Ok(process) => {
                    self.process = process;
                    return;
                }
                // Remaining processes of the old server still have its shared memory.
                Err(_) if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(50)),
                Err(error) => panic!("{error}"),
            }
        }
    }
}

impl Drop for PostgresServer {
    fn drop(&mut self) {
        // An orderly shutdown: no process writes to the folder any more when it is removed. A
        // stopped one would not hear of it.
        self.process.cont_tree();
        self.process.interrupt();
        let deadline = Instant::now() + Duration::from_secs(10);
        while self.process.ended().is_none() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

pub(crate) fn command(program: &Path, user: Option<User>) -> Command {
    let mut command = Command::new(program);
    // Settings of the user who runs the tests must not leak in.
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("PG")) {
        command.env_remove(name);
    }
    if let Some(User { uid, gid }) = user {
        command.uid(uid).gid(gid);
    }
    command.stdin(Stdio::null());
    command
}

impl Setup {
    /// Starts the server and waits until it accepts connections.
    fn launch(&self, dir: &Path, port: u16) -> io::Result<Process> {
        let log = dir.join("log");
        let file = std::fs::File::create(&log)?;
        let mut postgres = command(&self.programs.join("postgres"), self.user);
        postgres.arg("-D").arg(dir.join("data")).arg("-p").arg(port.to_string()).current_dir(dir);
        let fixed = ["listen_addresses=127.0.0.1", "unix_socket_directories=", "log_min_messages=info"];
        for setting in fixed.into_iter().chain(self.settings.iter().map(String::as_str)) {
            postgres.args(["-c", setting]);
        }
        if let Some(clock) = &self.clock {
            clock.apply(&mut postgres);
        }
        postgres.stdout(file.try_clone()?).stderr(file);
        let mut process = Process::spawn(&mut postgres, Some(dir))?;
        let deadline = Instant::now() + READY;
        loop {
            let said = std::fs::read_to_string(&log).unwrap_or_default();
            // A standby accepts connections that only read.
            if said.contains("system is ready to accept") {
                return Ok(process);
            }
            if process.ended().is_some() || Instant::now() >= deadline {
                return Err(io::Error::other(format!("postgres does not start: {said}")));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}
