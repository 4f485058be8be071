//! Redis servers that clients reach through TLS. [`TlsServer`] is a single server, and
//! [`Authority`] issues its certificate. [`TlsCluster`] and [`TlsSentinel`] are groups that clients
//! reach by their addresses.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, KeyUsagePurpose};
use tempfile::TempDir;

use crate::RedisServer;
use crate::cluster::{self, Cluster};
use crate::process::Process;
use crate::redis::{self, Role, Setup, StartError};
use crate::sentinels::MASTER;

/// The name in the certificates of servers in groups.
const ADDRESS: &str = "127.0.0.1";

/// File names in a server's folder.
const AUTHORITY: &str = "ca.pem";
const CERTIFICATE: &str = "server.pem";
const KEY: &str = "server.key";
const BOTH: &str = "both.pem";

/// A certificate authority that clients trust only when told to.
#[derive(Debug)]
pub struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    /// Creates an authority with its own name and key.
    ///
    /// # Panics
    ///
    /// When the system gives no random numbers.
    #[must_use]
    #[expect(clippy::new_without_default, reason = "two of them are never alike")]
    pub fn new() -> Self {
        // If two authorities shared a name, a stranger's certificate would look forged instead of
        // unknown.
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let name = format!("lock-tests authority {}", NEXT.fetch_add(1, Ordering::Relaxed));
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let key = KeyPair::generate().expect("a key can be made");
        Self(CertifiedIssuer::self_signed(params, key).expect("a certificate can be signed"))
    }

    /// Returns the authority's certificate as PEM.
    #[must_use]
    pub fn pem(&self) -> String {
        self.0.pem()
    }

    /// Creates a folder with what a server called `name` needs: `server.pem` with its certificate,
    /// `server.key`, `both.pem` with both, and `ca.pem` with the authority's certificate.
    ///
    /// # Errors
    ///
    /// When the folder can't be written.
    pub fn certificate_for(&self, name: &str) -> Result<TempDir, StartError> {
        let params = CertificateParams::new([name.to_owned()]).expect("a name that certificates can have");
        let key = KeyPair::generate().expect("a key can be made");
        let certificate = params.signed_by(&key, &self.0).expect("a certificate can be signed");
        let dir = tempfile::Builder::new().prefix("lock-redis-").tempdir()?;
        let both = format!("{}{}", certificate.pem(), key.serialize_pem());
        let files = [
            (AUTHORITY, self.pem()),
            (CERTIFICATE, certificate.pem()),
            (KEY, key.serialize_pem()),
            (BOTH, both),
        ];
        for (name, text) in files {
            std::fs::write(dir.path().join(name), text)?;
        }
        Ok(dir)
    }
}

/// A redis-server on a free loopback port, with its own folder and no port for plain connections.
/// Its certificate is for the name `localhost`. Ended and cleaned up on drop.
#[derive(Debug)]
pub struct TlsServer {
    // Fields are dropped in order: the process ends before its folder goes.
    _process: Process,
    dir: TempDir,
    port: u16,
}

impl TlsServer {
    /// Starts a server with a certificate by `authority`; it requires `password`. Returns `None`,
    /// with a line on stderr, when the `redis-server` on the `PATH` was built without TLS.
    ///
    /// # Panics
    ///
    /// When it does not start; with `CI=true` in the environment also when it was built without
    /// TLS.
    #[track_caller]
    #[must_use]
    pub fn start(authority: &Authority, password: &str) -> Option<Self> {
        if_known(Self::try_start(authority, password))
    }

    fn try_start(authority: &Authority, password: &str) -> Result<Self, StartError> {
        let dir = authority.certificate_for("localhost")?;
        let (process, port) = redis::until_ports_are_free(|| {
            let port = redis::free_port()?;
            Ok((launch(port, &dir, password)?, port))
        })?;
        Ok(Self { _process: process, dir, port })
    }

    /// Returns the port.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Returns the path of the authority's certificate.
    #[must_use]
    pub fn authority_file(&self) -> PathBuf {
        self.dir.path().join(AUTHORITY)
    }
}

/// Returns the started servers. Returns `None`, with a line on stderr, when the `redis-server` on
/// the `PATH` was built without TLS.
#[track_caller]
fn if_known<T>(started: Result<T, StartError>) -> Option<T> {
    match started {
        Ok(servers) => Some(servers),
        Err(StartError::Failed(_)) if !redis::knows_tls() => {
            const WHY: &str = "this redis-server was built without TLS";
            let ci = std::env::var("CI").is_ok_and(|value| value == "true");
            assert!(!ci, "{WHY}");
            // Not with the macro: its output is hidden when a test passes.
            let _ = writeln!(std::io::stderr(), "skipped: {WHY}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// Three primaries with TLS ports besides the plain ones. Their certificates are for their address.
#[derive(Debug)]
pub struct TlsCluster {
    cluster: Cluster,
    dir: TempDir,
}

impl TlsCluster {
    /// Starts a cluster with certificates by `authority`; it requires `password`. Returns `None`,
    /// with a line on stderr, when the `redis-server` on the `PATH` was built without TLS.
    ///
    /// # Panics
    ///
    /// When it does not start; with `CI=true` in the environment also when it was built without
    /// TLS.
    #[track_caller]
    #[must_use]
    pub fn start(authority: &Authority, password: &str) -> Option<Self> {
        let start = || {
            let dir = authority.certificate_for(ADDRESS)?;
            let own = (0..3).map(|_| node_args(dir.path())).collect::<Result<_, _>>()?;
            let options = cluster::Options::default().password(password).own_args(own);
            Ok(Self { cluster: Cluster::try_start_with(options)?, dir })
        };
        if_known(start())
    }

    /// Returns the cluster, for commands without TLS.
    #[must_use]
    pub fn plain(&self) -> &Cluster {
        &self.cluster
    }

    /// Returns the TLS address of one node: `127.0.0.1:<port>`.
    ///
    /// # Panics
    ///
    /// When there is no node at this place.
    #[must_use]
    pub fn node(&self, at: usize) -> String {
        address(&self.cluster.nodes()[at])
    }

    /// Returns the path of the authority's certificate.
    #[must_use]
    pub fn authority_file(&self) -> PathBuf {
        self.dir.path().join(AUTHORITY)
    }
}

/// A server and its sentinel, both with TLS. Their certificates are for their address.
#[derive(Debug)]
pub struct TlsSentinel {
    // Dropped first: a running sentinel would react to the end of the server.
    sentinel: RedisServer,
    server: RedisServer,
    dir: TempDir,
}

impl TlsSentinel {
    /// Starts both with certificates by `authority`; they require `password`. Returns `None`, with
    /// a line on stderr, when the `redis-server` on the `PATH` was built without TLS.
    ///
    /// # Panics
    ///
    /// When either does not start; with `CI=true` in the environment also when it was built without
    /// TLS.
    #[track_caller]
    #[must_use]
    pub fn start(authority: &Authority, password: &str) -> Option<Self> {
        let start = || {
            let dir = authority.certificate_for(ADDRESS)?;
            let launch = |role, file: Option<String>| {
                let mut args = tls_args(role, dir.path())?;
                args.extend(["--tls-replication", "yes", "--requirepass", password].map(str::to_owned));
                RedisServer::try_launch(&Setup { role, args, file, clock: None })
            };
            let server = launch(Role::Data, None)?;
            let port = server.tls_port().expect("it was given one");
            let watched = format!(
                "sentinel monitor {MASTER} {ADDRESS} {port} 1\n\
                 sentinel auth-pass {MASTER} {password}\n\
                 sentinel sentinel-pass {password}\n"
            );
            let sentinel = launch(Role::Sentinel, Some(watched))?;
            Ok(Self { sentinel, server, dir })
        };
        if_known(start())
    }

    /// Returns the server with data, for commands without TLS.
    #[must_use]
    pub fn plain(&self) -> &RedisServer {
        &self.server
    }

    /// Returns the TLS address of the sentinel and its name for the server:
    /// `127.0.0.1:<port>/mymaster`.
    #[must_use]
    pub fn place(&self) -> String {
        format!("{}/{MASTER}", address(&self.sentinel))
    }

    /// Returns the path of the authority's certificate.
    #[must_use]
    pub fn authority_file(&self) -> PathBuf {
        self.dir.path().join(AUTHORITY)
    }
}

/// Returns the arguments for a server with a TLS port and the files in `dir`.
fn tls_args(role: Role, dir: &Path) -> Result<Vec<String>, StartError> {
    let port = redis::free_port_for(role)?.to_string();
    let file = |name| dir.join(name).display().to_string();
    let args = [
        ["--tls-port".to_owned(), port],
        ["--tls-cert-file".to_owned(), file(CERTIFICATE)],
        ["--tls-key-file".to_owned(), file(KEY)],
        ["--tls-ca-cert-file".to_owned(), file(AUTHORITY)],
        ["--tls-auth-clients".to_owned(), "no".to_owned()],
    ];
    Ok(args.into_iter().flatten().collect())
}

/// Returns the arguments for a cluster node. Without TLS among themselves, nodes would send clients
/// to plain ports.
fn node_args(dir: &Path) -> Result<Vec<String>, StartError> {
    let mut args = tls_args(Role::Node, dir)?;
    args.extend(["--tls-cluster", "yes"].map(str::to_owned));
    Ok(args)
}

/// Returns the TLS address of a server.
fn address(server: &RedisServer) -> String {
    format!("{ADDRESS}:{}", server.tls_port().expect("it was given one"))
}

fn launch(port: u16, dir: &TempDir, password: &str) -> Result<Process, StartError> {
    let port = port.to_string();
    let args = [
        ["--tls-port", &port],
        ["--port", "0"],
        ["--tls-cert-file", CERTIFICATE],
        ["--tls-key-file", KEY],
        ["--tls-ca-cert-file", AUTHORITY],
        ["--tls-auth-clients", "no"],
        ["--requirepass", password],
    ];
    // The log is the server's own, so the line is about this server.
    let ready = |_: &Process| redis::read_log(dir).contains("Ready to accept connections");
    redis::launch_in(dir, None, args.into_iter().flatten(), ready)
}
