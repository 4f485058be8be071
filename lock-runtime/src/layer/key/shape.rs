//! How a client's value becomes a key.
//!
//! The value is checked first: it may not exceed a length limit or contain control characters or
//! braces. Braces would be a hash tag, with which a client could choose the slot of a cluster and
//! send all locks to one server.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use http::Uri;
use http::request::Parts;
use lock_core::LockKey;
use percent_encoding::{AsciiSet, CONTROLS, percent_decode_str, percent_encode};

use super::{Found, Rejection, RequestKeys};

/// Maximum length of a value in bytes, unless `longest` sets another.
const LONGEST: usize = 256;
/// Maximum length of a method and path that become part of a key unhashed.
const LONGEST_PATH: usize = 1024;
/// Maximum length of a value that is hashed: about what servers accept as the head of a request.
const LONGEST_HASHED: usize = 8192;

/// Characters to encode in a path: those that a key can't have, those that would make another path
/// of it, and the space, which ends it.
const IN_PATHS: &AsciiSet = &CONTROLS.add(b' ').add(b'%').add(b'/').add(b'{').add(b'}');

/// How a client's value becomes a key; shared by all extractors that take one.
#[derive(Clone, Debug)]
pub(super) struct Shape {
    pub(super) prefix: Cow<'static, str>,
    pub(super) longest: Option<usize>,
    pub(super) parse: Option<fn(&str) -> Option<String>>,
    pub(super) form: Form,
    pub(super) reach: Reach,
}

/// Whether the value or its hash is in the key.
#[derive(Clone, Copy, Debug)]
pub(super) enum Form {
    Plain,
    Hashed,
}

/// The requests for which the same value means the same lock.
#[derive(Clone, Copy, Debug)]
pub(super) enum Reach {
    Everywhere,
    MethodAndPath,
    #[cfg(feature = "axum")]
    Route,
}

/// Parses and formats a value, as `PartKey::parsed` does, for one type.
pub(super) fn canonical<T: FromStr + fmt::Display>(text: &str) -> Option<String> {
    text.parse::<T>().ok().map(|value| value.to_string())
}

impl Shape {
    pub(super) const fn new() -> Self {
        Self {
            prefix: Cow::Borrowed(""),
            longest: None,
            parse: None,
            form: Form::Plain,
            reach: Reach::Everywhere,
        }
    }

    /// Returns the key for a client's value, or `None` for an empty value. `part` names the part of
    /// the request in a response to the client.
    pub(super) fn key(&self, head: &Parts, part: &dyn fmt::Display, value: &[u8]) -> Found {
        if value.is_empty() {
            return Ok(None);
        }
        let place = match self.reach {
            Reach::Everywhere => String::new(),
            Reach::MethodAndPath => self.place(head, sent_uri(head).path())?,
            #[cfg(feature = "axum")]
            Reach::Route => self.place(head, super::axum::route(head)?)?,
        };
        let key = match self.form {
            Form::Plain => LockKey::joined(&[&self.prefix, &place, &self.plain(&place, part, value)?]),
            Form::Hashed => LockKey::new(self.hash(&place, part, value)?),
        };
        Ok(Some(RequestKeys::one(key?)))
    }

    fn plain<'v>(
        &self,
        place: &str,
        part: &dyn fmt::Display,
        value: &'v [u8],
    ) -> Result<Cow<'v, str>, Rejection> {
        let room = LockKey::LONGEST.saturating_sub(self.prefix.len() + place.len());
        let limit = self.longest.unwrap_or(LONGEST).min(room);
        refuse_longer(limit, part, value.len())?;
        let text = self.text(part, value)?;
        refuse_longer(room, part, text.len())?;
        if text.contains(['{', '}']) {
            return Err(Rejection::new(format!("The {part} has braces, which are not allowed in it.")));
        }
        if text.chars().any(|c| c.is_control() || is_invisible(c)) {
            return Err(Rejection::new(format!(
                "The {part} has control characters or invisible characters, which are not allowed in it."
            )));
        }
        Ok(text)
    }

    fn hash(&self, place: &str, part: &dyn fmt::Display, value: &[u8]) -> Result<String, Rejection> {
        refuse_longer(self.longest.unwrap_or(LONGEST_HASHED).min(LONGEST_HASHED), part, value.len())?;
        let mut hash = sha1_smol::Sha1::from(place);
        match self.parse {
            Some(_) => hash.update(self.text(part, value)?.as_bytes()),
            None => hash.update(value),
        }
        Ok(format!("{}{}", self.prefix, hash.digest()))
    }

    fn text<'v>(&self, part: &dyn fmt::Display, value: &'v [u8]) -> Result<Cow<'v, str>, Rejection> {
        let text = str::from_utf8(value)
            .map_err(|_| Rejection::new(format!("The {part} is not valid UTF-8 text.")))?;
        match self.parse {
            None => Ok(Cow::Borrowed(text)),
            Some(parse) => match parse(text) {
                Some(text) => Ok(Cow::Owned(text)),
                None => Err(Rejection::new(format!("The {part} has the wrong format."))),
            },
        }
    }

    /// Returns method and path, each followed by a space, as in `POST /orders `. Two encodings of
    /// one path yield the same text.
    fn place(&self, head: &Parts, path: &str) -> Result<String, Rejection> {
        let limit = match self.form {
            Form::Plain => LONGEST_PATH,
            Form::Hashed => LONGEST_HASHED,
        };
        let method = head.method.as_str();
        let length = method.len() + path.len() + 2;
        let mut place = String::with_capacity(length.min(limit));
        place.push_str(method);
        let mut before = ' ';
        for segment in path.split('/') {
            place.push(before);
            let decoded = Cow::<[u8]>::from(percent_decode_str(segment));
            place.extend(percent_encode(&decoded, IN_PATHS));
            before = '/';
        }
        place.push(' ');
        refuse_longer(limit, &"path", length.max(place.len()))?;
        Ok(place)
    }
}

/// Returns the URI that the client sent. Inside `nest`, axum has removed the nested router's prefix
/// from the request's own URI.
fn sent_uri(head: &Parts) -> &Uri {
    #[cfg(feature = "axum")]
    if let Some(original) = head.extensions.get::<axum::extract::OriginalUri>() {
        return &original.0;
    }
    &head.uri
}

/// Returns the prefix, and panics if no key can begin with it, even with a hash behind it.
#[track_caller]
#[expect(clippy::panic, reason = "a mistake in the program, known when it starts")]
pub(super) fn checked(prefix: Cow<'static, str>) -> Cow<'static, str> {
    match LockKey::joined(&[&prefix, &"0".repeat(40)]) {
        Ok(_) => prefix,
        Err(error) => panic!("no lock key can begin with the prefix {prefix:?}: {}", error.reason()),
    }
}

/// Whether a character is invisible, has no width, or changes the direction of text. These are
/// Unicode's format characters, line and paragraph separators, variation selectors, and blanks that
/// count as letters. Two keys that differ only in such a character look the same.
fn is_invisible(c: char) -> bool {
    matches!(c, '\u{ad}' | '\u{600}'..='\u{605}' | '\u{61c}' | '\u{6dd}' | '\u{70f}' | '\u{890}'..='\u{891}' | '\u{8e2}')
        || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}')
        || matches!(c, '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{110bd}' | '\u{110cd}' | '\u{13430}'..='\u{1343f}')
        || matches!(c, '\u{34f}' | '\u{115f}'..='\u{1160}' | '\u{17b4}'..='\u{17b5}' | '\u{180b}'..='\u{180f}')
        || matches!(c, '\u{2800}' | '\u{3164}' | '\u{fe00}'..='\u{fe0f}' | '\u{ffa0}' | '\u{e0100}'..='\u{e01ef}')
        || matches!(c, '\u{1bca0}'..='\u{1bca3}' | '\u{1d173}'..='\u{1d17a}' | '\u{e0001}' | '\u{e0020}'..='\u{e007f}')
}

fn refuse_longer(limit: usize, part: &dyn fmt::Display, length: usize) -> Result<(), Rejection> {
    if length > limit {
        return Err(Rejection::new(format!("The {part} is longer than {limit} bytes; send a shorter one.")));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use http::Request;

    use super::super::{Keys, PartKey, header};
    use super::*;

    fn shape() -> PartKey {
        header("x")
    }

    fn key_at(key: &PartKey, method: &str, uri: &str, value: &[u8]) -> Result<Option<String>, u16> {
        let request = Request::builder().method(method).uri(uri).body(()).unwrap();
        match key.shape.key(&request.into_parts().0, &"part", value) {
            Ok(Some(keys)) => match keys.into_inner() {
                Keys::One(key) => Ok(Some(key.to_string())),
                Keys::Several(_) => panic!("several keys"),
            },
            Ok(None) => Ok(None),
            Err(rejection) => Err(rejection.status().as_u16()),
        }
    }

    fn key(key: &PartKey, value: &[u8]) -> Result<Option<String>, u16> {
        key_at(key, "POST", "/", value)
    }

    fn found(text: &str) -> Result<Option<String>, u16> {
        Ok(Some(text.to_owned()))
    }

    /// The key is the prefix followed by the value.
    #[test]
    fn a_key_is_prefix_and_value() {
        assert_eq!(key(&shape(), b"42"), found("42"));
        assert_eq!(key(&shape().prefix("order:"), b"42"), found("order:42"));
        assert_eq!(key(&shape().prefix("{shop}:"), b"42"), found("{shop}:42"));
        assert_eq!(key(&shape().prefix("order:"), b""), Ok(None));
        assert_eq!(key(&shape().hashed(), b""), Ok(None));
    }

    /// A client can't choose a slot, or break a line of a log.
    #[test]
    fn braces_and_control_characters_are_refused() {
        for bad in ["{1}", "{", "}", "a\nb", "a\0", "\u{85}"] {
            assert_eq!(key(&shape(), bad.as_bytes()), Err(400), "{bad:?}");
            assert!(key(&shape().hashed(), bad.as_bytes()).is_ok(), "{bad:?}");
        }
        assert_eq!(key(&shape(), b"\xff"), Err(400));
    }

    /// The limit counts bytes: 256 by default, and 8 KiB for a hashed value, which can't be raised.
    #[test]
    fn long_values_are_refused() {
        assert_eq!(key(&shape(), &[b'a'; 256]), found(&"a".repeat(256)));
        assert_eq!(key(&shape(), &[b'a'; 257]), Err(400));
        assert_eq!(key(&shape().longest(2), "aä".as_bytes()), Err(400));
        assert_eq!(key(&shape().longest(3), "aä".as_bytes()), found("aä"));
        assert_eq!(key(&shape().hashed().longest(2), b"abc"), Err(400));
        assert!(key(&shape().hashed(), &[b'a'; 8192]).is_ok());
        assert_eq!(key(&shape().hashed().longest(10_000), &[b'a'; 8193]), Err(400));
    }

    /// A limit above that of keys is lowered to it: a longer value is the client's mistake, not the
    /// program's.
    #[test]
    fn no_key_is_longer_than_keys_are() {
        let builder = shape().prefix("order:").longest(usize::MAX);
        assert_eq!(key(&builder, &[b'a'; 4090]).unwrap().unwrap().len(), 4096);
        assert_eq!(key(&builder, &[b'a'; 4091]), Err(400));
    }

    /// A prefix that no key can begin with panics when the program starts.
    #[test]
    fn a_wrong_prefix_is_told_at_once() {
        for wrong in ["{order:", "{}", "a\nb", &"x".repeat(4057)] {
            let wrong = wrong.to_owned();
            assert!(std::panic::catch_unwind(|| shape().prefix(wrong)).is_err());
        }
    }

    /// Two keys that look the same are the same.
    #[test]
    fn invisible_characters_are_refused() {
        for bad in [
            "a\u{200b}",
            "\u{202e}a",
            "a\u{2028}",
            "\u{feff}a",
            "a\u{ad}b",
            "\u{2066}a",
            "a\u{fe0f}",
            "\u{3164}",
            "a\u{e0100}",
        ] {
            assert_eq!(key(&shape(), bad.as_bytes()), Err(400), "{bad:?}");
        }
        for good in ["Grüße", "日本語", "العربية", "e\u{301}"] {
            assert_eq!(key(&shape(), good.as_bytes()), found(good));
        }
    }

    /// The hash is SHA-1 in lowercase hexadecimal digits, so that other programs can compute the
    /// same key.
    #[test]
    fn a_hash_is_sha1() {
        let hash = "a9993e364706816aba3e25717850c26c9cd0d89d";
        assert_eq!(key(&shape().prefix("h:").hashed(), b"abc"), found(&format!("h:{hash}")));
        assert!(key(&shape().hashed(), b"\xff\0").unwrap().is_some());
    }

    /// Texts that mean the same thing are one key.
    #[test]
    fn what_is_parsed_has_one_key() {
        let builder = shape().prefix("order:").parsed::<u64>();
        for same in ["7", "007", "+7"] {
            assert_eq!(key(&builder, same.as_bytes()), found("order:7"), "{same}");
        }
        for bad in ["seven", "-7", "7 ", "99999999999999999999"] {
            assert_eq!(key(&builder, bad.as_bytes()), Err(400), "{bad}");
        }
        let hashed = shape().parsed::<u64>().hashed();
        assert_eq!(key(&hashed, b"007"), key(&hashed, b"7"));
        assert_eq!(key(&shape().parsed::<String>(), b"{1}"), Err(400));
    }

    /// The key is the method, the path and the value, separated by a space that the path can't
    /// contain.
    #[test]
    fn a_key_may_belong_to_a_method_and_path() {
        let shape = shape().prefix("idempotency:").of_method_and_path();
        assert_eq!(key_at(&shape, "POST", "/orders?x=1", b"42"), found("idempotency:POST /orders 42"));
        assert_eq!(
            key_at(&shape, "PUT", "/a/{b}/%7bc%7D%20d", b"1"),
            found("idempotency:PUT /a/%7Bb%7D/%7Bc%7D%20d 1")
        );
        assert_eq!(key_at(&shape, "PUT", "/%61%2fb", b"1"), found("idempotency:PUT /a%2Fb 1"));
        assert_eq!(key_at(&shape, "PUT", "/a/b", b"1"), found("idempotency:PUT /a/b 1"));
        assert_eq!(key_at(&shape, "PUT", &format!("/{}", "a".repeat(1024)), b"1"), Err(400));
    }

    /// The hash covers method, path and value.
    #[test]
    fn a_hash_may_belong_to_a_method_and_path() {
        let shape = shape().hashed().of_method_and_path();
        let keys = [
            key_at(&shape, "POST", "/a", b"1"),
            key_at(&shape, "PUT", "/a", b"1"),
            key_at(&shape, "POST", "/a%201", b"1"),
            key_at(&shape, "POST", "/a", b"1 1"),
        ];
        for (i, key) in keys.iter().enumerate() {
            assert_eq!(key.as_ref().unwrap().as_ref().unwrap().len(), 40);
            assert!(!keys[..i].contains(key));
        }
    }

    const PREFIX: &str = "{tenant}:";

    proptest! {
        /// Any value yields a key, no key, or a refusal that blames the client.
        #[test]
        fn any_value_is_a_key_or_refused(
            value in proptest::collection::vec(any::<u8>(), 0..600),
            path in "/[ -~]{0,40}",
            builds in 0..16_u8,
        ) {
            let mut builder = shape().prefix(PREFIX);
            if builds & 1 != 0 { builder = builder.hashed(); }
            if builds & 2 != 0 { builder = builder.of_method_and_path(); }
            if builds & 4 != 0 { builder = builder.parsed::<f64>(); }
            if builds & 8 != 0 { builder = builder.longest(5000); }
            let Ok(request) = Request::post(path).body(()) else { return Ok(()) };
            match builder.shape.key(&request.into_parts().0, &"part", &value) {
                Ok(Some(keys)) => match keys.into_inner() {
                    Keys::One(key) => {
                        prop_assert!(key.as_str().starts_with(PREFIX));
                        prop_assert!(LockKey::new(key.as_str()).is_ok());
                    }
                    Keys::Several(_) => prop_assert!(false),
                },
                Ok(None) => prop_assert!(value.is_empty()),
                Err(rejection) => prop_assert_eq!(rejection.status().as_u16(), 400),
            }
        }

        /// Two paths are the same place only if their segments are equal, and a value can't extend
        /// into the path.
        #[test]
        fn places_are_told_apart(
            a in proptest::collection::vec("[a /{}%]{0,3}", 1..4),
            b in proptest::collection::vec("[a /{}%]{0,3}", 1..4),
            values in ("[a ]{1,2}", "[a ]{1,2}"),
        ) {
            let path = |segments: &[String]| {
                let encode = |text: &String| percent_encode(text.as_bytes(), percent_encoding::NON_ALPHANUMERIC).to_string();
                format!("/{}", segments.iter().map(encode).collect::<Vec<_>>().join("/"))
            };
            let shape = shape().of_method_and_path();
            let one = key_at(&shape, "POST", &path(&a), values.0.as_bytes());
            let other = key_at(&shape, "POST", &path(&b), values.1.as_bytes());
            prop_assert_eq!(one == other, a == b && values.0 == values.1);
        }
    }
}
