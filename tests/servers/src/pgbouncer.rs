//! [`PgBouncer`]: a real pooler in front of a [`PostgresServer`].

use std::io;
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::PostgresServer;
use crate::postgres::{READY, User, command};
use crate::process::Process;
use crate::redis::free_port;

/// Returns the program, if it is installed.
#[must_use]
pub fn program() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    // Where Debian has it, and not everybody's `PATH` does.
    let folders = std::env::split_paths(&path).chain(["/usr/sbin".into(), "/usr/local/sbin".into()]);
    folders.map(|folder| folder.join("pgbouncer")).find(|program| program.is_file())
}

/// A `PgBouncer` on a free loopback port that pools transactions. It has few sessions at the
/// server, so that the transactions of one client are in different ones. Ended on drop.
#[derive(Debug)]
pub struct PgBouncer {
    // Fields are dropped in order: the process ends before its folder goes.
    process: Process,
    _dir: TempDir,
    port: u16,
}

impl PgBouncer {
    /// Starts a pooler in front of this server.
    ///
    /// # Panics
    ///
    /// When that does not work; the text says what is missing.
    #[track_caller]
    #[must_use]
    pub fn start(server: &PostgresServer) -> Self {
        Self::start_with(server, "")
    }

    /// As [`start`](Self::start), with more lines of its settings.
    ///
    /// # Panics
    ///
    /// As [`start`](Self::start).
    #[track_caller]
    #[must_use]
    pub fn start_with(server: &PostgresServer, settings: &str) -> Self {
        match Self::try_start(server, settings) {
            Ok(pooler) => pooler,
            Err(error) => panic!("{error}"),
        }
    }

    fn try_start(server: &PostgresServer, more: &str) -> io::Result<Self> {
        let program = program().ok_or_else(|| io::Error::other("the program `pgbouncer` is missing"))?;
        // It refuses to run as root, too.
        let user = User::find()?;
        let dir = tempfile::Builder::new().prefix("lock-pgbouncer-").tempdir()?;
        let deadline = Instant::now() + READY;
        loop {
            let port = free_port()?;
            let settings = format!(
                "[databases]\n\
                 * = host=127.0.0.1 port={server} user=test\n\
                 [pgbouncer]\n\
                 listen_addr = 127.0.0.1\n\
                 listen_port = {port}\n\
                 unix_socket_dir =\n\
                 auth_type = any\n\
                 pool_mode = transaction\n\
                 default_pool_size = 12\n\
                 max_client_conn = 1000\n\
                 server_round_robin = 1\n\
                 {more}\n",
                server = server.addr().port(),
            );
            std::fs::write(dir.path().join("pgbouncer.ini"), settings)?;
            if let Some(User { uid, gid }) = user {
                chown(dir.path(), Some(uid), Some(gid))?;
            }
            match Self::launch(&program, user, dir.path(), port) {
                Ok(process) => return Ok(Self { process, _dir: dir, port }),
                // Another process has taken the port meanwhile.
                Err(_) if Instant::now() < deadline => {}
                Err(error) => return Err(error),
            }
        }
    }

    fn launch(program: &Path, user: Option<User>, dir: &Path, port: u16) -> io::Result<Process> {
        let log = dir.join("log");
        let file = std::fs::File::create(&log)?;
        let mut pgbouncer = command(program, user);
        pgbouncer.arg("pgbouncer.ini").current_dir(dir).stdout(file.try_clone()?).stderr(file);
        let mut process = Process::spawn(&mut pgbouncer, Some(dir))?;
        let deadline = Instant::now() + READY;
        loop {
            if std::net::TcpStream::connect(("127.0.0.1", port)).is_ok() {
                return Ok(process);
            }
            if process.ended().is_some() || Instant::now() >= deadline {
                let said = std::fs::read_to_string(&log).unwrap_or_default();
                return Err(io::Error::other(format!("pgbouncer does not start: {said}")));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Returns `postgres://test@127.0.0.1:<port>/postgres`, without `pooler=true`.
    #[must_use]
    pub fn url(&self) -> String {
        format!("postgres://test@127.0.0.1:{}/postgres", self.port)
    }

    /// Returns the id of the process.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.process.id()
    }
}
