//! Keyspace events: the server itself announces that a key is gone, if it is configured to do so.
//! They are hints for waiters in the plain layout, since other programs announce no releases.

use std::sync::Arc;

use super::names::{self, Names};

const HEAD: &str = "__keyspace@";

/// Returns the channel with the events of a lock.
pub(super) fn channel(names: &Names<'_>, database: i64) -> Arc<str> {
    Arc::from(format!("{HEAD}{database}__:{}", names.lock()))
}

/// Returns the key that a channel with events is about, or `None` for another channel.
pub(super) fn key_of(channel: &str) -> Option<&str> {
    channel.strip_prefix(HEAD)?.split_once("__:").map(|(_, key)| key)
}

/// Whether a message says the same as an event about `key`, which comes before it.
pub(super) fn repeats(channel: &str, key: &str) -> bool {
    let Some(lock) = channel.strip_prefix(names::PLAIN_CHANNEL) else { return false };
    lock == key || lock.strip_prefix('{').and_then(|lock| lock.strip_suffix('}')) == Some(key)
}

/// Whether an event means that the key is gone.
pub(super) fn is_end(event: &str) -> bool {
    matches!(event, "del" | "expired" | "evicted")
}

#[cfg(test)]
mod tests {
    use super::*;
    use lock_core::LockKey;

    #[test]
    fn a_channel_names_its_key() {
        let key = LockKey::new("a__:b").unwrap();
        let names = Names::new("lock:", &key).unwrap();
        let channel = channel(&names, 3);
        assert_eq!(&*channel, "__keyspace@3__:lock:a__:b");
        assert_eq!(key_of(&channel), Some("lock:a__:b"));
        assert_eq!(key_of("lock_plain_channel:{lock:a}"), None);
        assert!(
            repeats("lock_plain_channel:{lock:a}", "lock:a") && repeats("lock_plain_channel:{l}:a", "{l}:a")
        );
        assert!(!repeats("lock_plain_channel:{lock:b}", "lock:a") && !repeats("lock:a", "lock:a"));
    }
}
