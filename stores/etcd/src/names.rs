//! The names of keys.
//!
//! | key | what it is |
//! |---|---|
//! | `LOCK/LEASE-NUMBER` | an entry of ours; `LEASE` is the lease that it was made with, in hex |
//! | `LOCK/LEASE=NUMBER` | the same in a manager whose [tokens](Tokens) are revisions |
//! | `LOCK/read/LEASE-NUMBER`, `LOCK/write/LEASE-NUMBER` | a reader's or writer's entry of ours |
//! | `LOCK/LEASE` | an entry of `etcdctl` or of `concurrency.Mutex` of etcd's Go client |
//! | `LOCK/read/TIME`, `LOCK/write/TIME` | an entry of `recipes.RWMutex` of that client |
//! | `ROOTlock-epochs/LEASE/SLOT` | an epoch; its version counts withdrawals |
//!
//! The value of an entry of ours is its owner. Names are used [again](crate::numbers).

use std::sync::Arc;

use lock_core::OwnerId;
use lock_store_sequences::{Class, Entry, Session};

/// Under this name are the epochs, and no locks.
pub(crate) const EPOCHS: &str = "lock-epochs";

const READ: &str = "read/";
const WRITE: &str = "write/";

/// The form of the tokens of a manager. Those of different forms can't be compared, so the name
/// of an entry shows the form.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Tokens {
    /// A revision has many, for hand-offs inside a process.
    #[default]
    Scaled,
    /// Revisions, as those of etcd's Go client.
    Revisions,
}

impl Tokens {
    const fn sign(self) -> char {
        match self {
            Self::Scaled => '-',
            Self::Revisions => '=',
        }
    }

    /// Returns the form in the name of an entry; `None` if the entry is not of this library.
    pub(crate) fn of(key: &[u8]) -> Option<Self> {
        let name = std::str::from_utf8(key).ok()?.rsplit('/').next()?;
        [Self::Scaled, Self::Revisions].into_iter().find(|tokens| {
            let parts = name.split_once(tokens.sign());
            parts.is_some_and(|(lease, number)| is_lease(lease) && number.parse::<u32>().is_ok())
        })
    }
}

/// Returns the key of an entry with this number.
pub(crate) fn entry(entered: Session, entry: &Entry, tokens: Tokens, number: u32) -> Vec<u8> {
    let class = match entry.class {
        // There are no permits in etcd.
        Class::Lock | Class::Permit => "",
        Class::Read => READ,
        Class::Write => WRITE,
    };
    format!("{}/{class}{:x}{}{}", entry.lock, entered.0, tokens.sign(), number).into_bytes()
}

/// A range of keys: the first one, and the first one behind it.
pub(crate) type Range = (Vec<u8>, Vec<u8>);

/// Returns the range of the queue of a lock.
pub(crate) fn queue(lock: &str) -> Range {
    // `0` follows `/`.
    (format!("{lock}/").into_bytes(), format!("{lock}0").into_bytes())
}

/// Returns the ranges of those entries that are in the way of an entry of this class.
pub(crate) fn rivals(lock: &str, class: Class) -> Vec<Range> {
    let (begin, end) = queue(lock);
    match class {
        Class::Lock | Class::Write | Class::Permit => vec![(begin, end)],
        // All but the readers.
        Class::Read => {
            let (readers, behind) = (format!("{lock}/{READ}"), format!("{lock}/read0"));
            vec![(begin, readers.into_bytes()), (behind.into_bytes(), end)]
        }
    }
}

/// Returns what an entry in the queue of a lock excludes.
pub(crate) fn class(lock: &str, key: &[u8]) -> Class {
    let rest = key.strip_prefix(lock.as_bytes()).and_then(|rest| rest.strip_prefix(b"/"));
    match rest {
        Some(rest) if rest.starts_with(READ.as_bytes()) => Class::Read,
        Some(rest) if rest.starts_with(WRITE.as_bytes()) => Class::Write,
        _ => Class::Lock,
    }
}

/// Whether entries of this lock could be taken for readers and writers of another one.
pub(crate) fn is_ambiguous(lock: &str) -> bool {
    lock.ends_with("/read") || lock.ends_with("/write")
}

/// Returns the end of the range of keys that begin with `prefix`: the first key behind them. If
/// there can be none, it is the byte zero, which stands for the end of all keys.
pub(crate) fn end_of(prefix: &str) -> Vec<u8> {
    let mut end = prefix.as_bytes().to_vec();
    while let Some(last) = end.pop() {
        if last < u8::MAX {
            end.push(last + 1);
            return end;
        }
    }
    vec![0]
}

/// Returns the key of an epoch.
pub(crate) fn epoch(root: &str, session: Session, slot: usize) -> Vec<u8> {
    format!("{root}{EPOCHS}/{:x}/{slot:x}", session.0).into_bytes()
}

/// Whether a lock with this name would have the epochs in its queue, or be among them.
pub(crate) fn is_reserved(root: &str, lock: &str) -> bool {
    lock.strip_prefix(root)
        .and_then(|name| name.strip_prefix(EPOCHS))
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Returns the owner of an entry. For a foreign one, that is its own name.
pub(crate) fn owner(lock: &str, key: &[u8], value: &[u8]) -> OwnerId {
    if Tokens::of(key).is_some() {
        return OwnerId::new(String::from_utf8_lossy(value));
    }
    let text = String::from_utf8_lossy(key);
    let name = text.strip_prefix(lock).and_then(|rest| rest.strip_prefix('/')).unwrap_or(&text);
    OwnerId::new(name.strip_prefix(READ).or_else(|| name.strip_prefix(WRITE)).unwrap_or(name))
}

/// Returns the lock that a key belongs to: the key without its last part and its class.
pub(crate) fn lock_of(key: &[u8]) -> Option<Arc<str>> {
    let (lock, _) = std::str::from_utf8(key).ok()?.rsplit_once('/')?;
    let lock = lock.strip_suffix("/read").or_else(|| lock.strip_suffix("/write")).unwrap_or(lock);
    Some(Arc::from(lock))
}

fn is_lease(text: &str) -> bool {
    !text.is_empty() && text.len() <= 16 && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}
