//! [`KeyText`]: the key of an annotated function, built from literal text and the call's values.

use std::fmt::{self, Display, Write};

use lock_core::{IntoLockKey, InvalidKey, LockKey};

use super::origin::Origin;

const EMPTY: &str =
    "the value of the placeholder at its end is empty; two different things would share one lock";
const RESERVED: &str = "the value of the placeholder at its end has `{`, `}` or a control character; braces are \
                        hash tags and belong into the template";
const MISSING: &str = "the placeholder at its end names an item that does not exist";
const UNPRINTABLE: &str = "the `Display` of the placeholder at its end returned an error";

/// A value for a placeholder of a template: any type that is [`Display`].
#[diagnostic::on_unimplemented(
    message = "`{Self}` can't be put into a lock's key: it does not implement `Display`",
    label = "the value of this placeholder is of type `{Self}`",
    note = "name a part of it that does: `<value.field>`, or `<value.0>` of a newtype",
    note = "or compute the key, for an `Option<String>` as in \
            `key = format!(\"…:{{}}\", value.as_deref().unwrap_or(\"none\"))`"
)]
pub trait KeyValue {
    /// Adds the value's text.
    ///
    /// # Errors
    ///
    /// That of the value's `Display`.
    fn write_to(&self, text: &mut String) -> fmt::Result;
}

#[diagnostic::do_not_recommend]
impl<V: Display + ?Sized> KeyValue for V {
    fn write_to(&self, text: &mut String) -> fmt::Result {
        write!(text, "{self}")
    }
}

/// A key under construction.
///
/// Values go in as they are, so that a Java program can build the same key. A value that would
/// change the structure of the key is refused instead of escaped. After the first problem nothing
/// more is added, so that the text in the error ends in the placeholder to blame.
#[derive(Debug, Clone)]
pub struct KeyText {
    text: String,
    problem: Option<&'static str>,
    has_values: bool,
}

impl KeyText {
    /// Returns an empty text with room for `capacity` bytes.
    #[must_use]
    pub fn with_capacity(capacity: usize) -> Self {
        Self { text: String::with_capacity(capacity), problem: None, has_values: false }
    }

    /// Adds text of the template.
    #[must_use]
    pub fn text(mut self, text: &str) -> Self {
        if self.problem.is_none() {
            self.text.push_str(text);
        }
        self
    }

    /// Adds a prefix that is computed at run time. Unlike a value, it may have a hash tag.
    #[must_use]
    pub fn prefix<V: Display + ?Sized>(mut self, prefix: &V, origin: Origin) -> Self {
        if self.problem.is_none() {
            if write!(self.text, "{prefix}").is_err() {
                self.fail("<prefix>", UNPRINTABLE);
            } else {
                self.problem = origin.problem(&self.text);
            }
        }
        self
    }

    /// Adds a value where the template has `placeholder`.
    #[must_use]
    pub fn value<V: KeyValue + ?Sized>(mut self, placeholder: &'static str, value: &V) -> Self {
        if self.problem.is_none() {
            let start = self.text.len();
            let written = value.write_to(&mut self.text);
            self.has_values = true;
            self.check(start, placeholder, written);
        }
        self
    }

    /// Adds the value of a placeholder with an index; `find` returns `None` when the index is out
    /// of range.
    #[must_use]
    pub fn item<'v, V: KeyValue + ?Sized + 'v>(
        mut self,
        placeholder: &'static str,
        find: impl FnOnce() -> Option<&'v V>,
    ) -> Self {
        match find() {
            Some(value) => self.value(placeholder, value),
            None => {
                if self.problem.is_none() {
                    self.has_values = true;
                    self.fail(placeholder, MISSING);
                }
                self
            }
        }
    }

    /// Adds a whole key, which has to be valid by itself.
    ///
    /// # Errors
    ///
    /// [`InvalidKey`] when `key` is not valid, by itself or behind the text that was added before
    /// it.
    pub fn key(self, key: impl IntoLockKey) -> Result<LockKey, InvalidKey> {
        let key = key.into_lock_key()?;
        self.text(key.as_str()).into_lock_key()
    }

    fn check(&mut self, start: usize, placeholder: &'static str, written: fmt::Result) {
        let value = self.text.get(start..).unwrap_or_default();
        let problem = if written.is_err() {
            UNPRINTABLE
        } else if value.is_empty() {
            EMPTY
        } else if value.contains(|c: char| c == '{' || c == '}' || c.is_control()) {
            RESERVED
        } else {
            return;
        };
        // The error does not show the refused value, which may be long, or a user's input.
        self.text.truncate(start);
        self.fail(placeholder, problem);
    }

    fn fail(&mut self, placeholder: &'static str, problem: &'static str) {
        self.text.push_str(placeholder);
        self.problem = Some(problem);
    }
}

impl IntoLockKey for KeyText {
    fn into_lock_key(self) -> Result<LockKey, InvalidKey> {
        let key = match self.problem {
            Some(reason) => Err(InvalidKey::new(self.text, reason)),
            None => LockKey::new(self.text),
        };
        // The attribute has checked the template, so a value is too long, or has braces.
        let to_blame = self.has_values && self.problem != Some(UNPRINTABLE);
        key.map_err(|invalid| if to_blame { invalid.of_value() } else { invalid })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Broken;

    impl Display for Broken {
        fn fmt(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result {
            Err(fmt::Error)
        }
    }

    fn order(id: &str) -> Result<LockKey, InvalidKey> {
        KeyText::with_capacity(16).text("order:").value("<id>", id).text(":x").into_lock_key()
    }

    #[test]
    fn values_go_in_verbatim() {
        assert_eq!(order("42").unwrap().as_str(), "order:42:x");
        assert_eq!(order("a b:ü<>").unwrap().as_str(), "order:a b:ü<>:x");
    }

    #[test]
    fn the_error_of_a_refused_value_names_its_placeholder() {
        for bad in ["", "{", "a}b", "a\nb", "\0", "\u{85}"] {
            let error = order(bad).unwrap_err();
            assert_eq!(error.text(), "order:<id>", "{bad:?}");
        }
        let error = KeyText::with_capacity(0).value("<id>", &Broken).into_lock_key().unwrap_err();
        assert_eq!((error.text(), error.reason()), ("<id>", UNPRINTABLE));
    }

    #[test]
    fn the_first_problem_is_the_one_reported() {
        let error = KeyText::with_capacity(0).value("<a>", "").value("<b>", "{").text("c").into_lock_key();
        assert_eq!(error.unwrap_err().text(), "<a>");
    }

    #[test]
    fn an_item_that_is_not_there_is_an_invalid_key() {
        let items = ["a"];
        let first = KeyText::with_capacity(0).item("<items[0]>", || items.first()).into_lock_key();
        assert_eq!(first.unwrap().as_str(), "a");
        let second = KeyText::with_capacity(0).item("<items[1]>", || items.get(1)).into_lock_key();
        assert_eq!(second.unwrap_err().reason(), MISSING);
    }

    #[test]
    fn a_prefix_may_have_the_hash_tag_of_the_key() {
        let key = KeyText::with_capacity(0).prefix("{t1}:", Origin::Constant).key("order:1").unwrap();
        assert_eq!(key.as_str(), "{t1}:order:1");
        assert!(KeyText::with_capacity(0).prefix("{t1}:", Origin::Constant).key("{t2}").is_err());
        assert!(KeyText::with_capacity(0).prefix("p", Origin::Constant).key("").is_err());
    }
}
