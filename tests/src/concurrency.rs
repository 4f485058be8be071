//! Locks of etcd's own Go client: the packages `concurrency` and `recipes`.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::process::Helper;
use lock_test_servers::foreign;

/// How to get a program that is missing.
const HELP: &str = "`cargo xtask test etcd --install` installs it";

/// The files of the program in `tests/interop/etcd`.
const FILES: [&str; 3] = ["go.mod", "go.sum", "main.go"];

/// Maximum time for an answer, also of a count. Generous: two busy cores.
const LIMIT: Duration = Duration::from_secs(240);

/// Builds the program, unless the same sources were built before. Returns its path.
///
/// # Errors
///
/// When Go is missing or fails; the text says how to install it.
pub fn build() -> Result<PathBuf, String> {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("interop/etcd");
    let folder = foreign::build("concurrency", &sources, &FILES, |out| {
        for file in FILES {
            foreign::copy(&sources.join(file), out)?;
        }
        match foreign::run(foreign::go_build("concurrency").current_dir(out), Stdio::inherit, HELP)? {
            true => Ok(()),
            false => Err("go could not build tests/interop/etcd: it says why above".to_owned()),
        }
    })?;
    Ok(folder.join("concurrency"))
}

/// A process that takes and releases locks by etcd's Go client. It is killed on drop.
///
/// Its argument is the endpoint of a server. It prints `ready` when it is connected. Then it takes
/// commands. Each begins with the name of a caller, as does its answer. A caller has a session of
/// its own, whose time-to-live in seconds is in its first command. It executes its commands one
/// after the other, and those of different callers at once.
///
/// ```text
/// CALLER lock KEY TTL             granted REVISION
/// CALLER try KEY                  granted REVISION | busy
/// CALLER read KEY TTL             granted 0
/// CALLER write KEY TTL            granted 0
/// CALLER release KEY              released
/// CALLER count KEY FILE TIMES     counted
/// ```
///
/// `lock` and `try` are of `concurrency.Mutex`, `read` and `write` of `recipes.RWMutex`, which has
/// no revision. `count` increments the number in a file, under the mutex.
#[derive(Debug)]
pub struct GoLocks {
    helper: Helper,
}

impl GoLocks {
    /// Starts the program, and waits until it is connected.
    ///
    /// # Panics
    ///
    /// When it can't be built or started; the text says what is missing.
    #[must_use]
    pub fn start(endpoint: &str) -> Self {
        let program = build().unwrap_or_else(|error| panic!("no locks in Go: {error}"));
        let mut helper = Helper::spawn_command(Command::new(program).arg(endpoint));
        assert_eq!(helper.line(LIMIT), "ready");
        Self { helper }
    }

    /// Sends a command.
    pub fn send(&mut self, command: &str) {
        self.helper.send(command);
    }

    /// Sends a command, and returns the answer without the caller.
    pub fn ask(&mut self, command: &str) -> String {
        self.send(command);
        self.answer()
    }

    /// Returns the next answer without the caller.
    ///
    /// # Panics
    ///
    /// When none comes within four minutes.
    #[track_caller]
    pub fn answer(&mut self) -> String {
        let line = self.helper.line(LIMIT);
        line.split_once(' ').map_or(line.as_str(), |(_, answer)| answer).to_owned()
    }

    /// Returns whether no answer comes within this time.
    pub fn is_silent(&mut self, within: Duration) -> bool {
        self.helper.try_line(within).is_none()
    }

    /// Returns the process, to be signalled.
    pub fn helper(&mut self) -> &mut Helper {
        &mut self.helper
    }
}
