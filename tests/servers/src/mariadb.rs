//! [`MariaDbServer`]: a real MariaDB for one test, run by the programs installed on this machine.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::database::{self, DatabaseServer, Product, find};
use crate::process::Process;

/// Returns MariaDB's programs, if all of them are installed.
#[must_use]
pub fn programs() -> Option<MariaDb> {
    let [install, server, client] = ["mariadb-install-db", "mariadbd", "mariadb"].map(find);
    Some(MariaDb { install: install?, server: server?, client: client? })
}

/// A MariaDB server on a free loopback port, with its own folder. It lets every client in. Ended
/// and cleaned up on drop.
pub type MariaDbServer = DatabaseServer<MariaDb>;

/// MariaDB's programs.
#[derive(Debug)]
pub struct MariaDb {
    install: PathBuf,
    server: PathBuf,
    /// Comes with what `install` needs.
    client: PathBuf,
}

/// The file with the statements that the server runs before it accepts connections.
const INIT: &str = "init.sql";

impl MariaDb {
    /// Returns the path of the client `mariadb`.
    #[must_use]
    pub fn client(&self) -> &Path {
        &self.client
    }
}

/// Returns a command for the server in this folder. `--no-defaults` must be its first argument.
fn command(program: &Path, dir: &Path) -> Command {
    let mut command = database::command(program, &["MYSQL", "MARIADB"]);
    command.arg("--no-defaults").arg(option("datadir", &dir.join("data")));
    command.args(["--innodb-buffer-pool-size=32M", "--innodb-log-file-size=8M", "--skip-name-resolve"]);
    // For temporary files, which outlive a kill.
    command.env("TMPDIR", dir);
    command
}

fn option(name: &str, path: &Path) -> OsString {
    let mut option = OsString::from(format!("--{name}="));
    option.push(path);
    option
}

impl Product for MariaDb {
    const NAME: &'static str = "mariadbd";

    const READY: &'static str = ": ready for connections.";

    fn find() -> io::Result<Self> {
        let missing = "MariaDB's `mariadbd`, `mariadb-install-db` or `mariadb` is missing";
        programs().ok_or_else(|| io::Error::other(missing))
    }

    fn prepare(&self, dir: &Path) -> io::Result<()> {
        std::fs::write(dir.join(INIT), "CREATE DATABASE IF NOT EXISTS locks;\n")
    }

    fn make(&self, dir: &Path) -> Option<Command> {
        let mut install = command(&self.install, dir);
        // Without a user: with one, it would also change the owner of an installed plugin.
        install.args(["--auth-root-authentication-method=normal", "--skip-test-db"]);
        Some(install)
    }

    fn serve(&self, dir: &Path, port: u16, settings: &[String]) -> Command {
        let mut mariadbd = command(&self.server, dir);
        if rustix::process::geteuid().is_root() {
            mariadbd.arg("--user=root");
        }
        // The socket is in the folder of the data; a path to it may be too long.
        mariadbd.args(["--bind-address=127.0.0.1", "--socket=socket", "--skip-log-bin"]);
        mariadbd.arg(format!("--port={port}")).arg(option("init-file", &dir.join(INIT)));
        mariadbd.args(settings.iter().map(|setting| format!("--{setting}")));
        mariadbd
    }

    fn shut_down(process: &mut Process) {
        // It is a single process; an orderly shutdown takes a second.
        process.kill();
    }
}

impl MariaDbServer {
    /// Returns `mysql://root@127.0.0.1:<port>/locks`.
    #[must_use]
    pub fn url(&self) -> String {
        format!("mysql://root@127.0.0.1:{}/locks", self.port)
    }
}

/// `xtask` runs these where MariaDB is installed.
#[cfg(test)]
mod on_mariadb {
    use std::net::TcpStream;
    use std::time::Duration;

    use super::*;
    use crate::{Offset, ServerClock};

    /// Runs statements in the database of the URL, and returns the rows.
    #[track_caller]
    fn run(server: &MariaDbServer, statements: &str) -> String {
        let mut client = Command::new(programs().unwrap().client());
        client.args(["--no-defaults", "--protocol=tcp", "--host=127.0.0.1", "--user=root", "--batch"]);
        client.args(["--skip-column-names", "--execute", statements]);
        let said = client.arg(format!("--port={}", server.port)).arg("locks").output().unwrap();
        assert!(said.status.success(), "{statements}: {}", String::from_utf8_lossy(&said.stderr));
        String::from_utf8(said.stdout).unwrap()
    }

    #[test]
    fn data_outlives_a_kill_and_nothing_outlives_the_handle() {
        let parent = tempfile::tempdir().unwrap();
        let mut server = MariaDbServer::try_start_in(parent.path(), &["max_connections=77"]).unwrap();
        assert_eq!(server.url(), format!("mysql://root@{}/locks", server.addr()));
        run(&server, "CREATE TABLE t (n INT) ENGINE = InnoDB; INSERT INTO t VALUES (42)");
        let first = server.pid();
        server.kill();
        assert!(server.ended().is_some());
        server.restart();
        assert!(server.pid() != first && server.ended().is_none());
        assert_eq!(run(&server, "SELECT n, @@max_connections FROM t"), "42\t77\n");
        assert!(server.log().contains("crash recovery"), "{}", server.log());
        // One that is stopped is ended too.
        server.stop();
        let addr = server.addr();
        drop(server);
        assert!(TcpStream::connect(addr).is_err());
        assert!(parent.path().read_dir().unwrap().next().is_none());
    }

    #[test]
    fn a_clock_that_is_stepped_moves_the_time_of_the_server() {
        const AHEAD: Duration = Duration::from_secs(3600);
        let clock = ServerClock::new(Offset::NONE).unwrap();
        let server = MariaDbServer::start_with_clock(&clock);
        let time = || run(&server, "SELECT UNIX_TIMESTAMP()").trim().parse::<u64>().unwrap();
        let before = time();
        clock.set(Offset::Ahead(AHEAD)).unwrap();
        assert!(time() >= before + AHEAD.as_secs());
        clock.set(Offset::Behind(AHEAD)).unwrap();
        assert!(time() < before);
    }
}
