//! Extractors that take the key from one part of the request.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use http::HeaderName;
use http::request::Parts;
use percent_encoding::percent_decode_str;

use super::shape::{Form, Reach, Shape, canonical, checked};
use super::{Found, KeyExtractor, Rejection};

/// A key that comes from one part of the request; made by [`header`], [`query`], [`path_segment`]
/// and [`grpc_metadata`], and with the feature `axum` by `path_param`.
///
/// A missing or empty part is no key. A value is refused with 400 if it is too long, or contains
/// braces, control characters, or invisible characters. Invisible characters include those that
/// change the direction of text. Braces would let a client choose the slot of a Redis Cluster. See
/// [`hashed`](Self::hashed) for values that may contain such characters.
///
/// | method | sets | default |
/// |---|---|---|
/// | [`prefix`](Self::prefix) | the text before the value | none |
/// | [`longest`](Self::longest) | the maximum length of a value, in bytes | 256; 8192 if hashed |
/// | [`parsed`](Self::parsed) | the type that the value has to be | any text |
/// | [`hashed`](Self::hashed) | the SHA-1 of the value instead of the value | the value |
/// | [`of_method_and_path`](Self::of_method_and_path) | a separate lock for each method and path | one lock for all |
#[cfg_attr(
    feature = "axum",
    doc = "| [`of_route`](Self::of_route) | a separate lock for each method and route | one lock for all |"
)]
#[cfg_attr(
    feature = "axum",
    doc = "| [`optional`](Self::optional) | a path parameter may be missing | 500 |"
)]
#[derive(Clone, Debug)]
pub struct PartKey {
    part: Part,
    pub(super) shape: Shape,
}

#[derive(Clone, Debug)]
enum Part {
    Header(HeaderName),
    Metadata(HeaderName),
    Query(Cow<'static, str>),
    PathSegment(usize),
    #[cfg(feature = "axum")]
    PathParam(super::axum::PathParam),
}

/// Returns the value of a header as the key.
///
/// ```
/// use lock_runtime::layer::key::header;
///
/// let key = header("x-order-id").prefix("order:");
/// ```
///
/// A header that occurs twice is refused.
///
/// # Panics
///
/// If the name is not a valid header name.
#[must_use]
#[track_caller]
pub fn header(name: impl TryInto<HeaderName>) -> PartKey {
    PartKey::new(Part::Header(header_name(name)))
}

#[track_caller]
#[expect(clippy::panic, reason = "a mistake in the program, known when it starts")]
fn header_name(name: impl TryInto<HeaderName>) -> HeaderName {
    match name.try_into() {
        Ok(name) => name,
        Err(_) => panic!("a layer takes its key from a header whose name is not a valid header name"),
    }
}

/// Returns the decoded value of a query parameter as the key: `42` for `?order=42`.
///
/// A parameter that occurs twice is refused.
#[must_use]
pub fn query(name: impl Into<Cow<'static, str>>) -> PartKey {
    PartKey::new(Part::Query(name.into()))
}

/// Returns one segment of the path as the key, counted from 0 and decoded: `42` for
/// `path_segment(1)` and the path `/orders/42`. An encoded slash does not end a segment.
///
/// The path is the one that the layer sees: inside `axum::Router::nest`, the prefix of the nested
/// router is removed. It is not normalized: in `//orders/42`, segment 0 is empty and segment 1 is
/// `orders`; in `/orders/./42`, segment 1 is `.`.
#[must_use]
pub fn path_segment(index: usize) -> PartKey {
    PartKey::new(Part::PathSegment(index))
}

/// Returns the value of an entry of gRPC metadata with ASCII values as the key. The entry is the
/// header of that name.
///
/// # Panics
///
/// If the name is not a valid header name, or ends in `-bin`: such values are bytes and can't be a
/// key. For those, use [`header`] with [`PartKey::hashed`]; two encodings of the same bytes are
/// then two keys.
#[must_use]
#[track_caller]
pub fn grpc_metadata(name: impl AsRef<str>) -> PartKey {
    let name = name.as_ref();
    let binary = name.get(name.len().saturating_sub(4)..).is_some_and(|end| end.eq_ignore_ascii_case("-bin"));
    assert!(
        !binary,
        "`{name}` is binary metadata, which can't be a key as it is; use `key::header({name:?}).hashed()`"
    );
    PartKey::new(Part::Metadata(header_name(name)))
}

/// Returns the decoded value of an axum path parameter as the key: `42` for `path_param("id")`, the
/// route `/orders/{id}` and the path `/orders/42`.
///
/// ```
/// use lock_runtime::layer::path_param;
///
/// let key = path_param("id").prefix("order:").parsed::<u64>();
/// ```
///
/// A request whose route lacks the parameter, or that has matched no route, is answered with 500,
/// and the log says what to do. This is a bug in the program; letting the request pass would run it
/// without a lock. See [`optional`](PartKey::optional) for routers that have routes of both kinds,
/// and [the module `layer`](crate::layer#in-axum) for where to put the layer.
#[cfg(feature = "axum")]
#[cfg_attr(docsrs, doc(cfg(feature = "axum")))]
#[must_use]
pub fn path_param(name: impl Into<Cow<'static, str>>) -> PartKey {
    PartKey::new(Part::PathParam(super::axum::PathParam::new(name.into())))
}

impl PartKey {
    fn new(part: Part) -> Self {
        Self { part, shape: Shape::new() }
    }

    /// Puts a text before the value: `order:` and the value `42` make the key `order:42`.
    ///
    /// Locks with the same key are the same lock, whichever layer or function takes them. Without a
    /// prefix, a value could equal the key of something else.
    ///
    /// # Panics
    ///
    /// If no key can begin with the prefix, for example because of its braces.
    #[must_use]
    #[track_caller]
    pub fn prefix(mut self, prefix: impl Into<Cow<'static, str>>) -> Self {
        self.shape.prefix = checked(prefix.into());
        self
    }

    /// Sets the maximum length of the decoded value in bytes; a longer value is refused. The
    /// default is 256. For a [hashed](Self::hashed) value it is 8192, which is also the maximum. A
    /// value that does not fit into a [`LockKey`](crate::LockKey) is always refused.
    #[must_use]
    pub fn longest(mut self, bytes: usize) -> Self {
        self.shape.longest = Some(bytes);
        self
    }

    /// Parses the value as a `T`, and uses the `Display` text of that `T` as the value. A value
    /// that can't be parsed is refused.
    ///
    /// With `parsed::<u64>()`, `7` and `007` are the same key.
    #[must_use]
    pub fn parsed<T: FromStr + fmt::Display>(mut self) -> Self {
        self.shape.parse = Some(canonical::<T>);
        self
    }

    /// Uses the SHA-1 hash of the value, in hexadecimal digits, instead of the value.
    ///
    /// Use it for values that are long, contain any bytes, or must not be readable in the store:
    /// only their length is checked. The hash does not authenticate the value. A client that finds
    /// a collision only makes two of its requests wait for each other.
    #[must_use]
    pub fn hashed(mut self) -> Self {
        self.shape.form = Form::Hashed;
        self
    }

    /// Makes the same value with another method or path another lock. Method and path come between
    /// the prefix and the value, as in `POST /orders 42`.
    ///
    /// Use it for values that are unique only per client and endpoint, such as an idempotency key.
    /// The path is the one that the client sent, without the query. With the feature `axum`, that
    /// is the complete path even inside `nest`.
    #[must_use]
    pub fn of_method_and_path(mut self) -> Self {
        self.shape.reach = Reach::MethodAndPath;
        self
    }

    /// Makes the same value with another method or axum route another lock. The method and the
    /// route's pattern come between the prefix and the value. Braces of the pattern are encoded, as
    /// in `POST /orders/%7Bid%7D 42`.
    ///
    /// A request that has matched no route is answered with 500, as with [`path_param`].
    #[cfg(feature = "axum")]
    #[cfg_attr(docsrs, doc(cfg(feature = "axum")))]
    #[must_use]
    pub fn of_route(mut self) -> Self {
        self.shape.reach = Reach::Route;
        self
    }

    /// Treats a request whose route lacks the [path parameter](path_param) as one without a key,
    /// for which the layer's [policy](crate::layer::LockLayer::on_missing_key) decides. It has no
    /// effect on extractors of other parts.
    #[cfg(feature = "axum")]
    #[cfg_attr(docsrs, doc(cfg(feature = "axum")))]
    #[must_use]
    pub fn optional(mut self) -> Self {
        if let Part::PathParam(param) = &mut self.part {
            param.optional();
        }
        self
    }
}

/// Returns the value of `values`, and a refusal if there is more than one.
fn only<T>(part: &Part, mut values: impl Iterator<Item = T>) -> Result<Option<T>, Rejection> {
    let first = values.next();
    if values.next().is_some() {
        return Err(Rejection::new(format!("The {part} occurs more than once; send it once.")));
    }
    Ok(first)
}

impl KeyExtractor for PartKey {
    fn extract(&self, head: &mut Parts) -> Found {
        let part = &self.part;
        let value = match part {
            Part::Header(name) | Part::Metadata(name) => {
                let values = head.headers.get_all(name).iter();
                only(part, values)?.map(|value| Cow::Borrowed(value.as_bytes()))
            }
            Part::Query(name) => {
                let query = head.uri.query().unwrap_or_default();
                let values = form_urlencoded::parse(query.as_bytes()).filter(|(other, _)| *other == **name);
                only(part, values)?.map(|(_, value)| bytes_of(value))
            }
            Part::PathSegment(index) => {
                let path = head.uri.path().strip_prefix('/');
                let segment = path.and_then(|path| path.split('/').nth(*index));
                segment.map(|segment| Cow::from(percent_decode_str(segment)))
            }
            #[cfg(feature = "axum")]
            Part::PathParam(param) => param.value(head)?.map(|value| Cow::Owned(value.into_bytes())),
        };
        match value {
            Some(value) => self.shape.key(head, part, &value),
            None => Ok(None),
        }
    }

    fn expected(&self) -> Option<Cow<'_, str>> {
        Some(format!("the {}", self.part).into())
    }
}

fn bytes_of(text: Cow<'_, str>) -> Cow<'_, [u8]> {
    match text {
        Cow::Borrowed(text) => Cow::Borrowed(text.as_bytes()),
        Cow::Owned(text) => Cow::Owned(text.into_bytes()),
    }
}

/// Formats the part as it is named in a response to the client.
impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Header(name) => write!(f, "header `{name}`"),
            Self::Metadata(name) => write!(f, "metadata `{name}`"),
            Self::Query(name) => write!(f, "query parameter `{name}`"),
            Self::PathSegment(index) => write!(f, "path segment {index}"),
            #[cfg(feature = "axum")]
            Self::PathParam(param) => fmt::Display::fmt(param, f),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::Keys;
    use super::*;
    use crate::LockKey;

    fn text(key: &PartKey, request: http::request::Builder) -> Result<Option<String>, Rejection> {
        let (mut head, ()) = request.body(()).unwrap().into_parts();
        Ok(key.extract(&mut head)?.map(|keys| match keys.into_inner() {
            Keys::One(key) => key.to_string(),
            Keys::Several(_) => panic!("several keys"),
        }))
    }

    fn at(uri: &str) -> http::request::Builder {
        http::Request::builder().uri(uri)
    }

    fn found(text: &str) -> Result<Option<String>, Rejection> {
        Ok(Some(text.to_owned()))
    }

    /// The value of the header is the key, with the prefix before it. The header's name is
    /// case-insensitive.
    #[test]
    fn a_header_is_the_key() {
        let key = header("X-Order-Id").prefix("order:");
        assert_eq!(text(&key, at("/").header("x-order-id", "42")), found("order:42"));
        assert_eq!(text(&key, at("/")), Ok(None));
        assert_eq!(text(&key, at("/").header("x-order-id", "")), Ok(None));
        assert_eq!(text(&header(http::header::HOST), at("/").header("host", "a")), found("a"));
    }

    /// A header's bytes are text if they are valid UTF-8.
    #[test]
    fn a_header_may_be_utf8() {
        let value = |bytes: &[u8]| http::HeaderValue::from_bytes(bytes).unwrap();
        assert_eq!(text(&header("x"), at("/").header("x", value("ä".as_bytes()))), found("ä"));
        assert_eq!(text(&header("x"), at("/").header("x", value(b"\xff"))).unwrap_err().status(), 400);
    }

    /// A second value is refused: the handler could read the one that is not locked.
    #[test]
    fn a_second_value_is_refused() {
        let twice = at("/?id=1&id=2").header("x", "1").header("x", "2");
        assert_eq!(
            text(&header("x"), twice).unwrap_err().detail(),
            "The header `x` occurs more than once; send it once."
        );
        assert_eq!(text(&query("id"), at("/?id=1&id=1")).unwrap_err().status(), 400);
        assert_eq!(text(&query("id"), at("/?id=1&%69d=2")).unwrap_err().status(), 400);
    }

    /// A query parameter is decoded as forms are.
    #[test]
    fn a_query_parameter_is_the_key() {
        let key = query("order");
        assert_eq!(text(&key, at("/a?x=1&order=4+2%2f")), found("4 2/"));
        assert_eq!(text(&key, at("/a?ord%65r=1")), found("1"));
        for without in ["/a", "/a?", "/a?orders=1", "/a?order", "/a?order=", "/a?Order=1"] {
            assert_eq!(text(&key, at(without)), Ok(None), "{without}");
        }
    }

    /// Segments are counted from 0 and then decoded, so an encoded slash does not split a segment.
    #[test]
    fn a_path_segment_is_the_key() {
        let segment = |index, uri| text(&path_segment(index), at(uri));
        assert_eq!(segment(0, "/orders/42"), found("orders"));
        assert_eq!(segment(1, "/orders/42"), found("42"));
        assert_eq!(segment(1, "/orders/4%2f2/x"), found("4/2"));
        assert_eq!(segment(1, "/orders/%C3%A4?x=1"), found("ä"));
        assert_eq!(segment(0, "http://host/orders"), found("orders"));
        assert_eq!(segment(2, "/orders/42"), Ok(None));
        assert_eq!(segment(2, "/orders/42/"), Ok(None));
        assert_eq!(segment(1, "/orders//42"), Ok(None));
        assert_eq!(segment(0, "*"), Ok(None));
        assert_eq!(segment(0, "/%ff").unwrap_err().status(), 400);
    }

    /// The path is not normalized.
    #[test]
    fn a_path_is_not_tidied_up() {
        assert_eq!(text(&path_segment(1), at("//orders/42")), found("orders"));
        assert_eq!(text(&path_segment(1), at("/orders/./42")), found("."));
    }

    #[test]
    fn metadata_is_the_key() {
        assert_eq!(text(&grpc_metadata("order-id"), at("/").header("order-id", "42")), found("42"));
    }

    #[test]
    #[should_panic(expected = "key::header(\"trace-BIN\").hashed()")]
    fn metadata_of_bytes_is_told_at_once() {
        let _ = grpc_metadata("trace-BIN");
    }

    #[test]
    #[should_panic(expected = "not a valid header name")]
    fn a_wrong_name_is_told_at_once() {
        let _ = header("a b");
    }

    /// A response names the part, and never its value.
    #[test]
    fn the_answer_names_the_part_only() {
        let secret = "s3cret{".to_owned() + &"x".repeat(300);
        let request = || at(&format!("/{0}?q={0}", secret.replace('{', "%7B"))).header("x", &secret);
        for (key, name) in [
            (header("x"), "header `x`"),
            (query("q"), "query parameter `q`"),
            (path_segment(0), "path segment 0"),
        ] {
            for key in [key.clone(), key.clone().longest(1000), key.parsed::<u64>().longest(1000)] {
                let rejection = text(&key, request()).unwrap_err();
                assert_eq!(rejection.status(), 400);
                assert!(rejection.detail().starts_with(&format!("The {name} ")), "{rejection}");
                assert!(!rejection.detail().contains("s3cret"), "{rejection}");
            }
        }
    }

    /// A client that sent no key is told which part is missing.
    #[test]
    fn the_part_is_expected() {
        let expected = |key: &PartKey| key.expected().map(Cow::into_owned);
        assert_eq!(expected(&header("x-id")).unwrap(), "the header `x-id`");
        assert_eq!(expected(&path_segment(1)).unwrap(), "the path segment 1");
    }

    proptest! {
        /// Any encoding, however broken, yields a key, no key, or a refusal that blames the client.
        #[test]
        fn any_request_has_a_key_or_is_refused(
            segments in proptest::collection::vec("([a/.]|%[0-9a-g]{0,2}|[!-~]){0,6}", 0..4),
            query_string in "(a=|[&;+]|%[0-9a-g]{0,2}|[!-~]){0,8}",
            value in proptest::collection::vec(any::<u8>(), 0..6),
            hashed in any::<bool>(),
        ) {
            let mut request = http::Request::builder().uri(format!("/{}?{query_string}", segments.join("/")));
            if let Ok(value) = http::HeaderValue::from_bytes(&value) {
                request = request.header("a", value);
            }
            let Ok(request) = request.body(()) else { return Ok(()) };
            let (mut head, ()) = request.into_parts();
            for key in [header("a"), query("a"), path_segment(0), path_segment(2)] {
                let key = if hashed { key.hashed() } else { key };
                match key.extract(&mut head) {
                    Ok(Some(keys)) => match keys.into_inner() {
                        Keys::One(key) => prop_assert!(LockKey::new(key.as_str()).is_ok()),
                        Keys::Several(_) => prop_assert!(false),
                    },
                    Ok(None) => {}
                    Err(rejection) => prop_assert_eq!(rejection.status().as_u16(), 400),
                }
            }
        }
    }
}
