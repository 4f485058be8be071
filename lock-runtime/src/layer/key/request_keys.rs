//! [`RequestKeys`]: the keys of one request, and the types that convert into them.

use lock_core::{IntoLockKey, LockKey};

use crate::kinds::MOST_KEYS;
use crate::layer::refusal::Rejection;

/// The result of an extractor.
pub(super) type Found = Result<Option<RequestKeys>, Rejection>;

/// The key of a request, or its keys, which are taken all or nothing.
///
/// It contains at least one key. A request without a key is `Option::None`; the layer's policy for
/// a missing key then decides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestKeys(Keys);

/// The keys that the layer passes to the manager.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::layer) enum Keys {
    One(LockKey),
    /// Two or more keys, in the order in which they were given; the manager sorts them.
    Several(Vec<LockKey>),
}

impl RequestKeys {
    /// Returns a request's only key.
    #[must_use]
    pub fn one(key: LockKey) -> Self {
        Self(Keys::One(key))
    }

    /// Returns all of these keys, or `None` if there are none. Their order does not matter, and
    /// duplicates are taken once.
    ///
    /// ```
    /// use lock_runtime::layer::RequestKeys;
    ///
    /// // A transfer locks both accounts.
    /// let keys = RequestKeys::several(["account:1", "account:2"]);
    /// assert!(keys.unwrap().is_some());
    /// ```
    ///
    /// # Errors
    ///
    /// Returns a [`Rejection`] if one of them is not a valid key, or if there are more than 1000.
    pub fn several<K: IntoLockKey>(keys: impl IntoIterator<Item = K>) -> Result<Option<Self>, Rejection> {
        let mut keys = keys.into_iter();
        let Some(first) = keys.next() else { return Ok(None) };
        let first = first.into_lock_key()?;
        let Some(second) = keys.next() else { return Ok(Some(Self::one(first))) };
        let mut all = vec![first, second.into_lock_key()?];
        for key in keys {
            if all.len() == MOST_KEYS {
                return Err(Rejection::new(format!(
                    "This request needs more than {MOST_KEYS} locks at once; send it in parts."
                )));
            }
            all.push(key.into_lock_key()?);
        }
        Ok(Some(Self(Keys::Several(all))))
    }

    pub(in crate::layer) fn into_inner(self) -> Keys {
        self.0
    }
}

impl From<LockKey> for RequestKeys {
    fn from(key: LockKey) -> Self {
        Self::one(key)
    }
}

/// The types that a closure may return as the keys of a request.
///
/// | type | |
/// |---|---|
/// | [`LockKey`], `String`, `&str` | one key; a text is validated, and refused with 400 if it is not a valid key |
/// | `Vec<LockKey>`, `Vec<String>`, arrays of those | several keys, which are taken all or nothing; an empty list is like `None` |
/// | [`RequestKeys`] | one or several |
/// | `Option` of any of these | `None`: the layer's policy for a missing key decides |
/// | `Result` of any of these, with [`Rejection`] or [`InvalidKey`](crate::InvalidKey) | `Err`: the request is refused |
///
/// A text has to be owned or `'static`: a closure can't return a borrow from the request.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not the key of a request",
    label = "expected a `LockKey`, `String`, `RequestKeys`, a `Vec` of keys, or an `Option` or `Result` of one of them",
    note = "build a text first, with a prefix that says what it is: `format!(\"order:{{id}}\")`",
    note = "a future is not a key: for a key that has to be awaited, see `AsyncKeyExtractor`"
)]
pub trait IntoRequestKeys {
    /// Returns the keys, or `None` if the request has none.
    ///
    /// # Errors
    ///
    /// Returns a [`Rejection`] as [`KeyExtractor::extract`](super::KeyExtractor::extract) does.
    fn into_request_keys(self) -> Result<Option<RequestKeys>, Rejection>;
}

impl IntoRequestKeys for RequestKeys {
    fn into_request_keys(self) -> Result<Option<RequestKeys>, Rejection> {
        Ok(Some(self))
    }
}

impl IntoRequestKeys for LockKey {
    fn into_request_keys(self) -> Result<Option<RequestKeys>, Rejection> {
        Ok(Some(RequestKeys::one(self)))
    }
}

impl IntoRequestKeys for String {
    fn into_request_keys(self) -> Result<Option<RequestKeys>, Rejection> {
        LockKey::new(self)?.into_request_keys()
    }
}

impl IntoRequestKeys for &str {
    fn into_request_keys(self) -> Result<Option<RequestKeys>, Rejection> {
        LockKey::new(self)?.into_request_keys()
    }
}

impl<K: IntoLockKey> IntoRequestKeys for Vec<K> {
    fn into_request_keys(self) -> Result<Option<RequestKeys>, Rejection> {
        RequestKeys::several(self)
    }
}

impl<K: IntoLockKey, const N: usize> IntoRequestKeys for [K; N] {
    fn into_request_keys(self) -> Result<Option<RequestKeys>, Rejection> {
        RequestKeys::several(self)
    }
}

impl<K: IntoRequestKeys> IntoRequestKeys for Option<K> {
    fn into_request_keys(self) -> Result<Option<RequestKeys>, Rejection> {
        self.map_or(Ok(None), K::into_request_keys)
    }
}

impl<K: IntoRequestKeys, E: Into<Rejection>> IntoRequestKeys for Result<K, E> {
    fn into_request_keys(self) -> Result<Option<RequestKeys>, Rejection> {
        self.map_err(Into::into)?.into_request_keys()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(text: &str) -> Result<Option<RequestKeys>, Rejection> {
        Ok(Some(RequestKeys::one(LockKey::new(text).unwrap())))
    }

    fn texts(keys: Result<Option<RequestKeys>, Rejection>) -> Vec<String> {
        match keys.unwrap().unwrap().into_inner() {
            Keys::One(key) => vec![key.to_string()],
            Keys::Several(keys) => keys.iter().map(ToString::to_string).collect(),
        }
    }

    /// The types that a closure may return for one key.
    #[test]
    fn texts_and_keys_are_one_key() {
        let key = LockKey::new("a").unwrap();
        assert_eq!("a".into_request_keys(), one("a"));
        assert_eq!("a".to_owned().into_request_keys(), one("a"));
        assert_eq!(key.clone().into_request_keys(), one("a"));
        assert_eq!(RequestKeys::from(key).into_request_keys(), one("a"));
        assert_eq!(LockKey::new("a").into_request_keys(), one("a"));
        assert_eq!(Some("a").into_request_keys(), one("a"));
        assert_eq!(Ok::<_, Rejection>(Some("a")).into_request_keys(), one("a"));
    }

    /// The types that a closure may return for several keys.
    #[test]
    fn lists_are_several_keys() {
        assert_eq!(texts(vec!["b".to_owned(), "a".to_owned()].into_request_keys()), ["b", "a"]);
        assert_eq!(texts(["a", "b"].into_request_keys()), ["a", "b"]);
        assert_eq!(texts(Some(vec![LockKey::new("a").unwrap()]).into_request_keys()), ["a"]);
        assert!(matches!(vec!["a"].into_request_keys().unwrap().unwrap().into_inner(), Keys::One(_)));
    }

    /// Every form of "no key" is `None`.
    #[test]
    fn no_key_is_none() {
        assert_eq!(None::<String>.into_request_keys(), Ok(None));
        assert_eq!(Vec::<String>::new().into_request_keys(), Ok(None));
        assert_eq!(Ok::<_, Rejection>(None::<LockKey>).into_request_keys(), Ok(None));
        assert_eq!(RequestKeys::several(Vec::<LockKey>::new()), Ok(None));
    }

    /// A bad key is the client's mistake, and its text is not in the refusal.
    #[test]
    fn a_bad_key_is_refused_without_its_text() {
        for bad in [
            "s3cret\n".into_request_keys(),
            LockKey::new("s3cret{").into_request_keys(),
            vec!["a", "s3cret{"].into_request_keys(),
        ] {
            let rejection = bad.unwrap_err();
            assert_eq!(rejection.status(), 400);
            assert!(!rejection.detail().contains("s3cret"), "{rejection}");
        }
    }

    /// A list whose length a client controls has a maximum length.
    #[test]
    fn too_many_keys_are_refused() {
        let keys = |n: usize| (0..n).map(|i| format!("k{i}")).collect::<Vec<_>>();
        assert_eq!(texts(keys(MOST_KEYS).into_request_keys()).len(), MOST_KEYS);
        assert_eq!(keys(MOST_KEYS + 1).into_request_keys().unwrap_err().status(), 400);
    }
}
