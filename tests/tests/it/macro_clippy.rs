//! A crate that uses the attribute in every form has no clippy warning from it, pedantic and nursery ones included.
//!
//! `ui/pass` holds all forms; clippy runs over a package that is made of them. Lints change between releases: set
//! `LOCK_SKIP_UI` to leave the test out under another compiler than the pinned one.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").canonicalize().unwrap()
}

fn write_package(folder: &Path) {
    let workspace = workspace();
    let runtime = workspace.join("lock-runtime");
    let manifest = format!(
        r#"[package]
name = "clippy-fixture"
version = "0.0.0"
edition = "2024"
publish = false

[workspace]

[dependencies]
async-trait = "0.1"
lock-runtime = {{ path = {runtime:?}, default-features = false, features = ["macros"] }}
tokio = {{ version = "1", features = ["full"] }}
tracing = {{ version = "0.1", default-features = false, features = ["attributes", "std"] }}
"#
    );
    let programs = folder.join("src/bin");
    fs::create_dir_all(&programs).unwrap();
    fs::write(folder.join("Cargo.toml"), manifest).unwrap();
    fs::copy(workspace.join("Cargo.lock"), folder.join("Cargo.lock")).unwrap();
    for case in fs::read_dir(workspace.join("tests/compile/ui/pass")).unwrap() {
        let case = case.unwrap();
        fs::copy(case.path(), programs.join(case.file_name())).unwrap();
    }
}

#[test]
fn the_attribute_adds_no_clippy_warning() {
    if env::var_os("LOCK_SKIP_UI").is_some() {
        return;
    }
    let target = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let folder = target.join("clippy-fixture");
    let _ = fs::remove_dir_all(&folder);
    write_package(&folder);
    let mut clippy = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    clippy
        .args(["clippy", "--offline", "--quiet", "--bins", "--manifest-path"])
        .arg(folder.join("Cargo.toml"))
        .arg("--target-dir")
        .arg(target.join("clippy-target"))
        .args(["--", "-D", "warnings", "-W", "clippy::pedantic", "-W", "clippy::nursery"]);
    // The variables of the cargo and the clippy around this test are not for the one inside.
    for (name, _) in env::vars_os() {
        let name = name.to_string_lossy().into_owned();
        if name.starts_with("CARGO_PKG") || name.starts_with("CLIPPY") || name == "RUSTFLAGS" {
            clippy.env_remove(name);
        }
    }
    let output = clippy.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
