//! What an expansion of `#[distributed_lock]` names, so that the attribute emits few tokens and no logic.
//!
//! Not public API: the attribute and this crate are released in lock-step, and nothing here keeps its shape between
//! releases. The items of `core` are re-exported because generated code must not depend on what the user's module
//! calls `Ok` or `Some`.

mod key_text;
mod returns;

pub use core::convert::From;
pub use core::option::Option::Some;
pub use core::result::Result::{Err, Ok};
pub use core::time::Duration;

pub use crate::error::LockError;
pub use key_text::KeyText;
pub use returns::{CarriesLockError, Returns, Skipped, carry, skipped};
