//! The metrics of locks that a user sees.
#![cfg(feature = "metrics")]

use crate::captured::alone;
use crate::some_locks::some_locks;

#[test]
fn metrics_count_outcomes_by_the_users_name_and_never_by_key() {
    use metrics_util::debugging::{DebugValue, DebuggingRecorder};

    let _alone = alone();
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    metrics::with_local_recorder(&recorder, || {
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        runtime.block_on(some_locks());
    });
    let seen = snapshotter.snapshot().into_vec();
    let text = format!("{seen:?}");
    assert!(!text.contains("order:17"), "{text}");
    let count = |name: &str, outcome: Option<&str>| -> f64 {
        seen.iter()
            .filter(|(key, ..)| key.key().name() == name)
            .filter(|(key, ..)| outcome.is_none_or(|o| key.key().labels().any(|label| label.value() == o)))
            .map(|(.., value)| match value {
                DebugValue::Counter(n) => *n as f64,
                DebugValue::Gauge(n) => n.0,
                DebugValue::Histogram(values) => values.len() as f64,
            })
            .sum()
    };
    assert_eq!(count("lock_acquire_seconds", Some("granted")), 2.0, "{text}");
    assert_eq!(count("lock_acquire_seconds", Some("handed_off")), 1.0, "{text}");
    assert_eq!(count("lock_acquire_seconds", Some("timed_out")), 1.0, "{text}");
    assert_eq!(count("lock_acquire_seconds", Some("orders")), 4.0, "{text}");
    assert_eq!(count("lock_hold_seconds", Some("orders")), 3.0, "{text}");
    assert_eq!(count("lock_handoffs_total", None), 1.0, "{text}");
    assert_eq!(count("lock_lost_total", None), 1.0, "{text}");
    assert_eq!(count("lock_waiters", None), 0.0, "{text}");
}

/// Collects the targets of all metrics.
#[derive(Default)]
struct Targets(std::sync::Mutex<std::collections::BTreeSet<String>>);

impl Targets {
    fn note(&self, metadata: &metrics::Metadata<'_>) {
        self.0.lock().unwrap().insert(metadata.target().to_owned());
    }
}

impl metrics::Recorder for Targets {
    fn describe_counter(&self, _: metrics::KeyName, _: Option<metrics::Unit>, _: metrics::SharedString) {}
    fn describe_gauge(&self, _: metrics::KeyName, _: Option<metrics::Unit>, _: metrics::SharedString) {}
    fn describe_histogram(&self, _: metrics::KeyName, _: Option<metrics::Unit>, _: metrics::SharedString) {}

    fn register_counter(&self, _: &metrics::Key, metadata: &metrics::Metadata<'_>) -> metrics::Counter {
        self.note(metadata);
        metrics::Counter::noop()
    }

    fn register_gauge(&self, _: &metrics::Key, metadata: &metrics::Metadata<'_>) -> metrics::Gauge {
        self.note(metadata);
        metrics::Gauge::noop()
    }

    fn register_histogram(&self, _: &metrics::Key, metadata: &metrics::Metadata<'_>) -> metrics::Histogram {
        self.note(metadata);
        metrics::Histogram::noop()
    }
}

#[test]
fn metrics_are_found_by_the_name_of_the_crate() {
    let _alone = alone();
    let targets = Targets::default();
    metrics::with_local_recorder(&targets, || {
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        runtime.block_on(some_locks());
    });
    let found = targets.0.lock().unwrap();
    assert!(
        !found.is_empty() && found.iter().all(|target| target.starts_with("lock_runtime::")),
        "{found:?}"
    );
}
