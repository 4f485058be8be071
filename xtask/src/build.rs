//! Programs of this workspace: built, and found where cargo has put them.

use std::path::PathBuf;
use std::process::Stdio;

use serde_json::Value;

/// Builds as `cargo build <args>` does, and says where the program is.
pub(crate) fn executable(args: &[&str], kind: &str, name: &str) -> Result<PathBuf, String> {
    let line = format!("cargo build {}", args.join(" "));
    println!("$ {line}");
    let output = crate::cargo()
        .arg("build")
        .args(args)
        .args(["--message-format", "json-render-diagnostics"])
        .stderr(Stdio::inherit())
        .output()
        .map_err(|error| format!("cargo build: {error}"))?;
    if !output.status.success() {
        return Err(format!("`{line}`: {}", output.status));
    }
    String::from_utf8_lossy(&output.stdout)
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok())
        .filter(|message| is_target(&message["target"], kind, name))
        .find_map(|message| message["executable"].as_str().map(PathBuf::from))
        .ok_or_else(|| format!("cargo does not say where the {kind} {name} is"))
}

pub(crate) fn is_target(target: &Value, kind: &str, name: &str) -> bool {
    target["name"] == name && list(&target["kind"]).any(|other| other == kind)
}

pub(crate) fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}
