//! The names of a lock's keys at the server, the same as Redisson's. The scripts name the further
//! keys of other kinds.

use std::fmt;

use lock_core::store::{Kind, StoreError, StoreErrorKind};
use lock_core::{LockKey, OwnerId};

use super::hash_slot;
use super::layout::Layout;

/// The beginning of the names of counters in the plain layout.
const PLAIN_COUNTER: &str = "lock_plain_tokens:";
/// The beginning of the name of a lock's channel in the plain layout.
pub(super) const PLAIN_CHANNEL: &str = "lock_plain_channel:";

/// The names of one lock.
#[derive(Clone, Copy, Debug)]
pub(super) struct Names<'a> {
    prefix: &'a str,
    key: &'a LockKey,
    /// The braces that make the lock's name a hash tag, unless it already contains one.
    braces: (&'static str, &'static str),
    counter: Counter,
}

/// The lock's fencing counter.
#[derive(Clone, Copy, Debug)]
enum Counter {
    /// Its own, in Redisson's layout.
    Own,
    /// In the plain layout: that of all locks of a server and prefix.
    Server,
    /// In the plain layout of a cluster: that of all locks of a slot and prefix.
    Slot(u16),
}

impl<'a> Names<'a> {
    pub(super) fn new(prefix: &'a str, key: &'a LockKey) -> Result<Self, StoreError> {
        // A prefix of plain text forms a valid name with every key. The length limits apply to
        // prefix and key separately: a key within its limit never fails because of the prefix.
        if !LockKey::is_plain(prefix)
            && let Err(invalid) = LockKey::check_text(&format!("{prefix}{key}"))
        {
            let what = format!("the manager's prefix and the key do not make a valid name: {invalid}");
            return Err(StoreError::new(StoreErrorKind::Unsupported, what));
        }
        let tagged = prefix.contains('{') || key.as_str().contains('{');
        let braces = if tagged { ("", "") } else { ("{", "}") };
        Ok(Self { prefix, key, braces, counter: Counter::Own })
    }

    /// Returns the names in this layout, on one of several servers or on the only one.
    pub(super) fn laid_out(self, layout: Layout, has_peers: bool) -> Self {
        let counter = match (layout, has_peers) {
            (Layout::Hash, _) => Counter::Own,
            (_, false) => Counter::Server,
            (_, true) => Counter::Slot(hash_slot::slot(&self.lock().to_string())),
        };
        Self { counter, ..self }
    }

    pub(super) fn is_plain(&self) -> bool {
        !matches!(self.counter, Counter::Own)
    }

    fn name(&self, head: &'static str, braces: (&'static str, &'static str)) -> Name<'a> {
        Name([head, braces.0, self.prefix, self.key.as_str(), braces.1])
    }

    /// Returns the key of the lock.
    pub(super) fn lock(&self) -> Name<'a> {
        self.name("", ("", ""))
    }

    /// Returns the key of the fencing counter.
    pub(super) fn counter(&self) -> Name<'a> {
        match self.counter {
            Counter::Own => self.name("redisson_lock_token:", self.braces),
            Counter::Server => Name([PLAIN_COUNTER, self.prefix, "", "", ""]),
            Counter::Slot(slot) => Name([PLAIN_COUNTER, "{", hash_slot::tag(slot), "}:", self.prefix]),
        }
    }

    /// Whether the key of the lock is that of a counter in the plain layout, which is a string too.
    pub(super) fn is_counter(&self) -> bool {
        self.is_plain() && self.lock().to_string().starts_with(PLAIN_COUNTER)
    }

    /// Returns the slot that the counter is for; 0 for a counter of the whole server.
    pub(super) fn slot_of_counter(&self) -> u16 {
        if let Counter::Slot(slot) = self.counter { slot } else { 0 }
    }

    /// Returns the further keys of a fair lock's queue, see scripts/fair_queue.lua.
    pub(super) fn of_queue(&self) -> [Name<'a>; 4] {
        let heads =
            ["redisson_lock_queue:", "redisson_lock_timeout:", "lock_fair_alive:", "lock_fair_managers:"];
        heads.map(|head| self.name(head, self.braces))
    }

    /// Returns the key of a writer's intent, see scripts/rw_names.lua.
    pub(super) fn intent(&self) -> Name<'a> {
        self.name("lock_rw_intent:", self.braces)
    }

    /// Returns the key of a reader's hold, see scripts/rw_names.lua.
    pub(super) fn hold(&self, owner: &OwnerId) -> String {
        format!("{}:{}:rwlock_timeout:1", self.name("", self.braces), owner.as_str())
    }

    /// Returns the key of the hash of a stock in one slot.
    pub(super) fn stock(&self) -> Name<'a> {
        self.name("lock_stock:", self.braces)
    }

    /// Returns the key of a stock's reservations.
    pub(super) fn stock_holds(&self) -> Name<'a> {
        self.name("lock_stock_holds:", self.braces)
    }

    /// Returns the key of the records of a stock's operations.
    pub(super) fn stock_operations(&self) -> Name<'a> {
        self.name("lock_stock_ops:", self.braces)
    }

    /// Returns the channel on which releases of a lock of this kind are announced.
    pub(super) fn channel(&self, kind: Kind) -> Name<'a> {
        match kind {
            _ if self.is_plain() => self.name(PLAIN_CHANNEL, self.braces),
            Kind::Read | Kind::Write => self.name("redisson_rwlock:", self.braces),
            _ => self.name("redisson_lock__channel:", self.braces),
        }
    }
}

/// A name in pieces. Most names are written into a command and never needed as one string.
#[derive(Clone, Copy)]
pub(super) struct Name<'a>([&'a str; 5]);

impl fmt::Display for Name<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|piece| f.write_str(piece))
    }
}

impl fmt::Debug for Name<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.to_string(), f)
    }
}

/// Whether a hash field is one that Redisson's locks or ours write: `mode`, `<id>:<n>` or
/// `<id>:<n>:write`.
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

    fn names(prefix: &str, key: &str) -> Result<[String; 4], StoreError> {
        let key = LockKey::new(key).unwrap();
        let names = Names::new(prefix, &key)?;
        let all = [names.lock(), names.counter(), names.channel(Kind::Mutex), names.channel(Kind::Read)];
        Ok(all.map(|name| name.to_string()))
    }

    #[test]
    fn names_are_redissons() {
        assert_eq!(
            names("lock:", "order:42").unwrap(),
            [
                "lock:order:42",
                "redisson_lock_token:{lock:order:42}",
                "redisson_lock__channel:{lock:order:42}",
                "redisson_rwlock:{lock:order:42}"
            ]
        );
        assert_eq!(
            names("", "{order}:42").unwrap(),
            [
                "{order}:42",
                "redisson_lock_token:{order}:42",
                "redisson_lock__channel:{order}:42",
                "redisson_rwlock:{order}:42"
            ]
        );
    }

    #[test]
    fn prefix_and_key_together_are_a_key() {
        assert!(names("{app}:", "order").is_ok());
        let error = names("{app}:", "{order}").unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Unsupported);
        assert!(error.to_string().contains("hash tag"), "{error}");
        assert!(names("a}", "order").is_err());
    }

    /// A client that sends a long value must not run into an error of the program.
    #[test]
    fn every_key_has_a_name_whatever_the_length_of_the_prefix() {
        let longest = ["k".repeat(LockKey::LONGEST), "ü".repeat(LockKey::LONGEST / 2)];
        for prefix in ["lock:", "ü", &"p".repeat(LockKey::LONGEST - 1)] {
            for key in &longest {
                assert!(names(prefix, key).is_ok());
            }
        }
    }

    #[test]
    fn locks_in_the_plain_layout_share_the_counter_of_their_server_or_slot() {
        let key = LockKey::new("order:42").unwrap();
        let names = Names::new("lock:", &key).unwrap();
        let counter = |layout, has_peers| names.laid_out(layout, has_peers).counter().to_string();
        assert_eq!(counter(Layout::Hash, true), "redisson_lock_token:{lock:order:42}");
        assert_eq!(counter(Layout::Plain, false), "lock_plain_tokens:lock:");
        let of_slot = counter(Layout::PlainByScript, true);
        assert!(of_slot.ends_with("}:lock:"), "{of_slot}");
        assert_eq!(hash_slot::slot(&of_slot), hash_slot::slot("lock:order:42"));
        let channel = names.laid_out(Layout::Plain, true).channel(Kind::Mutex).to_string();
        assert_eq!(channel, "lock_plain_channel:{lock:order:42}");
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
