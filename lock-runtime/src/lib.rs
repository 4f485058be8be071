//! Distributed locks that people put on a function and forget.
#![forbid(unsafe_code)]
#![cfg_attr(docsrs, feature(doc_cfg))]
#![cfg_attr(
    not(test),
    warn(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

mod body;
mod builder;
mod clock;
mod config;
mod default;
mod engine;
mod error;
mod guard;
mod key;
mod kinds;
mod manager;
mod metrics;
mod private;
mod scope;
pub mod store;
mod sync;
#[cfg(feature = "testing")]
pub mod testing;
mod token;

pub use builder::LockManagerBuilder;
pub use config::TokenRetention;
pub use default::{default_manager, set_default, with_default};
pub use engine::acquire::Acquire;
pub use error::{AcquireError, ConnectError, ExtendError, LockError, ReleaseError};
pub use guard::{HeldLock, LockGuard};
pub use key::{IntoLockKey, InvalidKey, LockKey};
pub use kinds::Mutex;
#[cfg(feature = "macros")]
pub use lock_macros::distributed_lock;
pub use manager::{LockManager, ShutdownError};
pub use scope::in_current_scope;
pub use store::LockStatus;
pub use token::{FencingToken, OwnerId};

#[doc(hidden)]
pub mod __private {
    //! What `#[distributed_lock]` expands to. Not public API.

    pub use crate::body::{OnLost, Run};
    pub use crate::private::*;
    use crate::{IntoLockKey, LockGuard, LockManager, Mutex};

    /// On the task's or the process's default manager.
    pub fn mutex(key: impl IntoLockKey) -> Mutex {
        crate::default::default_mutex(key)
    }

    /// On the manager that the user named.
    pub fn mutex_on<M: AsRef<LockManager> + ?Sized>(manager: &M, key: impl IntoLockKey) -> Mutex {
        manager.as_ref().mutex(key)
    }

    /// Runs a body under its lock.
    pub fn run<F: Future>(guard: LockGuard, on_lost: OnLost, body: F) -> Run<F> {
        Run::new(guard, on_lost, body)
    }
}
