//! [`Libraries`]: the crates that make up `lock-runtime`.

use std::path::PathBuf;

use serde_json::{Value, json};

use crate::runner::{self, Output};

/// The package that users depend on.
pub(crate) const PACKAGE: &str = "lock-runtime";

/// The crates of the workspace that users compile.
pub(crate) struct Libraries {
    /// `lock-runtime`, and those that it depends on.
    pub(crate) all: Vec<Library>,
    /// The folder that cargo builds in.
    pub(crate) target: PathBuf,
}

pub(crate) struct Library {
    pub(crate) package: String,
    /// The name of the crate.
    pub(crate) name: String,
    /// Its `lib.rs`.
    pub(crate) root: PathBuf,
}

impl Libraries {
    /// Finds the crates with `cargo metadata`.
    pub(crate) fn find(output: &Output) -> Result<Self, String> {
        let mut metadata = crate::cargo();
        metadata.args(["metadata", "--no-deps", "--format-version", "1"]);
        let metadata: Value = serde_json::from_str(&runner::read(&mut metadata, output)?)
            .map_err(|error| format!("`cargo metadata`: {error}"))?;
        let target = metadata["target_directory"].as_str().ok_or("cargo names no target folder")?;
        Ok(Self { all: below(PACKAGE, &metadata), target: target.into() })
    }
}

/// Finds a package, and the packages of the workspace that it depends on.
fn below(package: &str, metadata: &Value) -> Vec<Library> {
    let mut names = vec![package.to_owned()];
    let mut found: Vec<Library> = Vec::new();
    while let Some(name) = names.pop() {
        let package = list(&metadata["packages"]).find(|package| package["name"] == *name);
        let Some(package) = package.filter(|_| found.iter().all(|known| known.package != name)) else {
            continue;
        };
        let kinds = [json!(["lib"]), json!(["proc-macro"])];
        let library = list(&package["targets"]).find(|target| kinds.contains(&target["kind"]));
        let text = |key: &str| library.and_then(|target| target[key].as_str());
        let (Some(target), Some(root)) = (text("name"), text("src_path")) else { continue };
        found.push(Library { package: name, name: target.replace('-', "_"), root: root.into() });
        let normal = list(&package["dependencies"]).filter(|dependency| dependency["kind"].is_null());
        names.extend(normal.filter_map(|dependency| dependency["name"].as_str().map(str::to_owned)));
    }
    found
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_are_those_that_users_compile() {
        let package = |name: &str, kind: &str, dependencies: Value| {
            let target = json!({ "name": name, "kind": [kind], "src_path": format!("/{name}/src/lib.rs") });
            json!({ "name": name, "targets": [target], "dependencies": dependencies })
        };
        let needs = |name: &str, kind: Value| json!({ "name": name, "kind": kind });
        let metadata = json!({ "packages": [
            package("macros", "proc-macro", json!([needs("syn", json!(null))])),
            package("tests", "lib", json!([needs("top-most", json!(null))])),
            package("core", "lib", json!([])),
            package("top-most", "lib", json!([
                needs("core", json!(null)), needs("macros", json!(null)), needs("tests", json!("dev")),
            ])),
        ]});
        let names: Vec<_> = below("top-most", &metadata).into_iter().map(|library| library.name).collect();
        assert_eq!(names, ["top_most", "macros", "core"]);
    }
}
