//! Durations as text: `"500ms"`, `"5s"`, `"1h 30m"`, read while the user's program is compiled.

use std::time::Duration;

/// The end of every error message about a duration.
const ACCEPTED: &str =
    "write whole numbers with the units `ms`, `s`, `m`, `h` or `d`, as in \"500ms\", \"5s\" or \"1h 30m\"";

/// Maximum duration: a longer one is a typing error, and the runtime refuses it as a lease.
pub(crate) const LONGEST: Duration = Duration::from_secs(366 * 24 * 60 * 60);

/// Parses a duration. The error says what is wrong and what to write.
pub(crate) fn parse(text: &str) -> Result<Duration, String> {
    let mut rest = text.trim();
    if rest.is_empty() {
        return Err(format!("the duration is empty; {ACCEPTED}"));
    }
    let mut total = Duration::ZERO;
    while !rest.is_empty() {
        let (part, after) = leading(rest)?;
        total = total.checked_add(part).filter(|total| *total <= LONGEST).ok_or_else(too_long)?;
        rest = after.trim_start();
    }
    Ok(total)
}

/// Splits off one number with its unit. Returns it, and the text after it.
fn leading(text: &str) -> Result<(Duration, &str), String> {
    let (digits, rest) = split(text, |c| c.is_ascii_digit());
    if digits.is_empty() {
        return Err(format!("`{text}` is not a duration; {ACCEPTED}"));
    }
    if rest.starts_with('.') {
        return Err(format!("`{text}` has a fraction; use a smaller unit: {ACCEPTED}"));
    }
    let (unit, rest) = split(rest.trim_start(), char::is_alphabetic);
    let millis_per_unit: u64 = match unit {
        "ms" => 1,
        "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        "" if rest.is_empty() => {
            return Err(format!("`{digits}` has no unit; write \"{digits}s\" for seconds; {ACCEPTED}"));
        }
        "" => return Err(format!("`{rest}` is not a unit; {ACCEPTED}")),
        unknown => return Err(format!("`{unknown}` is not a unit; {ACCEPTED}")),
    };
    let millis = digits.parse::<u64>().ok().and_then(|number| number.checked_mul(millis_per_unit));
    Ok((Duration::from_millis(millis.ok_or_else(too_long)?), rest))
}

fn split(text: &str, accept: impl Fn(char) -> bool) -> (&str, &str) {
    let end = text.find(|c| !accept(c)).unwrap_or(text.len());
    text.split_at(end)
}

fn too_long() -> String {
    "the duration is too long; the maximum is 366 days".to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_unit_and_their_sums_are_read() {
        for (text, millis) in [
            ("500ms", 500),
            ("5s", 5_000),
            ("2m", 120_000),
            ("1h", 3_600_000),
            ("1d", 86_400_000),
            ("366d", 31_622_400_000),
            ("1h30m", 5_400_000),
            (" 1h 30m 5 s ", 5_405_000),
            ("0s", 0),
            ("007s", 7_000),
        ] {
            assert_eq!(parse(text), Ok(Duration::from_millis(millis)), "{text:?}");
        }
    }

    #[test]
    fn mistakes_are_explained() {
        for (text, expected) in [
            ("", "empty"),
            ("  ", "empty"),
            ("30", "\"30s\""),
            ("1h 30", "no unit"),
            ("1.5s", "fraction"),
            ("5 sec", "`sec` is not a unit"),
            ("5S", "`S` is not a unit"),
            ("5µs", "`µs` is not a unit"),
            ("-5s", "not a duration"),
            ("s", "not a duration"),
            ("5,s", "not a unit"),
            ("99999999999999999999s", "too long"),
            ("18446744073709551615d", "too long"),
            ("18446744073709551615ms 1ms", "too long"),
            ("367d", "too long"),
            ("366d 1ms", "too long"),
        ] {
            let message = parse(text).unwrap_err();
            assert!(message.contains(expected), "{text:?}: {message}");
        }
    }

    #[test]
    fn no_text_makes_it_panic() {
        let alphabet =
            ["", "0", "9", "ms", "s", "d", " ", ".", "-", "ü", "½", "٣", "\u{0}", "99999999999999999999"];
        for a in alphabet {
            for b in alphabet {
                for c in alphabet {
                    for d in alphabet {
                        let _ = parse(&[a, b, c, d].concat());
                    }
                }
            }
        }
    }
}
