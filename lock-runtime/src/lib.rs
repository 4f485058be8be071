//! Distributed locks that people put on a function and forget.
#![forbid(unsafe_code)]
#![cfg_attr(docsrs, feature(doc_cfg))]
#![cfg_attr(
    not(test),
    warn(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

mod clock;
mod config;
mod error;
mod key;
pub mod store;
mod token;

pub use config::TokenRetention;
pub use error::{AcquireError, ConnectError, ExtendError, LockError, ReleaseError};
pub use key::{IntoLockKey, InvalidKey, LockKey};
pub use token::{FencingToken, OwnerId};
