//! [`nearest`]: finds the name that a misspelt one was meant to be.

/// Returns the candidate that differs from `name` in the fewest letters, if these are a third of
/// them at most.
pub(crate) fn nearest<'c>(name: &str, candidates: impl IntoIterator<Item = &'c str>) -> Option<&'c str> {
    let length = name.chars().count();
    let measured = candidates.into_iter().map(|candidate| (distance(name, candidate), candidate));
    let (distance, candidate) = measured.min_by_key(|(distance, _)| *distance)?;
    (distance < length && distance <= length.max(3) / 3).then_some(candidate)
}

/// Returns the same as the end of an error message; an empty text if no candidate is near.
pub(crate) fn did_you_mean<'c>(name: &str, candidates: impl IntoIterator<Item = &'c str>) -> String {
    nearest(name, candidates).map_or_else(String::new, |meant| format!("; did you mean `{meant}`?"))
}

/// Returns the number of letters that are missing, too many, wrong, or swapped with the next one.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let at = |row: &[usize], column: usize| row.get(column).copied().unwrap_or(usize::MAX / 2);
    let mut before = Vec::new();
    let mut above: Vec<usize> = (0..=b.len()).collect();
    let mut last = None;
    for (line, letter) in a.chars().enumerate() {
        let mut row = vec![line + 1];
        let mut last_other = None;
        for (column, &other) in b.iter().enumerate() {
            let wrong = at(&above, column) + usize::from(letter != other);
            let missing = at(&row, column).min(at(&above, column + 1)) + 1;
            let swapped = last == Some(other) && last_other == Some(letter);
            let swap = if swapped { at(&before, column.wrapping_sub(1)) + 1 } else { usize::MAX };
            row.push(wrong.min(missing).min(swap));
            last_other = Some(other);
        }
        before = std::mem::replace(&mut above, row);
        last = Some(letter);
    }
    at(&above, b.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_letter_missing_added_wrong_or_swapped_counts_one() {
        for (a, b, expected) in [
            ("wait", "wait", 0),
            ("wiat", "wait", 1),
            ("waits", "wait", 1),
            ("kin", "kind", 1),
            ("reed", "read", 1),
            ("leese", "lease", 1),
            ("tiaw", "wait", 3),
            ("", "key", 3),
            ("kéy", "key", 1),
        ] {
            assert_eq!(distance(a, b), expected, "{a} {b}");
            assert_eq!(distance(b, a), expected, "{b} {a}");
        }
    }

    #[test]
    fn only_what_is_near_is_proposed() {
        let options = ["key", "keys", "wait", "lease", "id"];
        assert_eq!(nearest("wiat", options), Some("wait"));
        assert_eq!(nearest("kys", options), Some("keys"));
        for far in ["", "x", "xy", "colour", "wa"] {
            assert_eq!(nearest(far, options), None, "{far}");
        }
        assert_eq!(nearest("a", []), None);
    }
}
