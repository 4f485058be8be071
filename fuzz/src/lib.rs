//! Properties that hold for every input. The fuzz targets call them, and so does
//! `tests/tests/it/fuzz_seeds.rs` in the workspace above, which includes this file. The two parsers
//! are included by path because `lock-macros` is a procedural macro and can't be linked.

use std::time::Duration;

use lock_runtime::{LockKey, fuzzing};

#[allow(dead_code)]
#[path = "../../lock-macros/src/duration.rs"]
mod duration;
#[allow(dead_code)]
#[path = "../../lock-macros/src/template.rs"]
mod template;

use template::Piece;

/// Text put in the place of a secret.
const MARK: &str = "m4rk";

/// Checks that an accepted template prints back to itself, and that its braces are valid exactly
/// when those of its keys are.
pub fn key_template(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    assert!(template::braced(text).all(|content| !content.contains('}')), "{text:?}");
    let pieces = match template::parse(text) {
        Ok(pieces) => pieces,
        Err(problems) => return assert!(problems.iter().any(|problem| problem.contains('<')), "{text:?}"),
    };
    let (mut printed, mut outline) = (String::new(), String::new());
    for piece in &pieces {
        match piece {
            Piece::Text(text) => {
                assert!(!text.is_empty());
                printed.push_str(&text.replace('<', "<<"));
                outline.push_str(text);
            }
            Piece::Value(placeholder) => {
                assert!(placeholder.text.contains(&placeholder.root), "{placeholder:?}");
                printed.push_str(&placeholder.text);
                outline.push('v');
            }
        }
    }
    assert_eq!(printed, text);
    if !outline.is_empty() && !outline.contains(char::is_control) && outline.len() <= LockKey::LONGEST {
        assert_eq!(template::check_braces(&pieces).is_ok(), LockKey::new(&outline).is_ok(), "{text:?}");
    }
}

/// Checks that an accepted duration is within bounds, and reads the same when written in
/// milliseconds.
pub fn duration(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    match duration::parse(text) {
        Ok(read) => {
            assert!(read <= duration::LONGEST, "{text:?}: {read:?}");
            let millis = read.as_millis();
            assert_eq!(duration::parse(&format!("{millis}ms")), Ok(read), "{text:?}");
            let millis = u64::try_from(millis).unwrap_or(u64::MAX);
            assert_eq!(Duration::from_millis(millis), read, "{text:?} has a part of a millisecond");
        }
        Err(reason) => assert!(!reason.is_empty(), "{text:?}"),
    }
}

/// Checks that no error and no redacted URL shows the text between `:` and `@`, or behind a `?`.
pub fn url(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let _ = fuzzing::url(text);
    let Some((scheme, rest)) = text.split_once("://").filter(|_| !text.contains(MARK)) else { return };
    if let Some((user, behind)) = rest.rsplit_once('@')
        && let Some((user, _)) = user.split_once(':')
    {
        hidden(&format!("{scheme}://{user}:{MARK}@{behind}"));
    }
    if rest.contains('?') && !rest.contains('|') {
        hidden(&format!("{text}{MARK}"));
        hidden(&format!("{text}&option={MARK}"));
    }
}

fn hidden(url: &str) {
    if let Err(error) = fuzzing::url(url) {
        assert!(!format!("{error} {error:?}").contains(MARK), "{url:?}: {error}");
    }
    let shown = fuzzing::redacted(url);
    assert!(!shown.contains(MARK), "{url:?}: {shown}");
}

/// Checks that a reply is decoded as what it is, see [`fuzzing::reply`].
pub fn reply(data: &[u8]) {
    let _ = fuzzing::reply(data);
    if let Ok(text) = std::str::from_utf8(data) {
        fuzzing::reply_text(text);
    }
}
