//! Futures of this crate under executors other than tokio, and in runtimes that lack something.

use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::{Duration, Instant};

use crate::block_on::block_on;
use lock_core::store::{BoxFuture, Forward, LockStore, StoreError};
use lock_runtime::testing::{self, memory_manager};
use lock_runtime::{ConnectError, LockError, LockManager, Loss};
use tokio::task::LocalSet;

const SECOND: Duration = Duration::from_secs(1);

fn manager() -> LockManager {
    block_on(LockManager::builder().dedicated_thread().connect("memory:")).unwrap()
}

#[test]
fn everything_works_under_another_executor() {
    let locks = manager();
    block_on(async {
        let guard = locks.mutex("k").acquire().await.unwrap();
        assert!(locks.status("k").await.unwrap().is_locked());
        let error = locks.mutex("k").wait(SECOND / 20).acquire().await.unwrap_err();
        assert!(matches!(error, LockError::TimedOut { .. }), "{error:?}");
        guard.release().await.unwrap();
        let token = locks.mutex("k").with(async |held| held.fencing_token()).await.unwrap();
        let fixed = locks.mutex("k").lease(SECOND / 5).acquire().await.unwrap();
        assert!(fixed.fencing_token() > token);
        fixed.extend(SECOND / 4).await.unwrap();
        assert!(locks.force_release("k").await.unwrap());
        let error = fixed.release().await.unwrap_err();
        assert!(matches!(error, LockError::Lost { why: Loss::TakenAway, .. }), "{error:?}");
        locks.shutdown(SECOND).await.unwrap();
    });
}

#[test]
fn a_loss_is_noticed_under_another_executor() {
    let locks = manager();
    let started = Instant::now();
    let body = async |_| std::future::pending::<()>().await;
    let error = block_on(locks.mutex("k").lease(SECOND / 5).with(body)).unwrap_err();
    assert!(matches!(error, LockError::Lost { why: Loss::LeaseOver, .. }), "{error:?}");
    assert!(started.elapsed() >= SECOND / 10);
}

#[test]
fn a_runtime_without_timers_is_refused() {
    let bare = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let error = bare.block_on(LockManager::connect("memory:")).unwrap_err();
    let ConnectError::Misconfigured { reason } = error else { panic!("{error:?}") };
    assert!(reason.contains("enable_all"), "{reason}");
}

/// A caller has its own runtime, while nothing drives the manager's.
#[test]
fn callers_have_timers_of_their_own() {
    let stuck = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let locks = stuck.block_on(LockManager::connect("memory:")).unwrap();
    let guard = stuck.block_on(locks.mutex("a").lease(SECOND / 5).acquire()).unwrap();
    let healthy = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let limit = 60 * SECOND;
    healthy.block_on(async {
        tokio::time::timeout(limit, guard.lost()).await.expect("the loss was not noticed");
        let waiter = locks.mutex("b").wait(SECOND / 5).acquire();
        let waited = tokio::time::timeout(limit, waiter).await.expect("the wait did not end");
        assert!(waited.is_err());
    });
}

#[test]
fn a_body_is_cancelled_while_the_managers_runtime_is_blocked() {
    let builder = || tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let (blocked, healthy) = (builder().unwrap(), builder().unwrap());
    let locks = blocked.block_on(LockManager::connect("memory:")).unwrap();
    let (unblock, block) = std::sync::mpsc::channel::<()>();
    let block = std::sync::Mutex::new(Some(block));
    let body = async |_| {
        let block = block.lock().unwrap().take().unwrap();
        drop(blocked.spawn(async move { block.recv() }));
        std::future::pending::<()>().await;
    };
    let call = locks.mutex("k").lease(SECOND / 5).with(body);
    let limited = healthy.block_on(async { tokio::time::timeout(60 * SECOND, call).await });
    drop(unblock);
    let error = limited.expect("the body was not cancelled").unwrap_err();
    assert!(matches!(error, LockError::Lost { why: Loss::LeaseOver, .. }), "{error:?}");
}

#[tokio::test]
async fn a_view_may_outlive_its_manager() {
    let locks = LockManager::builder().dedicated_thread().connect("memory:").await.unwrap();
    let guard = locks.mutex("k").acquire().await.unwrap();
    let view = guard.view();
    let watcher = tokio::spawn(async move { view.lost().await });
    let plain_view = guard.view();
    let plain_watcher = std::thread::spawn(move || block_on(plain_view.lost()));
    tokio::time::sleep(SECOND / 20).await;
    guard.release().await.unwrap();
    drop(locks);
    tokio::time::sleep(SECOND / 2).await;
    assert!(!watcher.is_finished() && !plain_watcher.is_finished(), "lost after a release in good order");
}

/// The lost signal resolves before the timers of the manager's runtime end.
#[test]
fn lost_resolves_when_the_managers_runtime_goes() {
    for _ in 0..20 {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let locks = runtime.block_on(LockManager::connect("memory:")).unwrap();
        let guard = runtime.block_on(locks.mutex("k").acquire()).unwrap();
        let view = guard.view();
        let watcher = std::thread::spawn(move || block_on(view.lost()));
        let mut waiter = Box::pin(locks.mutex("k").wait(60 * SECOND).acquire());
        let pending = waiter.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        assert!(pending.is_pending());
        runtime.shutdown_timeout(SECOND);
        watcher.join().unwrap();
        let error = block_on(waiter).unwrap_err();
        assert!(matches!(error, LockError::ShutDown { .. }), "{error:?}");
        let error = block_on(guard.release()).unwrap_err();
        assert!(matches!(error, LockError::Lost { why: Loss::ShutDown, .. }), "{error:?}");
    }
}

/// As `callers_have_timers_of_their_own`, with a call under way when the manager's runtime is no
/// longer driven.
#[test]
fn a_waiter_has_a_timer_of_its_own_while_a_call_is_under_way() {
    let stuck = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let store = std::sync::Arc::new(hanging::Hanging(lock_runtime::testing::memory_store()));
    let builder = LockManager::builder().call_timeout(SECOND / 20);
    let locks = stuck.block_on(builder.connect_store(store)).unwrap();
    stuck.block_on(async {
        let mut first = Box::pin(locks.mutex("k").wait(SECOND).acquire());
        assert!(first.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    });
    let healthy = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    healthy.block_on(async {
        // The wait has to end by itself, or the test hangs.
        let waited = locks.mutex("k").wait(SECOND / 2).acquire().await;
        assert!(matches!(waited, Err(LockError::Unavailable { .. })), "{waited:?}");
    });
}

mod hanging {
    use std::sync::Arc;

    use lock_core::store::*;
    #[derive(Debug)]
    pub(crate) struct Hanging(pub(crate) Arc<dyn LockStore>);

    impl Forward for Hanging {
        fn inner(&self) -> &dyn LockStore {
            &*self.0
        }

        fn around<T: Send + 'static>(
            &self,
            _: &'static str,
            _: BoxFuture<Result<T, StoreError>>,
        ) -> BoxFuture<Result<T, StoreError>> {
            Box::pin(std::future::pending())
        }

        fn check(&self) -> BoxFuture<Result<(), StoreError>> {
            self.0.check()
        }
    }
}

/// tokio drops a task's output under the task's id even outside any runtime.
#[test]
fn a_release_in_the_drop_of_a_tasks_output() {
    struct Session(Option<lock_runtime::LockGuard>);
    impl Drop for Session {
        fn drop(&mut self) {
            block_on(self.0.take().unwrap().release()).unwrap();
        }
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let locks = runtime.block_on(LockManager::connect("memory:")).unwrap();
    let session = runtime.spawn(async move { Session(Some(locks.mutex("k").acquire().await.unwrap())) });
    while !session.is_finished() {
        std::thread::yield_now();
    }
    drop(session);
}

/// Nothing drives the manager's runtime: still, all calls return, and not only waits.
#[test]
fn nothing_waits_for_ever_for_a_runtime_that_does_not_run() {
    let stuck = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let builder = LockManager::builder().call_timeout(SECOND / 20);
    let locks = stuck.block_on(builder.connect("memory:")).unwrap();
    let guard = stuck.block_on(locks.mutex("a").lease(60 * SECOND).acquire()).unwrap();
    let healthy = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let all = async {
        let tried = locks.mutex("b").try_acquire().await.map(drop);
        assert!(matches!(tried, Err(LockError::Unavailable { .. })), "{tried:?}");
        let extended = guard.extend(61 * SECOND).await;
        assert!(matches!(extended, Err(LockError::Unconfirmed { .. })), "{extended:?}");
        let forced = locks.force_release("b").await;
        assert!(matches!(forced, Err(LockError::Unavailable { .. })), "{forced:?}");
        let counted = locks.latch("l").count_down().await;
        assert!(matches!(counted, Err(LockError::Unavailable { .. })), "{counted:?}");
        let longer = locks.mutex("a").lease(62 * SECOND).wait(SECOND / 20);
        let inside = guard.scope(longer.acquire()).await.map(drop);
        assert!(matches!(inside, Err(LockError::Unavailable { .. })), "{inside:?}");
    };
    let answered = healthy.block_on(async { tokio::time::timeout(60 * SECOND, all).await });
    assert!(answered.is_ok(), "something waits");
}

/// Whether a task re-enters the lock.
async fn enters(locks: LockManager) -> bool {
    locks.mutex("k").try_acquire().await.unwrap().is_some()
}

/// Tasks that are polled inside the body's poll, on its thread, are still outside the lock's scope.
#[tokio::test]
async fn a_task_of_a_local_set_inside_a_body_is_a_stranger() {
    let locks = LockManager::connect("memory:").await.unwrap();
    let local = LocalSet::new();
    let before = local.spawn_local(enters(locks.clone()));
    let body = async |_| local.run_until(async { before.await.unwrap() }).await;
    assert!(!locks.mutex("k").with(body).await.unwrap(), "spawned before");
    let within = async |_| {
        let task = async { tokio::task::spawn_local(enters(locks.clone())).await.unwrap() };
        LocalSet::new().run_until(task).await
    };
    assert!(!locks.mutex("k").with(within).await.unwrap(), "spawned inside");
    let own = async |_| LocalSet::new().run_until(enters(locks.clone())).await;
    assert!(locks.mutex("k").with(own).await.unwrap(), "the body itself");
    let carried = async |_| {
        let inside = lock_runtime::in_current_scope(enters(locks.clone()));
        let task = async { tokio::task::spawn_local(inside).await.unwrap() };
        LocalSet::new().run_until(task).await
    };
    assert!(locks.mutex("k").with(carried).await.unwrap(), "carried over on purpose");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_task_of_a_runtime_inside_a_body_is_a_stranger() {
    let locks = LockManager::connect("memory:").await.unwrap();
    let inside = |spawned: bool| {
        let locks = locks.clone();
        tokio::task::block_in_place(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                if spawned { tokio::spawn(enters(locks)).await.unwrap() } else { enters(locks).await }
            })
        })
    };
    assert!(!locks.mutex("k").with(async |_| inside(true)).await.unwrap(), "spawned");
    assert!(locks.mutex("k").with(async |_| inside(false)).await.unwrap(), "the body itself");
}

/// Returns two managers on one store.
fn rivals() -> (LockManager, LockManager) {
    let memory = testing::memory_store();
    let on = |store| testing::manager_on(LockManager::builder(), store);
    (on(Arc::clone(&memory)), on(memory))
}

#[test]
fn a_guard_that_is_dropped_outside_of_a_runtime_is_released_by_the_managers() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (locks, rival, guard) = runtime.block_on(async {
        let (locks, rival) = rivals();
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
        let (locks, rival) = rivals();
        for _ in 0..50 {
            let guard = locks.mutex("k").acquire().await.unwrap();
            let waiter = tokio::spawn(locks.mutex("k").acquire());
            std::thread::spawn(move || drop(guard)).join().unwrap();
            drop(waiter.await.unwrap().unwrap());
            drop(rival.mutex("k").acquire().await.unwrap());
        }
    });
}

/// Signals when its drop begins, and ends it only when told to.
struct Stuck(std::sync::mpsc::Sender<()>, std::sync::mpsc::Receiver<()>);

impl Drop for Stuck {
    fn drop(&mut self) {
        self.0.send(()).unwrap();
        let _ = self.1.recv();
    }
}

/// The manager's runtime is shutting down and accepts no more tasks: the release is unconfirmed,
/// and nothing panics.
#[test]
fn a_release_elsewhere_while_the_managers_runtime_is_going_is_an_error() {
    let builder = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let theirs = builder.unwrap();
    let ours = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (begun, has_begun) = std::sync::mpsc::channel();
    let (go, stay) = std::sync::mpsc::channel();
    let stuck = Stuck(begun, stay);
    let guard = theirs.block_on(async {
        let locks = memory_manager();
        // Once the task was polled, the runtime owns it.
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
    // Lost, if the hold's watchdog is already gone.
    let said = matches!(released, Err(LockError::Unconfirmed { .. } | LockError::Lost { .. }));
    assert!(said, "{released:?}");
    drop(go);
    going.join().unwrap();
}

/// A store may use timers, sockets and `tokio::spawn` in its calls, wherever their callers are.
#[test]
fn every_call_is_polled_inside_the_runtime_of_the_manager() {
    #[derive(Debug)]
    struct Asks(Arc<dyn LockStore>, tokio::runtime::Handle);

    impl Forward for Asks {
        fn inner(&self) -> &dyn LockStore {
            &*self.0
        }

        fn around<T: Send + 'static>(
            &self,
            step: &'static str,
            call: BoxFuture<Result<T, StoreError>>,
        ) -> BoxFuture<Result<T, StoreError>> {
            let mine = self.1.id();
            Box::pin(async move {
                let inside = || tokio::runtime::Handle::try_current().map(|here| here.id());
                assert_eq!(inside().ok(), Some(mine), "{step}");
                tokio::time::sleep(Duration::from_millis(1)).await;
                assert_eq!(inside().ok(), Some(mine), "{step}");
                call.await
            })
        }
    }

    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let store = Arc::new(Asks(testing::memory_store(), runtime.handle().clone()));
    let locks = runtime.block_on(LockManager::builder().connect_store(store)).unwrap();
    let other = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let all = || async {
        let guard = locks.mutex("k").acquire().await.unwrap();
        assert!(locks.mutex("k").try_acquire().await.unwrap().is_none());
        assert!(locks.status("k").await.unwrap().is_locked());
        assert_eq!(locks.list("").next_page().await.unwrap().unwrap().len(), 1);
        locks.health().await.unwrap();
        guard.release().await.unwrap();
        let fixed = locks.write("k").lease(SECOND).acquire().await.unwrap();
        fixed.extend(2 * SECOND).await.unwrap();
        fixed.downgrade().await.unwrap().release().await.unwrap();
        assert!(!locks.force_release("free").await.unwrap());
    };
    block_on(all());
    other.block_on(all());
    runtime.block_on(all());
}
