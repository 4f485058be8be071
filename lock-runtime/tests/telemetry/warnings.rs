//! Tests of the warnings of locks.
#![cfg(feature = "redis")]

use std::time::Duration;

use crate::captured::captured;
use lock_runtime::LockManager;
use lock_runtime::testing::{manager_on, memory_manager, memory_store};
use tokio::time::timeout;
use tracing_subscriber::filter::LevelFilter;

/// The store does not answer: this is logged once, however often it is asked.
async fn a_store_that_is_down() {
    // Nothing listens at port 1.
    let locks = LockManager::connect_lazy("redis://127.0.0.1:1").unwrap();
    for _ in 0..3 {
        let waiter = locks.mutex("down").wait(Duration::from_millis(200)).acquire();
        assert!(waiter.await.is_err());
    }
}

/// The future of `block_on` has no task id, and the warning is logged all the same.
async fn a_task_that_waits_for_itself() {
    let locks = memory_manager();
    let _guard = locks.mutex("own").acquire().await.unwrap();
    assert!(locks.mutex("own").wait(Duration::from_millis(10)).acquire().await.is_err());
    // Logged once, when the default wait is over.
    let locks = manager_on(LockManager::builder().default_wait(Duration::from_millis(10)), memory_store());
    let _guard = locks.mutex("own").acquire().await.unwrap();
    let waits = locks.mutex("own").wait_forever().acquire();
    assert!(timeout(Duration::from_millis(100), waits).await.is_err());
}

/// Calls side by side in one task get the lock in turn, without a warning.
async fn calls_side_by_side() {
    let locks = memory_manager();
    let one = async || {
        let _guard = locks.mutex("shared").acquire().await.unwrap();
        tokio::task::yield_now().await;
    };
    tokio::join!(one(), one(), one());
}

/// The warning says why.
async fn a_lost_lock() {
    let locks = memory_manager();
    let guard = locks.mutex("lost").acquire().await.unwrap();
    assert!(locks.force_release("lost").await.unwrap());
    assert!(guard.is_lost());
}

#[test]
fn each_trouble_is_told_once_with_its_cause() {
    let text = captured(LevelFilter::WARN, || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            a_store_that_is_down().await;
            a_task_that_waits_for_itself().await;
            calls_side_by_side().await;
            a_lost_lock().await;
        });
    });
    let lines = |what: &str| text.lines().filter(|line| line.contains(what)).collect::<Vec<_>>();
    let down = lines("the lock store fails");
    assert!(down.len() == 1 && down[0].contains("127.0.0.1:1"), "{text}");
    assert_eq!(lines("guard.reenter()").len(), 2, "{text}");
    assert!(lines("key=shared").is_empty(), "{text}");
    let lost = lines("lock lost");
    assert!(lost.len() == 1 && lost[0].contains("key=lost") && lost[0].contains("is gone"), "{text}");
}

#[cfg(feature = "macros")]
mod keys_without_a_template {
    use lock_runtime::{LockError, distributed_lock, with_default};

    use super::*;

    #[distributed_lock(key = text, wait = "none")]
    async fn one(text: &str) -> Result<(), LockError> {
        Ok(())
    }

    #[distributed_lock(keys = texts, prefix = format!("{}", texts[0]), wait = "none")]
    async fn several(texts: &[&str]) -> Result<(), LockError> {
        Ok(())
    }

    /// The text may be data, and is locked as it is.
    #[test]
    fn a_computed_key_that_looks_like_a_template_is_told_once() {
        let text = captured(LevelFilter::WARN, || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            let run = async {
                for text in ["order:42", "a<b", "order:<id>", "order:<order.id>"] {
                    one(text).await.unwrap();
                }
                several(&["a:", "b"]).await.unwrap();
                several(&["<a>:", "b"]).await.unwrap();
            };
            runtime.block_on(async { with_default(memory_manager(), run).await });
        });
        let lines: Vec<_> = text.lines().collect();
        let function = |name| format!("keys_without_a_template::{name}");
        assert_eq!(lines.len(), 3, "{text}");
        assert!(lines[0].contains("<id>") && lines[0].contains(&function("one")), "{text}");
        assert!(lines[0].contains("key = \"order:<id>\""), "{text}");
        assert!(lines[1..].iter().all(|line| line.contains(&function("several"))), "{text}");
    }
}
