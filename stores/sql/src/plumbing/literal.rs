//! Values as they stand in the text of a statement.

use super::database::Arg;
#[cfg(any(feature = "postgres", feature = "sqlite"))]
use super::written::{names_as_json, rows_as_json};

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
pub(crate) fn filled<'a>(
    statement: &str,
    args: &[Arg<'a>],
    mut literal: impl FnMut(&Arg<'a>) -> String,
) -> String {
    let mut pieces = statement.split('$');
    let mut filled = pieces.next().unwrap_or_default().to_owned();
    for piece in pieces {
        let rest = piece.trim_start_matches(|digit: char| digit.is_ascii_digit());
        let number: Option<usize> = piece.strip_suffix(rest).and_then(|number| number.parse().ok());
        let arg = number.and_then(|number| args.get(number.checked_sub(1)?));
        filled += &arg.map_or_else(|| "NULL".to_owned(), &mut literal);
        filled += rest;
    }
    filled
}

/// Returns a value as it stands in a statement of PostgreSQL or SQLite.
#[cfg(any(feature = "postgres", feature = "sqlite"))]
pub(crate) fn literal(arg: &Arg<'_>) -> String {
    match arg {
        Arg::Int(number) | Arg::Maybe(Some(number)) => format!("'{number}'::bigint"),
        Arg::Text(text) => quoted(text),
        Arg::Names(names) => quoted(&names_as_json(names)),
        Arg::Rows(rows) => quoted(&rows_as_json(rows)),
        Arg::Maybe(None) => "NULL".to_owned(),
    }
}

/// Returns a value as it stands in a statement of MySQL. Texts are their bytes, whatever `sql_mode`
/// and character set of the session are.
#[cfg(feature = "mysql")]
pub(crate) fn mysql_literal(arg: &Arg<'_>) -> String {
    match arg {
        Arg::Int(number) | Arg::Maybe(Some(number)) => number.to_string(),
        Arg::Text(text) => bytes(text),
        Arg::Names([]) | Arg::Maybe(None) => "NULL".to_owned(),
        Arg::Names(names) => names.iter().map(|name| bytes(name)).collect::<Vec<_>>().join(", "),
        Arg::Rows([]) => format!("SELECT {} FROM DUAL WHERE FALSE", columns(&["0"; 6].map(str::to_owned))),
        Arg::Rows(rows) => {
            let selects = rows.iter().map(|written| {
                let row = written.row;
                let numbers = [row.token, row.until, row.kept_until].map(|number| number.to_string());
                let [token, until, kept_until] = numbers;
                let [name, version, text] = [written.name, written.version, &row.text].map(bytes);
                format!("SELECT {}", columns(&[name, version, token, until, kept_until, text]))
            });
            selects.collect::<Vec<_>>().join(" UNION ALL ")
        }
    }
}

/// Returns the columns of a row to write.
#[cfg(feature = "mysql")]
fn columns(values: &[String; 6]) -> String {
    const NAMES: [&str; 6] = ["name", "version", "token", "until", "kept_until", "record"];
    let columns = values.iter().zip(NAMES).map(|(value, name)| format!("{value} AS {name}"));
    columns.collect::<Vec<_>>().join(", ")
}

#[cfg(feature = "mysql")]
fn bytes(text: &str) -> String {
    let mut literal = String::with_capacity(2 * text.len() + 3);
    literal += "X'";
    // A record may have 100 kB, for which a formatter takes ten times as long.
    let digits = text.bytes().flat_map(|byte| [byte >> 4, byte & 15]);
    literal.extend(digits.filter_map(|digit| char::from_digit(digit.into(), 16)));
    literal + "'"
}
