//! A user's subscriber that panics leaks no lock.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use crate::captured::alone;
use lock_core::store::{BoxFuture, Forward, LockStore, RenewRequest, Renewed, StoreError, StoreErrorKind};
use lock_runtime::testing::{manager_on, memory_manager, memory_store};
use lock_runtime::{LockGuard, LockManager};
use tokio::time::sleep;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Metadata, Subscriber};

const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3600);

/// A subscriber that panics at the first events down to `level` that contain `words`.
#[derive(Clone)]
struct Panics {
    level: Level,
    words: &'static str,
    left: Arc<AtomicUsize>,
    count: Arc<AtomicUsize>,
}

impl Panics {
    fn at(level: Level, words: &'static str, times: usize) -> Self {
        Self { level, words, left: Arc::new(AtomicUsize::new(times)), count: Arc::default() }
    }

    /// Returns how often it has panicked.
    fn count(&self) -> usize {
        self.count.load(Ordering::SeqCst)
    }

    fn run(&self, test: impl Future<Output = ()>) {
        let _alone = alone();
        tracing::subscriber::with_default(self.clone(), || {
            let mut runtime = tokio::runtime::Builder::new_current_thread();
            runtime.enable_time().start_paused(true).build().unwrap().block_on(test);
        });
    }
}

/// Whether an event's message has these words.
struct Message(&'static str, bool);

impl Visit for Message {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        self.1 |= field.name() == "message" && format!("{value:?}").contains(self.0);
    }
}

impl Subscriber for Panics {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= self.level
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut message = Message(self.words, false);
        event.record(&mut message);
        let one_less = |left: usize| left.checked_sub(1);
        if message.1 && self.left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, one_less).is_ok() {
            self.count.fetch_add(1, Ordering::SeqCst);
            panic!("subscriber bug");
        }
    }

    fn enter(&self, _: &tracing::span::Id) {}

    fn exit(&self, _: &tracing::span::Id) {}
}

#[test]
fn a_panicking_subscriber_leaks_no_hold() {
    let panics = Panics::at(Level::TRACE, "acquire", 1);
    panics.run(async {
        let locks = memory_manager();
        let task = tokio::spawn({
            let locks = locks.clone();
            async move { locks.mutex("k").acquire().await }
        });
        assert!(task.await.is_err(), "the subscriber should have panicked");
        sleep(HOUR).await;
        assert!(!locks.status("k").await.unwrap().is_locked(), "the key is locked after an hour");
    });
}

#[test]
fn a_loss_that_cannot_be_told_takes_no_other_lock_with_it() {
    let panics = Panics::at(Level::WARN, "", usize::MAX);
    panics.run(async {
        let locks = memory_manager();
        let other = locks.mutex("other").acquire().await.unwrap();
        let guards = [
            locks.mutex("a").lease(SECOND).acquire().await.unwrap(),
            locks.mutex("b").lease(SECOND).acquire().await.unwrap(),
        ];
        sleep(60 * SECOND).await;
        assert!(guards.iter().all(LockGuard::is_lost));
        assert!(panics.count() >= 2, "it should have been told");
        assert!(!other.is_lost());
        drop(locks.mutex("a").acquire().await.unwrap());
    });
}

#[test]
fn a_failed_renewal_that_cannot_be_told_loses_no_other_lock_of_the_call() {
    for words in ["renewal failed", "the lock store fails", "the lock store answers again"] {
        let panics = Panics::at(Level::DEBUG, words, 1);
        panics.run(async {
            let store = Arc::new(FailsOnce { inner: memory_store(), keep: AtomicBool::new(false) });
            let locks = manager_on(LockManager::builder().lease(3 * SECOND), Arc::clone(&store) as _);
            let mut guards = Vec::new();
            for n in 0..10 {
                guards.push(locks.mutex(format!("k{n}")).acquire().await.unwrap());
            }
            store.keep.store(true, Ordering::SeqCst);
            sleep(6 * SECOND).await;
            assert_eq!(panics.count(), 1, "it should have said that {words}");
            assert_eq!(guards.iter().filter(|guard| guard.is_lost()).count(), 0, "{words}");
        });
    }
}

/// The permit goes on to those that wait in line behind it.
#[test]
fn a_caller_that_panics_with_its_permits_does_not_hold_up_the_line() {
    let panics = Panics::at(Level::DEBUG, "acquire", 1);
    panics.run(async {
        let locks = memory_manager();
        let permits = locks.semaphore("s");
        assert!(permits.try_set_permits(1).await.unwrap());
        let callers = (0..3).map(|_| {
            let permits = permits.clone();
            tokio::spawn(async move { drop(permits.acquire().await.unwrap()) })
        });
        let mut panicked = 0;
        for caller in callers.collect::<Vec<_>>() {
            panicked += usize::from(caller.await.is_err());
        }
        assert_eq!((panicked, panics.count()), (1, 1));
        assert!(permits.acquire().await.is_ok());
    });
}

/// A memory store that fails one renewal.
#[derive(Debug)]
struct FailsOnce {
    inner: Arc<dyn LockStore>,
    keep: AtomicBool,
}

impl Forward for FailsOnce {
    fn inner(&self) -> &dyn LockStore {
        &*self.inner
    }

    fn renew(&self, request: Arc<RenewRequest>) -> BoxFuture<Result<Vec<Renewed>, StoreError>> {
        if self.keep.swap(false, Ordering::SeqCst) {
            return Box::pin(async { Err(StoreError::new(StoreErrorKind::Unreachable, "down")) });
        }
        self.inner.renew(request)
    }
}
