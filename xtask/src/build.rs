//! Building programs of the workspace, and finding them.

use std::path::PathBuf;
use std::process::Stdio;

use serde_json::Value;

/// Builds what `args` say, and says where the target `name` of this `kind` is.
pub(crate) fn program(args: &[&str], kind: &str, name: &str) -> Result<PathBuf, String> {
    let line = format!("cargo build {}", args.join(" "));
    println!("$ {line}");
    let output = crate::cargo()
        .arg("build")
        .args(args)
        .args(["--message-format", "json-render-diagnostics"])
        .stderr(Stdio::inherit())
        .output()
        .map_err(|error| format!("`{line}`: {error}"))?;
    if !output.status.success() {
        return Err(format!("`{line}`: {}", output.status));
    }
    String::from_utf8_lossy(&output.stdout)
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok())
        .filter(|message| is(&message["target"], kind, name))
        .find_map(|message| message["executable"].as_str().map(PathBuf::from))
        .ok_or_else(|| format!("cargo does not say where the {kind} {name} is"))
}

/// Whether cargo means this target.
pub(crate) fn is(target: &Value, kind: &str, name: &str) -> bool {
    target["name"] == name && list(&target["kind"]).any(|of| of == kind)
}

pub(crate) fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}
