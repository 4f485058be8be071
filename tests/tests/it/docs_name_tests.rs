//! The tests that the documentation names exist.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("in a workspace").to_owned()
}

fn page(name: &str) -> String {
    let path = workspace().join("docs/book/src").join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Collects the Rust sources by their path without `.rs`, with `/` between the folders.
fn sources() -> BTreeMap<String, String> {
    fn collect(folder: &Path, root: &Path, found: &mut BTreeMap<String, String>) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                collect(&path, root, found);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let parts = path.strip_prefix(root).unwrap().with_extension("");
                let name: Vec<_> = parts.iter().map(|part| part.to_str().unwrap()).collect();
                found.insert(name.join("/"), std::fs::read_to_string(&path).unwrap());
            }
        }
    }
    let (root, mut found) = (workspace(), BTreeMap::new());
    for folder in [
        "lock-core/src",
        "lock-engine/src",
        "stores",
        "lock-runtime/src",
        "lock-runtime/tests",
        "lock-macros/src",
        "tests",
        "examples",
    ] {
        collect(&root.join(folder), &root, &mut found);
    }
    found
}

/// Whether the source has a function of this name.
fn has_test(source: &str, name: &str) -> bool {
    source.contains(&format!("fn {name}("))
}

/// Returns the texts in backticks.
fn quoted(cell: &str) -> Vec<&str> {
    cell.split('`').skip(1).step_by(2).collect()
}

/// Returns the cells of the rows of all tables with the header `head`.
fn rows<'a>(page: &'a str, head: &[&str]) -> Vec<Vec<&'a str>> {
    let cells =
        |line: &'a str| -> Vec<&'a str> { line.trim_matches('|').split('|').map(str::trim).collect() };
    let (mut inside, mut found) = (false, Vec::new());
    for line in page.lines() {
        if !line.starts_with('|') {
            inside = false;
        } else if cells(line) == head {
            inside = true;
        } else if inside && !line.starts_with("|---") {
            found.push(cells(line));
        }
    }
    found
}

/// Returns the tests, written `file::test`, that no file has.
fn missing<'a>(tests: &[&'a str], sources: &BTreeMap<String, String>) -> Vec<&'a str> {
    let exists = |test: &str| {
        let (file, name) = test.split_once("::").unwrap_or_else(|| panic!("no file: {test}"));
        let suffix = format!("/{file}");
        let mut files = sources.iter().filter(|(path, _)| path.ends_with(&suffix));
        files.any(|(_, source)| has_test(source, name))
    };
    tests.iter().copied().filter(|test| !exists(test)).collect()
}

#[test]
fn every_test_that_the_page_about_rivals_names_exists() {
    let (page, sources) = (page("rivals.md"), sources());
    let rows = rows(&page, &["seen elsewhere", "here", "test"]);
    assert!(rows.len() > 40, "{} rows", rows.len());
    let mut none = Vec::new();
    for row in rows {
        let [seen, _, tests] = row[..] else { panic!("not three cells: {row:?}") };
        let tests = quoted(tests);
        assert!(!tests.is_empty(), "no test: {seen}");
        none.extend(missing(&tests, &sources));
    }
    assert!(none.is_empty(), "{none:#?}");
}

#[test]
fn every_test_that_the_page_about_redissons_tests_names_exists() {
    let (page, sources) = (page("redisson-parity.md"), sources());
    let mut all = rows(&page, &["Redisson's test", "here"]);
    assert!(all.len() > 100, "{} rows", all.len());
    all.extend(rows(&page, &["gap", "here"]));
    let mut none = Vec::new();
    for row in all {
        let [theirs, ours] = row[..] else { panic!("not two cells: {row:?}") };
        let tests = quoted(ours);
        let reason = ours.starts_with("does not apply") || ours.starts_with("do not apply");
        assert!(!tests.is_empty() || reason, "neither a test nor a reason: {theirs}");
        none.extend(missing(&tests, &sources));
    }
    // Names of tests for semaphores and latches may stand without a file; any other text there is
    // prose.
    let mut counting = rows(&page, &["line", "Redisson's test", "here"]);
    counting.extend(rows(&page, &["failure of Redisson's", "here", "test"]));
    assert!(counting.len() > 50, "{} rows", counting.len());
    for name in counting.into_iter().flat_map(|row| quoted(row[2])) {
        let bare = name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_');
        let exists = sources.values().any(|source| has_test(source, name));
        none.extend((bare && !exists).then_some(name));
        if !bare && name.starts_with(|c: char| c.is_ascii_lowercase()) && name.contains("::") {
            none.extend(missing(&[name], &sources));
        }
    }
    assert!(none.is_empty(), "{none:#?}");
}

#[test]
fn every_test_that_the_guarantees_name_exists() {
    let (page, sources) = (page("guarantees.md"), sources());
    let rows = rows(&page, &["test", "file"]);
    assert!(rows.len() > 60, "{} rows", rows.len());
    let mut missing = Vec::new();
    for row in rows {
        let [tests, file] = row[..] else { panic!("not two cells: {row:?}") };
        missing.extend(missing_of(&sources, tests, file));
    }
    let more = self::rows(&page, &["what", "tests", "file"]);
    assert!(more.len() > 10, "{} rows", more.len());
    for row in more {
        let [_, tests, file] = row[..] else { panic!("not three cells: {row:?}") };
        // The file may be followed by how to run it for longer.
        let file = file.split(';').next().unwrap_or(file);
        missing.extend(missing_of(&sources, tests, file));
    }
    let requests = self::rows(&page, &["a request", "test"]);
    assert!(requests.len() > 10, "{} rows", requests.len());
    for tests in requests.into_iter().map(|row| quoted(row[1])) {
        assert!(!tests.is_empty());
        missing.extend(self::missing(&tests, &sources).into_iter().map(str::to_owned));
    }
    assert!(missing.is_empty(), "{missing:#?}");
}

#[test]
fn every_test_that_the_page_about_java_names_exists() {
    let (page, sources) = (page("interop.md"), sources());
    let rows = rows(&page, &["kind", "direction", "cluster", "Sentinel", "test", "file"]);
    assert!(rows.len() > 15, "{} rows", rows.len());
    let mut missing = Vec::new();
    for row in rows {
        let [_, _, _, _, tests, file] = row[..] else { panic!("not six cells: {row:?}") };
        missing.extend(missing_of(&sources, tests, file));
    }
    assert!(missing.is_empty(), "{missing:#?}");
}

/// Returns those of `tests` that are not in `file`, as `name in file`.
fn missing_of(sources: &BTreeMap<String, String>, tests: &str, file: &str) -> Vec<String> {
    let [place] = quoted(file)[..] else { panic!("not one file: {file}") };
    let path = match file.strip_prefix("conformance") {
        Some(_) => format!("stores/conformance/src/{place}"),
        None => place.trim_end_matches(".rs").to_owned(),
    };
    let source = sources.get(&path).unwrap_or_else(|| panic!("no such file: {path}.rs"));
    let tests = quoted(tests);
    assert!(!tests.is_empty(), "no test in {file}");
    let missing = tests.into_iter().filter(|name| !has_test(source, name));
    missing.map(|name| format!("{name} in {place}")).collect()
}

#[test]
fn a_name_that_is_none_is_noticed() {
    let source = "async fn a_lock(site: Site) {}\nfn a_lock_is_free() {}";
    assert!(has_test(source, "a_lock") && has_test(source, "a_lock_is_free"));
    assert!(!has_test(source, "a_lock_is") && !has_test(source, "lock"));
    let page = "| test | file |\n|---|---|\n| `a`, `b`: why | `c.rs` |\n\n| x | y |\n|---|---|\n| `d` | e |";
    assert_eq!(rows(page, &["test", "file"]), [["`a`, `b`: why", "`c.rs`"]]);
    assert_eq!(quoted("`a`, `b`: why"), ["a", "b"]);
}

/// Returns the Markdown files in a folder and below it.
fn documents(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(documents(&path));
        } else if path.extension().is_some_and(|extension| extension == "md") {
            found.push(path);
        }
    }
    found
}

/// mdBook leaves out pages that the summary does not name, and cargo compiles only what `lib.rs`
/// names.
#[test]
fn every_page_of_the_guide_is_in_its_summary_and_its_examples_are_compiled() {
    let guide = workspace().join("docs/book/src");
    let summary = page("SUMMARY.md");
    let library = std::fs::read_to_string(workspace().join("lock-runtime/src/lib.rs")).unwrap();
    let pages = documents(&guide);
    assert!(pages.len() > 20, "{} pages", pages.len());
    for path in pages {
        let name = path.strip_prefix(&guide).unwrap().display().to_string();
        let is_named = name == "SUMMARY.md" || summary.contains(&format!("({name})"));
        assert!(is_named, "{name} is not in SUMMARY.md");
        let is_compiled = library.contains(&format!("docs/book/src/{name}\""));
        let text = std::fs::read_to_string(&path).unwrap();
        // A program that is included whole is compiled where it is.
        let included = text.split("{{#include ").skip(1).filter_map(|rest| rest.split_once("}}"));
        for (program, _) in included {
            let program = path.with_file_name(program).canonicalize();
            let examples = workspace().join("examples").canonicalize().unwrap();
            assert!(program.is_ok_and(|program| program.starts_with(examples)), "{name}");
        }
        let has_code = text.replace("```rust\n{{#include", "").contains("```rust");
        assert!(is_compiled || !has_code, "{name} is not among the documents in lock-runtime/src/lib.rs");
    }
}

#[test]
fn no_page_has_the_marks_of_a_merge() {
    let in_root = std::fs::read_dir(workspace()).unwrap().map(|entry| entry.unwrap().path());
    let in_root = in_root.filter(|path| path.extension().is_some_and(|extension| extension == "md"));
    for path in documents(&workspace().join("docs")).into_iter().chain(in_root) {
        let page = std::fs::read_to_string(&path).unwrap();
        let marks = page.lines().find(|line| line.starts_with("<<<<<<<") || line.starts_with(">>>>>>>"));
        assert_eq!(marks, None, "{}", path.display());
    }
}
