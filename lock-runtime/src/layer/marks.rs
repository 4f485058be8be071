//! What the layer leaves in the extensions of requests and responses, beside [`HeldLock`](crate::HeldLock).

use crate::error::Loss;

/// In the extensions of a request that went on without its lock, and in those of its response: the store was down, and
/// the layer was told to [let requests pass](super::StoreDown::PassThrough).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unlocked(pub(super) ());

/// In the extensions of a response whose handler lost its lock before it returned: somebody else may have been in the
/// handler meanwhile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LostLock(pub(super) Loss);

impl LostLock {
    /// Why the lock was lost.
    #[must_use]
    pub fn loss(&self) -> Loss {
        self.0
    }
}
