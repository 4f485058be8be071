//! [`DatabaseServer`]: a database server for one test, run by the programs installed on this
//! machine.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::ServerClock;
use crate::process::Process;
use crate::redis::free_port;

/// Maximum time to create and start a server on a busy machine.
pub(crate) const READY: Duration = Duration::from_secs(60);

/// A database product: its programs, and how they run.
pub trait Product: fmt::Debug + Sized {
    /// The name of the server's program.
    const NAME: &'static str;

    /// Text in the log of a server that accepts connections.
    const READY: &'static str;

    /// Looks for the programs.
    ///
    /// # Errors
    ///
    /// When one is missing.
    fn find() -> io::Result<Self>;

    /// Prepares the server's new folder.
    ///
    /// # Errors
    ///
    /// When the system refuses it.
    fn prepare(&self, dir: &Path) -> io::Result<()>;

    /// Returns the command that makes the data in this folder; `None` if the server makes it.
    fn make(&self, dir: &Path) -> Option<Command>;

    /// Returns the command that serves the data in this folder.
    fn serve(&self, dir: &Path, port: u16, settings: &[String]) -> Command;

    /// Completes a start on this port, when the server accepts connections.
    ///
    /// # Errors
    ///
    /// When the server does not do what it is told.
    fn complete(&self, _port: u16) -> io::Result<()> {
        Ok(())
    }

    /// Makes the server end, so that no process writes to its folder any more.
    fn shut_down(process: &mut Process);
}

/// A database server on a free loopback port, with its own folder. It lets every client in. Ended
/// and cleaned up on drop.
#[derive(Debug)]
pub struct DatabaseServer<P: Product> {
    // Fields are dropped in order: the process ends before its folder goes.
    process: Process,
    dir: TempDir,
    pub(crate) port: u16,
    setup: Setup<P>,
    /// Whether it runs, and so should answer.
    is_up: bool,
}

/// How the server is launched, at the start and at each restart.
#[derive(Debug)]
struct Setup<P> {
    product: P,
    /// The server's wall clock.
    clock: Option<ServerClock>,
    settings: Vec<String>,
}

impl<P: Product> DatabaseServer<P> {
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

    /// Like [`start`](Self::start), with settings like `max_connections=500`.
    ///
    /// # Panics
    ///
    /// As [`start`](Self::start).
    #[track_caller]
    #[must_use]
    pub fn start_with(settings: &[&str]) -> Self {
        match Self::try_start_in(&std::env::temp_dir(), settings) {
            Ok(server) => server,
            Err(error) => panic!("{error}"),
        }
    }

    /// As [`start`](Self::start).
    ///
    /// # Errors
    ///
    /// When the programs are missing, or refuse to run.
    pub fn try_start() -> io::Result<Self> {
        Self::try_start_in(&std::env::temp_dir(), &[])
    }

    /// As [`try_start`](Self::try_start), with its data in a new folder within `parent`, and with
    /// settings like `max_connections=500`.
    ///
    /// # Errors
    ///
    /// As [`try_start`](Self::try_start).
    pub fn try_start_in(parent: &Path, settings: &[&str]) -> io::Result<Self> {
        Self::try_make(P::find()?, parent, None, settings, P::make)
    }

    /// Like [`start`](Self::start), with a wall clock that can be set while the server runs.
    ///
    /// # Panics
    ///
    /// As [`start`](Self::start).
    #[track_caller]
    #[must_use]
    pub fn start_with_clock(clock: &ServerClock) -> Self {
        let start = || Self::try_make(P::find()?, &std::env::temp_dir(), Some(clock.clone()), &[], P::make);
        match start() {
            Ok(server) => server,
            Err(error) => panic!("{error}"),
        }
    }

    /// Starts a server whose data the command that `make` returns has made.
    pub(crate) fn try_make(
        product: P,
        parent: &Path,
        clock: Option<ServerClock>,
        settings: &[&str],
        make: impl Fn(&P, &Path) -> Option<Command>,
    ) -> io::Result<Self> {
        if let Some(clock) = &clock {
            clock.share()?;
        }
        let dir = tempfile::Builder::new().prefix(&format!("lock-{}-", P::NAME)).tempdir_in(parent)?;
        product.prepare(dir.path())?;
        if let Some(mut make) = make(&product, dir.path()) {
            let made = make.current_dir(dir.path()).output()?;
            if !made.status.success() {
                let [said, more] = [&made.stderr, &made.stdout].map(|text| String::from_utf8_lossy(text));
                return Err(io::Error::other(format!("{}: {said}{more}", make.get_program().display())));
            }
        }
        let settings = settings.iter().map(ToString::to_string).collect();
        let setup = Setup { product, clock, settings };
        let (process, port) = on_free_port(|port| setup.launch(dir.path(), port))?;
        Ok(Self { process, dir, port, setup, is_up: true })
    }

    /// Returns the address.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        at(self.port)
    }

    /// Returns the product, as this server runs it.
    pub(crate) fn product(&self) -> &P {
        &self.setup.product
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

    /// Whether the server is neither killed nor stopped.
    #[must_use]
    pub(crate) const fn is_up(&self) -> bool {
        self.is_up
    }

    /// Returns what the server has logged.
    #[must_use]
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("log")).unwrap_or_default()
    }

    /// Sends SIGKILL to all processes of the server, as in a crash.
    pub fn kill(&mut self) {
        self.process.kill_tree();
        self.is_up = false;
    }

    /// Stops all processes of the server. Linux only.
    pub fn stop(&mut self) {
        self.process.stop_tree();
        self.is_up = false;
    }

    /// Lets all processes of the server go on.
    pub fn cont(&mut self) {
        self.process.cont_tree();
        self.is_up = self.process.ended().is_none();
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
                    self.is_up = true;
                    return;
                }
                // Remaining processes of the old server still have its shared memory.
                Err(_) if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(50)),
                Err(error) => panic!("{error}"),
            }
        }
    }
}

/// Returns a report on each member of a cluster that has ended by itself.
pub(crate) fn ended<P: Product>(members: &mut [DatabaseServer<P>]) -> Vec<String> {
    let report = |(at, member): (usize, &mut DatabaseServer<P>)| {
        let status = member.ended()?;
        Some(format!("member {at} ended with {status}:\n{}", member.log()))
    };
    members.iter_mut().enumerate().filter_map(report).collect()
}

impl<P: Product> Drop for DatabaseServer<P> {
    fn drop(&mut self) {
        // A stopped process would not hear of it.
        self.process.cont_tree();
        P::shut_down(&mut self.process);
        let deadline = Instant::now() + Duration::from_secs(10);
        while self.process.ended().is_none() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl<P: Product> Setup<P> {
    /// Starts the server and waits until it can be used.
    fn launch(&self, dir: &Path, port: u16) -> io::Result<Process> {
        let mut command = self.product.serve(dir, port, &self.settings);
        if let Some(clock) = &self.clock {
            clock.apply(&mut command);
        }
        let process = launch(command, dir, |log| log.contains(P::READY))?;
        self.product.complete(port)?;
        Ok(process)
    }
}

/// Returns the path of a program, if it is installed.
pub(crate) fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    // Where systems have servers, and not everybody's `PATH` does.
    let more = ["/usr/sbin", "/usr/local/sbin", "/usr/libexec"].map(PathBuf::from);
    std::env::split_paths(&path).chain(more).map(|folder| folder.join(program)).find(|path| path.is_file())
}

/// Returns a command without the environment variables whose names start with one of `prefixes`:
/// settings of the user who runs the tests must not leak in.
pub(crate) fn command(program: &Path, prefixes: &[&str]) -> Command {
    let mut command = Command::new(program);
    for (name, _) in std::env::vars_os() {
        if prefixes.iter().any(|prefix| name.to_string_lossy().starts_with(prefix)) {
            command.env_remove(name);
        }
    }
    command.stdin(Stdio::null());
    command
}

/// Starts `command` in `dir`, with its output in the file `log`, and waits until it is ready.
/// `ready` gets that output.
pub(crate) fn launch(mut command: Command, dir: &Path, ready: impl Fn(&str) -> bool) -> io::Result<Process> {
    let log = dir.join("log");
    let file = std::fs::File::create(&log)?;
    command.current_dir(dir).stdout(file.try_clone()?).stderr(file);
    let mut process = Process::spawn(&mut command, Some(dir))?;
    let deadline = Instant::now() + READY;
    loop {
        let said = std::fs::read_to_string(&log).unwrap_or_default();
        if ready(&said) {
            return Ok(process);
        }
        if process.ended().is_some() || Instant::now() >= deadline {
            let program = command.get_program().display();
            return Err(io::Error::other(format!("{program} does not start: {said}")));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Calls `start` with free ports until it succeeds, because another process may take a port
/// meanwhile. Returns the port too.
pub(crate) fn on_free_port<T>(start: impl Fn(u16) -> io::Result<T>) -> io::Result<(T, u16)> {
    let deadline = Instant::now() + READY;
    loop {
        let port = free_port()?;
        match start(port) {
            Ok(started) => return Ok((started, port)),
            Err(_) if Instant::now() < deadline => {}
            Err(error) => return Err(error),
        }
    }
}

/// Returns an address of the loopback interface.
pub(crate) fn at(port: u16) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], port))
}

/// Maximum time until a server answers. After that it is asked again.
pub(crate) const ANSWER: Duration = Duration::from_secs(2);

/// Connects to a server that may not answer.
pub(crate) fn dial(addr: SocketAddr) -> io::Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&addr, ANSWER)?;
    stream.set_read_timeout(Some(ANSWER))?;
    Ok(stream)
}

/// Sends a request to a server that closes the connection after its answer, and returns that.
pub(crate) fn ask(addr: SocketAddr, request: &str) -> io::Result<String> {
    let mut stream = dial(addr)?;
    stream.write_all(request.as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

/// Delay before a server is asked again.
const PERIOD: Duration = Duration::from_millis(10);

/// Waits until `condition` is true of the servers. Its errors count only when it takes too long.
pub(crate) fn until(servers: &str, condition: impl Fn() -> io::Result<bool>) -> io::Result<()> {
    let deadline = Instant::now() + READY;
    loop {
        let said = match condition() {
            Ok(true) => return Ok(()),
            Ok(false) => format!("not so within {READY:?}"),
            Err(error) => error.to_string(),
        };
        if Instant::now() >= deadline {
            return Err(io::Error::other(format!("{servers} is not ready: {said}")));
        }
        std::thread::sleep(PERIOD);
    }
}
