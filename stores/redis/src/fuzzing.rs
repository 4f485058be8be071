//! Readers of data from outside, for the fuzz targets in `fuzz/` and the tests of their seeds.

use lock_core::store::Acquired;
use redis::{IntoConnectionInfo, Value};

use super::classify;
use super::cluster::slots;
use super::reply::{self, Grant};
use super::{check, fair, semaphore, synced, url_parts};

/// Numbers of locks, and of tokens for each, that a request may have been about.
const REQUESTS: [(usize, u32); 4] = [(1, 1), (2, 10), (3, u32::MAX), (0, 1)];
const SECRET: &str = "hunter2";

/// Returns a lock URL as errors show it.
#[must_use]
pub fn redacted(url: &str) -> String {
    url_parts::redacted(url)
}

/// Reads `bytes` as the answer to each kind of request. Returns whether they are an answer at all.
///
/// # Panics
///
/// When a decoder accepts an answer about another number of locks, or shows the password.
#[must_use]
pub fn reply(bytes: &[u8]) -> bool {
    let Ok(value) = redis::parse_redis_value(bytes) else { return false };
    every_decoder(&value);
    // Scripts answer for many locks at once.
    for inner in reply::array(&value).unwrap_or_default() {
        every_decoder(inner);
    }
    true
}

fn every_decoder(value: &Value) {
    for (items, tokens) in REQUESTS {
        if let Some(Grant::Done(Acquired::Granted(granted))) = reply::grant(value, items, tokens) {
            assert_eq!(granted.tokens.len(), items, "{value:?}");
            assert!(granted.tokens.iter().all(|range| range.first <= range.last), "{value:?}");
        }
        if let Some((freed, grant)) = reply::takeover(value, items) {
            assert_eq!(freed.len(), items, "{value:?}");
            let _ = reply::grant(grant, items, tokens);
        }
        assert!(reply::each(value, items).is_none_or(|each| each.len() == items), "{value:?}");
        assert!(reply::flags(value, items).is_none_or(|flags| flags.len() == items), "{value:?}");
    }
    if let Some(Ok(status)) = reply::status(value) {
        assert_eq!(status.kind.is_none(), status.remaining.is_none(), "{value:?}");
    }
    let _ = (reply::time(value), reply::now(value), reply::marked(value), reply::freed(value));
    let _ = (reply::kept(value), reply::lingers(value));
    let _ = (reply::scanned(value), reply::force_released(value), semaphore::read(value));
    let _ = (reply::entry(value, "ip"), slots::reads_slots(value));
    if let Value::ServerError(error) = value {
        error_text(error.code(), error.details().unwrap_or_default());
    }
    if let Some(text) = reply::text(value) {
        reply_text(text);
    }
}

/// Reads a message or a server's text with every decoder of texts.
///
/// # Panics
///
/// When an error would show the password.
pub fn reply_text(text: &str) {
    let _ = (fair::notice(text), check::supported(text), reply::field(text, "redis_version"));
    let _ = (synced::replicas_of_myself(text), slots::reads_place(text));
    let (code, detail) = text.split_once(' ').unwrap_or((text, ""));
    error_text(code, detail);
}

fn error_text(code: &str, detail: &str) {
    let Ok(info) = format!("redis://ann:{SECRET}@h/3").into_connection_info() else { return };
    let error = classify::Address::new(&info).answer(code, detail);
    assert!(!error.to_string().contains(SECRET), "{error}");
}
