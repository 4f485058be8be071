//! Mutexes and atomics (those of `loom` in its models), and containment of panics.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::PoisonError;

#[cfg(lock_loom)]
pub use loom::sync::{Mutex, MutexGuard, atomic};
#[cfg(not(lock_loom))]
pub use std::sync::{Mutex, MutexGuard, atomic};

/// Locks `mutex`, ignoring poison. State machines change their state in steps that cannot panic
/// half-way. A panicking user thread must not take down the locks of the whole process.
pub fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A value in its own cache lines: changing it does not slow down threads that read its neighbours.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct CachePadded<T>(pub T);

impl<T> std::ops::Deref for CachePadded<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

/// Runs foreign code (wakers, subscribers, recorders) where its panic would take locks with it or
/// hit another panic. The panic hook has already reported it.
pub fn catch_panics(others: impl FnOnce()) {
    let _ = catch_unwind(AssertUnwindSafe(others));
}

/// Panics because a future was polled after it had ended, as futures of the standard library do:
/// nothing would wake the caller.
#[cold]
#[track_caller]
#[allow(clippy::panic, reason = "a bug in an executor or a combinator, not in its input")]
pub fn polled_again() -> ! {
    panic!("a lock's future was polled after it had ended")
}
