//! Builds the programs of `tests/interop/plain`.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use lock_test_servers::foreign;

/// How to get a program that is missing.
const HELP: &str =
    "`cargo xtask test redlock --install` installs it, or see `cargo xtask test redlock` for the command";

/// A library in another language whose locks are in the plain layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Client {
    /// The `Lock` of redis-py, in Python.
    RedisPy,
    /// redsync, in Go.
    Redsync,
    /// node-redlock, in JavaScript.
    NodeRedlock,
}

impl Client {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::RedisPy, Self::Redsync, Self::NodeRedlock];

    /// Returns the name of the modules with its tests.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::RedisPy => "redis_py",
            Self::Redsync => "redsync",
            Self::NodeRedlock => "node_redlock",
        }
    }

    /// Returns its files in `tests/interop/plain`.
    fn files(self) -> &'static [&'static str] {
        match self {
            Self::RedisPy => &["client.py", "requirements.txt"],
            Self::Redsync => &["go/go.mod", "go/go.sum", "go/main.go"],
            Self::NodeRedlock => &["node/client.mjs", "node/package.json", "node/package-lock.json"],
        }
    }

    /// Builds the program, unless the same sources were built before. Downloads only what the
    /// language's own tool does not have yet.
    ///
    /// # Errors
    ///
    /// When the tool is missing or fails; the text says how to install it.
    pub fn build(self) -> Result<Program, String> {
        let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("interop/plain");
        let folder = foreign::build(self.name(), &sources, self.files(), |out| {
            for file in self.files() {
                foreign::copy(&sources.join(file), out)?;
            }
            let mut command = self.fetch_or_compile();
            if foreign::run(command.current_dir(out), Stdio::inherit, HELP)? {
                return Ok(());
            }
            let tool = command.get_program().display();
            Err(format!("{tool} could not build {}: it says why above", self.name()))
        })?;
        Ok(Program { client: self, folder })
    }

    /// Returns the command that makes the program ready to run in its folder.
    fn fetch_or_compile(self) -> Command {
        match self {
            Self::RedisPy => {
                let mut command = Command::new("python3");
                command.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]);
                command.args(["--target", "libraries", "--requirement", "requirements.txt"]);
                // As root it would warn, since it knows nothing of the target.
                command.env("PIP_ROOT_USER_ACTION", "ignore");
                command
            }
            Self::Redsync => foreign::go_build("plain"),
            Self::NodeRedlock => {
                let mut command = Command::new("npm");
                command.args(["ci", "--prefer-offline", "--ignore-scripts", "--loglevel=error"]);
                command.args(["--no-audit", "--no-fund", "--no-update-notifier"]);
                command
            }
        }
    }
}

/// A program with one of the libraries, built.
#[derive(Clone, Debug)]
pub struct Program {
    client: Client,
    folder: PathBuf,
}

impl Program {
    /// Returns the command that runs the program, without the program's arguments.
    #[must_use]
    pub fn command(&self) -> Command {
        match self.client {
            Client::RedisPy => {
                let mut command = Command::new("python3");
                command.arg("-B").arg(self.folder.join("client.py"));
                command.env("PYTHONPATH", self.folder.join("libraries"));
                command
            }
            Client::Redsync => Command::new(self.folder.join("plain")),
            Client::NodeRedlock => {
                let mut command = Command::new("node");
                command.arg(self.folder.join("client.mjs"));
                command
            }
        }
    }
}
