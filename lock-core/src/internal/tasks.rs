//! [`Tasks`]: the runtime of a manager, for its background tasks.

#[cfg(feature = "testing")]
mod process;

use std::future::Future;

use tokio::runtime::Handle;
use tokio::task::JoinHandle;

#[cfg(feature = "testing")]
pub use self::process::Process;

/// Spawns tasks that belong to one manager.
#[derive(Clone, Debug)]
pub struct Tasks {
    runtime: Handle,
    /// The process of this manager, in simulations of several.
    #[cfg(feature = "testing")]
    process: Option<Process>,
}

impl Tasks {
    pub fn new(runtime: Handle) -> Self {
        Self {
            runtime,
            #[cfg(feature = "testing")]
            process: None,
        }
    }

    /// Makes the tasks part of a simulated process, if there is one.
    #[cfg(feature = "testing")]
    pub fn of(self, process: Option<Process>) -> Self {
        Self { process, ..self }
    }

    pub fn spawn<F>(&self, task: F) -> JoinHandle<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        #[cfg(feature = "testing")]
        if let Some(process) = &self.process {
            return self.runtime.spawn(process.run(task));
        }
        self.runtime.spawn(task)
    }
}
