//! The default manager: the one that `#[distributed_lock]` uses when it names no other.

use std::future::Future;
use std::sync::{PoisonError, RwLock};

use lock_core::IntoLockKey;
use lock_core::store::Kind;
use lock_engine::spec::Spec;

use crate::error::LockError;
use crate::kinds::{Lock, MultiKey, sorted};
use crate::manager::LockManager;

static DEFAULT: RwLock<Option<LockManager>> = RwLock::new(None);

tokio::task_local! {
    static OVERRIDE: LockManager;
}

/// Sets the manager that `#[distributed_lock]` uses when it names no other, for the whole process.
/// Returns the manager that was set before.
pub fn set_default(locks: LockManager) -> Option<LockManager> {
    DEFAULT.write().unwrap_or_else(PoisonError::into_inner).replace(locks)
}

/// Returns the manager that `#[distributed_lock]` would use here: that of the innermost
/// [`with_default`] around this code, else that of [`set_default`].
#[must_use]
pub fn default_manager() -> Option<LockManager> {
    let here = OVERRIDE.try_with(Clone::clone).ok();
    here.or_else(|| DEFAULT.read().unwrap_or_else(PoisonError::into_inner).clone())
}

/// Runs `future` with `locks` as its default manager: for tests that run side by side, and for
/// services with several stores. Tasks that `future` spawns do not inherit it.
///
/// Cancel safe if `future` is.
pub fn with_default<F: Future>(locks: LockManager, future: F) -> impl Future<Output = F::Output> {
    OVERRIDE.scope(locks, future)
}

/// Returns a lock of the default manager. Without one, acquiring the lock fails and says what to
/// do.
pub(crate) fn default_lock(kind: Kind, key: impl IntoLockKey) -> Lock {
    match default_manager() {
        Some(locks) => locks.of_kind(kind, key),
        None => {
            let key = key.into_lock_key().map_err(LockError::from);
            Lock::new(Err(no_manager()), key.map(|key| (key, Spec::one(kind))))
        }
    }
}

/// Returns a lock of several keys of the default manager.
pub(crate) fn default_multi(keys: impl IntoIterator<Item = MultiKey>) -> Lock {
    match default_manager() {
        Some(locks) => locks.multi(keys),
        None => Lock::new(Err(no_manager()), sorted(keys)),
    }
}

fn no_manager() -> LockError {
    LockError::misconfigured(
        "no lock manager is set; call `lock_runtime::set_default(locks)` at start-up, or name one with `manager = …`",
    )
}
