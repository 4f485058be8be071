//! The names of nodes.
//!
//! | path | what it is |
//! |---|---|
//! | `LOCK/_c_UUID-lock-NUMBER` | an entry, of Curator's `InterProcessMutex` or of ours |
//! | `LOCK/_c_UUID-__READ__NUMBER`, `LOCK/_c_UUID-__WRIT__NUMBER` | those of readers and writers |
//! | `SEMAPHORE/leases/_c_UUID-lease-NUMBER` | a permit, of Curator's `InterProcessSemaphoreV2` or of ours |
//! | `SEMAPHORE/locks` | the mutex of Curator's clients while they take a permit |
//! | `SEMAPHORE/permits` | the number of permits, as Curator's `SharedCount` |
//! | `ROOT/lock-sessions/SESSION-SLOT` | an epoch; its version counts withdrawals |
//! | `ROOT/lock-sessions/SESSION-beat` | written by heartbeats |
//!
//! The number is the server's. The UUID of an entry of ours has the session and a hash of the
//! owner, and its data is the owner. That of a permit is the permit's id.

use std::hash::{DefaultHasher, Hash, Hasher};

use lock_store_sequences::{Class, Entry, Session};

/// Under this name in the root are the nodes of sessions, and no locks.
pub(crate) const SESSIONS: &str = "lock-sessions";

/// In front of the UUID of an entry.
const PROTECTED: &str = "_c_";

const LOCK: &str = "lock-";
const READ: &str = "__READ__";
const WRITE: &str = "__WRIT__";
const LEASE: &str = "lease-";

/// Behind the name of a semaphore: its permits,
pub(crate) const LEASES: &str = "/leases";
/// how many there are,
const PERMITS: &str = "permits";
/// and the mutex of Curator's clients.
const LOCKS: &str = "locks";

/// The number from which on the entries of a directory are refused. The server's numbers have 32
/// bits, and those behind the last one are negative.
const TOO_HIGH: i64 = (1 << 31) - (1 << 20);

const fn text_of(class: Class) -> &'static str {
    match class {
        Class::Lock => LOCK,
        Class::Read => READ,
        Class::Write => WRITE,
        Class::Permit => LEASE,
    }
}

/// An entry, by its name in the directory of a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Named {
    pub(crate) class: Class,
    pub(crate) number: i64,
}

impl Named {
    /// Reads the name of an entry; `None` if the node is no entry.
    pub(crate) fn read(name: &str) -> Option<Self> {
        [Class::Lock, Class::Read, Class::Write].into_iter().find_map(|class| Self::of(class, name))
    }

    /// Reads the name of an entry of this class.
    pub(crate) fn of(class: Class, name: &str) -> Option<Self> {
        let at = name.rfind(text_of(class))?;
        let digits = name.get(at + text_of(class).len()..)?;
        let unsigned = digits.strip_prefix('-').unwrap_or(digits);
        let are_digits = unsigned.len() >= 10 && unsigned.bytes().all(|byte| byte.is_ascii_digit());
        Some(Self { class, number: digits.parse().ok().filter(|_| are_digits)? })
    }

    /// Whether the numbers of its directory are about to end.
    pub(crate) const fn is_too_high(self) -> bool {
        self.number < 0 || self.number >= TOO_HIGH
    }
}

/// Returns the path of an entry without its number.
pub(crate) fn path_of(entry: &Entry, session: Session) -> String {
    format!("{}/{}{}", entry.lock, tag(entry, session), text_of(entry.class))
}

/// Returns the path of an entry with this number.
pub(crate) fn numbered(entry: &Entry, session: Session, number: i64) -> String {
    format!("{}{number:010}", path_of(entry, session))
}

/// Returns the beginning of the name of an entry, up to its kind.
pub(crate) fn tag(entry: &Entry, session: Session) -> String {
    let mut hasher = DefaultHasher::new();
    (entry.class, &entry.owner).hash(&mut hasher);
    let (hash, session) = (hasher.finish(), session.0);
    // A UUID of version 8, whose content is free.
    let (high, low) = (session >> 16 & 0xffff_ffff_ffff, session & 0xffff);
    let (version, variant) = (0x8000 | hash >> 52, 0x8000 | hash >> 38 & 0x3fff);
    let rest = (low as u64) << 32 | hash & 0xffff_ffff;
    format!("{PROTECTED}{:08x}-{:04x}-{version:04x}-{variant:04x}-{rest:012x}-", high >> 16, high & 0xffff)
}

/// Whether a part of a lock's name could be taken for an entry of another lock.
pub(crate) fn is_entry(part: &str) -> bool {
    Named::read(part).is_some()
}

/// Returns the path of the number of permits, beside the permits.
pub(crate) fn permits(leases: &str) -> String {
    format!("{}/{PERMITS}", split(leases).0)
}

/// Returns the path of the mutex of Curator's clients, beside the permits.
pub(crate) fn locks(leases: &str) -> String {
    format!("{}/{LOCKS}", split(leases).0)
}

/// Whether a directory with these nodes is a semaphore, and so this one is a part of it.
pub(crate) fn is_part_of_semaphore(all: &[String], name: &str) -> bool {
    let leases = split(LEASES).1;
    let is_semaphore = all.iter().any(|other| other == leases || other == PERMITS);
    is_semaphore && [leases, PERMITS, LOCKS].contains(&name)
}

/// Returns the directory of a node, and its name in there.
pub(crate) fn split(path: &str) -> (&str, &str) {
    let (parent, name) = path.rsplit_once('/').unwrap_or(("", path));
    (if parent.is_empty() { "/" } else { parent }, name)
}

/// Returns the path of the root itself, which ends with a `/`.
pub(crate) fn directory(root: &str) -> &str {
    if root == "/" { root } else { root.trim_end_matches('/') }
}

/// Returns the directory with the nodes of sessions.
pub(crate) fn sessions(root: &str) -> String {
    format!("{root}{SESSIONS}")
}

/// Returns the path of an epoch.
pub(crate) fn epoch(root: &str, session: Session, slot: usize) -> String {
    format!("{}/{:016x}-{slot}", sessions(root), session.0)
}

/// Returns the path of the node that heartbeats write.
pub(crate) fn beat(root: &str, session: Session) -> String {
    format!("{}/{:016x}-beat", sessions(root), session.0)
}

/// Says why a lock can't have this path; `None` if it can.
pub(crate) fn fault(root: &str, lock: &str) -> Option<&'static str> {
    let name = lock.strip_prefix(root)?;
    let is_odd = |c: char| {
        c.is_control() || ('\u{e000}'..='\u{f8ff}').contains(&c) || ('\u{fff0}'..='\u{ffff}').contains(&c)
    };
    let mut parts = name.split('/');
    match parts.clone().next() {
        Some(SESSIONS) => return Some("has the nodes of sessions; use another name than `lock-sessions`"),
        Some("zookeeper") if root == "/" => return Some("is ZooKeeper's own; use another name"),
        _ => {}
    }
    if parts.clone().any(str::is_empty) {
        return Some("has an empty part; a `/` stands between two parts");
    }
    if parts.clone().any(|part| part == "." || part == "..") {
        return Some("has a part `.` or `..`, which ZooKeeper refuses");
    }
    if name.chars().any(is_odd) {
        return Some("has a character that ZooKeeper refuses; use printable ones");
    }
    parts.any(is_entry).then_some("looks like an entry of a lock; use another name")
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use lock_core::OwnerId;

    use super::*;

    fn entry(class: Class, owner: &str) -> Entry {
        Entry { lock: Arc::from("/locks/a"), class, owner: OwnerId::new(owner) }
    }

    #[test]
    fn names_of_curator_and_of_others_are_read() {
        let uuid = "_c_b5e3b1f1-9ae5-4fd0-9ecd-5b3c19e8a1d2-";
        for (name, class, number) in [
            (format!("{uuid}lock-0000000007"), Class::Lock, 7),
            (format!("{uuid}__READ__0000000000"), Class::Read, 0),
            (format!("{uuid}__WRIT__2147483647"), Class::Write, i64::from(i32::MAX)),
            ("lock-0000000003".to_owned(), Class::Lock, 3),
            (format!("{uuid}lock--2147483648"), Class::Lock, i64::from(i32::MIN)),
        ] {
            assert_eq!(Named::read(&name), Some(Named { class, number }), "{name}");
        }
        for name in ["", "42", "leases", "lock-", "lock-7", "lock-000000000x", "a__READ__", "lock-+000000001"]
        {
            assert_eq!(Named::read(name), None, "{name}");
        }
    }

    #[test]
    fn numbers_near_their_end_are_too_high() {
        for (number, is_too_high) in
            [(0, false), (TOO_HIGH - 1, false), (TOO_HIGH, true), (-1, true), (i64::from(i32::MIN), true)]
        {
            assert_eq!(Named { class: Class::Lock, number }.is_too_high(), is_too_high, "{number}");
        }
    }

    #[test]
    fn a_name_of_ours_is_a_uuid_for_curator_and_of_one_owner_in_one_session() {
        let path = numbered(&entry(Class::Lock, "m:1"), Session(0x0100_2003_4005_6007), 12);
        let name = path.strip_prefix("/locks/a/_c_").unwrap();
        let (uuid, rest) = name.split_at(36);
        assert_eq!(rest, "-lock-0000000012");
        let lengths: Vec<_> = uuid.split('-').map(str::len).collect();
        assert_eq!(lengths, [8, 4, 4, 4, 12]);
        assert!(uuid.starts_with("01002003-4005-8") && uuid.contains("-6007"), "{uuid}");
        assert!(uuid.bytes().all(|byte| byte == b'-' || byte.is_ascii_hexdigit()), "{uuid}");
        let all = [(Class::Lock, "m:1"), (Class::Lock, "m:2"), (Class::Read, "m:1"), (Class::Write, "m:1")];
        let mut tags: Vec<_> = [Session(1), Session(-2)]
            .iter()
            .flat_map(|session| all.map(|(class, owner)| tag(&entry(class, owner), *session)))
            .collect();
        tags.sort();
        tags.dedup();
        assert_eq!(tags.len(), 8);
        assert!(tags.iter().all(|tag| tag.len() == 40), "{tags:?}");
    }

    #[test]
    fn names_that_zookeeper_or_other_locks_could_not_bear_are_refused() {
        for (root, lock, said) in [
            ("/locks/", "/locks/order:1", None),
            ("/locks/", "/locks/order/1", None),
            ("/", "/lock-sessions2", None),
            ("/locks/", "/locks/zookeeper", None),
            ("/", "/zookeeper/x", Some("own")),
            ("/locks/", "/locks/lock-sessions", Some("sessions")),
            ("/locks/", "/locks/lock-sessions/7", Some("sessions")),
            ("/locks/", "/locks/", Some("empty")),
            ("/locks/", "/locks/a//b", Some("empty")),
            ("/locks/", "/locks/a/", Some("empty")),
            ("/locks/", "/locks/a/../b", Some("..")),
            ("/locks/", "/locks/a\u{7}", Some("character")),
            ("/locks/", "/locks/a\u{f000}", Some("character")),
            ("/locks/", "/locks/a/lock-0000000001", Some("entry")),
        ] {
            let found = fault(root, lock);
            assert_eq!(found.is_some(), said.is_some(), "{lock}: {found:?}");
            assert!(found.unwrap_or_default().contains(said.unwrap_or_default()), "{lock}: {found:?}");
        }
    }
}
