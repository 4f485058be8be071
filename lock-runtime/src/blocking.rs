//! [`Blocking`]: locks for code that blocks its thread.

use std::fmt;
use std::future::Future;
use std::ops::Deref;
use std::time::Duration;

use tokio::runtime::Handle;

use crate::error::{LockError, ShutdownError};
use crate::guard::LockGuard;
use crate::kinds::{Lock, MultiKey};
use crate::manager::LockManager;
use lock_core::IntoLockKey;

/// A manager, a lock or a guard whose calls block the thread until they are done, from
/// [`LockManager::blocking`].
///
/// For threads without a tokio runtime. The manager's own runtime has to run meanwhile, so build
/// the manager with [`dedicated_thread`](crate::LockManagerBuilder::dedicated_thread), or inside a
/// multi-threaded runtime that other threads drive.
///
/// ```
/// use std::time::Duration;
/// use lock_runtime::LockManager;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let locks = LockManager::builder().dedicated_thread().connect_lazy("memory:")?; // or redis://…
/// let locks = locks.blocking();
///
/// let guard = locks.mutex("order:42").set(|lock| lock.wait(Duration::from_secs(5))).acquire()?;
/// println!("shipping with token {}", guard.fencing_token());
/// guard.release()?; // or drop it, which does not wait for the store
///
/// locks.shutdown(Duration::from_secs(5))?;
/// # Ok(()) }
/// ```
///
/// A lost lock can't stop a thread. Look at [`is_lost`](LockGuard::is_lost) between the steps of
/// the work, and pass the [`fencing_token`](LockGuard::fencing_token) along with each write.
///
/// # Panics
///
/// Calls that block panic on a thread of a tokio runtime, whose other tasks they would stop. Await
/// the same call there. In `tokio::task::spawn_blocking`, use
/// `Handle::current().block_on(lock.acquire())`.
#[derive(Clone)]
pub struct Blocking<T> {
    inner: T,
    runtime: Handle,
}

impl LockManager {
    /// Returns this manager for threads without a tokio runtime: its calls block the thread.
    #[must_use]
    pub fn blocking(&self) -> Blocking<Self> {
        Blocking { inner: self.clone(), runtime: self.runtime().clone() }
    }
}

impl<T> Blocking<T> {
    #[track_caller]
    fn wait_for<F: Future>(runtime: &Handle, future: F) -> F::Output {
        assert!(
            Handle::try_current().is_err(),
            "a blocking call of lock_runtime on a thread of a tokio runtime would stop its other tasks: await the \
             same call, or inside of `spawn_blocking` use `Handle::current().block_on(…)`"
        );
        runtime.block_on(future)
    }

    fn of<U>(&self, inner: U) -> Blocking<U> {
        Blocking { inner, runtime: self.runtime.clone() }
    }
}

impl Blocking<LockManager> {
    /// Like [`LockManager::mutex`].
    pub fn mutex(&self, key: impl IntoLockKey) -> Blocking<Lock> {
        self.of(self.inner.mutex(key))
    }

    /// Like [`LockManager::fair`].
    pub fn fair(&self, key: impl IntoLockKey) -> Blocking<Lock> {
        self.of(self.inner.fair(key))
    }

    /// Like [`LockManager::read`].
    pub fn read(&self, key: impl IntoLockKey) -> Blocking<Lock> {
        self.of(self.inner.read(key))
    }

    /// Like [`LockManager::write`].
    pub fn write(&self, key: impl IntoLockKey) -> Blocking<Lock> {
        self.of(self.inner.write(key))
    }

    /// Like [`LockManager::multi`].
    pub fn multi<K: Into<MultiKey>>(&self, keys: impl IntoIterator<Item = K>) -> Blocking<Lock> {
        self.of(self.inner.multi(keys))
    }

    /// Like [`LockManager::shutdown`].
    ///
    /// # Errors
    ///
    /// Those of [`LockManager::shutdown`].
    ///
    /// # Panics
    ///
    /// On a thread of a tokio runtime.
    #[track_caller]
    pub fn shutdown(&self, grace: Duration) -> Result<(), ShutdownError> {
        Self::wait_for(&self.runtime, self.inner.shutdown(grace))
    }
}

impl Blocking<Lock> {
    /// Changes the lock's settings: `.set(|lock| lock.no_wait())`.
    #[must_use]
    pub fn set(self, change: impl FnOnce(Lock) -> Lock) -> Self {
        Self { inner: change(self.inner), runtime: self.runtime }
    }

    /// Waits for the lock, like [`Lock::acquire`].
    ///
    /// # Errors
    ///
    /// Those of [`Lock::acquire`].
    ///
    /// # Panics
    ///
    /// On a thread of a tokio runtime.
    #[track_caller]
    pub fn acquire(self) -> Result<Blocking<LockGuard>, LockError> {
        let inner = Self::wait_for(&self.runtime, self.inner.acquire())?;
        Ok(Blocking { inner, runtime: self.runtime })
    }

    /// Makes one attempt, like [`Lock::try_acquire`]: `None` when another caller has the lock.
    ///
    /// # Errors
    ///
    /// Those of [`Lock::try_acquire`].
    ///
    /// # Panics
    ///
    /// On a thread of a tokio runtime.
    #[track_caller]
    pub fn try_acquire(self) -> Result<Option<Blocking<LockGuard>>, LockError> {
        let inner = Self::wait_for(&self.runtime, self.inner.try_acquire())?;
        Ok(inner.map(|inner| Blocking { inner, runtime: self.runtime }))
    }
}

impl Blocking<LockGuard> {
    /// Releases the lock and waits for the store's answer, like [`LockGuard::release`].
    ///
    /// # Errors
    ///
    /// Those of [`LockGuard::release`].
    ///
    /// # Panics
    ///
    /// On a thread of a tokio runtime. The lock is released all the same.
    #[track_caller]
    pub fn release(self) -> Result<(), LockError> {
        Self::wait_for(&self.runtime, self.inner.release())
    }

    /// Makes a fixed lease last longer, like [`LockGuard::extend`].
    ///
    /// # Errors
    ///
    /// Those of [`LockGuard::extend`].
    ///
    /// # Panics
    ///
    /// On a thread of a tokio runtime.
    #[track_caller]
    pub fn extend(&self, lease: Duration) -> Result<(), LockError> {
        Self::wait_for(&self.runtime, self.inner.extend(lease))
    }
}

impl Deref for Blocking<LockGuard> {
    type Target = LockGuard;

    fn deref(&self) -> &LockGuard {
        &self.inner
    }
}

impl<T: fmt::Debug> fmt::Debug for Blocking<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Blocking").field(&self.inner).finish()
    }
}
