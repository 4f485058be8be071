//! Mutexes and atomics, those of `loom` in its models; and going on after a panic elsewhere.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::PoisonError;

#[cfg(lock_loom)]
pub use loom::sync::{Mutex, MutexGuard, atomic};
#[cfg(not(lock_loom))]
pub use std::sync::{Mutex, MutexGuard, atomic};

/// Locks `mutex`. State machines change their state in steps that cannot panic half-way, so poison
/// is ignored: a panicking user thread must not take the locks of the whole process with it.
pub fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A value in cache lines of its own: threads that change it do not slow down those that read what
/// stands beside it.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct CachePadded<T>(pub T);

impl<T> std::ops::Deref for CachePadded<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

/// Runs code of others (wakers, subscribers, recorders) where a panic of theirs would take locks
/// with it, or meet another one. The panic hook has told of it.
pub fn catch_panics(others: impl FnOnce()) {
    let _ = catch_unwind(AssertUnwindSafe(others));
}

/// A future was polled after it had ended. Panics, as futures of the standard library do: nothing
/// would wake the caller.
#[cold]
#[track_caller]
#[allow(clippy::panic, reason = "a mistake in an executor or a combinator, not in what it is given")]
pub fn polled_again() -> ! {
    panic!("a future of a lock was polled after it had ended")
}
