//! A few locks whose traces and metrics the tests check.

use std::time::Duration;

use lock_runtime::LockManager;

const MS: Duration = Duration::from_millis(1);

/// One of everything: a grant, a hand-off, a time-out, a loss.
pub(crate) async fn some_locks() {
    let locks = LockManager::connect("memory:").await.unwrap();
    let orders = || locks.mutex("order:17").name("orders");
    // The first hold has one token, because nobody waits yet; the next one has tokens for the
    // waiters.
    let briefly = async || {
        let guard = orders().acquire().await.unwrap();
        tokio::task::yield_now().await;
        drop(guard);
    };
    let (first, second, third) = tokio::join!(briefly(), briefly(), orders().acquire());
    let ((), (), guard) = (first, second, third.unwrap());
    assert!(orders().wait(MS).acquire().await.is_err());
    locks.force_release("order:17").await.unwrap();
    assert!(guard.release().await.is_err());
}
