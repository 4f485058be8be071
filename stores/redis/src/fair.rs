//! The channel of a fair lock's waiter and the messages on it. The rest is in `scripts/fair_*.lua`.

use lock_core::store::{Kind, Moment, Notice};
use lock_core::{FencingToken, OwnerId};

use super::names::Names;

/// Returns the channel on which a waiter is told that it is its turn. The name is Redisson's.
pub(super) fn channel(names: &Names<'_>, owner: &OwnerId) -> String {
    format!("{}:{}", names.channel(Kind::Fair), owner.as_str())
}

/// Reads a message: `g:<token>:<server us>` says that the lock was granted, any other message that
/// a retry is worthwhile.
pub(super) fn notice(message: &str) -> Notice {
    granted(message).unwrap_or(Notice::Retry)
}

fn granted(message: &str) -> Option<Notice> {
    let (token, micros) = message.strip_prefix("g:")?.split_once(':')?;
    let number = |text: &str| {
        let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        text.parse::<u64>().ok().filter(|_| digits)
    };
    Some(Notice::Granted { token: FencingToken::new(number(token)?), moment: Moment::new(number(micros)?) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use lock_core::LockKey;

    #[test]
    fn the_channel_of_a_waiter_is_redissons() {
        let key = LockKey::new("order:42").unwrap();
        let names = Names::new("lock:", &key).unwrap();
        let channel = channel(&names, &OwnerId::new("8743c9c0:7"));
        assert_eq!(channel, "redisson_lock__channel:{lock:order:42}:8743c9c0:7");
    }

    #[test]
    fn only_a_well_formed_grant_is_one() {
        let granted = Notice::Granted {
            token: FencingToken::new(1_700_000_000_000_001),
            moment: Moment::new(1_700_000_000_000_000),
        };
        assert_eq!(notice("g:1700000000000001:1700000000000000"), granted);
        for other in
            ["0", "1", "", "g", "g:", "g:1", "g::", "g:1:", "g:+1:2", "g:x:2", "g:1:2:3", "g:-1:2", "h:1:2"]
        {
            assert_eq!(notice(other), Notice::Retry, "{other:?}");
        }
        let largest = format!("g:{}:{}", u64::MAX, u64::MAX);
        assert!(matches!(notice(&largest), Notice::Granted { .. }));
        assert_eq!(notice("g:18446744073709551616:1"), Notice::Retry);
    }
}
