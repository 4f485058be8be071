//! Programs in other languages, built once under cargo's target folder.

use std::ffi::OsString;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};

use crate::folders;
use crate::process::Process;

/// Maximum time of a build. The first one downloads libraries.
const LIMIT: Duration = Duration::from_secs(15 * 60);

/// Calls `make` with a new folder, which it fills from the files `parts` of the folder `sources`.
/// Returns the folder with its final path. Calls nothing if the same files were built before.
///
/// # Errors
///
/// When a file can't be read, or those of `make`.
pub fn build(
    name: &str,
    sources: &Path,
    parts: &[&str],
    make: impl FnOnce(&Path) -> Result<(), String>,
) -> Result<PathBuf, String> {
    let work = work_folder()?;
    // One build at a time, of all processes: two downloads would get in each other's way.
    let file = work.join("lock");
    let locked = std::fs::File::create(&file).map_err(|error| told(&file, &error))?;
    flock(&locked, FlockOperation::LockExclusive).map_err(|error| told(&file, &error.into()))?;
    let folder = work.join(format!("{name}-{:016x}", fingerprint(sources, parts)?));
    if folder.exists() {
        return Ok(folder);
    }
    let unfinished = work.join(format!("unfinished-{name}"));
    // A process may have been killed.
    let _ = std::fs::remove_dir_all(&unfinished);
    let made = make_folder(&unfinished).and_then(|()| make(&unfinished));
    let made = made.and_then(|()| {
        let renamed = std::fs::rename(&unfinished, &folder);
        renamed.map_err(|error| told(&folder, &error))
    });
    let _ = std::fs::remove_dir_all(&unfinished);
    made.map(|()| folder)
}

/// Runs a program that builds, and returns whether it succeeded. Its output goes to `output`, since
/// it would mix with the test harness's.
///
/// # Errors
///
/// When it can't be started; if there is no such program, the text ends with `help`.
pub fn run(command: &mut Command, output: fn() -> Stdio, help: &str) -> Result<bool, String> {
    command.stdin(Stdio::null()).stdout(output()).stderr(output());
    let program = command.get_program().display().to_string();
    let mut process = Process::spawn(command, None).map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => format!("{program} is not on the PATH: {help}"),
        _ => format!("{program}: {error}"),
    })?;
    Ok(process.wait(LIMIT).success())
}

/// Compiles Java and collects jars. There are no tests and no installation, so few plugins are
/// needed.
const GOALS: [&str; 3] = ["compiler:compile", "jar:jar", "dependency:copy-dependencies"];

/// Builds the Maven project `sources` into `out`, without the network if Maven already has
/// everything. The jars of its libraries are in the subfolder `dependency`.
///
/// # Errors
///
/// When there is no Maven, or it fails; the text ends with `help`, or says which project it is.
pub fn maven(sources: &Path, out: &Path, help: &str) -> Result<(), String> {
    let mut define = OsString::from("-Dout=");
    define.push(out);
    let attempt = |more: &[&str], output: fn() -> Stdio| {
        let mut command = Command::new("mvn");
        command.args(["--batch-mode", "--quiet"]).args(more).arg(&define).args(GOALS);
        run(command.current_dir(sources), output, help)
    };
    // The second attempt says why it fails.
    if attempt(&["--offline"], Stdio::null)? || attempt(&[], Stdio::inherit)? {
        return Ok(());
    }
    Err(format!("mvn could not build {}: it says why above", sources.display()))
}

/// Returns the path of a program of the JDK that Maven uses too, such as `java`.
#[must_use]
pub fn jdk(program: &str) -> PathBuf {
    match std::env::var_os("JAVA_HOME") {
        Some(home) if !home.is_empty() => Path::new(&home).join("bin").join(program),
        _ => PathBuf::from(program),
    }
}

/// Returns the command that builds a Go program in its folder.
#[must_use]
pub fn go_build(program: &str) -> Command {
    let mut command = Command::new("go");
    // The folder is inside a repository that is not the program's.
    command.args(["build", "-buildvcs=false", "-o", program, "."]).env("CGO_ENABLED", "0");
    command
}

/// Copies a file to another folder, under the same name.
///
/// # Errors
///
/// When it can't be read or written.
pub fn copy(file: &Path, folder: &Path) -> Result<(), String> {
    let name = file.file_name().unwrap_or_default();
    std::fs::copy(file, folder.join(name)).map(drop).map_err(|error| told(file, &error))
}

/// Creates a folder next to the programs that cargo has built, including this one.
fn work_folder() -> Result<PathBuf, String> {
    let work = folders::programs().map_err(|error| error.to_string())?.join("interop");
    make_folder(&work)?;
    Ok(work)
}

/// Returns a hash of the files.
fn fingerprint(sources: &Path, parts: &[&str]) -> Result<u64, String> {
    fn collect(path: PathBuf, found: &mut Vec<PathBuf>) -> std::io::Result<()> {
        if path.is_dir() {
            for entry in std::fs::read_dir(path)? {
                collect(entry?.path(), found)?;
            }
        } else {
            found.push(path);
        }
        Ok(())
    }
    let mut files = Vec::new();
    for part in parts {
        collect(sources.join(part), &mut files).map_err(|error| told(sources, &error))?;
    }
    files.sort();
    let mut hasher = DefaultHasher::new();
    for file in files {
        file.strip_prefix(sources).unwrap_or(&file).hash(&mut hasher);
        std::fs::read(&file).map_err(|error| told(&file, &error))?.hash(&mut hasher);
    }
    Ok(hasher.finish())
}

fn make_folder(path: &Path) -> Result<(), String> {
    std::fs::create_dir_all(path).map_err(|error| told(path, &error))
}

fn told(path: &Path, error: &std::io::Error) -> String {
    format!("{}: {error}", path.display())
}
