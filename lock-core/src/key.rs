//! [`LockKey`]: the name of a lock, checked once.

use std::fmt;
use std::sync::Arc;

/// The name of a lock, checked when it is made.
///
/// A key is not empty, is at most [4096 bytes](Self::LONGEST) long and has no control characters.
/// Braces are Redis hash tags: a key has either none or exactly one `{tag}` with content.
///
/// Redisson looks for the mere character `{` when it derives channel and counter names; Redis
/// Cluster looks for a complete tag. A key on which the two disagree would end up in several slots,
/// so it is refused.
///
/// ```
/// # use lock_core::LockKey;
///
/// assert!(LockKey::new("order:42").is_ok());
/// assert!(LockKey::new("{tenant-7}:order:42").is_ok());
/// assert!(LockKey::new("a{b").is_err());
/// assert!(LockKey::new("").is_err());
/// ```
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LockKey(Arc<str>);

/// Why a text is not a [`LockKey`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("invalid lock key {text:?}: {reason}")]
pub struct InvalidKey {
    text: String,
    reason: &'static str,
    of_value: bool,
}

impl InvalidKey {
    /// Blames the value of an argument rather than the template around it.
    #[doc(hidden)]
    pub fn of_value(self) -> Self {
        Self { of_value: true, ..self }
    }
    #[doc(hidden)]
    pub fn is_of_value(&self) -> bool {
        self.of_value
    }

    #[doc(hidden)]
    pub fn new(text: impl Into<String>, reason: &'static str) -> Self {
        let mut text = text.into();
        if text.len() > 200 {
            let cut = (0..=200).rev().find(|&i| text.is_char_boundary(i)).unwrap_or(0);
            text.truncate(cut);
            text.push('…');
        }
        Self { text, reason, of_value: false }
    }

    /// Returns the refused text, cut to 200 bytes.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Returns what is wrong with the text, and what to do about it.
    #[must_use]
    pub fn reason(&self) -> &'static str {
        self.reason
    }
}

impl LockKey {
    /// Maximum length of a key in bytes, without the manager's prefix. Redis would take half a
    /// gigabyte, but every command and every message repeats the name.
    pub const LONGEST: usize = 4096;

    /// Checks `text` and makes a key of it.
    ///
    /// # Errors
    ///
    /// [`InvalidKey`] when `text` is empty or too long, has a control character, or has braces that
    /// are not one hash tag.
    pub fn new(text: impl AsRef<str>) -> Result<Self, InvalidKey> {
        let text = text.as_ref();
        match Self::problem(text) {
            None => Ok(Self(Arc::from(text))),
            Some(reason) => Err(InvalidKey::new(text, reason)),
        }
    }

    /// Checks and joins several pieces, as [`new`](Self::new) does one. Short keys are assembled on
    /// the stack.
    #[doc(hidden)]
    pub fn joined(pieces: &[&str]) -> Result<Self, InvalidKey> {
        let mut text = smallvec::SmallVec::<[u8; 128]>::new();
        pieces.iter().for_each(|piece| text.extend_from_slice(piece.as_bytes()));
        match std::str::from_utf8(&text) {
            Ok(text) => Self::new(text),
            Err(_) => Self::new(pieces.concat()),
        }
    }

    /// Returns the key's text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns `prefix` and the key as one text.
    #[doc(hidden)]
    #[must_use]
    pub fn prefixed(&self, prefix: &str) -> Arc<str> {
        if prefix.is_empty() {
            return Arc::clone(&self.0);
        }
        let mut text = smallvec::SmallVec::<[u8; 128]>::new();
        [prefix, self.as_str()].iter().for_each(|piece| text.extend_from_slice(piece.as_bytes()));
        std::str::from_utf8(&text).map_or_else(|_| Arc::from([prefix, self.as_str()].concat()), Arc::from)
    }

    /// Whether `text` is printable ASCII without braces, so that only its length can make it an
    /// invalid key.
    #[doc(hidden)]
    pub fn is_plain(text: &str) -> bool {
        text.bytes().all(|byte| matches!(byte, b' '..=b'~') && !matches!(byte, b'{' | b'}'))
    }

    /// Checks `text` as [`new`](Self::new) does, except for its length.
    #[doc(hidden)]
    pub fn check_text(text: &str) -> Result<(), InvalidKey> {
        Self::bad_text(text).map_or(Ok(()), |reason| Err(InvalidKey::new(text, reason)))
    }

    fn problem(text: &str) -> Option<&'static str> {
        match text.len() {
            0 => Some("it is empty; give the lock a name"),
            1..=Self::LONGEST => Self::bad_text(text),
            _ => Some("it is longer than 4096 bytes; use a shorter name, or a hash of it"),
        }
    }

    fn bad_text(text: &str) -> Option<&'static str> {
        // Fast path: most keys are plain, and a key is checked for each request.
        if Self::is_plain(text) {
            return None;
        }
        if text.chars().any(char::is_control) {
            return Some("it has a control character; keys are printable text");
        }
        let opening = text.matches('{').count();
        let closing = text.matches('}').count();
        match (opening, closing) {
            (0, 0) => None,
            (1, 1) => match (text.find('{'), text.find('}')) {
                (Some(open), Some(close)) if close > open + 1 => None,
                (Some(open), Some(close)) if close == open + 1 => Some(
                    "its hash tag `{}` is empty; put the text that decides the cluster slot between the braces",
                ),
                _ => Some("its braces are not a hash tag; write one `{tag}` or no braces at all"),
            },
            _ => Some("its braces are not one hash tag; write one `{tag}` or no braces at all"),
        }
    }
}

impl fmt::Display for LockKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for LockKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&*self.0, f)
    }
}

impl AsRef<str> for LockKey {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

/// Anything that the methods of `LockManager` accept as a key: a [`LockKey`], or a text that is
/// checked when the lock is requested.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a lock key",
    label = "expected a `LockKey`, `&str` or `String`",
    note = "build the text first: `format!(\"order:{{id}}\")`"
)]
pub trait IntoLockKey {
    /// Converts the value into a key.
    ///
    /// # Errors
    ///
    /// [`InvalidKey`], as from [`LockKey::new`].
    fn into_lock_key(self) -> Result<LockKey, InvalidKey>;
}

impl IntoLockKey for LockKey {
    fn into_lock_key(self) -> Result<LockKey, InvalidKey> {
        Ok(self)
    }
}

impl IntoLockKey for &LockKey {
    fn into_lock_key(self) -> Result<LockKey, InvalidKey> {
        Ok(self.clone())
    }
}

impl IntoLockKey for &str {
    fn into_lock_key(self) -> Result<LockKey, InvalidKey> {
        LockKey::new(self)
    }
}

impl IntoLockKey for &&str {
    fn into_lock_key(self) -> Result<LockKey, InvalidKey> {
        LockKey::new(self)
    }
}

impl IntoLockKey for String {
    fn into_lock_key(self) -> Result<LockKey, InvalidKey> {
        LockKey::new(self)
    }
}

impl IntoLockKey for &String {
    fn into_lock_key(self) -> Result<LockKey, InvalidKey> {
        LockKey::new(self)
    }
}

impl<K: IntoLockKey, E: Into<InvalidKey>> IntoLockKey for Result<K, E> {
    fn into_lock_key(self) -> Result<LockKey, InvalidKey> {
        self.map_err(Into::into)?.into_lock_key()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn braces_are_one_hash_tag_or_nothing() {
        for good in ["a", "{a}", "x{a}y", "über:1", "a b", "a:b:c"] {
            assert!(LockKey::new(good).is_ok(), "{good}");
        }
        for bad in ["", "a{b", "a}b", "{}x", "x}{y", "{a}{b}", "{{a}}", "a\nb", "a\0"] {
            assert!(LockKey::new(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_long_refused_text_is_cut_in_the_error() {
        let error = LockKey::new(format!("{}\n", "ä".repeat(500))).unwrap_err();
        assert!(error.text().len() <= 204);
    }
}
