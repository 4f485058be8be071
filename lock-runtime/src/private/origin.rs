//! [`Origin`]: the source of a key that is not a template, and the check whether the key looks like
//! one.

use std::sync::atomic::{AtomicBool, Ordering};

use lock_core::internal::sync::catch_panics;
use lock_core::{IntoLockKey, InvalidKey, LockKey};

const CONSTANT: &str = "it has a placeholder, but comes from a constant, and only a text in quotes is a template; \
                        write the text itself into the attribute, as in `key = \"order:<id>\"`";

/// The source of a key that is not written as a text in quotes in the attribute.
#[derive(Debug, Clone, Copy)]
pub enum Origin {
    /// A constant. Its text is never data, so a placeholder in it is a mistake.
    Constant,
    /// An expression in the attribute of the named function. Its text may be data, so a placeholder
    /// in it is only logged, once; the flag is set then.
    Computed(&'static str, &'static AtomicBool),
}

impl Origin {
    /// Returns why `text` is refused, if it is. Logs a placeholder in a computed key.
    pub(super) fn problem(self, text: &str) -> Option<&'static str> {
        let placeholder = placeholder_in(text)?;
        match self {
            Self::Constant => Some(CONSTANT),
            Self::Computed(function, told) => {
                if !told.swap(true, Ordering::Relaxed) {
                    // The key is good even if the subscriber of the log panics.
                    catch_panics(|| {
                        tracing::warn!(
                            function,
                            "a key has the text `<{placeholder}>`, which is not replaced by a value: only a text in \
                             quotes is a template (logged once); write it as in `key = \"order:<id>\"`, or put the \
                             value in by `format!`"
                        );
                    });
                }
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

/// Checks a key that is not a template.
///
/// # Errors
///
/// [`InvalidKey`] when `key` is not valid, or is a constant with a placeholder in it.
pub fn untemplated(key: impl IntoLockKey, origin: Origin) -> Result<LockKey, InvalidKey> {
    match key.into_lock_key() {
        Ok(key) => origin.checked(key),
        Err(invalid) if matches!(origin, Origin::Computed(..)) => Err(invalid.of_value()),
        Err(invalid) => Err(invalid),
    }
}

/// Returns the content of the first `<…>` that would be a placeholder in a template, by the rule of
/// `lock-macros/src/template.rs`.
fn placeholder_in(text: &str) -> Option<&str> {
    let (closed, _) = text.rsplit_once('>')?;
    let opened = closed.split('>').filter_map(|piece| piece.rsplit_once('<'));
    opened.map(|(_, content)| content).find(|content| is_placeholder(content))
}

/// Whether `content` is a name, with fields and indices behind it.
fn is_placeholder(content: &str) -> bool {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let is_name = |text: &str| {
        let text = text.strip_prefix("r#").unwrap_or(text);
        text.starts_with(|c: char| c == '_' || c.is_alphabetic())
            && text.chars().all(|c| c == '_' || c.is_alphanumeric())
    };
    content.split('.').enumerate().all(|(at, step)| {
        let mut parts = step.split('[');
        let name = parts.next().unwrap_or_default();
        (is_name(name) || at > 0 && is_number(name))
            && parts.all(|index| index.strip_suffix(']').is_some_and(is_number))
    })
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
            ("job<a#2>", None),
            ("<a[>", None),
            ("<a.[0]>", None),
            ("<a[0]b>", None),
            ("<pair.0[1][2].x>", Some("pair.0[1][2].x")),
        ] {
            assert_eq!(placeholder_in(text), expected, "{text}");
        }
    }

    #[test]
    fn a_constant_with_a_placeholder_is_refused_and_a_computed_key_is_not() {
        static TOLD: AtomicBool = AtomicBool::new(false);
        let error = untemplated("order:<id>", Origin::Constant).unwrap_err();
        assert_eq!((error.text(), error.reason()), ("order:<id>", CONSTANT));
        assert!(untemplated("order", Origin::Constant).is_ok());
        let computed = Origin::Computed("place", &TOLD);
        assert!(untemplated("order", computed).is_ok() && !TOLD.load(Ordering::Relaxed));
        assert!(untemplated("order:<id>", computed).is_ok() && TOLD.load(Ordering::Relaxed));
    }
}
