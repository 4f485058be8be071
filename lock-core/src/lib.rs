//! The vocabulary of `lock-runtime`, and the contract of its stores.
//!
//! Programs use the crate `lock-runtime`, which re-exports the types that they meet. A crate that
//! implements a store needs only this one: [`store`] has the contract, and the root has the types
//! it is written in. `LockManagerBuilder::connect_store` of `lock-runtime` takes such a store.
#![forbid(unsafe_code)]
#![cfg_attr(docsrs, feature(doc_cfg))]
#![cfg_attr(
    not(test),
    warn(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

#[doc(hidden)]
pub mod internal;
mod key;
mod replication;
mod retention;
pub mod store;
mod token;

pub use key::{IntoLockKey, InvalidKey, LockKey};
pub use replication::Replication;
pub use retention::TokenRetention;
pub use token::{FencingToken, OwnerId};
