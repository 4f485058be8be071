//! What a lock is called at the server: exactly as Redisson calls it.

use crate::key::LockKey;
use crate::store::{StoreError, StoreErrorKind};

/// The names that belong to one lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Names {
    /// HASH: `{owner: count}`.
    pub(super) lock: String,
    /// STRING: the fencing counter.
    pub(super) counter: String,
    /// Where a release is announced.
    pub(super) channel: String,
}

impl Names {
    /// The names of `key` behind `prefix`.
    ///
    /// Redisson puts braces around a name unless it has a `{` anywhere, whether that is a hash tag or not. A name on
    /// which that rule and Redis Cluster's disagree is refused.
    pub(super) fn new(prefix: &str, key: &LockKey) -> Result<Self, StoreError> {
        let lock = if prefix.is_empty() { key.as_str().to_owned() } else { format!("{prefix}{key}") };
        if (prefix.contains(['{', '}']) || prefix.contains(char::is_control))
            && let Err(invalid) = LockKey::new(&lock)
        {
            return Err(StoreError::new(
                StoreErrorKind::Unsupported,
                format!("the prefix {prefix:?} and the key {key} make no lock name: {}", invalid.reason()),
            ));
        }
        let (open, close) = if lock.contains('{') { ("", "") } else { ("{", "}") };
        Ok(Self {
            counter: format!("redisson_lock_token:{open}{lock}{close}"),
            channel: format!("redisson_lock__channel:{open}{lock}{close}"),
            lock,
        })
    }
}

/// Whether a hash field is one that Redisson's locks and ours write: `mode`, `<id>:<n>` or `<id>:<n>:write`.
pub(super) fn is_lock_field(field: &str) -> bool {
    if field == "mode" {
        return true;
    }
    let owner = field.strip_suffix(":write").unwrap_or(field);
    owner.rsplit_once(':').is_some_and(|(id, number)| {
        !id.is_empty() && !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(prefix: &str, key: &str) -> Result<Names, StoreError> {
        Names::new(prefix, &LockKey::new(key).unwrap())
    }

    #[test]
    fn names_are_redissons() {
        let plain = names("lock:", "order:42").unwrap();
        assert_eq!(plain.lock, "lock:order:42");
        assert_eq!(plain.counter, "redisson_lock_token:{lock:order:42}");
        assert_eq!(plain.channel, "redisson_lock__channel:{lock:order:42}");

        let tagged = names("", "{order}:42").unwrap();
        assert_eq!(tagged.lock, "{order}:42");
        assert_eq!(tagged.counter, "redisson_lock_token:{order}:42");
        assert_eq!(tagged.channel, "redisson_lock__channel:{order}:42");
    }

    #[test]
    fn prefix_and_key_have_one_hash_tag_between_them() {
        assert!(names("{app}:", "order").is_ok());
        let error = names("{app}:", "{order}").unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Unsupported);
        assert!(error.to_string().contains("hash tag"), "{error}");
        assert!(names("a}", "order").is_err());
    }

    #[test]
    fn lock_fields_are_told_from_others() {
        for good in ["mode", "8743c9c0-0795-4907-87fd-6c719a6b4586:7", "a:b:1", "a:1:write"] {
            assert!(is_lock_field(good), "{good}");
        }
        for bad in ["", "name", ":1", "a:", "a:x", "a:1:read", "write", ":write"] {
            assert!(!is_lock_field(bad), "{bad}");
        }
    }
}
