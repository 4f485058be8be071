//! A store that hears of the end of holds: the engine renews them at once. Paused time.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use lock_core::store::{BoxFuture, Forward, Item, LockStore, RenewRequest, Renewed, StoreError};
use lock_runtime::testing::{manager_on, memory_store};
use lock_runtime::{LockGuard, LockKey, LockManager, MultiKey, OwnerId};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep};

const SECOND: Duration = Duration::from_secs(1);

/// A memory store that says which holds have ended.
#[derive(Debug)]
struct Attentive {
    inner: Arc<dyn LockStore>,
    said: mpsc::UnboundedSender<Vec<Item>>,
    says: Arc<tokio::sync::Mutex<mpsc::UnboundedReceiver<Vec<Item>>>>,
    /// The items of each renewal.
    renewed: Mutex<Vec<Vec<String>>>,
}

impl Attentive {
    fn new() -> Arc<Self> {
        let (said, says) = mpsc::unbounded_channel();
        let says = Arc::new(tokio::sync::Mutex::new(says));
        Arc::new(Self { inner: memory_store(), said, says, renewed: Mutex::default() })
    }

    /// Says that the holds of these keys have ended.
    async fn say(&self, keys: &[&str]) {
        let mut items = Vec::new();
        for key in keys {
            let key = LockKey::new(key).unwrap();
            let kind = lock_runtime::Kind::Mutex;
            for (owner, _) in self.inner.status(key.clone()).await.unwrap().holders {
                items.push(Item { key: key.clone(), kind, owner });
            }
        }
        self.said.send(items).unwrap();
    }

    /// Ends the hold of a key behind its owner's back, and says so.
    async fn take(&self, key: &str) {
        let key = LockKey::new(key).unwrap();
        let owner = self.inner.status(key.clone()).await.unwrap().holders[0].0.clone();
        assert!(self.inner.force_release(key.clone()).await.unwrap());
        self.said.send(vec![Item { key, kind: lock_runtime::Kind::Mutex, owner }]).unwrap();
    }

    fn renewals(&self) -> usize {
        self.renewed.lock().unwrap().len()
    }
}

impl Forward for Attentive {
    fn inner(&self) -> &dyn LockStore {
        &*self.inner
    }

    fn renew(&self, request: Arc<RenewRequest>) -> BoxFuture<Result<Vec<Renewed>, StoreError>> {
        let keys = request.items.iter().map(|item| item.item.key.to_string()).collect();
        self.renewed.lock().unwrap().push(keys);
        self.inner.renew(request)
    }

    fn lost(&self) -> Option<BoxFuture<Vec<Item>>> {
        let says = Arc::clone(&self.says);
        Some(Box::pin(async move {
            match says.lock().await.recv().await {
                Some(items) => items,
                None => std::future::pending().await,
            }
        }))
    }
}

fn start() -> (Arc<Attentive>, LockManager) {
    let store = Attentive::new();
    let locks = manager_on(LockManager::builder(), Arc::clone(&store) as Arc<dyn LockStore>);
    (store, locks)
}

/// Asserts that a guard is lost without a pause.
async fn assert_is_lost(guard: &LockGuard) {
    let begun = Instant::now();
    guard.lost().await;
    assert_eq!(begun.elapsed(), Duration::ZERO);
    assert!(guard.is_lost());
}

#[tokio::test(start_paused = true)]
async fn a_hold_that_was_taken_away_is_lost_before_the_next_renewal() {
    let (store, locks) = start();
    let (lost, stays) =
        (locks.mutex("a").acquire().await.unwrap(), locks.mutex("b").acquire().await.unwrap());
    store.take("a").await;
    assert_is_lost(&lost).await;
    assert!(!stays.is_lost());
    assert_eq!(*store.renewed.lock().unwrap(), [["a"]]);
    stays.release().await.unwrap();
}

/// It is not renewed, but it is looked up.
#[tokio::test(start_paused = true)]
async fn a_hold_with_a_fixed_lease_is_lost_at_once_and_not_prolonged() {
    let (store, locks) = start();
    let lease = 600 * SECOND;
    let one = locks.mutex("a").lease(lease).acquire().await.unwrap();
    let other = locks.mutex("b").lease(lease).acquire().await.unwrap();
    sleep(100 * SECOND).await;
    assert_eq!(store.renewals(), 0);
    store.take("a").await;
    assert_is_lost(&one).await;
    let (before, renewals) = (other.remaining(), store.renewals());
    store.say(&["b"]).await;
    sleep(SECOND).await;
    assert_eq!(store.renewals(), renewals + 1, "it is looked up");
    assert!(!other.is_lost() && other.remaining() <= before - SECOND);
}

#[tokio::test(start_paused = true)]
async fn one_of_several_keys_is_enough() {
    let (store, locks) = start();
    let guard = locks.multi(["a", "b", "c"].map(MultiKey::mutex)).acquire().await.unwrap();
    store.take("b").await;
    assert_is_lost(&guard).await;
}

/// The store only gives a hint.
#[tokio::test(start_paused = true)]
async fn a_hold_that_was_named_by_mistake_stays() {
    let (store, locks) = start();
    let guard = locks.mutex("a").acquire().await.unwrap();
    for _ in 0..3 {
        store.say(&["a"]).await;
        sleep(Duration::from_millis(10)).await;
    }
    assert!(!guard.is_lost());
    assert_eq!(store.renewals(), 3);
    // One of another owner, and one of nobody.
    let (key, kind) = (LockKey::new("a").unwrap(), lock_runtime::Kind::Mutex);
    let other = Item { key, kind, owner: OwnerId::new("somebody:1") };
    store.said.send(vec![other]).unwrap();
    store.say(&["nothing"]).await;
    sleep(Duration::from_millis(10)).await;
    assert_eq!(store.renewals(), 3);
    guard.release().await.unwrap();
}

/// The task that looks after holds ends with the manager, and a shutdown does not wait for it.
#[tokio::test(start_paused = true)]
async fn a_shutdown_is_not_held_up() {
    let (store, locks) = start();
    locks.mutex("a").acquire().await.unwrap().release().await.unwrap();
    let begun = Instant::now();
    locks.shutdown(SECOND).await.unwrap();
    assert_eq!(begun.elapsed(), Duration::ZERO);
    drop(locks);
    // Nobody waits for what the store says.
    sleep(SECOND).await;
    assert!(store.says.try_lock().is_ok());
}

/// A thousand at once share calls.
#[tokio::test(start_paused = true)]
async fn many_losses_at_once_take_few_calls() {
    let (store, locks) = start();
    let keys: Vec<String> = (0..1000).map(|n| format!("k{n}")).collect();
    let mut guards = Vec::new();
    for key in &keys {
        guards.push(locks.mutex(key.as_str()).acquire().await.unwrap());
    }
    let mut items = Vec::new();
    for key in &keys {
        let key = LockKey::new(key).unwrap();
        let owner = store.inner.status(key.clone()).await.unwrap().holders[0].0.clone();
        assert!(store.inner.force_release(key.clone()).await.unwrap());
        items.push(Item { key, kind: lock_runtime::Kind::Mutex, owner });
    }
    let before = store.renewals();
    store.said.send(items).unwrap();
    let begun = Instant::now();
    for guard in &guards {
        guard.lost().await;
    }
    assert_eq!(begun.elapsed(), Duration::ZERO);
    assert_eq!(store.renewals() - before, 10);
}
