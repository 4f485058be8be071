//! The edges of the engine: min holds, shutdown, forced releases, panics, futures which are not polled. Paused time.
#![allow(missing_docs)]

use std::cell::RefCell;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Waker};
use std::time::Duration;

use lock_runtime::store::{
    AcquireRequest, Acquired, BoxFuture, KeepRequest, Kept, LockStatus, LockStore, ReleaseRequest, Released,
    StoreError, Watch, Withdrawn,
};
use lock_runtime::testing::{leftovers, lose, manager_on, memory_manager, memory_store};
use lock_runtime::{LockKey, LockManager, LockManagerBuilder, in_current_scope};
use tokio::time::{Instant, sleep};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3600);

/// A memory store which misbehaves once when told to, and answers a forced release late.
#[derive(Debug)]
struct OddStore {
    inner: Arc<dyn LockStore>,
    panic_in_release: AtomicBool,
    hang_in_keep: AtomicBool,
}

impl OddStore {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            inner: memory_store(),
            panic_in_release: AtomicBool::new(false),
            hang_in_keep: AtomicBool::new(false),
        })
    }
}

impl LockStore for OddStore {
    fn acquire(&self, request: Arc<AcquireRequest>) -> BoxFuture<Result<Acquired, StoreError>> {
        self.inner.acquire(request)
    }

    fn release(&self, request: Arc<ReleaseRequest>) -> BoxFuture<Result<Released, StoreError>> {
        if self.panic_in_release.swap(false, Ordering::SeqCst) {
            return Box::pin(async { panic!("store bug") });
        }
        self.inner.release(request)
    }

    fn keep(&self, request: Arc<KeepRequest>) -> BoxFuture<Result<Vec<Kept>, StoreError>> {
        if self.hang_in_keep.swap(false, Ordering::SeqCst) {
            return Box::pin(std::future::pending());
        }
        self.inner.keep(request)
    }

    fn withdraw(&self, request: Arc<AcquireRequest>) -> BoxFuture<Result<Withdrawn, StoreError>> {
        self.inner.withdraw(request)
    }

    fn watch(&self, request: Arc<AcquireRequest>) -> BoxFuture<Result<Watch, StoreError>> {
        self.inner.watch(request)
    }

    fn status(&self, key: LockKey) -> BoxFuture<Result<LockStatus, StoreError>> {
        self.inner.status(key)
    }

    fn force_release(&self, key: LockKey) -> BoxFuture<Result<bool, StoreError>> {
        let call = self.inner.force_release(key);
        Box::pin(async move {
            let result = call.await;
            sleep(500 * MS).await;
            result
        })
    }

    fn check(&self) -> BoxFuture<Result<(), StoreError>> {
        self.inner.check()
    }
}

/// Polls once with a waker that does nothing; whether the future is ready.
fn poll_once<F: Future + Unpin>(future: &mut F) -> bool {
    Pin::new(future).poll(&mut Context::from_waker(Waker::noop())).is_ready()
}

fn manager(builder: LockManagerBuilder, store: &Arc<OddStore>) -> LockManager {
    manager_on(builder, Arc::clone(store) as Arc<dyn LockStore>)
}

#[tokio::test(start_paused = true)]
async fn a_store_panic_during_a_min_hold_leaves_the_key_usable() {
    let store = OddStore::new();
    let locks = manager(LockManager::builder(), &store);
    let guard = locks.mutex("k").min_hold(SECOND).acquire().await.unwrap();
    store.panic_in_release.store(true, Ordering::SeqCst);
    drop(guard);
    sleep(HOUR).await;
    assert!(!store.panic_in_release.load(Ordering::SeqCst), "the release never reached the store");
    let again = locks.mutex("k").acquire().await;
    assert!(again.is_ok(), "the key is shut for ever: {again:?}");
}

#[tokio::test(start_paused = true)]
async fn min_hold_of_an_inner_call_keeps_the_key_taken() {
    let locks = LockManager::connect("memory:edges-inner-min-hold").await.unwrap();
    let rival = LockManager::connect("memory:edges-inner-min-hold").await.unwrap();
    let start = Instant::now();
    let body = async |_| drop(locks.mutex("k").min_hold(60 * SECOND).acquire().await.unwrap());
    locks.mutex("k").with(body).await.unwrap();
    let _guard = rival.mutex("k").wait_forever().acquire().await.unwrap();
    assert!(start.elapsed() >= 60 * SECOND, "the rival got the key after {:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn waiters_that_are_not_polled_do_not_keep_a_rival_waiting() {
    let locks = LockManager::connect("memory:edges-unpolled-waiters").await.unwrap();
    let rival = LockManager::connect("memory:edges-unpolled-waiters").await.unwrap();
    let mut first = Box::pin(locks.mutex("k").acquire());
    let mut stuck: Vec<_> = (0..100).map(|_| locks.mutex("k").wait_forever().acquire()).collect();
    assert!(!poll_once(&mut first), "the first call should need the store");
    for waiter in &mut stuck {
        assert!(!poll_once(waiter), "a waiter should wait for the first call");
    }
    let guard = first.await.unwrap();
    let rival = tokio::spawn(async move {
        let _guard = rival.mutex("k").wait_forever().acquire().await.unwrap();
        Instant::now()
    });
    sleep(MS).await;
    let released = Instant::now();
    drop(guard);
    let waited = rival.await.unwrap() - released;
    assert!(waited < 300 * MS, "the rival got the key {waited:?} after the release");
    drop(stuck);
}

#[tokio::test(start_paused = true)]
async fn a_renewal_that_hangs_once_does_not_lose_a_short_lease() {
    let store = OddStore::new();
    let locks = manager(LockManager::builder().lease(3 * SECOND), &store);
    let guard = locks.mutex("k").acquire().await.unwrap();
    store.hang_in_keep.store(true, Ordering::SeqCst);
    sleep(10 * SECOND).await;
    assert!(!store.hang_in_keep.load(Ordering::SeqCst), "no renewal was sent");
    assert!(!guard.is_lost(), "one hung renewal lost the lease");
}

#[tokio::test(start_paused = true)]
async fn shutdown_respects_a_min_hold() {
    let locks = LockManager::connect("memory:edges-shutdown-min-hold").await.unwrap();
    let rival = LockManager::connect("memory:edges-shutdown-min-hold").await.unwrap();
    let _guard = locks.mutex("k").min_hold(20 * SECOND).acquire().await.unwrap();
    let start = Instant::now();
    let _ = locks.shutdown(SECOND).await;
    let _rivals = rival.mutex("k").wait_forever().acquire().await.unwrap();
    assert!(start.elapsed() >= 19 * SECOND, "the rival got the key after {:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn force_release_ends_a_min_hold_after_the_body() {
    let locks = LockManager::connect("memory:edges-forced-min-hold").await.unwrap();
    drop(locks.mutex("k").min_hold(20 * SECOND).acquire().await.unwrap());
    sleep(SECOND).await;
    assert!(locks.force_release("k").await.unwrap(), "the key should still be taken");
    let start = Instant::now();
    let _guard = locks.mutex("k").wait_forever().acquire().await.unwrap();
    assert!(start.elapsed() < SECOND, "the next local call got the key after {:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_longer_fixed_lease_inside_outlives_the_outer_hold() {
    let locks = LockManager::connect("memory:").await.unwrap();
    let outer = locks.mutex("k").acquire().await.unwrap();
    let inner = outer.scope(locks.mutex("k").lease(120 * SECOND).acquire()).await.unwrap();
    drop(outer);
    let start = Instant::now();
    inner.lost().await;
    assert!(start.elapsed() >= 110 * SECOND, "a lease of 120 s was lost after {:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_lost_hold_leaves_no_max_hold_timer() {
    let locks = memory_manager();
    for _ in 0..5 {
        let guard = locks.mutex("k").max_hold(6 * HOUR).acquire().await.unwrap();
        assert!(lose(&locks, "k"), "the key should be held");
        drop(guard);
        sleep(SECOND).await;
    }
    assert_eq!(leftovers(&locks).timers, 0, "timers outlive their holds");
}

#[tokio::test(start_paused = true)]
async fn reentry_needs_no_place_in_a_full_queue() {
    let locks = LockManager::builder().max_waiters(1).connect("memory:").await.unwrap();
    let guard = locks.mutex("k").acquire().await.unwrap();
    let mut waiter = locks.mutex("k").wait_forever().acquire();
    assert!(!poll_once(&mut waiter), "the waiter should fill the queue");
    let inner = guard.scope(locks.mutex("k").acquire()).await;
    assert!(inner.is_ok(), "the reentry failed: {inner:?}");
}

#[tokio::test(start_paused = true)]
async fn a_body_can_reenter_during_the_grace_time_of_a_shutdown() {
    let locks = memory_manager();
    let guard = locks.mutex("k").acquire().await.unwrap();
    let shutdown = tokio::spawn({
        let locks = locks.clone();
        async move { locks.shutdown(10 * SECOND).await }
    });
    sleep(SECOND).await;
    assert!(!shutdown.is_finished(), "the shutdown should wait for the guard");
    let inner = guard.scope(locks.mutex("k").acquire()).await;
    assert!(inner.is_ok(), "the reentry failed: {inner:?}");
}

#[tokio::test(start_paused = true)]
async fn a_waiter_that_is_not_polled_does_not_hold_up_a_shutdown() {
    let locks = memory_manager();
    let guard = locks.mutex("k").acquire().await.unwrap();
    let mut waiter = Box::pin(locks.mutex("k").wait_forever().acquire());
    assert!(!poll_once(&mut waiter), "the waiter should wait for the guard");
    drop(guard);
    let start = Instant::now();
    let result = locks.shutdown(30 * SECOND).await;
    assert!(start.elapsed() < SECOND, "the shutdown took {:?}: {result:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_late_reply_to_a_force_release_spares_a_later_hold() {
    let store = OddStore::new();
    let locks = manager(LockManager::builder(), &store);
    let guard = locks.mutex("k").acquire().await.unwrap();
    let forced = tokio::spawn({
        let locks = locks.clone();
        async move { locks.force_release("k").await }
    });
    sleep(100 * MS).await; // the key is free at the store, the reply is under way
    drop(guard);
    let later = locks.mutex("k").acquire().await.unwrap();
    assert!(forced.await.unwrap().unwrap(), "the key should have been taken");
    assert!(!later.is_lost(), "the hold taken after the forced release is lost");
}

#[test]
fn a_scoped_future_can_be_dropped_by_a_thread_local() {
    type Slot = RefCell<Option<Pin<Box<dyn Future<Output = ()>>>>>;
    thread_local! {
        static SLOT: Slot = const { RefCell::new(None) };
    }
    let thread = std::thread::spawn(|| {
        // The slot is initialised before the scope's own thread-local, so it is dropped after it.
        SLOT.with(|slot| *slot.borrow_mut() = None);
        let mut future: Pin<Box<dyn Future<Output = ()>>> =
            Box::pin(in_current_scope(std::future::pending::<()>()));
        assert!(!poll_once(&mut future), "the future never ends");
        SLOT.with(|slot| *slot.borrow_mut() = Some(future));
    });
    // A panic in the destructor of a thread-local would abort the process.
    assert!(thread.join().is_ok(), "the thread panicked");
}
