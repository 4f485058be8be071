//! What an annotated function does.
use lock_runtime::{LockError, LockManager, distributed_lock};

#[distributed_lock(key = "order:<id>", wait = "5s", manager = locks)]
async fn place(locks: &LockManager, id: u64, name: String) -> Result<String, LockError> {
    tokio::task::yield_now().await;
    Ok(name)
}

#[tokio::test]
async fn basic() {
    let locks = LockManager::connect("memory:").await.unwrap();
    assert_eq!(place(&locks, 3, "x".into()).await.unwrap(), "x");
}
