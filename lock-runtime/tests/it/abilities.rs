//! Stores that can do less than Redis, or keep the queue of a mutex themselves.

use std::collections::HashSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lock_core::store::{
    Abilities, AcquireRequest, Acquired, BoxFuture, Forward, Item, Kind, LockStore, ReleaseRequest, Released,
    RenewItem, RenewRequest, Renewed, StoreError, Watch, Withdrawn,
};
use lock_runtime::segmented::StockError;
use lock_runtime::testing::{leftovers, manager_on, memory_store, named_memory_store};
use lock_runtime::{LockError, LockKey, LockManager, Replication};
use tokio::time::{Instant, sleep};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

/// A memory store that claims less than it can do, and counts the calls that reach it.
#[derive(Debug)]
struct Limited {
    inner: Arc<dyn LockStore>,
    abilities: Abilities,
    calls: AtomicUsize,
}

impl Limited {
    fn manager(abilities: Abilities) -> (LockManager, Arc<Self>) {
        let store = Arc::new(Self { inner: memory_store(), abilities, calls: AtomicUsize::new(0) });
        (manager_on(LockManager::builder(), Arc::clone(&store) as Arc<dyn LockStore>), store)
    }

    fn calls(&self) -> usize {
        self.calls.load(Ordering::SeqCst)
    }
}

impl Forward for Limited {
    fn inner(&self) -> &dyn LockStore {
        &*self.inner
    }

    fn abilities(&self) -> &Abilities {
        &self.abilities
    }

    fn around<T: Send + 'static>(
        &self,
        _: &'static str,
        call: BoxFuture<Result<T, StoreError>>,
    ) -> BoxFuture<Result<T, StoreError>> {
        self.calls.fetch_add(1, Ordering::SeqCst);
        call
    }

    fn semaphores(&self) -> Option<Arc<dyn lock_core::store::SemaphoreStore>> {
        None
    }

    fn latches(&self) -> Option<Arc<dyn lock_core::store::LatchStore>> {
        None
    }

    fn stocks(&self) -> Option<Arc<dyn lock_core::store::stock::StockStore>> {
        None
    }
}

fn reason(error: &LockError) -> String {
    let LockError::Misconfigured { reason } = error else { panic!("{error:?}") };
    reason.to_string()
}

#[tokio::test(start_paused = true)]
async fn what_a_store_can_not_do_is_refused_before_a_call() {
    let (locks, store) = Limited::manager(Abilities { name: "Example", ..Abilities::MUTEX });
    let replicated = Replication::at_least(1, 100 * MS);
    for (lock, lacks) in [
        (locks.fair("k"), "has no fair locks"),
        (locks.read("k"), "has no locks for readers and writers"),
        (locks.write("k"), "has no locks for readers and writers"),
        (locks.multi(["k", "l"]), "can't lock several keys at once"),
        (locks.mutex("k").min_hold(SECOND), "can't shorten a lease"),
        (locks.mutex("k").replication(replicated), "has no replicas"),
    ] {
        for error in [lock.clone().try_acquire().await.unwrap_err(), lock.acquire().await.unwrap_err()] {
            let reason = reason(&error);
            assert!(reason.contains("lock k: Example ") && reason.contains(lacks), "{reason}");
        }
    }
    assert!(reason(&locks.semaphore("s").acquire().await.unwrap_err()).contains("Example has no semaphores"));
    assert!(reason(&locks.latch("l").count_down().await.unwrap_err()).contains("Example has no latches"));
    let stock = locks.stock("s").available().await.unwrap_err();
    assert!(matches!(&stock, StockError::Misconfigured { reason } if reason.contains("has no stocks")));
    assert_eq!(store.calls(), 0);
    // What it can do works.
    let guard = locks.mutex("k").acquire().await.unwrap();
    assert!(locks.mutex("k").try_acquire().await.unwrap().is_none());
    guard.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_writer_stays_one_where_it_can_not_become_a_reader() {
    let abilities = Abilities { read_write: true, name: "Example", ..Abilities::MUTEX };
    let (locks, store) = Limited::manager(abilities);
    let writer = locks.write("k").acquire().await.unwrap();
    let error = writer.downgrade().await.unwrap_err();
    assert!(reason(&error).contains("can't turn a writer into a reader"), "{error}");
    locks.read("k").acquire().await.unwrap().release().await.unwrap(); // the writer was released

    // A reader that stays behind in a writer's hold keeps it as it is.
    let writer = locks.write("j").acquire().await.unwrap();
    let reader = writer.scope(async { locks.read("j").acquire().await.unwrap() }).await;
    writer.release().await.unwrap();
    let before = store.calls();
    sleep(SECOND).await;
    assert_eq!(store.calls(), before, "no downgrade is sent");
    assert!(store.inner.status(LockKey::new("j").unwrap()).await.unwrap().kind == Some(Kind::Write));
    reader.release().await.unwrap();
    assert!(!locks.status("j").await.unwrap().is_locked());
}

#[tokio::test(start_paused = true)]
async fn a_lease_keeps_to_the_limits_of_the_store() {
    let (shortest_lease, longest_lease) = (2 * SECOND, Some(10 * SECOND));
    let (locks, _) = Limited::manager(Abilities { shortest_lease, longest_lease, ..Abilities::MUTEX });
    for (lease, works) in [(1999, false), (2000, true), (10_000, true), (10_001, false)] {
        let lock = locks.mutex("k").lease(MS * lease);
        match lock.acquire().await {
            Ok(guard) => {
                assert!(works, "{lease}");
                guard.release().await.unwrap();
            }
            Err(error) => assert!(!works && reason(&error).contains("lease"), "{error}"),
        }
    }
}

/// A memory store with a queue for mutexes, as stores have them that keep a lock as the first of a
/// list: every mutex is a fair lock there.
#[derive(Debug)]
struct Queues {
    inner: Arc<dyn LockStore>,
    abilities: Abilities,
    /// The owners that were given up.
    ended: Mutex<HashSet<String>>,
}

impl Queues {
    fn new(name: &str) -> Arc<Self> {
        let inner = named_memory_store(name);
        let abilities = Abilities { queues_mutexes: true, takeovers: false, ..inner.abilities().clone() };
        Arc::new(Self { inner, abilities, ended: Mutex::default() })
    }

    fn manager(self: &Arc<Self>) -> LockManager {
        let builder = LockManager::builder().cohort_window(5 * MS);
        manager_on(builder, Arc::clone(self) as Arc<dyn LockStore>)
    }

    fn queued(item: &Item) -> Item {
        Item { kind: Kind::Fair, ..item.clone() }
    }

    fn request(request: &AcquireRequest) -> Arc<AcquireRequest> {
        let items: Vec<_> = request.items.iter().map(Self::queued).collect();
        let queued = AcquireRequest::new(items, request.lease, request.timeout);
        let mut queued = queued.tokens(request.tokens).retention(request.retention);
        (queued.wait, queued.direct) = (request.wait, request.direct);
        Arc::new(queued)
    }
}

impl Forward for Queues {
    fn inner(&self) -> &dyn LockStore {
        &*self.inner
    }

    fn abilities(&self) -> &Abilities {
        &self.abilities
    }

    fn acquire(&self, request: Arc<AcquireRequest>) -> BoxFuture<Result<Acquired, StoreError>> {
        let owner = request.items[0].owner.to_string();
        assert!(!self.ended.lock().unwrap().contains(&owner), "asked after its end");
        self.inner.acquire(Self::request(&request))
    }

    fn release(&self, request: Arc<ReleaseRequest>) -> BoxFuture<Result<Released, StoreError>> {
        assert!(request.then.is_none(), "others queue");
        let items = request.items.iter().map(Self::queued).collect();
        self.inner.release(Arc::new(ReleaseRequest { items, ..ReleaseRequest::clone(&request) }))
    }

    fn renew(&self, request: Arc<RenewRequest>) -> BoxFuture<Result<Vec<Renewed>, StoreError>> {
        let items = request.items.iter();
        let items = items.map(|renewal| RenewItem { item: Self::queued(&renewal.item), ..renewal.clone() });
        self.inner.renew(Arc::new(RenewRequest { items: items.collect(), timeout: request.timeout }))
    }

    fn withdraw(&self, request: Arc<AcquireRequest>) -> BoxFuture<Result<Withdrawn, StoreError>> {
        self.ended.lock().unwrap().insert(request.items[0].owner.to_string());
        self.inner.withdraw(Self::request(&request))
    }

    fn watch(&self, request: Arc<AcquireRequest>) -> BoxFuture<Result<Watch, StoreError>> {
        self.inner.watch(Self::request(&request))
    }
}

async fn places(locks: &LockManager) -> u64 {
    locks.status("k").await.unwrap().waiters
}

/// Waits until the store's queue has `wanted` places.
async fn wait_for_places(locks: &LockManager, wanted: u64) {
    while places(locks).await != wanted {
        sleep(MS).await;
    }
}

#[tokio::test(start_paused = true)]
async fn processes_get_a_queued_mutex_in_the_order_they_asked() {
    let store = Queues::new("queued-order");
    let managers: Vec<_> = (0..4).map(|_| store.manager()).collect();
    let held = managers[0].mutex("k").acquire().await.unwrap();
    let order = Arc::new(Mutex::new(Vec::new()));
    let mut waiters = Vec::new();
    for at in [2, 1, 3, 0] {
        let (locks, order) = (managers[at].clone(), Arc::clone(&order));
        waiters.push(tokio::spawn(async move {
            let guard = locks.mutex("k").wait(60 * SECOND).acquire().await.unwrap();
            order.lock().unwrap().push(at);
            sleep(50 * MS).await;
            guard.release().await.unwrap();
        }));
        // The holder's own process has no place while it holds.
        wait_for_places(&managers[0], if at == 0 { 3 } else { waiters.len() as u64 }).await;
        sleep(MS).await;
    }
    sleep(SECOND).await; // the window of local hand-offs is over
    held.release().await.unwrap();
    for waiter in waiters {
        waiter.await.unwrap();
    }
    assert_eq!(*order.lock().unwrap(), [2, 1, 3, 0]);
}

#[tokio::test(start_paused = true)]
async fn a_process_has_one_place_however_many_wait_and_hands_the_lock_on() {
    let store = Queues::new("queued-crowd");
    let (a, b) = (store.manager(), store.manager());
    let held = a.mutex("k").acquire().await.unwrap();
    let waiters: Vec<_> = (0..100)
        .map(|_| {
            let b = b.clone();
            tokio::spawn(
                async move { b.mutex("k").wait(60 * SECOND).acquire().await.unwrap().release().await },
            )
        })
        .collect();
    wait_for_places(&a, 1).await;
    sleep(10 * SECOND).await; // far longer than a place lives without a sign of life
    assert_eq!(places(&a).await, 1);
    held.release().await.unwrap();
    for waiter in waiters {
        waiter.await.unwrap().unwrap();
    }
    assert!(!a.status("k").await.unwrap().is_locked());
}

#[tokio::test(start_paused = true)]
async fn a_wait_that_ends_gives_up_the_place() {
    let store = Queues::new("queued-end");
    let (a, b, c) = (store.manager(), store.manager(), store.manager());
    let held = a.mutex("k").acquire().await.unwrap();
    let error = b.mutex("k").wait(SECOND).acquire().await.unwrap_err();
    assert!(matches!(error, LockError::TimedOut { .. }), "{error:?}");
    wait_for_places(&a, 0).await;
    let dropped = tokio::spawn(async move { b.mutex("k").wait_forever().acquire().await });
    wait_for_places(&a, 1).await;
    assert!(c.mutex("k").try_acquire().await.unwrap().is_none());
    assert_eq!(places(&a).await, 1, "a try leaves no trace");
    dropped.abort();
    wait_for_places(&a, 0).await;
    sleep(SECOND).await;
    held.release().await.unwrap();
    let start = Instant::now();
    c.mutex("k").acquire().await.unwrap().release().await.unwrap();
    assert!(start.elapsed() < SECOND, "{:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_queued_mutex_excludes_and_leaves_nothing() {
    let store = Queues::new("queued-storm");
    let managers: Vec<_> = (0..4).map(|_| store.manager()).collect();
    let (inside, done) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let mut callers = Vec::new();
    for number in 0..200_u64 {
        let locks = managers[number as usize % managers.len()].clone();
        let (inside, done) = (Arc::clone(&inside), Arc::clone(&done));
        callers.push(tokio::spawn(async move {
            sleep(MS * u32::try_from(number * 7 % 50).unwrap()).await;
            // Some give up, some are dropped, some only try.
            let wait = if number % 5 == 0 { 20 * MS } else { 600 * SECOND };
            let lock = locks.mutex("k").wait(wait);
            let acquire = lock.clone().acquire();
            let guard = match number % 7 {
                0 => lock.try_acquire().await.unwrap(),
                1 => tokio::time::timeout(15 * MS, acquire).await.ok().and_then(Result::ok),
                _ => acquire.await.ok(),
            };
            let Some(guard) = guard else { return };
            assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two at once");
            sleep(MS * u32::try_from(1 + number % 4).unwrap()).await;
            inside.fetch_sub(1, Ordering::SeqCst);
            done.fetch_add(1, Ordering::SeqCst);
            guard.release().await.unwrap();
        }));
    }
    for caller in callers {
        caller.await.unwrap();
    }
    assert!(done.load(Ordering::SeqCst) > 100, "{done:?}");
    sleep(60 * SECOND).await;
    let status = managers[0].status("k").await.unwrap();
    assert!(!status.is_locked() && status.waiters == 0, "{status:?}");
    for locks in &managers {
        let left = leftovers(locks);
        assert_eq!((left.keys, left.timers, left.tasks), (0, 0, 0));
    }
}
