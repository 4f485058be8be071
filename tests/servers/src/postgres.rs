//! [`PostgresServer`]: a real PostgreSQL for one test, run by the programs installed on this
//! machine.

use std::io;
use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::database::{self, DatabaseServer, Product};
use crate::process::Process;

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

    /// Gives a folder to this user.
    pub(crate) fn own(user: Option<Self>, dir: &Path) -> io::Result<()> {
        user.map_or(Ok(()), |Self { uid, gid }| chown(dir, Some(uid), Some(gid)))
    }
}

/// A PostgreSQL server on a free loopback port, with its own folder. It lets every client in. Ended
/// and cleaned up on drop.
pub type PostgresServer = DatabaseServer<Postgres>;

/// PostgreSQL's programs, and the user that they run as.
#[derive(Debug)]
pub struct Postgres {
    programs: PathBuf,
    user: Option<User>,
}

impl Postgres {
    fn command(&self, program: &str) -> Command {
        command(&self.programs.join(program), self.user)
    }
}

impl Product for Postgres {
    const NAME: &'static str = "postgres";

    // A standby accepts connections that only read.
    const READY: &'static str = "system is ready to accept";

    fn find() -> io::Result<Self> {
        let programs =
            programs().ok_or_else(|| io::Error::other("PostgreSQL's `initdb` and `postgres` are missing"))?;
        Ok(Self { programs, user: User::find()? })
    }

    fn prepare(&self, dir: &Path) -> io::Result<()> {
        User::own(self.user, dir)
    }

    fn make(&self, dir: &Path) -> Option<Command> {
        let mut initdb = self.command("initdb");
        initdb.arg("-D").arg(dir.join("data"));
        initdb.args(["-U", "test", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync"]);
        Some(initdb)
    }

    fn serve(&self, dir: &Path, port: u16, settings: &[String]) -> Command {
        let mut postgres = self.command("postgres");
        postgres.arg("-D").arg(dir.join("data")).arg("-p").arg(port.to_string());
        let fixed = ["listen_addresses=127.0.0.1", "unix_socket_directories=", "log_min_messages=info"];
        for setting in fixed.into_iter().chain(settings.iter().map(String::as_str)) {
            postgres.args(["-c", setting]);
        }
        postgres
    }

    fn shut_down(process: &mut Process) {
        // An orderly shutdown, in which the main process waits for the others.
        process.interrupt();
    }
}

impl PostgresServer {
    /// Starts a standby, which streams this server's changes, and takes over after `pg_promote()`.
    ///
    /// # Panics
    ///
    /// When that does not work.
    #[track_caller]
    #[must_use]
    pub fn start_standby(&self) -> Self {
        let copy = |postgres: &Postgres, dir: &Path| {
            let mut backup = postgres.command("pg_basebackup");
            backup.arg("-D").arg(dir.join("data")).args(["-h", "127.0.0.1", "-p"]).arg(self.port.to_string());
            backup.args(["-U", "test", "--write-recovery-conf", "--checkpoint=fast", "--no-sync"]);
            Some(backup)
        };
        let start = || Self::try_make(Postgres::find()?, &std::env::temp_dir(), None, &[], copy);
        match start() {
            Ok(server) => server,
            Err(error) => panic!("{error}"),
        }
    }

    /// Returns `postgres://test@127.0.0.1:<port>/postgres`.
    #[must_use]
    pub fn url(&self) -> String {
        format!("postgres://test@127.0.0.1:{}/postgres", self.port)
    }
}

/// Returns a command that runs as `user`.
pub(crate) fn command(program: &Path, user: Option<User>) -> Command {
    let mut command = database::command(program, &["PG"]);
    if let Some(User { uid, gid }) = user {
        command.uid(uid).gid(gid);
    }
    command
}
