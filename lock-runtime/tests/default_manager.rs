//! The default manager. There is one per process, so this is a separate program with a single test.
#![allow(missing_docs)]

use lock_runtime::{LockError, LockManager, default_manager, set_default, with_default};

#[tokio::test]
async fn the_default_is_named_or_refused_and_can_be_overridden_for_a_task() {
    assert!(default_manager().is_none());
    let missing = lock_runtime::__private::lock(lock_runtime::Kind::Mutex, "k").acquire().await.unwrap_err();
    assert!(matches!(&missing, LockError::Misconfigured { reason } if reason.contains("set_default")));
    let first = LockManager::connect("memory:").await.unwrap();
    let second = LockManager::connect("memory:").await.unwrap();
    assert!(set_default(first.clone()).is_none());
    let here = || default_manager().unwrap().id().to_owned();
    assert_eq!(here(), first.id());
    with_default(second.clone(), async {
        assert_eq!(here(), second.id());
        let spawned = tokio::spawn(async { default_manager().unwrap().id().to_owned() }).await.unwrap();
        assert_eq!(spawned, first.id(), "tasks do not inherit it");
    })
    .await;
    assert_eq!(set_default(second).unwrap().id(), first.id());
}
