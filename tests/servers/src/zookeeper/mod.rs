//! [`ZooKeeperServer`]: a real ZooKeeper for one test, and [`ZooKeeperEnsemble`], three members.

mod ensemble;
#[cfg(test)]
mod on_zookeeper;
mod session;

use std::fmt::Write;
use std::io;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Command;

pub use self::ensemble::{Options, ZooKeeperEnsemble};
pub use self::session::{Connection, DELETE, MULTI, operations};
use crate::database::{self, DatabaseServer, Product, ask, at};
use crate::foreign;
use crate::process::Process;

/// How to get a program that is missing.
const HELP: &str = "`cargo xtask test zookeeper --install` installs it with a JDK";

/// Settings of every server. Later ones override earlier ones.
///
/// A session may be shorter than a tick, but it ends only at one.
const SETTINGS: &str = "\
tickTime=500
minSessionTimeout=200
maxSessionTimeout=60000
maxClientCnxns=0
admin.enableServer=false
preAllocSize=1024
4lw.commands.whitelist=*
";

/// The jars of ZooKeeper and Curator, and the program in `tests/interop/curator`.
#[derive(Clone, Debug)]
pub struct Jars {
    folder: PathBuf,
}

impl Jars {
    /// Collects the jars and builds the program, unless the same sources were built before.
    /// Downloads only what Maven does not have yet.
    ///
    /// # Errors
    ///
    /// When there is no Maven or no JDK, or it fails; the text says how to install it.
    pub fn build() -> Result<Self, String> {
        let sources = Path::new(env!("CARGO_MANIFEST_DIR")).with_file_name("interop").join("curator");
        let folder = foreign::build("curator", &sources, &["pom.xml", "src"], |out| {
            foreign::maven(&sources, out, HELP)
        })?;
        Ok(Self { folder })
    }

    /// Returns the command that runs the class `main`, without its arguments. Settings are those of
    /// the log, like `showDateTime=true`.
    #[must_use]
    pub fn command(&self, log: &[&str], main: &str) -> Command {
        let mut class_path = self.folder.join("curator.jar").into_os_string();
        class_path.push(":");
        class_path.push(self.folder.join("dependency").join("*"));
        let options = ["JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS"];
        let mut command = database::command(&foreign::jdk("java"), &options);
        command.args(["-Xmx256m", "-XX:+UseSerialGC"]);
        if cfg!(debug_assertions) {
            // A test ends before the second compiler pays off. Benchmarks are release builds.
            command.arg("-XX:TieredStopAtLevel=1");
        }
        command.args(log.iter().map(|setting| format!("-Dorg.slf4j.simpleLogger.{setting}")));
        command.arg("-cp").arg(class_path).arg(main);
        command
    }
}

/// A ZooKeeper server on a free loopback port, with its own folder. It lets every client in. Ended
/// and cleaned up on drop.
///
/// Its settings are lines of its configuration, like `tickTime=200`. A tick is half a second by
/// default, and a session lasts from 200 ms to a minute, as its client asks.
pub type ZooKeeperServer = DatabaseServer<ZooKeeper>;

/// ZooKeeper's jars, and what the server is run as.
#[derive(Debug)]
pub struct ZooKeeper {
    jars: Jars,
    role: Role,
    /// The folder with the server's certificate, if clients reach it through TLS.
    tls: Option<PathBuf>,
}

/// A server's place among others.
#[derive(Debug)]
enum Role {
    /// It is the only one.
    Alone,
    /// It is one of several.
    Member {
        id: usize,
        /// Lines with the ports of all members, as this one reaches them.
        members: String,
    },
}

impl Product for ZooKeeper {
    const NAME: &'static str = "zookeeper";

    /// Comes when its port is bound. It takes requests later.
    const READY: &'static str = "Snapshot loaded in";

    fn find() -> io::Result<Self> {
        Ok(Self { jars: Jars::build().map_err(io::Error::other)?, role: Role::Alone, tls: None })
    }

    fn prepare(&self, dir: &Path) -> io::Result<()> {
        let data = dir.join("data");
        std::fs::create_dir(&data)?;
        match &self.role {
            Role::Alone => Ok(()),
            Role::Member { id, .. } => std::fs::write(data.join("myid"), id.to_string()),
        }
    }

    fn make(&self, _dir: &Path) -> Option<Command> {
        None
    }

    fn serve(&self, dir: &Path, port: u16, settings: &[String]) -> Command {
        let file = dir.join("zoo.cfg");
        // Without its file, the server says so and ends.
        let _ = std::fs::write(&file, self.configuration(dir, port, settings));
        let main = match self.role {
            Role::Alone => "org.apache.zookeeper.server.ZooKeeperServerMain",
            Role::Member { .. } => "org.apache.zookeeper.server.quorum.QuorumPeerMain",
        };
        let log = ["showDateTime=true", "dateTimeFormat=HH:mm:ss.SSS"];
        let mut zookeeper = self.jars.command(&log, main);
        zookeeper.arg(file);
        zookeeper
    }

    fn complete(&self, port: u16) -> io::Result<()> {
        match self.role {
            // It says nothing without TLS.
            Role::Alone if self.tls.is_some() => until(|| TcpStream::connect(at(port)).map(|_| true)),
            Role::Alone => until(|| session::is_healthy(at(port))),
            // Without the others it has no leader.
            Role::Member { .. } => Ok(()),
        }
    }

    fn shut_down(process: &mut Process) {
        // It is a single process, and has written what it has answered.
        process.kill();
    }
}

impl ZooKeeper {
    fn configuration(&self, dir: &Path, port: u16, settings: &[String]) -> String {
        let mut text = format!("{SETTINGS}dataDir={}\n", dir.join("data").display());
        let mut line = |name: &str, value: &dyn std::fmt::Display| {
            let _ = writeln!(text, "{name}={value}");
        };
        match &self.tls {
            None => {
                line("clientPort", &port);
                line("clientPortAddress", &"127.0.0.1");
            }
            Some(files) => {
                line("secureClientPort", &port);
                line("secureClientPortAddress", &"127.0.0.1");
                line("serverCnxnFactory", &"org.apache.zookeeper.server.NettyServerCnxnFactory");
                for (store, file) in [("keyStore", "both.pem"), ("trustStore", "ca.pem")] {
                    line(&format!("ssl.{store}.location"), &files.join(file).display());
                    line(&format!("ssl.{store}.type"), &"PEM");
                }
                line("ssl.clientAuth", &"none");
            }
        }
        if let Role::Member { members, .. } = &self.role {
            text += members;
        }
        settings.iter().fold(text, |text, setting| text + setting + "\n")
    }
}

impl ZooKeeperServer {
    /// Starts a server that clients reach through TLS only, with the certificate in the folder
    /// `files`, made by [`Authority::certificate_for`](crate::tls::Authority::certificate_for).
    /// With the setting `ssl.clientAuth=need`, clients need certificates too.
    ///
    /// # Panics
    ///
    /// As [`start`](Self::start).
    #[cfg(feature = "tls")]
    #[track_caller]
    #[must_use]
    pub fn start_with_tls(files: &Path, settings: &[&str]) -> Self {
        let product = ZooKeeper::find().map(|product| ZooKeeper { tls: Some(files.to_owned()), ..product });
        let start = |product| Self::try_make(product, &std::env::temp_dir(), None, settings, ZooKeeper::make);
        match product.and_then(start) {
            Ok(server) => server,
            Err(error) => panic!("{error}"),
        }
    }

    /// Returns `zookeeper://127.0.0.1:<port>`, or `zookeepers://…` with TLS.
    #[must_use]
    pub fn url(&self) -> String {
        let scheme = if self.product().tls.is_some() { "zookeepers" } else { "zookeeper" };
        format!("{scheme}://{}", self.connect_string())
    }

    /// Returns `127.0.0.1:<port>`, for ZooKeeper's own clients.
    #[must_use]
    pub fn connect_string(&self) -> String {
        self.addr().to_string()
    }

    /// Sends a command of four letters, like `srvr`, `mntr` or `dump`, and returns the answer.
    ///
    /// # Errors
    ///
    /// When the server does not answer, for example because it is stopped.
    pub fn four_letters(&self, command: &str) -> io::Result<String> {
        ask(self.addr(), command)
    }

    /// Returns the ids of the sessions whose clients are connected to this server.
    ///
    /// # Errors
    ///
    /// When the server does not answer.
    pub fn sessions(&self) -> io::Result<Vec<i64>> {
        let connections = self.four_letters("cons")?;
        let ids = connections.lines().filter_map(|line| {
            let id = line.split_once("sid=0x")?.1.split(',').next()?;
            u64::from_str_radix(id, 16).ok().map(u64::cast_signed)
        });
        Ok(ids.collect())
    }

    /// Returns the paths of the nodes that end with a session, in no order.
    ///
    /// # Errors
    ///
    /// When the server does not answer.
    pub fn ephemerals(&self) -> io::Result<Vec<String>> {
        let dump = self.four_letters("dump")?;
        Ok(dump
            .lines()
            .filter_map(|line| line.strip_prefix('\t'))
            .filter(|path| path.starts_with('/'))
            .map(str::to_owned)
            .collect())
    }

    /// Ends a session as if its time were over. Its client learns it from the next answer.
    ///
    /// # Panics
    ///
    /// When there is no such session, or the server does not answer.
    #[track_caller]
    pub fn end_session(&self, id: i64) {
        if let Err(error) = self.try_end_session(id) {
            panic!("session {id:#x} does not end: {error}");
        }
    }

    /// As [`end_session`](Self::end_session).
    ///
    /// # Errors
    ///
    /// When there is no such session, or the server does not answer.
    pub fn try_end_session(&self, id: i64) -> io::Result<()> {
        session::end(self.addr(), id)
    }
}

/// As [`database::until`].
fn until(condition: impl Fn() -> io::Result<bool>) -> io::Result<()> {
    database::until("zookeeper", condition)
}
