//! `cargo xtask lines`: counts the lines of code of the crates that users compile.
//!
//! A line counts if a token stands on it that is not part of a comment. Modules are found from
//! `lib.rs` on, as the compiler finds them. Modules that only tests have don't count.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use proc_macro2::{TokenStream, TokenTree};
use syn::punctuated::Punctuated;
use syn::{Attribute, Item, Meta, Token};

use crate::runner::Output;
use crate::workspace::Libraries;

/// Lines by place. A place is a folder below `src`, or below `src/store`.
type Counts = BTreeMap<String, usize>;

/// Prints the lines of each crate and of its folders.
pub(crate) fn run() -> ExitCode {
    let output = Output::kept();
    let table = Libraries::find(&output).and_then(|libraries| {
        let rows = libraries.all.iter().map(|library| {
            let folder = library.root.parent().unwrap_or(&library.root);
            let (mut rust, mut lua) = (Counts::new(), 0);
            count_module(&library.root, folder, folder, &mut rust)?;
            count_scripts(folder, &mut lua)?;
            Ok(rows(&library.package, &rust, lua))
        });
        rows.collect::<Result<String, String>>()
    });
    match table {
        Ok(table) => {
            print!("{table}");
            ExitCode::SUCCESS
        }
        Err(why) => {
            eprintln!("error: {why}");
            ExitCode::FAILURE
        }
    }
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

/// Counts a file and the files of the modules in it, which are in `folder`.
fn count_module(file: &Path, folder: &Path, src: &Path, counts: &mut Counts) -> Result<(), String> {
    let text = fs::read_to_string(file).map_err(|error| format!("{}: {error}", file.display()))?;
    let parsed = syn::parse_file(&text).map_err(|error| format!("{}: {error}", file.display()))?;
    if parsed.attrs.iter().any(is_for_tests) {
        return Ok(());
    }
    let (mut lines, mut modules) = (BTreeSet::new(), Vec::new());
    for attr in parsed.attrs {
        mark(quote::quote!(#attr), &mut lines);
    }
    count_items(parsed.items, folder, &mut lines, &mut modules);
    *counts.entry(place(file, src)).or_default() += lines.len();
    for module in modules {
        let (as_file, as_folder) = (module.with_extension("rs"), module.join("mod.rs"));
        let file = if as_file.exists() { as_file } else { as_folder };
        count_module(&file, &module, src, counts)?;
    }
    Ok(())
}

/// Collects the lines of items, and the paths of modules that have files.
fn count_items(items: Vec<Item>, folder: &Path, lines: &mut BTreeSet<usize>, modules: &mut Vec<PathBuf>) {
    for item in items {
        let Item::Mod(mut module) = item else {
            mark(quote::quote!(#item), lines);
            continue;
        };
        if module.attrs.iter().any(is_for_tests) {
            continue;
        }
        let inner = folder.join(module.ident.to_string());
        match &mut module.content {
            None => modules.push(inner),
            Some((_, items)) => count_items(std::mem::take(items), &inner, lines, modules),
        }
        mark(quote::quote!(#module), lines);
    }
}

/// Collects the lines on which tokens stand.
fn mark(tokens: TokenStream, lines: &mut BTreeSet<usize>) {
    let mut tokens = tokens.into_iter().peekable();
    while let Some(token) = tokens.next() {
        let start = token.span().start();
        // A doc comment has become the attribute `#[doc = "…"]`. All its tokens stand where the
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

/// Whether an attribute limits its item to tests.
fn is_for_tests(attr: &Attribute) -> bool {
    attr.path().is_ident("cfg") && attr.parse_args::<Meta>().is_ok_and(|meta| needs_tests(&meta))
}

/// Whether a condition holds in tests only.
pub(crate) fn needs_tests(meta: &Meta) -> bool {
    let parts = |list: &syn::MetaList| {
        list.parse_args_with(Punctuated::<Meta, Token![,]>::parse_terminated).unwrap_or_default()
    };
    match meta {
        Meta::Path(path) => path.is_ident("test") || path.is_ident("doctest"),
        Meta::List(list) if list.path.is_ident("all") => parts(list).iter().any(needs_tests),
        Meta::List(list) if list.path.is_ident("any") => parts(list).iter().all(needs_tests),
        _ => false,
    }
}

/// Names the folder below `src` that a file is counted for.
fn place(file: &Path, src: &Path) -> String {
    let path = file.strip_prefix(src).unwrap_or(file);
    let folders: Vec<_> = path.parent().into_iter().flatten().map(|name| name.to_string_lossy()).collect();
    match folders.as_slice() {
        [] => "*.rs".to_owned(),
        [first, second, ..] if first == "store" => format!("{first}/{second}"),
        [first, ..] => first.to_string(),
    }
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
        let mut counts = Counts::new();
        count_module(&folder.path().join("lib.rs"), folder.path(), folder.path(), &mut counts)
            .expect("counts");
        let expected = [("*.rs", 14), ("engine", 7), ("inline", 1), ("store", 2)];
        assert_eq!(counts, expected.map(|(place, lines)| (place.to_owned(), lines)).into());
        let mut lua = 0;
        count_scripts(folder.path(), &mut lua).expect("counts");
        assert_eq!(lua, 3);
        let table = rows("lock", &counts, lua);
        assert!(table.starts_with("lock                         24\n  *.rs "), "{table}");
    }
}
