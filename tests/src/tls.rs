//! [`TlsServer`]: a redis-server that is spoken to through TLS only, and the [`Authority`] behind its certificate.

use std::io::Write;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, KeyUsagePurpose};
use tempfile::TempDir;

use crate::process::Process;
use crate::redis::{self, Role, StartError};

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
        // With one name for two of them, a stranger's certificate would look forged and not unknown.
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

    /// A certificate for a server called `name` and its key, as PEM.
    fn certify(&self, name: &str) -> (String, String) {
        let params = CertificateParams::new([name.to_owned()]).expect("a name that certificates can have");
        let key = KeyPair::generate().expect("a key can be made");
        let certificate = params.signed_by(&key, &self.0).expect("a certificate can be signed");
        (certificate.pem(), key.serialize_pem())
    }
}

/// A redis-server on a free loopback port with a folder of its own, without a port for plain connections. Its
/// certificate is for the name `localhost`. Ended and cleaned up on drop.
#[derive(Debug)]
pub struct TlsServer {
    // Fields are dropped in order: the process ends before its folder goes.
    _process: Process,
    dir: TempDir,
    port: u16,
}

impl TlsServer {
    /// Starts a server with a certificate by `authority`, which asks for `password`. `None`, and a line on stderr,
    /// when the `redis-server` on the `PATH` was built without TLS.
    ///
    /// # Panics
    ///
    /// When it does not start; with `CI=true` in the environment also when it was built without TLS.
    #[track_caller]
    #[must_use]
    pub fn start(authority: &Authority, password: &str) -> Option<Self> {
        match Self::try_start(authority, password) {
            Ok(server) => Some(server),
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

    fn try_start(authority: &Authority, password: &str) -> Result<Self, StartError> {
        let dir = tempfile::Builder::new().prefix("lock-redis-").tempdir()?;
        let (certificate, key) = authority.certify("localhost");
        for (name, text) in [("ca.pem", authority.pem()), ("server.pem", certificate), ("server.key", key)] {
            std::fs::write(dir.path().join(name), text)?;
        }
        let (process, port) = redis::until_ports_are_free(|| {
            let port = redis::free_port(Role::Data)?;
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
        self.dir.path().join("ca.pem")
    }
}

fn launch(port: u16, dir: &TempDir, password: &str) -> Result<Process, StartError> {
    let port = port.to_string();
    let args = [
        ["--tls-port", &port],
        ["--port", "0"],
        ["--tls-cert-file", "server.pem"],
        ["--tls-key-file", "server.key"],
        ["--tls-ca-cert-file", "ca.pem"],
        ["--tls-auth-clients", "no"],
        ["--requirepass", password],
    ];
    // In a log of its own, this is about this server.
    let ready = |_: &Process| redis::read_log(dir).contains("Ready to accept connections");
    redis::launch_in(dir, None, args.into_iter().flatten(), ready)
}
