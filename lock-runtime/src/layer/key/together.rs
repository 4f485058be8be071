//! Extractors that combine several others: the first key that is found, or all keys joined.

use std::borrow::Cow;

use http::request::Parts;
use lock_core::LockKey;
use smallvec::SmallVec;

use super::{Found, KeyExtractor, Keys, Rejection, RequestKeys};

/// The first key that several extractors find; made by [`first_of`].
#[derive(Clone, Debug)]
pub struct FirstOf<K>(K);

/// Returns an extractor that asks two to six others in turn, and returns the first key that is
/// found. An extractor that refuses the request ends the search.
///
/// ```
/// use lock_runtime::layer::key::{first_of, header, query};
///
/// let key = first_of((header("x-order-id").prefix("order:"), query("order").prefix("order:")));
/// ```
///
/// The client decides which of these parts it sends: see [what that means for the
/// handler](super#one-thing-one-text).
#[must_use]
pub fn first_of<K>(extractors: K) -> FirstOf<K> {
    FirstOf(extractors)
}

impl<K: tuple::Extractors> KeyExtractor for FirstOf<K> {
    fn extract(&self, head: &mut Parts) -> Found {
        for extractor in self.0.list() {
            if let Some(keys) = extractor.extract(head)? {
                return Ok(Some(keys));
            }
        }
        Ok(None)
    }

    /// One key is enough, so the alternatives are only worth naming if all are known.
    fn expected(&self) -> Option<Cow<'_, str>> {
        let names: Option<Vec<_>> = self.0.list().into_iter().map(KeyExtractor::expected).collect();
        names.map(|names| names.join(" or ").into())
    }
}

/// One key made of the keys of several extractors; made by [`joined`].
#[derive(Clone, Debug)]
pub struct Joined<K> {
    extractors: K,
    prefix: Cow<'static, str>,
}

/// Returns an extractor that joins the keys of two to six others, with `:` between them. A request
/// that lacks one of them has no key.
///
/// ```
/// use lock_runtime::layer::key::{extension, header, joined, path_segment};
///
/// // /acme/orders/42 has the key `order:acme:42`.
/// let order = joined((path_segment(0), path_segment(2))).prefix("order:");
///
/// // An idempotency key belongs to its user.
/// #[derive(Clone)]
/// struct User(u64);
/// let payment = joined((extension(|user: &User| user.0.to_string()), header("idempotency-key").hashed()));
/// let payment = payment.prefix("payment:");
/// ```
///
/// In each part, `:` becomes `%3A` and `%` becomes `%25`, so that two requests have the same key
/// only if all their parts are equal. Set the prefix on the joined key, not on its parts. The
/// attribute does not encode its values: `key = "order:<tenant>:<id>"` is the same lock only for
/// values without `:` and `%`.
#[must_use]
pub fn joined<K>(extractors: K) -> Joined<K> {
    Joined { extractors, prefix: Cow::Borrowed("") }
}

impl<K> Joined<K> {
    /// Puts a text before the key, as [`PartKey::prefix`](super::PartKey::prefix) does.
    ///
    /// # Panics
    ///
    /// If no key can begin with the prefix, for example because of its braces.
    #[must_use]
    #[track_caller]
    pub fn prefix(mut self, prefix: impl Into<Cow<'static, str>>) -> Self {
        self.prefix = super::shape::checked(prefix.into());
        self
    }
}

impl<K: tuple::Extractors> KeyExtractor for Joined<K> {
    fn extract(&self, head: &mut Parts) -> Found {
        let mut text = self.prefix.to_string();
        for (i, extractor) in self.extractors.list().into_iter().enumerate() {
            let key = match extractor.extract(head)?.map(RequestKeys::into_inner) {
                Some(Keys::One(key)) => key,
                Some(Keys::Several(_)) => {
                    return Err(Rejection::misconfigured(
                        "One part of a joined key names several keys; it has to name one.",
                    ));
                }
                None => return Ok(None),
            };
            if i > 0 {
                text.push(':');
            }
            for c in key.as_str().chars() {
                match c {
                    ':' => text.push_str("%3A"),
                    '%' => text.push_str("%25"),
                    _ => text.push(c),
                }
            }
        }
        Ok(Some(LockKey::new(text)?.into()))
    }

    /// All parts are needed, so each known one is worth naming.
    fn expected(&self) -> Option<Cow<'_, str>> {
        let names: Vec<_> = self.extractors.list().into_iter().filter_map(KeyExtractor::expected).collect();
        (!names.is_empty()).then(|| names.join(" and ").into())
    }
}

mod tuple {
    use super::{KeyExtractor, SmallVec};

    /// Two to six extractors, as a tuple.
    #[diagnostic::on_unimplemented(
        message = "`{Self}` is not two to six key extractors",
        label = "expected a tuple, as in `(header(\"x-tenant\"), path_segment(1))`",
        note = "each of them is a `KeyExtractor`; an extractor that has to be awaited can't be among them"
    )]
    pub trait Extractors {
        /// Returns them in their order.
        fn list(&self) -> SmallVec<[&dyn KeyExtractor; 6]>;
    }

    macro_rules! extractors {
        ($($name:ident)+) => {
            impl<$($name: KeyExtractor),+> Extractors for ($($name,)+) {
                #[allow(non_snake_case, reason = "the types' names are at hand")]
                fn list(&self) -> SmallVec<[&dyn KeyExtractor; 6]> {
                    let ($($name,)+) = self;
                    let mut list = SmallVec::new();
                    $(list.push($name as &dyn KeyExtractor);)+
                    list
                }
            }
        };
    }

    extractors!(K1 K2);
    extractors!(K1 K2 K3);
    extractors!(K1 K2 K3 K4);
    extractors!(K1 K2 K3 K4 K5);
    extractors!(K1 K2 K3 K4 K5 K6);
}

#[cfg(test)]
mod tests {
    use http::Request;
    use proptest::prelude::*;

    use super::super::{constant, extension, header, query, text};
    use super::*;

    /// The extractors are asked in the tuple's order, and a refusal ends the search: a bad value is
    /// never silently ignored.
    #[test]
    fn the_first_key_counts() {
        let key = first_of((header("x-order"), query("order"), constant("none")));
        let request = |uri: &str, order: Option<&str>| match order {
            Some(order) => Request::builder().uri(uri).header("x-order", order),
            None => Request::builder().uri(uri),
        };
        assert_eq!(text(&key, request("/?order=2", Some("1"))), Ok(Some("1".into())));
        assert_eq!(text(&key, request("/?order=2", None)), Ok(Some("2".into())));
        assert_eq!(text(&key, request("/", None)), Ok(Some("none".into())));
        assert_eq!(text(&key, request("/?order=2", Some("{1}"))), Err(400));
    }

    /// A client that sent no key is told what it can send.
    #[test]
    fn all_that_would_do_is_expected() {
        let expected = |key: &dyn KeyExtractor| key.expected().map(Cow::into_owned);
        let key = first_of((header("x-order"), query("order")));
        assert_eq!(expected(&key).unwrap(), "the header `x-order` or the query parameter `order`");
        let key = joined((header("x-order"), query("order")));
        assert_eq!(expected(&key).unwrap(), "the header `x-order` and the query parameter `order`");
        let key = first_of((header("x-order"), |_: &Parts| None::<String>));
        assert_eq!(expected(&key), None);
        let key = joined((|_: &Parts| None::<String>, header("x-order")));
        assert_eq!(expected(&key).unwrap(), "the header `x-order`");
    }

    /// All parts make one key. A request without one of them has no key, and the refusal of a part
    /// is passed on.
    #[test]
    fn parts_are_joined() {
        let key = joined((header("x-tenant"), query("order").parsed::<u64>())).prefix("order:");
        let request = |uri: &str, tenant: &str| Request::builder().uri(uri).header("x-tenant", tenant);
        assert_eq!(text(&key, request("/?order=042", "acme")), Ok(Some("order:acme:42".into())));
        assert_eq!(text(&key, request("/", "acme")), Ok(None));
        assert_eq!(text(&key, Request::builder().uri("/?order=1")), Ok(None));
        assert_eq!(text(&key, request("/?order=x", "acme")), Err(400));
        assert_eq!(text(&key, request("/?order=1", "{acme}")), Err(400));
    }

    /// The user comes from an extension, and the rest from the client.
    #[test]
    fn a_key_may_belong_to_a_user() {
        #[derive(Clone)]
        struct User(&'static str);
        let key = joined((extension(|user: &User| user.0), header("idempotency-key"))).prefix("{pay}:");
        let request = |user| Request::builder().extension(User(user)).header("idempotency-key", "k1");
        assert_eq!(text(&key, request("ann")), Ok(Some("{pay}:ann:k1".into())));
        assert_eq!(text(&key, request("{ann}")), Err(400), "one hash tag only");
        let several = joined((extension(|user: &User| [user.0, "x"]), header("idempotency-key")));
        assert_eq!(text(&several, request("ann")), Err(500));
    }

    #[test]
    #[should_panic(expected = "prefix \"{\"")]
    fn a_wrong_prefix_is_told_at_once() {
        let _ = joined((header("a"), header("b"))).prefix("{");
    }

    proptest! {
        /// Two requests have the same key only if all parts are equal.
        #[test]
        fn joined_keys_are_told_apart(a in "[a:%3A]{1,4}", b in "[a:%3A]{1,4}", c in "[a:%3A]{1,4}", d in "[a:%3A]{1,4}") {
            let key = joined((header("x"), header("y")));
            let of = |x: &str, y: &str| text(&key, Request::builder().header("x", x).header("y", y)).unwrap();
            prop_assert_eq!(of(&a, &b) == of(&c, &d), a == c && b == d);
        }
    }
}
