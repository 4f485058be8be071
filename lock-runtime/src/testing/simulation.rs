//! Parts for simulations of several processes in one thread: chance that follows from a seed,
//! clocks that differ, processes that stop, and a server that is a value.
//!
//! Use them on a current-thread runtime under paused time. The network between the processes and
//! the server is the simulation's own. Not public API: our own tests use it.

use std::sync::Arc;

use crate::builder::LockManagerBuilder;
use crate::connect::address::quorum_options;
use crate::error::ConnectError;
use crate::manager::LockManager;

pub use lock_core::internal::chance::seed;
use lock_core::internal::clock::Clock;
pub use lock_core::internal::clock::SimClock;
pub use lock_core::internal::tasks::Process;
use lock_core::store::LockStore;
pub use lock_store_memory::server::{Looked, MemoryServer, ServerHandle};
use lock_store_quorum::QuorumStore;

/// Returns a manager of `process` that goes by `clock`, on one store or on a quorum of several.
///
/// # Panics
///
/// Outside of a tokio runtime, or when the settings contradict each other.
#[must_use]
pub fn manager(
    mut settings: LockManagerBuilder,
    mut stores: Vec<Arc<dyn LockStore>>,
    clock: SimClock,
    process: &Process,
) -> LockManager {
    settings.engine.process = Some(process.clone());
    let clock = Clock::Simulated(clock);
    let started = settings.start(clock, |settings, runtime| match (stores.len(), stores.pop()) {
        (1, Some(store)) => Ok(store),
        (_, last) => {
            let options = quorum_options(settings, clock, runtime);
            let quorum = QuorumStore::new(stores.into_iter().chain(last).collect(), options);
            let quorum = quorum.map_err(|error| ConnectError::misconfigured(error.to_string()))?;
            Ok(Arc::new(quorum) as Arc<dyn LockStore>)
        }
    });
    match started {
        Ok(engine) => LockManager::on(engine),
        Err(error) => super::fail(&error.to_string()),
    }
}
