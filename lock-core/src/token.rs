//! [`FencingToken`] and [`OwnerId`]: the number of a grant, and the identity of its holder.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The number of a grant: of two grants of one key, the later one has the larger token.
///
/// Pass it to the resource that the lock protects, and let the resource refuse any token smaller
/// than the largest it has seen. Only this stops a holder that was paused past its lease
/// (Kleppmann, *How to do distributed locking*, 2016). Equal tokens are accepted, because
/// re-entrant calls share one.
///
/// Tokens are microseconds of the store's clock used as a counter, below 2^53, so that Lua,
/// JavaScript and JSON carry them exactly.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FencingToken(u64);

impl FencingToken {
    /// Creates a token with this number, for resources that read one back from storage.
    #[must_use]
    pub const fn new(number: u64) -> Self {
        Self(number)
    }

    /// Returns the token's number.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }

    /// Whether a resource that has seen `self` as its largest token may accept `incoming`.
    ///
    /// ```
    /// # use lock_core::FencingToken;
    ///
    /// let seen = FencingToken::new(34);
    /// assert!(seen.admits(FencingToken::new(34)));
    /// assert!(!seen.admits(FencingToken::new(33)));
    /// ```
    #[must_use]
    pub const fn admits(self, incoming: Self) -> bool {
        incoming.0 >= self.0
    }
}

impl fmt::Display for FencingToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for FencingToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FencingToken({})", self.0)
    }
}

impl From<FencingToken> for u64 {
    fn from(token: FencingToken) -> Self {
        token.0
    }
}

/// The identity of a holder at the store: `<manager uuid>:<counter>`, new for every remote hold.
///
/// Redisson's owners are `<client uuid>:<thread id>`. Async tasks move between threads, so a thread
/// id identifies nothing here. The counter takes its place, and no owner is ever reused.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OwnerId(Arc<str>);

impl OwnerId {
    /// Creates an owner with this text. Stores treat it as bytes.
    #[must_use]
    pub fn new(text: impl AsRef<str>) -> Self {
        Self(Arc::from(text.as_ref()))
    }

    /// Returns the owner's text as the store keeps it.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for OwnerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for OwnerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&*self.0, f)
    }
}

/// Makes the owners of one manager.
#[derive(Debug)]
pub struct Owners {
    uuid: String,
    next: AtomicU64,
}

impl Default for Owners {
    /// Starts a new series of owners, with a random UUID.
    fn default() -> Self {
        let mut bytes = crate::internal::chance::random_bytes();
        bytes[6] = (bytes[6] & 0x0f) | 0x40;
        bytes[8] = (bytes[8] & 0x3f) | 0x80;
        let mut uuid = String::with_capacity(36);
        for (i, byte) in bytes.iter().enumerate() {
            if matches!(i, 4 | 6 | 8 | 10) {
                uuid.push('-');
            }
            uuid.push_str(&format!("{byte:02x}"));
        }
        Self { uuid, next: AtomicU64::new(1) }
    }
}

impl Owners {
    /// Returns the UUID that all these owners begin with.
    pub fn uuid(&self) -> &str {
        &self.uuid
    }

    /// Makes another owner.
    pub fn next(&self) -> OwnerId {
        let mut rest = self.next.fetch_add(1, Ordering::Relaxed);
        // 36 bytes for the UUID, 1 for the colon, 20 for the longest number. Avoids `fmt`, since
        // every request makes an owner.
        let mut text = [b':'; 57];
        let (uuid, number) = text.split_at_mut(self.uuid.len());
        uuid.copy_from_slice(self.uuid.as_bytes());
        let digits = rest.checked_ilog10().map_or(1, |log| log as usize + 1);
        for digit in number.iter_mut().skip(1).take(digits).rev() {
            *digit = b'0' + (rest % 10) as u8;
            rest /= 10;
        }
        let length = self.uuid.len() + 1 + digits;
        match text.get(..length).map(std::str::from_utf8) {
            Some(Ok(text)) => OwnerId(text.into()),
            _ => unreachable!("a UUID and a number"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owners_are_uuid_and_counter() {
        let owners = Owners::default();
        assert_eq!(owners.uuid().len(), 36);
        assert_eq!(owners.uuid().as_bytes()[14], b'4');
        assert_eq!(owners.next().as_str(), format!("{}:1", owners.uuid()));
        assert_ne!(owners.next(), owners.next());
        owners.next.store(u64::MAX, Ordering::Relaxed);
        assert_eq!(owners.next().as_str(), format!("{}:{}", owners.uuid(), u64::MAX));
        assert_ne!(Owners::default().uuid(), owners.uuid());
    }
}
