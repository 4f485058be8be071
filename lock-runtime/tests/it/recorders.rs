//! A user's metrics recorder that panics, and the metrics for releases left to their leases,
//! losses, and times of guards.
#![cfg(feature = "metrics")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use lock_core::store::Kind;
use lock_runtime::LockManager;
use lock_runtime::testing::memory_manager;
use metrics::{
    Counter, CounterFn, Gauge, GaugeFn, Histogram, HistogramFn, Key, KeyName, Metadata, SharedString, Unit,
};
use tokio::time::sleep;

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3600);

/// A recorder that panics at the first event of one metric, and counts the others.
#[derive(Clone)]
struct Recorder {
    panics_at: &'static str,
    armed: Arc<AtomicBool>,
    failed_releases: Arc<AtomicU64>,
    losses: Arc<AtomicU64>,
}

struct Panic(Arc<AtomicBool>);

impl Panic {
    fn once(&self) {
        assert!(!self.0.swap(false, Ordering::SeqCst), "recorder bug");
    }
}

impl CounterFn for Panic {
    fn increment(&self, _: u64) {
        self.once();
    }

    fn absolute(&self, _: u64) {}
}

impl GaugeFn for Panic {
    fn increment(&self, _: f64) {
        self.once();
    }

    fn decrement(&self, _: f64) {
        self.once();
    }

    fn set(&self, _: f64) {}
}

impl HistogramFn for Panic {
    fn record(&self, _: f64) {
        self.once();
    }
}

impl metrics::Recorder for Recorder {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        match key.name() {
            name if name == self.panics_at => Counter::from_arc(Arc::new(Panic(Arc::clone(&self.armed)))),
            "lock_release_failed_total" => Counter::from_arc(Arc::clone(&self.failed_releases)),
            "lock_lost_total" => Counter::from_arc(Arc::clone(&self.losses)),
            _ => Counter::noop(),
        }
    }

    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        if key.name() == self.panics_at {
            Gauge::from_arc(Arc::new(Panic(Arc::clone(&self.armed))))
        } else {
            Gauge::noop()
        }
    }

    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
        if key.name() == self.panics_at {
            Histogram::from_arc(Arc::new(Panic(Arc::clone(&self.armed))))
        } else {
            Histogram::noop()
        }
    }
}

impl Recorder {
    fn panicking_at(panics_at: &'static str) -> Self {
        let armed = Arc::new(AtomicBool::new(true));
        Self { panics_at, armed, failed_releases: Arc::default(), losses: Arc::default() }
    }

    fn has_panicked(&self) -> bool {
        !self.armed.load(Ordering::SeqCst)
    }

    fn run(&self, test: impl Future<Output = ()>) {
        metrics::with_local_recorder(self, || {
            let mut runtime = tokio::runtime::Builder::new_current_thread();
            runtime.enable_time().start_paused(true).build().unwrap().block_on(test);
        });
    }
}

/// The process does not end either if the guard is dropped during another panic.
#[test]
fn a_panic_when_a_guard_goes_leaks_no_hold() {
    for in_a_panic in [false, true] {
        let recorder = Recorder::panicking_at("lock_hold_seconds");
        recorder.run(async {
            let locks = memory_manager();
            let task = tokio::spawn({
                let locks = locks.clone();
                async move {
                    let _guard = locks.mutex("k").acquire().await.unwrap();
                    assert!(!in_a_panic, "the body's own");
                }
            });
            assert_eq!(task.await.is_err(), in_a_panic);
            assert!(recorder.has_panicked());
            sleep(HOUR).await;
            assert!(!locks.status("k").await.unwrap().is_locked(), "locked after an hour");
        });
    }
}

#[test]
fn a_panic_when_a_waiter_comes_or_goes_leaves_no_waiter() {
    for at_the_end in [false, true] {
        let recorder = Recorder::panicking_at("lock_waiters");
        recorder.armed.store(false, Ordering::SeqCst);
        recorder.run(async {
            let locks = memory_manager();
            let held = locks.mutex("k").acquire().await.unwrap();
            recorder.armed.store(!at_the_end, Ordering::SeqCst);
            let waiter = tokio::spawn({
                let locks = locks.clone();
                async move { locks.mutex("k").wait_forever().acquire().await.map(drop) }
            });
            sleep(SECOND).await;
            recorder.armed.store(at_the_end, Ordering::SeqCst);
            waiter.abort();
            let _ = waiter.await;
            assert!(recorder.has_panicked());
            drop(held);
            sleep(SECOND).await;
            assert_eq!(lock_runtime::testing::leftovers(&locks).keys, 0, "at the end: {at_the_end}");
        });
    }
}

#[test]
fn a_panic_at_a_loss_leaves_the_key_usable() {
    let recorder = Recorder::panicking_at("lock_lost_total");
    recorder.run(async {
        let locks = memory_manager();
        let _guard = locks.mutex("k").acquire().await.unwrap();
        let waiter = tokio::spawn({
            let locks = locks.clone();
            async move { locks.mutex("k").wait_forever().acquire().await.map(drop) }
        });
        sleep(MS).await;
        assert!(locks.force_release("k").await.unwrap());
        assert!(recorder.has_panicked());
        sleep(SECOND).await;
        assert!(waiter.is_finished(), "the waiter was not served");
        drop(locks.mutex("k").acquire().await.unwrap());
    });
}

#[test]
fn a_panic_in_the_timekeeper_leaves_the_manager_usable() {
    let recorder = Recorder::panicking_at("lock_lost_total");
    recorder.run(async {
        let locks = memory_manager();
        let other = locks.mutex("other").acquire().await.unwrap();
        let _guard = locks.mutex("k").lease(SECOND).acquire().await.unwrap();
        sleep(HOUR).await;
        assert!(recorder.has_panicked());
        assert!(!other.is_lost());
        drop(locks.mutex("k").acquire().await.unwrap());
    });
}

#[test]
fn what_is_left_to_its_lease_is_counted() {
    let recorder = Recorder::panicking_at("");
    let failed = || recorder.failed_releases.load(Ordering::SeqCst);
    recorder.run(async {
        let locks = LockManager::builder().max_pending_releases(0).connect("memory:").await.unwrap();
        drop(locks.mutex("a").acquire().await.unwrap());
        assert_eq!(failed(), 1);
        let guard = locks.mutex("b").max_hold(SECOND).acquire().await.unwrap();
        sleep(2 * SECOND).await;
        assert!(guard.is_lost());
        drop(guard);
        assert_eq!(failed(), 2);
    });
}

#[test]
fn a_release_that_ends_with_its_runtime_is_counted() {
    let recorder = Recorder::panicking_at("");
    recorder.run(async {});
    metrics::with_local_recorder(&recorder, || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        // Like a `main` that ends without a shutdown.
        let (locks, guard) = runtime.block_on(async {
            let locks = LockManager::connect("memory:").await.unwrap();
            let guard = locks.mutex("k").acquire().await.unwrap();
            (locks, guard)
        });
        // Outside the runtime, which no longer runs the release.
        drop(guard);
        drop(runtime);
        assert_eq!(recorder.failed_releases.load(Ordering::SeqCst), 1);
        let other = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let start = std::time::Instant::now();
        other.block_on(locks.shutdown(HOUR)).unwrap();
        assert!(start.elapsed() < HOUR / 10);
        assert_eq!(lock_runtime::testing::leftovers(&locks).keys, 0);
    });
}

#[test]
fn a_loss_is_counted_once() {
    let recorder = Recorder::panicking_at("");
    recorder.run(async {
        let locks = memory_manager();
        let guard = locks.mutex("k").max_hold(SECOND).acquire().await.unwrap();
        guard.lost().await;
        sleep(SECOND).await;
        drop(guard);
        sleep(HOUR).await;
        assert_eq!(recorder.losses.load(Ordering::SeqCst), 1);
    });
}

/// The recorder panics when a call has re-entered a hold, or a reader has joined others.
#[test]
fn a_panic_when_a_call_enters_a_hold_leaves_no_entry() {
    for kind in [Kind::Mutex, Kind::Read] {
        let recorder = Recorder::panicking_at("lock_waiters");
        recorder.armed.store(false, Ordering::SeqCst);
        recorder.run(async {
            let locks = memory_manager();
            let lock = |kind| match kind {
                Kind::Read => locks.read("k"),
                _ => locks.mutex("k"),
            };
            let outer = lock(kind).acquire().await.unwrap();
            recorder.armed.store(true, Ordering::SeqCst);
            let inner = tokio::spawn(outer.scope(lock(kind).acquire()));
            assert!(inner.await.is_err() && recorder.has_panicked());
            outer.release().await.unwrap();
            let next = match kind {
                Kind::Read => locks.write("k"),
                _ => locks.mutex("k"),
            };
            drop(next.wait(SECOND).acquire().await.unwrap());
            sleep(SECOND).await;
            assert_eq!(lock_runtime::testing::leftovers(&locks).keys, 0, "{kind:?}");
        });
    }
}

/// The metric measures how long a guard was held, not how long the key was.
#[test]
fn an_inner_guards_time_is_its_own() {
    use metrics_util::debugging::{DebugValue, DebuggingRecorder};

    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    metrics::with_local_recorder(&recorder, || {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        runtime.enable_time().start_paused(true).build().unwrap().block_on(async {
            let locks = memory_manager();
            let outer = locks.mutex("k").name("outer").acquire().await.unwrap();
            sleep(10 * SECOND).await;
            let inner = outer.scope(locks.mutex("k").name("inner").acquire()).await.unwrap();
            sleep(SECOND).await;
            drop(inner);
            drop(outer);
            let first = locks.read("k").name("first").acquire().await.unwrap();
            sleep(SECOND / 1000).await;
            let late = locks.read("k").name("late").acquire().await.unwrap();
            assert_eq!(late.fencing_token(), first.fencing_token(), "they share a hold");
            sleep(SECOND).await;
            drop(late);
            sleep(10 * SECOND).await;
            drop(first);
        });
    });
    let seen = snapshotter.snapshot().into_vec();
    let seconds = |name: &str| {
        let of_it = |key: &metrics::Key| {
            key.name() == "lock_hold_seconds" && key.labels().any(|label| label.value() == name)
        };
        let found = seen.iter().find(|(key, ..)| of_it(key.key())).map(|(.., value)| value);
        let Some(DebugValue::Histogram(values)) = found else { panic!("no time of {name}: {seen:?}") };
        values.iter().map(|value| value.round()).collect::<Vec<_>>()
    };
    assert_eq!(seconds("inner"), [1.0]);
    assert_eq!(seconds("outer"), [11.0]);
    assert_eq!(seconds("late"), [1.0]);
    assert_eq!(seconds("first"), [11.0]);
}
