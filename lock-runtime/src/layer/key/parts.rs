//! Extractors that take the key from one part of the request, as the client has sent it.

use std::borrow::Cow;
use std::fmt;

use http::{HeaderName, Request};
use percent_encoding::percent_decode_str;

use super::shape::{Shape, shape_methods};
use super::{KeyExtractor, Rejection, RequestKeys};

/// The key is a part of the request: made by [`header`], [`query`], [`path_segment`] and [`grpc_metadata`].
///
/// A part that is missing or empty is no key. Values are refused with 400 that are too long, or have control characters
/// or braces; with braces a client would choose the slot of a Redis Cluster. See [`hashed`](Self::hashed) for those.
#[derive(Clone, Debug)]
pub struct PartKey {
    part: Part,
    shape: Shape,
}

#[derive(Clone, Debug)]
enum Part {
    Header(HeaderName),
    Query(Cow<'static, str>),
    PathSegment(usize),
    /// A mistake in the program, told with the first request.
    Wrong(String),
}

/// The value of a header.
///
/// ```
/// use lock_runtime::layer::key::header;
///
/// let key = header("x-order-id").prefix("order:");
/// ```
///
/// A header that occurs twice is refused. With a name that can't be that of a header, every request is answered with 500,
/// and the log says what is wrong with it.
#[must_use]
pub fn header(name: impl TryInto<HeaderName>) -> PartKey {
    let part = match name.try_into() {
        Ok(name) => Part::Header(name),
        Err(_) => Part::Wrong(
            "The layer takes its key from a header, and was given a name that is not that of a header."
                .into(),
        ),
    };
    PartKey::new(part)
}

/// The value of a query parameter, decoded: `42` for `?order=42`.
///
/// A parameter that occurs twice is refused.
#[must_use]
pub fn query(name: impl Into<Cow<'static, str>>) -> PartKey {
    PartKey::new(Part::Query(name.into()))
}

/// One segment of the path, counted from 0 and decoded: in `/orders/42`, `path_segment(1)` is `42`. A slash that is
/// encoded does not end a segment.
///
/// It counts in the path as the layer sees it: inside `axum::Router::nest` the prefix of the nested router is gone.
#[must_use]
pub fn path_segment(index: usize) -> PartKey {
    PartKey::new(Part::PathSegment(index))
}

/// The value of an entry of gRPC metadata with ASCII values; it is a header of that name.
///
/// The values of names that end in `-bin` are bytes, which are no key: use [`header`] with [`PartKey::hashed`], where two
/// ways to encode the same bytes are two keys. With such a name every request is refused with `INTERNAL`, and the log has
/// this hint.
#[must_use]
pub fn grpc_metadata(name: impl AsRef<str>) -> PartKey {
    let name = name.as_ref();
    if name.get(name.len().saturating_sub(4)..).is_some_and(|end| end.eq_ignore_ascii_case("-bin")) {
        let wrong = "The layer takes its key from gRPC metadata, and was given a name that ends in `-bin`: take \
                     `key::header(…).hashed()`.";
        return PartKey::new(Part::Wrong(wrong.into()));
    }
    header(name)
}

impl PartKey {
    fn new(part: Part) -> Self {
        Self { part, shape: Shape::new() }
    }

    shape_methods!();
}

impl Part {
    fn value<'r, B>(&self, request: &'r Request<B>) -> Result<Option<Cow<'r, [u8]>>, Rejection> {
        let uri = request.uri();
        let mut twice = false;
        let value = match self {
            Self::Header(name) => {
                let mut values = request.headers().get_all(name).iter();
                let first = values.next().map(|value| Cow::Borrowed(value.as_bytes()));
                twice = values.next().is_some();
                first
            }
            Self::Query(name) => {
                let query = uri.query().unwrap_or_default();
                let mut values =
                    form_urlencoded::parse(query.as_bytes()).filter(|(other, _)| *other == **name);
                let first = values.next().map(|(_, value)| bytes_of(value));
                twice = values.next().is_some();
                first
            }
            Self::PathSegment(index) => {
                let path = uri.path().strip_prefix('/');
                let segment = path.and_then(|path| path.split('/').nth(*index));
                segment.map(|segment| Cow::from(percent_decode_str(segment)))
            }
            Self::Wrong(what) => return Err(Rejection::misconfigured(what.clone())),
        };
        if twice {
            Err(Rejection::new(format!("The {self} is there twice; send it once.")))
        } else {
            Ok(value)
        }
    }
}

fn bytes_of(text: Cow<'_, str>) -> Cow<'_, [u8]> {
    match text {
        Cow::Borrowed(text) => Cow::Borrowed(text.as_bytes()),
        Cow::Owned(text) => Cow::Owned(text.into_bytes()),
    }
}

/// As it is called in an answer to the client.
impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Header(name) => write!(f, "header `{name}`"),
            Self::Query(name) => write!(f, "query parameter `{name}`"),
            Self::PathSegment(index) => write!(f, "path's segment {index}"),
            Self::Wrong(what) => f.write_str(what),
        }
    }
}

impl<B> KeyExtractor<Request<B>> for PartKey {
    fn extract(&self, request: &Request<B>) -> Result<Option<RequestKeys>, Rejection> {
        match self.part.value(request)? {
            Some(value) => self.shape.key(request.method(), request.uri(), &self.part, &value),
            None => Ok(None),
        }
    }

    fn expected(&self) -> Option<Cow<'_, str>> {
        Some(format!("the {}", self.part).into())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::Keys;
    use super::*;
    use crate::LockKey;

    fn text(key: &PartKey, request: http::request::Builder) -> Result<Option<String>, Rejection> {
        let keys = key.extract(&request.body(()).unwrap())?;
        Ok(keys.map(|keys| match keys.into_inner() {
            Keys::One(key) => key.to_string(),
            Keys::Several(_) => panic!("several keys"),
        }))
    }

    fn at(uri: &str) -> http::request::Builder {
        Request::builder().uri(uri)
    }

    fn found(text: &str) -> Result<Option<String>, Rejection> {
        Ok(Some(text.to_owned()))
    }

    /// The value of the header is the key, with the prefix before it; its name has no case.
    #[test]
    fn a_header_is_the_key() {
        let key = header("X-Order-Id").prefix("order:");
        assert_eq!(text(&key, at("/").header("x-order-id", "42")), found("order:42"));
        assert_eq!(text(&key, at("/")), Ok(None));
        assert_eq!(text(&key, at("/").header("x-order-id", "")), Ok(None));
        assert_eq!(text(&header(http::header::HOST), at("/").header("host", "a")), found("a"));
    }

    /// A header's bytes are text if they are UTF-8.
    #[test]
    fn a_header_may_be_utf8() {
        let value = |bytes: &[u8]| http::HeaderValue::from_bytes(bytes).unwrap();
        assert_eq!(text(&header("x"), at("/").header("x", value("ä".as_bytes()))), found("ä"));
        assert_eq!(text(&header("x"), at("/").header("x", value(b"\xff"))).unwrap_err().status(), 400);
    }

    /// What the handler reads and what is locked can't be two things: a second value is refused.
    #[test]
    fn a_second_value_is_refused() {
        let twice = at("/?id=1&id=2").header("x", "1").header("x", "2");
        assert_eq!(
            text(&header("x"), twice).unwrap_err().detail(),
            "The header `x` is there twice; send it once."
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

    /// Segments are counted from 0, then decoded: an encoded slash is part of one.
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

    /// ASCII metadata is a header. The names of bytes are a mistake of the program, told without a panic.
    #[test]
    fn metadata_is_the_key() {
        assert_eq!(text(&grpc_metadata("order-id"), at("/").header("order-id", "42")), found("42"));
        for wrong in
            [grpc_metadata("trace-bin"), grpc_metadata("trace-BIN"), grpc_metadata("ü"), header("a b")]
        {
            let rejection = text(&wrong, at("/").header("trace-bin", "AAAA")).unwrap_err();
            assert_eq!(rejection.status(), 500, "{rejection}");
        }
    }

    /// An answer names the part, and never its value.
    #[test]
    fn the_answer_names_the_part_only() {
        let secret = "s3cret{".to_owned() + &"x".repeat(300);
        let request = || at(&format!("/{0}?q={0}", secret.replace('{', "%7B"))).header("x", &secret);
        for (key, name) in [
            (header("x"), "header `x`"),
            (query("q"), "query parameter `q`"),
            (path_segment(0), "path's segment 0"),
        ] {
            for key in [key.clone(), key.clone().longest(1000), key.parsed::<u64>().longest(1000)] {
                let rejection = text(&key, request()).unwrap_err();
                assert_eq!(rejection.status(), 400);
                assert!(rejection.detail().starts_with(&format!("The {name} ")), "{rejection}");
                assert!(!rejection.detail().contains("s3cret"), "{rejection}");
            }
        }
    }

    /// Who has sent no key is told which part it is.
    #[test]
    fn the_part_is_expected() {
        let expected = |key: &PartKey| KeyExtractor::<Request<()>>::expected(key).map(Cow::into_owned);
        assert_eq!(expected(&header("x-id")).unwrap(), "the header `x-id`");
        assert_eq!(expected(&path_segment(1)).unwrap(), "the path's segment 1");
    }

    proptest! {
        /// Whatever is encoded in a request, and however badly: a key, none, or the client's mistake.
        #[test]
        fn any_request_has_a_key_or_is_refused(
            segments in proptest::collection::vec("([a/.]|%[0-9a-g]{0,2}|[!-~]){0,6}", 0..4),
            query_string in "(a=|[&;+]|%[0-9a-g]{0,2}|[!-~]){0,8}",
            value in proptest::collection::vec(any::<u8>(), 0..6),
            hashed in any::<bool>(),
        ) {
            let mut request = Request::builder().uri(format!("/{}?{query_string}", segments.join("/")));
            if let Ok(value) = http::HeaderValue::from_bytes(&value) {
                request = request.header("a", value);
            }
            let Ok(request) = request.body(()) else { return Ok(()) };
            for key in [header("a"), query("a"), path_segment(0), path_segment(2)] {
                let key = if hashed { key.hashed() } else { key };
                match key.extract(&request) {
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
