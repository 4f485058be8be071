//! Builds and starts the Java program.

use std::ffi::OsString;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::time::Duration;

use crate::process::Process;

/// Compiles and collects jars. There are no tests and no installation, so few plugins are needed.
const GOALS: [&str; 3] = ["compiler:compile", "jar:jar", "dependency:copy-dependencies"];

/// Maximum time of a build. The first one downloads Redisson and Maven's plugins.
const LIMIT: Duration = Duration::from_secs(15 * 60);

/// The Java program, built.
#[derive(Clone, Debug)]
pub struct Program {
    folder: PathBuf,
}

impl Program {
    /// Builds the program, unless the same sources were built before. Downloads only what Maven
    /// does not have yet.
    ///
    /// # Errors
    ///
    /// When there is no Maven, or it fails; the text says how to install it.
    pub fn build() -> Result<Self, String> {
        // Tests of one process wait for each other. Several processes build twice at worst.
        static ONE: Mutex<()> = Mutex::new(());
        let _one = ONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("interop");
        let work = work_folder()?;
        let folder = work.join(format!("{:016x}", fingerprint(&sources)?));
        if !folder.exists() {
            let unfinished = work.join(format!("unfinished-{}", std::process::id()));
            maven(&sources, &unfinished)?;
            if let Err(error) = std::fs::rename(&unfinished, &folder) {
                let _ = std::fs::remove_dir_all(&unfinished);
                if !folder.exists() {
                    return Err(format!("{}: {error}", folder.display()));
                }
            }
        }
        Ok(Self { folder })
    }

    /// Returns the command that runs the program, without the program's arguments.
    #[must_use]
    pub fn command(&self) -> Command {
        let jar = self.folder.join("rival.jar");
        let mut agent = OsString::from("-javaagent:");
        agent.push(&jar);
        let mut class_path = jar.into_os_string();
        class_path.push(":");
        class_path.push(self.folder.join("dependency").join("*"));
        let mut command = Command::new(jdk("java"));
        // Tuned for a quick start, because the program lives only for a short time.
        command.args(["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto", "-Xmx512m"]);
        command.arg("-Dorg.slf4j.simpleLogger.defaultLogLevel=error");
        command.arg(agent).arg("-cp").arg(class_path).arg("lockinterop.Rival");
        command
    }
}

/// Returns the path of a program of the JDK that Maven uses too, such as `java`.
#[must_use]
pub fn jdk(program: &str) -> PathBuf {
    match std::env::var_os("JAVA_HOME") {
        Some(home) if !home.is_empty() => Path::new(&home).join("bin").join(program),
        _ => PathBuf::from(program),
    }
}

/// Creates a folder next to the programs that cargo has built, including this one.
fn work_folder() -> Result<PathBuf, String> {
    let exe =
        std::env::current_exe().map_err(|error| format!("the path of this program is unknown: {error}"))?;
    let folder = exe.parent().ok_or("this program is in no folder")?;
    // Tests are in `deps`, a subfolder of the other programs' folder.
    let folder = if folder.ends_with("deps") {
        folder.parent().ok_or("this program is in no folder")?
    } else {
        folder
    };
    let work = folder.join("interop");
    std::fs::create_dir_all(&work).map_err(|error| format!("{}: {error}", work.display()))?;
    Ok(work)
}

/// Returns a hash of the sources.
fn fingerprint(sources: &Path) -> Result<u64, String> {
    fn collect(folder: &Path, found: &mut Vec<PathBuf>) -> std::io::Result<()> {
        for entry in std::fs::read_dir(folder)? {
            let path = entry?.path();
            if path.is_dir() {
                collect(&path, found)?;
            } else {
                found.push(path);
            }
        }
        Ok(())
    }
    let told = |path: &Path, error: std::io::Error| format!("{}: {error}", path.display());
    let mut files = vec![sources.join("pom.xml")];
    collect(&sources.join("src"), &mut files).map_err(|error| told(sources, error))?;
    files.sort();
    let mut hasher = DefaultHasher::new();
    for file in files {
        file.strip_prefix(sources).unwrap_or(&file).hash(&mut hasher);
        std::fs::read(&file).map_err(|error| told(&file, error))?.hash(&mut hasher);
    }
    Ok(hasher.finish())
}

/// Builds the sources into `out`, without the network if Maven already has everything.
fn maven(sources: &Path, out: &Path) -> Result<(), String> {
    let mut define = OsString::from("-Dout=");
    define.push(out);
    let run = |more: &[&str], output: fn() -> Stdio| -> Result<bool, String> {
        let mut command = Command::new("mvn");
        command.args(["--batch-mode", "--quiet"]).args(more).arg(&define).args(GOALS);
        // Maven's output would mix with the test harness's. The second attempt shows it on stderr.
        command.current_dir(sources).stdin(Stdio::null()).stdout(output()).stderr(output());
        let mut process = Process::spawn(&mut command, None).map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => "mvn is not on the PATH: `cargo xtask test interop --install` \
                                             installs it with a JDK, or see `cargo xtask test interop` for the command"
                .to_owned(),
            _ => format!("mvn: {error}"),
        })?;
        Ok(process.wait(LIMIT).success())
    };
    if run(&["--offline"], Stdio::null)? || run(&[], Stdio::inherit)? {
        return Ok(());
    }
    let _ = std::fs::remove_dir_all(out);
    Err("mvn could not build tests/interop: it says why above".to_owned())
}
