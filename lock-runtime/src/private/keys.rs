//! [`Keys`]: the keys of an annotated function that has several.

use std::vec;

use lock_core::IntoLockKey;
use lock_core::store::Kind;

use super::key_text::KeyText;
use super::origin::Origin;
use crate::kinds::MultiKey;

/// An element of `keys = […]`: a key, which gets the function's kind, or a [`MultiKey`], which has
/// its own.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a lock key",
    label = "expected keys, each a `LockKey`, `&str`, `String` or `MultiKey`",
    note = "build the text first: `format!(\"order:{{id}}\")`"
)]
pub trait KeyOfKind {
    /// Returns the key, of `kind` if it has none yet.
    fn of_kind(self, kind: Kind) -> MultiKey;
}

#[diagnostic::do_not_recommend]
impl<K: IntoLockKey> KeyOfKind for K {
    fn of_kind(self, kind: Kind) -> MultiKey {
        MultiKey::new(self, kind)
    }
}

impl KeyOfKind for MultiKey {
    fn of_kind(self, _: Kind) -> MultiKey {
        self
    }
}

impl KeyOfKind for &MultiKey {
    fn of_kind(self, _: Kind) -> MultiKey {
        self.clone()
    }
}

/// The value of `keys`: anything to iterate over whose items are keys.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not several lock keys",
    label = "expected an array, a `Vec` or an iterator of `LockKey`, `&str`, `String` or `MultiKey`",
    note = "use `key = …` for a single key"
)]
pub trait SomeKeys {
    /// Adds the items to `keys`.
    fn add_to(self, keys: Keys, origin: Origin) -> Keys;
}

#[diagnostic::do_not_recommend]
impl<I: IntoIterator<Item: KeyOfKind>> SomeKeys for I {
    fn add_to(self, keys: Keys, origin: Origin) -> Keys {
        self.into_iter().fold(keys, |keys, key| keys.key(key, origin))
    }
}

/// Several keys under construction.
#[derive(Debug)]
pub struct Keys {
    kind: Kind,
    prefix: Option<KeyText>,
    keys: Vec<MultiKey>,
}

impl Keys {
    /// Returns an empty list. Keys that are added without a kind get this one.
    #[must_use]
    pub fn of(kind: Kind) -> Self {
        Self { kind, prefix: None, keys: Vec::new() }
    }

    /// Puts `prefix` before every key that is added later.
    #[must_use]
    pub fn starting_with(mut self, prefix: KeyText) -> Self {
        self.prefix = Some(prefix);
        self
    }

    /// Adds the key that `write` makes from the prefix.
    #[must_use]
    pub fn text<K: KeyOfKind>(mut self, write: impl FnOnce(KeyText) -> K) -> Self {
        let start = self.prefix.clone().unwrap_or_else(|| KeyText::with_capacity(0));
        self.keys.push(write(start).of_kind(self.kind));
        self
    }

    /// Adds a key, which has to be valid without the prefix, too.
    #[must_use]
    pub fn key<K: KeyOfKind>(mut self, key: K, origin: Origin) -> Self {
        let key = key.of_kind(self.kind).rename(|key| origin.checked(key));
        self.keys.push(match &self.prefix {
            None => key,
            Some(prefix) => key.rename(|key| prefix.clone().key(key)),
        });
        self
    }

    /// Adds several keys.
    #[must_use]
    pub fn all<K: SomeKeys>(self, keys: K, origin: Origin) -> Self {
        keys.add_to(self, origin)
    }
}

impl IntoIterator for Keys {
    type Item = MultiKey;
    type IntoIter = vec::IntoIter<MultiKey>;

    fn into_iter(self) -> Self::IntoIter {
        self.keys.into_iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::sorted;

    /// Returns the sorted keys, each with its kind.
    fn taken(keys: Keys) -> Vec<(String, Kind)> {
        let (first, spec) = sorted(keys).unwrap();
        let all = std::iter::once((first, spec.kind)).chain(spec.more);
        all.map(|(key, kind)| (key.to_string(), kind)).collect()
    }

    #[test]
    fn a_bare_key_is_of_the_kind_and_others_keep_theirs() {
        let keys = Keys::of(Kind::Write)
            .text(|start| start.text("b"))
            .text(|start| MultiKey::read(start.text("a")))
            .key(MultiKey::fair("c"), Origin::Constant)
            .all(["d", "e"], Origin::Constant);
        let kinds = [Kind::Read, Kind::Write, Kind::Fair, Kind::Write, Kind::Write];
        let names = ["a", "b", "c", "d", "e"].map(str::to_owned);
        assert_eq!(taken(keys), names.into_iter().zip(kinds).collect::<Vec<_>>());
    }

    #[test]
    fn the_prefix_goes_before_every_key() {
        let prefix = KeyText::with_capacity(0).prefix("{t}:", Origin::Constant);
        let keys = Keys::of(Kind::Mutex)
            .starting_with(prefix)
            .text(|start| start.value("<id>", &1))
            .key(MultiKey::read("2"), Origin::Constant)
            .all([&"3"], Origin::Constant);
        let names: Vec<_> = taken(keys).into_iter().map(|(name, _)| name).collect();
        assert_eq!(names, ["{t}:1", "{t}:2", "{t}:3"]);
    }

    #[test]
    fn one_bad_key_refuses_them_all() {
        let keys =
            Keys::of(Kind::Mutex).key("a", Origin::Constant).text(|start| start.text("b:").value("<id>", ""));
        let error = sorted(keys).unwrap_err();
        assert!(error.to_string().contains("<id>"), "{error}");
    }
}
