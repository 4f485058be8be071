//! Futures of this crate under other executors than tokio, and in runtimes that lack something.
#![allow(missing_docs)]

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::{Duration, Instant};

use lock_runtime::{AcquireError, ConnectError, LockError, LockManager, Loss, ReleaseError};

const SECOND: Duration = Duration::from_secs(1);

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// An executor that is not tokio.
fn block_on<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    let waker: Waker = Arc::new(Unpark(std::thread::current())).into();
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => return output,
            Poll::Pending => std::thread::park(),
        }
    }
}

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
        assert!(matches!(error, AcquireError::TimedOut { .. }), "{error:?}");
        guard.release().await.unwrap();
        let token = locks.mutex("k").with(async |held| held.fencing_token()).await.unwrap();
        let fixed = locks.mutex("k").lease(SECOND / 5).acquire().await.unwrap();
        assert!(fixed.fencing_token() > token);
        fixed.extend(SECOND / 4).await.unwrap();
        assert!(locks.force_release("k").await.unwrap());
        let error = fixed.release().await.unwrap_err();
        assert!(matches!(error, ReleaseError::Lost { why: Loss::TakenAway, .. }), "{error:?}");
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
fn a_program_without_timers_uses_a_dedicated_thread() {
    let bare = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let error = bare.block_on(LockManager::connect("memory:")).unwrap_err();
    let ConnectError::Misconfigured { reason } = error else { panic!("{error:?}") };
    assert!(reason.contains("enable_all") && reason.contains("dedicated_thread"), "{reason}");
    let locks = manager();
    bare.block_on(async {
        let guard = locks.mutex("k").acquire().await.unwrap();
        let error = locks.mutex("k").wait(SECOND / 20).acquire().await.unwrap_err();
        assert!(matches!(error, AcquireError::TimedOut { .. }), "{error:?}");
        guard.release().await.unwrap();
    });
}

/// The lost signal comes before the timers of the manager's runtime end.
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
        assert!(matches!(error, AcquireError::ShutDown { .. }), "{error:?}");
        let error = block_on(guard.release()).unwrap_err();
        assert!(matches!(error, ReleaseError::Lost { why: Loss::ShutDown, .. }), "{error:?}");
    }
}
