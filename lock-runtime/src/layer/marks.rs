//! What the layer reads from the extensions of requests, and leaves in those of requests and
//! responses beside [`HeldLock`](crate::HeldLock).

use std::time::Duration;

use lock_engine::failure::Loss;

/// In the extensions of a request, put there by a layer outside: how long this request waits for
/// its lock, instead of the layer's [`wait`](super::LockLayer::wait). Zero: it does not wait. Under
/// [`StoreDown::PassThrough`](super::StoreDown::PassThrough), a short wait lets a request do
/// without its lock: don't let clients choose it there.
///
/// ```
/// use std::time::Duration;
///
/// use http::Request;
/// use lock_runtime::layer::LockWait;
///
/// /// `Prefer: wait=5`, as in RFC 7240; at most ten seconds.
/// fn prefer<B>(mut request: Request<B>) -> Request<B> {
///     let header = request.headers().get("prefer").and_then(|value| value.to_str().ok());
///     let seconds = header.and_then(|text| text.strip_prefix("wait=")?.parse::<u64>().ok());
///     if let Some(seconds) = seconds {
///         request.extensions_mut().insert(LockWait(Duration::from_secs(seconds.min(10))));
///     }
///     request
/// }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockWait(pub Duration);

/// In the extensions of a request that went on without its lock, and in those of its response: the
/// store was down, and the layer was told to [let requests pass](super::StoreDown::PassThrough).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unlocked(pub(super) ());

/// In the extensions of a response whose handler lost its lock before it returned: somebody else
/// may have been in the handler meanwhile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LostLock(pub(super) Loss);

impl LostLock {
    /// Why the lock was lost.
    #[must_use]
    pub fn loss(&self) -> Loss {
        self.0
    }
}
