//! A user's subscriber that panics at every warning. One test in its process: the interest of call sites is cached per
//! process.
#![allow(missing_docs)]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use lock_runtime::testing::memory_manager;
use tokio::time::sleep;

const SECOND: Duration = Duration::from_secs(1);

#[derive(Clone, Default)]
struct PanickingSubscriber(Arc<AtomicUsize>);

impl tracing::Subscriber for PanickingSubscriber {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        *metadata.level() <= tracing::Level::WARN
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

    fn event(&self, _: &tracing::Event<'_>) {
        self.0.fetch_add(1, Ordering::SeqCst);
        panic!("subscriber bug");
    }

    fn enter(&self, _: &tracing::span::Id) {}

    fn exit(&self, _: &tracing::span::Id) {}
}

#[tokio::test(start_paused = true)]
async fn a_loss_that_cannot_be_told_takes_no_other_lock_with_it() {
    let panicking = PanickingSubscriber::default();
    let _subscriber = tracing::subscriber::set_default(panicking.clone());
    let locks = memory_manager();
    let other = locks.mutex("other").acquire().await.unwrap();
    let guards = [
        locks.mutex("a").lease(SECOND).acquire().await.unwrap(),
        locks.mutex("b").lease(SECOND).acquire().await.unwrap(),
    ];
    sleep(60 * SECOND).await;
    assert!(guards.iter().all(lock_runtime::LockGuard::is_lost));
    assert!(panicking.0.load(Ordering::SeqCst) >= 2, "it should have been told");
    assert!(!other.is_lost());
    drop(locks.mutex("a").acquire().await.unwrap());
}
