//! Reads the answers of the scripts, whose headers describe the formats.

use std::time::Duration;

use lock_core::store::{
    Acquired, Busy, Granted, Kind, LockStatus, Marked, Moment, Renewed, ServerTime, TokenRange,
};
use lock_core::{FencingToken, OwnerId};
use redis::Value;

/// Answer of `grant` in grant_all.lua and of acquire_kinds.lua, and of acquire.lua about each lock.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Grant {
    Done(Acquired),
    TooLate(ServerTime),
    /// The item is not a lock.
    Foreign(usize, Reason),
    /// The item's counter is not a counter.
    BadCounter(usize),
}

/// Why something is not a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reason {
    NoTtl,
    Field,
}

impl Reason {
    fn parse(text: &str) -> Option<Self> {
        match text {
            "no-ttl" => Some(Self::NoTtl),
            "field" => Some(Self::Field),
            _ => None,
        }
    }

    pub(super) fn explain(self) -> &'static str {
        match self {
            Self::NoTtl => "it has no time to live",
            Self::Field => "it is a hash with other fields than a lock",
        }
    }
}

/// Answer of `free` about one lock (see free.lua and kinds.lua), or of linger.lua.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Freed {
    NotHeld,
    Untold,
    /// The owner's hold is gone, but the lock is still held by others.
    StillHeld,
    /// The owner keeps the hold for a while.
    Lingers,
    Told(u64),
}

pub(super) fn int(value: &Value) -> Option<i64> {
    match value {
        Value::Int(number) => Some(*number),
        _ => None,
    }
}

pub(super) fn text(value: &Value) -> Option<&str> {
    match value {
        Value::BulkString(bytes) => std::str::from_utf8(bytes).ok(),
        Value::SimpleString(text) => Some(text),
        _ => None,
    }
}

pub(super) fn array(value: &Value) -> Option<&[Value]> {
    match value {
        Value::Array(values) => Some(values),
        _ => None,
    }
}

fn micros(value: &Value) -> Option<ServerTime> {
    int(value).and_then(|micros| u64::try_from(micros).ok()).map(ServerTime::from_micros)
}

fn index(value: &Value) -> Option<usize> {
    int(value).and_then(|index| usize::try_from(index).ok())?.checked_sub(1)
}

/// Reads the answer to TIME.
pub(super) fn time(value: &Value) -> Option<ServerTime> {
    let [seconds, micros] = array(value)? else { return None };
    let seconds: u64 = text(seconds)?.parse().ok()?;
    let micros: u64 = text(micros)?.parse().ok()?;
    Some(ServerTime::from_micros(seconds.checked_mul(1_000_000)?.checked_add(micros)?))
}

/// Reads a server time that is a bare number.
pub(super) fn now(value: &Value) -> Option<ServerTime> {
    micros(value)
}

/// Reads the answer to INFO.
pub(super) fn info(value: &Value) -> Option<&str> {
    match value {
        Value::VerbatimString { text, .. } => Some(text),
        value => text(value),
    }
}

/// Returns the value in a line `name:value` of INFO.
pub(super) fn field<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
}

/// Reads the answer of mark.lua.
pub(super) fn marked(value: &Value) -> Option<Marked> {
    let [now, since] = array(value)? else { return None };
    let since = match text(since)? {
        "" => None,
        since => Some(ServerTime::from_micros(since.parse().ok()?)),
    };
    Some(Marked { since, server_time: micros(now)? })
}

/// Reads the answer of `grant` to a request for `tokens` tokens for each of `items` locks.
pub(super) fn grant(value: &Value, items: usize, tokens: u32) -> Option<Grant> {
    if let Some(top) = int(value) {
        let top = u64::try_from(top).ok()?;
        return Some(Grant::Done(Acquired::Granted(Granted {
            tokens: vec![TokenRange::ending_at(top, tokens); items].into(),
            moment: Moment::new(top.saturating_sub(u64::from(tokens))),
        })));
    }
    let values = array(value)?;
    match (int(values.first()?)?, values.get(1..)?) {
        (1, [now, tops @ ..]) if tops.len() == items => {
            let tops = tops.iter().map(|top| {
                let top: u64 = text(top)?.parse().ok()?;
                Some(TokenRange::ending_at(top, tokens))
            });
            Some(Grant::Done(Acquired::Granted(Granted {
                tokens: tops.collect::<Option<_>>()?,
                moment: micros(now)?.into(),
            })))
        }
        (0, [now, item, left, listeners @ ..]) if listeners.len() <= 1 => {
            Some(Grant::Done(Acquired::Busy(Busy {
                item: index(item)?,
                // In its last millisecond a hold has 0 ms left. Without a TTL it has no end.
                remaining: match int(left)? {
                    -1 => None,
                    left => Some(Duration::from_millis(u64::try_from(left).ok()?.max(1))),
                },
                moment: micros(now)?.into(),
                listeners: match listeners.first() {
                    Some(listeners) => u32::try_from(int(listeners)?).ok()?,
                    None => 0,
                },
                ahead: 0,
            })))
        }
        (2, [now]) => Some(Grant::TooLate(micros(now)?)),
        (3, [_, item, reason]) => Some(Grant::Foreign(index(item)?, Reason::parse(text(reason)?)?)),
        (4, [_, item]) => Some(Grant::BadCounter(index(item)?)),
        _ => None,
    }
}

/// Reads the answer of `free` about one lock.
pub(super) fn freed(value: &Value) -> Option<Freed> {
    match int(value)? {
        -1 => Some(Freed::NotHeld),
        -2 => Some(Freed::Untold),
        -3 => Some(Freed::StillHeld),
        told => Some(Freed::Told(u64::try_from(told).ok()?)),
    }
}

/// Reads the answers of a script for `items`.
pub(super) fn several(value: &Value, items: usize) -> Option<&[Value]> {
    array(value).filter(|answers| answers.len() == items)
}

/// Reads the answer of linger.lua about one lock.
pub(super) fn lingers(value: &Value) -> Option<Freed> {
    match int(value)? {
        0 => Some(Freed::NotHeld),
        1 => Some(Freed::Lingers),
        _ => None,
    }
}

/// Reads the answers of acquire.lua or release.lua for `requests` single locks.
pub(super) fn each(value: &Value, requests: usize) -> Option<&[Value]> {
    if requests == 1 { Some(std::slice::from_ref(value)) } else { several(value, requests) }
}

/// Reads the answer of takeover.lua: what was freed, and the grant.
pub(super) fn takeover(value: &Value, items: usize) -> Option<(Vec<Freed>, &Value)> {
    let (grant, each) = array(value)?.split_last()?;
    let freed: Vec<Freed> = each.iter().map(freed).collect::<Option<_>>()?;
    Some((freed, grant)).filter(|(freed, _)| freed.len() == items)
}

/// Reads the answer of acquire.lua for locks that are taken over: the grants, and what was freed.
pub(super) fn each_taken_over(value: &Value, requests: usize) -> Option<(&[Value], &[Value])> {
    Some(array(value)?)
        .filter(|answers| answers.len() == 2 * requests)
        .map(|answers| answers.split_at(requests))
}

/// Reads the answer of semaphore_release.lua or semaphore_renew.lua: whether each permit was held.
pub(super) fn flags(value: &Value, items: usize) -> Option<Vec<bool>> {
    let flags: Vec<bool> = array(value)?.iter().map(|flag| Some(int(flag)? == 1)).collect::<Option<_>>()?;
    Some(flags).filter(|flags| flags.len() == items)
}

/// Reads the answer of renew.lua, renew_kinds.lua or downgrade.lua about one lock.
pub(super) fn kept(value: &Value) -> Option<Renewed> {
    match int(value)? {
        1 => Some(Renewed::Held),
        0 => Some(Renewed::Gone),
        wait => Some(Renewed::Waiting(Duration::from_millis(wait.checked_neg()?.try_into().ok()?))),
    }
}

/// Reads the answer of status.lua about one lock. The inner error says why the key is not a lock.
pub(super) fn status(value: &Value) -> Option<Result<LockStatus, Reason>> {
    let values = array(value)?;
    let left = match int(values.first()?)? {
        -3 => return Some(Err(Reason::Field)),
        -1 => return Some(Err(Reason::NoTtl)),
        left => left,
    };
    let [_, counter, queue, listeners, fields @ ..] = values else { return None };
    let last_token = text(counter)?.parse().ok().map(FencingToken::new);
    let queued: u64 = int(queue)?.try_into().ok()?;
    let listeners: u64 = int(listeners)?.try_into().ok()?;
    let waiters = if queued > 0 { queued } else { listeners };
    if left == -2 {
        let mut status = LockStatus::free();
        (status.last_token, status.waiters) = (last_token, waiters);
        return Some(Ok(status));
    }
    let (mut holders, mut mode) = (Vec::new(), None);
    for field in fields.chunks_exact(2) {
        let [owner, count] = field else { return None };
        let Some(owner) = text(owner).filter(|owner| super::names::is_lock_field(owner)) else {
            return Some(Err(Reason::Field));
        };
        if owner == "mode" {
            mode = match text(count) {
                Some("read") => Some(Kind::Read),
                Some("write") => Some(Kind::Write),
                _ => return Some(Err(Reason::Field)),
            };
            continue;
        }
        let Some(count) = text(count).and_then(|count| count.parse().ok()) else {
            return Some(Err(Reason::Field));
        };
        holders.push((OwnerId::new(owner.strip_suffix(":write").unwrap_or(owner)), count));
    }
    let (kind, waiters) = match mode {
        Some(mode) => (mode, listeners),
        None if queued > 0 => (Kind::Fair, waiters),
        None => (Kind::Mutex, waiters),
    };
    let mut status = LockStatus::free();
    (status.kind, status.holders, status.waiters) = (Some(kind), holders, waiters);
    status.remaining = Some(Duration::from_millis(u64::try_from(left).ok()?));
    status.last_token = last_token;
    Some(Ok(status))
}

/// Reads the answer of plain_status.lua about one lock. It is always a lock.
pub(super) fn plain_status(value: &Value) -> Option<Result<LockStatus, Reason>> {
    let [left, listeners, Value::BulkString(owner)] = array(value)? else { return None };
    let left = int(left)?;
    let mut status = LockStatus::free();
    if left != -2 {
        // Other programs have owners of any bytes.
        let owner = OwnerId::new(String::from_utf8_lossy(owner));
        let remaining = u64::try_from(left).ok().map(Duration::from_millis);
        status = LockStatus::held(Kind::Mutex, owner, remaining);
    }
    status.waiters = int(listeners)?.try_into().ok()?;
    Some(Ok(status))
}

/// Reads the answer to SCAN: the next cursor, and the found names that are text.
pub(super) fn scanned(value: &Value) -> Option<(u64, Vec<&str>)> {
    let [cursor, names] = array(value)? else { return None };
    let cursor = text(cursor)?.parse().ok()?;
    Some((cursor, array(names)?.iter().filter_map(text).collect()))
}

/// Reads the answer of force_release.lua.
pub(super) fn force_released(value: &Value) -> Option<Result<bool, Reason>> {
    match value {
        Value::Int(0) => Some(Ok(false)),
        Value::Int(1) => Some(Ok(true)),
        other => Reason::parse(text(other)?).map(Err),
    }
}

/// Returns a value from a map, or from an array of names and values.
pub(super) fn entry(value: &Value, name: &str) -> Option<String> {
    let found = match value {
        Value::Map(entries) => {
            entries.iter().find(|(key, _)| text(key) == Some(name)).map(|(_, value)| value)
        }
        Value::Array(values) => values.chunks_exact(2).find_map(|pair| match pair {
            [key, value] if text(key) == Some(name) => Some(value),
            _ => None,
        }),
        _ => None,
    };
    found.and_then(text).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bulk(text: &str) -> Value {
        Value::BulkString(text.as_bytes().to_vec())
    }

    #[test]
    fn a_bare_number_is_a_grant_of_the_usual_kind() {
        let Some(Grant::Done(Acquired::Granted(granted))) = grant(&Value::Int(1_700_000_000_000_010), 2, 10)
        else {
            panic!("not granted");
        };
        assert_eq!(granted.moment.get(), 1_700_000_000_000_000);
        let range = TokenRange { first: 1_700_000_000_000_001, last: 1_700_000_000_000_010 };
        assert_eq!(granted.tokens, [range, range]);
    }

    #[test]
    fn tokens_above_two_to_the_53rd_are_exact() {
        let value = Value::Array(vec![Value::Int(1), Value::Int(5), bulk("9223372036854775807")]);
        let Some(Grant::Done(Acquired::Granted(granted))) = grant(&value, 1, 2) else {
            panic!("not granted")
        };
        assert_eq!(
            granted.tokens,
            [TokenRange { first: 9_223_372_036_854_775_806, last: 9_223_372_036_854_775_807 }]
        );
    }

    #[test]
    fn answers_that_make_no_sense_are_refused() {
        for value in [
            Value::Nil,
            Value::Int(-1),
            Value::Array(vec![]),
            Value::Array(vec![Value::Int(1), Value::Int(5)]),
            Value::Array(vec![Value::Int(0), Value::Int(5), Value::Int(0), Value::Int(5)]),
            Value::Array(vec![Value::Int(3), Value::Int(5), Value::Int(1), bulk("whatever")]),
        ] {
            assert_eq!(grant(&value, 1, 1), None, "{value:?}");
        }
    }
}
