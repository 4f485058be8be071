//! [`EtcdServer`]: a real etcd for one test, and [`EtcdCluster`], three members.

mod cluster;
#[cfg(test)]
mod on_etcd;

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

pub use self::cluster::{EtcdCluster, Options};
use crate::Helper;
use crate::database::{self, DatabaseServer, Product, ask, at, find};
use crate::process::Process;

/// Time without a leader after which a server alone elects itself.
const ELECTION_TIMEOUT: Duration = Duration::from_millis(100);

/// Returns etcd's programs, if both are installed.
#[must_use]
pub fn programs() -> Option<Etcd> {
    let [server, client] = ["etcd", "etcdctl"].map(find);
    let (role, election_timeout) = (Role::Alone, ELECTION_TIMEOUT);
    Some(Etcd { server: server?, client: client?, role, election_timeout, tls: None })
}

/// An etcd server on a free loopback port, with its own folder. It lets every client in. Ended and
/// cleaned up on drop.
///
/// Its settings are flags without dashes, like `max-txn-ops=256`. A [clock](crate::ServerClock) has
/// no effect on it, since programs in Go read the time without the C library.
pub type EtcdServer = DatabaseServer<Etcd>;

/// etcd's programs, and what the server is run as.
#[derive(Debug)]
pub struct Etcd {
    server: PathBuf,
    client: PathBuf,
    role: Role,
    election_timeout: Duration,
    /// The folder with the server's certificate, if clients reach it through TLS.
    tls: Option<PathBuf>,
}

/// A server's place among others.
#[derive(Debug)]
enum Role {
    /// It is the only one.
    Alone,
    /// It is one of several.
    Member(Peer),
}

/// A member, for the other members.
#[derive(Debug)]
struct Peer {
    name: String,
    /// The URL that it listens on.
    listens: String,
    /// The URL at which others reach it.
    advertised: String,
    /// All members, in etcd's notation.
    all: String,
}

impl Peer {
    /// Returns the only member. It needs a URL too, but no port: a socket in its folder will do.
    fn alone() -> Self {
        let (name, url) = ("alone", "unix://peer:0");
        Self { name: name.into(), listens: url.into(), advertised: url.into(), all: format!("{name}={url}") }
    }
}

impl Product for Etcd {
    const NAME: &'static str = "etcd";

    /// Comes when its ports are bound. It takes requests later, when there is a leader.
    const READY: &'static str = "\"serving peer traffic\"";

    fn find() -> io::Result<Self> {
        let missing = "`etcd` or `etcdctl` is missing: `cargo xtask test etcd --install` installs them";
        programs().ok_or_else(|| io::Error::other(missing))
    }

    fn prepare(&self, _dir: &Path) -> io::Result<()> {
        Ok(())
    }

    fn make(&self, _dir: &Path) -> Option<Command> {
        None
    }

    fn serve(&self, dir: &Path, port: u16, settings: &[String]) -> Command {
        let alone = Peer::alone();
        let peer = match &self.role {
            Role::Alone => &alone,
            Role::Member(peer) => peer,
        };
        let url = self.endpoint(at(port));
        let election = self.election_timeout.as_millis();
        let mut etcd = database::command(&self.server, &["ETCD"]);
        etcd.arg("--logger=zap").arg(format!("--name={}", peer.name));
        etcd.arg("--data-dir").arg(dir.join("data"));
        etcd.arg(format!("--listen-client-urls={url}")).arg(format!("--advertise-client-urls={url}"));
        etcd.arg(format!("--listen-peer-urls={}", peer.listens));
        etcd.arg(format!("--initial-advertise-peer-urls={}", peer.advertised));
        etcd.arg(format!("--initial-cluster={}", peer.all));
        etcd.arg(format!("--election-timeout={election}"));
        etcd.arg(format!("--heartbeat-interval={}", election / 10));
        if let Some(dir) = &self.tls {
            etcd.arg("--cert-file").arg(dir.join("server.pem")).arg("--key-file").arg(dir.join("server.key"));
        }
        etcd.args(settings.iter().map(|setting| format!("--{setting}")));
        etcd
    }

    fn complete(&self, port: u16) -> io::Result<()> {
        match self.role {
            Role::Alone if self.tls.is_some() => {
                until(|| self.run(&self.endpoint(at(port)), &["endpoint", "health"]).map(|_| true))
            }
            Role::Alone => until(|| is_healthy(at(port))),
            // Without the others it has no leader.
            Role::Member(_) => Ok(()),
        }
    }

    fn shut_down(process: &mut Process) {
        // It is a single process, and has written what it has answered.
        process.kill();
    }
}

impl Etcd {
    /// Returns the path of `etcdctl`.
    #[must_use]
    pub fn client(&self) -> &Path {
        &self.client
    }

    /// Returns the command that runs `etcdctl` on servers.
    fn etcdctl(&self, endpoints: &str, args: &[&str]) -> Command {
        let mut etcdctl = database::command(&self.client, &["ETCD"]);
        etcdctl.env("ETCDCTL_API", "3").arg(format!("--endpoints={endpoints}"));
        // More than by default, for a busy machine.
        etcdctl.args(["--dial-timeout=20s", "--command-timeout=20s"]);
        if let Some(dir) = &self.tls {
            // In case the server requires a certificate.
            etcdctl.arg("--cacert").arg(dir.join("ca.pem"));
            etcdctl.arg("--cert").arg(dir.join("server.pem")).arg("--key").arg(dir.join("server.key"));
        }
        etcdctl.args(args);
        etcdctl
    }

    /// Returns the URL for etcd's own clients.
    fn endpoint(&self, addr: SocketAddr) -> String {
        if self.tls.is_some() { format!("https://{addr}") } else { endpoint(addr) }
    }

    /// Runs `etcdctl` on servers, and returns its output.
    fn run(&self, endpoints: &str, args: &[&str]) -> io::Result<String> {
        let output = self.etcdctl(endpoints, args).output()?;
        let [said, errors] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
        if output.status.success() {
            return Ok(said.into_owned());
        }
        Err(io::Error::other(format!("etcdctl {args:?}: {}: {errors}{said}", output.status)))
    }

    /// Starts `etcdctl` on servers.
    #[track_caller]
    fn spawn(&self, endpoints: &str, args: &[&str]) -> Helper {
        Helper::spawn_command(&mut self.etcdctl(endpoints, args))
    }
}

impl EtcdServer {
    /// Starts a server that clients reach through TLS only, with the certificate in the folder
    /// `files`, made by [`Authority::certificate_for`](crate::tls::Authority::certificate_for).
    /// With settings `client-cert-auth` and `trusted-ca-file=FILE`, clients need certificates too,
    /// and `etcdctl` shows the server's.
    ///
    /// # Panics
    ///
    /// As [`start`](Self::start).
    #[cfg(feature = "tls")]
    #[track_caller]
    #[must_use]
    pub fn start_with_tls(files: &Path, settings: &[&str]) -> Self {
        let product = Etcd::find().map(|etcd| Etcd { tls: Some(files.to_owned()), ..etcd });
        let start = |product| Self::try_make(product, &std::env::temp_dir(), None, settings, Etcd::make);
        match product.and_then(start) {
            Ok(server) => server,
            Err(error) => panic!("{error}"),
        }
    }

    /// Returns `etcd://127.0.0.1:<port>/`, or `etcds://…` with TLS.
    #[must_use]
    pub fn url(&self) -> String {
        let url = url([self.addr()]);
        if self.product().tls.is_some() { url.replace("etcd:", "etcds:") } else { url }
    }

    /// Returns `http://127.0.0.1:<port>`, for etcd's own clients, or `https://…` with TLS.
    #[must_use]
    pub fn endpoint(&self) -> String {
        self.product().endpoint(self.addr())
    }

    /// Runs `etcdctl` on this server, and returns its output.
    ///
    /// # Panics
    ///
    /// When it fails.
    #[track_caller]
    pub fn etcdctl(&self, args: &[&str]) -> String {
        match self.try_etcdctl(args) {
            Ok(said) => said,
            Err(error) => panic!("{error}"),
        }
    }

    /// As [`etcdctl`](Self::etcdctl).
    ///
    /// # Errors
    ///
    /// When it fails; the text has its errors.
    pub fn try_etcdctl(&self, args: &[&str]) -> io::Result<String> {
        self.product().run(&self.endpoint(), args)
    }

    /// Starts an `etcdctl` that runs until it is ended, like `lock name`.
    ///
    /// That one says its key when it has the lock, and [releases](Process::interrupt) it on SIGINT.
    /// A command that it runs, as in `lock name sh -c …`, outlives a kill: it is ended by
    /// [`kill_tree`](Process::kill_tree).
    ///
    /// # Panics
    ///
    /// When it can't be started.
    #[track_caller]
    #[must_use]
    pub fn spawn_etcdctl(&self, args: &[&str]) -> Helper {
        self.product().spawn(&self.endpoint(), args)
    }
}

fn endpoint(addr: SocketAddr) -> String {
    format!("http://{addr}")
}

/// Returns the URL of servers.
fn url(servers: impl IntoIterator<Item = SocketAddr>) -> String {
    let servers: Vec<String> = servers.into_iter().map(|addr| addr.to_string()).collect();
    format!("etcd://{}/", servers.join(","))
}

/// Whether a server knows a leader, and has what a majority has.
fn is_healthy(addr: SocketAddr) -> io::Result<bool> {
    Ok(ask(addr, "GET /health HTTP/1.0\r\n\r\n")?.contains(r#""health":"true""#))
}

/// As [`database::until`].
fn until(condition: impl Fn() -> io::Result<bool>) -> io::Result<()> {
    database::until("etcd", condition)
}
