//! Mutexes that go on after a panic elsewhere.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks `mutex`. State machines change their state in steps that cannot panic half-way, so poison is ignored: a
/// panicking user thread must not take the locks of the whole process with it.
pub(crate) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
