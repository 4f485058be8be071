//! `cargo xtask book`: builds the guide, `docs/book`, with mdBook.

use std::process::{Command, Stdio};

use crate::runner::{self, Output};
use crate::workspace::Libraries;

/// The version of mdBook that builds the guide. Newer ones need a newer Rust than the workspace.
const VERSION: &str = "0.5.4";

/// Builds the guide, after installing mdBook in the target folder if it is not there yet.
pub(crate) fn run() -> Result<(), String> {
    let target = Libraries::find(&Output::kept())?.target;
    let (tools, book) = (target.join("tools"), target.join("book"));
    let mdbook = tools.join("bin/mdbook");
    let version = Command::new(&mdbook).arg("--version").stdin(Stdio::null()).output();
    if !version
        .is_ok_and(|said| String::from_utf8_lossy(&said.stdout).trim().ends_with(&format!("v{VERSION}")))
    {
        let mut install = crate::cargo();
        install.args(["install", "mdbook", "--version", VERSION, "--locked", "--force"]);
        install.args(["--no-default-features", "--features", "search", "--root"]).arg(tools);
        runner::read(&mut install, &Output::Live)?;
    }
    let mut build = Command::new(mdbook);
    build.arg("build").arg(crate::root().join("docs/book")).arg("--dest-dir").arg(&book);
    runner::read(&mut build, &Output::Live)?;
    // mdBook prints an error for an include that it can't resolve, and goes on.
    let all = std::fs::read_to_string(book.join("print.html")).map_err(|error| error.to_string())?;
    if let Some((_, rest)) = all.split_once("{{#") {
        let name = rest.lines().next().unwrap_or_default();
        return Err(format!("mdBook has left {{{{#{name} as it is: is there such a file?"));
    }
    println!("The guide begins at {}", book.join("index.html").display());
    Ok(())
}
