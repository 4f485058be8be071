//! Semaphores and latches: what is counted rather than locked.
//!
//! A manager has a second engine for permits, made when it is first needed. It sees a
//! [`SemaphoreStore`] as a [`LockStore`], so permits are renewed, lost, released and withdrawn as
//! locks are.
//!
//! - [`semaphore`], [`latch`]: the handles.

mod latch;
mod semaphore;

use std::fmt;
use std::future::Future;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use lock_core::LockKey;
use lock_core::internal::sync::atomic::Ordering;
use lock_core::store::{LatchStore, LockStore, SemaphoreStore, StoreError};
use lock_engine::Engine;
use lock_engine::failure::Failure;
use lock_engine::line::Lines;
use tokio_util::sync::CancellationToken;

pub use self::latch::CountDownLatch;
pub use self::semaphore::{Semaphore, SemaphorePermit};
use crate::error::LockError;

/// What a manager has for semaphores and latches.
pub(crate) struct Counting {
    /// The locks'.
    engine: Arc<Engine>,
    /// `None`: the manager was shut down before there were any.
    lines: OnceLock<Option<Arc<Lines>>>,
    latches: OnceLock<Option<Arc<dyn LatchStore>>>,
    /// Ends the waits for latches.
    shut_down: CancellationToken,
}

impl Counting {
    pub(crate) fn new(engine: Arc<Engine>) -> Self {
        let shut_down = CancellationToken::new();
        Self { engine, lines: OnceLock::new(), latches: OnceLock::new(), shut_down }
    }

    /// Those who want permits of `name`; made with the first call.
    fn lines(&self, name: &LockKey) -> Result<&Arc<Lines>, LockError> {
        if self.lines.get().is_none() {
            // Outside of the cell: a store of the user's own is asked.
            let Some(store) = self.engine.store.semaphores() else {
                return Err(LockError::misconfigured(format!(
                    "semaphore {name}: the store {:?} has no semaphores",
                    self.engine.store
                )));
            };
            self.lines.get_or_init(|| Some(Arc::new(self.start(store))));
        }
        let lines = self.lines.get().and_then(Option::as_ref);
        lines.ok_or_else(|| LockError::ShutDown { key: name.clone() })
    }

    fn start(&self, store: Arc<dyn SemaphoreStore>) -> Lines {
        let engine = &self.engine;
        // Keeps the locks' engine, and so a thread of its own, for as long as permits are held.
        let permits: Arc<dyn LockStore> =
            Arc::new(lock_engine::permits::PermitsAsLocks::new(Arc::clone(&store), Arc::clone(engine)));
        Lines::new(
            Engine::start(engine.settings.clone(), engine.clock, permits, engine.runtime.clone()),
            store,
        )
    }

    fn latches(&self, name: &LockKey) -> Result<Arc<dyn LatchStore>, LockError> {
        let latches = self.latches.get_or_init(|| self.engine.store.latches());
        latches.clone().ok_or_else(|| {
            LockError::misconfigured(format!(
                "latch {name}: the store {:?} has no latches",
                self.engine.store
            ))
        })
    }

    /// As [`Engine::shutdown`], for permits; and ends the waits for latches.
    pub(crate) async fn shutdown(&self, grace: Duration) -> (usize, bool) {
        self.shut_down.cancel();
        match self.lines.get_or_init(|| None) {
            Some(lines) => lines.engine.shutdown(grace).await,
            None => (0, true),
        }
    }

    #[cfg(feature = "testing")]
    pub(crate) fn engine_of_permits(&self) -> Option<&Arc<Engine>> {
        self.lines.get()?.as_ref().map(|lines| &lines.engine)
    }
}

impl fmt::Debug for Counting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Counting").field("store", &self.engine.store).finish_non_exhaustive()
    }
}

/// As [`Engine::dispatched`], unless the manager was shut down. Awaits `timeouts` call time-outs.
async fn dispatched<T: Send + 'static>(
    engine: &Engine,
    timeouts: u32,
    call: impl Future<Output = Result<T, StoreError>> + Send + 'static,
) -> Result<T, Failure> {
    if engine.shut_down.load(Ordering::Acquire) {
        return Err(Failure::ShutDown);
    }
    engine.dispatched(engine.settings.call_timeout * timeouts, call).await
}
