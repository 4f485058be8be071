//! The behaviour of annotated functions when they are called.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use lock_runtime::{LockError, LockKey, LockManager, distributed_lock, testing, with_default};
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep};

/// The tests' own error type.
#[derive(Debug)]
enum Refused {
    Lock(LockError),
    Stock,
}

impl From<LockError> for Refused {
    fn from(error: LockError) -> Self {
        Self::Lock(error)
    }
}

async fn is_free(locks: &LockManager, key: &str) -> bool {
    locks.mutex(key).try_acquire().await.unwrap().is_some()
}

mod keys {
    use super::*;

    struct Item {
        sku: String,
    }

    struct Service {
        locks: LockManager,
        tenant: &'static str,
    }

    impl Service {
        #[distributed_lock(
            key = "{<self.tenant>}:<<<items[0].sku>>:<pair.1>:<r#type>:<a>",
            prefix = "shop:",
            manager = self.locks,
            guard = lock
        )]
        async fn place(
            &self,
            items: &[Item],
            pair: (u8, u8),
            r#type: &str,
            (a, _): (u64, Cell<u8>),
        ) -> Result<String, LockError> {
            let _ = (items, pair, r#type, a);
            Ok(lock.key().to_string())
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_template_is_filled_with_the_values_as_they_are() {
        let service = Service { locks: testing::memory_manager(), tenant: "t 1" };
        let items = [Item { sku: "ü:9".into() }];
        let key = service.place(&items, (1, 2), "x", (7, Cell::new(0))).await.unwrap();
        assert_eq!(key, "shop:{t 1}:<ü:9>:2:x:7");
    }

    #[tokio::test(start_paused = true)]
    async fn a_value_that_would_change_the_key_is_refused_by_name() {
        let service = Service { locks: testing::memory_manager(), tenant: "t" };
        for bad in ["", "{", "}", "a\nb"] {
            let items = [Item { sku: bad.into() }];
            let error = service.place(&items, (1, 2), "x", (7, Cell::new(0))).await.unwrap_err();
            assert!(matches!(error, LockError::InvalidKey(_)), "{bad:?}: {error}");
            assert!(error.to_string().contains("<items[0].sku>"), "{bad:?}: {error}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_index_out_of_range_is_an_invalid_key_and_no_panic() {
        let service = Service { locks: testing::memory_manager(), tenant: "t" };
        let error = service.place(&[], (1, 2), "x", (7, Cell::new(0))).await.unwrap_err();
        assert!(error.to_string().contains("<items[0].sku>"), "{error}");
    }

    #[distributed_lock(key = next(counter), prefix = prefix, wait = Duration::from_millis(u64::from(counter.get())))]
    async fn computed(counter: &Cell<u32>, prefix: &str) -> Result<u32, LockError> {
        tokio::task::yield_now().await;
        Ok(counter.get())
    }

    fn next(counter: &Cell<u32>) -> Result<LockKey, lock_runtime::InvalidKey> {
        counter.set(counter.get() + 1);
        LockKey::new(format!("job:{}", counter.get()))
    }

    #[tokio::test(start_paused = true)]
    async fn the_key_is_computed_once_and_before_the_body() {
        let locks = testing::memory_manager();
        let counter = Cell::new(0);
        let held = locks.mutex("p:job:2").acquire().await.unwrap();
        with_default(locks.clone(), async {
            assert_eq!(computed(&counter, "p:").await.unwrap(), 1);
            let error = computed(&counter, "p:").await.unwrap_err();
            assert!(matches!(error, LockError::TimedOut { .. }), "{error}");
            assert_eq!(error.key().unwrap().as_str(), "p:job:2");
        })
        .await;
        assert_eq!(counter.get(), 2);
        held.release().await.unwrap();
    }

    const TEMPLATE: &str = "order:<id>";
    const TEMPLATES: [&str; 2] = ["a", "order:<order.lines[0].sku>"];
    const PLAIN: &str = "order:<-";

    #[distributed_lock(key = TEMPLATE, manager = locks)]
    async fn by_constant(locks: &LockManager) -> Result<(), LockError> {
        Ok(())
    }

    #[distributed_lock(key = &self::TEMPLATE, prefix = "p:", manager = locks)]
    async fn by_path(locks: &LockManager) -> Result<(), LockError> {
        Ok(())
    }

    #[distributed_lock(key = "a", prefix = TEMPLATE, manager = locks)]
    async fn by_prefix(locks: &LockManager) -> Result<(), LockError> {
        Ok(())
    }

    #[distributed_lock(keys = TEMPLATES, manager = locks)]
    async fn by_constants(locks: &LockManager) -> Result<(), LockError> {
        Ok(())
    }

    #[distributed_lock(keys = ["a", TEMPLATE], manager = locks)]
    async fn by_list(locks: &LockManager) -> Result<(), LockError> {
        Ok(())
    }

    #[distributed_lock(key = PLAIN, manager = locks, guard = lock)]
    async fn by_plain_constant(locks: &LockManager) -> Result<String, LockError> {
        Ok(lock.key().to_string())
    }

    #[tokio::test(start_paused = true)]
    async fn a_template_in_a_constant_is_refused_and_one_in_data_is_not() {
        let locks = testing::memory_manager();
        for refused in [
            by_constant(&locks).await,
            by_path(&locks).await,
            by_prefix(&locks).await,
            by_constants(&locks).await,
            by_list(&locks).await,
        ] {
            let error = refused.unwrap_err();
            assert!(matches!(error, LockError::InvalidKey(_)), "{error}");
            assert!(error.to_string().contains("comes from a constant"), "{error}");
        }
        assert_eq!(by_plain_constant(&locks).await.unwrap(), "order:<-");
        assert_eq!(by_data(&locks, "order:<id>").await.unwrap(), "order:<id>");
    }

    #[distributed_lock(key = text, manager = locks, guard = lock)]
    async fn by_data(locks: &LockManager, text: &str) -> Result<String, LockError> {
        Ok(lock.key().to_string())
    }

    #[distributed_lock(key = mutex.lock().unwrap().clone())]
    async fn from_a_std_mutex(mutex: &std::sync::Mutex<String>) -> Result<(), LockError> {
        tokio::task::yield_now().await;
        assert!(mutex.try_lock().is_ok(), "what the key expression locked is free before the body");
        Ok(())
    }

    #[tokio::test(start_paused = true)]
    async fn what_the_key_expression_borrows_is_over_before_the_wait() {
        fn send<T: Send>(value: T) -> T {
            value
        }
        let mutex = std::sync::Mutex::new("k".to_owned());
        with_default(testing::memory_manager(), send(from_a_std_mutex(&mutex))).await.unwrap();
    }
}

// The attribute hands the error over by value.
#[allow(clippy::needless_pass_by_value)]
mod answers {
    use super::*;

    fn busy(error: LockError) -> Result<&'static str, Refused> {
        assert!(error.is_busy());
        Ok("busy")
    }

    fn failed(error: LockError) -> &'static str {
        if error.is_busy() { "failed, busy" } else { "failed" }
    }

    #[distributed_lock(key = "k", wait = "none")]
    async fn error() -> Result<&'static str, Refused> {
        Ok("done")
    }

    #[distributed_lock(key = "k", wait = "10ms", on_busy = skip)]
    async fn skip() -> Result<Option<&'static str>, LockError> {
        Ok(Some("done"))
    }

    #[distributed_lock(key = "<key>", wait = "none", on_busy = skip, on_error = count)]
    async fn skip_unit(key: &str, calls: &AtomicU32) {
        let _ = key;
        calls.fetch_add(1, Ordering::Relaxed);
    }

    fn count<T: Default>(_: LockError) -> T {
        T::default()
    }

    #[distributed_lock(key = "k", wait = "none", on_busy = busy)]
    async fn busy_path() -> Result<&'static str, Refused> {
        Ok("done")
    }

    #[distributed_lock(key = "<key>", wait = "none", on_error = failed)]
    async fn error_path(key: &str) -> &'static str {
        let _ = key;
        "done"
    }

    #[distributed_lock(key = "<key>", wait = "none", on_busy = only_busy, on_error = failed)]
    async fn both(key: &str) -> &'static str {
        let _ = key;
        "done"
    }

    fn only_busy(_: LockError) -> &'static str {
        "busy"
    }

    #[tokio::test(start_paused = true)]
    async fn a_busy_lock_is_answered_as_asked() {
        let locks = testing::memory_manager();
        let held = locks.mutex("k").acquire().await.unwrap();
        with_default(locks.clone(), async {
            assert!(matches!(error().await, Err(Refused::Lock(LockError::Busy { .. }))));
            assert_eq!(skip().await.unwrap(), None);
            let calls = AtomicU32::new(0);
            skip_unit("k", &calls).await;
            assert_eq!(calls.load(Ordering::Relaxed), 0);
            assert_eq!(busy_path().await.unwrap(), "busy");
            assert_eq!(error_path("k").await, "failed, busy");
            assert_eq!(both("k").await, "busy");

            held.release().await.unwrap();
            assert_eq!(error().await.unwrap(), "done");
            assert_eq!(skip().await.unwrap(), Some("done"));
            skip_unit("k", &calls).await;
            assert_eq!(calls.load(Ordering::Relaxed), 1);
            assert_eq!(busy_path().await.unwrap(), "done");
            assert_eq!(error_path("k").await, "done");
            assert_eq!(both("k").await, "done");
        })
        .await;
    }

    #[tokio::test(start_paused = true)]
    async fn other_errors_go_to_on_error_also_beside_on_busy() {
        with_default(testing::memory_manager(), async {
            assert_eq!(error_path("").await, "failed");
            assert_eq!(both("{").await, "failed");
        })
        .await;
    }
}

mod release {
    use super::*;

    #[distributed_lock(key = "k", manager = locks)]
    async fn ends(locks: &LockManager, how: &str) -> Result<u8, Refused> {
        tokio::task::yield_now().await;
        match how {
            "return" => return Ok(1),
            "question" => Err(Refused::Stock)?,
            "panic" => panic!("on purpose"),
            _ => {}
        }
        Ok(2)
    }

    #[tokio::test(start_paused = true)]
    async fn the_lock_is_free_however_the_body_ends() {
        let locks = testing::memory_manager();
        assert_eq!(ends(&locks, "tail").await.unwrap(), 2);
        assert!(is_free(&locks, "k").await);
        assert_eq!(ends(&locks, "return").await.unwrap(), 1);
        assert!(is_free(&locks, "k").await);
        assert!(matches!(ends(&locks, "question").await, Err(Refused::Stock)));
        assert!(is_free(&locks, "k").await);

        let other = locks.clone();
        tokio::spawn(async move { ends(&other, "panic").await.map(drop) }).await.unwrap_err();
        drop(locks.mutex("k").wait(Duration::from_secs(1)).acquire().await.unwrap());
    }

    #[tokio::test(start_paused = true)]
    async fn a_dropped_call_frees_the_lock() {
        let locks = testing::memory_manager();
        {
            let mut call = Box::pin(ends(&locks, "tail"));
            assert!(futures_poll_once(call.as_mut()).await.is_none());
        }
        drop(locks.mutex("k").wait(Duration::from_secs(1)).acquire().await.unwrap());
    }

    async fn futures_poll_once<F: Future>(mut future: std::pin::Pin<&mut F>) -> Option<F::Output> {
        std::future::poll_fn(|cx| match future.as_mut().poll(cx) {
            std::task::Poll::Ready(output) => std::task::Poll::Ready(Some(output)),
            std::task::Poll::Pending => std::task::Poll::Ready(None),
        })
        .await
    }
}

mod exclusion {
    use super::*;

    #[distributed_lock(key = "stock", manager = locks, wait = "forever")]
    async fn take(locks: &LockManager, stock: &AtomicU32) -> Result<(), LockError> {
        let seen = stock.load(Ordering::Relaxed);
        sleep(Duration::from_millis(1)).await;
        stock.store(seen - 1, Ordering::Relaxed);
        Ok(())
    }

    #[tokio::test(start_paused = true)]
    async fn bodies_of_one_key_do_not_overlap() {
        let locks = testing::memory_manager();
        let stock = Arc::new(AtomicU32::new(50));
        let calls: Vec<_> = (0..50)
            .map(|_| {
                let (locks, stock) = (locks.clone(), Arc::clone(&stock));
                tokio::spawn(async move { take(&locks, &stock).await })
            })
            .collect();
        for call in calls {
            call.await.unwrap().unwrap();
        }
        assert_eq!(stock.load(Ordering::Relaxed), 0);
    }

    #[distributed_lock(key = "outer", manager = locks, wait = "none", guard = lock)]
    async fn outer(locks: &LockManager) -> Result<(), LockError> {
        let inside = inner(locks).await?;
        assert_eq!(lock.fencing_token(), inside, "the inner call entered again");
        Ok(())
    }

    #[distributed_lock(key = "outer", manager = locks, wait = "none", guard = lock)]
    async fn inner(locks: &LockManager) -> Result<lock_runtime::FencingToken, LockError> {
        Ok(lock.fencing_token())
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_inside_a_body_enters_its_lock_again() {
        outer(&testing::memory_manager()).await.unwrap();
    }
}

mod loss {
    use super::*;

    /// Records when it is dropped.
    struct Witness(Option<oneshot::Sender<()>>);

    impl Drop for Witness {
        fn drop(&mut self) {
            let _ = self.0.take().map(|sender| sender.send(()));
        }
    }

    #[distributed_lock(key = "k", lease = "200ms", manager = locks)]
    async fn cancelled(locks: &LockManager, witness: Witness) -> Result<(), LockError> {
        let _witness = witness;
        sleep(Duration::from_secs(60)).await;
        Ok(())
    }

    #[distributed_lock(key = "k", lease = "200ms", on_lost = finish, guard = lock, manager = locks)]
    async fn finished(locks: &LockManager) -> Result<bool, LockError> {
        sleep(Duration::from_secs(60)).await;
        Ok(lock.is_lost())
    }

    #[distributed_lock(key = "k", max_hold = "300ms", manager = locks)]
    async fn limited(locks: &LockManager) -> Result<(), LockError> {
        std::future::pending().await
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_lost_its_lock_is_dropped_where_it_is() {
        let locks = testing::memory_manager();
        let (sender, mut dropped) = oneshot::channel();
        let start = Instant::now();
        let error = cancelled(&locks, Witness(Some(sender))).await.unwrap_err();
        assert!(matches!(error, LockError::Lost { .. }), "{error}");
        assert!(start.elapsed() <= Duration::from_millis(250), "{:?}", start.elapsed());
        assert!(dropped.try_recv().is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn with_finish_the_body_runs_to_its_end() {
        let locks = testing::memory_manager();
        let start = Instant::now();
        assert!(finished(&locks).await.unwrap());
        assert!(start.elapsed() >= Duration::from_secs(60));
    }

    #[tokio::test(start_paused = true)]
    async fn max_hold_ends_a_body_that_would_go_on() {
        let locks = testing::memory_manager();
        let start = Instant::now();
        assert!(matches!(limited(&locks).await, Err(LockError::Lost { .. })));
        assert!(start.elapsed() <= Duration::from_millis(400), "{:?}", start.elapsed());
    }

    #[distributed_lock(key = "k", min_hold = "5s", manager = locks)]
    async fn brief(locks: &LockManager) -> Result<(), LockError> {
        Ok(())
    }

    #[tokio::test(start_paused = true)]
    async fn min_hold_keeps_the_key_after_a_short_body() {
        let locks = testing::memory_manager();
        brief(&locks).await.unwrap();
        assert!(!is_free(&locks, "k").await);
        sleep(Duration::from_secs(6)).await;
        assert!(is_free(&locks, "k").await);
    }
}

/// A job that several machines start at nearly the same time.
mod jobs {
    use super::*;

    #[derive(Default)]
    struct Machines {
        runs: AtomicU32,
    }

    impl Machines {
        #[distributed_lock(key = "nightly", wait = "none", min_hold = "23h", on_busy = skip, manager = locks)]
        async fn nightly(&self, locks: &LockManager) -> Result<Option<u32>, LockError> {
            sleep(Duration::from_millis(300)).await;
            Ok(Some(self.runs.fetch_add(1, Ordering::Relaxed) + 1))
        }
    }

    #[tokio::test(start_paused = true)]
    async fn with_min_hold_it_runs_once_on_staggered_machines_and_what_was_skipped_is_told() {
        let store = testing::memory_store();
        let managers = [(); 3].map(|()| testing::manager_on(LockManager::builder(), store.clone()));
        let machines = Machines::default();
        for day in 1..=5 {
            let begin = Instant::now();
            let mut answers = Vec::new();
            for locks in &managers {
                answers.push(machines.nightly(locks).await.unwrap());
                sleep(Duration::from_millis(340)).await;
            }
            assert_eq!(answers, [Some(day), None, None]);
            tokio::time::sleep_until(begin + Duration::from_secs(24 * 3600)).await;
        }
    }
}

mod boxed {
    use super::*;

    #[async_trait]
    trait Work {
        async fn work(&mut self, id: u64, text: String) -> Result<String, LockError>;
    }

    struct Worker {
        locks: LockManager,
        name: String,
    }

    #[async_trait]
    impl Work for Worker {
        #[distributed_lock(key = "<self.name>:<id>", manager = self.locks, wait = "none", guard = lock)]
        async fn work(&mut self, id: u64, mut text: String) -> Result<String, LockError> {
            self.name.push('!');
            tokio::task::yield_now().await;
            text.push_str(lock.key().as_str());
            Ok(text)
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_method_of_an_async_trait_is_locked() {
        let locks = testing::memory_manager();
        let mut worker = Worker { locks: locks.clone(), name: "w".into() };
        assert_eq!(worker.work(1, "key ".into()).await.unwrap(), "key w:1");
        let held = locks.mutex("w!:2").acquire().await.unwrap();
        assert!(worker.work(2, String::new()).await.unwrap_err().is_busy());
        drop(held);
    }
}
