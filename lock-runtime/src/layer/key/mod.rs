//! Which lock a request needs: the traits, and ready-made extractors.
//!
//! A closure is enough in most cases. It is written with its argument's type, and returns the key: a
//! [`LockKey`](crate::LockKey), a text, several of them, or none.
//!
//! ```
//! use http::Request;
//! use lock_runtime::layer::KeyExtractor;
//!
//! fn takes_an_extractor<B, K: KeyExtractor<Request<B>>>(key: K, request: &Request<B>) -> bool {
//!     key.extract(request).is_ok_and(|keys| keys.is_some())
//! }
//!
//! let by_tenant = |r: &Request<_>| {
//!     let tenant = r.headers().get("x-tenant")?.to_str().ok()?;
//!     Some(format!("tenant:{tenant}"))
//! };
//! let request = Request::builder().header("x-tenant", "7").body(()).unwrap();
//! assert!(takes_an_extractor(by_tenant, &request));
//! ```
//!
//! The functions of this module make extractors that also look after what clients send: they limit its length, refuse
//! what can't be part of a key, and can hash it.
//!
//! | function | the key is |
//! |---|---|
//! | [`header`] | the value of a header |
//! | [`query`] | the value of a query parameter |
//! | [`path_segment`] | one part of the path |
//! | [`grpc_metadata`] | the value of an entry of gRPC metadata |
//! | [`extension`] | made of what another layer has put into the request, such as the user |
//! | [`constant`] | always the same |
//! | [`first_of`] | the first of several that is there |
#![cfg_attr(
    feature = "axum",
    doc = "| [`axum::path_param`](super::axum::path_param) | a path parameter of axum |"
)]
#![cfg_attr(
    feature = "axum",
    doc = "| [`axum::extractor`](super::axum::extractor) | made of any extractor of axum |"
)]
//!
//! # One thing, one text
//!
//! A lock is as good as its key. If the handler reads the client's text in another way than the extractor does, two
//! texts can mean one thing, and have two locks: `7` and `007` are the same number. Have both read it in the same way:
//! [`parsed`](PartKey::parsed) makes a number of it first. A header or a query parameter that occurs twice is refused
//! for the same reason: the handler may read the other one.

mod other;
mod parts;
mod request_keys;
mod shape;

use std::borrow::Cow;
use std::convert::Infallible;
use std::future::Ready;

use http::StatusCode;

use super::refusal::Reason;
use crate::key::InvalidKey;

pub use other::{ConstantKey, ExtensionKey, FirstOf, constant, extension, first_of};
pub use parts::{PartKey, grpc_metadata, header, path_segment, query};
pub(in crate::layer) use request_keys::Keys;
pub use request_keys::{IntoRequestKeys, RequestKeys};
pub(in crate::layer) use shape::{Form, Reach, canonical};
#[cfg(feature = "axum")]
pub(in crate::layer) use shape::{Shape, shape_methods};

/// Which lock a request needs. `Req` is the request: an [`http::Request`] of any body.
///
/// Implemented by closures of the form `|r: &http::Request<_>| …` that return what [`IntoRequestKeys`] lists, and by what
/// the functions of [this module](self) return. See [`AsyncKeyExtractor`] for what has to wait.
///
/// The body is not read: it belongs to the handler, which would find it gone.
///
/// ```
/// use http::Request;
/// use lock_runtime::LockKey;
/// use lock_runtime::layer::{KeyExtractor, Rejection, RequestKeys};
///
/// struct ByHost;
///
/// impl<B> KeyExtractor<Request<B>> for ByHost {
///     fn extract(&self, request: &Request<B>) -> Result<Option<RequestKeys>, Rejection> {
///         let Some(host) = request.uri().host() else { return Ok(None) };
///         Ok(Some(LockKey::new(format!("host:{host}"))?.into()))
///     }
/// }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not say which lock a request needs",
    label = "not a key extractor for `{Req}`",
    note = "write a closure with its argument's type, `|r: &http::Request<_>| …`, that returns a `LockKey`, a `String`, \
            a `RequestKeys`, or an `Option` or `Result` of one of them",
    note = "or take one from `lock_runtime::layer::key`: `header`, `query`, `path_segment`, `extension`, `constant`, …",
    note = "path parameters and extractors of axum are `AsyncKeyExtractor`s: \
            `lock_runtime::layer::axum::path_param(\"id\")`, with the feature `axum`"
)]
pub trait KeyExtractor<Req> {
    /// The keys to lock for this request. `None`: the request does not have one, and the layer's policy for a missing
    /// key decides.
    ///
    /// # Errors
    ///
    /// [`Rejection`]: the request has a key that can't be used. It is answered with that, and the handler is not called.
    fn extract(&self, request: &Req) -> Result<Option<RequestKeys>, Rejection>;

    /// What a request must have to have a key, such as "the header `x-tenant`". For the answer to a request without.
    fn expected(&self) -> Option<Cow<'_, str>> {
        None
    }
}

impl<Req, F> KeyExtractor<Req> for F
where
    F: closure::KeyFn<Req>,
    F::Keys: IntoRequestKeys,
{
    fn extract(&self, request: &Req) -> Result<Option<RequestKeys>, Rejection> {
        self.keys(request).into_request_keys()
    }
}

/// Between closures and [`KeyExtractor`] for the sake of messages: what is not a closure is told so in our words and not
/// in those of `Fn`, and a closure that returns what is no key is told that.
mod closure {
    #[diagnostic::on_unimplemented(
        message = "`{Self}` does not say which lock a request needs",
        label = "not a key extractor for `{Req}`",
        note = "write a closure with its argument's type, `|r: &http::Request<_>| …`, that returns a `LockKey`, a \
                `String`, a `RequestKeys`, or an `Option` or `Result` of one of them",
        note = "or take one from `lock_runtime::layer::key`: `header`, `query`, `path_segment`, `extension`, \
                `constant`, …",
        note = "path parameters and extractors of axum: `lock_runtime::layer::axum::path_param(\"id\")`, with the \
                feature `axum`"
    )]
    pub trait KeyFn<Req> {
        type Keys;

        fn keys(&self, request: &Req) -> Self::Keys;
    }

    #[diagnostic::do_not_recommend]
    impl<Req, F, R> KeyFn<Req> for F
    where
        F: Fn(&Req) -> R,
    {
        type Keys = R;

        fn keys(&self, request: &Req) -> R {
            self(request)
        }
    }
}

/// Which lock a request needs, where it takes a future to know it, or the request itself.
///
/// Every [`KeyExtractor`] is one that is ready at once. The extractor gets the request and gives it back, whatever comes
/// of it: the handler needs it.
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not say which lock a request needs",
    label = "not a key extractor for `{Req}`",
    note = "write a closure with its argument's type, `|r: &http::Request<_>| …`, that returns a `LockKey`, a `String`, \
            a `RequestKeys`, or an `Option` or `Result` of one of them",
    note = "or take one from `lock_runtime::layer::key`: `header`, `query`, `path_segment`, `extension`, `constant`, …",
    note = "path parameters and extractors of axum: `lock_runtime::layer::axum::path_param(\"id\")`, with the feature \
            `axum`"
)]
// The parameter is the request, not its body: other crates could implement `KeyExtractor<TheirBody>` for our types, so
// that none of them could be an `AsyncKeyExtractor` beside the implementation for every `KeyExtractor`. A
// `Request<TheirBody>` gives them no such right.
pub trait AsyncKeyExtractor<Req> {
    /// Ends with the request and its keys, as [`KeyExtractor::extract`] returns them.
    ///
    /// Dropped when the client leaves.
    type Future: Future<Output = (Req, Result<Option<RequestKeys>, Rejection>)>;

    /// The keys to lock for this request, at once or later.
    fn extract(&self, request: Req) -> Extraction<Req, Self::Future>;

    /// What a request must have to have a key; see [`KeyExtractor::expected`].
    fn expected(&self) -> Option<Cow<'_, str>> {
        None
    }
}

/// What an [`AsyncKeyExtractor`] gives back: the keys, or a future that ends with them.
#[derive(Debug)]
pub enum Extraction<Req, F> {
    /// Known at once. The request is given back as it was.
    Ready(Req, Result<Option<RequestKeys>, Rejection>),
    /// Known when this future is ready; it has the request until then.
    Pending(F),
}

impl<Req, K: KeyExtractor<Req>> AsyncKeyExtractor<Req> for K {
    type Future = Ready<(Req, Result<Option<RequestKeys>, Rejection>)>;

    fn extract(&self, request: Req) -> Extraction<Req, Self::Future> {
        let keys = KeyExtractor::extract(self, &request);
        Extraction::Ready(request, keys)
    }

    fn expected(&self) -> Option<Cow<'_, str>> {
        KeyExtractor::expected(self)
    }
}

/// A request has a key that can't be used: what is wrong and what to do about it.
///
/// With a status of 4xx, the text is sent to the client: name the part of the request, and not what it held. With any other,
/// it is a mistake in the program, and the text is for the log.
///
/// ```
/// use lock_runtime::layer::Rejection;
///
/// let rejection = Rejection::new("The header `x-order-id` is not a number.");
/// assert_eq!(rejection.status(), 400);
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{detail}")]
pub struct Rejection {
    status: StatusCode,
    detail: Cow<'static, str>,
    /// Why the text of a key is none, which is for the program's author.
    invalid: Option<&'static str>,
}

impl Rejection {
    fn of(status: StatusCode, detail: impl Into<Cow<'static, str>>) -> Self {
        Self { status, detail: detail.into(), invalid: None }
    }

    /// The client's mistake: 400 Bad Request, or `INVALID_ARGUMENT`.
    #[must_use]
    pub fn new(detail: impl Into<Cow<'static, str>>) -> Self {
        Self::of(StatusCode::BAD_REQUEST, detail)
    }

    /// With another status. One that is not an error becomes 500.
    ///
    /// 4xx is the client's mistake, everything else a mistake in the program ([`Reason::Misconfigured`]), whose text goes to
    /// the log and not to the client.
    #[must_use]
    pub fn with_status(status: StatusCode, detail: impl Into<Cow<'static, str>>) -> Self {
        let is_error = status.is_client_error() || status.is_server_error();
        Self::of(if is_error { status } else { StatusCode::INTERNAL_SERVER_ERROR }, detail)
    }

    /// A mistake in the program, which no client can mend.
    pub(in crate::layer) fn misconfigured(detail: impl Into<Cow<'static, str>>) -> Self {
        Self::of(StatusCode::INTERNAL_SERVER_ERROR, detail)
    }

    /// The status of the answer.
    #[must_use]
    pub fn status(&self) -> StatusCode {
        self.status
    }

    /// What is wrong and what to do: for the client, or for the log when it is the program's mistake.
    #[must_use]
    pub fn detail(&self) -> &str {
        &self.detail
    }

    /// What is for the log only.
    pub(in crate::layer) fn invalid(&self) -> Option<&'static str> {
        self.invalid
    }

    /// [`Reason::BadKey`] for the client's mistakes, [`Reason::Misconfigured`] for those of the program.
    #[must_use]
    pub fn reason(&self) -> Reason {
        if self.status.is_client_error() { Reason::BadKey } else { Reason::Misconfigured }
    }
}

/// The client's mistake. The text that was refused is not repeated, and why it is no key is for the log.
impl From<InvalidKey> for Rejection {
    fn from(error: InvalidKey) -> Self {
        Self { invalid: Some(error.reason()), ..Self::new(Reason::BadKey.detail()) }
    }
}

/// The client's mistake, in these words.
impl From<&'static str> for Rejection {
    fn from(detail: &'static str) -> Self {
        Self::new(detail)
    }
}

impl From<Infallible> for Rejection {
    fn from(never: Infallible) -> Self {
        match never {}
    }
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;
    use crate::LockKey;

    /// What keys an extractor that is ready at once finds.
    fn now<B, K: AsyncKeyExtractor<Request<B>>>(
        key: &K,
        request: Request<B>,
    ) -> Result<Option<RequestKeys>, Rejection> {
        match key.extract(request) {
            Extraction::Ready(_, keys) => keys,
            Extraction::Pending(_) => panic!("an extractor that is not asynchronous has to wait"),
        }
    }

    /// A closure is an extractor of both kinds, for requests of any body, and gives the request back.
    #[test]
    fn a_closure_is_an_extractor() {
        let by_path = |r: &Request<_>| format!("path:{}", r.uri().path());
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
        let by_header = |r: &Request<()>| Some(r.headers().get("x")?.to_str().ok()?.to_owned());
        assert_eq!(now(&by_header, Request::new(())), Ok(None));
    }

    /// The error of a closure is the answer to the client.
    #[test]
    fn a_closure_may_refuse() {
        let refuse = |_: &Request<()>| Err::<LockKey, _>(Rejection::new("No."));
        assert_eq!(now(&refuse, Request::new(())), Err(Rejection::new("No.")));
    }

    /// Extractors of other crates may be of one kind or the other.
    #[test]
    fn a_type_may_be_asynchronous_only() {
        struct Later;

        impl<B: Send + 'static> AsyncKeyExtractor<Request<B>> for Later {
            type Future = std::pin::Pin<
                Box<dyn Future<Output = (Request<B>, Result<Option<RequestKeys>, Rejection>)> + Send>,
            >;

            fn extract(&self, request: Request<B>) -> Extraction<Request<B>, Self::Future> {
                Extraction::Pending(Box::pin(async { (request, Ok(None)) }))
            }
        }

        assert!(matches!(Later.extract(Request::new(())), Extraction::Pending(_)));
    }

    /// A rejection is an error, whatever status it was given, and tells whose mistake it is.
    #[test]
    fn rejections_are_errors() {
        let reason = |status: StatusCode| {
            let rejection = Rejection::with_status(status, "No.");
            (rejection.status().as_u16(), rejection.reason())
        };
        assert_eq!(reason(StatusCode::UNAUTHORIZED), (401, Reason::BadKey));
        assert_eq!(reason(StatusCode::SERVICE_UNAVAILABLE), (503, Reason::Misconfigured));
        assert_eq!(reason(StatusCode::OK), (500, Reason::Misconfigured));
        assert_eq!(reason(StatusCode::SEE_OTHER), (500, Reason::Misconfigured));
    }
}
