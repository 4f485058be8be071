//! Helpers for the tests of code that uses locks. Feature `testing`.
//!
//! A manager on `memory:` needs no server and works under `tokio::time::pause`: leases, waits and
//! the watchdog follow the paused clock. [`with_default`](crate::with_default) gives
//! `#[distributed_lock]` functions their own manager for one test, so that tests run side by side.
//! [`lose`] simulates the loss of a lock.
//!
//! | function | |
//! |---|---|
//! | [`memory_manager`] | returns a manager on a fresh store in memory |
//! | [`lose`] | makes a manager believe that it has lost a lock |
//! | [`leftovers`] | counts what a manager still has, to find leaks |
//! | [`manager_on`], [`store_of`], [`memory_store`], [`named_memory_store`] | stores to wrap, so that calls are counted, delayed or fail |
//!
//! A store that wraps another one implements the trait `LockStore` of the crate `lock-core`.
//!
//! ```
//! # #[cfg(feature = "macros")] fn main() {
//! use lock_runtime::{LockError, distributed_lock, testing, with_default};
//!
//! #[distributed_lock(key = "job")]
//! async fn job() -> Result<(), LockError> {
//!     std::future::pending().await
//! }
//!
//! # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
//! let locks = testing::memory_manager();
//! let (result, ()) = tokio::join!(with_default(locks.clone(), job()), async {
//!     while !testing::lose(&locks, "job") {
//!         tokio::task::yield_now().await;
//!     }
//! });
//! assert!(matches!(result, Err(LockError::Lost { .. })));
//! # }); }
//! # #[cfg(not(feature = "macros"))] fn main() {}
//! ```

#[doc(hidden)]
pub mod simulation;

use std::sync::Arc;

use crate::manager::LockManager;

use lock_core::IntoLockKey;
use lock_core::internal::clock::Clock;
use lock_core::store::LockStore;
pub use lock_engine::Leftovers;

/// Returns a manager on a fresh memory store with the default settings.
///
/// # Panics
///
/// Outside of a tokio runtime.
#[must_use]
pub fn memory_manager() -> LockManager {
    match LockManager::connect_lazy("memory:") {
        Ok(locks) => locks,
        Err(error) => fail(&error.to_string()),
    }
}

/// Returns the store of a manager, to be wrapped by a store that counts calls, delays them or makes
/// them fail. Give the wrapper to [`connect_store`](crate::LockManagerBuilder::connect_store). The
/// store ends with the manager.
#[must_use]
pub fn store_of(locks: &LockManager) -> Arc<dyn LockStore> {
    Arc::clone(&locks.engine().store)
}

/// Returns a manager on `store`, with tokio's clock instead of the system's; for wrapped stores
/// under paused time. `settings` apply as on a [builder](LockManager::builder).
///
/// # Panics
///
/// Outside of a tokio runtime, or when the settings contradict each other.
#[must_use]
pub fn manager_on(settings: crate::LockManagerBuilder, store: Arc<dyn LockStore>) -> LockManager {
    match settings.start(Clock::tokio(), |_, _| Ok(store)).map(LockManager::on) {
        Ok(locks) => locks,
        Err(error) => fail(&error.to_string()),
    }
}

/// Returns a memory store without a manager, to be wrapped.
#[must_use]
pub fn memory_store() -> Arc<dyn LockStore> {
    lock_store_memory::MemoryStore::new("")
}

/// Returns a handle on the memory store of this name, which is fresh when there is no other handle
/// on it. Managers with separate handles are to each other as processes are: they hear each other's
/// releases, and count as listeners.
///
/// Keys have no prefix here, so a manager on `memory:NAME` reaches them with an empty one.
#[must_use]
pub fn named_memory_store(name: &str) -> Arc<dyn LockStore> {
    lock_store_memory::MemoryStore::named(name, "")
}

/// Makes `locks` believe that its hold of `key` is lost, as if the store had said so. The lost
/// signal fires, the body is cancelled, and the owner-checked release is sent. Returns `false` when
/// this manager does not hold the key.
pub fn lose(locks: &LockManager, key: impl IntoLockKey) -> bool {
    let Ok(key) = key.into_lock_key() else { return false };
    locks.engine().lose_all(&key)
}

/// Counts what `locks` still has, for tests that look for leaks.
#[must_use]
pub fn leftovers(locks: &LockManager) -> Leftovers {
    locks.engine().leftovers()
}

// A test helper has no caller that handles the error.
#[allow(clippy::panic)]
fn fail(reason: &str) -> ! {
    panic!("{reason}")
}
