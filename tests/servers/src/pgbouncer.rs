//! [`PgBouncer`]: a real pooler in front of a [`PostgresServer`].

use std::io;
use std::net::TcpStream;
use std::path::PathBuf;

use tempfile::TempDir;

use crate::PostgresServer;
use crate::database::{find, launch, on_free_port};
use crate::postgres::{User, command};
use crate::process::Process;

/// Returns the program, if it is installed.
#[must_use]
pub fn program() -> Option<PathBuf> {
    find("pgbouncer")
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
        let (process, port) = on_free_port(|port| {
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
            User::own(user, dir.path())?;
            let mut pgbouncer = command(&program, user);
            pgbouncer.arg("pgbouncer.ini");
            launch(pgbouncer, dir.path(), |_| TcpStream::connect(("127.0.0.1", port)).is_ok())
        })?;
        Ok(Self { process, _dir: dir, port })
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
