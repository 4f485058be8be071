//! [`Counting`]: the allocator behind `allocs_per_pair` and `bytes_per_hold`.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};

/// Off except inside [`count`] and during a [`Growth`], so that other measurements pay one relaxed
/// load for it.
static ON: AtomicBool = AtomicBool::new(false);
static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);
/// Bytes allocated and not freed since it was switched on; negative if more were freed.
static BYTES: AtomicI64 = AtomicI64::new(0);

/// The system's allocator, able to count the allocations, reallocations and bytes of all threads.
#[derive(Debug)]
pub(crate) struct Counting;

fn note(allocations: u64, freed: usize, allocated: usize) {
    if ON.load(Ordering::Relaxed) {
        ALLOCATIONS.fetch_add(allocations, Ordering::Relaxed);
        // No allocation is larger than an `isize`.
        BYTES.fetch_add(allocated as i64 - freed as i64, Ordering::Relaxed);
    }
}

fn switch_on() {
    ALLOCATIONS.store(0, Ordering::Relaxed);
    BYTES.store(0, Ordering::Relaxed);
    ON.store(true, Ordering::Relaxed);
}

// SAFETY: every call goes to `System` unchanged; counting touches atomics only and never allocates.
#[allow(unsafe_code, reason = "a global allocator can't be written without it; `allocs_per_pair` needs one")]
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        note(1, 0, layout.size());
        // SAFETY: the caller's promises are those that `System` asks for.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        note(1, 0, layout.size());
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        note(1, layout.size(), size);
        // SAFETY: as above.
        unsafe { System.realloc(pointer, layout, size) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        note(0, layout.size(), 0);
        // SAFETY: as above; the memory came from `System`.
        unsafe { System.dealloc(pointer, layout) }
    }
}

/// Runs `body` and returns its result, with the number of allocations by all threads meanwhile.
pub(crate) async fn count<T>(body: impl Future<Output = T>) -> (T, u64) {
    switch_on();
    let value = body.await;
    ON.store(false, Ordering::Relaxed);
    (value, ALLOCATIONS.load(Ordering::Relaxed))
}

/// Measures the growth of the heap in requested bytes, without the allocator's own overhead.
#[derive(Debug)]
#[must_use]
pub(crate) struct Growth(());

impl Growth {
    pub(crate) fn start() -> Self {
        switch_on();
        Self(())
    }

    /// Returns the growth since the start; negative if more bytes were freed.
    pub(crate) fn end(self) -> i64 {
        ON.store(false, Ordering::Relaxed);
        BYTES.load(Ordering::Relaxed)
    }
}
