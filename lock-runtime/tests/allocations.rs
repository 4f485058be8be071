//! How many allocations an uncontended acquire and drop needs. It is the only test of its process,
//! since all threads are counted.
#![allow(missing_docs)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, Ordering};

use lock_runtime::LockManager;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

struct Counting;

// SAFETY: every call goes to `System` unchanged; counting touches an atomic only and never
// allocates.
#[allow(unsafe_code, reason = "a global allocator can't be written without it")]
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promises are those that `System` asks for.
        unsafe { System.alloc(layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: as above.
        unsafe { System.realloc(pointer, layout, size) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as above; the memory came from `System`.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const PAIRS: u64 = 1000;

/// Allocations of one acquire and release: the key, the future, the key's machine, the waiter, the
/// owner, the request, the hold, the grant, and the tasks and calls of both. The store names the
/// records.
const A_PAIR: u64 = 21;

async fn pairs(locks: &LockManager, keys: &[String]) -> u64 {
    let before = ALLOCATIONS.load(Ordering::Relaxed);
    for key in keys.iter().cycle().take(PAIRS as usize) {
        drop(locks.mutex(key).name("orders").acquire().await.unwrap());
    }
    ALLOCATIONS.load(Ordering::Relaxed) - before
}

#[test]
fn an_uncontended_pair_on_the_memory_store_allocates_little() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let locks = LockManager::connect("memory:").await.unwrap();
        for count in [1, 1000] {
            let keys: Vec<String> = (0..count).map(|number| format!("order:{number}")).collect();
            // Warm-up: the store's state of each key, and buffers that grow.
            pairs(&locks, &keys).await;
            // The least of some rounds: on a slow machine, the timekeeper runs more often in one.
            let mut allocated = u64::MAX;
            for _ in 0..5 {
                allocated = allocated.min(pairs(&locks, &keys).await);
            }
            // Recorders allocate labels. Occasionally the timekeeper runs, or a buffer grows.
            let most = (A_PAIR + if cfg!(feature = "metrics") { 4 } else { 0 }) * PAIRS + PAIRS / 4;
            assert!(allocated <= most, "{allocated} for {PAIRS} pairs on {count} keys");
        }
    });
}
