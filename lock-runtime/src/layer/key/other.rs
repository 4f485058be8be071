//! Extractors that don't look at what the client has sent themselves: extensions, constants, and the first of several.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;

use http::Request;

use super::{IntoRequestKeys, KeyExtractor, Rejection, RequestKeys};
use crate::key::{IntoLockKey, InvalidKey, LockKey};

/// The key is made of an extension of the request: made by [`extension`].
pub struct ExtensionKey<T, F> {
    key: F,
    extension: PhantomData<fn(&T)>,
}

/// A key made of what a layer outside of this one has put into the request's extensions, such as the user who has logged
/// in. A request without such an extension has no key.
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
pub fn extension<T, F, R>(key: F) -> ExtensionKey<T, F>
where
    T: Send + Sync + 'static,
    F: Fn(&T) -> R,
    R: IntoRequestKeys,
{
    ExtensionKey { key, extension: PhantomData }
}

impl<B, T, F, R> KeyExtractor<Request<B>> for ExtensionKey<T, F>
where
    T: Send + Sync + 'static,
    F: Fn(&T) -> R,
    R: IntoRequestKeys,
{
    fn extract(&self, request: &Request<B>) -> Result<Option<RequestKeys>, Rejection> {
        match request.extensions().get::<T>() {
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

/// All requests have the same key: made by [`constant`].
#[derive(Clone, Debug)]
pub struct ConstantKey(Result<LockKey, InvalidKey>);

/// The same key for all requests: one at a time, in all processes together.
///
/// With a text that can't be a key, every request is answered with 500, and the log says what is wrong with it.
#[must_use]
pub fn constant(key: impl IntoLockKey) -> ConstantKey {
    ConstantKey(key.into_lock_key())
}

impl<B> KeyExtractor<Request<B>> for ConstantKey {
    fn extract(&self, _: &Request<B>) -> Result<Option<RequestKeys>, Rejection> {
        match &self.0 {
            Ok(key) => Ok(Some(RequestKeys::one(key.clone()))),
            Err(error) => {
                let reason = error.reason();
                Err(Rejection::misconfigured(format!(
                    "The layer's constant lock key can't be used: {reason}."
                )))
            }
        }
    }
}

/// The first key of several extractors: made by [`first_of`].
#[derive(Clone, Debug)]
pub struct FirstOf<K>(K);

/// The first of two to six extractors that finds a key. One that refuses the request ends the search. They are
/// [`KeyExtractor`]s: those of axum's path parameters and extractors have to be used alone.
///
/// ```
/// use lock_runtime::layer::key::{first_of, header, query};
///
/// let key = first_of((header("x-order-id").prefix("order:"), query("order").prefix("order:")));
/// ```
#[must_use]
pub fn first_of<K>(extractors: K) -> FirstOf<K> {
    FirstOf(extractors)
}

macro_rules! first_of {
    ($($name:ident)+) => {
        impl<B, $($name: KeyExtractor<Request<B>>),+> KeyExtractor<Request<B>> for FirstOf<($($name,)+)> {
            #[allow(non_snake_case, reason = "the types' names are at hand")]
            fn extract(&self, request: &Request<B>) -> Result<Option<RequestKeys>, Rejection> {
                let ($($name,)+) = &self.0;
                $(if let Some(keys) = $name.extract(request)? {
                    return Ok(Some(keys));
                })+
                Ok(None)
            }

            #[allow(non_snake_case, reason = "the types' names are at hand")]
            fn expected(&self) -> Option<Cow<'_, str>> {
                let ($($name,)+) = &self.0;
                either([$($name.expected()),+])
            }
        }
    };
}

first_of!(K1 K2);
first_of!(K1 K2 K3);
first_of!(K1 K2 K3 K4);
first_of!(K1 K2 K3 K4 K5);
first_of!(K1 K2 K3 K4 K5 K6);

/// "a or b", if all of them have a name.
fn either<'a, const N: usize>(expected: [Option<Cow<'a, str>>; N]) -> Option<Cow<'a, str>> {
    let names: Option<Vec<_>> = expected.into_iter().collect();
    names.map(|names| names.join(" or ").into())
}

#[cfg(test)]
mod tests {
    use super::super::{header, query};
    use super::*;

    fn text<K: KeyExtractor<Request<()>>>(key: &K, request: &Request<()>) -> Result<Option<String>, u16> {
        match key.extract(request) {
            Ok(Some(keys)) => match keys.into_inner() {
                super::super::Keys::One(key) => Ok(Some(key.to_string())),
                super::super::Keys::Several(_) => panic!("several keys"),
            },
            Ok(None) => Ok(None),
            Err(rejection) => Err(rejection.status().as_u16()),
        }
    }

    /// What another layer has put into the request is the key; without it there is none.
    #[test]
    fn an_extension_is_the_key() {
        #[derive(Clone)]
        struct User(u64);
        let key = extension(|user: &User| format!("user:{}", user.0));
        let mut request = Request::new(());
        assert_eq!(text(&key, &request), Ok(None));
        request.extensions_mut().insert(User(7));
        assert_eq!(text(&key.clone(), &request), Ok(Some("user:7".into())));
        assert!(format!("{key:?}").contains("User"));
    }

    /// The same key for all; a text that is none is a mistake of the program, not of the client.
    #[test]
    fn a_constant_is_the_key() {
        assert_eq!(text(&constant("report"), &Request::new(())), Ok(Some("report".into())));
        assert_eq!(text(&constant("{}"), &Request::new(())), Err(500));
    }

    /// The order is that of the tuple, and a refusal ends the search: what was sent is never silently left aside.
    #[test]
    fn the_first_key_counts() {
        let key = first_of((header("x-order"), query("order"), constant("none")));
        let request = |uri: &str, order: Option<&str>| {
            let mut request = Request::builder().uri(uri);
            if let Some(order) = order {
                request = request.header("x-order", order);
            }
            request.body(()).unwrap()
        };
        assert_eq!(text(&key, &request("/?order=2", Some("1"))), Ok(Some("1".into())));
        assert_eq!(text(&key, &request("/?order=2", None)), Ok(Some("2".into())));
        assert_eq!(text(&key, &request("/", None)), Ok(Some("none".into())));
        assert_eq!(text(&key, &request("/?order=2", Some("{1}"))), Err(400));
    }

    /// A client that has sent no key is told what it may send.
    #[test]
    fn all_that_would_do_is_expected() {
        fn expected<K: KeyExtractor<Request<()>>>(key: &K) -> Option<String> {
            key.expected().map(Cow::into_owned)
        }
        let key = first_of((header("x-order"), query("order")));
        assert_eq!(expected(&key).unwrap(), "the header `x-order` or the query parameter `order`");
        let key = first_of((header("x-order"), |_: &Request<()>| None::<String>));
        assert_eq!(expected(&key), None);
    }
}
