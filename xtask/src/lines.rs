//! `cargo xtask lines`: counts the lines of code of the crates that users compile.
//!
//! A line counts if it has a token that is not part of a comment. Modules are found from `lib.rs`
//! on, as the compiler finds them. Code for tests only doesn't count.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use proc_macro2::{TokenStream, TokenTree};
use quote::ToTokens;

use crate::direction::source;
use crate::runner::Output;
use crate::workspace::Libraries;

/// Lines by folder of `src`.
type Counts = BTreeMap<String, usize>;

/// Prints the lines of each crate and of its folders.
pub(crate) fn run() -> Result<(), String> {
    let output = Output::kept();
    let libraries = Libraries::find(&output)?;
    let table = libraries.all.iter().map(|library| {
        let folder = library.root.parent().unwrap_or(&library.root);
        let rust = count(&|file| fs::read_to_string(folder.join(file)).ok())?;
        let mut lua = 0;
        count_scripts(folder, &mut lua)?;
        Ok(rows(&library.package, &rust, lua))
    });
    print!("{}", table.collect::<Result<String, String>>()?);
    Ok(())
}

fn rows(package: &str, rust: &Counts, lua: usize) -> String {
    let row = |name: &str, lines: usize| format!("{name:24}{lines:7}\n");
    let mut text = row(package, rust.values().sum());
    if rust.len() > 1 {
        text.extend(rust.iter().map(|(place, lines)| row(&format!("  {place}"), *lines)));
    }
    if lua > 0 {
        text += &row(&format!("{package} (Lua)"), lua);
    }
    text
}

/// Counts the files of a crate, whose text `read` returns.
fn count(read: &dyn Fn(&str) -> Option<String>) -> Result<Counts, String> {
    let files: BTreeSet<_> = source::read("lib.rs", read)?.into_iter().map(|module| module.file).collect();
    let mut counts = Counts::new();
    for file in files {
        let mut lines = BTreeSet::new();
        mark(source::parse(&file, read)?.into_token_stream(), &mut lines);
        *counts.entry(place(&file)).or_default() += lines.len();
    }
    Ok(counts)
}

/// Collects the lines that have tokens.
fn mark(tokens: TokenStream, lines: &mut BTreeSet<usize>) {
    let mut tokens = tokens.into_iter().peekable();
    while let Some(token) = tokens.next() {
        let start = token.span().start();
        // A doc comment has become the attribute `#[doc = "…"]`, whose tokens are all where the
        // comment begins.
        if tokens
            .next_if(|next| matches!(token, TokenTree::Punct(_)) && next.span().start() == start)
            .is_some()
        {
            tokens.next_if(|next| next.span().start() == start);
            continue;
        }
        match token {
            TokenTree::Group(group) => {
                lines.extend([group.span_open().start().line, group.span_close().end().line]);
                mark(group.stream(), lines);
            }
            token => lines.extend(start.line..=token.span().end().line),
        }
    }
}

/// Returns the folder below `src` that a file is counted for.
fn place(file: &str) -> String {
    let folder = file.split_once('/').map_or("*.rs", |(folder, _)| folder);
    folder.to_owned()
}

/// Counts the lines of Lua below a folder.
fn count_scripts(folder: &Path, lines: &mut usize) -> Result<(), String> {
    let failed = |error: std::io::Error| format!("{}: {error}", folder.display());
    for entry in fs::read_dir(folder).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        if path.is_dir() {
            count_scripts(&path, lines)?;
        } else if path.extension().is_some_and(|end| end == "lua") {
            let text = fs::read_to_string(&path).map_err(failed)?;
            let is_code = |line: &&str| !line.trim().is_empty() && !line.trim().starts_with("--");
            *lines += text.lines().filter(is_code).count();
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_blank_lines_and_tests_do_not_count() {
        let folder = tempfile::tempdir().expect("a folder");
        let write = |path: &str, text: &str| {
            let path = folder.path().join(path);
            fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
            fs::write(path, text).expect("a file");
        };
        let root = "\
//! Said of the crate.
#![forbid(unsafe_code)]

/// Said of the module,
/// in two lines.
mod engine; // 2
/* not
   code */
#[cfg(test)]
mod tests;
#[cfg(all(test, unix))]
mod models {
    fn one() {}
}
#[cfg(not(test))]
mod inline { // 4
    /** Said. */ pub(super) fn two() {} // 5
    pub(super) mod more; // 6
} // 7
pub mod store; // 8
#[doc = \"an attribute\"] // 9
const TEXT: &str = \"first // 10

last\"; // 12
#[cfg(any(test, unix))] // 13
mod both {} // 14
";
        write("lib.rs", root);
        write("engine/mod.rs", "mod machine;\nmacro_rules! m {\n    // not code\n    () => {};\n}\n");
        write("engine/machine.rs", "#![allow(unused)]\nfn a() {\n\n}\n\n");
        write("inline/more.rs", "fn b() {}\n");
        write("store/mod.rs", "mod redis;\n");
        write("store/redis.rs", "mod scripts;\n");
        write("store/redis/scripts.rs", "#![cfg(test)]\nfn c() {}\n");
        write("store/redis/a.lua", "-- said\nlocal a = 1 -- one\n\n  -- said\nreturn a\n");
        write("store/redis/b.lua", "return 1\n");
        let counts = count(&|file| fs::read_to_string(folder.path().join(file)).ok()).expect("counts");
        let expected = [("*.rs", 14), ("engine", 7), ("inline", 1), ("store", 2)];
        assert_eq!(counts, expected.map(|(place, lines)| (place.to_owned(), lines)).into());
        let mut lua = 0;
        count_scripts(folder.path(), &mut lua).expect("counts");
        assert_eq!(lua, 3);
        let table = rows("lock", &counts, lua);
        assert!(table.starts_with("lock                         24\n  *.rs "), "{table}");
    }
}
