//! [`Counting`]: the allocator that counts, for `allocs_per_pair`.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Off except inside [`count`], so that other measurements pay one relaxed load for it.
static ON: AtomicBool = AtomicBool::new(false);
static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

/// The system's allocator, which can count the allocations and reallocations of all threads.
#[derive(Debug)]
pub(crate) struct Counting;

fn note() {
    if ON.load(Ordering::Relaxed) {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
    }
}

// SAFETY: every call goes to `System` unchanged; counting touches atomics only and never allocates.
#[allow(unsafe_code, reason = "a global allocator can't be written without it; `allocs_per_pair` needs one")]
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        note();
        // SAFETY: the caller's promises are those that `System` asks for.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        note();
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        note();
        // SAFETY: as above.
        unsafe { System.realloc(pointer, layout, size) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as above; the memory came from `System`.
        unsafe { System.dealloc(pointer, layout) }
    }
}

/// Runs `body` and returns what it returned, with the allocations that all threads made meanwhile.
pub(crate) async fn count<T>(body: impl Future<Output = T>) -> (T, u64) {
    ALLOCATIONS.store(0, Ordering::Relaxed);
    ON.store(true, Ordering::Relaxed);
    let value = body.await;
    ON.store(false, Ordering::Relaxed);
    (value, ALLOCATIONS.load(Ordering::Relaxed))
}
