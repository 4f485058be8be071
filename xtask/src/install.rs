//! Finds the programs that the parts need, and installs those that are missing.

use std::path::Path;
use std::process::{Command, Stdio};

use lock_tests::java::jdk;
use lock_tests::mongodb;

/// A program that a part needs besides cargo.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tool {
    Rustfmt,
    Clippy,
    RedisServer,
    /// pkg-config and OpenSSL's headers, for the feature `tls-native`.
    OpenSsl,
    /// A Java compiler for Java 17 or later, for the Redisson client, ZooKeeper and Curator.
    Jdk,
    Maven,
    /// A headless browser, and the program that drives it.
    Chromium,
    /// PostgreSQL's own programs, `initdb` and `postgres`.
    PostgreSql,
    /// A pooler of PostgreSQL.
    PgBouncer,
    /// MariaDB's server and client. Its script that creates a database needs both.
    MariaDb,
    /// MongoDB's server. The program that downloads it is in `tests/servers/mongod`.
    MongoDb,
    /// etcd's server, and its client `etcdctl`.
    Etcd,
    /// Python with pip, for redis-py, and to download MongoDB.
    Python,
    /// For redsync, and for the locks of etcd's Go client.
    Go,
    /// Node.js with npm, for node-redlock.
    Node,
}

/// The Java version of `tests/interop` and `tests/interop/curator`.
const JAVA: u32 = 17;

/// The minor version of Go 1 that builds `tests/interop/plain/go` and `tests/interop/etcd`.
const GO: u32 = 19;

/// Fails if Python is too old for redis-py, or has no pip.
const PYTHON: &str = "import pip, sys; sys.exit(sys.version_info < (3, 10))";

/// Fails if Node.js is older than the tests are tried with.
const NODE: &str = "process.exit(parseInt(process.versions.node) < 18 ? 1 : 0)";

/// Names of Chromium, which `tests/src/browser.rs` looks for too.
const CHROMIUM: [&str; 4] = ["chromium", "chromium-browser", "google-chrome", "google-chrome-stable"];

impl Tool {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Rustfmt => "rustfmt",
            Self::Clippy => "clippy",
            Self::RedisServer => "redis-server",
            Self::OpenSsl => "pkg-config with OpenSSL's headers",
            Self::Jdk => "a JDK, 17 or newer",
            Self::Maven => "Maven (mvn)",
            Self::Chromium => "Chromium with chromedriver",
            Self::PostgreSql => "PostgreSQL (initdb, postgres)",
            Self::PgBouncer => "PgBouncer",
            Self::MariaDb => "MariaDB (mariadb-install-db, mariadbd, mariadb)",
            Self::MongoDb => "MongoDB (mongod)",
            Self::Etcd => "etcd (etcd, etcdctl)",
            Self::Python => "Python 3.10 or newer with pip",
            Self::Go => "Go 1.19 or newer",
            Self::Node => "Node.js 18 or newer with npm",
        }
    }

    pub(crate) fn is_there(self) -> bool {
        match self {
            Self::Rustfmt => runs(crate::cargo().args(["fmt", "--version"])),
            Self::Clippy => runs(crate::cargo().args(["clippy", "--version"])),
            Self::RedisServer => runs(Command::new("redis-server").arg("--version")),
            // macOS and Windows bring their own TLS library.
            Self::OpenSsl => {
                !cfg!(any(target_os = "linux", target_os = "android"))
                    || runs(Command::new("pkg-config").args(["--exists", "openssl"]))
            }
            Self::Jdk => {
                let output = Command::new(jdk("javac")).arg("-version").stdin(Stdio::null()).output();
                // Old versions print it on stderr.
                output.is_ok_and(|output| {
                    [output.stdout, output.stderr].iter().any(|text| {
                        java_version(&String::from_utf8_lossy(text)).is_some_and(|version| version >= JAVA)
                    })
                })
            }
            Self::Maven => runs(Command::new("mvn").arg("--version")),
            Self::Chromium => {
                CHROMIUM.into_iter().any(is_on_path) && runs(Command::new("chromedriver").arg("--version"))
            }
            Self::PostgreSql => lock_tests::postgres::programs().is_some(),
            Self::PgBouncer => lock_tests::pgbouncer::program().is_some(),
            Self::MariaDb => lock_tests::mariadb::programs().is_some(),
            // It may lack a library.
            Self::MongoDb => {
                mongodb::program().is_some_and(|mongod| runs(Command::new(mongod).arg("--version")))
            }
            Self::Etcd => lock_tests::etcd::programs().is_some(),
            Self::Python => runs(Command::new("python3").args(["-c", PYTHON])),
            Self::Go => {
                let output = Command::new("go").args(["env", "GOVERSION"]).stdin(Stdio::null()).output();
                let version =
                    output.ok().and_then(|output| go_version(&String::from_utf8_lossy(&output.stdout)));
                version.is_some_and(|version| version >= GO)
            }
            Self::Node => {
                runs(Command::new("node").args(["-e", NODE])) && runs(Command::new("npm").arg("--version"))
            }
        }
    }

    /// Returns the commands that install the tool, in order.
    pub(crate) fn commands(self, manager: Option<Manager>) -> Result<Vec<Vec<String>>, String> {
        let component = match self {
            Self::Rustfmt => Some("rustfmt"),
            Self::Clippy => Some("clippy"),
            Self::RedisServer
            | Self::OpenSsl
            | Self::Jdk
            | Self::Maven
            | Self::Chromium
            | Self::PostgreSql
            | Self::PgBouncer
            | Self::MariaDb
            | Self::MongoDb
            | Self::Etcd
            | Self::Python
            | Self::Go
            | Self::Node => None,
        };
        if let Some(component) = component {
            return Ok(vec![words(&["rustup", "component", "add", component])]);
        }
        let Some(manager) = manager else {
            let known = Manager::ALL.map(Manager::program).join(", ");
            return Err(format!("install {} by hand: none of {known} is on the PATH", self.name()));
        };
        let packages = manager.packages(self);
        if self == Self::MongoDb {
            if packages.is_empty() || !cfg!(all(target_os = "linux", target_arch = "x86_64")) {
                return Err(format!("install {} by hand", self.name()));
            }
            return with_mongod(manager, packages);
        }
        let mut commands = manager.install(packages);
        if self == Self::Etcd && manager == Manager::AptGet && !is_on_path("etcd") && has_systemd() {
            // Debian's package starts a service.
            commands.push(manager.with_sudo(words(&["systemctl", "disable", "--now", "etcd"])));
        }
        Ok(commands)
    }
}

/// Whether systemd runs this machine's services, as its sd_booted(3) finds out.
fn has_systemd() -> bool {
    Path::new("/run/systemd/system").is_dir()
}

/// Returns the commands that download `mongod`, after those for what it needs: `packages` with its
/// libraries, and Python.
fn with_mongod(manager: Manager, packages: &[&str]) -> Result<Vec<Vec<String>>, String> {
    let mut commands = Vec::new();
    if !Tool::Python.is_there() {
        commands.extend(Tool::Python.commands(Some(manager))?);
    }
    if !has_libraries_of_mongod() {
        commands.extend(manager.install(packages));
    }
    let fetch = crate::root().join("tests/servers/mongod/fetch.py");
    let to = mongodb::installed().map_err(|error| error.to_string())?;
    commands.push(words(&["python3", &fetch.to_string_lossy(), &to.to_string_lossy()]));
    Ok(commands)
}

fn has_libraries_of_mongod() -> bool {
    let known = Command::new("ldconfig").arg("-p").stdin(Stdio::null()).stderr(Stdio::null()).output();
    let known = known.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    ["libcurl.so.4 ", "libssl.so.3 ", "liblzma.so.5 "].iter().all(|library| known.contains(library))
}

/// A package manager.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Manager {
    AptGet,
    Dnf,
    Apk,
    Pacman,
    Brew,
}

impl Manager {
    const ALL: [Self; 5] = [Self::AptGet, Self::Dnf, Self::Apk, Self::Pacman, Self::Brew];

    /// Returns the first package manager on the `PATH`.
    pub(crate) fn find() -> Option<Self> {
        Self::ALL.into_iter().find(|manager| is_on_path(manager.program()))
    }

    fn program(self) -> &'static str {
        match self {
            Self::AptGet => "apt-get",
            Self::Dnf => "dnf",
            Self::Apk => "apk",
            Self::Pacman => "pacman",
            Self::Brew => "brew",
        }
    }

    fn packages(self, tool: Tool) -> &'static [&'static str] {
        match (tool, self) {
            (Tool::Rustfmt | Tool::Clippy, _) => &[],
            (Tool::RedisServer, Self::AptGet) => &["redis-server"],
            (Tool::RedisServer, _) => &["redis"],
            (Tool::OpenSsl, Self::AptGet) => &["pkg-config", "libssl-dev"],
            (Tool::OpenSsl, Self::Dnf) => &["pkgconf-pkg-config", "openssl-devel"],
            (Tool::OpenSsl, Self::Apk) => &["pkgconf", "openssl-dev"],
            (Tool::OpenSsl, Self::Pacman | Self::Brew) => &["pkgconf", "openssl"],
            (Tool::Jdk, Self::AptGet) => &["default-jdk-headless"],
            (Tool::Jdk, Self::Dnf) => &["java-devel"],
            (Tool::Jdk, Self::Apk) => &["openjdk17"],
            (Tool::Jdk, Self::Pacman) => &["jdk-openjdk"],
            (Tool::Jdk, Self::Brew) => &["openjdk"],
            (Tool::Maven, _) => &["maven"],
            (Tool::Chromium, Self::AptGet) => &["chromium", "chromium-driver"],
            (Tool::Chromium, Self::Apk) => &["chromium", "chromium-chromedriver"],
            (Tool::Chromium, Self::Pacman) => &["chromium"],
            (Tool::Chromium, Self::Dnf | Self::Brew) => &["chromium", "chromedriver"],
            (Tool::PostgreSql, Self::Dnf) => &["postgresql-server"],
            (Tool::PostgreSql, Self::Brew) => &["postgresql@17"],
            (Tool::PostgreSql, _) => &["postgresql"],
            (Tool::PgBouncer, _) => &["pgbouncer"],
            (Tool::MariaDb, Self::AptGet) => &["mariadb-server-core", "mariadb-client-core"],
            (Tool::MariaDb, Self::Dnf) => &["mariadb-server", "mariadb"],
            (Tool::MariaDb, Self::Apk) => &["mariadb", "mariadb-client"],
            (Tool::MariaDb, Self::Pacman | Self::Brew) => &["mariadb"],
            // Its libraries; the program is linked with glibc.
            (Tool::MongoDb, Self::AptGet) => &["libcurl4"],
            (Tool::MongoDb, Self::Dnf) => &["libcurl", "openssl-libs", "xz-libs"],
            (Tool::MongoDb, Self::Pacman) => &["curl", "openssl", "xz"],
            (Tool::MongoDb, Self::Apk | Self::Brew) => &[],
            (Tool::Etcd, Self::AptGet) => &["etcd-server", "etcd-client"],
            (Tool::Etcd, Self::Apk) => &["etcd", "etcd-ctl"],
            (Tool::Etcd, _) => &["etcd"],
            (Tool::Python, Self::AptGet | Self::Dnf) => &["python3", "python3-pip"],
            (Tool::Python, Self::Apk) => &["python3", "py3-pip"],
            (Tool::Python, Self::Pacman) => &["python", "python-pip"],
            (Tool::Python, Self::Brew) => &["python"],
            // Without the certificates it can't download modules.
            (Tool::Go, Self::AptGet) => &["golang-go", "ca-certificates"],
            (Tool::Go, Self::Dnf) => &["golang"],
            (Tool::Go, _) => &["go"],
            (Tool::Node, Self::Brew) => &["node"],
            (Tool::Node, _) => &["nodejs", "npm"],
        }
    }

    /// Returns the commands that install `packages` without asking.
    fn install(self, packages: &[&str]) -> Vec<Vec<String>> {
        let mut commands = Vec::new();
        let start: &[&str] = match self {
            Self::AptGet => {
                commands.push(words(&["apt-get", "update"]));
                // As arguments of `env`, since sudo drops the environment.
                &[
                    "env",
                    "DEBIAN_FRONTEND=noninteractive",
                    "apt-get",
                    "install",
                    "-y",
                    "--no-install-recommends",
                ]
            }
            Self::Dnf => &["dnf", "install", "-y"],
            Self::Apk => &["apk", "add"],
            Self::Pacman => &["pacman", "-Sy", "--needed", "--noconfirm"],
            Self::Brew => &["brew", "install"],
        };
        commands.push(words(&[start, packages].concat()));
        commands.into_iter().map(|command| self.with_sudo(command)).collect()
    }

    /// Returns the command with `sudo`, if it needs that.
    fn with_sudo(self, mut command: Vec<String>) -> Vec<String> {
        // Homebrew refuses to run as root, and needs no root rights.
        if self != Self::Brew && !is_root() {
            command.insert(0, "sudo".to_owned());
        }
        command
    }
}

/// The tools that were found or are missing.
pub(crate) struct Found {
    missing: Vec<Tool>,
}

impl Found {
    /// Looks for `tools`; installs the missing ones, or prints how to.
    pub(crate) fn look(tools: &[Tool], install: bool) -> Self {
        let mut missing: Vec<Tool> = tools.iter().copied().filter(|tool| !tool.is_there()).collect();
        if missing.is_empty() {
            return Self { missing };
        }
        let manager = Manager::find();
        for tool in &missing {
            println!("missing: {}", tool.name());
            match tool.commands(manager) {
                Err(message) => println!("  {message}"),
                Ok(commands) => {
                    for command in commands {
                        println!("  {}", command.join(" "));
                        // A failed update need not stop the installation, since the tool is looked
                        // for afterwards.
                        if install {
                            run(&command);
                        }
                    }
                }
            }
        }
        if install {
            missing.retain(|tool| !tool.is_there());
        } else {
            println!("  (or run `cargo xtask test --install`)");
        }
        Self { missing }
    }

    pub(crate) fn is_missing(&self, tool: Tool) -> bool {
        self.missing.contains(&tool)
    }
}

/// Runs an installation, with its output on ours. A failure is printed, and the closing table shows
/// it too.
fn run(command: &[String]) {
    let Some((program, args)) = command.split_first() else { return };
    match Command::new(program).args(args).stdin(Stdio::null()).status() {
        Ok(status) if status.success() => {}
        Ok(status) => eprintln!("error: {program} ended with {status}"),
        Err(error) => eprintln!("error: can't run {program}: {error}"),
    }
}

fn runs(command: &mut Command) -> bool {
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

/// Returns the 17 of `javac 17.0.15`.
fn java_version(text: &str) -> Option<u32> {
    let version = text.lines().find_map(|line| line.strip_prefix("javac "))?;
    version.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}

/// Returns the 19 of `go1.19.8`.
fn go_version(text: &str) -> Option<u32> {
    let minor = text.trim().strip_prefix("go1.")?;
    minor.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}

fn is_on_path(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|dir| dir.join(program).is_file())
}

fn is_root() -> bool {
    let id = Command::new("id").arg("-u").stderr(Stdio::null()).output();
    id.is_ok_and(|output| output.stdout.trim_ascii() == b"0")
}

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|&word| word.to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_manager_installs_a_server_without_asking() {
        for manager in Manager::ALL {
            let commands = manager.install(manager.packages(Tool::RedisServer));
            let last = commands.last().unwrap();
            assert!(last.iter().any(|word| word.starts_with("redis")), "{last:?}");
            assert!(last.iter().any(|word| word == manager.program()), "{last:?}");
        }
        let apt = Manager::AptGet.install(&["redis-server"]);
        assert_eq!(apt.len(), 2, "update comes before install");
    }

    #[test]
    fn every_manager_has_its_packages() {
        for manager in Manager::ALL {
            for tool in [
                Tool::Jdk,
                Tool::Maven,
                Tool::PostgreSql,
                Tool::MariaDb,
                Tool::Etcd,
                Tool::Chromium,
                Tool::Python,
                Tool::Go,
                Tool::Node,
            ] {
                assert!(!manager.packages(tool).is_empty(), "{manager:?} {tool:?}");
            }
        }
    }

    #[test]
    #[cfg(all(target_os = "linux", target_arch = "x86_64"))]
    fn mongod_is_downloaded_where_it_runs() {
        let commands = Tool::MongoDb.commands(Some(Manager::AptGet)).unwrap();
        let fetch = commands.last().unwrap();
        assert!(fetch[1].ends_with("fetch.py") && fetch[2].ends_with("/mongod"), "{fetch:?}");
        // Its C library is another one.
        let by_hand = Tool::MongoDb.commands(Some(Manager::Apk)).unwrap_err();
        assert!(by_hand.contains("by hand"), "{by_hand}");
    }

    #[test]
    fn a_java_compiler_says_how_old_it_is() {
        assert_eq!(java_version("javac 17.0.15\n"), Some(17));
        assert_eq!(java_version("Picked up JAVA_TOOL_OPTIONS: -Xmx1g\njavac 25-ea"), Some(25));
        assert_eq!(java_version("javac 1.8.0_402"), Some(1));
        assert_eq!(java_version("no such thing"), None);
    }

    #[test]
    fn go_says_how_old_it_is() {
        assert_eq!(go_version("go1.19.8\n"), Some(19));
        assert_eq!(go_version("go1.27rc1"), Some(27));
        assert_eq!(go_version("devel"), None);
    }

    #[test]
    fn a_system_without_a_known_manager_is_told_what_to_do() {
        let message = Tool::RedisServer.commands(None).unwrap_err();
        assert!(message.contains("install redis-server by hand"), "{message}");
    }

    #[test]
    fn components_come_from_rustup_whatever_the_system() {
        assert_eq!(Tool::Clippy.commands(None).unwrap(), [words(&["rustup", "component", "add", "clippy"])]);
    }
}
