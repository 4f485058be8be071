//! [`is_scheme`]: which part of a URL may be repeated in an error.

/// Whether `text` can be the scheme of a URL, and so may be repeated in an error. The text before a
/// `://` could otherwise be anything, even a password.
pub fn is_scheme(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'-' | b'.'))
}
