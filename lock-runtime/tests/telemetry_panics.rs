//! A user's subscriber that panics. One test in its process: the interest of call sites is cached per process.
#![allow(missing_docs)]

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use lock_runtime::testing::memory_manager;
use tokio::time::sleep;

const HOUR: Duration = Duration::from_secs(3600);

/// A subscriber which panics once, in the event of a lock's acquisition.
struct PanickingSubscriber(AtomicBool);

impl tracing::Subscriber for PanickingSubscriber {
    fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        let is_acquisition = event.metadata().fields().field("took").is_some();
        assert!(!(is_acquisition && self.0.swap(false, Ordering::SeqCst)), "subscriber bug");
    }

    fn enter(&self, _: &tracing::span::Id) {}

    fn exit(&self, _: &tracing::span::Id) {}
}

#[tokio::test(start_paused = true)]
async fn a_panicking_subscriber_leaks_no_hold() {
    let _subscriber = tracing::subscriber::set_default(PanickingSubscriber(AtomicBool::new(true)));
    let locks = memory_manager();
    let task = tokio::spawn({
        let locks = locks.clone();
        async move { locks.mutex("k").acquire().await }
    });
    assert!(task.await.is_err(), "the subscriber should have panicked");
    sleep(HOUR).await;
    assert!(!locks.status("k").await.unwrap().is_locked(), "the key is locked after an hour");
}
