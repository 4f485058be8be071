//! Locks of all kinds with late notices, callers that are polled late, and lost calls. Paused time.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use lock_core::store::{
    AcquireRequest, Acquired, BoxFuture, Forward, LockStore, RenewRequest, Renewed, StoreError,
    StoreErrorKind, Watch,
};
use lock_runtime::testing::{manager_on, named_memory_store};
use lock_runtime::{LockManager, LockManagerBuilder};
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};

const MS: Duration = Duration::from_millis(1);

/// A store that takes half a millisecond to answer an acquire, delivers notices late, and loses
/// calls.
#[derive(Debug)]
struct Far {
    inner: Arc<dyn LockStore>,
    notices_late_by: Duration,
    lose_a_renewal: AtomicBool,
}

impl Far {
    fn new(name: &str, notices_late_by: Duration) -> Arc<Self> {
        let inner = named_memory_store(name);
        Arc::new(Self { inner, notices_late_by, lose_a_renewal: AtomicBool::new(false) })
    }

    fn manager(self: &Arc<Self>) -> LockManager {
        self.manager_with(LockManager::builder())
    }

    fn manager_with(self: &Arc<Self>, settings: LockManagerBuilder) -> LockManager {
        manager_on(settings, Arc::clone(self) as Arc<dyn LockStore>)
    }
}

impl Forward for Far {
    fn inner(&self) -> &dyn LockStore {
        &*self.inner
    }

    fn acquire(&self, request: Arc<AcquireRequest>) -> BoxFuture<Result<Acquired, StoreError>> {
        let call = self.inner.acquire(request);
        Box::pin(async move {
            sleep(MS / 2).await;
            call.await
        })
    }

    fn renew(&self, request: Arc<RenewRequest>) -> BoxFuture<Result<Vec<Renewed>, StoreError>> {
        if self.lose_a_renewal.swap(false, Ordering::SeqCst) {
            return Box::pin(async move {
                sleep(request.timeout).await;
                Err(StoreError::new(StoreErrorKind::Unanswered, "lost"))
            });
        }
        self.inner.renew(request)
    }

    fn watch(&self, request: Arc<AcquireRequest>) -> BoxFuture<Result<Watch, StoreError>> {
        let (watch, late) = (self.inner.watch(request), self.notices_late_by);
        Box::pin(async move {
            let mut inner = watch.await?;
            let (sender, notices) = mpsc::channel(16);
            tokio::spawn(async move {
                loop {
                    tokio::select! {
                        () = sender.closed() => return,
                        notice = inner.notice() => {
                            sleep(late).await;
                            let _ = sender.send(notice).await;
                        }
                    }
                }
            });
            Ok(Watch::new(notices, true, Box::new(())))
        })
    }
}

fn poll<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
    Pin::new(future).poll(&mut Context::from_waker(Waker::noop()))
}

/// The late grant's token is older than that of the current holder.
#[tokio::test(start_paused = true)]
async fn a_grant_whose_notice_is_late_is_not_used_after_its_end() {
    for n in 0..40 {
        let name = format!("edges-late-{n}");
        let x = manager_on(LockManager::builder(), named_memory_store(&name));
        let y = Far::new(&name, 1000 * MS).manager();
        let held = x.fair("k").acquire().await.unwrap();
        let waiter =
            tokio::spawn(async move { y.fair("k").lease(400 * MS).wait_forever().acquire().await.unwrap() });
        sleep(5000 * MS + 50 * MS * n).await;
        held.release().await.unwrap();
        // Meanwhile the key was granted to the waiter for 400 ms, and that lease has expired.
        sleep(420 * MS).await;
        let Some(next) = x.fair("k").try_acquire().await.unwrap() else {
            waiter.abort();
            continue;
        };
        if let Ok(late) = timeout(3000 * MS, waiter).await {
            let late = late.unwrap();
            assert!(next.is_lost() || late.is_lost(), "two holders: {next:?}, {late:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_reader_that_comes_between_offer_and_claim_is_not_kept_waiting_by_a_reader() {
    let locks = Far::new("edges-offer", MS).manager();
    let mut first = Box::pin(locks.read("k").acquire());
    assert!(poll(&mut first).is_pending());
    // The reader has an offer whose window is over, because it is not polled.
    sleep(15 * MS).await;
    let late = tokio::spawn({
        let locks = locks.clone();
        async move { locks.read("k").acquire().await.map(drop) }
    });
    for _ in 0..20 {
        tokio::task::yield_now().await;
    }
    let Poll::Ready(Ok(_guard)) = poll(&mut first) else { panic!("the offer stands") };
    timeout(1000 * MS, late).await.expect("it is not kept waiting").unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_fair_waiter_that_is_polled_a_little_late_has_its_turn() {
    let [x, y] = [(); 2].map(|()| manager_on(LockManager::builder(), named_memory_store("edges-polled")));
    let held = x.fair("k").acquire().await.unwrap();
    let mut first = Box::pin(y.fair("k").wait_forever().acquire());
    assert!(poll(&mut first).is_pending());
    sleep(50 * MS).await;
    let second = tokio::spawn(async move { x.fair("k").wait_forever().acquire().await.unwrap() });
    sleep(50 * MS).await;
    held.release().await.unwrap();
    sleep(300 * MS).await;
    assert!(!second.is_finished(), "overtaken");
    assert!(poll(&mut first).is_ready());
}

#[tokio::test(start_paused = true)]
async fn a_lost_sign_of_life_costs_no_place() {
    for n in 0..20 {
        let name = format!("edges-keep-{n}");
        let x = manager_on(LockManager::builder(), named_memory_store(&name));
        let store = Far::new(&name, MS);
        let y = store.manager();
        let held = x.fair("k").acquire().await.unwrap();
        let first = tokio::spawn(async move { y.fair("k").wait_forever().acquire().await.unwrap() });
        sleep(50 * MS).await;
        let second = tokio::spawn(async move { x.fair("k").wait_forever().acquire().await.unwrap() });
        sleep(14_000 * MS + 100 * MS * n).await;
        store.lose_a_renewal.store(true, Ordering::SeqCst);
        sleep(6000 * MS).await;
        held.release().await.unwrap();
        sleep(30 * MS).await;
        assert!(first.is_finished() && !second.is_finished());
    }
}

/// If the process ends before it has renewed the hold, the key still stays taken for the min hold.
#[tokio::test(start_paused = true)]
async fn a_long_min_hold_is_not_granted_directly_for_less() {
    let [x, y] = [(); 2].map(|()| manager_on(LockManager::builder(), named_memory_store("edges-min-hold")));
    let held = x.fair("k").acquire().await.unwrap();
    let wish = y.fair("k").min_hold(60_000 * MS).wait_forever().acquire();
    let waiter = tokio::spawn(async move { wish.await.unwrap() });
    sleep(10_000 * MS).await;
    held.release().await.unwrap();
    let guard = waiter.await.unwrap();
    let left = x.status("k").await.unwrap().remaining.unwrap();
    assert!(left >= 59_000 * MS, "{left:?}");
    drop(guard);
}

/// While the lock waits for another key, keeping readers out would be pointless.
#[tokio::test(start_paused = true)]
async fn a_lock_of_several_that_waits_for_something_else_keeps_no_readers_out() {
    use lock_runtime::MultiKey;

    let [x, y] = [(); 2].map(|()| manager_on(LockManager::builder(), named_memory_store("edges-several")));
    let job = x.mutex("job").acquire().await.unwrap();
    let reader = x.read("settings").acquire().await.unwrap();
    let both = y.multi([MultiKey::write("settings"), MultiKey::mutex("job")]).wait_forever().acquire();
    let waiter = tokio::spawn(async move { both.await.unwrap() });
    for _ in 0..30 {
        sleep(200 * MS).await;
        let other = x.read("settings").lease(1000 * MS).try_acquire().await.unwrap();
        assert!(other.is_some(), "kept out");
    }
    // Now only readers are in the way.
    job.release().await.unwrap();
    sleep(1100 * MS).await;
    assert!(x.read("settings").lease(1000 * MS).try_acquire().await.unwrap().is_none());
    reader.release().await.unwrap();
    drop(timeout(1000 * MS, waiter).await.expect("nobody is left").unwrap());
}

/// The release reaches the store at once, although another reader had an offer when the shutdown
/// began.
#[tokio::test(start_paused = true)]
async fn a_reader_that_goes_during_a_shutdown_gives_its_lock_back() {
    let locks = lock_runtime::testing::memory_manager();
    let writer = locks.write("k").acquire().await.unwrap();
    let mut readers = [locks.read("k").acquire(), locks.read("k").acquire()];
    readers.iter_mut().for_each(|reader| assert!(poll(reader).is_pending()));
    writer.release().await.unwrap();
    for _ in 0..50 {
        tokio::task::yield_now().await;
    }
    let [first, second] = readers;
    let first = first.await.unwrap();
    let shutdown = tokio::spawn({
        let locks = locks.clone();
        async move { locks.shutdown(60_000 * MS).await }
    });
    for _ in 0..10 {
        tokio::task::yield_now().await;
    }
    let start = tokio::time::Instant::now();
    first.release().await.unwrap();
    assert!(!locks.status("k").await.unwrap().is_locked(), "handed on to nobody");
    assert_eq!(start.elapsed(), Duration::ZERO);
    assert!(second.await.is_err());
    shutdown.await.unwrap().unwrap();
}

/// The hold that the reader would join is closed, and the next one already has the maximum of
/// waiters.
#[tokio::test(start_paused = true)]
async fn a_reader_that_has_to_ask_elsewhere_keeps_its_place_among_the_waiters() {
    let store = Far::new("edges-elsewhere", Duration::ZERO);
    let locks = store.manager_with(LockManager::builder().max_waiters_per_key(1));
    let _first = locks.read("k").acquire().await.unwrap();
    sleep(10 * MS).await;
    let mut second = locks.read("k").acquire();
    assert!(poll(&mut second).is_pending(), "the first one's hold is open still");
    sleep(50 * MS).await;
    let mut third = locks.read("k").acquire();
    assert!(poll(&mut third).is_pending());
    let fourth = locks.read("k").acquire().await.unwrap_err();
    assert!(matches!(fourth, lock_runtime::LockError::TooManyWaiters { .. }), "{fourth:?}");
    let _second = second.await.unwrap();
    let _third = third.await.unwrap();
}
