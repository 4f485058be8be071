//! Builds and starts the Java program.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use lock_test_servers::foreign::{self, jdk};

/// How to get a `mvn` that is missing.
const HELP: &str = "`cargo xtask test interop --install` installs it with a JDK, or see `cargo xtask \
                    test interop` for the command";

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
        let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("interop");
        let folder =
            foreign::build("java", &sources, &["pom.xml", "src"], |out| foreign::maven(&sources, out, HELP))?;
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
