//! The part `prose` of the tests: comments and documents that can be read, and whose links work.
//!
//! Refuses comment lines of more than 100 columns, sentences of more than 30 words in documents and
//! doc comments, and links to files and headings that are not there. Lists sentences that begin
//! with a subject clause. Tables, examples and lone links may be as wide as they have to be.

use std::fs;
use std::path::{Path, PathBuf};

use crate::test::{Outcome, Step};

/// Maximum width of a comment line, in characters.
const WIDTH: usize = 100;
/// Maximum length of a sentence, in words.
const WORDS: usize = 30;
/// Folders without prose of the project: what is built, and what the compiler is to refuse.
const LEFT_OUT: [&str; 3] = ["target", "compile", ".git"];
/// The folder with the pages of the guide.
const GUIDE: &str = "docs/book/src";
/// Words that begin a subject clause.
const CLAUSES: [&str; 5] = ["Who", "What", "Whoever", "Whatever", "Whose"];

/// The findings.
#[derive(Debug, Default, PartialEq)]
struct Found {
    refused: Vec<String>,
    listed: Vec<String>,
}

pub(crate) fn check(step: &Step<'_>) -> Outcome {
    let (root, mut found) = (crate::root(), Found::default());
    if let Err(why) = read_folder(&root, &root, &mut found) {
        return Outcome::Failed(why);
    }
    found.refused.iter().chain(&found.listed).for_each(|line| step.output().line(line));
    match found.refused.len() {
        0 => Outcome::Ok,
        lines => Outcome::Failed(format!("{lines} places are hard to read, or have a broken link")),
    }
}

fn read_folder(root: &Path, folder: &Path, found: &mut Found) -> Result<(), String> {
    let failed = |error: std::io::Error| format!("{}: {error}", folder.display());
    for entry in fs::read_dir(folder).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if path.is_dir() {
            if !LEFT_OUT.contains(&&*name) {
                read_folder(root, &path, found)?;
            }
            continue;
        }
        let end = path.extension().unwrap_or_default().to_string_lossy().into_owned();
        if matches!(&*end, "rs" | "lua" | "md") {
            let text = fs::read_to_string(&path).map_err(failed)?;
            let place = path.strip_prefix(root).unwrap_or(&path).display().to_string();
            judge(&place, &end, &text, found);
            if end == "md" {
                judge_links(&path, &place, &text, found);
            }
        }
    }
    Ok(())
}

/// The sign of a comment line, and its text.
fn comment<'a>(line: &'a str, end: &str) -> Option<(&'static str, &'a str)> {
    let signs: &[&str] = match end {
        "md" => &[""],
        "lua" => &["--"],
        _ => &["///", "//!", "//"],
    };
    let line = if end == "md" { line } else { line.trim_start() };
    signs.iter().find_map(|sign| Some((*sign, line.strip_prefix(sign)?)))
}

fn judge(place: &str, end: &str, text: &str, found: &mut Found) {
    let (mut paragraph, mut begins, mut last, mut is_example) = (String::new(), 0, "", false);
    // A blank line at the end ends the last paragraph.
    for (number, line) in text.lines().chain([""]).enumerate().map(|(at, line)| (at + 1, line)) {
        let (sign, text) = comment(line, end).unwrap_or_default();
        let (prose, is_same) = (text.trim(), sign == last);
        let is_fence = prose.starts_with("```");
        let is_row = prose.starts_with('|');
        let is_item = ["- ", "* ", "1. "].iter().any(|item| prose.starts_with(item));
        let ends = prose.is_empty() || is_fence || is_row || is_item || prose.starts_with(['#', '<']);
        if (ends || !is_same) && !paragraph.is_empty() {
            judge_paragraph(place, begins, &std::mem::take(&mut paragraph), found);
        }
        is_example = if is_fence { !is_example } else { is_example && is_same };
        last = sign;
        if is_example || is_fence {
            continue;
        }
        let is_link = prose.contains("://") || !prose.contains(' ');
        let is_wide = line.chars().count() > WIDTH && !is_link && !is_row;
        if end != "md" && !sign.is_empty() && is_wide {
            found.refused.push(format!("{place}:{number}: a comment line of more than {WIDTH} columns"));
        }
        if is_row {
            prose.split('|').for_each(|cell| judge_paragraph(place, number, cell, found));
        } else if (end == "md" || matches!(sign, "///" | "//!")) && !prose.starts_with('#') {
            begins = if paragraph.is_empty() { number } else { begins };
            paragraph += prose.trim_start_matches(['-', '*']);
            paragraph += if prose.is_empty() { "" } else { " " };
        }
    }
}

fn judge_paragraph(place: &str, number: usize, text: &str, found: &mut Found) {
    for sentence in sentences(text) {
        let first = sentence.first().map_or("", |word| word.trim_matches(['*', '_', '"', '(']));
        let shown = || sentence.iter().take(8).copied().collect::<Vec<_>>().join(" ");
        if sentence.len() > WORDS {
            let words = sentence.len();
            found.refused.push(format!("{place}:{number}: a sentence of {words} words: {} …", shown()));
        }
        if CLAUSES.contains(&first) && !sentence.last().is_some_and(|word| word.ends_with('?')) {
            found.listed.push(format!("{place}:{number}: begins with a subject clause: {} …", shown()));
        }
    }
}

/// The words of each sentence. Code counts as one word, and the target of a link as none.
fn sentences(text: &str) -> Vec<Vec<&str>> {
    let (mut all, mut sentence, mut is_code) = (Vec::new(), Vec::new(), false);
    let mut words = text.split_whitespace().peekable();
    while let Some(word) = words.next() {
        let was_code = is_code;
        is_code ^= word.matches('`').count() % 2 == 1;
        if !was_code && word.contains(char::is_alphanumeric) {
            sentence.push(word);
        }
        let end = word.trim_end_matches([')', '*', '_', '"']).ends_with(['.', '!', '?']);
        let is_next = words.peek().is_none_or(|next| next.starts_with(|c: char| !c.is_lowercase()));
        if end && is_next && !is_code {
            all.push(std::mem::take(&mut sentence));
        }
    }
    all.push(sentence);
    all
}

/// Looks whether the files and headings are there to which a document links. A page of the guide
/// may link only to other pages of the guide, which are all there is beside its HTML.
fn judge_links(path: &Path, place: &str, text: &str, found: &mut Found) {
    let text = without_examples(text);
    let guide = path.ancestors().find(|folder| folder.ends_with(GUIDE));
    let guide = guide.map(|guide| guide.canonicalize().unwrap_or_else(|_| guide.to_owned()));
    let in_brackets = text.split("](").skip(1).filter_map(|rest| rest.split_once(')')).map(|(link, _)| link);
    let named =
        text.lines().filter_map(|line| line.strip_prefix('[')?.split_once("]: ")).map(|(_, link)| link);
    let in_html = ["href=\"", "src=\""].into_iter().flat_map(|before| text.split(before).skip(1));
    let in_html = in_html.filter_map(|rest| rest.split_once('"')).map(|(link, _)| link);
    for link in in_brackets.chain(named).chain(in_html) {
        // A title may follow.
        let link = link.split_whitespace().next().unwrap_or_default().trim_matches(['<', '>']);
        let (file, heading) = link.split_once('#').unwrap_or((link, ""));
        if link.contains("::") || link.contains("://") || link.starts_with("mailto:") {
            continue;
        }
        let folder = path.parent().unwrap_or(path);
        let target = if file.is_empty() { path.to_owned() } else { folder.join(file) };
        let headings =
            || fs::read_to_string(&target).is_ok_and(|text| has_heading(&without_examples(&text), heading));
        // mdBook makes no page of its summary.
        let is_page = |guide: &PathBuf| {
            !target.ends_with("SUMMARY.md")
                && target.canonicalize().is_ok_and(|target| target.starts_with(guide))
        };
        if !guide.as_ref().is_none_or(is_page) {
            found.refused.push(format!("{place}: a link to {link}, which is not in the guide"));
        } else if !target.exists() || !heading.is_empty() && !headings() {
            found.refused.push(format!("{place}: a link to {link}, which is not there"));
        }
    }
}

/// Leaves out the lines of examples.
fn without_examples(text: &str) -> String {
    let mut is_example = false;
    let is_prose = |line: &&str| {
        let is_fence = line.trim_start().starts_with("```");
        is_example ^= is_fence;
        !is_example && !is_fence
    };
    text.lines().filter(is_prose).map(|line| format!("{line}\n")).collect()
}

/// Whether a heading has this anchor: in lower case, with hyphens for spaces and without other
/// signs.
fn has_heading(text: &str, anchor: &str) -> bool {
    let anchor_of = |heading: &str| {
        let kept = heading.trim().to_lowercase().replace(' ', "-");
        kept.replace(|c: char| !c.is_alphanumeric() && c != '-' && c != '_', "")
    };
    text.lines()
        .filter(|line| line.starts_with('#'))
        .any(|line| anchor_of(line.trim_start_matches('#')) == anchor)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(end: &str, text: &str) -> Found {
        let mut found = Found::default();
        judge("f", end, text, &mut found);
        found
    }

    #[test]
    fn wide_comments_and_long_sentences_are_refused() {
        let wide = format!("    // {}\n", "word ".repeat(20));
        assert_eq!(judged("rs", &wide).refused, ["f:1: a comment line of more than 100 columns"]);
        let long =
            format!("//! One.\n//!\n//! {}end.\n", "word ".repeat(15) + "\n//! " + &"word ".repeat(15));
        assert_eq!(
            judged("rs", &long).refused,
            ["f:3: a sentence of 31 words: word word word word word word word word …"]
        );
        assert_eq!(judged("md", &long.replace("//! ", "")).refused.len(), 1);
    }

    #[test]
    fn examples_tables_and_short_sentences_are_not() {
        let long = "word ".repeat(31);
        for text in [
            format!("//! ```text\n//! {long}\n//! ```\n"),
            format!("//! | {} | {} |\n", "word ".repeat(20), "word ".repeat(20)),
            format!("//! {}.\n//! {}.\n", "Word ".repeat(15), "Word ".repeat(15)),
            format!("//! `{}` and `x`\n", "word ".repeat(15)),
            format!("let x = 1; // {long}"),
        ] {
            assert_eq!(judged("rs", &text), Found::default(), "{text}");
        }
    }

    #[test]
    fn subject_clauses_are_listed() {
        assert_eq!(judged("rs", "/// Who waits is told.").listed.len(), 1);
        assert_eq!(judged("rs", "/// Who has it?").listed.len(), 0);
    }

    #[test]
    fn pages_of_the_guide_link_to_each_other_only() {
        let folder = tempfile::tempdir().expect("a folder");
        let guide = folder.path().join(GUIDE);
        fs::create_dir_all(&guide).expect("a folder");
        let page = guide.join("page.md");
        for path in [page.clone(), guide.join("SUMMARY.md"), guide.join("../README.md")] {
            fs::write(path, "# Why\n").expect("it is written");
        }
        let mut found = Found::default();
        let good = "[a](page.md#why) [b](<page.md> \"title\") [c](mailto:a@b.c)\n```text\n[d](no.md)\n```\n";
        judge_links(&page, "p", good, &mut found);
        assert_eq!(found, Found::default());
        let bad = "[a](../README.md) [b](no.md) [c](page.md#no) [d](../README.md \"t\")\n[e]: ../README.md\n\
                   <a href=\"../README.md\"> [f](SUMMARY.md)";
        judge_links(&page, "p", bad, &mut found);
        assert_eq!(found.refused.len(), 7, "{found:?}");
    }

    #[test]
    fn anchors_are_those_of_headings() {
        assert!(has_heading("# Why *now*?\n", "why-now") && !has_heading("# Why\n", "now"));
    }
}
