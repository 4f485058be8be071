//! Reads of keys and queues, and the places that they tell.

use std::sync::Arc;

use lock_core::store::{StoreError, StoreErrorKind};
use lock_store_sequences::{Before, Listed, Session};

use crate::messages::{
    ASCENDING, BY_CREATION, DESCENDING, Header, KeyValue, Op, RangeRequest, RangeResponse, RequestOp,
};
use crate::names::{self, Tokens};

/// Reads a key.
pub(crate) fn get(key: Vec<u8>) -> RequestOp {
    Op::Range(RangeRequest { key, ..RangeRequest::default() }).into()
}

/// Reads the last entries of a range, newest first: those that are older than `born`.
pub(crate) fn last_of((key, range_end): names::Range, born: Option<u64>) -> RequestOp {
    let range = RangeRequest {
        key,
        range_end,
        // Without a bound, the own entry is among them.
        limit: if born.is_some() { 2 } else { 3 },
        sort_order: DESCENDING,
        sort_target: BY_CREATION,
        keys_only: true,
        max_create_revision: born.map_or(0, |born| signed(born) - 1),
    };
    Op::Range(range).into()
}

/// Reads the first entry of a range, and how many it has.
pub(crate) fn first_of((key, range_end): names::Range) -> RequestOp {
    let range = RangeRequest {
        key,
        range_end,
        limit: 1,
        sort_order: ASCENDING,
        sort_target: BY_CREATION,
        keys_only: true,
        ..RangeRequest::default()
    };
    Op::Range(range).into()
}

/// The newest entries of a range that are older than an own one.
pub(crate) struct Older {
    pub(crate) kvs: Vec<KeyValue>,
    /// Whether there are no others.
    pub(crate) is_all: bool,
}

/// Returns the older ones among the newest entries of a range, in which the own entry, made at
/// `born`, may be one. `None`: they do not tell.
pub(crate) fn older_among(newest: &RangeResponse, own: &[u8], born: u64) -> Option<Older> {
    let is_all = newest.count == newest.kvs.len() as i64;
    let is_older = |kv: &&KeyValue| kv.key != own && revision(kv.create_revision) < born;
    let kvs: Vec<_> = newest.kvs.iter().filter(is_older).cloned().collect();
    (is_all || !kvs.is_empty()).then_some(Older { kvs, is_all })
}

/// Returns the last entry before an own one, from those of each range.
pub(crate) fn before_of(older: &[Older], tokens: Tokens) -> Result<Option<Before>, StoreError> {
    let all = || older.iter().flat_map(|older| &older.kvs);
    all().try_for_each(|kv| check(kv, tokens))?;
    let is_only = all().count() == 1 && older.iter().all(|older| older.is_all);
    Ok(all().max_by_key(|kv| kv.create_revision).map(|kv| Before {
        name: Arc::from(kv.key.as_slice()),
        born: revision(kv.create_revision),
        is_only,
    }))
}

/// Checks that an entry ends with a lease, and that its grants can be told from ours.
pub(crate) fn check(kv: &KeyValue, tokens: Tokens) -> Result<(), StoreError> {
    if kv.lease == 0 {
        return Err(foreign_entry(&kv.key));
    }
    if Tokens::of(&kv.key).is_some_and(|others| others != tokens) {
        let key = String::from_utf8_lossy(&kv.key);
        let text = format!(
            "the key {key:?} is of a manager whose tokens can't be compared with ours; give the addresses of all \
             managers the option `tokens=revision`, or none"
        );
        return Err(StoreError::new(StoreErrorKind::ForeignData, text));
    }
    Ok(())
}

/// Returns the error about a key in a queue that has no lease.
pub(crate) fn foreign_entry(key: &[u8]) -> StoreError {
    let key = String::from_utf8_lossy(key);
    let text =
        format!("the key {key:?} has no lease, and blocks the lock; delete it if it belongs to no lock");
    StoreError::new(StoreErrorKind::ForeignData, text)
}

pub(crate) fn listed(lock: &str, kv: &KeyValue) -> Listed {
    Listed {
        name: Arc::from(kv.key.as_slice()),
        born: revision(kv.create_revision),
        class: names::class(lock, &kv.key),
        owner: names::owner(lock, &kv.key, &kv.value),
        session: Session(kv.lease),
    }
}

/// Returns the revision that made a key; `None` if it is not there.
pub(crate) fn born_at(range: &RangeResponse) -> Option<u64> {
    range.kvs.first().map(|kv| revision(kv.create_revision))
}

pub(crate) fn moment_of(header: Option<Header>) -> u64 {
    header.map_or(0, |header| revision(header.revision))
}

/// Revisions are never negative.
pub(crate) fn revision(number: i64) -> u64 {
    number.max(0).unsigned_abs()
}

pub(crate) fn signed(revision: u64) -> i64 {
    i64::try_from(revision).unwrap_or(i64::MAX)
}
