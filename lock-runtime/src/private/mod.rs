//! Items that an expansion of `#[distributed_lock]` names, so that the attribute emits few tokens
//! and no logic.
//!
//! Not public API: the attribute and this crate are released in lock-step, and nothing here keeps
//! its shape between releases. The items of `core` are re-exported because generated code must not
//! depend on what the user's module calls `Ok` or `Some`.

mod key_text;
mod keys;
mod origin;
mod returns;

pub use core::convert::From;
pub use core::option::Option::Some;
pub use core::result::Result::{Err, Ok};
pub use core::time::Duration;
pub use std::sync::atomic::AtomicBool;

pub use crate::error::LockError;
use crate::guard::{HeldLock, LockGuard};
use crate::manager::LockManager;
pub use key_text::KeyText;
pub use keys::{KeyOfKind, Keys, SomeKeys};
pub use origin::{Origin, untemplated};
pub use returns::{CarriesLockError, Returns, Skipped, carry, skipped};

/// The value of `manager = …`: any type that is `AsRef<LockManager>`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a `LockManager`",
    label = "expected a `LockManager`, or a type that implements `AsRef<LockManager>`",
    note = "for an `Option`, take the manager out: `manager = self.locks.as_ref().ok_or(YourError)?`"
)]
pub trait Manager {
    /// Returns the manager.
    fn manager(&self) -> &LockManager;
}

#[diagnostic::do_not_recommend]
impl<M: AsRef<LockManager> + ?Sized> Manager for M {
    fn manager(&self) -> &LockManager {
        self.as_ref()
    }
}

/// Returns the guard and its view.
pub fn with_view(guard: LockGuard) -> (LockGuard, HeldLock) {
    let view = guard.view();
    (guard, view)
}

/// The examples in the attribute's documentation, tested here because its own crate cannot use this
/// one.
#[cfg(all(doctest, feature = "macros"))]
#[doc = include_str!("../../../lock-macros/src/docs/distributed_lock.md")]
#[derive(Debug)]
pub struct AttributeDocs;
