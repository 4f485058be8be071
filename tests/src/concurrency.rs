//! Locks of etcd's own Go client: the packages `concurrency` and `recipes`.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::callers::Callers;
use lock_test_servers::foreign;

/// How to get a program that is missing.
const HELP: &str = "`cargo xtask test etcd --install` installs it";

/// The files of the program in `tests/interop/etcd`.
const FILES: [&str; 3] = ["go.mod", "go.sum", "main.go"];

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

/// Starts a process that takes and releases locks by etcd's Go client, and waits until it is
/// connected to the server at `endpoint`.
///
/// A caller has a session of its own, whose time-to-live in seconds is in its first command.
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
///
/// # Panics
///
/// When it can't be built or started; the text says what is missing.
#[must_use]
pub fn start(endpoint: &str) -> Callers {
    let program = build().unwrap_or_else(|error| panic!("no locks in Go: {error}"));
    Callers::start(Command::new(program).arg(endpoint))
}
