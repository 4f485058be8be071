//! [`Origin`]: where a key comes from that is not a template, and what is said if it looks like
//! one.

use std::sync::Once;

use crate::key::{IntoLockKey, InvalidKey, LockKey};

const CONSTANT: &str = "it has a placeholder, but comes from a constant, and only a text in quotes is a template; \
                        write the text itself into the attribute, as in `key = \"order:<id>\"`";

/// Where a key comes from that the attribute does not see as a text in quotes.
#[derive(Debug, Clone, Copy)]
pub enum Origin {
    /// A constant. Its text is never data, so that a placeholder in it is a mistake.
    Constant,
    /// An expression in the attribute of this function. Its text may be data; the log says once
    /// what it looks like.
    Computed(&'static str, &'static Once),
}

impl Origin {
    /// Says why `text` is refused, if it is.
    pub(super) fn problem(self, text: &str) -> Option<&'static str> {
        let placeholder = placeholder_in(text)?;
        match self {
            Self::Constant => Some(CONSTANT),
            Self::Computed(function, once) => {
                once.call_once(|| {
                    tracing::warn!(
                        function,
                        "a key has the text `<{placeholder}>`, which is not replaced by a value: only a text in quotes \
                         is a template (said once); write it as in `key = \"order:<id>\"`, or put the value in by \
                         `format!`"
                    );
                });
                None
            }
        }
    }

    pub(super) fn checked(self, key: LockKey) -> Result<LockKey, InvalidKey> {
        match self.problem(key.as_str()) {
            None => Ok(key),
            Some(reason) => Err(InvalidKey::new(key.as_str(), reason)),
        }
    }
}

/// A key that is not a template.
///
/// # Errors
///
/// [`InvalidKey`] when `key` is none, or is a constant with a placeholder in it.
pub fn untemplated(key: impl IntoLockKey, origin: Origin) -> Result<LockKey, InvalidKey> {
    origin.checked(key.into_lock_key()?)
}

/// What stands between the first `<` and `>` that would be a placeholder in a template.
fn placeholder_in(text: &str) -> Option<&str> {
    let (closed, _) = text.rsplit_once('>')?;
    let in_path = |c: char| c.is_alphanumeric() || matches!(c, '_' | '.' | '[' | ']' | '#');
    let is_placeholder = |content: &&str| {
        content.starts_with(|c: char| c == '_' || c.is_alphabetic()) && content.chars().all(in_path)
    };
    let opened = closed.split('>').filter_map(|piece| piece.rsplit_once('<'));
    opened.map(|(_, content)| content).find(is_placeholder)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_placeholder_is_told_from_other_brackets() {
        for (text, expected) in [
            ("order:<id>", Some("id")),
            ("a<b:<order.lines[0].sku>>", Some("order.lines[0].sku")),
            ("a>b<<r#type>", Some("r#type")),
            ("order:42", None),
            ("a<b", None),
            ("a->b", None),
            ("<a b>", None),
            ("<>", None),
            ("<1>", None),
            ("<a@b.org>", None),
        ] {
            assert_eq!(placeholder_in(text), expected, "{text}");
        }
    }

    #[test]
    fn a_constant_with_a_placeholder_is_refused_and_a_computed_key_is_not() {
        static ONCE: Once = Once::new();
        let error = untemplated("order:<id>", Origin::Constant).unwrap_err();
        assert_eq!((error.text(), error.reason()), ("order:<id>", CONSTANT));
        assert!(untemplated("order", Origin::Constant).is_ok());
        let computed = Origin::Computed("place", &ONCE);
        assert!(untemplated("order", computed).is_ok() && !ONCE.is_completed());
        assert!(untemplated("order:<id>", computed).is_ok() && ONCE.is_completed());
    }
}
