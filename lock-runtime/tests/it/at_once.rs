//! Stores that answer in place, and the same behind a store that has to be awaited.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use lock_runtime::store::{
    AcquireRequest, Acquired, AtOnce, BoxFuture, KeepRequest, Kept, LockStatus, LockStore, ReleaseRequest,
    Released, ScanRequest, Scanned, StoreError, Watch, Withdrawn,
};
use lock_runtime::testing::{self, memory_manager};
use lock_runtime::{FencingToken, LockError, LockKey, LockManager};
use tokio::time::{Instant, advance, sleep};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

/// What is asked in place.
#[derive(Debug, Default)]
struct Counts {
    acquires: AtomicUsize,
    releases: AtomicUsize,
    /// So many calls that are answered in place panic.
    panics: AtomicUsize,
}

impl Counts {
    fn may_panic(&self) {
        let left = self.panics.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1));
        assert!(left.is_err(), "expected: the store panics");
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answers {
    InPlace,
    Later,
}

/// Passes everything on to a memory store.
struct Wrapped {
    inner: Arc<dyn LockStore>,
    answers: Answers,
    counts: Arc<Counts>,
}

impl Wrapped {
    fn in_place(&self) -> &dyn AtOnce {
        self.inner.at_once().expect("the memory store answers in place")
    }
}

impl fmt::Debug for Wrapped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} that answers {:?}", self.inner, self.answers)
    }
}

type Answer<T> = BoxFuture<Result<T, StoreError>>;

impl LockStore for Wrapped {
    fn acquire(&self, request: Arc<AcquireRequest>) -> Answer<Acquired> {
        self.inner.acquire(request)
    }

    fn release(&self, request: Arc<ReleaseRequest>) -> Answer<Released> {
        self.inner.release(request)
    }

    fn keep(&self, request: Arc<KeepRequest>) -> Answer<Vec<Kept>> {
        self.inner.keep(request)
    }

    fn downgrade(&self, request: Arc<KeepRequest>) -> Answer<Vec<Kept>> {
        self.inner.downgrade(request)
    }

    fn withdraw(&self, request: Arc<AcquireRequest>) -> Answer<Withdrawn> {
        self.inner.withdraw(request)
    }

    fn watch(&self, request: Arc<AcquireRequest>) -> Answer<Watch> {
        self.inner.watch(request)
    }

    fn status(&self, key: LockKey) -> Answer<LockStatus> {
        self.inner.status(key)
    }

    fn force_release(&self, key: LockKey) -> Answer<bool> {
        self.inner.force_release(key)
    }

    fn scan(&self, request: ScanRequest) -> Answer<Scanned> {
        self.inner.scan(request)
    }

    fn check(&self) -> Answer<()> {
        self.inner.check()
    }

    fn at_once(&self) -> Option<&dyn AtOnce> {
        (self.answers == Answers::InPlace).then_some(self)
    }
}

impl AtOnce for Wrapped {
    fn acquire_now(&self, request: &AcquireRequest) -> Result<Acquired, StoreError> {
        self.counts.acquires.fetch_add(1, Ordering::SeqCst);
        self.counts.may_panic();
        self.in_place().acquire_now(request)
    }

    fn release_now(&self, request: &ReleaseRequest) -> Result<Released, StoreError> {
        self.counts.releases.fetch_add(1, Ordering::SeqCst);
        self.counts.may_panic();
        self.in_place().release_now(request)
    }
}

/// A manager on such a store, and a rival of it.
fn managers(answers: Answers) -> (LockManager, LockManager, Arc<Counts>) {
    let memory = testing::memory_store();
    let counts = Arc::<Counts>::default();
    let store = Wrapped { inner: Arc::clone(&memory), answers, counts: Arc::clone(&counts) };
    let locks = testing::manager_on(LockManager::builder(), Arc::new(store));
    (locks, testing::manager_on(LockManager::builder(), memory), counts)
}

#[tokio::test(start_paused = true)]
async fn a_pair_needs_no_task_and_the_key_is_free_when_the_guard_is_gone() {
    let (locks, rival, counts) = managers(Answers::InPlace);
    for round in 1..=3 {
        let guard = locks.mutex("k").acquire().await.unwrap();
        assert_eq!(testing::leftovers(&locks).tasks, 0);
        drop(guard);
        let rest = testing::leftovers(&locks);
        assert_eq!((rest.keys, rest.timers, rest.tasks, rest.waiters), (0, 0, 0, 0));
        let [acquires, releases] =
            [&counts.acquires, &counts.releases].map(|count| count.load(Ordering::SeqCst));
        assert_eq!((acquires, releases), (round, round));
        drop(rival.mutex("k").try_acquire().await.unwrap().expect("free"));
    }
}

#[tokio::test(start_paused = true)]
async fn an_awaited_release_is_answered_in_place() {
    let (locks, rival, _) = managers(Answers::InPlace);
    let guard = locks.mutex("k").acquire().await.unwrap();
    guard.release().await.unwrap();
    assert!(rival.mutex("k").try_acquire().await.unwrap().is_some());
    // And so is that it was lost.
    let guard = locks.mutex("j").acquire().await.unwrap();
    rival.force_release("j").await.unwrap();
    guard.release().await.unwrap_err();
}

#[tokio::test(start_paused = true)]
async fn a_guard_that_is_dropped_in_a_panic_frees_its_key() {
    for panics in [0, 1] {
        let (locks, rival, counts) = managers(Answers::InPlace);
        let guard = locks.mutex("k").acquire().await.unwrap();
        counts.panics.store(panics, Ordering::SeqCst);
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            let _guard = guard;
            panic!("expected: while a lock is held");
        }));
        assert!(panicked.is_err());
        let free = rival.mutex("k").try_acquire().await.unwrap();
        // What the store did not answer is sent again.
        assert_eq!(free.is_some(), panics == 0);
        drop(free);
        drop(rival.mutex("k").wait(SECOND).acquire().await.unwrap());
        // Whoever comes next has the lock as ever.
        drop(locks.mutex("k").wait(SECOND).acquire().await.unwrap());
        sleep(SECOND).await;
        assert_eq!(testing::leftovers(&locks).keys, 0);
    }
}

#[tokio::test(start_paused = true)]
async fn a_store_that_panics_is_one_that_did_not_answer() {
    let (locks, rival, counts) = managers(Answers::InPlace);
    counts.panics.store(1, Ordering::SeqCst);
    let error = locks.mutex("k").no_wait().acquire().await.unwrap_err();
    assert!(matches!(error, LockError::Unavailable { .. }), "{error:?}");
    assert!(error.to_string().contains("panicked"), "{error}");
    counts.panics.store(2, Ordering::SeqCst);
    let guard = locks.mutex("k").acquire().await.unwrap();
    assert!(rival.mutex("k").try_acquire().await.unwrap().is_none());
    drop(guard);
    assert!(rival.mutex("k").try_acquire().await.unwrap().is_some());
    sleep(SECOND).await;
    assert_eq!(testing::leftovers(&locks).tasks, 0);
}

#[test]
fn a_guard_that_is_dropped_outside_of_a_runtime_is_released_by_the_managers() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (locks, rival, guard) = runtime.block_on(async {
        let (locks, rival, _) = managers(Answers::InPlace);
        let guard = locks.mutex("k").acquire().await.unwrap();
        (locks, rival, guard)
    });
    drop(guard);
    runtime.block_on(async {
        drop(rival.mutex("k").wait(10 * SECOND).acquire().await.unwrap());
        drop(locks.mutex("k").wait(10 * SECOND).acquire().await.unwrap());
    });
}

#[test]
fn a_guard_may_be_dropped_on_any_thread() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let (locks, rival, _) = managers(Answers::InPlace);
        for _ in 0..50 {
            let guard = locks.mutex("k").acquire().await.unwrap();
            let waiter = tokio::spawn(locks.mutex("k").acquire());
            std::thread::spawn(move || drop(guard)).join().unwrap();
            drop(waiter.await.unwrap().unwrap());
            drop(rival.mutex("k").acquire().await.unwrap());
        }
    });
}

/// What happens to a manager and its rival, as a text.
async fn story(answers: Answers) -> String {
    let (locks, rival, _) = managers(answers);
    let told = Arc::new(Mutex::new(Vec::<String>::new()));
    let tell = |what: String| told.lock().unwrap().push(what);
    let start = Instant::now();
    let token = |token: FencingToken, last: &mut Option<FencingToken>| {
        let grows = last.is_none_or(|last| token > last);
        *last = Some(token);
        grows
    };
    let mut last = None;

    // Waiters of this process, in turn, with growing tokens.
    let guard = locks.mutex("k").acquire().await.unwrap();
    assert!(token(guard.fencing_token(), &mut last));
    let mut waiters = tokio::task::JoinSet::new();
    for number in 0..5 {
        let (locks, told) = (locks.clone(), Arc::clone(&told));
        waiters.spawn(async move {
            let guard = locks.mutex("k").acquire().await.unwrap();
            told.lock().unwrap().push(format!("waiter {number}"));
            sleep(MS).await;
            guard.fencing_token()
        });
        tokio::task::yield_now().await;
    }
    drop(guard);
    while let Some(next) = waiters.join_next().await {
        assert!(token(next.unwrap(), &mut last));
    }

    // Re-entrant calls share the token, and the lock goes with the last guard.
    let outer = locks.mutex("k").acquire().await.unwrap();
    let inner = outer.scope(locks.mutex("k").acquire()).await.unwrap();
    tell(format!("same token {}", inner.fencing_token() == outer.fencing_token()));
    drop(outer);
    tell(format!("rival {}", rival.mutex("k").try_acquire().await.unwrap().is_some()));
    inner.release().await.unwrap();
    tell(format!("rival {}", rival.mutex("k").try_acquire().await.unwrap().is_some()));

    // `min_hold` is kept.
    let kept = Instant::now();
    drop(locks.mutex("m").min_hold(SECOND).acquire().await.unwrap());
    drop(rival.mutex("m").acquire().await.unwrap());
    tell(format!("kept {}", kept.elapsed() >= SECOND));

    // A rival is waited for, and gets its turn.
    let theirs = rival.mutex("r").acquire().await.unwrap();
    let error = locks.mutex("r").wait(50 * MS).acquire().await.unwrap_err();
    tell(format!("timed out {}", matches!(error, LockError::TimedOut { .. })));
    let mut ours = tokio::spawn(locks.mutex("r").acquire());
    tell(format!("waits {}", tokio::time::timeout(50 * MS, &mut ours).await.is_err()));
    drop(theirs);
    let ours = ours.await.unwrap().unwrap();
    advance(SECOND).await;
    tell(format!("lost {}", ours.is_lost()));

    // Readers together, then a writer; a fair lock; several keys.
    let (one, two) = (locks.read("w").acquire().await.unwrap(), locks.read("w").acquire().await.unwrap());
    let writer = tokio::spawn(locks.write("w").acquire());
    sleep(20 * MS).await;
    drop((one, two));
    drop(writer.await.unwrap().unwrap());
    let fair = locks.fair("f").acquire().await.unwrap();
    let next = tokio::spawn(rival.fair("f").acquire());
    sleep(20 * MS).await;
    drop(fair);
    drop(next.await.unwrap().unwrap());
    let both = locks.multi(["a", "b"]).acquire().await.unwrap();
    tell(format!("both {}", rival.mutex("b").try_acquire().await.unwrap().is_none()));
    drop(both);

    // A lease that ends, and a shut-down that cuts off.
    let leased = locks.mutex("l").lease(SECOND).acquire().await.unwrap();
    sleep(2 * SECOND).await;
    tell(format!("lease over {}", leased.is_lost()));
    drop(leased);
    let held = locks.mutex("s").acquire().await.unwrap();
    let error = locks.shutdown(10 * MS).await.unwrap_err();
    tell(format!("cut off {} {}", error.cut_off(), held.is_lost()));
    drop(held);
    sleep(SECOND).await;
    let rest = testing::leftovers(&locks);
    tell(format!("rest {} {} {}", rest.keys, rest.timers, rest.tasks));
    assert!(start.elapsed() < 20 * SECOND);
    told.lock().unwrap().join("\n")
}

#[tokio::test(start_paused = true)]
async fn a_store_that_has_to_be_awaited_behaves_the_same() {
    let in_place = story(Answers::InPlace).await;
    assert_eq!(in_place, story(Answers::Later).await);
    assert!(in_place.ends_with("rest 0 0 0"), "{in_place}");
    assert!(!in_place.contains("kept false") && in_place.contains("timed out true"), "{in_place}");
}

/// Says that its drop has begun, and does not end it before it is told to.
struct Stuck(mpsc::Sender<()>, mpsc::Receiver<()>);

impl Drop for Stuck {
    fn drop(&mut self) {
        self.0.send(()).unwrap();
        let _ = self.1.recv();
    }
}

/// The manager's runtime is being shut down, and takes no task any more: the release is not confirmed, and nothing panics.
#[test]
fn a_release_elsewhere_while_the_managers_runtime_is_going_is_an_error() {
    let builder = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let theirs = builder.unwrap();
    let ours = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (begun, has_begun) = mpsc::channel();
    let (go, stay) = mpsc::channel();
    let stuck = Stuck(begun, stay);
    let guard = theirs.block_on(async {
        let locks = memory_manager();
        // It is in the runtime's hands when it has been polled.
        let (polled, is_polled) = tokio::sync::oneshot::channel();
        tokio::spawn(async move {
            let _stuck = stuck;
            polled.send(()).unwrap();
            std::future::pending::<()>().await;
        });
        is_polled.await.unwrap();
        locks.mutex("k").acquire().await.unwrap()
    });
    let going = std::thread::spawn(move || drop(theirs));
    has_begun.recv().unwrap();
    let released = ours.block_on(guard.release());
    // Lost, if what watches over it is gone already.
    let said = matches!(released, Err(LockError::Unconfirmed { .. } | LockError::Lost { .. }));
    assert!(said, "{released:?}");
    drop(go);
    going.join().unwrap();
}
