//! Locks of threads that block.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::thread;
use std::time::Duration;

use lock_runtime::{Blocking, Lock, LockError, LockManager};

const SECOND: Duration = Duration::from_secs(1);

fn manager() -> Blocking<LockManager> {
    LockManager::builder().dedicated_thread().connect_lazy("memory:").unwrap().blocking()
}

#[test]
fn threads_wait_for_each_other() {
    let locks = manager();
    let counter = Mutex::new(0);
    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for _ in 0..50 {
                    let guard = locks.mutex("k").acquire().unwrap();
                    *counter.try_lock().expect("nobody else is in") += 1;
                    guard.release().unwrap();
                }
            });
        }
    });
    assert_eq!(counter.into_inner().unwrap(), 400);
}

#[test]
fn all_kinds_and_calls_work() {
    let locks = manager();
    let guard = locks.fair("f").acquire().unwrap();
    assert!(locks.fair("f").try_acquire().unwrap().is_none());
    let error = locks.fair("f").set(|lock| lock.wait(SECOND / 50)).acquire().unwrap_err();
    assert!(matches!(error, LockError::TimedOut { .. }), "{error:?}");
    guard.release().unwrap();

    let readers = [locks.read("rw").acquire().unwrap(), locks.read("rw").acquire().unwrap()];
    assert!(locks.write("rw").try_acquire().unwrap().is_none());
    drop(readers);
    locks.write("rw").acquire().unwrap().release().unwrap();

    let several = locks.multi(["a", "b"]).set(|lock| lock.lease(SECOND)).acquire().unwrap();
    assert_eq!(several.tokens().len(), 2);
    several.extend(SECOND * 10).unwrap();
    assert!(several.remaining() > SECOND * 5);
}

#[test]
fn a_dropped_guard_and_one_in_a_panic_free_the_lock() {
    let locks = manager();
    drop(locks.mutex("k").acquire().unwrap());
    let next = locks.mutex("k").acquire().unwrap();
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        let _guard = next;
        panic!("in the middle of its work");
    }));
    assert!(panicked.is_err());
    locks.mutex("k").acquire().unwrap().release().unwrap();
}

#[test]
fn a_shutdown_ends_waits_and_holds() {
    let locks = manager();
    let guard = locks.mutex("k").acquire().unwrap();
    thread::scope(|scope| {
        let waits = scope.spawn(|| locks.mutex("k").set(Lock::wait_forever).acquire());
        // It has begun to wait, or is told at once.
        thread::sleep(SECOND / 20);
        assert!(locks.shutdown(Duration::ZERO).is_err(), "a lock is still held");
        let error = waits.join().unwrap().unwrap_err();
        assert!(matches!(error, LockError::ShutDown { .. }), "{error:?}");
    });
    assert!(guard.is_lost());
    let error = guard.release().unwrap_err();
    assert!(matches!(error, LockError::Lost { .. }), "{error:?}");
}

#[test]
fn on_a_thread_of_a_runtime_it_panics_and_says_what_to_do() {
    let locks = manager();
    let guard = locks.mutex("held").acquire().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let panic = catch_unwind(AssertUnwindSafe(|| locks.mutex("k").acquire())).unwrap_err();
        let text = panic.downcast_ref::<&str>().copied().unwrap_or_default();
        assert!(text.contains("await the same call") && text.contains("spawn_blocking"), "{text}");
        assert!(catch_unwind(AssertUnwindSafe(|| guard.release())).is_err());
    });
    // Released all the same, and nothing else was taken.
    for key in ["held", "k"] {
        locks.mutex(key).acquire().unwrap().release().unwrap();
    }
    // What to use there instead.
    let inner = LockManager::builder().dedicated_thread().connect_lazy("memory:").unwrap();
    let token = runtime.block_on(async {
        let lock = inner.mutex("k");
        let wait = move || tokio::runtime::Handle::current().block_on(lock.acquire());
        tokio::task::spawn_blocking(wait).await.unwrap().unwrap().fencing_token()
    });
    assert!(token.get() > 0);
}
