//! [`TlsServer`]: a redis-server that is spoken to through TLS only, and the [`Authority`] behind its certificate.

use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, KeyUsagePurpose};
use tempfile::TempDir;

use crate::process::Process;
use crate::redis::{self, READY, StartError};

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
        let mut last = StartError::Failed("no port was free".to_owned());
        for _ in 0..20 {
            let port = redis::free_port()?;
            match launch(port, &dir, password) {
                Ok(process) => return Ok(Self { _process: process, dir, port }),
                Err(StartError::Failed(log)) if log.contains("Address already in use") => {
                    last = StartError::Failed(log);
                }
                Err(error) => return Err(error),
            }
        }
        Err(last)
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
    let log = dir.path().join("redis.log");
    let _ = std::fs::remove_file(&log);
    let mut command = Command::new("redis-server");
    command
        .args(["--tls-port", &port.to_string(), "--port", "0", "--bind", "127.0.0.1", "--daemonize", "no"])
        .args(["--tls-cert-file", "server.pem", "--tls-key-file", "server.key"])
        .args(["--tls-ca-cert-file", "ca.pem", "--tls-auth-clients", "no"])
        .args(["--save", "", "--appendonly", "no", "--requirepass", password, "--logfile"])
        .arg(&log)
        .current_dir(dir.path())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let mut process = Process::spawn(&mut command, Some(dir.path())).map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => StartError::Missing,
        _ => StartError::Io(error),
    })?;
    let deadline = Instant::now() + READY;
    loop {
        let log = redis::read_log(dir);
        if process.ended().is_some() {
            return Err(StartError::Failed(log));
        }
        // In a log of its own, this is about this server.
        if log.contains("Ready to accept connections") {
            return Ok(process);
        }
        if Instant::now() >= deadline {
            return Err(StartError::Failed(format!("not ready within {READY:?}\n{log}")));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}
