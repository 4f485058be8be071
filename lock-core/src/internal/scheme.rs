//! [`is_scheme`]: which part of a URL may be repeated in an error.

/// Whether `text` can be the scheme of a URL, and so may be repeated: anything may stand before a
/// `://`, a password, too.
pub fn is_scheme(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'-' | b'.'))
}
