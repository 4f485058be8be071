//! [`in_current_scope`]: takes the scope of a lock into another task.

use std::future::Future;

use lock_engine::scope::{Scope, Scoped};

/// Runs `future` in the scope of the calling code, wherever it is polled: a task spawned with it
/// re-enters the locks of its spawner.
///
/// The scope does not keep the spawner's locks: once they are released, the task waits for them
/// like any other.
///
/// Cancel safe if `future` is.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use lock_runtime::{LockManager, in_current_scope};
///
/// let locks = LockManager::connect("memory:").await?;
/// let inner = locks.clone();
/// locks
///     .mutex("order:42")
///     .with(async |_| {
///         let child = in_current_scope(async move { inner.mutex("order:42").try_acquire().await });
///         let entered = tokio::spawn(child).await.unwrap().unwrap();
///         assert!(entered.is_some(), "the same lock, entered once more");
///     })
///     .await?;
/// # Ok(()) }
/// ```
pub fn in_current_scope<F: Future>(future: F) -> impl Future<Output = F::Output> {
    Scoped::new(Scope::current(), future)
}
