//! A few locks whose traces and metrics are looked at.

use std::time::Duration;

use lock_runtime::LockManager;

const MS: Duration = Duration::from_millis(1);

/// One of everything: a grant, a hand-off, a time-out, a loss.
pub(crate) async fn some_locks() {
    let locks = LockManager::connect("memory:").await.unwrap();
    let orders = || locks.mutex("order:17").name("orders");
    // The first hold has one token, for nobody waits; the one behind it is made for those who do.
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
