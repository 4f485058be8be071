//! `cargo xtask api`: lists the public items of `lock-runtime`, and of `lock-core` for authors of
//! stores, in `docs/public-api.txt`.
//!
//! [`docs`] runs `rustdoc` on our crates and reads the JSON that it writes. [`paths`] walks from
//! the root of a crate along `pub use`, also into our other crates, and finds the path at
//! which users reach each item. [`list`] writes the lines, and [`render`] the types in them.
//!
//! No line says in which of our crates an item is, so moving an item and re-exporting it at its old
//! path leaves the list unchanged.

mod docs;
mod list;
mod paths;
mod render;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

use self::docs::Docs;
use crate::runner::Output;
use crate::test::{Outcome, Step};

/// Maximum number of differing lines that the failed check shows.
const SHOWN: usize = 40;

const HEAD: &str = "\
# The public items of lock-runtime with all features, and then of lock-core, which authors of stores
# use. Written by `cargo xtask api`, not by hand.
# A path in a signature starts at the root of the crate; of a foreign item it is the last name.
";

/// Writes the list to its file.
pub(crate) fn run() -> Result<(), String> {
    let text = listing(&Output::Live)?;
    fs::write(file(), text).map_err(|error| format!("{}: {error}", file().display()))
}

/// Compares the list in the file with the code.
pub(crate) fn check(step: &Step<'_>) -> Outcome {
    let new = match listing(step.output()) {
        Ok(new) => new,
        Err(why) => return Outcome::Failed(why),
    };
    let old = fs::read_to_string(file()).unwrap_or_default();
    if old == new { Outcome::Ok } else { Outcome::Failed(difference(&old, &new)) }
}

fn file() -> PathBuf {
    crate::root().join("docs/public-api.txt")
}

fn listing(output: &Output) -> Result<String, String> {
    let docs = Docs::build(output)?;
    let of = |krate| list::list(&docs, docs.root(krate)?);
    Ok(format!("{HEAD}\n{}\n{}", of("lock_runtime")?, of("lock_core")?))
}

/// Returns the lines that only one side has.
fn difference(old: &str, new: &str) -> String {
    let (was, is): (BTreeSet<&str>, BTreeSet<&str>) = (old.lines().collect(), new.lines().collect());
    let removed = old.lines().filter(|line| !is.contains(line)).map(|line| format!("\n- {line}"));
    let added = new.lines().filter(|line| !was.contains(line)).map(|line| format!("\n+ {line}"));
    let lines: Vec<String> = removed.chain(added).collect();
    let shown = lines.iter().take(SHOWN).map(String::as_str).collect::<String>();
    let more = match lines.len().saturating_sub(SHOWN) {
        0 => String::new(),
        more => format!("\n… and {more} lines more"),
    };
    format!("docs/public-api.txt is outdated: run `cargo xtask api` and review the diff{shown}{more}")
}
