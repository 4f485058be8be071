//! Memory of this process, as a counting allocator and as the system report it.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicI64, Ordering};

static LIVE: AtomicI64 = AtomicI64::new(0);

/// The system's allocator, which also counts the allocated bytes. A program that needs the count
/// makes it its global allocator:
///
/// ```
/// #[global_allocator]
/// static ALLOCATOR: lock_tests::memory::Counting = lock_tests::memory::Counting;
///
/// let before = lock_tests::memory::live_bytes();
/// let bytes = vec![0_u8; 1000];
/// assert!(lock_tests::memory::live_bytes() >= before + 1000);
/// # drop(bytes);
/// ```
#[derive(Debug)]
pub struct Counting;

fn count(more: usize, less: usize) {
    // Sizes are at most `isize::MAX`.
    LIVE.fetch_add(more as i64 - less as i64, Ordering::Relaxed);
}

// SAFETY: every call goes to `System` unchanged; counting only touches an atomic and never
// allocates.
#[allow(
    unsafe_code,
    reason = "a global allocator can't be written without it; memory per waiter and hold need one"
)]
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promises are those that `System` asks for.
        let pointer = unsafe { System.alloc(layout) };
        count(if pointer.is_null() { 0 } else { layout.size() }, 0);
        pointer
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as above.
        let pointer = unsafe { System.alloc_zeroed(layout) };
        count(if pointer.is_null() { 0 } else { layout.size() }, 0);
        pointer
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: as above.
        let moved = unsafe { System.realloc(pointer, layout, size) };
        if !moved.is_null() {
            count(size, layout.size());
        }
        moved
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as above; the memory came from `System`.
        unsafe { System.dealloc(pointer, layout) };
        count(0, layout.size());
    }
}

/// Returns the allocated bytes of a program whose allocator is [`Counting`]; 0 in other programs.
#[must_use]
pub fn live_bytes() -> u64 {
    u64::try_from(LIVE.load(Ordering::Relaxed)).unwrap_or(0)
}

/// Returns the resident bytes of this process, if the system reports them (Linux).
#[must_use]
pub fn resident_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kibibytes: u64 = line.split_whitespace().next()?.parse().ok()?;
    Some(kibibytes * 1024)
}

#[cfg(test)]
mod tests {
    #[test]
    #[cfg(target_os = "linux")]
    fn the_system_tells_what_is_in_memory() {
        let bytes = super::resident_bytes().unwrap();
        assert!(bytes > 100_000, "{bytes}");
    }
}
