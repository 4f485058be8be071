//! Which lock a request needs: the traits, and ready-made extractors.
//!
//! A closure over the head of the request is enough in most cases. Annotate the type of its
//! argument. It returns the key: a [`LockKey`](crate::LockKey), a text, several of them, or `None`.
//!
//! ```
//! use http::request::Parts;
//! use lock_runtime::layer::LockLayer;
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let locks = lock_runtime::LockManager::connect("memory:").await?;
//! let by_tenant = |head: &Parts| {
//!     let tenant = head.headers.get("x-tenant")?.to_str().ok()?;
//!     Some(format!("tenant:{tenant}"))
//! };
//! let layer = LockLayer::new(locks, by_tenant);
//! # Ok(()) }
//! ```
//!
//! The functions of this module return extractors that also check the values that clients send.
//! They limit the length, refuse characters that a key can't have, and can hash the value.
//!
//! | function | the key is |
//! |---|---|
//! | [`header`] | the value of a header |
//! | [`query`] | the value of a query parameter |
//! | [`path_segment`] | one segment of the path |
//! | [`grpc_metadata`] | the value of an entry of gRPC metadata |
//! | [`extension`] | made of a request extension that another layer inserted, such as the user |
//! | [`constant`] | always the same |
//! | [`first_of`] | the first one that any of several extractors finds |
//! | [`joined`] | made of several, such as tenant and order |
//! | [`body`] | made of the head and the body, which is read first |
#![cfg_attr(feature = "axum", doc = "| [`path_param`] | a path parameter of axum |")]
#![cfg_attr(feature = "axum", doc = "| [`extractor`] | made of any extractor of axum for the head |")]
//!
//! # One thing, one text
//!
//! A lock is only as good as its key. If the handler and the extractor interpret the client's text
//! differently, two texts can mean the same thing and still have two locks. For example, `7` and
//! `007` are the same number. Have both interpret it in the same way: [`parsed`](PartKey::parsed)
//! turns it into a number first. A header or a query parameter that occurs twice is refused for the
//! same reason: the handler might read the other value.
//!
//! The handler has to work on the thing that the key names. With [`first_of`], the client decides
//! which part of the request names it. For example, under
//! `first_of((header("x-order-id"), path_segment(1)))`, a request for `/orders/42` with the header
//! `x-order-id: 7` takes the lock of 7. Such a handler has to take its order from
//! [`HeldLock::key`](crate::HeldLock::key), or refuse requests whose parts differ.

#[cfg(feature = "axum")]
mod axum;
mod body;
mod other;
mod parts;
mod request_keys;
mod shape;
mod together;

use std::borrow::Cow;
use std::future::Ready;
use std::sync::Arc;

use http::Request;
use http::request::Parts;

#[cfg(feature = "axum")]
pub use self::axum::{ExtractorKey, extractor, extractor_with_state};
pub use body::{BodyKey, body};
pub use other::{ConstantKey, ExtensionKey, constant, extension};
#[cfg(feature = "axum")]
pub use parts::path_param;
pub use parts::{PartKey, grpc_metadata, header, path_segment, query};
use request_keys::Found;
pub(in crate::layer) use request_keys::Keys;
pub use request_keys::{IntoRequestKeys, RequestKeys};
pub use together::{FirstOf, Joined, first_of, joined};

pub use super::refusal::Rejection;

/// Finds the lock that a request needs, by the head of the request.
///
/// It is implemented by closures of the form `|head: &http::request::Parts| …` that return one of
/// the types listed at [`IntoRequestKeys`], and by most extractors of [this module](self). `Arc`s
/// of extractors implement it too, even `Arc<dyn KeyExtractor + Send + Sync>`. See
/// [`AsyncKeyExtractor`] for a key that has to be awaited, or is in the body.
///
/// ```
/// use http::request::Parts;
/// use lock_runtime::LockKey;
/// use lock_runtime::layer::{KeyExtractor, Rejection, RequestKeys};
///
/// struct ByHost;
///
/// impl KeyExtractor for ByHost {
///     fn extract(&self, head: &mut Parts) -> Result<Option<RequestKeys>, Rejection> {
///         let Some(host) = head.uri.host() else { return Ok(None) };
///         Ok(Some(LockKey::new(format!("host:{host}"))?.into()))
///     }
/// }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not say which lock a request needs",
    label = "not a key extractor",
    note = "write a closure with its argument's type, `|head: &http::request::Parts| …`, that returns a `LockKey`, a \
            `String`, a `RequestKeys`, or an `Option` or `Result` of one of them",
    note = "or take one from `lock_runtime::layer::key`: `header`, `query`, `path_segment`, `extension`, `constant`, …; \
            with the feature `axum` also `path_param`",
    note = "an extractor that has to be awaited, such as `extractor(…)` or `body(…)`, goes into `LockLayer::new_async`"
)]
pub trait KeyExtractor {
    /// Returns the keys to lock for this request. `None` means that the request has no key; the
    /// layer's policy for a missing key then decides. The head is mutable because axum's extractors
    /// require it.
    ///
    /// # Errors
    ///
    /// Returns a [`Rejection`] if the request has a key that can't be used. The request is answered
    /// with it, and the handler is not called.
    fn extract(&self, head: &mut Parts) -> Result<Option<RequestKeys>, Rejection>;

    /// Returns the part that a request needs to have a key, such as "the header `x-tenant`". It is
    /// used in the response to a request without a key.
    fn expected(&self) -> Option<Cow<'_, str>> {
        None
    }
}

impl<F> KeyExtractor for F
where
    F: closure::KeyFn,
    F::Keys: IntoRequestKeys,
{
    fn extract(&self, head: &mut Parts) -> Found {
        self.keys(head).into_request_keys()
    }
}

impl<K: KeyExtractor + ?Sized> KeyExtractor for Arc<K> {
    fn extract(&self, head: &mut Parts) -> Found {
        K::extract(self, head)
    }

    fn expected(&self) -> Option<Cow<'_, str>> {
        K::expected(self)
    }
}

/// A trait between closures and [`KeyExtractor`], for the sake of compiler messages. For a value
/// that is no closure, the compiler shows this crate's message and not that of `Fn`. For a closure
/// that returns no key, it says so.
mod closure {
    use http::request::Parts;

    #[diagnostic::on_unimplemented(
        message = "`{Self}` does not say which lock a request needs",
        label = "not a key extractor",
        note = "write a closure with its argument's type, `|head: &http::request::Parts| …`, that returns a `LockKey`, \
                a `String`, a `RequestKeys`, or an `Option` or `Result` of one of them",
        note = "or take one from `lock_runtime::layer::key`: `header`, `query`, `path_segment`, `extension`, \
                `constant`, …; with the feature `axum` also `path_param`",
        note = "an extractor that has to be awaited, such as `extractor(…)` or `body(…)`, goes into `LockLayer::new_async`"
    )]
    pub trait KeyFn {
        type Keys;

        fn keys(&self, head: &Parts) -> Self::Keys;
    }

    #[diagnostic::do_not_recommend]
    impl<F, R> KeyFn for F
    where
        F: Fn(&Parts) -> R,
    {
        type Keys = R;

        fn keys(&self, head: &Parts) -> R {
            self(head)
        }
    }
}

/// Finds the lock that a request needs, if the key has to be awaited or is in the body. `B` is
/// the type of the body. For [`LockLayer::new_async`](super::LockLayer::new_async).
///
/// Every [`KeyExtractor`] is also an `AsyncKeyExtractor` that is ready at once. The extractor
/// receives the request and always gives it back, since the handler needs it.
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not say which lock a request needs",
    label = "not a key extractor for requests with a body of the type `{B}`",
    note = "a key in the body needs a body that can be made of bytes again, as that of axum can (`B: From<Bytes>`)"
)]
pub trait AsyncKeyExtractor<B> {
    /// Resolves to the request and its keys, as [`KeyExtractor::extract`] returns them.
    ///
    /// It is dropped when the client leaves.
    type Future: Future<Output = (Request<B>, Result<Option<RequestKeys>, Rejection>)>;

    /// Returns the keys to lock for this request, at once or later.
    fn extract(&self, request: Request<B>) -> Extraction<B, Self::Future>;

    /// Returns the part that a request needs to have a key; see [`KeyExtractor::expected`].
    fn expected(&self) -> Option<Cow<'_, str>> {
        None
    }
}

/// The result of an [`AsyncKeyExtractor`]: the keys, or a future that resolves to them.
#[allow(clippy::large_enum_variant, reason = "most keys are ready at once; a box would cost an allocation")]
#[derive(Debug)]
pub enum Extraction<B, F> {
    /// The keys are known at once. The request is given back unchanged.
    Ready(Request<B>, Result<Option<RequestKeys>, Rejection>),
    /// The keys are known when this future is ready. It owns the request until then.
    Pending(F),
}

impl<B, K: KeyExtractor> AsyncKeyExtractor<B> for K {
    type Future = Ready<(Request<B>, Found)>;

    fn extract(&self, request: Request<B>) -> Extraction<B, Self::Future> {
        let (mut head, body) = request.into_parts();
        let keys = KeyExtractor::extract(self, &mut head);
        Extraction::Ready(Request::from_parts(head, body), keys)
    }

    fn expected(&self) -> Option<Cow<'_, str>> {
        KeyExtractor::expected(self)
    }
}

/// Returns the text of the only key, or the status of the refusal. The tests of the submodules use
/// it too.
#[cfg(test)]
fn text<K: KeyExtractor>(key: &K, request: http::request::Builder) -> Result<Option<String>, u16> {
    let (mut head, ()) = request.body(()).unwrap().into_parts();
    match key.extract(&mut head) {
        Ok(Some(keys)) => match keys.into_inner() {
            Keys::One(key) => Ok(Some(key.to_string())),
            Keys::Several(_) => panic!("several keys"),
        },
        Ok(None) => Ok(None),
        Err(rejection) => Err(rejection.status().as_u16()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::LockKey;

    /// A closure implements both traits, for requests with any body, and gives the request back.
    #[test]
    fn a_closure_is_an_extractor() {
        let by_path = |head: &Parts| format!("path:{}", head.uri.path());
        let request = Request::builder().uri("/a").body(vec![1_u8, 2]).unwrap();
        let Extraction::Ready(request, keys) = AsyncKeyExtractor::extract(&by_path, request) else {
            panic!("a closure has to wait");
        };
        assert_eq!(keys.unwrap(), Some(LockKey::new("path:/a").unwrap().into()));
        assert_eq!(request.into_body(), [1, 2]);
    }

    /// A closure can leave with `?` when the request has no key.
    #[test]
    fn a_closure_may_find_nothing() {
        let by_header = |head: &Parts| Some(head.headers.get("x")?.to_str().ok()?.to_owned());
        assert_eq!(text(&by_header, Request::builder()), Ok(None));
    }

    /// The error of a closure becomes the response to the client.
    #[test]
    fn a_closure_may_refuse() {
        let refuse = |_: &Parts| Err::<LockKey, _>(Rejection::new("No."));
        assert_eq!(text(&refuse, Request::builder()), Err(400));
    }

    /// The extractor can be chosen when the program starts.
    #[test]
    fn an_extractor_may_be_chosen_at_run_time() {
        let extractors: [Arc<dyn KeyExtractor + Send + Sync>; 2] =
            [Arc::new(header("x")), Arc::new(|head: &Parts| head.uri.path().to_owned())];
        let request = || Request::builder().uri("/a").header("x", "42");
        assert_eq!(text(&extractors[0], request()), Ok(Some("42".into())));
        assert_eq!(text(&extractors[1], request()), Ok(Some("/a".into())));
        assert_eq!(KeyExtractor::expected(&extractors[0]).unwrap(), "the header `x`");
    }

    /// Extractors of other crates may implement only one of the two traits.
    #[test]
    fn a_type_may_be_asynchronous_only() {
        struct Later;

        impl<B: Send + 'static> AsyncKeyExtractor<B> for Later {
            type Future = std::pin::Pin<Box<dyn Future<Output = (Request<B>, Found)> + Send>>;

            fn extract(&self, request: Request<B>) -> Extraction<B, Self::Future> {
                Extraction::Pending(Box::pin(async { (request, Ok(None)) }))
            }
        }

        assert!(matches!(Later.extract(Request::new(())), Extraction::Pending(_)));
    }
}
