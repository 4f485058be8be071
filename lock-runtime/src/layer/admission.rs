//! Which lock a request takes, and whether it may wait for it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use http::{HeaderMap, Request};
use lock_core::store::Kind;
use lock_engine::spec::Spec;
use tokio::time::Instant;
use tracing::Span;

use super::key::{Keys, Rejection, RequestKeys};
use super::marks::LockWait;
use super::refusal::Protocol;
use super::settings::{MissingKey, Shared};
use crate::acquire::Acquire;
use crate::guard::HeldLock;
use crate::kinds::{MultiKey, sorted};

/// The layer's decision about a request whose keys are known.
pub(super) enum Admitted {
    /// The request goes on without a lock.
    Pass,
    /// The request has to acquire its lock.
    Lock(Entry),
}

/// Why a request is refused before it asks for its lock.
#[derive(Debug)]
pub(super) enum Refused {
    /// The maximum number of waiting requests is reached.
    Full,
    NoKey,
    BadKey(Rejection),
}

/// A request that asks for its lock.
pub(super) struct Entry {
    pub(super) acquire: Acquire,
    /// Whether the client's time-out ends the wait before the layer's own would.
    pub(super) hurried: bool,
    /// Dropped when the request has its lock or goes away.
    pub(super) seat: Seat,
    /// When the request asked for its lock; set only if a span is there to record the wait.
    pub(super) asked: Option<Instant>,
}

impl<K, R> Shared<K, R> {
    /// Decides on a request by its extracted keys. `spent` is the time that the extraction took.
    pub(super) fn admit<B>(
        &self,
        request: &Request<B>,
        kind: Kind,
        protocol: Protocol,
        spent: Duration,
        extracted: Result<Option<RequestKeys>, Rejection>,
    ) -> Result<Admitted, Refused> {
        let keys = match extracted {
            Ok(keys) => keys.map(RequestKeys::into_inner),
            Err(rejection) => return Err(Refused::BadKey(rejection)),
        };
        let keys = match (keys, &self.settings.on_missing_key) {
            (Some(keys), _) => keys,
            (None, MissingKey::Fixed(key)) => Keys::One(key.clone()),
            (None, MissingKey::Skip) => return Ok(Admitted::Pass),
            (None, MissingKey::Reject) => return Err(Refused::NoKey),
        };
        let seat = Seat::take(&self.state.waiting, self.settings.max_waiters)?;
        let mut lock = self.template.clone().of(match keys {
            Keys::One(key) => Ok((key, Spec::one(kind))),
            Keys::Several(keys) => sorted(keys.into_iter().map(|key| MultiKey::new(key, kind))),
        });
        if let Some(LockWait(limit)) = request.extensions().get() {
            lock = lock.wait(*limit);
        }
        let mut hurried = false;
        if protocol == Protocol::Grpc
            && let Some(limit) = grpc_timeout(request.headers())
        {
            (lock, hurried) = lock.wait_within(limit.saturating_sub(spent));
        }
        let asked = (!Span::current().is_disabled()).then(Instant::now);
        Ok(Admitted::Lock(Entry { acquire: lock.acquire(), hurried, seat, asked }))
    }
}

/// Removes a lock of an outer layer from the extensions of a request that goes on without a lock.
/// Otherwise the handler would take it for its own.
pub(super) fn without_lock<B>(mut request: Request<B>) -> Request<B> {
    request.extensions_mut().remove::<HeldLock>();
    request
}

/// Returns the client's time-out: up to eight digits and a unit, as in [gRPC over
/// HTTP/2](https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md). A value that can't be
/// parsed is ignored here and left to the server.
fn grpc_timeout(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get("grpc-timeout")?.to_str().ok()?;
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    if digits.len() > 8 || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let number = digits.parse().ok()?;
    Some(match unit {
        "H" => Duration::from_secs(number * 3600),
        "M" => Duration::from_secs(number * 60),
        "S" => Duration::from_secs(number),
        "m" => Duration::from_millis(number),
        "u" => Duration::from_micros(number),
        "n" => Duration::from_nanos(number),
        _ => return None,
    })
}

/// One of the places for waiting requests.
#[derive(Debug)]
pub(super) struct Seat(Arc<AtomicUsize>);

impl Seat {
    fn take(waiting: &Arc<AtomicUsize>, cap: usize) -> Result<Self, Refused> {
        let seat = Self(Arc::clone(waiting));
        if waiting.fetch_add(1, Ordering::Relaxed) < cap { Ok(seat) } else { Err(Refused::Full) }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seat_that_is_given_back_can_be_taken_again() {
        let waiting = Arc::default();
        let first = Seat::take(&waiting, 1).ok().unwrap();
        assert!(Seat::take(&waiting, 1).is_err());
        drop(first);
        assert!(Seat::take(&waiting, 1).is_ok());
        assert_eq!(waiting.load(Ordering::Relaxed), 0);
    }

    /// Only the units of gRPC's specification are accepted.
    #[test]
    fn the_clients_time_is_read() {
        let read = |text: &str| {
            let mut headers = HeaderMap::new();
            headers.insert("grpc-timeout", text.parse().unwrap());
            grpc_timeout(&headers)
        };
        let seconds = Duration::from_secs;
        for (text, time) in
            [("1H", seconds(3600)), ("2M", seconds(120)), ("3S", seconds(3)), ("0S", seconds(0))]
        {
            assert_eq!(read(text), Some(time), "{text}");
        }
        assert_eq!(read("99999999m"), Some(Duration::from_millis(99_999_999)));
        assert_eq!(read("5u"), Some(Duration::from_micros(5)));
        assert_eq!(read("5n"), Some(Duration::from_nanos(5)));
        for none in ["", "S", "5", "5s", "-5S", "+5S", "100000000S", "5 S", "5.0S"] {
            assert_eq!(read(none), None, "{none}");
        }
        assert_eq!(grpc_timeout(&HeaderMap::new()), None);
    }
}
