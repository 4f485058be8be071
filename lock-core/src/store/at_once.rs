//! [`AtOnce`]: the calls that a store without a network answers in place.

use super::{AcquireRequest, Acquired, ReleaseRequest, Released, StoreError};

/// What a store can do without waiting for anything, see [`LockStore::at_once`](super::LockStore::at_once).
///
/// The steps are those of [`LockStore::acquire`](super::LockStore::acquire) and
/// [`LockStore::release`](super::LockStore::release), under the same rules; they are executed when the call is made. Either
/// way may be taken, for each call anew.
///
/// Calls come from wherever a lock is asked for or a guard is dropped, also while a thread panics. They take no long time,
/// and execute no code of others but wakers, after the store's own mutexes have been given back. A panic counts as
/// [`StoreErrorKind::Unanswered`](super::StoreErrorKind::Unanswered).
pub trait AtOnce: Send + Sync {
    /// Takes every item or none.
    ///
    /// # Errors
    ///
    /// As [`LockStore::acquire`](super::LockStore::acquire).
    fn acquire_now(&self, request: &AcquireRequest) -> Result<Acquired, StoreError>;

    /// Gives the items back.
    ///
    /// # Errors
    ///
    /// As [`LockStore::release`](super::LockStore::release).
    fn release_now(&self, request: &ReleaseRequest) -> Result<Released, StoreError>;
}
