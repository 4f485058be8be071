//! Edge cases of the engine: min holds, shutdown, forced releases, panics, and futures that are not
//! polled. Paused time.

use std::cell::RefCell;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Wake, Waker};
use std::time::Duration;

use crate::block_on::block_on;
use lock_core::store::{
    AcquireRequest, Acquired, BoxFuture, Forward, LockStatus, LockStore, Notice, ReleaseRequest, Released,
    RenewRequest, Renewed, StoreError, Watch,
};
use lock_runtime::testing::{leftovers, lose, manager_on, memory_manager, memory_store};
use lock_runtime::{LockError, LockGuard, LockKey, LockManager, LockManagerBuilder, in_current_scope};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3600);

/// A memory store that misbehaves once when told to, and begins and answers a forced release late.
#[derive(Debug)]
struct OddStore {
    inner: Arc<dyn LockStore>,
    panic_in_acquire: AtomicBool,
    panic_in_release: AtomicBool,
    hang_in_renew: AtomicBool,
    slow_acquire: AtomicBool,
    hang_in_status: AtomicBool,
    releases: AtomicUsize,
    /// Watches hear nothing, and release this guard when they are dropped.
    in_watches: Mutex<Option<GuardInWatches>>,
}

type GuardInWatches = Arc<Mutex<Option<LockGuard>>>;

/// Something that uses the lock when it is dropped; a store may have such a value in a watch.
struct Registration(GuardInWatches, #[allow(dead_code)] mpsc::Sender<Notice>);

impl Drop for Registration {
    fn drop(&mut self) {
        let guard = self.0.lock().unwrap().take();
        if let Some(guard) = guard {
            poll_once(&mut Box::pin(guard.release()));
        }
    }
}

impl OddStore {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            inner: memory_store(),
            panic_in_acquire: AtomicBool::new(false),
            panic_in_release: AtomicBool::new(false),
            hang_in_renew: AtomicBool::new(false),
            slow_acquire: AtomicBool::new(false),
            hang_in_status: AtomicBool::new(false),
            releases: AtomicUsize::new(0),
            in_watches: Mutex::default(),
        })
    }
}

impl Forward for OddStore {
    fn inner(&self) -> &dyn LockStore {
        &*self.inner
    }

    fn acquire(&self, request: Arc<AcquireRequest>) -> BoxFuture<Result<Acquired, StoreError>> {
        let call = self.inner.acquire(request);
        if self.panic_in_acquire.swap(false, Ordering::SeqCst) {
            return Box::pin(async {
                let _ = call.await;
                panic!("store bug")
            });
        }
        if self.slow_acquire.swap(false, Ordering::SeqCst) {
            return Box::pin(async {
                let answer = call.await;
                sleep(100 * MS).await;
                answer
            });
        }
        call
    }

    fn release(&self, request: Arc<ReleaseRequest>) -> BoxFuture<Result<Released, StoreError>> {
        if self.panic_in_release.swap(false, Ordering::SeqCst) {
            panic!("store bug");
        }
        self.releases.fetch_add(1, Ordering::SeqCst);
        self.inner.release(request)
    }

    fn renew(&self, request: Arc<RenewRequest>) -> BoxFuture<Result<Vec<Renewed>, StoreError>> {
        if self.hang_in_renew.swap(false, Ordering::SeqCst) {
            return Box::pin(std::future::pending());
        }
        self.inner.renew(request)
    }

    fn watch(&self, request: Arc<AcquireRequest>) -> BoxFuture<Result<Watch, StoreError>> {
        let Some(guard) = self.in_watches.lock().unwrap().clone() else { return self.inner.watch(request) };
        let (sender, notices) = mpsc::channel(1);
        Box::pin(async { Ok(Watch::new(notices, true, Box::new(Registration(guard, sender)))) })
    }

    fn status(&self, key: LockKey) -> BoxFuture<Result<LockStatus, StoreError>> {
        if self.hang_in_status.swap(false, Ordering::SeqCst) {
            return Box::pin(std::future::pending());
        }
        self.inner.status(key)
    }

    fn force_release(&self, key: LockKey) -> BoxFuture<Result<bool, StoreError>> {
        let call = self.inner.force_release(key);
        Box::pin(async move {
            sleep(100 * MS).await;
            let result = call.await;
            sleep(500 * MS).await;
            result
        })
    }
}

/// Polls once with a waker that does nothing. Returns whether the future is ready.
fn poll_once<F: Future + Unpin>(future: &mut F) -> bool {
    Pin::new(future).poll(&mut Context::from_waker(Waker::noop())).is_ready()
}

/// Polls outside the manager's runtime, so that a task sends the request that follows.
fn poll_elsewhere<F: Future + Unpin + Send>(future: &mut F) -> bool {
    std::thread::scope(|scope| scope.spawn(|| poll_once(future)).join().unwrap())
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
async fn a_store_panic_in_a_release_is_one_failed_call() {
    let store = OddStore::new();
    let locks = manager(LockManager::builder(), &store);
    let guard = locks.mutex("k").acquire().await.unwrap();
    sleep(SECOND).await; // the window is over: nothing is handed on
    let (waiting, start) = (locks.clone(), Instant::now());
    let waiter = tokio::spawn(async move { waiting.mutex("k").wait(60 * SECOND).acquire().await });
    sleep(MS).await;
    store.panic_in_release.store(true, Ordering::SeqCst);
    let error = guard.release().await.unwrap_err();
    assert!(error.to_string().contains("store bug"), "{error}");
    drop(waiter.await.unwrap().unwrap());
    assert!(start.elapsed() < SECOND, "{:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn what_a_panicking_acquire_took_is_given_back() {
    let store = OddStore::new();
    let locks = manager(LockManager::builder(), &store);
    store.panic_in_acquire.store(true, Ordering::SeqCst);
    let error = locks.mutex("k").try_acquire().await.unwrap_err();
    assert!(matches!(error, LockError::Unavailable { .. }), "{error:?}");
    let start = Instant::now();
    drop(locks.mutex("k").wait(20 * SECOND).acquire().await.unwrap());
    assert!(start.elapsed() < 5 * SECOND, "the key was left to its lease: {:?}", start.elapsed());
}

/// Takes ten keys, drops all guards at once, and returns how many keys are free afterwards.
async fn freed_of_ten(locks: &LockManager) -> usize {
    let mut guards = Vec::new();
    for key in 0..10 {
        guards.push(locks.mutex(format!("k{key}")).acquire().await.unwrap());
    }
    drop(guards);
    sleep(SECOND).await;
    let mut freed = 0;
    for key in 0..10 {
        freed += usize::from(!locks.status(format!("k{key}")).await.unwrap().is_locked());
    }
    freed
}

#[tokio::test(start_paused = true)]
async fn releases_over_the_cap_are_left_to_their_leases() {
    let store = OddStore::new();
    let locks = manager(LockManager::builder().max_pending_releases(3), &store);
    assert_eq!(freed_of_ten(&locks).await, 3);
    sleep(30 * SECOND).await;
    // A release that panics frees its place.
    store.panic_in_release.store(true, Ordering::SeqCst);
    drop(locks.mutex("other").acquire().await.unwrap());
    sleep(SECOND).await;
    assert_eq!(freed_of_ten(&locks).await, 3);
    let awaited = locks.mutex("awaited").acquire().await.unwrap();
    awaited.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn releases_of_lost_holds_count_too() {
    let store = OddStore::new();
    let locks = manager(LockManager::builder().max_pending_releases(0), &store);
    let guard = locks.mutex("k").acquire().await.unwrap();
    assert!(lose(&locks, "k"));
    drop(guard);
    sleep(SECOND).await;
    assert_eq!(store.releases.load(Ordering::SeqCst), 0);
}

#[tokio::test(start_paused = true)]
async fn a_hand_off_needs_no_place_among_the_releases() {
    let locks = LockManager::builder().max_pending_releases(0).connect("memory:").await.unwrap();
    // Both queue before the store is asked, so that it grants tokens for both.
    let (mut first, mut second) = (locks.mutex("k").acquire(), locks.mutex("k").acquire());
    assert!(!poll_elsewhere(&mut first) && !poll_elsewhere(&mut second));
    let start = Instant::now();
    drop(first.await.unwrap());
    assert!(second.await.is_ok());
    assert!(start.elapsed() < SECOND, "{:?}", start.elapsed());
}

/// A waker that wakes nothing, and owns a guard as an executor's waker owns its task.
struct Task {
    _guard: LockGuard,
}

impl Wake for Task {
    fn wake(self: Arc<Self>) {}
}

#[test]
fn a_waker_that_owns_a_guard_of_the_key_may_go_with_its_waiter() {
    let (done, finished) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let locks = LockManager::connect("memory:").await.unwrap();
            let task = |guard| Waker::from(Arc::new(Task { _guard: guard }));
            let poll = |waiter: &mut lock_runtime::Acquire, waker: Waker| {
                assert!(Pin::new(waiter).poll(&mut Context::from_waker(&waker)).is_pending());
            };
            // The waiter leaves.
            let guard = locks.mutex("k").acquire().await.unwrap();
            let mut waiter = locks.mutex("k").wait_forever().acquire();
            poll(&mut waiter, task(guard));
            drop(waiter);
            // The waiter gets the lock.
            let guard = locks.mutex("k").acquire().await.unwrap();
            let inner = guard.reenter().unwrap();
            let mut waiter = locks.mutex("k").wait_forever().acquire();
            poll(&mut waiter, task(inner));
            locks.force_release("k").await.unwrap();
            drop((waiter.await.unwrap(), guard));
        });
        done.send(()).unwrap();
    });
    finished.recv_timeout(10 * SECOND).expect("a deadlock");
}

#[tokio::test(start_paused = true)]
async fn a_longer_lease_inside_is_asked_for_until_its_wait_is_over() {
    let store = OddStore::new();
    let locks = manager(LockManager::builder(), &store);
    let guard = locks.mutex("k").lease(20 * SECOND).acquire().await.unwrap();
    store.hang_in_renew.store(true, Ordering::SeqCst);
    let inner = guard.scope(locks.mutex("k").lease(60 * SECOND).wait(10 * SECOND).acquire()).await.unwrap();
    assert!(inner.remaining() > 50 * SECOND);
    drop(inner);
    store.hang_in_renew.store(true, Ordering::SeqCst);
    let error = guard.scope(locks.mutex("k").lease(120 * SECOND).try_acquire()).await.unwrap_err();
    assert!(matches!(error, LockError::Unavailable { .. }), "{error:?}");
}

#[tokio::test(start_paused = true)]
async fn a_call_inside_waits_no_longer_than_its_wait() {
    let store = OddStore::new();
    let (locks, rival) = (manager(LockManager::builder(), &store), manager(LockManager::builder(), &store));
    let guard = locks.mutex("k").lease(20 * SECOND).acquire().await.unwrap();
    assert!(rival.force_release("k").await.unwrap());
    let _held = rival.mutex("k").acquire().await.unwrap();
    store.hang_in_renew.store(true, Ordering::SeqCst);
    let start = Instant::now();
    let inner = guard.scope(locks.mutex("k").lease(60 * SECOND).wait(3 * SECOND).acquire()).await;
    assert!(inner.is_err());
    assert!(start.elapsed() < 4 * SECOND, "{:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn one_slow_answer_refuses_no_lease() {
    let store = OddStore::new();
    let (locks, rival) = (manager(LockManager::builder(), &store), manager(LockManager::builder(), &store));
    let held = rival.mutex("k").acquire().await.unwrap();
    store.slow_acquire.store(true, Ordering::SeqCst);
    assert!(locks.mutex("k").lease(300 * MS).try_acquire().await.unwrap().is_none());
    drop(held);
    sleep(SECOND).await;
    assert!(locks.mutex("k").lease(300 * MS).try_acquire().await.unwrap().is_some());
}

#[tokio::test(start_paused = true)]
async fn a_forced_release_reaches_a_hold_that_was_granted_meanwhile() {
    let store = OddStore::new();
    let locks = manager(LockManager::builder(), &store);
    let forced = tokio::spawn({
        let locks = locks.clone();
        async move { locks.force_release("k").await }
    });
    sleep(50 * MS).await;
    let guard = locks.mutex("k").acquire().await.unwrap(); // before it is freed
    assert!(forced.await.unwrap().unwrap());
    sleep(50 * MS).await;
    assert!(guard.is_lost());
}

#[tokio::test(start_paused = true)]
async fn a_dropped_forced_release_goes_on() {
    let store = OddStore::new();
    let locks = manager(LockManager::builder(), &store);
    let guard = locks.mutex("k").acquire().await.unwrap();
    assert!(tokio::time::timeout(MS, locks.force_release("k")).await.is_err());
    sleep(SECOND).await;
    assert!(guard.is_lost());
    assert!(!locks.status("k").await.unwrap().is_locked());
}

#[tokio::test(start_paused = true)]
async fn an_extension_obeys_the_rules_for_leases() {
    let locks = LockManager::connect("memory:").await.unwrap();
    let guard = locks.mutex("k").lease(SECOND).acquire().await.unwrap();
    for lease in [MS, 367 * 24 * 3600 * SECOND] {
        let error = guard.extend(lease).await.unwrap_err();
        assert!(matches!(error, LockError::Misconfigured { .. }), "{error:?}");
    }
    guard.extend(30 * 24 * 3600 * SECOND).await.unwrap();
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
    assert!(!poll_elsewhere(&mut first), "the first call should need the store");
    for waiter in &mut stuck {
        assert!(!poll_elsewhere(waiter), "a waiter should wait for the first call");
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
    store.hang_in_renew.store(true, Ordering::SeqCst);
    sleep(10 * SECOND).await;
    assert!(!store.hang_in_renew.load(Ordering::SeqCst), "no renewal was sent");
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
    sleep(200 * MS).await; // the key is free at the store, the reply is under way
    drop(guard);
    let later = locks.mutex("k").acquire().await.unwrap();
    assert!(forced.await.unwrap().unwrap(), "the key should have been taken");
    assert!(!later.is_lost(), "the hold taken after the forced release is lost");
}

#[test]
fn a_call_that_is_under_way_when_the_runtime_goes_fails() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let store = OddStore::new();
    store.hang_in_status.store(true, Ordering::SeqCst);
    let connecting = LockManager::builder().connect_store(store as Arc<dyn LockStore>);
    let locks = runtime.block_on(connecting).unwrap();
    let status = std::thread::spawn(move || block_on(locks.status("k")));
    std::thread::sleep(100 * MS);
    runtime.shutdown_timeout(SECOND);
    assert!(status.join().unwrap().is_err());
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

#[tokio::test(start_paused = true)]
#[should_panic(expected = "polled after it had ended")]
async fn a_future_that_has_ended_is_not_polled_again() {
    let locks = memory_manager();
    let mut acquire = locks.mutex("k").acquire();
    let _guard = (&mut acquire).await.unwrap();
    let _ = acquire.await;
}

#[tokio::test(start_paused = true)]
#[should_panic(expected = "polled after it had ended")]
async fn a_body_that_has_ended_is_not_polled_again() {
    let locks = memory_manager();
    let guard = locks.mutex("k").acquire().await.unwrap();
    let mut body = Box::pin(guard.scope(async {}));
    body.as_mut().await;
    body.await;
}

/// The watch is dropped while no lock of the engine is held.
#[test]
fn a_watch_may_use_the_lock_when_it_goes() {
    let (done, ended) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        runtime.enable_time().start_paused(true).build().unwrap().block_on(async {
            let store = OddStore::new();
            let rival = manager_on(LockManager::builder(), Arc::clone(&store.inner));
            let locks = manager(LockManager::builder(), &store);
            let in_watches = GuardInWatches::default();
            *store.in_watches.lock().unwrap() = Some(Arc::clone(&in_watches));
            let held = rival.mutex("k").acquire().await.unwrap();
            let waiter = || {
                let waiter = locks.mutex("k").wait_forever().acquire();
                tokio::spawn(waiter)
            };
            let (first, second) = (waiter(), waiter());
            sleep(SECOND).await;
            held.release().await.unwrap();
            let guard = first.await.unwrap().unwrap();
            *in_watches.lock().unwrap() = Some(guard);
            // There are no waiters left, so the watch is no longer needed.
            second.abort();
            assert!(second.await.is_err());
            sleep(SECOND).await;
            assert!(in_watches.lock().unwrap().is_none(), "the watch is still there");
            assert!(!rival.status("k").await.unwrap().is_locked());
        });
        done.send(()).unwrap();
    });
    ended.recv_timeout(60 * SECOND).expect("it waits for itself");
}

/// A task that retries a call that is always refused still lets other tasks run.
#[tokio::test]
async fn a_refused_acquire_takes_part_of_the_budget_of_its_task() {
    let locks = memory_manager();
    let others = tokio::spawn(async {});
    for _ in 0..10_000 {
        assert!(locks.mutex("").acquire().await.is_err());
        if others.is_finished() {
            return;
        }
    }
    panic!("nobody else has run");
}
