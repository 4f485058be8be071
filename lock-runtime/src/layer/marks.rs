//! Types in the extensions of requests and responses, besides [`HeldLock`](crate::HeldLock):
//! [`LockWait`], which the layer reads, and [`Unlocked`] and [`LostLock`], which it inserts.

use std::time::Duration;

use lock_engine::failure::Loss;

/// How long one request waits for its lock, instead of the layer's
/// [`wait`](super::LockLayer::wait). An outer layer puts it into the request's extensions. With
/// zero, the request does not wait.
///
/// Under [`StoreDown::PassThrough`](super::StoreDown::PassThrough), a short wait lets a request go
/// on without its lock: don't let clients choose the wait there.
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

/// Marks a request that went on without its lock, and its response, in their extensions. The store
/// was down, and the layer was set to [let requests pass](super::StoreDown::PassThrough).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unlocked(pub(super) ());

/// Marks a response whose handler lost its lock before it returned, in the extensions. Another
/// request for the key may have been in the handler meanwhile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LostLock(pub(super) Loss);

impl LostLock {
    /// Returns why the lock was lost.
    #[must_use]
    pub fn loss(&self) -> Loss {
        self.0
    }
}
