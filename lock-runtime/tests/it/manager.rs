//! Creating, sharing and shutting down managers.

use std::sync::Arc;
use std::time::{Duration, Instant};

use lock_runtime::testing::{manager_on, memory_store};
use lock_runtime::{ConnectError, LockError, LockKey, LockManager, TokenRetention};

const SECOND: Duration = Duration::from_secs(1);

fn reason(error: &ConnectError) -> String {
    assert!(matches!(error, ConnectError::Misconfigured { .. }), "{error:?}");
    error.to_string()
}

#[tokio::test]
async fn a_url_of_no_known_kind_names_what_is_accepted_and_not_the_password() {
    let error = LockManager::connect("http://user:secret@example.com").await.unwrap_err();
    let text = reason(&error);
    assert!(text.contains("redis://") && text.contains("memory:") && !text.contains("secret"), "{text}");
}

#[tokio::test]
async fn settings_that_cannot_work_are_refused() {
    let ms = Duration::from_millis;
    let builders = [
        LockManager::builder().lease(ms(50)),
        LockManager::builder().call_timeout(Duration::ZERO),
        LockManager::builder().fallback_poll(Duration::ZERO),
        LockManager::builder().max_waiters(0),
        LockManager::builder().token_retention(TokenRetention::For(ms(999))),
    ];
    for builder in builders {
        reason(&builder.connect("memory:").await.unwrap_err());
    }
}

#[test]
fn outside_of_a_runtime_it_says_what_to_do() {
    let error = LockManager::connect_lazy("memory:").unwrap_err();
    assert!(reason(&error).contains("dedicated_thread"));
}

#[tokio::test]
async fn requests_that_cannot_work_are_refused() {
    let locks = LockManager::connect("memory:").await.unwrap();
    let requests = [
        locks.mutex("k").lease(Duration::from_millis(99)),
        locks.mutex("k").lease(Duration::from_secs(367 * 24 * 3600)),
        locks.mutex("k").max_hold(Duration::ZERO),
        locks.mutex("k").max_hold(SECOND).min_hold(2 * SECOND),
        locks.mutex("k").lease(SECOND).min_hold(2 * SECOND),
    ];
    for request in requests {
        let error = request.acquire().await.unwrap_err();
        assert!(matches!(error, LockError::Misconfigured { .. }), "{error:?}");
    }
    let error = locks.mutex("a{b").acquire().await.unwrap_err();
    assert!(matches!(error, LockError::InvalidKey(_)), "{error:?}");
    let error = locks.status("").await.unwrap_err();
    assert!(matches!(error, LockError::InvalidKey(_)), "{error:?}");
}

#[tokio::test]
async fn memory_stores_are_fresh_unless_they_are_named() {
    let fresh =
        [LockManager::connect("memory:").await.unwrap(), LockManager::connect("memory:").await.unwrap()];
    let _a = fresh[0].mutex("k").acquire().await.unwrap();
    assert!(fresh[1].mutex("k").try_acquire().await.unwrap().is_some());
    let named =
        [LockManager::connect("memory:m").await.unwrap(), LockManager::connect("memory:m").await.unwrap()];
    let _b = named[0].mutex("k").acquire().await.unwrap();
    assert!(named[1].mutex("k").try_acquire().await.unwrap().is_none());
    let prefixed = LockManager::builder().prefix("other:").connect("memory:m").await.unwrap();
    assert!(prefixed.mutex("k").try_acquire().await.unwrap().is_some());
}

#[tokio::test]
async fn the_same_task_does_not_enter_again_through_another_manager() {
    let a = LockManager::connect("memory:two").await.unwrap();
    let b = LockManager::connect("memory:two").await.unwrap();
    a.mutex("k").with(async |_| assert!(b.mutex("k").try_acquire().await.unwrap().is_none())).await.unwrap();
}

#[test]
fn when_the_managers_runtime_is_gone_acquires_fail_and_guards_are_lost() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let other = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let locks = LockManager::builder().runtime(runtime.handle().clone()).connect_lazy("memory:").unwrap();
    let guard = other.block_on(locks.mutex("k").acquire()).unwrap();
    let waiter = other.spawn({
        let locks = locks.clone();
        async move { locks.mutex("k").wait_forever().acquire().await }
    });
    other.block_on(tokio::task::yield_now());
    assert!(!guard.is_lost());
    drop(runtime);
    assert!(guard.is_lost());
    let error = other.block_on(waiter).unwrap().unwrap_err();
    assert!(matches!(error, LockError::ShutDown { .. }), "{error:?}");
    let error = other.block_on(locks.mutex("other").acquire()).unwrap_err();
    assert!(matches!(error, LockError::ShutDown { .. }), "{error:?}");
    drop(guard);
}

#[test]
fn a_dedicated_thread_renews_while_the_programs_executor_is_blocked() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let locks =
            LockManager::builder().lease(2 * SECOND).dedicated_thread().connect("memory:").await.unwrap();
        let guard = locks.mutex("k").acquire().await.unwrap();
        let start = Instant::now();
        std::thread::sleep(4 * SECOND);
        assert!(start.elapsed() >= 4 * SECOND);
        assert!(!guard.is_lost());
        guard.release().await.unwrap();
    });
}

#[test]
fn a_guard_may_be_dropped_outside_of_the_runtime() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let locks = runtime.block_on(LockManager::connect("memory:")).unwrap();
    let guard = runtime.block_on(locks.mutex("k").acquire()).unwrap();
    std::thread::spawn(move || drop(guard)).join().unwrap();
    runtime.block_on(async {
        assert!(locks.mutex("k").try_acquire().await.unwrap().is_some());
    });
}

#[tokio::test(start_paused = true)]
async fn a_guard_keeps_its_lock_when_its_manager_is_dropped() {
    let store = memory_store();
    let locks = manager_on(LockManager::builder().lease(SECOND / 2), Arc::clone(&store));
    let rival = manager_on(LockManager::builder(), store);
    let guard = locks.mutex("k").acquire().await.unwrap();
    drop(locks);
    tokio::time::sleep(SECOND).await;
    assert!(!guard.is_lost());
    assert!(rival.mutex("k").try_acquire().await.unwrap().is_none());
    drop(guard);
    assert!(rival.mutex("k").wait(SECOND).acquire().await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_cuts_off_what_is_still_held_and_says_so() {
    let locks = LockManager::connect("memory:").await.unwrap();
    let guard = locks.mutex("k").acquire().await.unwrap();
    let error = locks.shutdown(SECOND).await.unwrap_err();
    assert_eq!(error.cut_off(), 1);
    assert!(guard.is_lost());
    assert!(!locks.status(LockKey::new("k").unwrap()).await.unwrap().is_locked());
}

#[tokio::test(start_paused = true)]
async fn reenter_keeps_the_lock_until_every_guard_is_gone() {
    let locks = LockManager::connect("memory:").await.unwrap();
    let outer = locks.mutex("k").acquire().await.unwrap();
    let inner = outer.reenter().unwrap();
    assert_eq!(inner.fencing_token(), outer.fencing_token());
    outer.release().await.unwrap();
    assert!(!inner.is_lost() && locks.status("k").await.unwrap().is_locked());
    inner.release().await.unwrap();
    assert!(!locks.status("k").await.unwrap().is_locked());
}

#[tokio::test(start_paused = true)]
async fn nested_leases_never_shorten() {
    let locks = LockManager::connect("memory:").await.unwrap();
    let outer = locks.mutex("k").lease(10 * SECOND).acquire().await.unwrap();
    let shorter = outer.scope(locks.mutex("k").lease(SECOND).acquire()).await.unwrap();
    assert!(outer.remaining() > 9 * SECOND);
    drop(shorter);
    let longer = outer.scope(locks.mutex("k").lease(60 * SECOND).acquire()).await.unwrap();
    assert!(outer.remaining() > 59 * SECOND);
    drop(longer);
    let remaining = locks.status("k").await.unwrap().remaining.unwrap();
    assert!(remaining > 59 * SECOND, "{remaining:?}");
    // A watchdog call inside a fixed lease is renewed for as long as it lasts.
    let renewed = outer.scope(locks.mutex("k").acquire()).await.unwrap();
    tokio::time::sleep(100 * SECOND).await;
    assert!(!renewed.is_lost());
    drop(renewed);
    tokio::time::sleep(100 * SECOND).await;
    assert!(outer.is_lost(), "the fixed lease ends by itself again");
}

#[tokio::test(start_paused = true)]
async fn a_fixed_lease_inside_a_renewed_hold_keeps_the_watchdog() {
    let locks = LockManager::builder().lease(SECOND).connect("memory:").await.unwrap();
    let outer = locks.mutex("k").acquire().await.unwrap();
    let inner = outer.scope(locks.mutex("k").lease(SECOND).acquire()).await.unwrap();
    tokio::time::sleep(10 * SECOND).await;
    assert!(!inner.is_lost() && !outer.is_lost());
}
