//! Tools for authors of stores.
//!
//! - [`ServerClock`] estimates the store's clock, with which a request is
//!   [stamped](super::AcquireRequest::stamp) before it is sent.
//! - [`bounded`] gives a call its time-out, and the error that says that the outcome is unknown.
//! - [`Watches`] keeps the watches of a process and passes messages on to them.
//! - [`Backoff`] has the pauses between attempts.
//! - [`Withdrawn::by`](super::Withdrawn::by) answers a withdrawal.
//! - [`Forward`](super::Forward) makes a store of another one with some steps changed.

mod backoff;
mod server_clock;
mod watches;

use std::future::Future;
use std::time::Duration;

pub use self::backoff::Backoff;
pub use self::server_clock::ServerClock;
pub use self::watches::Watches;
use super::{StoreError, StoreErrorKind};
use crate::internal::clock::rounded;
pub use crate::internal::clock::{Clock, Tick};

/// Makes a call that resolves within `limit`.
///
/// # Errors
///
/// The call's own, and [`StoreErrorKind::Unanswered`] when the time is over. The call is dropped
/// then: its step may have been executed, or be executed later.
pub async fn bounded<T>(
    limit: Duration,
    call: impl Future<Output = Result<T, StoreError>>,
) -> Result<T, StoreError> {
    tokio::time::timeout(limit, call).await.unwrap_or_else(|_| Err(no_answer(limit)))
}

/// Returns the error of a store that has not answered for `within`, whether to a call or to a
/// waiter.
#[doc(hidden)]
#[must_use]
pub fn no_answer(within: Duration) -> StoreError {
    StoreError::new(StoreErrorKind::Unanswered, format!("no answer within {:?}", rounded(within)))
}
