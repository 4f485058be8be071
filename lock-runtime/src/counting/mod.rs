//! Semaphores and latches, which count instead of locking.
//!
//! - [`semaphore`]: permits, which the engine grants, renews and releases as it does locks.
//! - [`latch`]: a count, which waiters poll while they listen for its end.

mod latch;
mod semaphore;

use std::fmt;
use std::future::Future;
use std::sync::{Arc, OnceLock};

use lock_core::LockKey;
use lock_core::internal::sync::atomic::Ordering;
use lock_core::store::{Lacked, LatchStore, SemaphoreStore, StoreError};
use lock_engine::Engine;
use lock_engine::failure::Failure;
use tokio_util::sync::CancellationToken;

pub use self::latch::CountDownLatch;
pub use self::semaphore::{Semaphore, SemaphorePermit};
use crate::error::LockError;

/// The part of a manager that serves semaphores and latches.
pub(crate) struct Counting {
    engine: Arc<Engine>,
    latches: OnceLock<Option<Arc<dyn LatchStore>>>,
    /// Ends the waits for latches.
    shut_down: CancellationToken,
}

impl Counting {
    pub(crate) fn new(engine: Arc<Engine>) -> Self {
        let shut_down = CancellationToken::new();
        Self { engine, latches: OnceLock::new(), shut_down }
    }

    fn semaphores(&self, name: &LockKey) -> Result<Arc<dyn SemaphoreStore>, LockError> {
        self.engine.semaphores().cloned().ok_or_else(|| self.lack("semaphore", name, Lacked::Semaphores))
    }

    fn lack(&self, sort: &str, name: &LockKey, what: Lacked) -> LockError {
        LockError::misconfigured(format!("{sort} {name}: {}", self.engine.store.abilities().lack(what)))
    }

    fn latches(&self, name: &LockKey) -> Result<Arc<dyn LatchStore>, LockError> {
        let latches = self.latches.get_or_init(|| self.engine.store.latches());
        latches.clone().ok_or_else(|| self.lack("latch", name, Lacked::Latches))
    }

    /// Ends the waits for latches.
    pub(crate) fn shut_down(&self) {
        self.shut_down.cancel();
    }
}

impl fmt::Debug for Counting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Counting").field("store", &self.engine.store).finish_non_exhaustive()
    }
}

/// As [`Engine::dispatched`], with a limit of `timeouts` call time-outs. Fails when the manager was
/// shut down.
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
