//! # Code that blocks its thread
//!
//! A job uses a library without `async`, such as a database driver or a compressor. It must hold a
//! lock while its thread is blocked.
//!
//! **Copy** `in_tokio` for a program with a tokio runtime, and `on_a_thread` for threads without
//! one.
//!
//! **Watch**
//! - In tokio, use `spawn_blocking`. Code that blocks a thread of the runtime may block the
//!   watchdog, which renews the lock.
//! - Move the guard into the closure, which nothing can stop. With the attribute, a caller that is
//!   dropped would release the lock while the closure still runs.
//! - A lost lock does not stop the closure either. Ask `is_lost` between its steps, and let the
//!   resource check the fencing token.
//! - An error of `release` comes after the work: don't repeat it.
//! - The calls of `locks.blocking()` panic on a thread of a tokio runtime.
#![allow(clippy::print_stdout)]

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Result, anyhow, bail, ensure};
use lock_runtime::{Blocking, LockGuard, LockManager};

/// Adds one in two steps, between which the lock may be lost.
fn add_one(counter: &AtomicU32, guard: &LockGuard) -> Result<()> {
    let before = counter.load(Ordering::Relaxed);
    std::thread::sleep(Duration::from_millis(5));
    if guard.is_lost() {
        bail!("the lock was lost, nothing was written");
    }
    counter.store(before + 1, Ordering::Relaxed);
    Ok(())
}

/// Waits for the lock without blocking, and gives it to a thread that may block.
async fn in_tokio(locks: &LockManager, counter: Arc<AtomicU32>) -> Result<()> {
    let guard = locks.mutex("blocking:counter").wait(Duration::from_secs(5)).acquire().await?;
    let work = move || {
        add_one(&counter, &guard)?;
        Ok::<_, anyhow::Error>(guard)
    };
    let guard = tokio::task::spawn_blocking(work).await??;
    guard.release().await?;
    Ok(())
}

/// Waits for the lock and works on a thread without a runtime.
fn on_a_thread(locks: &Blocking<LockManager>, counter: &AtomicU32) -> Result<()> {
    let lock = locks.mutex("blocking:counter").set(|lock| lock.wait(Duration::from_secs(5)));
    let guard = lock.acquire()?;
    add_one(counter, &guard)?;
    guard.release()?;
    Ok(())
}

/// Has five threads and five tasks count to ten.
fn main() -> Result<()> {
    let url = std::env::var("LOCK_URL").unwrap_or_else(|_| "memory:".to_owned());
    // Its thread renews the locks, whatever blocks. It needs no runtime around it.
    let locks = LockManager::builder().dedicated_thread().connect_lazy(url)?;
    let counter = Arc::new(AtomicU32::new(0));

    let blocking = locks.blocking();
    let threads = std::thread::scope(|scope| {
        let threads = [0; 5].map(|_| scope.spawn(|| on_a_thread(&blocking, &counter)));
        threads.map(std::thread::ScopedJoinHandle::join)
    });
    for ended in threads {
        ended.map_err(|_| anyhow!("a thread has panicked"))??;
    }
    println!("five threads have counted to {}", counter.load(Ordering::Relaxed));

    tokio::runtime::Runtime::new()?.block_on(async {
        let count = || in_tokio(&locks, Arc::clone(&counter));
        tokio::try_join!(count(), count(), count(), count(), count())
    })?;
    let count = counter.load(Ordering::Relaxed);
    println!("and five tasks to {count}");
    blocking.shutdown(Duration::from_secs(5))?;
    ensure!(count == 10, "{} steps were lost", 10 - count);
    Ok(())
}
