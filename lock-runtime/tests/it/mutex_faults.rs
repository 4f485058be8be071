//! The engine on a store that fails: errors, lost replies, late replies. Paused time.

use std::collections::VecDeque;
use std::iter::repeat_n;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lock_core::store::{
    AcquireRequest, Acquired, BoxFuture, CountDownRequest, Forward, LatchStore, LockStore, ReleaseRequest,
    Released, RenewRequest, Renewed, StoreError, StoreErrorKind, Watch, Withdrawn,
};
use lock_runtime::testing::{leftovers, manager_on, memory_store};
use lock_runtime::{LockError, LockKey, LockManager, MultiKey, OwnerId};
use tokio::time::{Instant, sleep};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

/// A fault in the next call of a kind.
#[derive(Clone, Copy, Debug)]
enum Fault {
    /// Refused without effect.
    Error(StoreErrorKind),
    /// Carried out; the reply is lost.
    LoseReply,
    /// Carried out; the reply comes after this.
    Delay(Duration),
    /// Carried out, and answered, after this.
    Late(Duration),
    /// Never carried out, never answered.
    Hang,
}

/// A memory store with faults.
#[derive(Debug)]
struct FaultyStore {
    inner: Arc<dyn LockStore>,
    acquire: Mutex<VecDeque<Fault>>,
    release: Mutex<VecDeque<Fault>>,
    keep: Mutex<VecDeque<Fault>>,
    watch: Mutex<VecDeque<Fault>>,
    withdraw: Mutex<VecDeque<Fault>>,
    acquires: AtomicUsize,
    releases: AtomicUsize,
    withdrawals: AtomicUsize,
    /// Every withdrawal answers that a copy of the request may still arrive.
    doubtful: AtomicBool,
    /// The owner of the first key of each acquire.
    owners: Mutex<Vec<OwnerId>>,
}

impl FaultyStore {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            inner: memory_store(),
            acquire: Mutex::default(),
            release: Mutex::default(),
            keep: Mutex::default(),
            watch: Mutex::default(),
            withdraw: Mutex::default(),
            acquires: AtomicUsize::new(0),
            releases: AtomicUsize::new(0),
            withdrawals: AtomicUsize::new(0),
            doubtful: AtomicBool::new(false),
            owners: Mutex::default(),
        })
    }

    async fn is_locked(&self, key: &str) -> bool {
        self.inner.status(LockKey::new(key).unwrap()).await.unwrap().is_locked()
    }
}

fn with_fault<T: Send + 'static>(
    faults: &Mutex<VecDeque<Fault>>,
    call: BoxFuture<Result<T, StoreError>>,
) -> BoxFuture<Result<T, StoreError>> {
    match faults.lock().unwrap().pop_front() {
        None => call,
        Some(Fault::Error(kind)) => Box::pin(async move { Err(StoreError::new(kind, "injected")) }),
        Some(Fault::LoseReply) => Box::pin(async move {
            call.await?;
            Err(StoreError::new(StoreErrorKind::Unanswered, "reply lost"))
        }),
        Some(Fault::Delay(delay)) => Box::pin(async move {
            let result = call.await;
            sleep(delay).await;
            result
        }),
        Some(Fault::Late(delay)) => Box::pin(async move {
            sleep(delay).await;
            call.await
        }),
        Some(Fault::Hang) => Box::pin(std::future::pending()),
    }
}

impl Forward for FaultyStore {
    fn inner(&self) -> &dyn LockStore {
        &*self.inner
    }

    fn acquire(&self, request: Arc<AcquireRequest>) -> BoxFuture<Result<Acquired, StoreError>> {
        self.acquires.fetch_add(1, Ordering::SeqCst);
        self.owners.lock().unwrap().push(request.items[0].owner.clone());
        with_fault(&self.acquire, self.inner.acquire(request))
    }

    fn release(&self, request: Arc<ReleaseRequest>) -> BoxFuture<Result<Released, StoreError>> {
        self.releases.fetch_add(1, Ordering::SeqCst);
        with_fault(&self.release, self.inner.release(request))
    }

    fn renew(&self, request: Arc<RenewRequest>) -> BoxFuture<Result<Vec<Renewed>, StoreError>> {
        with_fault(&self.keep, self.inner.renew(request))
    }

    fn withdraw(&self, request: Arc<AcquireRequest>) -> BoxFuture<Result<Withdrawn, StoreError>> {
        self.withdrawals.fetch_add(1, Ordering::SeqCst);
        let withdrawn = with_fault(&self.withdraw, self.inner.withdraw(request));
        if !self.doubtful.load(Ordering::SeqCst) {
            return withdrawn;
        }
        Box::pin(async move { withdrawn.await.map(|_| Withdrawn::Pending(60 * SECOND)) })
    }

    fn watch(&self, request: Arc<AcquireRequest>) -> BoxFuture<Result<Watch, StoreError>> {
        with_fault(&self.watch, self.inner.watch(request))
    }

    fn latches(&self) -> Option<Arc<dyn LatchStore>> {
        Some(Arc::new(Unconfirmed(self.inner.latches()?)))
    }
}

/// Latches that accept subscriptions and never confirm them.
#[derive(Debug)]
struct Unconfirmed(Arc<dyn LatchStore>);

impl LatchStore for Unconfirmed {
    fn try_set_count(
        &self,
        key: LockKey,
        count: u32,
        timeout: Duration,
    ) -> BoxFuture<Result<bool, StoreError>> {
        self.0.try_set_count(key, count, timeout)
    }

    fn count_down(&self, request: Arc<CountDownRequest>) -> BoxFuture<Result<u64, StoreError>> {
        self.0.count_down(request)
    }

    fn count(&self, key: LockKey, timeout: Duration) -> BoxFuture<Result<u64, StoreError>> {
        self.0.count(key, timeout)
    }

    fn delete(&self, key: LockKey, timeout: Duration) -> BoxFuture<Result<bool, StoreError>> {
        self.0.delete(key, timeout)
    }

    fn watch(&self, _: LockKey, _: Duration) -> BoxFuture<Result<Watch, StoreError>> {
        Box::pin(std::future::pending())
    }
}

fn manager(store: &Arc<FaultyStore>) -> LockManager {
    manager_on(LockManager::builder().lease(10 * SECOND), Arc::clone(store) as Arc<dyn LockStore>)
}

/// Asserts that nothing is left after a while, neither here nor at the store.
async fn nothing_is_left(locks: &LockManager, store: &FaultyStore) {
    sleep(20 * SECOND).await;
    let left = leftovers(locks);
    assert_eq!((left.keys, left.timers, left.tasks), (0, 0, 0));
    assert!(!store.is_locked("k").await);
}

#[tokio::test(start_paused = true)]
async fn transient_errors_are_retried_until_the_wait_ends() {
    let store = FaultyStore::new();
    let locks = manager(&store);
    store.acquire.lock().unwrap().extend([
        Fault::Error(StoreErrorKind::Unreachable),
        Fault::Error(StoreErrorKind::NotReady),
        Fault::Error(StoreErrorKind::Full),
        Fault::Error(StoreErrorKind::TooLate),
    ]);
    locks.mutex("k").acquire().await.unwrap().release().await.unwrap();
    nothing_is_left(&locks, &store).await;
}

#[tokio::test(start_paused = true)]
async fn a_store_that_is_down_is_unavailable_and_not_a_time_out() {
    let store = FaultyStore::new();
    let locks = manager(&store);
    store.acquire.lock().unwrap().extend(repeat_n(Fault::Error(StoreErrorKind::Unreachable), 1000));
    let start = Instant::now();
    let error = locks.mutex("k").wait(3 * SECOND).acquire().await.unwrap_err();
    assert!(matches!(error, LockError::Unavailable { .. }), "{error:?}");
    assert!(start.elapsed() >= 3 * SECOND && start.elapsed() < 3 * SECOND + 200 * MS);
    assert!(store.acquires.load(Ordering::SeqCst) < 30, "it backs off");
}

#[tokio::test(start_paused = true)]
async fn a_store_without_room_for_a_waiter_is_a_cap() {
    let store = FaultyStore::new();
    let locks = manager(&store);
    for lock in [locks.mutex("k"), locks.fair("k")] {
        store.acquire.lock().unwrap().push_back(Fault::Error(StoreErrorKind::TooManyWaiters));
        let error = lock.acquire().await.unwrap_err();
        assert!(matches!(error, LockError::TooManyWaiters { waiting: 1, .. }), "{error:?}");
        assert!(error.to_string().contains("the store's room for one key"), "{error}");
    }
    nothing_is_left(&locks, &store).await;
}

#[tokio::test(start_paused = true)]
async fn a_try_and_a_fatal_error_fail_at_once() {
    let store = FaultyStore::new();
    let locks = manager(&store);
    store.acquire.lock().unwrap().push_back(Fault::Error(StoreErrorKind::Unreachable));
    let start = Instant::now();
    assert!(matches!(locks.mutex("k").try_acquire().await, Err(LockError::Unavailable { .. })));
    for kind in [StoreErrorKind::ReadOnly, StoreErrorKind::Refused] {
        store.acquire.lock().unwrap().push_back(Fault::Error(kind));
        assert!(matches!(locks.mutex("k").acquire().await, Err(LockError::Unavailable { .. })));
    }
    for kind in [StoreErrorKind::Denied, StoreErrorKind::ForeignData, StoreErrorKind::Unsupported] {
        store.acquire.lock().unwrap().push_back(Fault::Error(kind));
        assert!(matches!(locks.mutex("k").acquire().await, Err(LockError::Misconfigured { .. })));
    }
    assert!(start.elapsed() < 100 * MS);
    nothing_is_left(&locks, &store).await;
}

/// The subscription hangs, as with a server that accepts a SUBSCRIBE and does not answer.
#[tokio::test(start_paused = true)]
async fn a_key_is_asked_for_while_its_subscription_hangs() {
    let store = FaultyStore::new();
    let locks = manager(&store);
    let holder = manager_on(LockManager::builder().lease(SECOND), Arc::clone(&store) as Arc<dyn LockStore>);
    store.watch.lock().unwrap().push_back(Fault::Hang);
    let held = holder.mutex("k").acquire().await.unwrap();
    let locks_of_waiter = locks.clone();
    let waiter = tokio::spawn(async move { locks_of_waiter.mutex("k").wait(5 * SECOND).acquire().await });
    // The first answer said that the key is taken for a second. The hold was renewed since.
    sleep(1200 * MS).await;
    // This wait ends before the subscription does.
    let error = locks.mutex("k").wait(200 * MS).acquire().await.unwrap_err();
    assert!(matches!(error, LockError::TimedOut { .. }), "{error}");
    let released = Instant::now();
    held.release().await.unwrap();
    let granted = waiter.await.unwrap().unwrap();
    assert!(released.elapsed() <= SECOND / 2, "{:?}", released.elapsed());
    drop(granted);
    nothing_is_left(&locks, &store).await;
}

/// The message of the release came before the subscription, so the waiter has to ask at once.
#[tokio::test(start_paused = true)]
async fn a_late_confirmation_is_followed_by_an_attempt() {
    let store = FaultyStore::new();
    let (holder, locks) = (manager(&store), manager(&store));
    store.watch.lock().unwrap().push_back(Fault::Late(100 * MS));
    let held = holder.mutex("k").acquire().await.unwrap();
    let waiter = tokio::spawn(async move { locks.mutex("k").wait(5 * SECOND).acquire().await });
    sleep(50 * MS).await;
    held.release().await.unwrap();
    let released = Instant::now();
    drop(waiter.await.unwrap().unwrap());
    assert!(released.elapsed() <= 60 * MS, "{:?}", released.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_latch_is_looked_at_while_its_subscription_hangs() {
    let locks = manager(&FaultyStore::new());
    let latch = locks.latch("l");
    assert!(latch.try_set_count(1).await.unwrap());
    let waiter = tokio::spawn({
        let latch = latch.clone();
        async move { latch.wait(SECOND).await }
    });
    sleep(100 * MS).await;
    latch.count_down().await.unwrap();
    let opened = Instant::now();
    waiter.await.unwrap().unwrap();
    assert!(opened.elapsed() <= SECOND / 2, "{:?}", opened.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_try_does_not_subscribe() {
    let store = FaultyStore::new();
    let (holder, locks) = (manager(&store), manager(&store));
    store.watch.lock().unwrap().push_back(Fault::Hang);
    let held = holder.mutex("k").acquire().await.unwrap();
    assert!(locks.mutex("k").try_acquire().await.unwrap().is_none());
    held.release().await.unwrap();
    nothing_is_left(&locks, &store).await;
    assert_eq!(store.watch.lock().unwrap().len(), 1);
}

/// Its waiters poll: soon at first, then at intervals that double.
#[tokio::test(start_paused = true)]
async fn a_key_without_messages_is_polled() {
    for (fault, soon) in [(Fault::Error(StoreErrorKind::Denied), 60 * MS), (Fault::Hang, SECOND / 2)] {
        let store = FaultyStore::new();
        let (holder, locks) = (manager(&store), manager(&store));
        store.watch.lock().unwrap().extend([fault; 100]);
        let held = holder.mutex("k").acquire().await.unwrap();
        let before = store.acquires.load(Ordering::SeqCst);
        let error = locks.mutex("k").wait(10 * SECOND).acquire().await.unwrap_err();
        assert!(matches!(error, LockError::TimedOut { .. }), "{error}");
        let polls = store.acquires.load(Ordering::SeqCst) - before;
        assert!((30..=70).contains(&polls), "{fault:?}: {polls}");
        let waiter = tokio::spawn(async move { locks.mutex("k").wait(5 * SECOND).acquire().await });
        sleep(30 * MS).await;
        held.release().await.unwrap();
        let released = Instant::now();
        drop(waiter.await.unwrap().unwrap());
        assert!(released.elapsed() <= soon, "{fault:?}: {:?}", released.elapsed());
    }
}

/// The last waiter has left, and the next one arrives before the contender has noticed.
#[tokio::test(start_paused = true)]
async fn who_comes_when_the_others_have_left_does_not_sit_out_their_back_off() {
    let store = FaultyStore::new();
    let locks = manager(&store);
    for (key, wait) in [("a", Duration::ZERO), ("b", 100 * MS)] {
        store.acquire.lock().unwrap().extend([Fault::Error(StoreErrorKind::Unreachable); 50]);
        let error = locks.mutex(key).wait(3 * SECOND).acquire().await.unwrap_err();
        assert!(matches!(error, LockError::Unavailable { .. }), "{error}");
        store.acquire.lock().unwrap().clear();
        let asked = Instant::now();
        drop(locks.mutex(key).wait(wait).acquire().await.unwrap());
        assert!(asked.elapsed() < 20 * MS, "{:?}", asked.elapsed());
    }
    nothing_is_left(&locks, &store).await;
}

#[tokio::test(start_paused = true)]
async fn a_try_that_comes_when_the_others_have_left_is_answered_at_once() {
    let store = FaultyStore::new();
    let (locks, rival) = (manager(&store), manager(&store));
    let held = rival.mutex("k").acquire().await.unwrap();
    let error = locks.mutex("k").wait(3 * SECOND).acquire().await.unwrap_err();
    assert!(matches!(error, LockError::TimedOut { .. }), "{error}");
    let asked = Instant::now();
    assert!(locks.mutex("k").try_acquire().await.unwrap().is_none());
    assert!(asked.elapsed() < 20 * MS, "{:?}", asked.elapsed());
    drop(held);
    nothing_is_left(&locks, &store).await;
}

#[tokio::test(start_paused = true)]
async fn a_lost_reply_is_withdrawn_and_tried_again_by_a_new_owner() {
    let store = FaultyStore::new();
    let locks = manager(&store);
    store.acquire.lock().unwrap().push_back(Fault::LoseReply);
    let guard = locks.mutex("k").acquire().await.unwrap();
    assert!(store.withdrawals.load(Ordering::SeqCst) >= 1);
    let holders = locks.status("k").await.unwrap().holders;
    assert_eq!(holders.len(), 1);
    sleep(5 * SECOND).await;
    assert!(!guard.is_lost(), "the withdrawal touches only its own owner");
    guard.release().await.unwrap();
    nothing_is_left(&locks, &store).await;
}

/// The server's clock was set back after the request was stamped.
#[tokio::test(start_paused = true)]
async fn a_withdrawal_that_stays_doubtful_ends_with_the_lease() {
    let store = FaultyStore::new();
    let locks = manager(&store);
    store.doubtful.store(true, Ordering::SeqCst);
    store.acquire.lock().unwrap().push_back(Fault::LoseReply);
    locks.fair("k").acquire().await.unwrap().release().await.unwrap();
    assert!(leftovers(&locks).tasks > 0, "it goes on meanwhile");
    nothing_is_left(&locks, &store).await;
}

#[tokio::test(start_paused = true)]
async fn a_reply_that_comes_after_the_time_out_is_undone() {
    let store = FaultyStore::new();
    let locks = manager(&store);
    store.acquire.lock().unwrap().push_back(Fault::Delay(6 * SECOND));
    let guard = locks.mutex("k").wait(9 * SECOND).acquire().await.unwrap();
    guard.release().await.unwrap();
    nothing_is_left(&locks, &store).await;
}

#[tokio::test(start_paused = true)]
async fn a_call_that_hangs_holds_nobody_up_for_ever() {
    let store = FaultyStore::new();
    let locks = manager(&store);
    store.acquire.lock().unwrap().push_back(Fault::Hang);
    let start = Instant::now();
    let guard = locks.mutex("k").acquire().await.unwrap();
    assert!(start.elapsed() < 3 * SECOND);
    store.release.lock().unwrap().push_back(Fault::Hang);
    let error = guard.release().await.unwrap_err();
    assert!(matches!(error, LockError::Unconfirmed { .. }), "{error:?}");
    nothing_is_left(&locks, &store).await;
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_leaves_during_the_call_leaves_nothing() {
    for delay in [0, 1, 50, 1900, 2100, 5000] {
        let store = FaultyStore::new();
        let locks = manager(&store);
        store.acquire.lock().unwrap().push_back(Fault::Delay(Duration::from_millis(delay)));
        let acquire = locks.mutex("k").acquire();
        let _ = tokio::time::timeout(Duration::from_micros(10), acquire).await;
        nothing_is_left(&locks, &store).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_repeated_release_that_finds_nothing_is_ok_while_the_hold_was_certain() {
    let store = FaultyStore::new();
    let locks = manager(&store);
    let guard = locks.mutex("k").acquire().await.unwrap();
    store.release.lock().unwrap().push_back(Fault::LoseReply);
    let error = guard.release().await.unwrap_err();
    assert!(matches!(error, LockError::Unconfirmed { .. }), "the caller hears the first failure: {error:?}");
    sleep(SECOND).await;
    assert_eq!(store.releases.load(Ordering::SeqCst), 2, "and it is sent again");
    nothing_is_left(&locks, &store).await;
}

#[tokio::test(start_paused = true)]
async fn a_failed_release_is_sent_again_until_it_is_answered() {
    let store = FaultyStore::new();
    let locks = manager(&store);
    let guard = locks.mutex("k").acquire().await.unwrap();
    store.release.lock().unwrap().extend([Fault::Error(StoreErrorKind::Unreachable); 5]);
    drop(guard);
    let start = Instant::now();
    drop(locks.mutex("k").acquire().await.unwrap());
    assert!(start.elapsed() < 2 * SECOND, "{:?}", start.elapsed());
    nothing_is_left(&locks, &store).await;
}

/// The server's clock, or that of a replica that takes over, may be behind: then the hold still
/// exists.
#[tokio::test(start_paused = true)]
async fn a_release_goes_on_after_the_lease_until_it_is_answered() {
    let store = FaultyStore::new();
    let locks = manager(&store);
    let down = || repeat_n(Fault::Error(StoreErrorKind::Unreachable), 10_000);
    let sent = || store.releases.load(Ordering::SeqCst);
    let guard = locks.mutex("k").acquire().await.unwrap();
    store.release.lock().unwrap().extend(down());
    drop(guard);
    sleep(30 * SECOND).await;
    assert_eq!(leftovers(&locks).tasks, 0, "a shutdown would not wait for it");
    let before = sent();
    sleep(600 * SECOND).await;
    let more = sent() - before;
    assert!((120..=240).contains(&more), "once in up to five seconds: {more}");
    store.release.lock().unwrap().clear();
    sleep(5 * SECOND).await;
    let answered = sent();
    assert_eq!(answered, before + more + 1, "until the store answers");
    sleep(60 * SECOND).await;
    assert_eq!(sent(), answered);
    // The release does not keep a manager alive that is no longer used.
    let guard = locks.mutex("k").acquire().await.unwrap();
    store.release.lock().unwrap().extend(down());
    drop((guard, locks));
    sleep(30 * SECOND).await;
    let last = sent();
    sleep(60 * SECOND).await;
    assert_eq!(sent(), last);
}

#[tokio::test(start_paused = true)]
async fn a_withdrawal_goes_on_after_the_lease_until_it_is_answered() {
    let store = FaultyStore::new();
    let locks = manager(&store);
    let sent = || store.withdrawals.load(Ordering::SeqCst);
    store.acquire.lock().unwrap().push_back(Fault::LoseReply);
    store.withdraw.lock().unwrap().extend(repeat_n(Fault::Error(StoreErrorKind::Unreachable), 10_000));
    assert!(locks.mutex("k").try_acquire().await.is_err());
    sleep(60 * SECOND).await;
    assert_eq!(leftovers(&locks).tasks, 0, "a shutdown would not wait for it");
    let before = sent();
    store.withdraw.lock().unwrap().clear();
    sleep(5 * SECOND).await;
    assert_eq!(sent(), before + 1);
    sleep(60 * SECOND).await;
    assert_eq!(sent(), before + 1, "until the store answers");
}

#[tokio::test(start_paused = true)]
async fn a_lost_hold_is_released_after_its_min_hold_if_the_store_was_not_told() {
    let store = FaultyStore::new();
    let locks = manager(&store);
    let guard = locks.mutex("k").min_hold(5 * SECOND).acquire().await.unwrap();
    store.release.lock().unwrap().push_back(Fault::Error(StoreErrorKind::Unreachable));
    let sent = || store.releases.load(Ordering::SeqCst);
    assert!(locks.force_release("k").await.unwrap());
    assert!(guard.is_lost());
    sleep(4 * SECOND).await;
    assert_eq!(sent(), 1, "it says until when the key is to stay taken");
    sleep(2 * SECOND).await;
    assert_eq!(sent(), 2);
    drop(guard);
    nothing_is_left(&locks, &store).await;
    assert_eq!(sent(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_failed_renewal_is_retried_before_the_deadline() {
    let store = FaultyStore::new();
    let locks = manager(&store);
    let guard = locks.mutex("k").acquire().await.unwrap();
    for _ in 0..5 {
        store.keep.lock().unwrap().extend([
            Fault::Error(StoreErrorKind::Unreachable),
            Fault::LoseReply,
            Fault::Error(StoreErrorKind::Refused),
        ]);
        sleep(10 * SECOND).await;
        assert!(!guard.is_lost());
    }
    guard.release().await.unwrap();
    nothing_is_left(&locks, &store).await;
}

#[tokio::test(start_paused = true)]
async fn a_lock_that_cannot_be_renewed_is_lost_at_its_deadline_and_its_body_cancelled() {
    let store = FaultyStore::new();
    let locks = manager(&store);
    store.keep.lock().unwrap().extend(repeat_n(Fault::Error(StoreErrorKind::Unreachable), 10_000));
    let start = Instant::now();
    let result = locks.mutex("k").with(async |_| sleep(60 * SECOND).await).await;
    assert!(matches!(result, Err(LockError::Lost { .. })), "{result:?}");
    assert!(start.elapsed() <= 10 * SECOND, "{:?}", start.elapsed());
    assert!(start.elapsed() > 9 * SECOND, "not before its deadline: {:?}", start.elapsed());
    nothing_is_left(&locks, &store).await;
}

#[tokio::test(start_paused = true)]
async fn a_late_renewal_does_not_revive_a_lost_lock() {
    let store = FaultyStore::new();
    let locks = manager_on(
        LockManager::builder().lease(10 * SECOND).call_timeout(60 * SECOND),
        Arc::clone(&store) as Arc<dyn LockStore>,
    );
    let guard = locks.mutex("k").acquire().await.unwrap();
    store.keep.lock().unwrap().extend([Fault::Delay(15 * SECOND); 100]);
    guard.lost().await;
    sleep(20 * SECOND).await;
    assert!(guard.is_lost());
    assert!(!store.is_locked("k").await, "its owner-checked release was sent");
}

#[tokio::test(start_paused = true)]
async fn a_reply_that_leaves_no_validity_is_not_a_grant() {
    let store = FaultyStore::new();
    let locks = manager_on(
        LockManager::builder().lease(SECOND).call_timeout(10 * SECOND),
        Arc::clone(&store) as Arc<dyn LockStore>,
    );
    store.acquire.lock().unwrap().push_back(Fault::Delay(2 * SECOND));
    let guard = locks.mutex("k").wait(20 * SECOND).acquire().await.unwrap();
    assert!(!guard.is_lost() && guard.remaining() > 900 * MS);
    guard.release().await.unwrap();
    nothing_is_left(&locks, &store).await;
}

#[tokio::test(start_paused = true)]
async fn a_wait_shorter_than_the_round_trip_has_one_attempt() {
    let store = FaultyStore::new();
    let locks = manager(&store);
    store.acquire.lock().unwrap().push_back(Fault::Delay(50 * MS));
    let guard = locks.mutex("k").wait(MS).acquire().await.expect("if it is granted, it is granted");
    let start = Instant::now();
    let error = locks.mutex("k").wait(MS).acquire().await.unwrap_err();
    assert!(matches!(error, LockError::TimedOut { .. }), "{error:?}");
    assert!(start.elapsed() < 10 * MS, "a local wait needs no attempt");
    drop(guard);
}

/// All waiters that are over their time are told as soon as the store has answered.
#[tokio::test(start_paused = true)]
async fn one_answer_ends_all_waits_that_are_over() {
    let store = FaultyStore::new();
    let (locks, rival) = (manager(&store), manager(&store));
    let _held = rival.mutex("k").acquire().await.unwrap();
    store.acquire.lock().unwrap().push_back(Fault::Delay(20 * MS));
    let start = Instant::now();
    let waiters: Vec<_> = (0..3).map(|_| tokio::spawn(locks.mutex("k").wait(MS).acquire())).collect();
    for waiter in waiters {
        let error = waiter.await.unwrap().unwrap_err();
        assert!(matches!(error, LockError::TimedOut { .. }), "{error:?}");
    }
    assert!(start.elapsed() <= 25 * MS, "{:?}", start.elapsed());
}

/// No holder was seen, so the error blames the store, and does not claim that the key is busy.
#[tokio::test(start_paused = true)]
async fn a_wait_in_which_the_store_has_not_answered_says_so() {
    let store = FaultyStore::new();
    let locks = manager(&store);
    store.acquire.lock().unwrap().push_back(Fault::Delay(1500 * MS));
    let first = tokio::spawn(locks.mutex("k").wait(200 * MS).acquire());
    let start = Instant::now();
    let second = locks.mutex("k").wait(100 * MS).acquire().await;
    assert!(start.elapsed() <= 230 * MS, "{:?}", start.elapsed());
    for result in [second, first.await.unwrap()] {
        let Err(LockError::Unavailable { cause, .. }) = result else { panic!("{result:?}") };
        assert!(
            cause.kind() == StoreErrorKind::Unanswered && cause.to_string().contains("no answer"),
            "{cause}"
        );
    }
    sleep(2 * SECOND).await;
    nothing_is_left(&locks, &store).await;
}

/// When the process goes on, all its timers have expired, and the answer is there too.
#[tokio::test(start_paused = true)]
async fn a_process_that_stood_still_reads_the_answer_first() {
    let store = FaultyStore::new();
    let (locks, rival) = (manager(&store), manager(&store));
    let held = rival.mutex("k").acquire().await.unwrap();
    for (key, granted) in [("k", false), ("free", true)] {
        store.acquire.lock().unwrap().push_back(Fault::Delay(MS));
        let mut waiter = Box::pin(locks.mutex(key).wait(MS).acquire());
        let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
        assert!(waiter.as_mut().poll(&mut cx).is_pending());
        // Nothing else is polled meanwhile.
        tokio::time::advance(SECOND).await;
        let result = waiter.await;
        assert!(matches!(result, Err(LockError::TimedOut { .. })) != granted, "{key}: {result:?}");
        assert_eq!(result.is_ok(), granted);
    }
    drop(held);
}

/// An earlier answer named a holder, so the key counts as busy although the next answer is overdue.
#[tokio::test(start_paused = true)]
async fn a_wait_for_a_holder_that_was_seen_is_a_wait_in_vain() {
    let store = FaultyStore::new();
    let (locks, rival) = (manager(&store), manager(&store));
    let _held = rival.mutex("k").acquire().await.unwrap();
    let waiter = tokio::spawn(locks.mutex("k").wait(20 * SECOND).acquire());
    while store.acquires.load(Ordering::Relaxed) < 2 {
        sleep(MS).await;
    }
    store.acquire.lock().unwrap().extend([Fault::Delay(1500 * MS); 20]);
    // This later waiter has had no answer itself.
    let late = locks.mutex("k").wait(10 * MS).acquire().await.unwrap_err();
    for error in [late, waiter.await.unwrap().unwrap_err()] {
        assert!(matches!(error, LockError::TimedOut { .. }), "{error:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_short_wait_for_a_known_holder_is_not_stretched() {
    let store = FaultyStore::new();
    let (locks, rival) = (manager(&store), manager(&store));
    let _held = rival.mutex("k").acquire().await.unwrap();
    for _ in 0..3 {
        let start = Instant::now();
        let error = locks.mutex("k").wait(10 * MS).acquire().await.unwrap_err();
        assert!(matches!(error, LockError::TimedOut { .. }), "{error:?}");
        // From the second time on, the contender of the previous wait has asked, and is waiting for
        // a message.
        assert!(start.elapsed() <= 12 * MS, "{:?}", start.elapsed());
    }
}

#[tokio::test(start_paused = true)]
async fn who_comes_when_the_store_is_back_is_not_told_that_it_is_down() {
    let store = FaultyStore::new();
    let locks = manager(&store);
    store.acquire.lock().unwrap().extend([Fault::Error(StoreErrorKind::Unreachable); 8]);
    let first = tokio::spawn(locks.mutex("k").wait(60 * SECOND).acquire());
    while store.acquires.load(Ordering::Relaxed) < 8 {
        sleep(MS).await;
    }
    // The next attempt for the first waiter is hundreds of milliseconds away.
    sleep(10 * MS).await;
    let result = locks.mutex("k").wait(10 * MS).acquire().await;
    assert!(matches!(result, Err(LockError::TimedOut { .. })), "the first has it: {result:?}");
    drop(first.await.unwrap().unwrap());
    nothing_is_left(&locks, &store).await;
}

#[tokio::test(start_paused = true)]
async fn local_waiters_share_the_contenders_error() {
    let store = FaultyStore::new();
    let locks = manager(&store);
    let faults = [Fault::Error(StoreErrorKind::Unreachable), Fault::Error(StoreErrorKind::Refused)];
    store.acquire.lock().unwrap().extend(faults);
    let waiters: Vec<_> = (0..5)
        .map(|_| {
            let locks = locks.clone();
            tokio::spawn(async move { locks.mutex("k").acquire().await })
        })
        .collect();
    for waiter in waiters {
        let error = waiter.await.unwrap().unwrap_err();
        assert!(matches!(error, LockError::Unavailable { .. }), "{error:?}");
    }
    assert_eq!(store.acquires.load(Ordering::SeqCst), 2, "one contender for all of them");
    nothing_is_left(&locks, &store).await;
}

/// The lock has no known holder: the other waiters wait for the store.
#[tokio::test(start_paused = true)]
async fn a_try_beside_others_says_that_the_store_is_down() {
    let store = FaultyStore::new();
    let locks = manager(&store);
    store.acquire.lock().unwrap().extend(repeat_n(Fault::Error(StoreErrorKind::Unreachable), 20));
    let waiter = tokio::spawn(locks.mutex("k").wait(60 * SECOND).acquire());
    tokio::time::sleep(SECOND).await;
    let error = locks.mutex("k").try_acquire().await.unwrap_err();
    assert!(matches!(error, LockError::Unavailable { .. }), "{error}");
    let guard = waiter.await.unwrap().unwrap();
    assert!(locks.mutex("k").try_acquire().await.unwrap().is_none());
    drop(guard);
    nothing_is_left(&locks, &store).await;
}

/// A store with several servers itself gives back the keys that it took if another key is busy. It
/// may do so late.
#[tokio::test(start_paused = true)]
async fn a_wait_for_several_keys_goes_on_under_a_new_owner_when_an_outcome_is_unknown() {
    for keys in [[MultiKey::fair("a"), MultiKey::mutex("b")], [MultiKey::mutex("a"), MultiKey::write("b")]] {
        let store = FaultyStore::new();
        let locks = manager_on(LockManager::builder(), Arc::clone(&store) as Arc<dyn LockStore>);
        let rival = manager_on(LockManager::builder(), Arc::clone(&store) as Arc<dyn LockStore>);
        let held = rival.mutex("a").acquire().await.unwrap();
        let waiter = tokio::spawn(locks.multi(keys).wait(60 * SECOND).acquire());
        tokio::time::sleep(SECOND).await;
        store.acquire.lock().unwrap().push_back(Fault::LoseReply);
        held.release().await.unwrap();
        let guard = waiter.await.unwrap().unwrap();
        let owners = store.owners.lock().unwrap().clone();
        let lost = owners.iter().rposition(|owner| owner != owners.last().unwrap()).unwrap();
        assert!(!owners[lost + 1..].contains(&owners[lost]), "{owners:?}");
        assert!(store.withdrawals.load(Ordering::SeqCst) > 0);
        tokio::time::sleep(5 * SECOND).await;
        assert!(!guard.is_lost() && store.is_locked("a").await && store.is_locked("b").await);
        guard.release().await.unwrap();
        assert!(!store.is_locked("a").await && !store.is_locked("b").await);
    }
}
