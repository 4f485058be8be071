//! [`ServerClock`]: a server's wall clock, which tests set while the server runs.
//!
//! A small preloaded library (`tests/servers/shim/clock.c`) replaces the real-time clock of the
//! server's process, and of no other. Monotonic clocks are not affected. The library is built here
//! with `cc`, which Rust needs as its linker anyway. Linux only.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use tempfile::TempDir;

const SOURCE: &str = include_str!("../shim/clock.c");

/// Difference between a server's clock and the machine's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Offset {
    /// The server's clock shows a later time.
    Ahead(Duration),
    /// The server's clock shows an earlier time.
    Behind(Duration),
}

impl Offset {
    /// No difference.
    pub const NONE: Self = Self::Ahead(Duration::ZERO);

    fn micros(self) -> i64 {
        let micros = |time: Duration| i64::try_from(time.as_micros()).unwrap_or(i64::MAX);
        match self {
            Self::Ahead(time) => micros(time),
            Self::Behind(time) => -micros(time),
        }
    }
}

/// A clock for one or more servers, which are [started with
/// it](crate::RedisServer::start_with_clock). Clones are the same clock. It must outlive the
/// servers that use it.
#[derive(Clone, Debug)]
pub struct ServerClock {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    library: Arc<Library>,
    offset: File,
    path: PathBuf,
    // Dropped last: the file is in this folder.
    dir: TempDir,
}

/// The built library, in its own folder.
#[derive(Debug)]
struct Library {
    dir: TempDir,
}

impl ServerClock {
    /// Returns a clock with this offset.
    ///
    /// # Errors
    ///
    /// When there is no C compiler, or the library can't be built.
    pub fn new(offset: Offset) -> io::Result<Self> {
        let library = Library::get()?;
        let dir = tempfile::Builder::new().prefix("lock-clock-").tempdir()?;
        let path = dir.path().join("offset");
        let file = OpenOptions::new().create(true).truncate(true).write(true).open(&path)?;
        let clock = Self { shared: Arc::new(Shared { library, offset: file, path, dir }) };
        clock.set(offset)?;
        Ok(clock)
    }

    /// Steps the clock. Servers see the change at once.
    ///
    /// # Errors
    ///
    /// When the offset can't be written.
    pub fn set(&self, offset: Offset) -> io::Result<()> {
        // A single write of eight bytes into the page that the servers have mapped.
        self.shared.offset.write_all_at(&offset.micros().to_ne_bytes(), 0)
    }

    /// Lets a server that runs as another user read the clock.
    pub(crate) fn share(&self) -> io::Result<()> {
        let folders = [self.shared.library.dir.path(), self.shared.dir.path()];
        folders
            .into_iter()
            .try_for_each(|folder| std::fs::set_permissions(folder, std::fs::Permissions::from_mode(0o755)))
    }

    /// Makes the process that `command` starts use this clock.
    pub(crate) fn apply(&self, command: &mut Command) {
        command.env("LD_PRELOAD", self.shared.library.path()).env("CLOCK_SHIM", &self.shared.path);
    }
}

impl Library {
    /// Returns the library, built once and shared by all clocks that exist at the same time.
    fn get() -> io::Result<Arc<Self>> {
        static BUILT: Mutex<Weak<Library>> = Mutex::new(Weak::new());
        let mut built = BUILT.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(library) = built.upgrade() {
            return Ok(library);
        }
        let dir = tempfile::Builder::new().prefix("lock-clock-").tempdir()?;
        let library = Arc::new(Self { dir });
        compile(&library.path())?;
        *built = Arc::downgrade(&library);
        Ok(library)
    }

    fn path(&self) -> PathBuf {
        self.dir.path().join("clock.so")
    }
}

fn compile(to: &Path) -> io::Result<()> {
    let mut compiler = Command::new("cc")
        .args(["-O2", "-Wall", "-shared", "-fPIC", "-x", "c", "-", "-o"])
        .arg(to)
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| io::Error::new(error.kind(), format!("the C compiler `cc`: {error}")))?;
    let sent = compiler.stdin.take().map_or(Ok(()), |mut stdin| stdin.write_all(SOURCE.as_bytes()));
    let output = compiler.wait_with_output()?;
    if !output.status.success() {
        return Err(io::Error::other(format!("`cc`: {}", String::from_utf8_lossy(&output.stderr))));
    }
    sent
}
