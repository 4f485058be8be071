//! What a user sees of locks in metrics and traces.
#![allow(missing_docs)]

use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lock_runtime::LockManager;

const MS: Duration = Duration::from_millis(1);

/// One of everything: a grant, a hand-off, a time-out, a loss.
async fn some_locks() {
    let locks = LockManager::connect("memory:").await.unwrap();
    let orders = || locks.mutex("order:17").name("orders");
    // The first hold has one token, for nobody waits; the one behind it is made for those who do.
    let (first, second, third) = tokio::join!(
        async { drop(orders().acquire().await.unwrap()) },
        async { drop(orders().acquire().await.unwrap()) },
        orders().acquire(),
    );
    let ((), (), guard) = (first, second, third.unwrap());
    assert!(orders().wait(MS).acquire().await.is_err());
    locks.force_release("order:17").await.unwrap();
    assert!(guard.release().await.is_err());
}

#[cfg(feature = "metrics")]
#[test]
fn metrics_count_outcomes_by_the_users_name_and_never_by_key() {
    use metrics_util::debugging::{DebugValue, DebuggingRecorder};

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
    assert_eq!(count("lock_acquire_seconds", Some("handed_on")), 1.0, "{text}");
    assert_eq!(count("lock_acquire_seconds", Some("timed_out")), 1.0, "{text}");
    assert_eq!(count("lock_acquire_seconds", Some("orders")), 4.0, "{text}");
    assert_eq!(count("lock_hold_seconds", Some("orders")), 3.0, "{text}");
    assert_eq!(count("lock_handoffs_total", None), 1.0, "{text}");
    assert_eq!(count("lock_lost_total", None), 1.0, "{text}");
    assert_eq!(count("lock_waiters", None), 0.0, "{text}");
}

#[derive(Clone, Default)]
struct Buffer(Arc<Mutex<Vec<u8>>>);

impl io::Write for Buffer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn spans_have_key_wait_token_and_outcome() {
    let buffer = Buffer::default();
    let writer = buffer.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(tracing_subscriber::filter::LevelFilter::DEBUG)
        .with_ansi(false)
        .with_writer(move || writer.clone())
        .finish();
    tracing::subscriber::with_default(subscriber, || {
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        runtime.block_on(some_locks());
    });
    let text = String::from_utf8(buffer.0.lock().unwrap().clone()).unwrap();
    let line = |what: &str| {
        let found = text.lines().find(|line| line.contains("lock_acquire{") && line.contains(what));
        found.unwrap_or_else(|| panic!("no {what} in {text}")).to_owned()
    };
    let granted = line("outcome=\"granted\"");
    assert!(
        granted.contains("key=order:17") && granted.contains("wait=") && granted.contains("token="),
        "{granted}"
    );
    assert!(line("outcome=\"timed_out\"").contains("wait=For(1ms)"));
    line("outcome=\"handed_on\"");
    assert!(text.lines().any(|line| line.contains("WARN") && line.contains("lock lost")), "{text}");
}
