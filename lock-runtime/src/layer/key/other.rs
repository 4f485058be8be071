//! Extractors that do not read the client's input themselves: extensions and constants.

use std::fmt;
use std::marker::PhantomData;

use http::request::Parts;
use lock_core::{IntoLockKey, LockKey};

use super::{Found, IntoRequestKeys, KeyExtractor, RequestKeys};

/// A key that comes from an extension of the request; made by [`extension`].
pub struct ExtensionKey<T, F> {
    key: F,
    extension: PhantomData<fn(&T)>,
}

/// Returns a key that comes from a request extension that an outer layer inserted, such as the user
/// who has logged in. A request without the extension has no key.
///
/// ```
/// use lock_runtime::layer::key::extension;
///
/// #[derive(Clone)]
/// struct User {
///     id: u64,
/// }
///
/// let key = extension(|user: &User| format!("cart:{}", user.id));
/// ```
#[must_use]
pub fn extension<T, F, R>(key: F) -> ExtensionKey<T, F>
where
    T: Send + Sync + 'static,
    F: Fn(&T) -> R,
    R: IntoRequestKeys,
{
    ExtensionKey { key, extension: PhantomData }
}

impl<T, F, R> KeyExtractor for ExtensionKey<T, F>
where
    T: Send + Sync + 'static,
    F: Fn(&T) -> R,
    R: IntoRequestKeys,
{
    fn extract(&self, head: &mut Parts) -> Found {
        match head.extensions.get::<T>() {
            Some(extension) => (self.key)(extension).into_request_keys(),
            None => Ok(None),
        }
    }
}

impl<T, F: Clone> Clone for ExtensionKey<T, F> {
    fn clone(&self) -> Self {
        Self { key: self.key.clone(), extension: PhantomData }
    }
}

impl<T, F> fmt::Debug for ExtensionKey<T, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ExtensionKey<{}>", std::any::type_name::<T>())
    }
}

/// A key that is the same for all requests; made by [`constant`].
#[derive(Clone, Debug)]
pub struct ConstantKey(LockKey);

/// Returns the same key for all requests: one request at a time, across all processes.
///
/// # Panics
///
/// If the text is not a valid key.
#[must_use]
#[track_caller]
#[expect(clippy::panic, reason = "a mistake in the program, known when it starts")]
pub fn constant(key: impl IntoLockKey) -> ConstantKey {
    match key.into_lock_key() {
        Ok(key) => ConstantKey(key),
        Err(error) => panic!("a layer can't have this constant key: {error}"),
    }
}

impl KeyExtractor for ConstantKey {
    fn extract(&self, _: &mut Parts) -> Found {
        Ok(Some(RequestKeys::one(self.0.clone())))
    }
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::super::text;
    use super::*;

    /// The extension that another layer inserted is the key; a request without it has none.
    #[test]
    fn an_extension_is_the_key() {
        #[derive(Clone)]
        struct User(u64);
        let key = extension(|user: &User| format!("user:{}", user.0));
        assert_eq!(text(&key, Request::builder()), Ok(None));
        assert_eq!(text(&key.clone(), Request::builder().extension(User(7))), Ok(Some("user:7".into())));
        assert!(format!("{key:?}").contains("User"));
    }

    #[test]
    fn a_constant_is_the_key() {
        assert_eq!(text(&constant("report"), Request::builder()), Ok(Some("report".into())));
    }

    #[test]
    #[should_panic(expected = "constant key")]
    fn a_wrong_constant_is_told_at_once() {
        let _ = constant("{}");
    }
}
