//! What an expansion of `#[distributed_lock]` names, so that the attribute emits few tokens and no logic.
//!
//! Not public API: the attribute and this crate are released in lock-step, and nothing here keeps its shape between
//! releases. The items of `core` are re-exported because generated code must not depend on what the user's module
//! calls `Ok` or `Some`.

mod key_text;
mod keys;
mod returns;

pub use core::convert::From;
pub use core::option::Option::Some;
pub use core::result::Result::{Err, Ok};
pub use core::time::Duration;

pub use crate::error::LockError;
use crate::guard::{HeldLock, LockGuard};
pub use key_text::KeyText;
pub use keys::{KeyOfKind, Keys, SomeKeys};
pub use returns::{CarriesLockError, Returns, Skipped, carry, skipped};

/// The guard and its view.
pub fn with_view(guard: LockGuard) -> (LockGuard, HeldLock) {
    let view = guard.view();
    (guard, view)
}

/// The examples in the attribute's documentation, tested here because its own crate cannot use this one.
#[cfg(all(doctest, feature = "macros"))]
#[doc = include_str!("../../../lock-macros/src/docs/distributed_lock.md")]
#[derive(Debug)]
pub struct AttributeDocs;
