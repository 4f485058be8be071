//! [`TlsServer`]: a redis-server that is spoken to through TLS only, and the [`Authority`] behind
//! its certificate. [`TlsCluster`] and [`TlsSentinel`]: several of them, for clients that know them
//! by their addresses.

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

/// What servers in groups are known by.
const ADDRESS: &str = "127.0.0.1";

/// In a server's folder.
const AUTHORITY: &str = "ca.pem";
const CERTIFICATE: &str = "server.pem";
const KEY: &str = "server.key";

/// A certificate authority that nobody trusts who is not told to.
#[derive(Debug)]
pub struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    /// A new one, with a name and a key of its own.
    ///
    /// # Panics
    ///
    /// When the system gives no random numbers.
    #[must_use]
    #[expect(clippy::new_without_default, reason = "two of them are never alike")]
    pub fn new() -> Self {
        // With one name for two of them, a stranger's certificate would look forged and not
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

    /// Its certificate, as PEM.
    #[must_use]
    pub fn pem(&self) -> String {
        self.0.pem()
    }

    /// A folder with a certificate for a server called `name`, its key, and the certificate of the
    /// authority.
    fn certificate_for(&self, name: &str) -> Result<TempDir, StartError> {
        let params = CertificateParams::new([name.to_owned()]).expect("a name that certificates can have");
        let key = KeyPair::generate().expect("a key can be made");
        let certificate = params.signed_by(&key, &self.0).expect("a certificate can be signed");
        let dir = tempfile::Builder::new().prefix("lock-redis-").tempdir()?;
        let files = [(AUTHORITY, self.pem()), (CERTIFICATE, certificate.pem()), (KEY, key.serialize_pem())];
        for (name, text) in files {
            std::fs::write(dir.path().join(name), text)?;
        }
        Ok(dir)
    }
}

/// A redis-server on a free loopback port with a folder of its own, without a port for plain
/// connections. Its certificate is for the name `localhost`. Ended and cleaned up on drop.
#[derive(Debug)]
pub struct TlsServer {
    // Fields are dropped in order: the process ends before its folder goes.
    _process: Process,
    dir: TempDir,
    port: u16,
}

impl TlsServer {
    /// Starts a server with a certificate by `authority`, which asks for `password`. `None`, and a
    /// line on stderr, when the `redis-server` on the `PATH` was built without TLS.
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

    /// The port.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The file with the authority's certificate.
    #[must_use]
    pub fn authority_file(&self) -> PathBuf {
        self.dir.path().join(AUTHORITY)
    }
}

/// What was started. `None`, and a line on stderr, when the `redis-server` on the `PATH` was built
/// without TLS.
#[track_caller]
fn if_known<T>(started: Result<T, StartError>) -> Option<T> {
    match started {
        Ok(servers) => Some(servers),
        Err(StartError::Failed(_)) if !redis::knows_tls() => {
            const WHY: &str = "this redis-server was built without TLS";
            let ci = std::env::var("CI").is_ok_and(|value| value == "true");
            assert!(!ci, "{WHY}");
            // Not by the macro, whose text is not shown when a test passes.
            let _ = writeln!(std::io::stderr(), "skipped: {WHY}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// Three primaries with ports for TLS beside the plain ones. Their certificates are for their
/// address.
#[derive(Debug)]
pub struct TlsCluster {
    cluster: Cluster,
    dir: TempDir,
}

impl TlsCluster {
    /// Starts a cluster with certificates by `authority`, which asks for `password`. `None`, and a
    /// line on stderr, when the `redis-server` on the `PATH` was built without TLS.
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

    /// The nodes, to be asked without TLS.
    #[must_use]
    pub fn plain(&self) -> &Cluster {
        &self.cluster
    }

    /// The address of one node, for TLS: `127.0.0.1:<port>`.
    ///
    /// # Panics
    ///
    /// When there are not so many nodes.
    #[must_use]
    pub fn node(&self, at: usize) -> String {
        address(&self.cluster.nodes()[at])
    }

    /// The file with the authority's certificate.
    #[must_use]
    pub fn authority_file(&self) -> PathBuf {
        self.dir.path().join(AUTHORITY)
    }
}

/// A server and the sentinel that watches it, through TLS. Their certificates are for their
/// address.
#[derive(Debug)]
pub struct TlsSentinel {
    // It ends first: it would take the end of the other for a reason to act.
    sentinel: RedisServer,
    server: RedisServer,
    dir: TempDir,
}

impl TlsSentinel {
    /// Starts both with certificates by `authority`; they ask for `password`. `None`, and a line on
    /// stderr, when the `redis-server` on the `PATH` was built without TLS.
    ///
    /// # Panics
    ///
    /// When one does not start; with `CI=true` in the environment also when it was built without
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

    /// The server with data, to be asked without TLS.
    #[must_use]
    pub fn plain(&self) -> &RedisServer {
        &self.server
    }

    /// The address of the sentinel and what it calls the server, for TLS:
    /// `127.0.0.1:<port>/mymaster`.
    #[must_use]
    pub fn place(&self) -> String {
        format!("{}/{MASTER}", address(&self.sentinel))
    }

    /// The file with the authority's certificate.
    #[must_use]
    pub fn authority_file(&self) -> PathBuf {
        self.dir.path().join(AUTHORITY)
    }
}

/// A port for TLS and what is in `dir`, as arguments of a server.
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

/// The same for a cluster's node. Without TLS among themselves, nodes send clients to ports for
/// plain connections.
fn node_args(dir: &Path) -> Result<Vec<String>, StartError> {
    let mut args = tls_args(Role::Node, dir)?;
    args.extend(["--tls-cluster", "yes"].map(str::to_owned));
    Ok(args)
}

/// Where a server takes connections through TLS.
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
    // In a log of its own, this is about this server.
    let ready = |_: &Process| redis::read_log(dir).contains("Ready to accept connections");
    redis::launch_in(dir, None, args.into_iter().flatten(), ready)
}
