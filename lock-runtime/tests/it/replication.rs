//! The engine with replication policies, on a store whose replicas confirm as the test decides.
//! Paused time.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lock_core::store::{
    Abilities, AcquireRequest, Acquired, BoxFuture, Forward, LockStatus, LockStore, ReleaseRequest, Released,
    StoreError, StoreErrorKind, Withdrawn,
};
use lock_runtime::testing::{leftovers, manager_on, memory_store};
use lock_runtime::{FencingToken, Lock, LockError, LockKey, LockManager, Replication};
use tokio::time::Instant;

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

/// Time that available replicas take to confirm.
const CONFIRMS: Duration = Duration::from_millis(5);

/// A memory store with a number of available replicas.
#[derive(Debug)]
struct Primary {
    inner: Arc<dyn LockStore>,
    replicas: AtomicU32,
    /// The number of grants that waited for replicas.
    abilities: Abilities,
    synced: AtomicUsize,
    acquires: AtomicUsize,
    /// Whether grants with a policy are refused before they begin.
    refuses: AtomicBool,
    /// The requests as passed to the memory store, which has no replicas, by owner.
    asked: Mutex<HashMap<String, Arc<AcquireRequest>>>,
}

impl Primary {
    fn with_replicas(replicas: u32) -> Arc<Self> {
        let inner = memory_store();
        Arc::new(Self {
            abilities: Abilities { replication: true, ..inner.abilities().clone() },
            inner,
            replicas: AtomicU32::new(replicas),
            synced: AtomicUsize::new(0),
            acquires: AtomicUsize::new(0),
            refuses: AtomicBool::new(false),
            asked: Mutex::default(),
        })
    }

    fn manager(self: &Arc<Self>) -> LockManager {
        manager_on(LockManager::builder(), Arc::clone(self) as Arc<dyn LockStore>)
    }

    fn synced(&self) -> usize {
        self.synced.load(Ordering::SeqCst)
    }

    async fn status(&self, key: &str) -> LockStatus {
        self.inner.status(LockKey::new(key).unwrap()).await.unwrap()
    }
}

impl Forward for Primary {
    fn inner(&self) -> &dyn LockStore {
        &*self.inner
    }

    fn abilities(&self) -> &Abilities {
        &self.abilities
    }

    fn acquire(&self, request: Arc<AcquireRequest>) -> BoxFuture<Result<Acquired, StoreError>> {
        self.acquires.fetch_add(1, Ordering::SeqCst);
        let owner = request.items[0].owner.to_string();
        let bare = Arc::clone(self.asked.lock().unwrap().entry(owner).or_insert_with(|| {
            let bare = AcquireRequest::new(request.items.clone(), request.lease, request.timeout);
            let mut bare = bare.tokens(request.tokens);
            bare.direct = request.direct;
            Arc::new(match request.wait {
                Some(wait) => bare.queued(wait),
                None => bare,
            })
        }));
        let wanted = request.replication.wanted(Some(2)).unwrap();
        if wanted > 0 {
            assert!(request.wait.is_none() || !request.direct, "may be granted by whoever releases");
        }
        if wanted > 0 && self.refuses.load(Ordering::SeqCst) {
            let error = StoreError::new(StoreErrorKind::Unreachable, "all connections for grants are in use");
            return Box::pin(async { Err(error) });
        }
        let there = self.replicas.load(Ordering::SeqCst);
        let answer = self.inner.acquire(bare);
        let timeout = request.replication.timeout();
        if wanted == 0 {
            return answer;
        }
        self.synced.fetch_add(1, Ordering::SeqCst);
        Box::pin(async move {
            let answer = answer.await?;
            if matches!(answer, Acquired::Granted(_)) && there < wanted {
                tokio::time::sleep(timeout).await;
                let message = format!("{there} of {wanted} replicas");
                return Err(StoreError::new(StoreErrorKind::NotReplicated, message));
            }
            tokio::time::sleep(CONFIRMS).await;
            Ok(answer)
        })
    }

    fn release(&self, request: Arc<ReleaseRequest>) -> BoxFuture<Result<Released, StoreError>> {
        if let Some(then) = &request.then {
            assert!(then.request.replication.is_none(), "nobody waits for the replicas of a takeover");
        }
        self.inner.release(request)
    }

    fn withdraw(&self, request: Arc<AcquireRequest>) -> BoxFuture<Result<Withdrawn, StoreError>> {
        let bare = Arc::clone(&self.asked.lock().unwrap()[request.items[0].owner.as_str()]);
        self.inner.withdraw(bare)
    }
}

fn one() -> Replication {
    Replication::at_least(1, 200 * MS)
}

#[tokio::test(start_paused = true)]
async fn a_grant_that_nobody_confirms_is_undone_and_tried_again_until_the_wait_ends() {
    let store = Primary::with_replicas(0);
    let locks = store.manager();
    for lock in
        [locks.mutex("k"), locks.fair("k"), locks.write("k"), locks.read("k"), locks.multi(["k", "l"])]
    {
        let before = store.synced();
        let began = Instant::now();
        let error = lock.wait(3 * SECOND).replication(one()).acquire().await.unwrap_err();
        assert!(matches!(error, LockError::NotReplicated { .. }), "{error:?}");
        assert!(error.to_string().contains("0 of 1 replicas"), "{error}");
        assert!(began.elapsed() >= 3 * SECOND);
        assert!(began.elapsed() < 6 * SECOND, "{:?}", began.elapsed());
        let tries = store.synced() - before;
        assert!((3..20).contains(&tries), "{tries} tries");
        tokio::time::sleep(5 * SECOND).await;
        assert!(!store.status("k").await.is_locked());
        let left = leftovers(&locks);
        assert_eq!((left.keys, left.tasks, left.waiters), (0, 0, 0));

        assert!(error.is_retryable() && !error.is_busy() && !error.body_started());
    }
}

#[tokio::test(start_paused = true)]
async fn it_is_granted_when_the_replicas_are_back() {
    let store = Primary::with_replicas(0);
    let locks = store.manager();
    for lock in [locks.mutex("k"), locks.fair("k"), locks.write("k")] {
        store.replicas.store(0, Ordering::SeqCst);
        let waiting = tokio::spawn(lock.wait_forever().replication(one()).acquire());
        tokio::time::sleep(2 * SECOND).await;
        assert!(!waiting.is_finished());
        store.replicas.store(1, Ordering::SeqCst);
        let guard = tokio::time::timeout(10 * SECOND, waiting).await.unwrap().unwrap().unwrap();
        let token = guard.fencing_token().get();
        assert_eq!(store.status("k").await.last_token.map(FencingToken::get), Some(token));
        guard.release().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_try_fails_at_once() {
    let store = Primary::with_replicas(1);
    let locks = store.manager();
    let two = Replication::majority(100 * MS);
    let error = locks.mutex("k").replication(two).try_acquire().await.unwrap_err();
    assert!(matches!(error, LockError::NotReplicated { .. }), "{error:?}");
    assert_eq!(store.synced(), 1);
    let guard = locks.mutex("k").replication(one()).try_acquire().await.unwrap().unwrap();
    guard.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn the_managers_policy_holds_for_locks_that_say_nothing() {
    let store = Primary::with_replicas(0);
    let inner = Arc::clone(&store) as Arc<dyn LockStore>;
    let locks = manager_on(LockManager::builder().replication(one()), inner);
    let error = locks.mutex("k").no_wait().acquire().await.unwrap_err();
    assert!(matches!(error, LockError::NotReplicated { .. }), "{error:?}");
    let guard = locks.mutex("k").replication(Replication::NONE).acquire().await.unwrap();
    guard.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_hold_is_handed_on_only_to_those_who_want_no_more() {
    let store = Primary::with_replicas(2);
    let locks = store.manager();
    let asked = || store.acquires.load(Ordering::SeqCst);

    for (next, handed_off) in [
        (Replication::NONE, true),
        (one(), true),
        (Replication::at_least(1, SECOND), true),
        (Replication::majority(SECOND), false),
    ] {
        let rival = store.manager().mutex("k").acquire().await.unwrap();
        // The first waiter also asks for tokens for those behind it.
        let waiter =
            |replication| tokio::spawn(locks.mutex("k").wait_forever().replication(replication).acquire());
        let (first, next, last) = (waiter(one()), waiter(next), waiter(Replication::NONE));
        tokio::time::sleep(MS).await;
        rival.release().await.unwrap();
        let first = first.await.unwrap().unwrap();
        let before = asked();
        first.release().await.unwrap();
        let next = next.await.unwrap().unwrap();
        assert_eq!(asked() == before, handed_off, "{next:?}");
        next.release().await.unwrap();
        last.await.unwrap().unwrap().release().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn nobody_is_made_to_wait_for_replicas_by_a_hold_without() {
    let store = Primary::with_replicas(0);
    let locks = store.manager();
    let plain = locks.mutex("k").acquire().await.unwrap();
    let replicated = tokio::spawn(locks.mutex("k").wait(SECOND).replication(one()).acquire());
    tokio::task::yield_now().await;
    plain.release().await.unwrap();
    let error = replicated.await.unwrap().unwrap_err();
    assert!(matches!(error, LockError::NotReplicated { .. }), "{error:?}");
}

#[tokio::test(start_paused = true)]
async fn readers_share_a_hold_that_is_replicated_enough() {
    let store = Primary::with_replicas(1);
    let locks = store.manager();
    let first = locks.read("k").replication(one()).acquire().await.unwrap();
    let before = store.acquires.load(Ordering::SeqCst);
    let second = locks.read("k").acquire().await.unwrap();
    let third = locks.read("k").replication(one()).acquire().await.unwrap();
    assert_eq!(store.acquires.load(Ordering::SeqCst), before);
    drop((first, second, third));
}

#[tokio::test(start_paused = true)]
async fn callers_without_a_policy_hear_nothing_of_replicas() {
    let store = Primary::with_replicas(0);
    let locks = store.manager();
    for policy in [one(), Replication::majority(100 * MS)] {
        let rival = store.manager().mutex("k").acquire().await.unwrap();
        let first = tokio::spawn(locks.mutex("k").wait(2 * SECOND).replication(policy).acquire());
        tokio::time::sleep(MS).await;
        let plain = tokio::spawn(locks.mutex("k").wait(SECOND).acquire());
        let hurried = tokio::spawn(locks.mutex("k").wait(SECOND).acquire());
        tokio::time::sleep(MS).await;
        rival.release().await.unwrap();
        let plain = plain.await.unwrap().unwrap();
        let error = hurried.await.unwrap().unwrap_err();
        assert!(matches!(error, LockError::TimedOut { .. }), "{error:?}");
        plain.release().await.unwrap();
        let error = first.await.unwrap().unwrap_err();
        assert!(matches!(error, LockError::NotReplicated { .. }), "{error:?}");
    }

    // A store without replicas refuses the policy, but not the callers that wait behind it.
    let store = memory_store();
    let locks = manager_on(LockManager::builder(), Arc::clone(&store));
    let rival = manager_on(LockManager::builder(), store).mutex("k").acquire().await.unwrap();
    let first = tokio::spawn(locks.mutex("k").wait(SECOND * 9).replication(one()).acquire());
    tokio::time::sleep(MS).await;
    let plain = tokio::spawn(locks.mutex("k").wait(SECOND * 20).acquire());
    tokio::time::sleep(MS).await;
    assert!(matches!(first.await.unwrap(), Err(LockError::Misconfigured { .. })));
    rival.release().await.unwrap();
    plain.await.unwrap().unwrap().release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn callers_without_a_policy_pass_one_whose_policy_is_not_met() {
    let store = Primary::with_replicas(0);
    let locks = store.manager();
    let kinds: [fn(&LockManager) -> Lock; 3] =
        [|locks| locks.mutex("k"), |locks| locks.fair("k"), |locks| locks.write("k")];
    for lock in kinds {
        let policy = tokio::spawn(lock(&locks).wait_forever().replication(one()).acquire());
        tokio::time::sleep(MS).await;
        let began = Instant::now();
        for _ in 0..5 {
            // It queues behind an attempt of the other caller, which takes 200 ms, and behind its
            // pause.
            let plain = lock(&locks).wait(3 * SECOND).acquire().await.unwrap();
            tokio::time::sleep(10 * MS).await;
            plain.release().await.unwrap();
        }
        assert!(began.elapsed() < 10 * SECOND, "{:?}", began.elapsed());

        // The caller with the policy keeps trying, however many others pass it.
        let tries = store.synced();
        let passing = tokio::spawn({
            let plain = lock(&locks);
            async move {
                loop {
                    let guard = plain.clone().wait_forever().acquire().await.unwrap();
                    tokio::time::sleep(MS).await;
                    guard.release().await.unwrap();
                }
            }
        });
        tokio::time::sleep(5 * SECOND).await;
        assert!(store.synced() >= tries + 3, "{} tries", store.synced() - tries);
        store.replicas.store(1, Ordering::SeqCst);
        let guard = tokio::time::timeout(10 * SECOND, policy).await.unwrap().unwrap().unwrap();
        passing.abort();
        guard.release().await.unwrap();
        store.replicas.store(0, Ordering::SeqCst);
    }
}

/// The undo of a grant notifies all waiters for the key, including the one that had asked.
#[tokio::test(start_paused = true)]
async fn an_attempt_that_is_undone_does_not_call_for_the_next() {
    let store = Primary::with_replicas(0);
    let locks = store.manager();
    let rival = store.manager().mutex("k").acquire().await.unwrap();
    let policy = Replication::at_least(1, 20 * MS);
    let waiting = tokio::spawn(locks.mutex("k").wait(4 * SECOND).replication(policy).acquire());
    tokio::time::sleep(SECOND).await;
    rival.release().await.unwrap();
    assert!(matches!(waiting.await.unwrap(), Err(LockError::NotReplicated { .. })));
    assert!((3..20).contains(&store.synced()), "{} tries", store.synced());
}

#[tokio::test(start_paused = true)]
async fn who_comes_while_a_policy_is_set_back_is_served_at_once() {
    let store = Primary::with_replicas(0);
    let locks = store.manager();
    let policy = tokio::spawn(locks.mutex("k").wait_forever().replication(one()).acquire());
    for pause in [3100, 900, 700, 800] {
        tokio::time::sleep(pause * MS).await;
        let began = Instant::now();
        locks.mutex("k").wait(3 * SECOND).acquire().await.unwrap().release().await.unwrap();
        // It waits for one attempt at most.
        assert!(began.elapsed() <= 200 * MS, "{:?}", began.elapsed());
    }
    policy.abort();
}

#[tokio::test(start_paused = true)]
async fn an_error_of_an_attempt_with_a_policy_does_not_reach_others() {
    let store = Primary::with_replicas(1);
    store.refuses.store(true, Ordering::SeqCst);
    let locks = store.manager();
    let rival = store.manager().mutex("k").acquire().await.unwrap();
    let policy = tokio::spawn(locks.mutex("k").wait(10 * SECOND).replication(one()).acquire());
    tokio::time::sleep(MS).await;
    let plain = tokio::spawn(locks.mutex("k").wait(2 * SECOND).acquire());
    let hurried = tokio::spawn(locks.mutex("k").wait(SECOND).acquire());
    tokio::time::sleep(MS).await;
    assert!(matches!(hurried.await.unwrap(), Err(LockError::TimedOut { .. })));
    rival.release().await.unwrap();
    plain.await.unwrap().unwrap().release().await.unwrap();
    assert!(matches!(policy.await.unwrap(), Err(LockError::Unavailable { .. })));
}

#[tokio::test(start_paused = true)]
async fn a_confirmed_grant_goes_to_the_caller_with_the_policy() {
    let store = Primary::with_replicas(0);
    let locks = store.manager();
    let policy = tokio::spawn(locks.mutex("k").wait_forever().replication(one()).acquire());
    tokio::time::sleep(2 * SECOND).await;
    store.replicas.store(1, Ordering::SeqCst);
    let tries = store.synced();
    while store.synced() == tries {
        tokio::time::sleep(MS).await;
    }
    // It arrives while the replicas are asked.
    let plain = tokio::spawn(locks.mutex("k").wait_forever().acquire());
    let guard = tokio::time::timeout(SECOND, policy).await.unwrap().unwrap().unwrap();
    assert!(!plain.is_finished());
    guard.release().await.unwrap();
    plain.await.unwrap().unwrap().release().await.unwrap();
}

/// The wait is the limit, or one call if that takes longer, whatever time the policy allows.
#[tokio::test(start_paused = true)]
async fn replicas_that_have_for_ever_do_not_outlast_the_wait() {
    let store = Primary::with_replicas(0);
    let locks = store.manager();
    let for_ever = Replication::at_least(1, Duration::MAX);
    let began = Instant::now();
    let error = locks.mutex("k").wait(SECOND).replication(for_ever).acquire().await.unwrap_err();
    assert!(matches!(error, LockError::NotReplicated { .. }), "{error:?}");
    assert!((SECOND..6 * SECOND).contains(&began.elapsed()), "{:?}", began.elapsed());
    tokio::time::sleep(60 * SECOND).await;
    assert!(!store.status("k").await.is_locked());
    let left = leftovers(&locks);
    assert_eq!((left.keys, left.tasks, left.waiters), (0, 0, 0));
}

#[tokio::test(start_paused = true)]
async fn a_store_without_replicas_says_so() {
    let locks = manager_on(LockManager::builder(), memory_store());
    let error = locks.mutex("k").replication(one()).acquire().await.unwrap_err();
    assert!(matches!(error, LockError::Misconfigured { .. }), "{error:?}");
    assert!(error.to_string().contains("replica"), "{error}");
}
