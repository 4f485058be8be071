//! Values as they stand in the text of a statement.

use super::database::Arg;

/// Returns a text as it stands in a statement. With an `E`, backslashes are escapes in PostgreSQL,
/// whatever the settings of the session. SQLite gets no texts with backslashes in this way.
pub(crate) fn quoted(text: &str) -> String {
    let (escapes, text) = match text.contains('\\') {
        true => ("E", text.replace('\\', "\\\\")),
        false => ("", text.to_owned()),
    };
    format!("{escapes}'{}'", text.replace('\'', "''"))
}

/// Puts the arguments into a statement, whose `$` are all theirs, for a message that has none.
pub(crate) fn filled(statement: &str, args: &[Arg<'_>]) -> String {
    let mut pieces = statement.split('$');
    let mut filled = pieces.next().unwrap_or_default().to_owned();
    for piece in pieces {
        let rest = piece.trim_start_matches(|digit: char| digit.is_ascii_digit());
        let number: Option<usize> = piece.strip_suffix(rest).and_then(|number| number.parse().ok());
        let arg = number.and_then(|number| args.get(number.checked_sub(1)?));
        filled += &match arg {
            Some(Arg::Int(number) | Arg::Maybe(Some(number))) => format!("'{number}'::bigint"),
            Some(Arg::Text(text)) => quoted(text),
            Some(Arg::Maybe(None)) | None => "NULL".to_owned(),
        };
        filled += rest;
    }
    filled
}
