//! Building programs of the workspace, and finding them.

use std::path::PathBuf;
use std::process::Command;

use serde_json::Value;

use crate::runner::{self, Output};

/// A program that cargo has built.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Program {
    /// The folder of its package.
    pub(crate) folder: PathBuf,
    /// The name of the target.
    pub(crate) name: String,
    /// Cargo's name for the kind of target, such as `bin`, `lib` or `test`.
    pub(crate) kind: String,
    /// Whether it runs the tests of its target.
    pub(crate) is_test: bool,
    pub(crate) path: PathBuf,
}

/// Runs a command of cargo, and returns the programs that it has built or found up to date.
pub(crate) fn programs(command: &str, args: &[&str], output: &Output) -> Result<Vec<Program>, String> {
    let mut cargo = crate::cargo();
    cargo.arg(command).args(args);
    programs_of(cargo, output)
}

/// Runs a command of cargo that builds, and returns the programs that it has built or found up to
/// date.
pub(crate) fn programs_of(mut cargo: Command, output: &Output) -> Result<Vec<Program>, String> {
    cargo.args(["--message-format", "json-render-diagnostics"]);
    let said = runner::read(&mut cargo, output)?;
    Ok(said.lines().filter_map(|line| Program::of(&serde_json::from_str(line).ok()?)).collect())
}

/// Builds with these arguments, and returns the path of the target `name` of this `kind`.
pub(crate) fn program(args: &[&str], kind: &str, name: &str, output: &Output) -> Result<PathBuf, String> {
    let programs = programs("build", args, output)?;
    let found = programs.into_iter().find(|program| program.kind == kind && program.name == name);
    found.map(|program| program.path).ok_or_else(|| format!("cargo does not say where the {kind} {name} is"))
}

impl Program {
    fn of(message: &Value) -> Option<Self> {
        let path = PathBuf::from(message["executable"].as_str()?);
        let folder = PathBuf::from(message["manifest_path"].as_str()?).parent()?.to_owned();
        let target = &message["target"];
        let is_test = message["profile"]["test"].as_bool()?;
        let (name, kind) = (target["name"].as_str()?.to_owned(), target["kind"][0].as_str()?.to_owned());
        Some(Self { folder, name, kind, is_test, path })
    }

    /// Returns the package's folder and the target, as in `lock-runtime/it`; `lock-runtime/lib` for
    /// the library's own tests.
    pub(crate) fn label(&self) -> String {
        let folder = self.folder.strip_prefix(crate::root()).unwrap_or(&self.folder).display();
        let is_lib = ["lib", "proc-macro"].contains(&self.kind.as_str());
        format!("{folder}/{}", if is_lib { "lib" } else { &self.name })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_read_from_what_cargo_says() {
        let said = r#"{"reason":"compiler-artifact","manifest_path":"/w/lock/Cargo.toml",
            "target":{"kind":["lib"],"name":"lock"},"profile":{"test":true},"executable":"/t/lock-1"}"#;
        let program = Program::of(&serde_json::from_str(said).unwrap()).unwrap();
        assert_eq!((program.label().as_str(), program.is_test), ("/w/lock/lib", true));
        let library = said.replace("\"/t/lock-1\"", "null");
        assert_eq!(Program::of(&serde_json::from_str(&library).unwrap()), None);
    }
}
